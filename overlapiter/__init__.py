"""overlapiter: stages and reads the coming mini-batches while earlier ones are trained on.

The public names are loaded on first use, so that a worker process, which imports parts of this
package, does not import Chainer for nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .firstuse import names_of
from .importhook import when_imported

if TYPE_CHECKING:
    from . import errors as errors
    from . import mpi as mpi
    from . import torch as torch
    from .agreement import scatter_order as scatter_order
    from .chainer.convert import concat_examples as concat_examples
    from .chainer.extensions import LoadingReport as LoadingReport
    from .chainer.extensions import PrintExplanation as PrintExplanation
    from .chainer.extensions import ProgressBar as ProgressBar
    from .chainer.iterator import OverlapIterator as OverlapIterator
    from .openhook import local_path as local_path
    from .options import Skip as Skip
    from .options import Staging as Staging
    from .options import Tier as Tier
    from .peers.meeting import Rendezvous as Rendezvous
    from .redirection import redirect as redirect
    from .stats import Stats as Stats
    from .tracing import trace as trace

__version__ = "0.1.0.dev0"

_HOMES = {
    "LoadingReport": ".chainer.extensions",
    "OverlapIterator": ".chainer.iterator",
    "PrintExplanation": ".chainer.extensions",
    "ProgressBar": ".chainer.extensions",
    "Rendezvous": ".peers.meeting",
    "Skip": ".options",
    "Staging": ".options",
    "Tier": ".options",
    "Stats": ".stats",
    "concat_examples": ".chainer.convert",
    "errors": ".errors",
    "local_path": ".openhook",
    "mpi": ".mpi",
    "redirect": ".redirection",
    "scatter_order": ".agreement",
    "torch": ".torch",
    "trace": ".tracing",
}

__all__ = [*_HOMES]
for _framework in ("chainer", "torch"):
    if find_spec(_framework) is None:  # for `import *` and `help`, which take all that is listed
        __all__ = [name for name in __all__ if _HOMES[name].split(".")[1] != _framework]

if not TYPE_CHECKING:  # a checker would take any name for one of them
    __getattr__, __dir__ = names_of(globals(), _HOMES)


def _load_loader(_module: object, is_whole: bool) -> None:
    if is_whole:
        import_module(".torch.loader", __name__)


# While Lightning asks a model for its loader, it notes the arguments of the classes of loaders that
# are there already. One imported then cannot be made again, with a DistributedSampler.
for _package in ("lightning.fabric", "lightning_fabric"):
    when_imported(f"{_package}.utilities.data", _load_loader)

"""Imports Chainer in the forkserver, so that the processes forked from it have it at hand.

Chainer checks its environment when it is imported, which takes a third of the import's time. The
trainer has done that, and its children share the environment, so it is left out here. Import this
module in child processes only.
"""

import sys
import types

_check = types.ModuleType("chainer._environment_check")
_check.check = lambda: None  # type: ignore[attr-defined]  # a module made here
sys.modules.setdefault("chainer._environment_check", _check)

import chainer.datasets  # noqa: E402, F401  # after the stand-in
import PIL.JpegImagePlugin  # noqa: E402
import PIL.PngImagePlugin  # noqa: E402, F401

from overlapiter.chainer import datasets  # noqa: E402, F401

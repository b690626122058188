"""Imports Chainer in the forkserver, so that the processes forked from it need not.

Chainer checks its environment when it is imported, which takes a third of the time. The trainer
has checked the same environment, so this module skips that. Import it in child processes only.
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

"""Imported by every Python that the tests start with this folder on its path.

Chainer checks its environment when it is imported, which takes a third of the import's time. The
tests themselves have imported it in the same environment, so their programs leave the check out.
Of the modules in ``TESTS_DO_WITHOUT`` it is as if they were not installed.
"""

import os
import sys
import types

_check = types.ModuleType("chainer._environment_check")
_check.check = lambda: None  # type: ignore[attr-defined]  # a module made here
sys.modules.setdefault("chainer._environment_check", _check)
for _name in os.environ.get("TESTS_DO_WITHOUT", "").split():
    sys.modules[_name] = None  # type: ignore[assignment]  # what stands for a missing module

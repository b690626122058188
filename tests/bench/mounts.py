"""Tells whether a FUSE file system can be mounted here."""

from __future__ import annotations

import functools
import tempfile

import pytest

from bench.harness.options import NotPossibleError
from bench.slow.mount import SlowMount


@functools.cache
def why_no_fuse() -> str:
    """Return why no FUSE file system can be mounted; empty if one can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with SlowMount(folder, folder):
                return ""
        except NotPossibleError as error:
            return str(error)


needs_fuse = pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse() or "FUSE is there")

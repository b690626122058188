"""Asks remote stores in a process that is forked, as fsspec keeps a thread in each that asks."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

# Both take long, and would be imported in each of these processes.
import fsspec.implementations.http  # noqa: F401
import s3fs  # noqa: F401


def in_child(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a forked process, which keeps the thread of fsspec."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_fd)
        try:
            answer = function(), ""
        except BaseException:  # it is told in the parent
            answer = None, traceback.format_exc()
        with os.fdopen(write_fd, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        answer, trouble = pickle.load(pipe)
    os.waitpid(pid, 0)
    assert not trouble, trouble
    return answer

"""The dataset on its way to the supervisor: a pickle in anonymous memory.

Arrays are pickled out of band, so the trainer copies each of them once, into the parcel, and the
workers use them where they lie: as private views, copied page by page only when written to. A
replacement of the supervisor opens the same parcel again.

Layout: the number of buffers, the length of the pickle, the length of each buffer (8 bytes each,
little endian), then the pickle and the buffers, each at a multiple of 64 bytes.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import re
import struct
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import xxhash

from overlapiter.errors import DatasetPicklingError, PipelineError

_ALIGNMENT_BYTES = 64
_UTF_32 = {"little": "utf-32-le", "big": "utf-32-be"}[sys.byteorder]  # as NumPy has texts


class Parcel:
    """A pickled object in anonymous memory.

    Args:
        thing: What to pickle, by a pickler of this ``kind``.
        name: What an error calls it; empty if its attributes have names that the user knows.

    Raises:
        DatasetPicklingError: It cannot be pickled.
        PipelineError: A limit of the process is in the way.
    """

    def __init__(self, thing: object, kind: type[pickle.Pickler], *, name: str = "dataset") -> None:
        try:
            pieces = pickled_pieces(thing, kind)
        except Exception as error:
            raise _explained(thing, error, name) from error
        header = struct.pack(f"<{len(pieces) + 1}q", len(pieces) - 1, *(p.nbytes for p in pieces))
        self.fd = -1
        try:
            self.fd = os.memfd_create("overlapiter-dataset", os.MFD_CLOEXEC)
            with open(self.fd, "wb", closefd=False) as file:
                for piece in [memoryview(header), *pieces]:
                    file.write(piece)
                    file.seek(_aligned(file.tell()))
                file.truncate()
        except OSError as error:
            self.close()
            n_bytes = sum(piece.nbytes for piece in pieces)
            raise PipelineError(
                f"the pickled dataset, {n_bytes / 1e6:.1f} MB, cannot be written to memory for the "
                f"workers ({error}); look at the limits of file sizes (ulimit -f), of open files "
                f"(ulimit -n) and of memory"
            ) from error

    @property
    def digest(self) -> bytes:
        """What :func:`digest_of` returns for what was pickled."""
        return digest_of(_pieces_in(self.fd, mmap.ACCESS_READ))

    def mentions(self, module: str) -> bool:
        """Return whether the pickle refers to a module or to one below it, or has such a text."""
        # As pickle writes a name, so that this is its beginning: a text, short or not, or a global.
        # Most are not there at all, which a search for the name alone finds out much sooner.
        name = re.escape(module.encode("utf-8", "surrogatepass"))  # so does pickle
        begin = rb"(?s:\x8c.|X.{4}|c)"
        pickled = _pieces_in(self.fd, mmap.ACCESS_READ)[0]
        return all(re.search(pattern, pickled) for pattern in (name, begin + name))

    def has_texts_below(self, beginning: str) -> bool:
        """Return whether an array of texts begins with one that begins so; or of bytes."""
        heads = [beginning.encode(code, "surrogatepass") for code in ("utf-8", _UTF_32)]
        arrays = _pieces_in(self.fd, mmap.ACCESS_READ)[1:]
        return any(array[: len(head)] == head for array in arrays for head in heads)

    def close(self) -> None:
        """Drop the descriptor; closing twice is fine."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def pickled_pieces(thing: object, kind: type[pickle.Pickler]) -> list[memoryview]:
    """Return the pickle of a thing, and the memory of its arrays, which is not copied."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    kind(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(thing)
    # Not getbuffer(): a stream that is garbage together with its buffer complains.
    return [memoryview(stream.getvalue()), *(buffer.raw() for buffer in buffers)]


def digest_of(pieces: Iterable[memoryview]) -> bytes:
    """Return a digest of what was pickled: another one where the thing has changed since."""
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _explained(thing: object, error: Exception, name: str) -> DatasetPicklingError:
    """Find the attribute at fault by pickling the parts of ``thing`` one by one."""
    attribute, culprit = _culprit(thing, error, set()) or ("", error)
    where = f"{name}{attribute}".removeprefix(".")
    return DatasetPicklingError(where, f"{type(culprit).__name__}: {culprit}")


def _culprit(thing: object, error: Exception, seen: set[int]) -> tuple[str, Exception] | None:
    """Return where in ``thing`` the fault lies; None if only by a way back to what was seen."""
    seen.add(id(thing))
    leads_back = False
    for name, part in _parts(thing):
        reason = _pickling_error(part)
        if reason is not None:
            found = None if id(part) in seen else _culprit(part, reason, seen)
            if found is not None:
                return name + found[0], found[1]
            leads_back = True
    return None if leads_back else ("", error)


def _parts(thing: object) -> list[tuple[str, object]]:
    if isinstance(thing, dict):
        return [(f"[{key!r}]", value) for key, value in thing.items()]
    if isinstance(thing, (list, tuple)):
        return [(f"[{number}]", value) for number, value in enumerate(thing)]
    if hasattr(thing, "__qualname__"):  # a function or a class is pickled by its name
        return []
    state = dict(getattr(thing, "__dict__", {}))
    with contextlib.suppress(Exception):  # what is pickled may be less: __getstate__ is user code
        slots = [each for kind in type(thing).__mro__ for each in vars(kind).get("__slots__", ())]
        state |= {each: getattr(thing, each) for each in slots if hasattr(thing, each)}
        pickled = thing.__getstate__()  # type: ignore[attr-defined]  # not before Python 3.11
        state = pickled if isinstance(pickled, dict) else state
    return [(f".{name}", value) for name, value in state.items()]


def _pickling_error(thing: object) -> Exception | None:
    try:
        pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickling runs user code
        return error
    return None


def open_parcel(fd: int) -> Any:
    """Unpickle what is in a parcel; the descriptor stays the caller's.

    Raises:
        RecursionError: A ``__getattr__`` of the user's calls itself then.
        Exception: What else unpickling raises.
    """
    pieces = _pieces_in(fd, mmap.ACCESS_COPY)
    try:
        return pickle.loads(pieces[0], buffers=pieces[1:])
    except RecursionError as error:
        raise _told(error) from None


def _pieces_in(fd: int, access: int) -> list[memoryview]:
    """Return the pickle in a parcel and its buffers, which keep it mapped."""
    memory = memoryview(mmap.mmap(fd, 0, access=access))
    (n_buffers,) = struct.unpack_from("<q", memory)
    lengths = struct.unpack_from(f"<{n_buffers + 1}q", memory, 8)
    start = _aligned(8 * (n_buffers + 2))
    pieces = []
    for length in lengths:
        pieces.append(memory[start : start + length])
        start = _aligned(start + length)
    return pieces


def _told(error: RecursionError) -> RecursionError:
    """Name the ``__getattr__`` that unpickling calls before there is any attribute, if it does."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        code = frame.f_code
        if code.co_name == "__getattr__" and code.co_argcount == 2:
            owner, name = (frame.f_locals[each] for each in code.co_varnames[:2])
            return RecursionError(
                f"__getattr__ of {type(owner).__name__} calls itself for {name!r}, which is not "
                f"there yet when the worker processes unpickle the dataset; begin it with "
                f"`if name == {name!r}: raise AttributeError(name)`"
            )
    return error


def _aligned(number_bytes: int) -> int:
    return -(-number_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES

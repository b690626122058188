"""Redirection: libraries that open files in C get the staged copies, in worker processes alone.

A reader is a function or a class that opens the file whose path is its first argument. The known
ones stand in one table, to which :func:`redirect` adds. Each is replaced when its module is
imported; the replacement asks the hook that this process has, if any (:mod:`.openhook`).
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from . import openhook
from .errors import OptionError
from .importhook import is_loaded, when_imported

Function = Callable[..., Any]


class Reader(NamedTuple):
    """A line of the table."""

    module: str  # where it is found
    name: str  # its name there; that of a method with the name of its class before
    keyword: str = ""  # name of the argument that is the path; empty to ask its signature
    #: Whether it has read the file when it returns, and does not look at its name: then the copy
    #: needs no file on the disk.
    by_content: bool = False
    is_on: bool = True  # whether it is redirected


_KNOWN = (
    Reader("cv2", "imread", "filename", by_content=True),
    Reader("cv2", "imreadmulti", "filename", by_content=True),
    Reader("cv2", "imcount", "filename", by_content=True),
    Reader("cv2", "haveImageReader", "filename", by_content=True),
    Reader("cv2", "VideoCapture", "filename"),
    Reader("cv2", "VideoCapture.open", "filename"),
    Reader("h5py", "File", "name"),
    Reader("netCDF4", "Dataset", "filename"),
    Reader("numpy.lib._datasource", "open", "path"),  # by which loadtxt and genfromtxt open
    Reader("os", "open"),
    Reader("soundfile", "SoundFile", "file"),  # by which read, info and blocks open
    # By which read_image and decode_* open.
    Reader("torchvision.io.image", "read_file", "path", by_content=True),
)

_table = {(each.module, each.name): each for each in _KNOWN}

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
#: A second argument, or a mode, with which a call may write.
_WRITING_MODE = re.compile(r"[wax][a-z+\-]{0,3}|r[bts]*\+[bts]*")
_READING_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOATIME | os.O_NONBLOCK
_MARK = "__overlapiter_redirected__"
_is_installed = False


def redirect(
    module: str, name: str, *, keyword: str = "", by_content: bool = False, is_on: bool = True
) -> None:
    """Have a function or a class that opens files in C open the staged copies of source files.

    Call it before the iterator is made, or at the top of the dataset's module. In the workers the
    path of a staged file, the first argument, is then replaced as :func:`overlapiter.local_path`
    does. Calls that write are left alone: those whose mode, the second argument, says so.

    Args:
        module: Where it is found, ``"cv2"`` for example; it is not imported for this.
        name: Its name there, ``"imread"``, or ``"Class.method"`` for a method.
        keyword: The name of its first argument, for callers that give the path by name; needed
            where the signature does not tell.
        by_content: Whether it has read the file when it returns, and does not look at the ending of
            its name. The path that it gets is then one of a file in memory, which takes less time.
        is_on: False has a reader read the source as if there were no staging: one of files that
            name other files beside them, for example.

    Raises:
        OptionError: The names are none, or the module has no such reader.
    """
    for option, value in (("module", module), ("name", name)):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise OptionError(option, f'{value!r} is no name; write redirect("cv2", "imread")')
    reader = Reader(module, name, keyword, by_content, is_on)
    if isinstance(imported := sys.modules.get(module), ModuleType):
        _owner_of(reader, imported, is_loaded(imported))
    _table[module, name] = reader
    if _is_installed:
        when_imported(module, _apply)


def added_readers() -> tuple[Reader, ...]:
    """Return what :func:`redirect` was called with in this process."""
    return tuple(each for each in _table.values() if each not in _KNOWN)


def install(readers: Iterable[Reader]) -> None:
    """Redirect readers in this process, and in those forked from it, when they have a hook.

    It gets those that the program has added, before the dataset is unpickled: what that imports
    finds the replacements.
    """
    global _is_installed  # for this process
    _is_installed = True
    _table.update({(each.module, each.name): each for each in readers})
    for module in {each.module for each in _table.values()}:
        when_imported(module, _apply)


def _apply(module: ModuleType, is_complete: bool) -> None:
    """Replace the readers of a module that is imported; as :func:`_owner_of` has it."""
    for reader in [each for each in _table.values() if each.module == module.__name__]:
        owner = _owner_of(reader, module, is_complete)
        if owner is not None:
            name = reader.name.rpartition(".")[2]
            _replace(owner, name, getattr(owner, name), reader)


def _owner_of(reader: Reader, module: ModuleType, is_complete: bool) -> Any:
    """Return the module or the class in it that has a reader; None if it does not have it (yet).

    A module that is to be loaded later has no names yet: to ask for one would load it.

    Raises:
        OptionError: The user has named a reader that it does not have.
    """

    def find(thing: Any, name: str) -> Any:
        is_partial = thing is module and not is_complete
        return vars(thing).get(name) if is_partial else getattr(thing, name, None)

    *path, name = reader.name.split(".")
    owner = functools.reduce(find, path, module)
    if find(owner, name) is not None:
        return owner
    if is_complete and reader not in _KNOWN:
        raise OptionError(
            "name",
            f"{reader.module} has no {reader.name}; correct "
            f'overlapiter.redirect("{reader.module}", "{reader.name}")',
        )
    return None


def _replace(owner: Any, name: str, found: Any, reader: Reader) -> None:
    if isinstance(found, type):
        _replace_constructor(owner, name, found, reader)
    elif not hasattr(found, _MARK):
        is_method = isinstance(owner, type)
        replacement = _opening_copies(found, reader, n_before=int(is_method))
        setattr(owner, name, replacement)
        if not is_method:
            openhook.replace_imported([name], found, replacement)
    if reader[:2] == ("h5py", "File"):
        _refuse_scattered(sys.modules["h5py"])


def _replace_constructor(owner: Any, name: str, found: Any, reader: Reader) -> None:
    """Have a class open copies; it stays the same class, so instances and subclasses are as ever.

    One that cannot be changed, of some extension modules, is replaced by a subclass; one that can
    have none either, by a function.
    """
    constructor = "__new__" if found.__init__ is object.__init__ else "__init__"
    before = getattr(found, constructor)
    if hasattr(before, _MARK):
        return
    replacement = _opening_copies(before, reader, n_before=1)
    try:
        setattr(found, constructor, replacement)
    except TypeError:
        kind = type(found)
        checks = {
            "__instancecheck__": lambda _, thing: isinstance(thing, found),
            "__subclasscheck__": lambda _, other: issubclass(other, found),
        }
        names = {each: getattr(found, each) for each in ("__module__", "__qualname__", "__doc__")}
        names[constructor] = replacement
        instead: Any
        try:
            instead = type(kind.__name__, (kind,), checks)(found.__name__, (found,), names)
        except TypeError:
            instead = _opening_copies(found, reader, n_before=0)
        setattr(owner, name, instead)
        openhook.replace_imported([name], found, instead)


# --- in place of a reader -------------------------------------------------------------------------


def _opening_copies(function: Function, reader: Reader, n_before: int) -> Function:
    """Return what takes the place of a reader with ``n_before`` arguments before the path."""
    if reader[:2] == ("os", "open"):
        return _opening_descriptors(function)
    key, keyword = reader[:2], reader.keyword or _name_of_argument(function, n_before)

    @functools.wraps(function)
    def read(*args: Any, **kwargs: Any) -> Any:
        hook, line = openhook.current_hook(), _table[key]
        is_by_name = len(args) <= n_before
        is_left_alone = not line.is_on or (is_by_name and keyword not in kwargs)
        if hook is None or is_left_alone or _may_write(args[n_before + 1 :], kwargs):
            return function(*args, **kwargs)
        path = kwargs.pop(keyword) if is_by_name else args[n_before]
        with hook.giving(path, by_content=line.by_content) as copy:
            if is_by_name:
                return function(*args, **kwargs, **{keyword: copy})
            return function(*args[:n_before], copy, *args[n_before + 1 :], **kwargs)

    setattr(read, _MARK, True)
    return read


def _name_of_argument(function: Function, number: int) -> str:
    try:
        return [*inspect.signature(function).parameters][number]
    except (ValueError, IndexError):  # a function in C may not tell
        return "filename"


def _may_write(following: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    mode = following[0] if following else kwargs.get("mode")
    return isinstance(mode, str) and _WRITING_MODE.fullmatch(mode) is not None


def _opening_descriptors(real: Function) -> Function:
    """Return what takes the place of ``os.open``: a descriptor has no path, so it is given one."""

    @functools.wraps(real)
    def open_descriptor(
        path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        hook = openhook.current_hook()
        is_reading = dir_fd is None and not flags & ~_READING_FLAGS
        if hook is not None and is_reading and _table["os", "open"].is_on:
            found = hook.descriptor(path)
            if found is not None:
                return found
        opened: int = real(path, flags, mode, dir_fd=dir_fd)
        return opened

    setattr(open_descriptor, _MARK, True)
    os.supports_dir_fd.add(open_descriptor)
    return open_descriptor


def _refuse_scattered(h5py: Any) -> None:
    """Have h5py refuse the datasets of a copy whose parts lie in files beside the source file.

    HDF5 would not find them beside the copy, and give the fill value without a word.
    """
    before = h5py.Dataset.__init__
    if hasattr(before, _MARK):
        return

    @functools.wraps(before)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        hook = openhook.current_hook()
        if hook is None or not self.is_virtual or not hook.has_given(self.file.filename):
            return
        names = [part.file_name for part in self.virtual_sources()]
        if any(name != "." and not os.path.isabs(name) for name in names):
            raise OSError(
                f"parts of the dataset {self.name} lie in other files, which a staged copy does "
                f"not have beside it; read the source: "
                f'overlapiter.redirect("h5py", "File", is_on=False)'
            )

    setattr(construct, _MARK, True)
    h5py.Dataset.__init__ = construct

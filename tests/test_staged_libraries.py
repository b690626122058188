"""Libraries read the same from a staged file in memory as from a file, given its path or opened."""

# ruff: noqa: SIM115  # the uses are expressions; that they leave files open is one more check

from __future__ import annotations

import array
import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import mmap
import pickle
import shutil
import tarfile
import wave
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from overlapiter.openhook import OpenHook
from overlapiter.stagedfile import StagedFile, open_bytes
from tests.support.hooks import uninstall

TEXT = "first\r\nsecond: naïve\nthird\rlast".encode()
LONG = bytes(range(256)) * 200


def outcome(use, path):
    """Return what a use gives, or the type and the text of what it raises."""
    try:
        return use(path)
    except Exception as error:
        return type(error), str(error)


def pixels(image: Image.Image):
    return image.format, image.mode, image.size, image.tobytes()


def frames(path: Path):
    """Return all the frames of an image, the last first."""
    with Image.open(path) as image:
        return [(image.seek(n), pixels(image)) for n in reversed(range(image.n_frames))]


def of_file(use):
    """Return ``use`` of an opened file as a use of a path."""

    def use_path(path):
        with open(path, "rb") as file:
            return use(file)

    return use_path


def of_text(use, **kwargs):
    def use_path(path):
        with open(path, **kwargs) as file:
            return use(file)

    return use_path


def from_file(file):
    """Read numbers with ``np.fromfile`` between other ways to read."""
    head = file.read(8)
    first = np.fromfile(file, "<u2", 5)
    at = file.tell()
    second = np.fromfile(file, "u1", 3, offset=2)
    return head, first.tolist(), at, second.tolist(), file.tell(), file.read(4)


def array_from_file(file):
    numbers = array.array("B")
    numbers.fromfile(file, 7)
    return numbers.tolist(), file.tell()


def zip_members(file):
    with zipfile.ZipFile(file) as archive:
        return archive.testzip(), {name: archive.read(name) for name in archive.namelist()}


def tar_members(archive):
    with archive:
        return {m.name: archive.extractfile(m).read() for m in archive}


def hdf5(file):
    with h5py.File(file, "r") as opened:
        return opened["x"][3:5].tolist(), opened["x"].attrs["unit"]


def archive_of_arrays(path):
    with np.load(path) as arrays:
        return {name: arrays[name].tolist() for name in arrays}


def memory_map(path):
    found = np.load(path, mmap_mode="r")
    return type(found), found[2].tolist(), found.flags.writeable


def copied(path):
    """Copy a file by its descriptor, as shutil does."""
    target = path.parent.parent / "copy"
    shutil.copyfile(path, target)
    return target.read_bytes()


def sound(path):
    with wave.open(str(path)) as opened:
        return opened.getparams(), opened.readframes(9)


IMAGES = ["jpg", "png", "tif", "lzw.tif", "bmp", "gif", "webp", "jp2", "ppm"]
USES = {
    **{f"Pillow, {kind}": (f"i.{kind}", lambda p: pixels(Image.open(p))) for kind in IMAGES},
    **{
        f"Pillow, {kind}, file": (f"i.{kind}", of_file(lambda f: pixels(Image.open(f))))
        for kind in IMAGES
    },
    "Pillow, two frames": ("two.tif", frames),
    "Pillow, two frames of a GIF": ("two.gif", frames),
    "Pillow, no image": ("d.json", lambda p: outcome(Image.open, p)[0]),
    "Pillow, scaled while it is decoded": (
        "i.jpg",
        lambda p: (i := Image.open(p), i.draft("RGB", (8, 8)), pixels(i))[2],
    ),
    "np.load": ("a.npy", lambda p: np.load(p).tolist()),
    "np.load, file": ("a.npy", of_file(lambda f: (np.load(f).tolist(), f.tell()))),
    "np.load, mapped": ("a.npy", memory_map),
    "np.load, objects": ("o.npy", lambda p: np.load(p, allow_pickle=True).tolist()),
    "np.load, archive": ("a.npz", archive_of_arrays),
    "np.load, pickle": ("d.pickle", lambda p: np.load(p, allow_pickle=True)),
    "np.memmap": ("long", lambda p: np.memmap(p, "u1", "r", 7, (3, 5)).tolist()),
    "np.memmap, copy on write": ("long", lambda p: np.memmap(p, "<u4", "c").sum()),
    "np.fromfile": ("long", lambda p: np.fromfile(p, "<u2", 9, offset=3).tolist()),
    "np.fromfile, file": ("long", of_file(from_file)),
    "np.frombuffer": ("long", of_file(lambda f: np.frombuffer(f.read(), "u1").sum())),
    "np.loadtxt, file": ("t.csv", of_text(lambda f: np.loadtxt(f, str, delimiter=";").tolist())),
    "array.fromfile": ("long", of_file(array_from_file)),
    "h5py": ("a.h5", of_file(hdf5)),
    "zipfile": ("a.zip", zip_members),
    "zipfile, file": ("a.zip", of_file(zip_members)),
    "is_zipfile": ("a.zip", zipfile.is_zipfile),
    "is_zipfile, no": ("d.json", zipfile.is_zipfile),
    "gzip": ("t.gz", lambda p: gzip.open(p).read()),
    "gzip, text": ("t.gz", lambda p: gzip.open(p, "rt", encoding="utf-8").readlines()),
    "gzip, file": ("t.gz", of_file(lambda f: gzip.GzipFile(fileobj=f).read())),
    "bz2": ("t.bz2", lambda p: bz2.open(p).read()),
    "lzma": ("t.xz", lambda p: lzma.open(p).read()),
    "tarfile": ("a.tar", lambda p: tar_members(tarfile.open(p))),
    "tarfile, compressed": ("a.tgz", lambda p: tar_members(tarfile.open(p))),
    "tarfile, file": ("a.tgz", of_file(lambda f: tar_members(tarfile.open(fileobj=f)))),
    "tarfile, stream": (
        "a.tgz",
        of_file(lambda f: tar_members(tarfile.open(fileobj=f, mode="r|*"))),
    ),
    "wave": ("a.wav", sound),
    "csv": ("t.csv", of_text(lambda f: [*csv.DictReader(f, delimiter=";")], newline="")),
    "json": ("d.json", of_text(json.load, encoding="utf-8")),
    "json, bytes": ("d.json", of_file(json.load)),
    "pickle": ("d.pickle", of_file(lambda f: (pickle.load(f), pickle.load(f), f.tell()))),
    "Unpickler": ("d.pickle", of_file(lambda f: pickle.Unpickler(f).load())),
    "mmap": ("long", of_file(lambda f: mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[:])),
    "codecs": ("t.csv", lambda p: codecs.open(str(p), "r", "utf-8").read()),
    "TextIOWrapper": ("t.csv", of_file(lambda f: io.TextIOWrapper(f, "utf-8").readlines())),
    "BufferedReader": ("long", of_file(lambda f: io.BufferedReader(f, 512).read())),
    "shutil": ("long", copied),
    "pathlib, open": ("long", lambda p: p.open("rb").read()),
    "pathlib, bytes": ("t.csv", lambda p: p.read_bytes()),
    "pathlib, text": ("t.csv", lambda p: p.read_text("utf-8")),
}


def images(folder: Path) -> None:
    """Write an image in each of several formats."""
    random = np.random.default_rng(0)
    noise = Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8))
    for kind in ("jpg", "png", "tif", "bmp", "webp", "jp2", "ppm"):
        noise.save(folder / f"i.{kind}")
    noise.save(folder / "i.lzw.tif", compression="tiff_lzw")
    noise.convert("L").save(folder / "i.gif")
    turned = noise.rotate(90, expand=True)
    noise.save(folder / "two.tif", save_all=True, append_images=[turned], compression="tiff_lzw")
    noise.convert("P").save(folder / "two.gif", save_all=True, append_images=[noise.rotate(180)])


def archives(folder: Path) -> None:
    """Write what holds other files."""
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", LONG)
        archive.writestr("y/z", b"z")
    for name, mode in (("a.tar", "w"), ("a.tgz", "w:gz")):
        with tarfile.open(folder / name, mode) as archive:
            archive.add(folder / "a.zip", "within.zip")
    (folder / "t.gz").write_bytes(gzip.compress(TEXT))
    (folder / "t.bz2").write_bytes(bz2.compress(TEXT))
    (folder / "t.xz").write_bytes(lzma.compress(TEXT))


def numbers(folder: Path) -> None:
    """Write arrays and records."""
    np.save(folder / "a.npy", np.arange(24.0).reshape(6, 4))
    np.save(folder / "o.npy", np.array([{"a": 1}, None]))
    np.savez(folder / "a.npz", x=np.arange(5), y=np.ones((2, 2)))
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(20).reshape(10, 2)
        file["x"].attrs["unit"] = "mm"
    (folder / "d.json").write_text('{"a": [1, "ä"]}', encoding="utf-8")
    (folder / "d.pickle").write_bytes(pickle.dumps([1, 2]) + pickle.dumps({"x": LONG}))
    (folder / "t.csv").write_text('a;b\n1;"x y"\n2;ü\n', encoding="utf-8")
    (folder / "long").write_bytes(LONG)
    with wave.open(str(folder / "a.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(LONG[:1000])


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    """A folder of files in many formats; not to be written to."""
    folder = tmp_path_factory.mktemp("samples")
    for write in (images, archives, numbers):
        write(folder)
    return folder


class InMemory:
    """A handler that has files in memory."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents
        self.n_opens = 0

    def open(self, path, mode, args, kwargs):
        self.n_opens += 1
        return open_bytes(self.contents[path], path, mode, *args, **kwargs)

    def local_path(self, path):
        raise AssertionError(path)


# Some uses leave the closing to the garbage collector, of which the real file warns.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning", "ignore:codecs.open")
@pytest.mark.parametrize(("name", "use"), USES.values(), ids=USES)
def test_a_library_reads_the_same_from_a_staged_file(samples, tmp_path, monkeypatch, name, use):
    (tmp_path / "real").mkdir()
    shutil.copyfile(samples / name, tmp_path / "real" / name)
    expected = outcome(use, tmp_path / "real" / name)
    for module, keeps in ((tarfile, "bltn_open"), (bz2, "_builtin_open")):
        monkeypatch.setattr(module, keeps, open)  # whatever other tests have left there
    source = tmp_path / "source"  # it does not exist: nothing can be read there
    handler = InMemory({str(source / name): (samples / name).read_bytes()})
    hook = OpenHook(str(source), handler)
    hook.install()
    try:
        found = outcome(use, source / name)
    finally:
        uninstall()
    assert handler.n_opens
    np.testing.assert_equal(found, expected)


def test_a_decoded_image_asks_for_no_descriptor(samples):
    for name in ("i.jpg", "i.png", "i.webp"):
        with open_bytes((samples / name).read_bytes(), name) as file:
            Image.open(file).load()
            assert isinstance(file, StagedFile)
            assert file._descriptor < 0

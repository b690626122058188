"""Files that libraries in C open by a path: they come from their copies, or a warning says not."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.datasets import TextDataset

from overlapiter import OverlapIterator, Staging
from overlapiter.errors import StagingWarning
from tests.chainer.c_readers import (
    LARGE,
    SMALL,
    TORCH_USES,
    USES,
    CReads,
    DeclaredCReads,
    DeclaredUnseenFiles,
    KeptRows,
    UnseenBytes,
    UnseenFiles,
    UnseenFilesAfterOther,
    UnseenPaths,
    UnseenTexts,
    write_files,
)
from tests.chainer.iterator_datasets import Pixels
from tests.chainer.scripts import run_script, wait_until
from tests.cli.commands import overlapiter
from tests.support.opens import Opens

OPTIONS: dict[str, Any] = {"shuffle": False, "n_processes": 2, "dataset_timeout": None}


@pytest.fixture
def opens() -> Iterator[Any]:
    """Starts to count the opens of the files in a folder, by whichever process."""
    started = []

    def count(folder: Path) -> Opens:
        started.append(Opens(str(folder)))
        started[-1].start()
        return started[-1]

    yield count
    for each in started:
        each.end()


def staging_of(tmp_path: Path, source: Path | str, **options: Any) -> Staging:
    return Staging(tmp_path / "fast", source=source, keep_free=0, n_prefetchers=1, **options)


def dataset_of(folder: Path, kind: type[CReads], uses: list[str]) -> CReads:
    """Write a small and a large file for each use, and return the dataset that reads them."""
    known = {**USES, **TORCH_USES}
    both = [(use, size) for use in uses for size in (SMALL, LARGE)]
    names = [f"{n}.{size}.{known[use][0]}" for n, (use, size) in enumerate(both)]
    write_files(folder, names)
    return kind(folder, [use for use, _ in both], names)


def check_staged(tmp_path: Path, dataset: CReads, opens: Any) -> None:
    """Check that each file crosses the slow store once, whoever opens it."""
    staging = staging_of(tmp_path, tmp_path / "source")
    expected = [dataset[index][0] for index in range(len(dataset))]
    counted = opens(tmp_path / "source")
    with OverlapIterator(dataset, 1, staging=staging, **OPTIONS) as iterator:
        for index in [*range(len(dataset))] * 2:
            ((found, number),) = next(iterator)
            assert int(number) == index
            np.testing.assert_equal(found, expected[index], dataset.uses[index])
        stats = iterator.stats()
    assert (stats.opens_source, stats.examples_unseen) == (0, 0)
    assert stats.files_staged == len(dataset)
    assert stats.opens_staged >= 2 * len(dataset)
    wait_until(lambda: len(counted.counts) == len(dataset))
    assert counted.counts == dict.fromkeys(dataset.names, 1)


@pytest.mark.parametrize("kind", [CReads, DeclaredCReads])
def test_what_known_libraries_open_comes_from_its_copy(
    tmp_path: Path, kind: type[CReads], opens: Any
) -> None:
    check_staged(tmp_path, dataset_of(tmp_path / "source", kind, [*USES]), opens)


@pytest.mark.parametrize("kind", [CReads, DeclaredCReads])
def test_what_torchvision_opens_by_a_path_comes_from_its_copy(
    tmp_path: Path, kind: type[CReads], opens: Any
) -> None:
    pytest.importorskip("torchvision")
    check_staged(tmp_path, dataset_of(tmp_path / "source", kind, [*TORCH_USES]), opens)


@pytest.mark.parametrize("keeps_open", [False, True])
def test_examples_of_a_few_hdf5_files_come_from_their_copies(
    tmp_path: Path, opens: Any, keeps_open: bool
) -> None:
    names = [f"{n}.{LARGE if n % 2 else SMALL}.h5" for n in range(4)]
    write_files(tmp_path / "source", names)
    dataset = KeptRows(tmp_path / "source", names, keeps_open=keeps_open)
    direct = KeptRows(tmp_path / "source", names, keeps_open=False)
    expected = [direct[index][0] for index in range(len(direct))]
    counted = opens(tmp_path / "source")
    staging = staging_of(tmp_path, tmp_path / "source", look_ahead=4)
    with OverlapIterator(dataset, 4, staging=staging, **OPTIONS) as iterator:
        for _ in range(3 * len(dataset) // 4):
            for row, index in next(iterator):
                np.testing.assert_equal(row, expected[int(index)])
        stats = iterator.stats()
    assert (stats.opens_source, stats.examples_unseen, stats.files_staged) == (0, 0, 4)
    wait_until(lambda: len(counted.counts) == 4)
    assert counted.counts == dict.fromkeys(names, 1)
    if keeps_open:
        assert stats.opens_staged <= 2 * len(names)


def test_an_hdf5_dataset_whose_parts_lie_in_other_files_is_read_from_the_source(
    tmp_path: Path,
) -> None:
    h5py = pytest.importorskip("h5py")
    write_files(tmp_path / "source", ["part.40.h5"])
    layout = h5py.VirtualLayout((SMALL, SMALL, 3), "u1")
    layout[:] = h5py.VirtualSource("part.40.h5", "rows", (SMALL, SMALL, 3))
    with h5py.File(tmp_path / "source" / "whole.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("rows", layout, fillvalue=0)
    dataset = KeptRows(tmp_path / "source", ["whole.h5"], keeps_open=False)
    expected = [dataset[index][0] for index in range(6)]
    assert np.any(expected)
    staging = staging_of(tmp_path, tmp_path / "source")
    with OverlapIterator(dataset, 2, staging=staging, **OPTIONS) as iterator:
        for _ in range(6):
            for row, index in next(iterator):
                np.testing.assert_equal(row, expected[int(index)])
        assert iterator.stats().opens_source


def test_libraries_open_urls_of_the_source(tmp_path: Path) -> None:
    uses = ["cv2.imread", "h5py.File", "os.open"]
    dataset = dataset_of(tmp_path / "source", DeclaredCReads, uses)
    remote = DeclaredCReads(f"file://{tmp_path}/source", dataset.uses, dataset.names)
    staging = staging_of(tmp_path, f"file://{tmp_path}/source")
    with OverlapIterator(remote, 1, staging=staging, **OPTIONS) as iterator:
        for index in range(len(dataset)):
            ((found, _),) = next(iterator)
            np.testing.assert_equal(found, dataset[index][0])
        assert iterator.stats().opens_source == 0


SCRIPT = """
    import multiprocessing, os, warnings
    import overlapiter

    class Mine:
        def __init__(self, names):
            self.names = names

        def __len__(self):
            return len(self.names)

        def __getitem__(self, i):
            import importer, later, later_importer, library
            name = self.names[i]
            sizes = [each.size_of(path=name) for each in (importer, later_importer)]
            return sizes + [len(each.Reader(name).data) for each in (library, later)]

        def source_paths(self, i):
            return [self.names[i]]

    if __name__ == "__main__":
        warnings.simplefilter("error")
        multiprocessing.set_forkserver_preload(["importer"])
        os.mkdir("source")
        names = [os.path.abspath(f"source/{n}") for n in range(8)]
        for n, name in enumerate(names):
            with open(name, "wb") as file:
                file.write(bytes(n + 1))
        for library in ("library", "later"):
            overlapiter.redirect(library, "Reader")
            overlapiter.redirect(library, "size_of")
        staging = overlapiter.Staging("fast", source="source", keep_free=0, n_prefetchers=1)
        with overlapiter.OverlapIterator(
            Mine(names), 4, shuffle=False, n_processes=1, staging=staging
        ) as it:
            for _ in range(4):
                for sizes in next(it):
                    assert sizes == [sizes[0]] * 4
            stats = it.stats()
        print(stats.opens_source, stats.files_staged, stats.opens_staged >= 64)
"""


def test_readers_that_a_program_names_are_redirected_also_where_they_were_imported_before(
    tmp_path: Path,
) -> None:
    for name, importer in (("library", "importer"), ("later", "later_importer")):
        (tmp_path / f"{name}.py").write_text(
            "import _io\n\n"
            "class Reader:\n    def __init__(self, path):\n"
            "        self.data = _io.open(path, 'rb').read()\n\n"
            "def size_of(path):\n    return len(Reader(path).data)\n"
        )
        (tmp_path / f"{importer}.py").write_text(f"from {name} import size_of\n")
    found = run_script(tmp_path, SCRIPT)
    assert found.stdout.split() == ["0", "8", "True"], found.stderr


# --- what is not seen -----------------------------------------------------------------------------


def test_files_that_a_dataset_opens_when_it_is_unpickled_are_reported_as_such(
    tmp_path: Path,
) -> None:
    (tmp_path / "source").mkdir()
    path = tmp_path / "source" / "lines.txt"
    path.write_text("".join(f"{number}\n" for number in range(200)))
    dataset = TextDataset(str(path))
    staging = staging_of(tmp_path, tmp_path / "source")
    with (
        contextlib.closing(dataset._fps[0]),
        OverlapIterator(dataset, 10, repeat=False, staging=staging, **OPTIONS) as iterator,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        assert [line for batch in iterator for line in batch] == path.read_text().splitlines(True)
    (warning,) = [each for each in caught if each.category is StagingWarning]
    assert "__setstate__, have it open them when an example is read first" in str(warning.message)


@pytest.mark.parametrize(
    "kind", [UnseenFiles, DeclaredUnseenFiles, UnseenPaths, UnseenTexts, UnseenBytes]
)
def test_a_library_that_opens_files_unseen_is_reported_once(
    tmp_path: Path, kind: type[UnseenFiles]
) -> None:
    n_files = 60
    names = [f"{n}.4.bin" for n in range(n_files)]
    write_files(tmp_path / "source", names)
    dataset = kind(tmp_path / "source", names)
    staging = staging_of(tmp_path, tmp_path / "source")
    with (
        OverlapIterator(dataset, 10, staging=staging, **OPTIONS) as iterator,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(2 * n_files // 10):
            assert [int(size) for size in next(iterator)] == [48] * 10
        # Readers go on ahead, and count what they have read a moment later.
        wait_until(lambda: iterator.stats().examples_unseen == iterator.stats().examples_read)
        stats = iterator.stats()
    assert [each.category for each in caught] == [StagingWarning]
    assert "names files below" in str(caught[0].message)
    assert "overlapiter.redirect(" in str(caught[0].message)
    assert (stats.opens_source, stats.opens_staged) == (0, 0)
    assert stats.examples_read >= 2 * n_files
    assert "no open seen" in overlapiter("status", tmp_path / "fast").stdout


def test_a_file_that_a_library_reads_when_it_is_imported_hides_no_unseen_one(
    tmp_path: Path,
) -> None:
    names = [f"{n}.4.bin" for n in range(200)]
    write_files(tmp_path / "source", names)
    dataset = UnseenFilesAfterOther(tmp_path / "source", names)
    staging = Staging(tmp_path / "fast", source=tmp_path / "source", n_prefetchers=1, keep_free=0)
    with (
        OverlapIterator(dataset, 10, repeat=False, staging=staging, **OPTIONS) as iterator,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        assert sum(map(len, iterator)) == len(names)
    (warning,) = caught
    assert "names files below" in str(warning.message)


@pytest.mark.parametrize("dataset", [np.arange(400), Pixels(400)])
def test_a_dataset_in_memory_beside_a_source_is_no_cause_for_a_warning(
    tmp_path: Path, dataset: Any
) -> None:
    (tmp_path / "source").mkdir()
    staging = staging_of(tmp_path, tmp_path / "source")
    with (
        OverlapIterator(dataset, 10, staging=staging, **OPTIONS) as iterator,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        for _ in range(80):
            next(iterator)
        assert iterator.stats().examples_unseen == 0

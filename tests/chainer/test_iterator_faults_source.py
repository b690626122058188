"""The source fails in many ways: what is staged is given, the rest is named, and nothing hangs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overlapiter.errors import ExampleError
from tests.chainer.faults import Image, Run, SourceFiles, content
from tests.chainer.scripts import run_script, wait_until
from tests.store.disks import mounted, mounted_tmpfs
from tests.support.staged import evict, read_staged, staged_paths

N_BATCHES = 3


# --- single files -----------------------------------------------------------------------------


def missing(path: Path) -> None:
    path.unlink()


def io_error(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")  # nothing is mapped at its beginning


def endless_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def no_folder(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("5.bin") / "below")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("deed", [missing, io_error, endless_link, no_folder, a_directory])
def test_a_file_that_cannot_be_read_gives_the_error_of_the_dataset_itself_and_is_named(
    source: SourceFiles, directory: Path | None, deed: Callable[[Path], None]
) -> None:
    bad = source.folder / source.names[6]
    deed(bad)
    with pytest.raises(OSError) as expected:  # noqa: PT011  # ours is to be the same
        source.dataset[6]

    with source.iterate(directory) as run:
        for _ in range(2):
            run.take()
            error = run.skip(OSError)
            run.take()
            assert (type(error), error.errno, error.filename) == (
                type(expected.value),
                expected.value.errno,
                expected.value.filename,
            )
            cause = error.__cause__
            assert isinstance(cause, ExampleError)
            assert cause.index == 6
            if directory is not None:
                assert cause.paths == (str(bad),)
        assert run.warnings == []


def test_files_dated_beyond_64_bits_are_staged_as_others_are(tmp_path: Path) -> None:
    source = SourceFiles(tmp_path / "source", most_bytes=2_500_000)  # small ones and large ones
    for name in source.names[2:]:
        os.utime(source.folder / name, ns=(10**9, 10_500_000_000 * 10**9))  # in 2302
    for n_staged in (len(source.names), 0):
        with source.iterate(tmp_path / "fast") as run:
            run.take_until_staged()
            assert run.iterator.stats().files_staged == n_staged
        assert run.warnings == []


def test_a_file_without_read_permission_is_named(tmp_path: Path) -> None:
    """Root may read any file, unless it gives that capability away."""
    body = """
    import os, numpy
    import overlapiter
    from overlapiter.errors import ExampleError
    from tests.chainer.iterator_datasets import DeclaredFiles

    if __name__ == "__main__":
        os.mkdir("source")
        names = [str(i) for i in range(6)]
        for name in names:
            open(f"source/{name}", "w").write(name)
        os.chmod("source/3", 0)
        for staging in (None, overlapiter.Staging("fast", source="source", keep_free=0)):
            dataset = DeclaredFiles("source", names)
            with overlapiter.OverlapIterator(
                dataset, 2, shuffle=False, n_processes=1, staging=staging
            ) as it:
                for _ in range(2):
                    assert [bytes(v) for v, _ in next(it)] == [b"0", b"1"]
                    try:
                        next(it)
                        raise AssertionError
                    except PermissionError as error:
                        assert error.filename == "source/3"
                        assert isinstance(error.__cause__, ExampleError)
                    assert [bytes(v) for v, _ in next(it)] == [b"4", b"5"]
        print("done")
    """
    launcher = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    done = run_script(tmp_path, body, launcher=launcher)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_an_empty_file_and_one_that_is_cut_while_running_are_what_they_are(
    source: SourceFiles, directory: Path | None
) -> None:
    (source.folder / source.names[1]).write_bytes(b"")
    source.epoch[0][1] = (b"", 1)
    with source.iterate(directory) as run:
        run.take(6)
        cut = source.folder / source.names[6]
        size_bytes = cut.stat().st_size
        os.truncate(cut, size_bytes // 2)
        whole = source.epoch[1][2]
        for _ in range(4):
            run.take()
            batch = next(run.iterator)
            run.n_taken += 1
            assert len(batch) == 4
            assert content(batch)[2][0] in (whole[0], whole[0][: size_bytes // 2])
            run.take()


def test_a_source_that_gives_input_output_errors_is_named_and_read_when_it_has_recovered(
    tmp_path: Path,
) -> None:
    image = Image(tmp_path / "image")
    with mounted(tmp_path / "disk", "-o", "loop", str(image.path)) as disk:
        source = SourceFiles(disk / "source")
        with source.iterate(tmp_path / "fast") as run:
            run.take(6)
            wait_until(lambda: len(staged_paths(tmp_path / "fast")) == len(source.names))
            lost = source.folder / source.names[5]
            image.lose([source.folder / name for name in source.names])
            evict(tmp_path / "fast", source.folder, [source.names[5]])
            errors = [attempt(run) for _ in range(9)]
            failed = [error for error in errors if error is not None]
            assert failed
            for error in failed:
                assert error.errno == 5
                assert error.__cause__.paths == (str(lost),)
            image.recover()
            wait_until(lambda: attempt(run) is None)
            for _ in range(3):
                attempt(run)
            run.take_until_staged()


def attempt(run: Run) -> Any:
    """Take a mini-batch that may fail; return its error."""
    try:
        batch = next(run.iterator)
    except OSError as error:
        run.n_taken += 1
        return error
    assert content(batch) == run.expected
    run.n_taken += 1
    return None


# --- files that change ------------------------------------------------------------------------


def test_a_file_that_is_replaced_while_running_is_whole_the_old_one_or_the_new(
    source: SourceFiles, directory: Path | None
) -> None:
    with source.iterate(directory) as run:
        run.take(4)
        old = source.epoch[1][1]
        source.write("new", 50_000)
        new = ((source.folder / "new").read_bytes(), 5)
        (source.folder / "new").rename(source.folder / source.names[5])
        for _ in range(9):
            batch = content(next(run.iterator))
            if run.n_taken % N_BATCHES == 1:
                assert batch[1] in (old, new)
                batch[1] = old
            assert batch == run.expected
            run.n_taken += 1
    source.epoch[1][1] = new
    with source.iterate(directory) as run:
        run.take(6)


def test_a_torn_copy_of_a_file_that_is_being_rewritten_is_never_kept(tmp_path: Path) -> None:
    source = SourceFiles(tmp_path / "source", n_files=4, most_bytes=1000)
    path = source.folder / source.names[2]
    half_bytes = 5 << 20  # a copy takes several reads
    path.write_bytes(bytes(2 * half_bytes))
    is_over = threading.Event()
    last = 0

    def rewrite() -> None:
        nonlocal last
        with path.open("r+b", buffering=0) as file:
            while not is_over.wait(0.01):
                last = last % 255 + 1
                for half in range(2):
                    file.seek(half * half_bytes)
                    file.write(bytes([last]) * half_bytes)
                    time.sleep(0.01)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        with source.iterate(tmp_path / "fast") as run:
            for _ in range(20):
                next(run.iterator)  # a reader, too, meets it half-written
            is_over.set()
            thread.join()
            run.n_taken = 0
            whole = bytes([last]) * (2 * half_bytes)
            source.epoch[0][2] = (whole, 2)
            for _ in range(6):  # they were built before
                next(run.iterator)
            run.take_until_staged()
            staged = staged_paths(tmp_path / "fast")[source.names[2]]
            assert read_staged(tmp_path / "fast", staged) == whole
    finally:
        is_over.set()
        thread.join()


# --- away and back ----------------------------------------------------------------------------


def assert_survives(run: Run, go: Callable[[], None], come_back: Callable[[], None]) -> None:
    """Stage all files but one, have the source go away and come back."""
    fast = Path(run.iterator.staging.directory)
    source = run.source
    run.take(6)
    wait_until(lambda: len(staged_paths(fast)) == len(source.names))
    run.take_until_staged()
    go()
    run.take(6)  # all of it is staged and known
    evict(fast, source.folder, [source.names[9]])
    errors = [attempt(run) for _ in range(9)]
    for number, error in enumerate(errors):
        if error is not None:
            assert (run.n_taken - 9 + number) % N_BATCHES == 2
            assert isinstance(error, FileNotFoundError)
            assert error.filename == str(source.folder / source.names[9])
    assert any(errors)
    come_back()
    for _ in range(6):  # they were built before
        attempt(run)
    run.take_until_staged()
    assert run.warnings == []


def test_a_source_that_is_renamed_away_and_back(source: SourceFiles, tmp_path: Path) -> None:
    away = tmp_path / "away"
    with source.iterate(tmp_path / "fast") as run:
        assert_survives(run, lambda: move(source.folder, away), lambda: move(away, source.folder))


def move(one: Path, other: Path) -> None:
    one.rename(other)


def test_a_source_that_is_unmounted_while_in_use_and_mounted_again(tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path / "origin", 8 << 20) as origin:
        place = tmp_path / "source"
        with mounted(place, "--bind", str(origin)):
            source = SourceFiles(place)
            with source.iterate(tmp_path / "fast") as run:
                assert_survives(
                    run,
                    lambda: subprocess.run(["umount", "-l", str(place)], check=True) and None,
                    lambda: (
                        subprocess.run(["mount", "--bind", str(origin), str(place)], check=True)
                        and None
                    ),
                )

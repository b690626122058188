"""The emulated slow store: what waits, what is shared, what is counted."""

from __future__ import annotations

import builtins
import io
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench.harness.isolated import CHECKOUT
from bench.slow.store import SlowStore, attach
from tests.support.leftovers import memory_files, new_shared_memory

FILE_BYTES = 10_000


class Files:
    """A dataset-like object at module level, so that it can be pickled."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __getitem__(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    for index in range(40):
        (directory / f"{index}.bin").write_bytes(bytes([index]) * FILE_BYTES)
    return directory


@pytest.fixture
def make_store(root: Path):
    stores = []

    def make(open_seconds: float = 0.0, bytes_per_second: float = 1e12) -> SlowStore:
        stores.append(SlowStore(root, open_seconds, bytes_per_second))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
    assert builtins.open is io.open


def read_all(paths: list[str]) -> None:
    for path in paths:
        with open(path, "rb") as file:
            file.read()


def read_range(dataset: Files, start: int, stop: int) -> None:
    for index in range(start, stop):
        dataset[index]


def read_for_ever(dataset: Files, ready) -> None:
    dataset[0]
    ready.set()
    while True:
        read_range(dataset, 0, 40)


def seconds_of(*targets) -> float:
    """Run functions side by side in threads and return how long the slowest took."""
    threads = [threading.Thread(target=target) for target in targets]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start


def test_every_open_below_the_root_waits(root, make_store):
    store = make_store(open_seconds=0.05)
    start = time.monotonic()
    with store.install():
        read_all([str(root / "1.bin"), str(root / "2.bin")])
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_every_kind_of_path_is_recognised(root, make_store, kind):
    store = make_store()
    with store.install(), open(kind(str(root / "1.bin")), "rb") as file:
        assert file.read() == b"\x01" * FILE_BYTES
    assert store.opens == 1


def test_path_open_and_relative_paths_wait_too(root, make_store, monkeypatch):
    store = make_store()
    monkeypatch.chdir(root.parent)
    with store.install():
        (root / "1.bin").read_bytes()
        read_all(["source/2.bin", "source/../source/3.bin"])
    assert set(store.opens_by_path()) == {"1.bin", "2.bin", "3.bin"}


def test_other_paths_and_writing_do_not_wait(root, make_store, tmp_path):
    store = make_store(open_seconds=5)
    (tmp_path / "source-of-another").write_bytes(b"x")
    with store.install():
        read_all([str(tmp_path / "source-of-another"), os.devnull])
        with open(root / "new.bin", "wb") as file:
            file.write(b"x")
        os.close(os.open(root / "1.bin", os.O_RDONLY))
    assert store.opens == 0


def test_a_missing_file_raises_as_usual_and_is_not_counted(root, make_store):
    store = make_store()
    with store.install(), pytest.raises(FileNotFoundError):
        (root / "missing.bin").read_bytes()
    assert store.opens == 0


def test_latencies_of_threads_overlap(root, make_store, monkeypatch):
    store = make_store(open_seconds=60)
    all_wait = threading.Barrier(20)
    monkeypatch.setattr(time, "sleep", lambda _seconds: all_wait.wait(60))
    with store.install():
        seconds_of(*[lambda i=i: read_all([str(root / f"{i}.bin")]) for i in range(20)])
    assert store.opens == 20
    assert not all_wait.broken


def test_threads_share_the_bandwidth(root, make_store):
    store = make_store(bytes_per_second=10 * FILE_BYTES)
    with store.install():
        took = seconds_of(*[lambda i=i: read_all([str(root / f"{i}.bin")]) for i in range(4)])
    assert took >= 0.4


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_processes_share_the_bandwidth_and_latencies_overlap(root, make_store, method):
    store = make_store(open_seconds=0.05, bytes_per_second=40 * FILE_BYTES)
    dataset = attach(Files([str(root / f"{i}.bin") for i in range(40)]), store)
    context = multiprocessing.get_context(method)
    processes = [
        context.Process(target=read_range, args=(dataset, 5 * n, 5 * n + 5)) for n in range(4)
    ]
    if method == "fork":
        store.install()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    ready = [record.ready_seconds for record in store.records()]
    assert sorted(store.opens_by_path().values()) == [1] * 20
    assert store.bytes_read == 20 * FILE_BYTES
    assert len({record.pid for record in store.records()}) == 4
    # 19 transfers of 25 ms lie between the first and the last, whoever made them.
    assert max(ready) - min(ready) >= 19 * 0.025 - 1e-6


def test_counts_are_exact_when_processes_are_killed(root, make_store):
    store = make_store()
    dataset = attach(Files([str(root / f"{i}.bin") for i in range(40)]), store)
    context = multiprocessing.get_context("fork")
    with store.install():
        for _ in range(5):
            ready = context.Event()
            victim = context.Process(target=read_for_ever, args=(dataset, ready))
            victim.start()
            assert ready.wait(20)
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
    assert store.opens == len(store.records()) == sum(store.opens_by_path().values())
    assert store.bytes_read == store.opens * FILE_BYTES
    assert set(store.opens_by_path()) <= {f"{i}.bin" for i in range(40)}
    before = store.opens
    with store.install():
        read_all(dataset.paths)  # a lock held by a killed process would block here
    assert store.opens == before + 40


def test_installing_twice_slows_once_and_uninstalling_restores(root, make_store):
    plain = builtins.open
    store = make_store()
    same = pickle.loads(pickle.dumps(store))
    store.install()
    store.install()
    same.install()
    assert builtins.open is io.open is not plain
    read_all([str(root / "1.bin")])
    assert store.opens == same.opens == 1
    store.uninstall()
    store.uninstall()
    assert builtins.open is io.open is plain


def test_a_redirection_installed_on_top_is_fast(root, make_store, tmp_path, monkeypatch):
    staged = tmp_path / "staged.bin"
    staged.write_bytes(b"staged")
    store = make_store()
    with store.install():
        below = builtins.open
        redirect = redirection(below, str(root / "1.bin"), str(staged))
        monkeypatch.setattr(builtins, "open", redirect)
        monkeypatch.setattr(io, "open", redirect)
        with open(str(root / "1.bin"), "rb") as file:
            assert file.read() == b"staged"
        assert store.opens == 0
        read_all([str(root / "2.bin")])
        assert store.opens == 1
        store.uninstall()
        assert builtins.open is redirect
        read_all([str(root / "3.bin")])
        assert store.opens == 1
        store.install()
        read_all([str(root / "3.bin")])
        assert store.opens == 2
        monkeypatch.undo()


def redirection(below, source: str, staged: str):
    def redirect(file, *args, **kwargs):
        return below(staged if file == source else file, *args, **kwargs)

    return redirect


def test_attaching_keeps_the_class_and_the_original(root, make_store):
    store = make_store()
    dataset = Files([str(root / "1.bin")])
    carrier = attach(dataset, store)
    assert type(carrier) is Files
    assert carrier.paths is dataset.paths
    assert not hasattr(dataset, "_slow_store")


def test_unpickling_an_attached_dataset_installs_the_store(root, make_store):
    store = make_store()
    data = pickle.dumps(attach(Files([str(root / "1.bin")]), store))
    Path(root / "1.bin").read_bytes()
    assert store.opens == 0
    pickle.loads(data)[0]
    assert store.opens == 1
    pickle.loads(pickle.dumps(pickle.loads(data)))[0]
    assert store.opens == 2


def test_what_takes_no_attributes_is_refused_by_name(make_store):
    with pytest.raises(AttributeError, match="list"):
        attach([1, 2], make_store())


def test_a_closed_store_forgets_its_state(root, make_store):
    store = make_store()
    pickled = pickle.dumps(store)
    with store.install():
        read_all([str(root / "1.bin")])
    assert store.records()[0].pid == os.getpid()
    store.close()
    store.close()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)


def test_a_copy_of_a_closed_store_is_never_taken_for_a_later_one(make_store):
    first = make_store()
    pickled = pickle.dumps(first)
    first.close()
    second = make_store()  # has the descriptor that the first one had
    with pytest.raises(FileNotFoundError, match="has been closed"):
        pickle.loads(pickled)
    assert pickle.loads(pickle.dumps(second)).opens == 0


def test_nothing_is_left_of_a_store_whose_process_is_killed(root):
    program = "import sys; from bench.slow.store import SlowStore; SlowStore(sys.argv[1]).install()"
    program += "; open(sys.argv[1] + '/1.bin').close(); print('open', flush=True); input()"
    before = memory_files()
    command = [sys.executable, "-c", program, str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=CHECKOUT, text=True, **pipes) as process:
        assert process.stdout.readline() == "open\n"
        process.kill()
    assert new_shared_memory(before) == []


@pytest.mark.parametrize(("open_seconds", "rate"), [(-1, 1e6), (0, 0), (0, -1)])
def test_impossible_options_are_refused(tmp_path, open_seconds, rate):
    with pytest.raises(ValueError, match="open_seconds"):
        SlowStore(tmp_path, open_seconds, rate)

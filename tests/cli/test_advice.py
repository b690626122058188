"""From measurements to settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.cli.advice import (
    capacity_advice,
    knee,
    prefetchers_advice,
    processes_advice,
    reads_advice,
    warnings,
)
from overlapiter.cli.console import duration_words, printable, size_words
from overlapiter.cli.probe import (
    READS_IN_FLIGHT,
    DiskSpeed,
    FileSystem,
    Level,
    Node,
    levels_for,
)
from overlapiter.options import parse_size
from overlapiter.planning import default_prefetchers

NODE = Node(16, memory_bytes=10**11, shm_bytes=10**10, n_descriptors=1024, n_processes=0, load=2.0)
DISK = DiskSpeed(1e9, 2e9, 20_000, 1e-4, 1e-4, 1e-4, 2e-5)
NVME = FileSystem("ext4", size_bytes=10**12, free_bytes=4 * 10**11)


def store(open_seconds: float, files_per_second: float, cpu: float = 1e-4) -> list[Level]:
    """Return what a store gives that answers so fast, and no more files than that."""
    levels = []
    for n_reads in READS_IN_FLIGHT:
        speed = min(n_reads / open_seconds, files_per_second)
        n_files = max(1, round(speed))
        n_bytes, cpu_seconds = n_files * 20_000, n_files * cpu
        bytes_per_second = speed * 20_000
        levels.append(
            Level(n_reads, n_files, n_bytes, speed, bytes_per_second, open_seconds, cpu_seconds)
        )
    return levels


@pytest.mark.parametrize(
    ("open_seconds", "files_per_second", "expected"),
    [(0.001, 5000, 8), (0.010, 5000, 64), (0.010, 400, 4), (0.050, 5000, 128), (1e-5, 100, 1)],
)
def test_the_knee_is_where_more_reads_bring_hardly_more(
    open_seconds, files_per_second, expected
) -> None:
    levels = store(open_seconds, files_per_second)
    assert knee(levels).n_reads == expected
    assert reads_advice(levels, 1).value == expected


@given(st.floats(1e-4, 1), st.floats(1, 1e5))
def test_the_knee_brings_nearly_the_best(open_seconds, files_per_second) -> None:
    levels = store(open_seconds, files_per_second)
    best = max(level.files_per_second for level in levels)
    assert knee(levels).files_per_second >= 0.9 * best
    for level in levels:
        if level.n_reads < knee(levels).n_reads:
            assert level.files_per_second < 0.9 * best


def test_what_still_grows_is_said_to() -> None:
    assert "more would bring more" in reads_advice(store(0.05, 5000), 1).reason
    assert "hardly more" in reads_advice(store(0.01, 5000), 1).reason


def test_ranks_share_reads_and_cores() -> None:
    levels = store(0.01, 5000)
    assert reads_advice(levels, 4).value == 16
    assert processes_advice(NODE, 4).value == 3
    assert processes_advice(NODE._replace(n_cores=1), 4).value == 1
    assert processes_advice(NODE, 1).value == 15


@pytest.mark.parametrize(
    ("n_cores", "n_ranks", "expected"),
    [(16, 1, 4), (2, 1, 2), (1, 1, 1), (64, 1, 8), (32, 4, 2), (2, 4, 1)],
)
def test_prefetchers_are_as_many_as_an_iterator_takes_by_itself(n_cores, n_ranks, expected) -> None:
    node = NODE._replace(n_cores=n_cores)
    advice = prefetchers_advice(knee(store(0.01, 5000)), DISK, node, n_ranks)
    assert advice.value == expected == default_prefetchers(max(1, n_cores // n_ranks))


def test_it_is_said_what_copying_takes() -> None:
    def reason(cpu: float) -> str:
        return prefetchers_advice(knee(store(0.01, 5000, cpu)), None, NODE, 1).reason

    assert "5,000 files/s keeps 50% of a core busy (0.10 ms a file)" in reason(1e-4)
    assert "keeps 11.5 cores busy" in reason(0.0023)
    assert "limit" not in reason(0.0023)
    assert "the limit will be the 16 cores, not the store" in reason(0.004)


def test_the_capacity_is_what_is_free_and_what_is_staged_without_what_stays_free() -> None:
    advice = capacity_advice(NVME, staged_bytes=10**11, dataset_bytes=9 * 10**11)
    assert advice.value == "450GB"
    assert "fits to 50%" in advice.reason
    assert "fits" not in capacity_advice(NVME, 0, None).reason
    assert "for the directory as a whole" in advice.reason
    assert capacity_advice(None, 0, None).value is None
    memory = NVME._replace(kind="tmpfs", is_ram=True)
    assert capacity_advice(memory, 0, None).value == "170GB"


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_the_capacity_is_an_option_and_never_more_than_there_is(size_bytes, free_bytes) -> None:
    place = FileSystem("ext4", max(size_bytes, free_bytes), free_bytes)
    value = capacity_advice(place, 0, None).value
    assert 0 < parse_size("capacity", str(value), 1) <= max(free_bytes, 10**6)


def test_what_is_in_the_way_is_named() -> None:
    levels = store(0.01, 5000)
    assert warnings(levels, DISK, NVME, NODE) == []
    assert "nfs4" in warnings(levels, DISK, NVME._replace(kind="nfs4", is_shared=True), NODE)[0]
    assert (
        "busy (40 processes for 16 cores)"
        in warnings(levels, DISK, NVME, NODE._replace(load=40))[0]
    )
    slow = DISK._replace(write_bytes_per_second=1e6)
    assert "1.0 MB/s, less than the store gives" in warnings(levels, slow, NVME, NODE)[0]
    slow = DISK._replace(small_read_seconds=1.0)
    assert "staging may not pay" in warnings(levels, slow, NVME, NODE)[0]
    assert "no holes" in warnings(levels, DISK._replace(has_holes=False), NVME, NODE)[0]
    (text,) = warnings(levels, DISK, NVME, NODE._replace(n_descriptors=64))
    assert text.endswith("ulimit -n 192")


def test_few_files_allow_for_few_reads_in_flight() -> None:
    assert levels_for(100_000) == list(READS_IN_FLIGHT)
    assert levels_for(1) == [1]
    assert levels_for(4 * 15) == [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_600, "1.0 MB"), (2e11, "200 GB")],
)
def test_sizes_are_written_as_people_do(size_bytes, words) -> None:
    assert size_words(size_bytes) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0103, "10 ms"),
        (0.00021, "0.21 ms"),
        (0.35, "350 ms"),
        (1.5, "1.5 s"),
        (90, "2 min"),
        (4800, "1 h 20 min"),
    ],
)
def test_durations_are_written_as_people_do(seconds, words) -> None:
    assert duration_words(seconds) == words


def test_what_a_terminal_might_obey_is_escaped() -> None:
    assert printable("a\x1b[2Jb\n\udcff\u00e9") == "a\\x1b[2Jb\\n\\udcff\u00e9"

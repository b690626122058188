"""From measurements to settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.cli.advice import (
    capacity_advice,
    notes_on,
    processes_advice,
    reads_advice,
    warnings,
)
from overlapiter.cli.console import printable
from overlapiter.cli.probe import DiskSpeed, FileSystem, Node
from overlapiter.cli.sourcespeed import Level
from overlapiter.options import parse_size
from overlapiter.words import duration_words, size_words

NODE = Node(16, memory_bytes=10**11, shm_bytes=10**10, n_descriptors=1024, n_processes=0, load=2.0)
DISK = DiskSpeed(1e9, 2e9, 20_000, 1e-4, 1e-4, 1e-4, 2e-5)
NVME = FileSystem("ext4", size_bytes=10**12, free_bytes=4 * 10**11)


def store(open_seconds: float, files_per_second: float, cpu: float = 1e-4) -> list[Level]:
    """Return what a store gives that answers so fast, and no more files than that."""
    levels = []
    for n_reads, seconds in ((32, 0.2), (64, 5.0), (128, 0.3)):
        speed = min(n_reads / open_seconds, files_per_second)
        n_files = max(1, round(speed * seconds))
        sizes = n_files, n_files * 20_000, speed, speed * 20_000
        levels.append(Level(n_reads, seconds, *sizes, open_seconds, n_files * cpu))
    return levels


def test_the_reads_in_flight_are_left_to_tune_themselves() -> None:
    advice = reads_advice(store(0.01, 5000), None, NODE, 1)
    assert advice.value is None
    assert "here mostly to 64, which brought 5,000 files/s (100 MB/s); copying" in advice.reason
    assert "too few" not in advice.reason
    assert "too few files to try another" in reads_advice(store(1, 1)[:1], None, NODE, 1).reason


def test_ranks_share_reads_and_cores() -> None:
    assert "the 4 ranks share it" in reads_advice(store(0.01, 5000), None, NODE, 4).reason
    assert processes_advice(NODE, 4).value == 3
    assert processes_advice(NODE._replace(n_cores=1), 4).value == 1
    assert processes_advice(NODE, 1).value == 15


def test_it_is_said_what_copying_takes() -> None:
    def reason(cpu: float, disk: DiskSpeed | None = None) -> str:
        return reads_advice(store(0.01, 5000, cpu), disk, NODE, 1).reason

    assert "copying so many keeps 50% of a core busy (0.10 ms a file)" in reason(1e-4)
    assert "keeps 1.0 cores busy (0.20 ms a file)" in reason(1e-4, DISK)
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


def test_a_disk_with_no_more_than_what_stays_free_is_not_recommended() -> None:
    advice = capacity_advice(FileSystem("ext4", 10**12, 4 * 10**10), 0, None)
    assert advice.value is None
    assert "40.0 GB of 1.0 TB are free, and 5% of the disk stays free: no room" in advice.reason


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_the_capacity_is_an_option_and_never_more_than_there_is(size_bytes, free_bytes) -> None:
    place = FileSystem("ext4", max(size_bytes, free_bytes), free_bytes)
    value = capacity_advice(place, 0, None).value
    assert value is None or 0 < parse_size("capacity", str(value), 1) <= free_bytes


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
    assert text.endswith("ulimit -n 576")


def test_files_that_could_not_be_read_are_named_for_each_reason() -> None:
    failed = {"/a": "a FIFO, not a file", "/b": "no answer", "/c": "no answer"}
    assert notes_on(failed, "file", "read") == [
        "1 file could not be read (a FIFO, not a file): /a",
        "2 files could not be read (no answer): /b, /c",
    ]


def test_of_many_reasons_the_first_few_are_told() -> None:
    *shown, last = notes_on({f"/{n}": f"reason {n}" for n in range(4000)}, "file", "read")
    assert shown == [f"1 file could not be read (reason {n}): /{n}" for n in range(5)]
    assert last == "and 3,995 more reasons"


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

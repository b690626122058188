"""Nodes that are hosts of their own: network namespaces, joined by a cable that can be cut."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.chainer.scripts import ENVIRONMENT, wait_until

PROGRAM = Path(__file__).parents[1] / "chainer/namespace_rank.py"
N_FILES, N_EPOCHS = 240, 4
#: Partitions of InfiniBand and virtual networks have such names.
CABLE = "ib0.8001"


def ip(*words: str, check: bool = True) -> bool:
    command = ["ip", *words]
    done = subprocess.run(command, check=check, capture_output=True)
    return not done.returncode


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Make two namespaces that a cable joins."""
    names = [f"ovl-{os.getpid()}-{number}" for number in range(2)]
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip of iproute2")
    try:
        if not all(ip("netns", "add", name, check=False) for name in names):
            pytest.skip("needs the right to make network namespaces")
        cable = ("type", "veth", "peer", CABLE, "netns", names[1])
        if not ip("-n", names[0], "link", "add", CABLE, *cable, check=False):
            pytest.skip("needs the right to make virtual cables")
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.213.7.{number}/24", "dev", CABLE)
            ip("-n", name, "link", "set", CABLE, "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


@contextlib.contextmanager
def ranks(
    hosts: Sequence[str], folder: Path, interface: str = ""
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a rank on each host, or here; name the interface to use, or none."""
    (folder / "source").mkdir()
    for number in range(N_FILES):
        path = folder / f"source/{number:04}"
        path.write_bytes(os.urandom(3000))
        os.utime(path, (1e9, 1e9))
    arguments = map(str, (len(hosts), N_FILES, N_EPOCHS))
    command = [sys.executable, str(PROGRAM)]
    with contextlib.ExitStack() as running:
        tail = [*arguments]
        yield [
            running.enter_context(
                subprocess.Popen(
                    [*(("ip", "netns", "exec", host) if host else ()), *command, str(rank), *tail],
                    cwd=folder,
                    env={**ENVIRONMENT, "OVERLAPITER_INTERFACE": interface},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank, host in enumerate(hosts)
        ]


def wait_for(stream: IO[str] | None, line: str) -> None:
    assert stream is not None
    assert stream.readline().strip() == line


def meet(processes: Sequence[subprocess.Popen[str]], epoch: int) -> None:
    """Wait until all ranks are amid an epoch, where they wait for a line."""
    for process in processes:
        wait_for(process.stdout, str(epoch))


def go_on(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Have the ranks go on."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def results(processes: Sequence[subprocess.Popen[str]]) -> list[Any]:
    """Have the ranks go on to the end; return what each found."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    return [
        json.loads(process.communicate(timeout=250)[0].splitlines()[-1]) for process in processes
    ]


def check_right(found: Sequence[Any]) -> list[int]:
    """Check that all mini-batches are right; return the reads of the slow store in each epoch."""
    assert [rank["wrong"] for rank in found] == [[False] * N_EPOCHS] * 2
    totals = [sum(reads) for reads in zip(*(rank["reads"] for rank in found), strict=True)]
    return [total - before for before, total in zip([0, *totals], totals, strict=False)]


def test_hosts_find_each_other_and_read_each_file_once(hosts: list[str], tmp_path: Path) -> None:
    with ranks(hosts, tmp_path) as processes:
        found = results(processes)
    reads = check_right(found)
    # On busy cores a few answers come too late. Alone the hosts would read some 210 files again.
    assert N_FILES <= sum(reads) <= 1.35 * N_FILES


def test_hosts_whose_first_interface_is_down_and_whose_second_one_has_ipv6_alone(
    hosts: list[str], tmp_path: Path
) -> None:
    ip("-n", hosts[0], "link", "add", "eth9", "type", "veth", "peer", "eth9", "netns", hosts[1])
    for number, host in enumerate(hosts, 1):
        ip("-n", host, "addr", "add", f"fd00:213::{number}/64", "dev", "eth9", "nodad")
        ip("-n", host, "link", "set", "eth9", "up")
    ip("-n", hosts[1], "link", "set", CABLE, "down")  # it keeps its address
    with ranks(hosts, tmp_path) as processes:
        found = results(processes)
    assert N_FILES <= sum(check_right(found)) <= 1.35 * N_FILES


def test_a_cable_that_is_cut_and_joined_again_amid_training(
    hosts: list[str], tmp_path: Path
) -> None:
    with ranks(hosts, tmp_path, CABLE) as processes:
        meet(processes, 0)
        go_on(processes)
        meet(processes, 1)
        ip("-n", hosts[0], "link", "set", CABLE, "down")
        go_on(processes)
        meet(processes, 2)
        ip("-n", hosts[0], "link", "set", CABLE, "up")
        found = results(processes)
    reads = check_right(found)
    assert reads[0] >= N_FILES
    assert reads[1] > 0
    assert sum(rank["faults"][-1] for rank in found) > 0
    # The network itself would wait for minutes.
    assert max(rank["seconds"][1] for rank in found) < 20


def test_a_network_that_delays_and_loses(hosts: list[str], tmp_path: Path) -> None:
    network = ("qdisc", "add", "dev", CABLE, "root", "netem", "delay", "20ms", "loss", "1%")
    command = ["ip", "netns", "exec", hosts[0], "tc", *network]
    if (
        shutil.which("tc") is None
        or subprocess.run(command, check=False, capture_output=True).returncode
    ):
        pytest.skip("needs tc, and netem in the kernel")
    with ranks(hosts, tmp_path) as processes:
        found = results(processes)
    check_right(found)


def test_a_server_lets_go_of_a_staging_directory_that_is_removed(tmp_path: Path) -> None:
    def mapped() -> list[str]:
        """Return which segments the server of the first rank has mapped."""
        children = psutil.Process(processes[0].pid).children(recursive=True)
        (pid,) = [child.pid for child in children if child.name() == "ovl-peer"]
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return [line for line in maps if "/segments/" in line]

    with ranks(["", ""], tmp_path) as processes:
        for epoch in range(2):
            meet(processes, epoch)
            go_on(processes)
        meet(processes, 2)
        assert mapped()
        (tmp_path / "fast-0/overlapiter").rename(tmp_path / "gone")  # its workers still write
        shutil.rmtree(tmp_path / "gone")
        wait_until(lambda: not mapped(), 20)
        found = results(processes)
    check_right(found)

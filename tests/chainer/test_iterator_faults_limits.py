"""The limits of the machine: less is done at once, or the error names the limit; nothing hangs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.chainer.scripts import run_script

#: Begins every program: mini-batches of files in ``source``, and that they are right.
BEGIN = """
    import os, resource, shutil, tempfile, time, warnings
    from multiprocessing import forkserver, resource_tracker
    import numpy as np
    import overlapiter
    from overlapiter.errors import PipelineError, SharedMemoryError
    from tests.chainer.iterator_datasets import DeclaredFiles, Pixels

    N_FILES = 96

    def limit(name, number):
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (number, number))

    class Heads(DeclaredFiles):
        def get_example(self, i):
            values, index = super().get_example(i)
            return values[:5000], index

    def make(**options):
        os.makedirs("source", exist_ok=True)
        names = [str(i) for i in range(N_FILES)]
        for name in names:
            with open(f"source/{name}", "wb") as file:
                file.write(bytes([int(name)]) * 5000)
            os.utime(f"source/{name}", (10**9, 10**9))
        return overlapiter.OverlapIterator(
            Heads("source", names), 8, shuffle=False, dataset_timeout=None, **options
        )

    def staging(**options):
        return overlapiter.Staging("fast", source="source", keep_free=0, **options)

    def take(it, n_batches=24):
        for number in range(n_batches):
            for values, index in next(it):
                assert bytes(values) == bytes([index]) * 5000
                assert index // 8 == number % (N_FILES // 8)

    def take_pixels(it, n_batches, keep=None):
        for number in range(n_batches):
            batch = next(it)
            for values, index in batch:
                assert (values == it.dataset[int(index)][0]).all()
            if keep is not None:
                keep.append(batch)

    def main():
"""
END = """
        print("done")

    if __name__ == "__main__":
        main()
"""


def run(
    folder: Path, body: str, launcher: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    lines = [f"        {line}".rstrip() for line in body.strip("\n").splitlines()]
    return run_script(folder, BEGIN + "\n".join(lines) + END, launcher=launcher)


def assert_done(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


# --- memory -----------------------------------------------------------------------------------


def test_a_dev_shm_of_one_megabyte_bounds_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    mount = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    done = run(
        tmp_path,
        """
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 1 << 20
with overlapiter.OverlapIterator(Pixels(32, (3, 256, 256)), 8, n_processes=2) as it:
    take_pixels(it, 8, keep=[])  # 50 MB
with make(n_processes=2, staging=staging()) as it:
    take(it)
""",
        ("unshare", "-m", "sh", "-c", mount, "sh"),
    )
    assert_done(done)


def test_a_limit_of_file_sizes_that_no_slot_keeps_is_named(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
limit("FSIZE", 1 << 20)
with overlapiter.OverlapIterator(Pixels(16, (3, 256, 256)), 8, n_processes=2) as it:
    for _ in range(3):
        try:
            next(it)
            raise AssertionError
        except SharedMemoryError as error:
            assert error.wanted_bytes > 1 << 20
            assert "ulimit -f" in str(error), error
            assert "batch_size" in str(error), error
with overlapiter.OverlapIterator(Pixels(16), 8, n_processes=2) as it:
    take_pixels(it, 4)
""",
    )
    assert_done(done)


def test_a_limit_of_file_sizes_that_the_pickled_dataset_exceeds_is_named(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
limit("FSIZE", 1 << 20)
try:
    overlapiter.OverlapIterator(np.zeros((8, 1 << 17)), 4)
    raise AssertionError
except PipelineError as error:
    assert "8.4 MB" in str(error) and "ulimit -f" in str(error), error
overlapiter.OverlapIterator(np.zeros(8), 4).finalize()
""",
    )
    assert_done(done)


def test_a_limit_of_file_sizes_that_a_staged_file_exceeds_leaves_it_on_the_source(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
make(n_processes=1).finalize()
os.truncate("source/5", 3 << 20)
names = [str(i) for i in range(N_FILES)]
limit("FSIZE", 2 << 20)
forkserver._forkserver._stop()  # the next one has that limit
it = overlapiter.OverlapIterator(
    Heads("source", names), 8, shuffle=False, n_processes=2, staging=staging()
)
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    take(it, 40)
    deadline = time.monotonic() + 60
    while it.stats().files_staged < N_FILES - 1:
        assert time.monotonic() < deadline, it.stats()
        take(it, 12) if it.is_new_epoch else next(it)
it.finalize()
assert len(heard) == 1, [str(w.message) for w in heard]
assert "File too large" in str(heard[0].message), heard[0]
""",
    )
    assert_done(done)


def test_an_address_space_that_is_used_up_in_the_trainer_is_told_and_can_be_freed(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
it = overlapiter.OverlapIterator(Pixels(64, (3, 256, 256)), 8, n_processes=2)
kept = []
take_pixels(it, 1, kept)
used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (4 << 20), hard))
try:
    take_pixels(it, 200, kept)
    raise AssertionError
except SharedMemoryError as error:
    assert "ulimit -v" in str(error), error
except MemoryError:  # the test's own arrays
    pass
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
take_pixels(it, 30)
it.finalize()
""",
    )
    assert_done(done)


# --- descriptors ------------------------------------------------------------------------------


def test_with_64_descriptors_less_is_done_at_once(tmp_path: Path) -> None:
    body = """
for n_readers, options in (
    (4, {"n_prefetchers": 1, "reads_in_flight": 256}),
    (4, {"n_prefetchers": 4, "reads_in_flight": 64, "capacity": 10**8}),
    (80, None),
    (40, {"n_prefetchers": 20}),
    (2, {"n_prefetchers": 1}),
):
    shutil.rmtree("fast", ignore_errors=True)
    with make(n_processes=n_readers, staging=options and staging(**options)) as it:
        take(it)
        stats = it.stats()
    assert stats.workers_replaced == 0, stats
    assert it.staging is None or stats.files_staged == N_FILES, stats
"""
    launcher = ("prlimit", "--nofile=64:64")
    assert_done(run(tmp_path, body, launcher))


def test_descriptors_that_run_out_in_the_trainer_are_told_and_no_mini_batch_is_lost(
    tmp_path: Path,
) -> None:
    done = run(
        tmp_path,
        """
it = overlapiter.OverlapIterator(Pixels(64), 4, shuffle=False, n_processes=2)
first = next(it)
numbers = [int(index) for _, index in first]
n_open = max(map(int, os.listdir("/proc/self/fd")))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
files = [open("/dev/null") for _ in range(3)]
kept = [first]
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
try:
    for _ in range(60):  # more slots are needed, each segment of them comes as a descriptor
        kept.append(next(it))
        numbers += [int(index) for _, index in kept[-1]]
    raise AssertionError
except OSError as error:
    assert error.errno == 24, error
    assert "ulimit -n" in str(error), error
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
for _ in range(20):
    kept.append(next(it))
    numbers += [int(index) for _, index in kept[-1]]
assert numbers == [i % 64 for i in range(len(numbers))]
for batch in kept:
    for values, index in batch:
        assert (values == it.dataset[int(index)][0]).all()
it.finalize()
""",
    )
    assert_done(done)


def test_what_keeps_the_workers_from_being_started_is_told_and_nothing_else(tmp_path: Path) -> None:
    body = """
def check(remedy):
    try:
        overlapiter.OverlapIterator(Pixels(8), 4)
        raise AssertionError
    except PipelineError as error:
        assert remedy in str(error), error

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (12, hard))
check("ulimit -n")
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
tempfile.tempdir = "gone"
check("TMPDIR")
tempfile.tempdir = None
os.mkdir("here"); os.chdir("here"); os.rmdir("../here")
check("working directory")
"""
    assert_done(run(tmp_path, body))


def test_a_working_directory_that_this_user_may_not_enter_is_no_obstacle(tmp_path: Path) -> None:
    body = """
place = os.path.abspath("here")
os.mkdir(place)
os.chdir(place)
os.chmod(place, 0)
with overlapiter.OverlapIterator(Pixels(8), 4) as it:
    take_pixels(it, 4)
os.chmod(place, 0o700)
"""
    as_others = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    assert_done(run(tmp_path, body, as_others if os.geteuid() == 0 else ()))


# --- processes --------------------------------------------------------------------------------

#: As an ordinary user, but one who may read whatever the tests may: root has no such limit.
AS_USER = (
    "setpriv", "--reuid=54321", "--clear-groups",
    "--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--no-new-privs",
)  # fmt: skip


def as_user() -> tuple[str, ...]:
    if os.geteuid() != 0:
        pytest.skip("other processes of this user count")
    done = subprocess.run([*AS_USER, "true"], check=False, capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot become another user: {done.stderr.decode()}")
    return AS_USER


def test_with_room_for_few_processes_and_threads_less_is_done_at_once(tmp_path: Path) -> None:
    body = """
with tempfile.TemporaryDirectory() as folder:  # others may not enter that of the test
    os.chdir(folder)
    for n_readers, n_prefetchers in ((30, 0), (1, 1), (2, 2)):
        options = {"n_prefetchers": n_prefetchers, "reads_in_flight": 64}
        shutil.rmtree("fast", ignore_errors=True)
        chosen = staging(**options) if n_prefetchers else None
        with make(n_processes=n_readers, staging=chosen) as it:
            take(it)
            stats = it.stats()
        assert it.staging is None or stats.files_staged == N_FILES, stats
    os.chdir("/")
"""
    assert_done(run(tmp_path, body, (*as_user(), "prlimit", "--nproc=12:12")))


def test_where_the_forkserver_can_fork_no_process_the_limit_is_named_and_not_the_script(
    tmp_path: Path,
) -> None:
    body = """
os.environ["OPENBLAS_NUM_THREADS"] = "1"
resource_tracker.ensure_running()
own = [each for each in os.listdir("/proc") if each.isdigit()]
own = [each for each in own if os.stat(f"/proc/{each}").st_uid == os.getuid()]
limit("NPROC", sum(len(os.listdir(f"/proc/{each}/task")) for each in own) + 1)
try:
    next(overlapiter.OverlapIterator(Pixels(8), 4))
    raise AssertionError
except PipelineError as error:
    assert "ulimit -u" in str(error), error
    assert "__main__" not in str(error), error
"""
    launcher = [each.replace("54321", "54322") for each in as_user()]  # no other test is this user
    done = run(tmp_path, body, tuple(launcher))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("n_processes", [1, 2, 4])
def test_without_room_for_any_worker_the_limit_is_named(tmp_path: Path, n_processes: int) -> None:
    body = """
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    start = time.monotonic()
    try:
        with make(n_processes=30) as it:
            take(it, 1)
        raise AssertionError
    except PipelineError as error:
        assert "rocess" in str(error), error
    assert time.monotonic() - start < 100
    os.chdir("/")
"""
    done = run(tmp_path, body, (*as_user(), "prlimit", f"--nproc={n_processes}:{n_processes}"))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr

"""The directories of a store: private, the user's own, thrown away if the index is damaged."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from overlapiter.errors import StagingError
from overlapiter.store import generation, opened
from overlapiter.store.extents import SMALL_BYTES, ExtentReader
from overlapiter.store.generation import (
    generation_of,
    index_path,
    make_generation,
    old_store,
    prepare,
    root_of,
    segments_folder,
)
from overlapiter.store.index import VERSION
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Store
from tests.store.actors import apart, in_a_process
from tests.store.disks import mounted, mounted_tmpfs
from tests.store.stores import (
    BLOCK_BYTES,
    SOURCE,
    disk_bytes,
    made_store,
    n_right,
    one_place,
    read,
    segment_paths,
    stage,
    staged,
    sum_of_charges,
    wanted,
    written,
)


def all_paths(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_symlink()]


# --- privacy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_the_user_may_look_into_the_staging_directory(directory, files, umask):
    def stage_all():
        os.umask(umask)
        store = made_store(directory / "deep" / "down")
        stage(store, files, files.paths)
        assert {stat.S_IMODE(path.stat().st_mode) for path in segment_paths(store.site.directory)}
        for path in [directory, *all_paths(directory)]:
            is_below = path.name in ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm")
            mode = stat.S_IMODE(path.stat().st_mode)
            assert is_below or mode == (0o700 if path.is_dir() else 0o600), path
        store.close()

    apart(lambda: stage_all())


def test_a_directory_that_others_could_enter_is_closed_to_them(directory):
    made = make_generation(str(directory))
    paths = [root_of(str(directory)), made, segments_folder(str(directory))]
    for path in paths:
        os.chmod(path, 0o777)
    os.chmod(directory, 0o755)  # the user's own choice
    make_generation(str(directory))
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in paths] == [0o700] * 3
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o755


@pytest.mark.parametrize("name", ["overlapiter", "overlapiter/g0001", "overlapiter/g0001/segments"])
def test_a_link_in_the_place_of_a_directory_is_refused(directory, tmp_path, name):
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (directory / name).parent.mkdir(parents=True)
    (directory / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StagingError, match="is no directory"):
        prepare(str(directory))
    assert apart(lambda: raises_oserror(directory)) == errno.ENOTDIR
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def raises_oserror(directory):
    with pytest.raises(OSError) as caught:  # noqa: PT011  # its number is what is compared
        made_store(directory).total_bytes()
    return caught.value.errno


def test_the_staging_directory_itself_may_be_a_link(directory, tmp_path):
    (tmp_path / "disk").mkdir()
    directory.symlink_to(tmp_path / "disk")
    prepare(str(directory))
    assert (tmp_path / "disk" / "overlapiter" / "g0001" / "segments").is_dir()


def test_a_directory_of_another_user_is_refused(directory, monkeypatch):
    make_generation(str(directory))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(StagingError, match="belongs to another user"):
        prepare(str(directory))


def test_a_path_that_is_too_long_for_the_index_is_refused_and_a_shorter_one_works(directory, files):
    longest = directory
    while (n_left := 470 - len(os.fsencode(longest))) > 1:
        longest /= "d" * min(100, n_left - 1)
    with pytest.raises(StagingError, match=r"has 4\d\d bytes; choose one of up to 470"):
        prepare(f"{longest}dd")
    prepare(str(longest))
    assert apart(lambda: len(stage(made_store(longest), files, files.paths))) == len(files.paths)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_who_cannot_look_into_the_directory_of_another_user_is_told_whose_it_is(tmp_path):
    def refused():
        os.chdir(tmp_path)  # no other user can reach it from the root
        os.setuid(12345)
        with pytest.raises(StagingError, match="belongs to another user"):
            prepare("shared")
        return True

    tmp_path.chmod(0o755)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    make_generation(str(tmp_path / "shared"))
    assert apart(refused)


def test_a_segment_that_is_a_link_is_neither_read_nor_written_through(directory, files, tmp_path):
    def stage_all():
        store = made_store(directory)
        extents = stage(store, files, files.paths)
        store.close()
        (segment,) = segment_paths(directory)
        precious = tmp_path / "precious"
        shutil.move(segment, precious)
        segment.symlink_to(precious)
        before = precious.read_bytes()
        assert n_right(store, files) == 0
        with pytest.raises(OSError, match="symbolic links"):
            store.evict([extents[files.paths[3]].key])
        store.sweep()
        store.close()
        assert precious.read_bytes() == before

    apart(stage_all)


@in_a_process
def test_a_pipe_in_the_place_of_a_segment_holds_no_reader_up(directory, files):
    store = made_store(directory)
    stage(store, files, files.paths)
    store.close()
    (segment,) = segment_paths(directory)
    segment.unlink()
    os.mkfifo(segment)
    assert n_right(store, files) == 0
    store.close()


# --- what the disk must have ----------------------------------------------------------------------


def test_without_locks_an_error_names_a_disk_to_use(directory, monkeypatch):
    def flock(_fd, _how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StagingError) as caught:
        prepare(str(directory))
    assert str(caught.value) == (
        f"staging directory {directory}: its file system has no locks (No locks available); choose "
        f"a directory on the node's own disk, such as ext4, XFS or tmpfs (/tmp, /dev/shm)"
    )


def test_a_directory_that_cannot_be_made_is_an_error_that_says_why(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingError, match=r"cannot be made, .*choose a directory that you may"):
        prepare(str(tmp_path / "file" / "fast"))


def test_a_disk_that_is_read_only_is_an_error_and_never_damage(tmp_path, files):
    def stage_some():
        store = made_store(directory)
        stage(store, files, files.paths)
        store.close()

    with mounted_tmpfs(tmp_path / "fast", 8 << 20) as directory:
        apart(stage_some)
        os.system(f"mount -o remount,ro {directory}")
        assert apart(lambda: raises_oserror(directory)) == errno.EROFS
        with pytest.raises(StagingError, match="Read-only"):
            prepare(str(directory))
        os.system(f"mount -o remount,rw {directory}")
        assert apart(lambda: n_right(made_store(directory), files)) == len(files.paths)


@pytest.mark.parametrize("is_able", [True, False])
def test_without_holes_every_file_has_a_segment_of_its_own(directory, files, monkeypatch, is_able):
    def punch(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def stage_all():
        if not is_able:
            monkeypatch.setattr(generation, "punch_hole", punch)
        store = made_store(directory, capacity_bytes=files.blocks_bytes)
        extents = stage(store, files, files.paths)
        assert n_right(store, files) == len(files.paths)
        assert all(extent.is_whole != is_able for extent in extents.values())
        store.evict([extents[path].key for path in files.paths[:10]])
        assert n_right(store, files) == len(files.paths) - 10
        store.close()
        assert store.total_bytes() == disk_bytes(directory) == sum_of_charges(store)
        assert one_place(store, SMALL_BYTES) is None
        store.close()

    apart(stage_all)


@in_a_process
def test_a_disk_that_cannot_share_memory_is_an_error(directory, monkeypatch):
    values = opened.Index.value

    def value(index, statement):
        found = values(index, statement)
        return "delete" if statement == "PRAGMA journal_mode=WAL" else found

    monkeypatch.setattr(opened.Index, "value", value)
    assert raises_oserror(directory) == errno.EOPNOTSUPP


def test_an_overlay_file_system_will_do(tmp_path, files):
    folders = [tmp_path / name for name in ("lower", "upper", "work")]
    for folder in folders:
        folder.mkdir()
    layers = "lowerdir={},upperdir={},workdir={}".format(*folders)
    with mounted(tmp_path / "fast", "-t", "overlay", "-o", layers, "overlay") as directory:

        def stage_all():
            store = made_store(directory)
            extents = stage(store, files, files.paths)
            store.evict([extents[path].key for path in files.paths[:10]])
            assert n_right(store, files) == len(files.paths) - 10
            store.close()

        apart(stage_all)


# --- generations ----------------------------------------------------------------------------------


def damaged(directory: Path, how: str) -> None:
    path = Path(index_path(generation_of(str(directory))))
    if how == "no database":
        path.write_bytes(b"no database" * 1000)
    elif how == "cut":
        os.truncate(path, 5000)
    elif how == "another version":
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version={VERSION + 1}")
        connection.close()
    elif how == "a missing table":
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE segment")
        connection.close()


@pytest.mark.parametrize("how", ["no database", "cut", "another version", "a missing table"])
def test_a_damaged_index_is_thrown_away_with_its_generation(directory, files, how):
    def stage_all(expected):
        warnings = []
        store = Store(Site(str(directory)), SOURCE, Run(1, {}), warn=warnings.append)
        n_found = n_right(store, files)
        assert n_found == expected
        stage(store, files, files.paths)
        assert n_right(store, files) == len(files.paths)
        store.close()
        return warnings

    assert apart(lambda: stage_all(0)) == []
    assert apart(lambda: stage_all(len(files.paths))) == []
    first = generation_of(str(directory))
    apart(lambda: damaged(directory, how))
    (warning,) = apart(lambda: stage_all(0))
    assert "is damaged" in warning
    assert str(directory) in warning
    assert os.listdir(root_of(str(directory))) == ["g0002"]
    assert not os.path.exists(first)
    assert apart(lambda: stage_all(len(files.paths))) == []


@in_a_process
def test_a_number_too_large_for_the_index_is_damage_in_a_row_and_a_mistake_elsewhere(
    directory, files
):
    store = made_store(directory)
    first, other = files.paths[:2]
    stage(store, files, [first])
    store.claim(wanted(store, [other]))
    copy = written(store, other, b"x")
    with pytest.raises(OverflowError):
        store.publish([(*copy[:2], copy[2]._replace(mtime=2**63))], [])
    assert staged(store, files).keys() == {first}
    assert [path.name for path in all_paths(directory) if path.parent.name == "overlapiter"] == [
        "g0001"
    ]
    store._access.write(lambda cursor: cursor.execute(f"UPDATE staged SET size={2**63 - 1}"))
    store.evict([store.key_of(first)])
    assert generation_of(str(directory)).endswith("g0002")
    store.close()


def test_while_one_process_throws_an_index_away_all_others_take_the_next_one(directory, files, act):
    def prefetcher(seed):
        store = made_store(directory, seed)
        stage(store, files, files.paths)
        yield
        for _ in range(10):
            place = one_place(store, 100)
            yield stage(store, files, files.paths[:3])
            store.give_up(place)
        reader = ExtentReader([str(directory)])
        extents = stage(store, files, files.paths)
        yield [read(reader, extents[path]) for path in files.paths]
        reader.close()
        store.close()
        yield

    actors = [act(lambda seed=seed: prefetcher(seed)) for seed in range(4)]
    for actor in actors:
        actor.step()
    for _ in range(10):
        apart(lambda: generation.discard(generation_of(str(directory))))
        for actor in actors:
            actor.begin()
        for actor in actors:
            actor.answer()
    for actor in actors:
        assert actor.step() == [files.contents[path] for path in files.paths]
    for actor in actors:
        actor.step()
    assert os.listdir(root_of(str(directory))) == ["g0011"]
    assert disk_bytes(directory) == files.blocks_bytes


def test_several_processes_that_find_the_damage_throw_it_away_once(directory, files, act):
    def finder(seed):
        store = made_store(directory, seed)
        for path in files.paths:
            stage(store, files, [path])
        yield n_right(store, files)
        store.close()
        yield

    for number in range(5):
        apart(lambda: made_store(directory).close() or make_generation(str(directory)))
        damaged(directory, "no database")
        actors = [act(lambda seed=seed: finder(seed)) for seed in range(4)]
        for actor in actors:
            actor.begin()
        for actor in actors:
            actor.answer()
        for actor in actors:
            actor.step()
            actor.kill()
        assert apart(lambda: n_right(made_store(directory), files)) == len(files.paths)
        apart(lambda: made_store(directory).sweep())
        assert os.listdir(root_of(str(directory))) == [f"g{number + 2:04}"]


def test_what_a_process_left_that_was_killed_while_throwing_away_is_removed(directory, files):
    def killed():
        store = made_store(directory)
        stage(store, files, files.paths)
        store.close()
        generation.shutil.rmtree = lambda *_, **__: os._exit(9)
        generation.discard(generation_of(str(directory)))

    def begun():
        os.mkdir(os.path.join(root_of(str(directory)), "g0003"))
        os.mkdir(os.path.join(root_of(str(directory)), "notes"))
        store = made_store(directory)
        store.sweep()
        stage(store, files, files.paths)
        assert n_right(store, files) == len(files.paths)
        store.close()

    with pytest.raises(EOFError):
        apart(killed)
    assert len(os.listdir(root_of(str(directory)))) == 2
    apart(begun)
    assert sorted(os.listdir(root_of(str(directory)))) == ["g0003", "notes"]


def test_a_directory_that_is_removed_while_it_is_used_is_made_anew(directory, files):
    def prefetcher():
        gone = []
        store = Store(Site(str(directory)), SOURCE, Run(1, {}), note_gone=gone.append)
        stage(store, files, files.paths)
        reader = ExtentReader([str(directory)])
        for parent in range(4):
            in_use = Path(index_path(generation_of(str(directory))))
            path = [in_use, *in_use.parents][parent]  # the last one is the directory itself
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            extents = stage(store, files, files.paths)
            assert [read(reader, extents[p]) for p in files.paths] == [*files.contents.values()]
            # What a removal has left, or leaves while it goes on, is not filled again.
            assert os.listdir(root_of(str(directory))) == [f"g{parent + 2:04}"]
        assert [*map(os.path.basename, gone)] == ["g0001", "g0002", "g0003", "g0004"]
        reader.close()
        store.close()

    apart(prefetcher)


@in_a_process
def test_sweeping_a_directory_that_is_not_there_makes_it(directory):
    made_store(directory).sweep()
    assert os.listdir(root_of(str(directory))) == ["g0001"]


def test_a_place_is_given_in_the_next_generation_when_the_directory_was_removed(directory, files):
    def prefetcher():
        store = made_store(directory)
        stage(store, files, files.paths)
        shutil.rmtree(directory)
        assert one_place(store, 2 * SMALL_BYTES) is not None
        assert len(segment_paths(directory)) == 2
        store.close()

    apart(prefetcher)


def test_the_tree_of_an_older_version_is_known_by_its_marks(directory):
    assert old_store(str(directory)) == []
    for name in ("images-0123456789ab", "notes-0123456789ab", "precious"):
        (directory / name).mkdir(parents=True)
    (directory / "images-0123456789ab" / "source.json").write_text("{}")
    (directory / "overlapiter.runs.jsonl").write_text("")
    names = ["images-0123456789ab", "overlapiter.runs.jsonl"]
    assert old_store(str(directory)) == [str(directory / name) for name in names]
    prepare(str(directory))
    assert (directory / "images-0123456789ab" / "source.json").exists()


def all_descriptors() -> list[int]:
    """Open as many as there may be."""
    fds = []
    with contextlib.suppress(OSError):
        while True:
            fds.append(os.open("/", os.O_RDONLY))
    return fds


@in_a_process
def test_a_process_without_descriptors_fails_and_throws_nothing_away(directory, files):
    store = made_store(directory)
    stage(store, files, files.paths)
    store.close()
    fds = all_descriptors()
    for n_free in range(12):
        with pytest.raises(OSError, match="Too many"):
            made_store(directory, 2).total_bytes()
        if n_free < 5:
            os.close(fds.pop())
        else:
            break
    for fd in fds:
        os.close(fd)
    assert n_right(store, files) == len(files.paths)
    assert os.listdir(root_of(str(directory))) == ["g0001"]
    store.close()


@in_a_process
def test_a_reader_without_descriptors_closes_segments_to_open_another(directory, files):
    store = made_store(directory)
    small = stage(store, files, files.paths[:5])
    store.close()
    other = stage(store, files, files.paths[5:])
    store.close()
    reader = ExtentReader([str(directory)])
    assert read(reader, small[files.paths[0]]) is not None
    fds = all_descriptors()
    assert read(reader, other[files.paths[5]]) == files.contents[files.paths[5]]
    assert read(reader, small[files.paths[0]]) == files.contents[files.paths[0]]
    for fd in fds:
        os.close(fd)
    reader.close()


def test_the_space_set_aside_for_the_index_is_small_beside_the_disk(tmp_path):
    with mounted_tmpfs(tmp_path / "fast", 4 << 20) as directory:
        apart(lambda: made_store(directory).close() or made_store(directory).total_bytes())
        reserve = directory / "overlapiter" / "g0001" / "reserve"
        assert BLOCK_BYTES < reserve.stat().st_blocks * 512 <= 256 << 10

"""A remote origin, in a process of its own: what it reads, and what it makes of failures."""

from __future__ import annotations

import concurrent.futures
import errno
import hashlib
import io
import os
import pickle
import random
import socket
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overlapiter.errors import OptionError
from overlapiter.origins import remote as remote_module
from overlapiter.origins.direct import Direct
from overlapiter.origins.origin import Original
from overlapiter.origins.remote import RemoteOrigin, check_remote, original_of, place_of
from overlapiter.store.extents import ExtentReader
from overlapiter.store.outcome import Outcome, Staged
from overlapiter.store.site import Run, Site
from overlapiter.store.stager import Stager
from overlapiter.store.store import Store, Wanted
from overlapiter.workers.plan import StagingPlan
from tests.chainer.scripts import run_script
from tests.remote.child import in_child
from tests.remote.stores import Objects


def origin_of(objects: Objects, patience_seconds: float = 20.0, **options: Any) -> RemoteOrigin:
    return RemoteOrigin(
        objects.root,
        {**objects.store.options, **options},
        n_connections=8,
        patience_seconds=patience_seconds,
    )


def plain_origin(objects: Objects, patience_seconds: float = 20.0) -> RemoteOrigin:
    return RemoteOrigin(objects.plain, {}, n_connections=8, patience_seconds=patience_seconds)


def read_all(origin: RemoteOrigin, url: str) -> tuple[bytes, bool]:
    """Return the content of a file, read as the store does, and whether it stayed the same."""
    with origin.open(url) as file:
        before = file.stat()
        data = b""
        while len(data) < before.size_bytes:
            piece = file.read(before.size_bytes - len(data))
            assert piece
            data += piece
        return data, file.stat() == before


def error_of(action: Callable[[], Any]) -> tuple[type, int, str, str, float]:
    begun = time.monotonic()
    try:
        action()
    except OSError as error:
        pickle.dumps(error)
        return type(error), error.errno, error.filename, str(error), time.monotonic() - begun
    raise AssertionError("it did not fail")


# --- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["", "busy", "reset", "cut"])
def test_a_file_is_read_whole_whatever_comes_between(objects: Objects, fault: str) -> None:
    name = objects.names[3]
    right = (objects.folder / name).read_bytes()

    def read() -> None:
        for origin, root in ((origin_of(objects), objects.root), (plain_origin(objects), "")):
            objects.store.fail(fault, 4)
            url = f"{root or objects.plain}/{name}"
            assert read_all(origin, url) == (right, True)

    in_child(read)
    assert objects.requests("GET")[name] >= 1


def test_a_file_of_many_pieces_takes_bounded_requests(objects: Objects, monkeypatch: Any) -> None:
    monkeypatch.setattr(remote_module, "_PIECE_BYTES", 1000)
    data = random.Random(1).randbytes(10_500)
    objects.put("large.bin", data)

    def read() -> None:
        assert read_all(origin_of(objects), f"{objects.root}/large.bin") == (data, True)
        objects.store.fail("cut", 2)
        assert read_all(plain_origin(objects), f"{objects.plain}/large.bin") == (data, True)

    in_child(read)
    assert objects.requests("GET")["large.bin"] == 11
    assert objects.requests("HEAD")["large.bin"] == 2  # before the first piece, and after the last


class FailingStream(io.BytesIO):
    """A stream that only goes on, and fails once when so many bytes have been read."""

    def __init__(self, data: bytes, n_bytes: int) -> None:
        super().__init__(data)
        self._n_bytes = n_bytes

    def seek(self, *_: object) -> int:
        raise ValueError("it only goes on")

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        if self.tell() == self._n_bytes:
            self._n_bytes = -1
            raise TimeoutError
        return super().read(min(size, self._n_bytes - self.tell()) if self._n_bytes > 0 else size)


def test_a_request_that_fails_before_it_is_where_the_last_one_failed_shifts_no_byte(
    monkeypatch: Any,
) -> None:
    data = random.Random(2).randbytes(1000)
    streams = [FailingStream(data, n_bytes) for n_bytes in (600, 300, -1)]
    origin = RemoteOrigin("file:///there", {}, n_connections=1, patience_seconds=20)
    monkeypatch.setattr(origin, "info", lambda _url: {"size": 1000, "etag": "1"})
    monkeypatch.setattr(origin, "open_stream", lambda _url, _info: streams.pop(0))
    assert read_all(origin, "file:///there/a") == (data, True)
    assert not streams


def test_an_object_of_one_piece_takes_two_requests(objects: Objects) -> None:
    name = objects.names[0]
    in_child(lambda: read_all(origin_of(objects), f"{objects.root}/{name}"))
    assert (objects.requests("HEAD")[name], objects.requests("GET")[name]) == (1, 1)


def test_many_threads_read_at_once(objects: Objects) -> None:
    def read() -> dict[str, str]:
        origin = origin_of(objects)
        found = {}

        def read_one(name: str) -> None:
            data, _ = read_all(origin, f"{objects.root}/{name}")
            found[name] = hashlib.sha256(data).hexdigest()

        threads = [threading.Thread(target=read_one, args=(name,)) for name in objects.names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    right = {
        name: hashlib.sha256((objects.folder / name).read_bytes()).hexdigest()
        for name in objects.names
    }
    assert in_child(read) == right


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_many_threads_read_members_of_one_archive(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "all"
    members = {f"{n}.bin": random.Random(n).randbytes(300_000) for n in range(16)}
    with tarfile.open(path, "w") if kind == "tar" else zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            (tmp_path / name).write_bytes(data)
            add = archive.add if isinstance(archive, tarfile.TarFile) else archive.write
            add(tmp_path / name, name)

    def read() -> list[str]:
        origin = RemoteOrigin(f"{kind}://", {"fo": str(path)}, n_connections=8, patience_seconds=0)
        sys.setswitchinterval(1e-6)  # what can come between a seek and a read is to come

        def is_wrong(name: str) -> bool:
            return read_all(origin, f"{kind}://{name}")[0] != members[name]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            names = [*members] * 4
            wrong = pool.map(is_wrong, names)
            return [name for name, is_bad in zip(names, wrong, strict=True) if is_bad]

    assert in_child(read) == []


@pytest.mark.parametrize(("kind", "content"), [("zip", None), ("tar", None), ("tar", b"no tar")])
def test_an_archive_that_cannot_be_opened_is_named(
    tmp_path: Path, kind: str, content: bytes | None
) -> None:
    path = tmp_path / "all"
    if content:
        path.write_bytes(content)
    origin = RemoteOrigin(f"{kind}://", {"fo": str(path)}, n_connections=8, patience_seconds=0)
    with pytest.raises(OSError, match=f"the archive {path} cannot be opened") as caught:
        origin.stat(f"{kind}://a.bin")
    assert not isinstance(caught.value, FileNotFoundError)


def test_an_object_that_is_replaced_while_it_is_copied_is_not_kept(
    objects: Objects, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(remote_module, "_PIECE_BYTES", 1000)
    name = objects.names[0]
    (tmp_path / "fast").mkdir()

    def stage() -> None:
        store = Store(Site(str(tmp_path / "fast")), objects.root, Run(1, {}))
        stager = Stager([store], origin_of(objects), "mtime", lambda job: job(), pytest.fail)
        path = f"{objects.root}/{name}"
        file = Wanted(store.key_of(path), path)

        def staged() -> Staged:
            answers: dict[int, Staged] = {}
            stager.stage([file], answers.update)
            return answers[file.key]

        real_read, n_reads = remote_module.RemoteFile.read, []

        def read(file: Any, size_bytes: int) -> bytes:
            n_reads.append(size_bytes)
            if len(n_reads) == 2:
                objects.put(name, b"A" * 3000)
            return real_read(file, size_bytes)

        monkeypatch.setattr(remote_module.RemoteFile, "read", read)
        assert staged().outcome is Outcome.SOURCE_FAILED
        copied = staged()
        assert copied.outcome is Outcome.COPIED
        assert ExtentReader([str(tmp_path / "fast")]).read(copied.extent) == b"A" * 3000
        assert staged().outcome is Outcome.FOUND
        stager.close()

    in_child(stage)


def test_an_object_is_staged_in_pieces_of_4_mib(objects: Objects, tmp_path: Path) -> None:
    objects.put("large.bin", random.Random(1).randbytes(9 << 20))
    (tmp_path / "fast").mkdir()

    def stage() -> None:
        store = Store(Site(str(tmp_path / "fast")), objects.root, Run(1, {}))
        stager = Stager([store], origin_of(objects), "mtime", lambda job: job(), pytest.fail)
        path = f"{objects.root}/large.bin"
        answers: dict[int, Staged] = {}
        stager.stage([Wanted(store.key_of(path), path)], answers.update)
        ((_, answer),) = answers.items()
        assert answer.outcome is Outcome.COPIED
        copy = Path(ExtentReader([str(tmp_path / "fast")]).path_of(answer.extent))
        assert copy.read_bytes() == (objects.folder / "large.bin").read_bytes()
        stager.close()

    in_child(stage)
    assert objects.requests("GET")["large.bin"] == 3


# --- directly ---------------------------------------------------------------------------------


def test_what_is_opened_directly_behaves_as_a_file(objects: Objects) -> None:
    name = objects.names[0]
    right = (objects.folder / name).read_bytes()
    objects.put("text.txt", "äöü\r\nlast".encode("utf-16"))

    def read() -> None:
        direct = Direct(origin_of(objects))
        for buffering in (-1, 0, 7):
            with direct.open(f"{objects.root}/{name}", "rb", buffering) as file:
                assert file.read(10) == right[:10]
                assert file.seek(-5, os.SEEK_END) == len(right) - 5
                assert file.read() == right[-5:]
                assert file.seek(100) == 100
                assert file.read(50) == right[100:150]
        with direct.open(f"{objects.root}/text.txt", encoding="utf-16") as file:
            assert list(file) == ["äöü\n", "last"]

    in_child(read)


@pytest.mark.parametrize("buffering", [-1, 0])
def test_what_is_opened_directly_is_read_to_its_end_in_few_requests(
    objects: Objects, buffering: int
) -> None:
    data = random.Random(1).randbytes(300_000)
    objects.put("large.bin", data)

    def read() -> None:
        with Direct(origin_of(objects)).open(f"{objects.root}/large.bin", "rb", buffering) as file:
            assert file.read() == data
            assert file.read() == b""

    in_child(read)
    assert objects.requests("GET")["large.bin"] == 1


def test_a_private_copy_lives_as_long_as_the_example(objects: Objects) -> None:
    url, right = f"{objects.root}/{objects.names[0]}", (objects.folder / objects.names[0])

    def read() -> None:
        direct = Direct(origin_of(objects))
        path = direct.download(url)
        assert direct.download(url) == path
        assert Path(path).read_bytes() == right.read_bytes()
        direct.forget()
        assert not os.path.exists(path)

    in_child(read)
    assert objects.requests("GET") == {objects.names[0]: 1}


# --- failures ---------------------------------------------------------------------------------


def test_what_cannot_pass_is_told_at_once(objects: Objects) -> None:
    name = objects.names[0]
    denied = {"secret": "wrong"}
    cases = [
        (origin_of(objects), f"{objects.root}/none", FileNotFoundError),
        (origin_of(objects), "s3://no-such-bucket/none", FileNotFoundError),
        (origin_of(objects), f"{objects.root}/0", IsADirectoryError),
        (origin_of(objects, **denied), f"{objects.root}/{name}", PermissionError),
        (plain_origin(objects), f"{objects.plain}/none", FileNotFoundError),
        (plain_origin(objects), f"{objects.plain}/private", PermissionError),
    ]

    def fail() -> list[tuple[type, int, str, str, float]]:
        for origin, url, _ in cases[::3]:  # the imports take their time
            error_of(lambda origin=origin, url=url: origin.stat(url))
        return [
            error_of(lambda origin=origin, url=url: origin.stat(url)) for origin, url, _ in cases
        ]

    for (_, url, kind), found in zip(cases, in_child(fail), strict=True):
        assert found[:3:2] == (kind, url)
        assert found[4] < 10  # of a patience of 20


@pytest.mark.parametrize("fault", ["busy", "reset"])
def test_patience_ends_with_an_error_that_says_what_happened(objects: Objects, fault: str) -> None:
    name = objects.names[0]
    objects.store.fail(fault, 10_000)

    def fail() -> list[tuple[type, int, str, str, float]]:
        remote, plain = origin_of(objects, 0.3), plain_origin(objects, 0.3)
        return [
            error_of(lambda: remote.stat(f"{objects.root}/{name}")),
            error_of(lambda: plain.stat(f"{objects.plain}/{name}")),
        ]

    for (kind, _, filename, text, _), root in zip(
        in_child(fail), (objects.root, objects.plain), strict=True
    ):
        assert (kind, filename) == (OSError, f"{root}/{name}")
        assert "cannot be read" in text
        assert ("the server answers 503" in text) == (fault == "busy")


@pytest.mark.parametrize("is_plain", [False, True])
def test_an_object_that_cannot_be_read_though_it_can_be_looked_at_is_waited_for_once(
    objects: Objects, is_plain: bool
) -> None:
    name = objects.names[0]
    objects.store.fail("unreadable", 10_000)

    def fail() -> list[tuple[type, int, str, str, float]]:
        origin = plain_origin(objects, 0.5) if is_plain else origin_of(objects, 0.5)
        url = f"{objects.plain if is_plain else objects.root}/{name}"
        found = [error_of(lambda: read_all(origin, url))]
        objects.store.forget()  # as a file reader comes to it after a prefetcher
        return [*found, error_of(lambda: read_all(origin, url))]

    for kind, *_, text, _ in in_child(fail):
        assert (kind, "the server answers 503" in text) == (OSError, True)
    path = f"{'plain/' if is_plain else ''}{objects.bucket}/train/{name}"
    assert objects.store.requests("GET") == {path: 1}


def test_a_server_that_refuses_connections_is_no_missing_file_and_waited_for_once() -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{taken.getsockname()[1]}"
        keys = {"endpoint_url": server, "key": "a", "secret": "b"}
        plans = {}
        for root, options in ((f"{server}/data", {}), ("s3://data", keys)):
            plan = StagingPlan((), root, "mtime", 1, None, options, retry_seconds=6)
            plans[root] = pickle.loads(pickle.dumps(plan))  # as a supervisor gets it

        def stage(root: str) -> list[tuple[type, int, str, str, float]]:
            origin = plans[root].origin()
            return [error_of(lambda n=n: origin.stat(f"{root}/{n}.jpg")) for n in range(2)]

        def read(root: str) -> list[tuple[type, int, str, str, float]]:
            return [error_of(lambda: plans[root].direct().open(f"{root}/0.jpg"))]

        def of_both(ask: Callable[[str], Any]) -> list[Any]:
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                return list(pool.map(ask, plans))

        # A prefetcher, then a file reader.
        staging, reading = in_child(lambda: of_both(stage)), in_child(lambda: of_both(read))
    for before, after in zip(staging, reading, strict=True):
        for number, (kind, code, _, text, seconds) in enumerate(before + after):
            assert (kind, code) == (OSError, errno.EIO)
            assert "cannot be read: the server refuses connections" in text
            assert (seconds < 6) == (number > 0)


# --- what needs no server ---------------------------------------------------------------------


def test_the_version_of_a_file_is_a_number_that_an_mtime_can_be() -> None:
    info = {"size": 5, "ETag": '"5d41402a"', "LastModified": "2026-11-21", "type": "file"}
    first = original_of(info)
    assert first == original_of({**info, "name": "another", "VersionId": None})
    assert first.size_bytes == 5
    assert 0 < first.mtime_ns < 2**31 * 10**9
    for key, value in (("ETag", '"other"'), ("LastModified", "2026-11-22"), ("size", 6)):
        assert original_of({**info, key: value}) != first
    assert original_of({"size": None}) == Original(0, 0)


@pytest.mark.parametrize(
    ("source", "options", "text"),
    [
        ("memory://bucket", {}, "exists in one process"),
        ("zip://", {"fo": "memory://all.zip"}, "exists in one process"),
        ("nosuch://bucket", {}, "no such protocol"),
        ("zip://", {}, "give {'fo': its path or URL}"),
    ],
)
def test_a_source_that_cannot_work_is_refused(source: str, options: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        check_remote(source, options)


def test_options_that_cannot_travel_are_refused_without_being_shown() -> None:
    with pytest.raises(OptionError, match="storage_options: cannot be sent") as caught:
        check_remote("file:///data", {"session": threading.Lock(), "secret": "hush"})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("n_cores", "n_connections"), [(2, 128), (64, 16)])
def test_prefetchers_have_connections_for_all_reads_before_all_of_them_are_started(
    n_cores: int, n_connections: int
) -> None:
    plan = StagingPlan((), "s3://bucket", "mtime", 16, None, n_cores=n_cores)
    origin = plan.origin()
    assert isinstance(origin, RemoteOrigin)
    assert origin._n_connections == n_connections


@pytest.mark.parametrize(("source", "missing"), [("s3://bucket", "fsspec"), ("gs://b", "gcsfs")])
def test_what_is_not_installed_is_named(monkeypatch: Any, source: str, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(OptionError, match=r"pip install 'overlapiter\[remote\]'.*gcsfs for gs"):
        check_remote(source, {})


def test_without_a_url_nothing_of_fsspec_is_imported(tmp_path: Path) -> None:
    body = """
    import sys
    import overlapiter.pipeline, overlapiter.planning
    import overlapiter.workers.supervisor.main
    print({"fsspec", "s3fs", "aiohttp", "botocore"} & set(sys.modules))
    """
    assert run_script(tmp_path, body).stdout == "set()\n"


def test_two_servers_are_two_sources_but_two_users_are_not() -> None:
    here = place_of({"endpoint_url": "http://here", "key": "a", "secret": "b"})
    assert here == place_of({"endpoint_url": "http://here", "key": "c", "token": "d"})
    assert here == place_of({"client_kwargs": {"endpoint_url": "http://here"}})
    assert here != place_of({"endpoint_url": "http://there"}) != place_of({"fo": "http://there"})
    assert place_of({"key": "a"}) == ""


@pytest.mark.parametrize("key", ["fo", "endpoint_url"])
def test_the_place_of_a_store_has_no_credentials_in_it(key):
    here = place_of({key: "https://here:1/a.zip"})
    assert here == place_of({key: "https://user:secret@here:1/a.zip"})
    signed = [place_of({key: f"https://here:1/a.zip?Signature=secret{n}"}) for n in (1, 2)]
    assert len({here, *signed}) == 3  # an archive may be chosen by its query
    assert not any("secret" in place for place in signed)
    assert place_of({key: "simplecache::https://user:secret@here/a"}).count("secret") == 0

"""The commands on a source that is a URL."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli import commands
from tests.cli.commands import command, is_at_rest, run, staged_files
from tests.remote.child import in_child
from tests.remote.stores import Objects


def overlapiter(*words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Do what ``overlapiter …`` does, to its end, without a new Python."""
    done: subprocess.CompletedProcess[str] = in_child(
        lambda: commands.overlapiter(*words, stdin=stdin)
    )
    return done


@pytest.fixture
def options(objects: Objects, tmp_path: Path) -> Path:
    """Return the file for ``--storage-options``."""
    path = tmp_path / "options.json"
    path.write_text(json.dumps(objects.store.options))
    return path


def test_objects_are_staged_checked_and_evicted(objects, options, tmp_path) -> None:
    fast, contents = tmp_path / "fast", {}
    for name in objects.names:
        contents[name] = (objects.folder / name).read_bytes()
    text = "\n".join([*objects.names, f"{objects.root}/../secret", "../secret"])
    words = ("--source", objects.root, "--storage-options", options)
    done = overlapiter("stage", "-", "--to", fast, *words, stdin=text)
    assert done.returncode == 1
    assert f"staged {len(contents)} files" in done.stdout
    assert "outside 2 files not below the source" in done.stdout
    assert staged_files(fast) == contents
    assert is_at_rest(fast)
    done = overlapiter("stage", "-", "--to", fast, *words, stdin="\n".join(objects.names))
    assert done.returncode == 0
    assert set(objects.requests("GET").values()) == {1}  # each crossed the network once

    objects.put(objects.names[0], b"new")
    objects.delete(objects.names[1])
    done = overlapiter("check", fast, *words, "--checksum", "--repair")
    assert done.returncode == 0, done.stdout
    assert (
        f"repaired 1 file outdated, their sources have changed: {objects.names[0]}" in done.stdout
    )
    assert staged_files(fast).keys() == set(objects.names[2:])
    done = overlapiter("evict", fast, "--source", objects.root, "-", stdin=objects.names[2])
    assert done.stdout.startswith("removed 1 file"), done.stderr
    secret = objects.store.options["secret"]
    for path in fast.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


def test_a_store_that_denies_access_condemns_nothing(objects, options, tmp_path) -> None:
    fast = tmp_path / "fast"
    words = ("--source", objects.root, "--storage-options", options)
    overlapiter("stage", "-", "--to", fast, *words, stdin="\n".join(objects.names))
    options.write_text(json.dumps({**objects.store.options, "secret": "wrong"}))
    done = overlapiter("check", fast, *words, "--repair")
    assert done.returncode == 1
    assert "not compared, their sources cannot be read now (access is denied" in done.stdout
    assert len(staged_files(fast)) == len(objects.names)


class Refusing(BaseHTTPRequestHandler):
    """Answers 501, which will not change."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Denying(Refusing):
    """Denies every file."""

    def do_HEAD(self) -> None:
        self.send_error(403)

    do_GET = do_HEAD


class Chunked(Refusing):
    """Gives files without saying how long they are."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(b"5\r\nhello\r\n0\r\n\r\n")


@contextlib.contextmanager
def serving(handler: type[Refusing]) -> Iterator[str]:
    """Give the URL below which a server answers so; with its thread, nothing should fork."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/data"
        finally:
            server.shutdown()


def test_what_a_server_denies_is_told_in_a_line_for_all_files(tmp_path) -> None:
    names = "\n".join(f"a {n}.jpg" for n in range(20))
    with serving(Denying) as source:
        words = ("--to", tmp_path / "fast", "--source", source)
        done = run(command("stage", "-", *words, "--labels", "no"), stdin=names)
    assert done.returncode == 1
    assert "none is there" not in done.stdout
    assert done.stdout.count("access is denied") == 1
    assert "and 17 more (access is denied (ClientResponseError: Forbidden)" in done.stdout


def test_files_whose_size_is_not_told_are_not_called_empty(tmp_path) -> None:
    with serving(Chunked) as source:
        words = ("--to", tmp_path / "fast", "--source", source)
        done = run(command("stage", "-", *words), stdin="a.jpg")
    assert done.returncode == 1
    assert done.stdout == f"unread 1 file {source}/a.jpg (the store does not tell its size)\n"


def test_a_server_without_an_answer_is_not_said_to_have_nothing(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"http://127.0.0.1:{silent.getsockname()[1]}/data"
        words = ("--to", tmp_path / "fast", "--source", source, "--timeout", 2)
        done = run(command("stage", "-", *words), stdin="a.jpg")
    assert done.returncode == 1
    assert done.stdout == f"unread 1 file {source}/a.jpg (no answer for 2 s)\n"


def test_what_a_server_does_not_give_is_not_called_missing(tmp_path) -> None:
    with serving(Refusing) as source:
        words = ("--to", tmp_path / "fast", "--source", source)
        done = run(command("stage", "-", *words), stdin="a.jpg")
    assert done.returncode == 1
    assert f"unread 1 file {source}/a.jpg (cannot be read: the server answers 501" in done.stdout
    assert "missing" not in done.stdout


def stage_archive(fast: Path, archive: Path, names: list[str]) -> tuple[object, ...]:
    """Stage the members of a new archive; return the arguments that say which one it is."""
    with zipfile.ZipFile(archive, "w") as members:
        for name in names:
            members.writestr(name, f"{name} of {archive.name}")
    options = archive.with_suffix(".json")
    options.write_text(json.dumps({"fo": str(archive)}))
    words = ("--source", "zip://", "--storage-options", options)
    done = overlapiter("stage", "-", "--to", fast, *words, stdin="\n".join(names))
    assert done.returncode == 0, done.stdout + done.stderr
    return words


def test_a_source_of_which_nothing_is_staged_any_more_is_left_out(tmp_path) -> None:
    fast, source = tmp_path / "fast", tmp_path / "source"
    source.mkdir()
    (source / "x").write_text("x")
    stage_archive(fast, tmp_path / "a.zip", ["a.jpg"])
    overlapiter("stage", "-", "--to", fast, "--source", source, stdin="x")
    assert overlapiter("evict", fast, "--source", "zip://", "--all").returncode == 0
    done = overlapiter("check", fast)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing else is wrong" in done.stdout
    assert overlapiter("export", fast, tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "x").read_text() == "x"
    done = overlapiter("evict", fast, "-", stdin="x")
    assert done.stdout.startswith("removed 1 file"), done.stderr
    assert overlapiter("check", fast, "--source", source).returncode == 0


def test_of_two_archives_under_one_url_the_options_choose(tmp_path) -> None:
    fast, names = tmp_path / "fast", ["0.jpg", "1.jpg"]
    a, b = (stage_archive(fast, tmp_path / f"{which}.zip", names) for which in "ab")
    held = json.loads(overlapiter("status", fast, "--json").stdout)["holdings"]
    assert [each["place"] for each in held] == [f"[('fo', '{tmp_path}/{n}.zip')]" for n in "ab"]
    assert f"zip:// [('fo', '{tmp_path}/a.zip')] 2" in overlapiter("status", fast).stdout
    for words, missing in ((a[:2], "add --storage-options"), (a[2:], "name the --source")):
        done = overlapiter("export", fast, tmp_path / "out", *words)
        assert (done.returncode, missing in done.stderr) == (2, True)

    for which, words in (("a", a), ("b", b)):
        assert overlapiter("export", fast, tmp_path / which, *words).returncode == 0
        assert (tmp_path / which / "0.jpg").read_text() == f"0.jpg of {which}.zip"
        assert len(overlapiter("ls", fast, *words).stdout.splitlines()) == 2
        done = overlapiter("check", fast, *words, "--checksum")
        assert (done.returncode, "good 2 files" in done.stdout) == (0, True), done.stderr
    done = overlapiter("evict", fast, *b, "-", stdin="0.jpg")
    assert done.stdout.startswith("removed 1 file"), done.stderr
    assert overlapiter("evict", fast, *b, "--all").stdout.startswith("removed 1 file")
    assert len(overlapiter("ls", fast, *a).stdout.splitlines()) == 2
    (tmp_path / "b.json").write_text(json.dumps({"fo": "c.zip"}))
    done = overlapiter("ls", fast, *b)
    assert done.returncode == 2
    assert (
        f"comes from zip:// with these options, only from zip:// [('fo', '{tmp_path}/a"
        in done.stderr
    )


def test_a_store_is_measured_with_a_list(objects, options, tmp_path) -> None:
    words = ("doctor", "--source", objects.root, "--storage-options", options, "--seconds", 2)
    done = overlapiter(*words)
    assert done.returncode == 2
    assert "name a LIST of files" in done.stderr
    (tmp_path / "list").write_text("\n".join(objects.names))
    done = overlapiter(*words, "--json", tmp_path / "list")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["source"] == objects.root
    assert sum(level["n_files"] for level in found["levels"]) > 3
    done = overlapiter(*words, tmp_path / "list")
    assert f"source={objects.root!r}, storage_options=...\n" in done.stdout, done.stderr
    assert objects.store.options["secret"] not in done.stdout


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_options_that_are_none_are_explained(objects, tmp_path, text) -> None:
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    words = ("--source", objects.root, "--storage-options", path)
    done = overlapiter("stage", "-", "--to", tmp_path / "fast", *words, stdin="x")
    assert done.returncode == 2
    assert "--storage-options" in done.stderr

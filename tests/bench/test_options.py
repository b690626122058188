"""Options of a benchmark are a dataclass; the command line follows from it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.harness import claim
from bench.harness.options import CommonOptions, NotPossibleError, OptionsError, option


class SomeOptions(CommonOptions):
    files: int = option(7, "files to read", quick=1)
    share: float = option(0.5, "of the data, 50 % at first")
    sizes: list[int] = option([1, 2], "sizes")
    ways: list[str] = option(["one"], "ways", known=("one", "other"))
    is_whole: bool = option(False, "all of it")
    place: Path | None = option(None, "a folder", type=Path)
    repeats: int = 5

    def check(self) -> None:
        if self.files < 1:
            raise OptionsError("--files: give at least 1")


def parse_some(monkeypatch, *words: str) -> SomeOptions:
    found = SimpleNamespace(Options=SomeOptions, __doc__="About.")
    monkeypatch.setitem(sys.modules, "bench.claims.some", found)
    return claim.parse("some", words)


def test_an_argument_has_the_type_of_its_default(monkeypatch):
    options = parse_some(monkeypatch, "--files", "3", "--seed", "4")
    assert (options.files, options.seed, options.repeats) == (3, 4, 5)
    assert options.out == claim.OWN_RESULTS / "some.json"


def test_what_is_given_counts_more_than_quick_and_that_more_than_what_is_planned(monkeypatch):
    assert parse_some(monkeypatch, "--quick").files == 1
    assert parse_some(monkeypatch, "--quick", "--files", "3").files == 3
    assert claim.parse("some", [], ["--files", "9"]).files == 9
    assert claim.parse("some", ["--quick"], ["--files", "9"]).files == 1


@pytest.mark.parametrize("between", [" ", "="])
def test_a_command_is_published_without_places_of_the_users(between):
    words = "--source /home/me/images --files 3 --out /home/me/a.json".replace(" /", f"{between}/")
    published = claim.command_of("some", words.split())
    assert published == "python -m bench some --source images --files 3"


def test_lists_flags_paths_and_shares_are_read(monkeypatch):
    words = ["--sizes", "3,4e3", "--ways", "other,one", "--is-whole", "--place", "/x"]
    options = parse_some(monkeypatch, *words, "--share", "0.25")
    assert (options.sizes, options.ways) == ([3, 4000], ["other", "one"])
    assert (options.is_whole, options.place, options.share) == (True, Path("/x"), 0.25)
    assert parse_some(monkeypatch).sizes == [1, 2]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["--files", "0"], "give at least 1"), (["--ways", "third"], "unknown: ['third']")],
)
def test_what_cannot_work_is_refused_with_what_to_change(monkeypatch, capsys, words, complaint):
    with pytest.raises(SystemExit):
        parse_some(monkeypatch, *words)
    assert complaint in capsys.readouterr().err


def test_a_result_that_could_not_be_written_is_not_measured_first(monkeypatch, tmp_path):
    found = SimpleNamespace(Options=SomeOptions, __doc__="About.", measure=pytest.fail, NEEDS=())
    monkeypatch.setitem(sys.modules, "bench.claims.some", found)
    (tmp_path / "file").touch()
    for out in (tmp_path / "file/result.json", tmp_path):
        with pytest.raises(SystemExit, match="the result cannot be written"):
            claim.run("some", ["--out", str(out), "--local", str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_help_says_the_defaults(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        parse_some(monkeypatch, "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "files to read (7)" in text
    assert "of the data, 50 % at first (0.5)" in text
    assert "interleaved runs of each (5)" in text


def test_what_needs_more_cores_than_there_are_is_not_possible_here(monkeypatch, tmp_path):
    found = SimpleNamespace(Options=SomeOptions, __doc__="About.", measure=pytest.fail, NEEDS=())
    monkeypatch.setitem(sys.modules, "bench.claims.some", found)
    with pytest.raises(NotPossibleError, match=r"needs 10000 cores, and there are \d+"):
        claim.run("some", ["--out", str(tmp_path / "a.json"), "--cores", "10000"])
    assert parse_some(monkeypatch, "--quick").cores == 0

"""A benchmark of a published claim, and its way from the command line to JSON, table and figure."""

import compileall
import datetime
import importlib
import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.harness.isolated import CHECKOUT, before_runs, call, name_of
from bench.harness.machine import commit_facts, machine_facts, machine_words
from bench.harness.memory import filler, is_lent
from bench.harness.options import OptionsError, keep_to_cores, parser_of, quick_of, require
from bench.harness.tables import compared, rows_in, target_rows
from overlapiter.cli import console
from overlapiter.cli.probe import file_system_of

#: What a result may say of its runs in words.
_SAID = ("data", "store", "absent", "examples")
#: In what is printed, of the first column.
_NAME_WIDTH = 48
RESULTS = CHECKOUT / "bench/results"
#: Where a run of one's own writes; ignored by git.
OWN_RESULTS = RESULTS / "own"


def claim_of(name: str) -> ModuleType:
    """Return the module of a claim by its name, the one that results have as ``benchmark``."""
    return importlib.import_module(f"bench.claims.{name.replace('-', '_')}")


def tables_of(name: str) -> dict[str, Any]:
    """Return the tables of a claim by name; see :func:`bench.harness.tables.rows_in`."""
    return {**claim_of(name).TABLES, "targets": target_rows}


def with_targets(result: dict) -> dict:
    """Return a result with its ``targets``; if it has none, they follow from its points."""
    wanted = getattr(claim_of(result["benchmark"]), "TARGETS", ())
    runs = {name_of(point): point.get("runs") for point in result.get("points", ())}
    return {"targets": compared(wanted, runs), **result}


def text_of(result: dict) -> str:
    """Return all tables of which a result has a row, as they are printed; long names are folded."""
    texts = []
    for kind in tables_of(result["benchmark"]).values():
        head, *rows = rows_in(result, kind)
        folded = [[textwrap.fill(name, _NAME_WIDTH), *cells] for name, *cells in rows]
        # Words are aligned to the left, as far as the first column with a number.
        is_number = [any(cell[:1].isdigit() for cell in cells) for cells in zip(*rows, strict=True)]
        n_left = [*is_number[1:], True].index(True) + 1
        texts += [console.table(head, folded, n_left=n_left)] if rows else []
    return "\n\n".join(texts)


def parse(name: str, arguments: Sequence[str], planned: Sequence[str] = ()) -> Any:
    """Return the checked options of a claim; ends the program if they cannot work.

    The arguments count more than ``--quick`` does, and that more than what is planned.
    """
    claim = claim_of(name)
    parser = parser_of(claim.Options, f"python -m bench {name}", claim.__doc__)
    parser.set_defaults(out=OWN_RESULTS / f"{name}.json")
    usual = parser.parse_args(planned)
    if parser.parse_args(arguments).quick:
        vars(usual).update(quick_of(claim.Options))
    given = vars(parser.parse_args(arguments, usual)).items()
    # A run is a process in the folder of the checkout.
    options = claim.Options(**{k: v.absolute() if isinstance(v, Path) else v for k, v in given})
    try:
        options.check()
    except OptionsError as error:
        parser.error(str(error))
    return options


def run(name: str, arguments: Sequence[str], planned: Sequence[str] = ()) -> int:
    """Do all runs of a claim, write, draw and print the result; return the exit status."""
    is_json, words = "--json" in arguments, [word for word in arguments if word != "--json"]
    # For machines the result itself is all that is on standard output.
    out = sys.stderr if is_json else sys.stdout
    options, claim, commit = parse(name, words, planned), claim_of(name), commit_facts()
    require(*getattr(claim, "NEEDS", ("chainer",)))
    if options.cores:
        keep_to_cores(options.cores)
    load_average, began = os.getloadavg()[0], datetime.datetime.now(datetime.timezone.utc)
    _try_to_write(options.out)
    options.local.mkdir(parents=True, exist_ok=True)
    # As pip does: with PYTHONDONTWRITEBYTECODE each process would compile what it imports, 0.1 s.
    for package in ("overlapiter", "bench"):
        compileall.compile_dir(CHECKOUT / package, quiet=1)
    # Removed at the end only: ext4 creates files up to ten times as slowly for a minute after that.
    place = {"prefix": f"{name}-", "dir": options.local.resolve(), "ignore_cleanup_errors": True}
    with tempfile.TemporaryDirectory(**place) as scratch:
        options.scratch = Path(scratch)
        before_runs[1:] = [filler(options.scratch)] * (options.fill_memory and is_lent())
        disk, found = file_system_of(scratch).kind, claim.measure(options)
    if found is None:  # one of several ranks, which has nothing to say
        return 0
    date, command = began.isoformat(timespec="seconds"), command_of(name, [*planned, *words])
    facts = {"benchmark": name, **commit, "date": date, "command": command}
    facts |= {"machine": machine_facts(), "load_average": load_average}
    facts |= {"staging_filesystem": disk, "options": options.published()}
    result = with_targets({**facts, **found})
    options.out.write_text(json.dumps(result) + "\n")
    written = os.path.relpath(options.out)
    print(f"{head(result)}\n\n{text_of(result)}\n\nEvery number is in {written}.", file=out)
    for figure in draw([options.out]):
        print(f"A figure: {os.path.relpath(figure)}", file=out)
    faults = claim.faults(result) if hasattr(claim, "faults") else []
    print("".join(f"FAULT: {text}\n" for text in faults), end="", file=out)
    if is_json:
        print(json.dumps(result))
    return int(bool(faults))


def _try_to_write(path: Path) -> None:
    """End the program now, and not after an hour of measuring, if a file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") if path.exists() else tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        sys.exit(f"the result cannot be written: {error}; give another --out")


def command_of(name: str, arguments: Sequence[str]) -> str:
    """Return a command as it may be published: places of the user's own are left out."""
    split = (word.split("=", 1) if word.startswith("--") else [word] for word in arguments)
    words = [Path(w).name if w.startswith("/") else w for pair in split for w in pair]
    while "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return " ".join(["python -m bench", name, *words])


def head(result: dict) -> str:
    """Return what stands above a result: machine, commit and store."""
    changed = f" and {len(result['changed'])} changed files" if result.get("changed") else ""
    commit = f"commit {result.get('commit', 'unknown')[:12]}{changed}"
    facts = [machine_words(result), f"Python {result['machine']['python']}", commit]
    said = "; ".join(result[name] for name in _SAID if result.get(name))
    return "\n".join(filter(None, [", ".join([*facts, result["staging_filesystem"]]), said]))


def place_of(result: dict) -> str:
    """Return on which machine, store and data a result was measured."""
    facts = filter(None, (machine_words(result), result.get("store"), result.get("data")))
    return f"Measured on {'; '.join(facts)}."


def draw(paths: Sequence[Path], *, is_together: bool = False) -> list[str]:
    """Draw the figures of JSON files beside them, or of all into those of the first one.

    Their paths are returned. It is done in a process of its own: matplotlib keeps fonts open.
    """
    return call(_draw, (paths, is_together))["written"]


def _draw(request: tuple[Sequence[Path], bool]) -> dict:
    (paths, is_together), written = request, []
    results = [json.loads(path.read_text()) for path in paths]
    if is_together:
        points = [point for result in results for point in result["points"]]
        results = [{**results[0], "points": points}]
    for path, result in zip(paths, results, strict=False):
        claim = claim_of(result["benchmark"])
        if hasattr(claim, "marks"):
            from bench.harness import figures

            written += figures.draw(claim, result, path.with_suffix(".png"))
    return {"written": [str(path) for path in written]}

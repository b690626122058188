"""Measures what is published, or runs a benchmark of your own.

    python -m bench                           a first look: a result with its figures in a minute
    python -m bench NAME [OPTION ...]         one of them; --help says its options
    python -m bench --list                    their names, and how long they take
    python -m bench --all [--into FOLDER]     all of them, in order; options of all follow
    python -m bench tables                    writes the tables of README and docs
    python -m bench figures [--together] FILE ...    draws JSON files, beside them

Results go to bench/results/own, which git ignores, or where --out says; --json at the end prints
them.
"""

import json
import sys
from pathlib import Path

from bench import plan
from bench.harness import claim
from bench.harness.isolated import end_in_order
from overlapiter.cli import console


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit status."""
    match arguments:
        case ["-h" | "--help", *_]:
            print(__doc__.strip())
        case ["--list", *words]:
            rows = [[each.name, f"{each.minutes:g}", each.what] for each in plan.EXPERIMENTS]
            text = console.table(["name", "minutes", "what it shows"], rows)
            print(json.dumps({"lines": text.splitlines()}) if "--json" in words else text)
        case ["--all", *words]:
            return plan.run_all(words)
        case ["tables", *_]:
            plan.write_tables()
        case ["figures", *words]:
            paths = [Path(word).absolute() for word in words if word != "--together"]
            if missing := [str(path) for path in paths if not path.is_file()]:
                sys.exit(f"there is no file {', '.join(missing)}")
            paths = paths or sorted(claim.RESULTS.glob("*.json"))
            print(*claim.draw(paths, is_together="--together" in words), sep="\n")
        case [name, *words] if not name.startswith("-"):
            return plan.run(plan.named(name), words)
        case _:
            return plan.run(plan.named("thousand"), arguments)
    return 0


if __name__ == "__main__":
    end_in_order()  # what lies in a file system of memory is removed all the same
    sys.exit(main(sys.argv[1:]))

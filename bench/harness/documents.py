"""The tables of README and docs that show results: each is made from a JSON file.

A table stands between two comments, of which the first names the file and the table::

    <!-- table: thousand.json loaders -->
    ...
    <!-- end of table -->
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench.harness import claim
from bench.harness.isolated import CHECKOUT
from bench.harness.tables import markdown, rows_in

_BLOCK = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def documents() -> list[Path]:
    """Return all files that may show results."""
    return [
        CHECKOUT / "README.md",
        claim.RESULTS / "README.md",
        *sorted(CHECKOUT.glob("docs/*.md")),
    ]


def renewed(text: str) -> str:
    """Return a document with all its tables made anew."""

    def block(match: re.Match[str]) -> str:
        if match[2] == "plan":
            from bench.plan import rows

            return f"{match[1]}{markdown(rows())}\n{match[4]}"
        result = claim.with_targets(json.loads((claim.RESULTS / match[2]).read_text()))
        rows = rows_in(result, claim.tables_of(result["benchmark"])[match[3]])
        return f"{match[1]}{markdown(rows)}\n{match[4]}"

    return _BLOCK.sub(block, text)


def write_tables() -> None:
    """Write all tables anew, and name the documents that have changed."""
    for path in documents():
        before, after = path.read_text(), renewed(path.read_text())
        if before != after:
            path.write_text(after)
            print(f"{path.relative_to(CHECKOUT)}: written")

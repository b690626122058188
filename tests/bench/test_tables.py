"""The tables of the documents are those of the results."""

from __future__ import annotations

import json

import pytest

from bench import tables


@pytest.mark.parametrize("path", tables.documents(), ids=lambda path: path.name)
def test_each_table_is_that_of_its_json_file(path):
    assert tables.renewed(path.read_text()) == path.read_text(), "run python -m bench.tables"


def test_a_table_stands_between_two_comments(tmp_path, monkeypatch):
    targets = [
        {"what": "speed", "unit": "", "wanted": 0.9, "median": 0.95, "min": 0.91, "max": 1.0}
    ]
    targets[0]["is_met"] = True
    (tmp_path / "a.json").write_text(json.dumps({"targets": targets}))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    text = "Before.\n<!-- table: a.json targets -->\nold\n<!-- end of table -->\nAfter.\n"
    lines = tables.renewed(text).splitlines()
    assert lines[4] == "| speed | 0.95 | [0.91, 1.00] | 0.90 | met |"
    assert (lines[0], lines[-1]) == ("Before.", "After.")
    assert tables.renewed(tables.renewed(text)) == tables.renewed(text)

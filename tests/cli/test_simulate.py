"""`overlapiter simulate`: the scenarios, and one's own."""

from __future__ import annotations

import json

import pytest

from overlapiter.clairvoyant.policies import POLICIES

from .commands import command, overlapiter, run

SMALL = ("--examples", 2000, "--epochs", 2)


def test_a_scenario_is_printed_as_json_with_the_seconds_of_every_policy() -> None:
    done = overlapiter("simulate", "--scenario", 1, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert found["scenario"] == 1
    assert list(found["seconds"]) == list(POLICIES)
    assert found["seconds"]["lower bound"] == pytest.approx(7.3, rel=0.02)
    again = overlapiter("simulate", "--scenario", 1, "--json", "--seed", 1)
    assert json.loads(again.stdout)["seconds"] != found["seconds"]


def test_a_policy_that_cannot_run_is_null_and_says_so() -> None:
    words = ("simulate", *SMALL, "--tiers", "1:20000:2,5:86", "--policies", "lbann dynamic,ours")
    found = json.loads(overlapiter(*words, "--json").stdout)
    assert found["scenario"] is None  # the numbers are the user's own
    assert found["seconds"]["lbann dynamic"] is None
    lines = overlapiter(*words).stdout.splitlines()
    assert lines[0].startswith("2,000 examples of 0.027 MB, 2 epochs, 4 ranks with 1 MB at 20,000")
    assert any("lbann dynamic" in line and "cannot run" in line for line in lines)


def test_no_column_compares_with_a_lower_bound_that_was_not_chosen() -> None:
    done = overlapiter("simulate", "--scenario", 1, "--policies", "naive,ours")
    assert "lower bound" not in done.stdout
    done = overlapiter("simulate", "--scenario", 1, "--policies", "naive,lower bound")
    assert "of the lower bound" in done.stdout


def test_more_ranks_take_their_share_of_a_larger_mini_batch_and_a_figure_is_drawn(tmp_path) -> None:
    words = ("--ranks", 8, "--ranks-per-node", 2, "--store", "1:66,8:200", "--to")
    # Matplotlib keeps its fonts open.
    done = run(command("simulate", *SMALL, *words, tmp_path / "figure.png"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_more_examples_than_memory_holds_are_refused_in_a_line() -> None:
    done = overlapiter("simulate", "--examples", 2 * 10**12)
    assert done.returncode == 1
    assert "overlapiter simulate: this node has too little memory" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scenario", "5"], "invalid choice"),
        (["--ranks", "0"], "--ranks: 0 is too small"),
        (["--global-batch", "99"], "4 ranks cannot share 99 examples equally"),
        (["--store", "66"], "write clients and MB/s, as 1:66,4:146"),
        (["--tiers", "fast"], "write MB and MB/s, as 50000:21164"),
        (["--policies", "best"], "there is no 'best'"),
        (["--mean-size", "-1"], "--mean-size: give more than 0"),
        (["--size-deviation", "-0.5"], "--size-deviation: give at least 0"),
        (["--seed", "-1"], "--seed: -1 is too small"),
        (["--examples", "3"], "--examples: 3 is too small; give at least 4"),
        (["--store", "1:nan"], "write clients and MB/s"),
        (["--tiers", "100:0"], "write MB and MB/s"),
        (["--tiers", "nan:100"], "write MB and MB/s"),
        (["--tiers", "100:100:0"], "write MB and MB/s"),
        (["--ranks", "many"], "--ranks: 'many' is no count"),
    ],
)
def test_what_makes_no_sense_is_explained(words, message) -> None:
    done = overlapiter("simulate", *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())

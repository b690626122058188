"""The experiments behind the published results, as ``--all`` runs them, and their documents."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from bench.harness import claim
from bench.harness.isolated import CHECKOUT, EndedError
from bench.harness.options import NotPossibleError
from bench.harness.tables import markdown, rows_in
from bench.loaders.report import chief_rows


class Experiment(NamedTuple):
    """One JSON file."""

    name: str  # of the file, and of the command
    claim: str  # the module of bench.claims that measures it
    arguments: str
    minutes: float  # on two cores, as a guide
    what: str  # it shows


_NODES = "--nodes 2 --ranks 2 --loaders overlap,slow --repeats 1 --examples 512"
_MISSES = "--open-ms 2 --mb-per-s 1000 --repeats 1"
_READS = "--part reads --files 40000 --repeats 3"
_OWN = "--fill-memory"  # as a node has its memory
EXPERIMENTS = [Experiment(*row) for row in (
    ("thousand", "thousand", "--whole", 6, "1,000 mini-batches, every loader"),
    ("thousand-sweep", "thousand", "--sweep --batches 300 --steady-batches 100 "
     "--loaders overlap,slow,fast,floor", 6, "1 to 16 processes of a kind"),
    ("pipeline-fuse", "pipeline", f"--mount fuse --repeats 5 {_OWN}", 10, "where the time goes"),
    ("in-memory", "in-memory", "", 3, "the loader itself, examples in memory"),
    ("epoch-times-fuse", "epochs", "--mount fuse --examples 4000 --repeats 5", 5,
     "room for half of the data, what misses cost"),
    ("misses-measured", "epochs", f"--part misses --epochs 4 {_MISSES}", 2,
     "what the pipeline misses"),
    ("misses-node", "epochs", f"--part node --batch-size 8 --readers 1 {_MISSES}", 2,
     "what the ranks of a node miss"),
    ("model-times", "epochs", "--part model --examples 1600 --epochs 4 --repeats 2 "
     "--train-ms 20", 4, "epochs as the planner forecasts them"),
    ("evicting", "staging", f"--part evicting {_OWN}", 3, "CPU of evicting a file"),
    ("large-files", "staging", f"--part sizes {_OWN}", 3, "staging larger files, beside cp"),
    ("startup", "startup", _OWN, 6, "the first mini-batch, and memory"),
    ("startup-staged", "startup-staged", "--repeats 3", 5,
     "a start over 1.28 million staged files"),
    ("reads-in-flight", "staging", _READS, 6, "reads in flight that tune themselves"),
    ("reads-in-flight-20-mb", "staging", f"{_READS} --mb-per-s 20", 6, "the same at 20 MB/s"),
    ("data-parallel", "data-parallel", "--examples 2048", 7, "ChainerMN, 1 to 4 ranks"),
    ("data-parallel-2-nodes", "data-parallel", _NODES, 1, "two nodes"),
    ("data-parallel-2-nodes-shards", "data-parallel", f"{_NODES} --order shards", 1,
     "two nodes, a shard for each rank"),
    # A step of 70 ms is short for a GPU, so that 5 repeats of two sizes take a quarter of an
    # hour: what counts is the ratio, and a longer step would only make it smaller.
    ("data-parallel-compute", "data-parallel", "--model waits --ranks 2,4 --iterations 200 "
     f"--batch-size 4 --repeats 5 {_OWN}", 13, "the cost where data are not the bottleneck"),
    ("data-parallel-8-cores", "data-parallel", "--cores 8 --model waits --ranks 2,4 "
     "--iterations 200 --batch-size 4 --repeats 5", 13,
     "the same where ranks have cores of their own; left out where there are fewer"),
    ("pytorch", "pytorch", "", 8, "PyTorch's DataLoader, emulated store"),
    ("pytorch-fuse", "pytorch", f"--mount fuse {_OWN}", 10, "the same, FUSE mount"),
    ("pytorch-16-cores", "pytorch", "--cores 16 --workers 8,14 --readers 2,8,14,64 "
     "--mb-per-s 1000 --batches 120 --slow-batches 30", 6,
     "more workers; left out where there are fewer cores"),
    ("gpu", "in-memory", "--device gpu --loaders overlap-torch,torch,overlap,multiprocess "
     "--repeats 3 --side 224 --batch-size 64 --batches 100 --readers 8 --compute-ms 25", 3,
     "mini-batches to a GPU, PyTorch and CuPy; left out where there is none"),
    ("explained", "explained", "--seconds 6", 6,
     "whether explain() is right, and what watching costs"),
    ("faults", "faults", "", 3, "90 workers killed or stopped, and the end of programs"),
    ("training", "training", "", 4, "a server and workers: scaling, validation, a death"),
    ("updates", "updates", "", 3, "one update of the weights on a training server"),
    ("grid", "grid", "", 7, "a search of settings beside a grid"),
    ("algorithms", "algorithms", "", 3, "accuracy over time by algorithm"),
    ("peers", "peers", _OWN, 8, "files from other nodes: reads, times, what serving costs"),
    ("peers-fuse", "peers", "--parts epochs --mount fuse", 8, "the same, FUSE mount"),
    ("peers-fast-store", "peers", "--parts epochs --kinds peers,alone --open-ms 0 "
     "--mb-per-s 1000 --repeats 3", 8, "where the store is not the limit"),
)]  # fmt: skip


def rows() -> list[list[str]]:
    """Return a row for each experiment: its JSON file, command and duration."""
    table = [["file", "command", "minutes", "what it shows"]]
    for name, of, arguments, minutes, what in EXPERIMENTS:
        command = f"python -m bench {of} {arguments}".strip()
        table.append([f"`{name}.json`", f"`{command}`", f"{minutes:g}", what])
    return table


def named(name: str) -> Experiment:
    """Return a claim of this name with its own defaults, or else an experiment."""
    name = name.replace("_", "-")
    known = {each.name: each for each in EXPERIMENTS}
    known |= {each.claim: each._replace(name=each.claim, arguments="") for each in EXPERIMENTS}
    if name not in known:
        sys.exit(f"{name}: there is no such benchmark; there are {', '.join(sorted(known))}")
    return known[name]


def run(experiment: Experiment, arguments: list[str], folder: Path = claim.OWN_RESULTS) -> int:
    """Run one experiment with more options, into a folder; return the exit status."""
    out = ["--out", str(folder / f"{experiment.name}.json")]
    return claim.run(experiment.claim, [*out, *arguments], shlex.split(experiment.arguments))


def run_all(arguments: list[str]) -> int:
    """Run all experiments that are possible here, each into its own file; return 1 if one fails.

    The arguments are ``--into FOLDER``, for another one than that of one's own results, and options
    that all of them have, such as ``--quick``.
    """
    folder, failed, left_out = claim.OWN_RESULTS, [], []
    if arguments[:1] == ["--into"]:
        folder, arguments = Path(arguments[1]).absolute(), arguments[2:]
    for number, each in enumerate(EXPERIMENTS, 1):
        say = f"{number} of {len(EXPERIMENTS)}: {each.name}, some {each.minutes:g} minutes"
        print(f"\n=== {say} ===", file=sys.stderr, flush=True)
        try:
            failed += [each.name] * (run(each, arguments, folder) != 0)
        except EndedError:
            raise
        except NotPossibleError as error:
            left_out.append(f"{each.name}: {error}")
        except (Exception, SystemExit) as error:  # the others go on
            print(f"{each.name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed.append(each.name)
    n_done = len(EXPERIMENTS) - len(failed) - len(left_out)
    print(f"{n_done} experiments done; failed: {', '.join(failed) or '-'}", file=sys.stderr)
    for words in left_out:
        print(f"not possible here: {words}", file=sys.stderr)
    return int(bool(failed))


# --- the tables of README and docs that show results ----------------------------------------------

#: Between two comments, of which the first names the JSON file and the table:
#: ``<!-- table: thousand.json loaders -->``.
_BLOCK = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def documents() -> list[Path]:
    """Return all files that may show results."""
    docs = CHECKOUT.glob("docs/*.md")
    return [CHECKOUT / "README.md", claim.RESULTS / "README.md", *sorted(docs)]


def _shown(name: str, kind: str) -> str:
    """Return a table of a file, or in words the place where it was measured."""
    if name == "plan":
        return markdown(rows())
    result = claim.with_targets(json.loads((claim.RESULTS / name).read_text()))
    if kind == "place":
        return claim.place_of(result)
    tables = {**claim.tables_of(result["benchmark"]), "chief": chief_rows}
    return markdown(rows_in(result, tables[kind]))


def renewed(text: str) -> str:
    """Return a document with all its tables made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{_shown(match[2], match[3])}\n{match[4]}", text)


def write_tables() -> None:
    """Write all tables anew, and name the documents that have changed."""
    for path in documents():
        before, after = path.read_text(), renewed(path.read_text())
        if before != after:
            path.write_text(after)
            print(f"{path.relative_to(CHECKOUT)}: written")

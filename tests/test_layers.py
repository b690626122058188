"""Imports go down the layers only, and a framework is imported in its own package only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "overlapiter"
FACADE = "overlapiter"

# From the bottom to the top; those in one line stand side by side.
LAYERS = (
    ("compiled", "errors", "firstuse", "newfile", "words"),
    ("options", "urls", "node"),
    ("order",),
    ("nextuse", "scatter"),
    ("agreement",),
    ("importhook", "sources", "stagedfile", "openhook", "redirection"),
    ("faults",),
    ("tracelines",),
    ("board", "tracing"),
    ("stats",),
    ("bottleneck",),
    ("explain",),
    ("origins",),
    ("store",),
    ("peers",),
    ("sharedmem",),
    ("workers",),
    ("planning",),
    ("pipeline",),
    ("snapshot", "objective"),
    ("chainer", "torch"),
    ("clairvoyant",),
    ("mpi",),
    ("cli", "__main__"),
)
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}

# Which layers may import a framework; mpi4py also where the name of the module begins with "peer".
HOMES = {
    "chainer": ("chainer",),
    "chainermn": ("chainer", "mpi"),
    "cupy": ("chainer", "mpi"),
    "cupyx": ("chainer",),
    "torch": ("chainer", "torch"),
    "mpi4py": ("mpi",),
    "numba": ("mpi",),
    "optuna": ("mpi",),
    "pynvml": ("mpi",),
    "matplotlib": ("cli", "mpi"),  # a training draws its curves, from Python, too
    "aiohttp": ("origins",),
    "fsspec": ("origins",),
    "s3fs": ("origins",),
}


def modules_of(package: Path) -> dict[str, Path]:
    """Return the dotted name and the file of every module below ``package``."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = (FACADE, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path) -> Iterator[str]:
    """Yield the absolute name of all that ``module`` imports, wherever the statement stands."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join(base + (node.module.split(".") if node.module else []))
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def module_named(name: str, modules: dict[str, Path]) -> str:
    """Return the module that an imported name is or belongs to."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name


def layer_of(module: str) -> str:
    """Return the part of the name that says in which layer a module stands; "" for the façade."""
    return module.split(".")[1] if "." in module else ""


def complaint(module: str, imported: str) -> str | None:
    """Say what is wrong with an import, if anything."""
    layer, framework = layer_of(module), imported.partition(".")[0]
    if framework == FACADE:
        if HEIGHT.get(layer_of(imported), len(LAYERS)) > HEIGHT.get(layer, -1):
            return f"{module} imports {imported}, which stands above it"
    elif framework == "mpi4py" and module.rpartition(".")[2].startswith("peer"):
        return None
    elif layer not in HOMES.get(framework, (layer,)):
        homes = " and ".join(f"{FACADE}.{home}" for home in HOMES[framework])
        return f"{module} imports {imported}, which only {homes} may"
    return None


def violations(package: Path) -> list[str]:
    """Return a sentence for every breach of the rules below ``package``."""
    modules = modules_of(package)
    graph: dict[str, set[str]] = {}
    found = []
    for module, path in modules.items():
        imported = {module_named(name, modules) for name in imports_of(module, path)}
        if module == FACADE:  # it stands above all layers and imports late
            imported = {name for name in imported if not name.startswith(FACADE)}
        elif layer_of(module) not in HEIGHT:
            found.append(f"{module} stands in no layer")
        found += filter(None, (complaint(module, name) for name in sorted(imported)))
        graph[module] = imported & modules.keys() - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append("import cycle: " + " - ".join(error.args[1]))
    return found


def test_the_package_keeps_to_its_layers() -> None:
    assert FACADE in modules_of(PACKAGE)
    assert violations(PACKAGE) == []


def plant(folder: Path, sources: dict[str, str]) -> Path:
    """Write a package of these files and return it."""
    package = folder / FACADE
    for name, source in sources.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return package


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("errors.py", "import overlapiter.order", "errors imports overlapiter.order, which stands"),
        ("errors.py", "from overlapiter import order", "overlapiter.order, which stands above it"),
        ("errors.py", "from .order import Order", "overlapiter.order, which stands above it"),
        ("store/store.py", "from ..cli import main", "overlapiter.cli, which stands above it"),
        ("cli/plot.py", "from overlapiter import Staging", "overlapiter, which stands above it"),
        ("errors.py", "def f():\n    import overlapiter.order", "which stands above it"),
        ("errors.py", "if TYPE_CHECKING:\n    import overlapiter.order", "which stands above it"),
        ("order.py", "import chainer.dataset", "chainer, which only overlapiter.chainer may"),
        ("mpi/root.py", "from chainer import cuda", "chainer, which only overlapiter.chainer may"),
        (
            "pipeline.py",
            "import chainermn",
            "which only overlapiter.chainer and overlapiter.mpi",
        ),
        ("pipeline.py", "import cupy", "which only overlapiter.chainer and overlapiter.mpi"),
        (
            "__init__.py",
            "import torch",
            "torch, which only overlapiter.chainer and overlapiter.torch",
        ),
        ("store/store.py", "from mpi4py import MPI", "mpi4py, which only overlapiter.mpi may"),
        ("store/plots.py", "import matplotlib", "matplotlib, which only overlapiter.cli and"),
        ("helpers.py", "", "overlapiter.helpers stands in no layer"),
        ("store/copier.py", "from overlapiter.store import store", "import cycle"),
    ],
)
def test_a_breach_is_reported(tmp_path: Path, name: str, source: str, expected: str) -> None:
    sources = {
        "__init__.py": "",
        "order.py": "",
        "cli/__init__.py": "",
        "store/__init__.py": "",
        "store/store.py": "from overlapiter.store.copier import copy",
        "store/copier.py": "",
    }
    (found,) = violations(plant(tmp_path, sources | {name: source}))
    assert expected in found


def test_what_the_layers_allow_is_not_reported(tmp_path: Path) -> None:
    sources = {
        "__init__.py": "def __getattr__(name):\n    from overlapiter.chainer import iterator",
        "errors.py": "import os",
        "chainer/__init__.py": "from . import iterator",
        "chainer/iterator.py": "import chainer\nfrom overlapiter.errors import OverlapError",
        "clairvoyant/peers.py": "from mpi4py import MPI",
        "mpi/__init__.py": "import chainermn\nimport mpi4py\nimport overlapiter.chainer",
        "cli/plot.py": "import matplotlib",
    }
    assert violations(plant(tmp_path, sources)) == []

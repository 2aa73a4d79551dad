"""Imports only look up the list of layers, and the parts do not know each other."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "leapfactual"
LAYERS = [
    {"errors", "types"},
    {"files", "checks"},
    {"captured", "checkpoints", "folding", "pictures", "turning"},
    {"solvers", "bases", "fields", "couplings", "generators", "classifiers"},
    {"data", "density", "quick"},
    {"flow"},
    {"training", "leaps", "explanation", "report", "masks", "votes"},
    {"walk"},
    {"recorded"},
    {"explain", "agreements"},
    {"metrics", "calibration"},
    {"bundle", "manifest", "baselines", "diversity"},
    {"fitting", "explaining"},
    {"evaluating", "augmenting", "people"},
    {"testing", "studies"},
    {"cli"},
]
RANK = {name: n for n, layer in enumerate(LAYERS) for name in layer}
PARTS = LAYERS[3]


def imported(path):
    """The modules of the package that a file imports, as names below the package."""
    depth = len(path.relative_to(ROOT).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
            yield from (name for name in names if name in RANK)


FILES = [
    p
    for p in ROOT.rglob("*.py")
    if p.name not in {"__init__.py", "__main__.py"} or p.parent != ROOT
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_look_up(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in set(imported(path)) - {own}:
        assert RANK[name] <= RANK[own], f"{own} imports {name}, which is further down"
        assert not (name in PARTS and own in PARTS), (
            f"the parts {own} and {name} must not know each other"
        )


def test_importing_the_package_costs_little_beyond_torch():
    code = (
        "import sys, torch; before = set(sys.modules); "
        "import leapfactual; print(*set(sys.modules) - before)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    heavy = {"matplotlib", "torchdiffeq", "ot", "typer", "rich", "scipy"}
    assert not heavy & {name.split(".")[0] for name in out.split()}


def test_nothing_is_unpickled():
    for path in set(ROOT.rglob("*.py")) - {ROOT / "data" / "arrays.py"}:
        text = path.read_text()
        assert "torch.load" not in text
        assert not re.search(r"import c?pickle|pickle\.loads?|Unpickler\(", text), path

"""Imports only look up the list of layers in docs/layers.py."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
ROOT = REPOSITORY / "leapfactual"
spec = importlib.util.spec_from_file_location("layers", REPOSITORY / "docs" / "layers.py")
layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(layers)
# An explanation shows itself; the report is imported inside of the methods that do.
LAZY = {("explanation", "report")}


def test_every_module_has_its_layer():
    assert sorted(layers.RANK) == layers.modules()
    assert len(layers.LAYERS) <= 10
    assert len(list(ROOT.glob("*.py"))) <= 24


@pytest.mark.parametrize("own", layers.modules())
def test_imports_look_up(own):
    for importer, name in sorted(layers.imports(lazy=False) | (layers.imports() - LAZY)):
        if importer == own:
            assert layers.RANK[name] <= layers.RANK[own], f"{own} imports {name}, further down"


def test_there_is_no_cycle():
    edges = layers.imports(lazy=False)
    left = set(layers.modules())
    while left:
        free = {m for m in left if not any(a == m and b in left for a, b in edges)}
        assert free, f"these import each other: {sorted(left)}"
        left -= free


def test_the_check_sees_an_import_against_the_direction(tmp_path, monkeypatch):
    package = tmp_path / "leapfactual"
    (package / "cli").mkdir(parents=True)
    (package / "cli" / "__init__.py").write_text("")
    (package / "flow.py").write_text("def f():\n    from .cli import main\n")
    monkeypatch.setattr(layers, "PACKAGE", package)
    assert layers.imports() == {("flow", "cli")}
    assert layers.imports(lazy=False) == set()
    assert layers.RANK["cli"] > layers.RANK["flow"]


def test_the_solvers_fields_bases_and_couplings_know_only_the_vocabulary():
    maths = {"solvers", "fields", "bases", "couplings"}
    vocabulary = set(layers.LAYERS[0][1])
    assert not [(a, b) for a, b in layers.imports() if a in maths and b not in vocabulary]


def test_generators_classifiers_and_data_do_not_know_each_other():
    parts = {"generators", "classifiers", "data"}
    assert not [(a, b) for a, b in layers.imports() if {a, b} <= parts]


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
    """But for files of our own cards, by two readers that name what they allow."""
    readers = {ROOT / "data" / "arrays.py", ROOT / "data" / "checkpoints.py"}
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"torch\.load|pickle\.loads?\b", text), path
        if path in readers:
            assert "def find_class" in text, path
        else:
            assert not re.search(r"import c?pickle|Unpickler\(", text), path

"""The layers of the package: imports look up this list and never down it.

The one source of the direction: ``tests/test_layers.py`` holds the code to it, CONTRIBUTING.md
shows it, and the contributor's page draws the imports of the code onto it.
"""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "leapfactual"

LAYERS: list[tuple[str, tuple[str, ...]]] = [
    ("vocabulary", ("errors", "types", "extras", "checks", "files")),
    (
        "parts",
        (
            "imaging",
            "solvers",
            "fields",
            "bases",
            "couplings",
            "generators",
            "classifiers",
            "data",
        ),
    ),
    ("flow", ("typicality", "flow")),
    ("leaps", ("leaps", "masks", "explanation")),
    ("explainer", ("reference", "walk", "_engine", "explainer")),
    ("reading", ("metrics", "report", "alternatives", "baselines")),
    ("keeping", ("training", "bundle", "pretrained")),
    ("jobs", ("jobs",)),
    ("rooms", ("web", "people", "studio", "demos", "testing")),
    ("command line", ("cli",)),
]
RANK = {name: n for n, (_, names) in enumerate(LAYERS) for name in names}


def modules() -> list[str]:
    """Returns the names of all modules and packages at the top level of the package."""
    found = [path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")]
    return sorted([*found, *(path.parent.name for path in PACKAGE.glob("*/__init__.py"))])


def imports(*, lazy: bool = True) -> set[tuple[str, str]]:
    """Returns who imports whom, by names at the top level of the package.

    Arguments:
        lazy: Whether to count imports inside of functions.
    """
    known = set(modules())
    edges = set()
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        own = parts[0]
        if own.startswith("__"):
            continue
        for node in _nodes(ast.parse(path.read_text(encoding="utf-8")), lazy):
            for name in _targets(node, len(parts)):
                if name in known and name != own:
                    edges.add((own, name))
    return edges


def _nodes(tree: ast.AST, lazy: bool) -> list[ast.stmt]:
    """Returns the statements of a module; without ``lazy``, only those that importing it runs."""
    found: list[ast.stmt] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.stmt):
            found.append(node)
        found += _nodes(node, lazy)
    return found


def _targets(node: ast.stmt, depth: int) -> list[str]:
    """Returns the names at the top level of the package that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.level == depth:
        return [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leapfactual."):
        return [str(node.module).split(".")[1]]
    if isinstance(node, ast.Import):
        return [a.name.split(".")[1] for a in node.names if a.name.startswith("leapfactual.")]
    return []

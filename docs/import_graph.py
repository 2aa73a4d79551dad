"""Draws the import graph of the package from its code, as an SVG.

Modules stand one below the other in the order of :data:`layers.LAYERS`; an arc leads from a module
to each that it imports. Every arc that follows the direction is drawn on the right, so a left-hand
arc is an import against it.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from layers import LAYERS

PACKAGE = Path(__file__).parent.parent / "leapfactual"
VOCABULARY = LAYERS[0][1]
COLORS = ("#888888", "#4477aa", "#66ccee", "#228833", "#999933", "#cc8800", "#ee6677", "#aa3377")
ROW, GAP, LEFT, WIDTH = 19, 15, 112, 380

Edge = tuple[str, str]


def modules(package: Path = PACKAGE) -> list[str]:
    """Returns the modules and sub-packages at the top level, by the layers and within by need."""
    files = {path.stem for path in package.glob("*.py")}
    present = files | {path.parent.name for path in package.glob("*/__init__.py")}
    edges = imports(package)
    order: list[str] = []
    for _, names in LAYERS:
        left = [name for name in names if name in present]
        while left:
            free = [m for m in left if not any((m, other) in edges for other in left)] or left[:1]
            order += free
            left = [m for m in left if m not in free]
    return order


def imports(package: Path = PACKAGE, *, lazy: bool = False) -> set[Edge]:
    """Returns who imports whom at the top level when the package is imported.

    Arguments:
        package: The folder of the package.
        lazy: Whether to return, instead, the imports that only happen inside functions.
    """
    eager, inside = _read(package)
    return inside - eager if lazy else eager


@cache
def _read(package: Path) -> tuple[set[Edge], set[Edge]]:
    """Returns the imports at the top of modules, and those inside functions."""
    known = {name for _, names in LAYERS for name in names}
    edges: tuple[set[Edge], set[Edge]] = set(), set()
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).parts
        own = parts[0].removesuffix(".py")
        if own in known:
            for name, inside in _imported(ast.parse(path.read_text()), len(parts), False):
                if name in known and name != own:
                    edges[inside].add((own, name))
    return edges


def against(edges: set[Edge]) -> set[Edge]:
    """Returns the imports that look down the list of layers."""
    rank = {name: n for n, (_, names) in enumerate(LAYERS) for name in names}
    return {(a, b) for a, b in edges if rank[b] > rank[a]}


def cycles(edges: set[Edge]) -> set[Edge]:
    """Returns the imports that are part of a cycle."""
    left = set(edges)
    while True:
        ends = {a for a, _ in left} & {b for _, b in left}
        inner = {(a, b) for a, b in left if a in ends and b in ends}
        if inner == left:
            return left
        left = inner


def _imported(node: ast.AST, depth: int, inside: bool) -> Iterator[tuple[str, bool]]:
    """Yields names below the package that a file imports, and whether within a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.ImportFrom):
            yield from ((name, inside) for name in _names(child, depth))
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imported(child, depth, inside or function)


def _names(node: ast.ImportFrom, depth: int) -> list[str]:
    module = node.module or ""
    if node.level == 0 and module.split(".")[0] == "leapfactual":
        module = module.removeprefix("leapfactual").removeprefix(".")
    elif node.level != depth:
        return []
    return [module.split(".")[0]] if module else [alias.name for alias in node.names]


def svg(package: Path = PACKAGE) -> str:
    """Returns the drawing; the imports of the vocabulary, which everyone knows, are left out."""
    edges, lazy = imports(package), imports(package, lazy=True)
    order = modules(package)
    y, lines, top = {}, [], 6
    for n, (name, members) in enumerate(LAYERS):
        shown = [m for m in order if m in members]
        height = GAP + ROW * len(shown) + 4
        lines.append(
            f'<rect class="band{n % 2}" x="0" y="{top}" width="{WIDTH}" height="{height}" rx="4"/>'
            f'<text class="layer" x="6" y="{top + 12}">{n + 1} {name}</text>'
        )
        for k, module in enumerate(shown):
            y[module] = top + GAP + ROW * k + ROW // 2
        top += height + 3
    for a, b in sorted(edges | lazy):
        if b not in VOCABULARY and a in y and b in y:
            lines.append(_arc(a, b, y, order, dashed=(a, b) in lazy))
    for module in order:
        color = _color(module)
        lines.append(
            f'<circle cx="{LEFT}" cy="{y[module]}" r="3.5" fill="{color}"/>'
            f'<text class="module" x="{LEFT - 9}" y="{y[module] + 4}">{module}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="imports" viewBox="0 0 {WIDTH} {top + 4}" '
        'role="img" aria-label="Import graph of the package">\n' + "\n".join(lines) + "\n</svg>\n"
    )


def _color(module: str) -> str:
    layer = next(n for n, (_, names) in enumerate(LAYERS) if module in names)
    return COLORS[layer % len(COLORS)]


def _arc(a: str, b: str, y: dict[str, int], order: list[str], *, dashed: bool) -> str:
    """Returns an arc from ``a`` to ``b``: right of the names, or left where it looks down."""
    span = abs(y[a] - y[b])
    reach = 14 + (WIDTH - LEFT - 26) * min(1.0, span / (max(y.values()) - min(y.values()))) ** 0.7
    down = order.index(b) > order.index(a)
    x = LEFT - 2 * reach / 3 if down else LEFT + 4 * reach / 3
    kind = "lazy" if dashed else "against" if down else "edge"
    return (
        f'<path class="{kind}" stroke="{_color(a)}" d="M{LEFT} {y[a]} C{x:.0f} {y[a]} {x:.0f} '
        f'{y[b]} {LEFT} {y[b]}"><title>{a} imports {b}</title></path>'
    )


def table(package: Path = PACKAGE) -> str:
    """Returns who imports whom as Markdown, vocabulary and all."""
    edges, lazy = imports(package), imports(package, lazy=True)
    rows = ["| module | imports | inside functions |", "|---|---|---|"]
    order = modules(package)
    for module in order:
        cells = [
            ", ".join(f"`{b}`" for b in order if (module, b) in chosen)
            for chosen in (edges, lazy)
        ]
        rows.append(f"| `{module}` | {cells[0]} | {cells[1]} |")
    return "\n".join(rows) + "\n"


def summary(package: Path = PACKAGE) -> str:
    """Returns what the graph shows, in a sentence."""
    edges = imports(package)
    return (
        f"{len(modules(package))} modules and sub-packages in {len(LAYERS)} layers, {len(edges)} "
        f"imports between them: {len(against(edges))} against the direction, {len(cycles(edges))} "
        "in a cycle.\n"
    )

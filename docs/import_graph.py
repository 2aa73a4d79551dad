"""Draws the import graph of the package from its code, as an SVG.

Modules stand one below the other in the order of :data:`layers.LAYERS`; an arc leads from a module
to each that it imports. Every arc that follows the direction is drawn on the right, so a left-hand
arc is an import against it.
"""

from layers import LAYERS, RANK, imports, modules

VOCABULARY = LAYERS[0][1]
COLORS = ("#888888", "#4477aa", "#66ccee", "#228833", "#999933", "#cc8800", "#ee6677", "#aa3377")
ROW, GAP, LEFT, WIDTH = 19, 15, 112, 380

Edge = tuple[str, str]


def read() -> tuple[set[Edge], set[Edge]]:
    """Returns who imports whom: at the top of modules, and inside functions only."""
    eager = imports(lazy=False)
    return eager, imports() - eager


def ordered(edges: set[Edge]) -> list[str]:
    """Returns the modules in the order of the layers, and within a layer by need."""
    present, order = set(modules()), []
    for _, names in LAYERS:
        left = [name for name in names if name in present]
        while left:
            free = [m for m in left if not any((m, other) in edges for other in left)] or left[:1]
            order += free
            left = [m for m in left if m not in free]
    return order


def against(edges: set[Edge]) -> set[Edge]:
    """Returns the imports that look down the list of layers."""
    return {(a, b) for a, b in edges if RANK[b] > RANK[a]}


def cycles(edges: set[Edge]) -> set[Edge]:
    """Returns the imports that are part of a cycle."""
    left = set(edges)
    while True:
        ends = {a for a, _ in left} & {b for _, b in left}
        inner = {(a, b) for a, b in left if a in ends and b in ends}
        if inner == left:
            return left
        left = inner


def svg() -> str:
    """Returns the drawing; the imports of the vocabulary, which everyone knows, are left out."""
    edges, lazy = read()
    order = ordered(edges)
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
    return COLORS[RANK[module] % len(COLORS)]


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


def table() -> str:
    """Returns who imports whom as Markdown, vocabulary and all."""
    edges, lazy = read()
    order = ordered(edges)
    rows = ["| module | imports | inside functions |", "|---|---|---|"]
    for module in order:
        cells = [
            ", ".join(f"`{b}`" for b in order if (module, b) in chosen) for chosen in (edges, lazy)
        ]
        rows.append(f"| `{module}` | {cells[0]} | {cells[1]} |")
    return "\n".join(rows) + "\n"


def summary() -> str:
    """Returns what the graph shows, in a sentence."""
    edges, _ = read()
    return (
        f"{len(modules())} modules and sub-packages in {len(LAYERS)} layers, {len(edges)} imports "
        f"between them: {len(against(edges))} against the direction, {len(cycles(edges))} in a "
        "cycle.\n"
    )


def layers_markdown() -> str:
    """Returns the list of layers as CONTRIBUTING.md shows it."""
    rows = [
        f"{n}. **{name}**: {', '.join(f'`{module}`' for module in members)}"
        for n, (name, members) in enumerate(LAYERS, start=1)
    ]
    return "\n".join(rows)

"""The graph of packages in docs/architecture.svg, drawn from the imports of the code.

    python docs/make_architecture.py            # write the drawing
    python docs/make_architecture.py --check    # exit 1 when it is out of date

A box is a package or a module at the root; a line from a box down to another says that the upper one imports the lower
one; boxes with a dashed border never import torch. Lines that follow from others are left out. Rows are layers: imports
point downwards only, which tests/test_layers.py guards.
"""

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "longspan"
DRAWING = ROOT / "docs" / "architecture.svg"
WIDTH, BOX, HEIGHT, GAP = 860, 112, 30, 48
READING = ("published", "suites", "results", "analysis", "report")  # the packages that work without torch


def parts() -> dict[str, list[Path]]:
    """The files of each package, and each module at the root."""
    found: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        name = place.parts[0] if len(place.parts) > 1 else place.stem
        if not name.startswith("__"):
            found.setdefault(name, []).append(path)
    return found


def imported(path: Path) -> set[str]:
    """The parts that a file imports, inside functions too; imports for type checkers only are left out."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("longspan.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "longspan":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("longspan."):
            found.add(node.module.split(".")[1])
    return found


def graph() -> dict[str, set[str]]:
    known = parts()
    return {name: set().union(*map(imported, files)) & set(known) - {name} for name, files in known.items()}


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without edges that follow from others."""

    @cache
    def below(name: str) -> frozenset[str]:
        return frozenset(edges[name]).union(*(below(other) for other in edges[name]))

    return {
        name: {one for one in others if not any(one in below(other) for other in others - {one})}
        for name, others in edges.items()
    }


def rows(edges: dict[str, set[str]]) -> list[list[str]]:
    """Layers from the top down: each part lies just above the highest of those it imports."""

    @cache
    def height(name: str) -> int:
        return 1 + max(map(height, edges[name]), default=-1)

    layers = Counter(map(height, edges))

    def order(name: str) -> tuple[bool, str]:
        return name in READING, name  # the reading half on the right

    return [sorted((n for n in edges if height(n) == level), key=order) for level in sorted(layers, reverse=True)]


def _left(layer: list[str], i: int) -> float:
    """The left edge of a box: a layer is spread over the width, a lone part of the reading half goes on the right."""
    if len(layer) == 1:
        return (WIDTH - BOX) * (0.8 if layer[0] in READING else 0.5)
    return (WIDTH - BOX) * i / (len(layer) - 1)


def draw() -> str:
    edges = graph()
    layers, lines = rows(edges), reduced(edges)
    places = {
        name: (_left(layer, i), level * (HEIGHT + GAP) + 8)
        for level, layer in enumerate(layers)
        for i, name in enumerate(layer)
    }
    height = len(layers) * (HEIGHT + GAP) - GAP + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img" '
        'aria-label="Packages of Longspan and what they import">',
        "<style>.b{fill:#eef0fb;stroke:#3f51b5}.r{stroke-dasharray:5 3}"
        ".e{fill:none;stroke:#7986cb;stroke-width:1.2}text{fill:#1a237e}</style>",
    ]
    for name, others in sorted(lines.items()):
        for other in sorted(others):
            (x, y), (a, b) = places[name], places[other]
            x, a, y = x + BOX / 2, a + BOX / 2, y + HEIGHT
            middle = (b - y) / 2
            out.append(f'<path class="e" d="M{x:.0f} {y:.0f}C{x:.0f} {y + middle:.0f} {a:.0f} {b - middle:.0f} ')
            out[-1] += f'{a:.0f} {b:.0f}"><title>{name} imports {other}</title></path>'
    for name, (x, y) in places.items():
        kind = "b r" if name in (*READING, "core", "cli") else "b"
        out.append(f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="6"/>')
        out.append(f'<text x="{x + BOX / 2:.0f}" y="{y + 20}" font-size="13" text-anchor="middle">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> int:
    drawing = draw()
    if "--check" in sys.argv[1:]:
        if not DRAWING.is_file() or DRAWING.read_text() != drawing:
            print("docs/architecture.svg is out of date; run: python docs/make_architecture.py", file=sys.stderr)
            return 1
        return 0
    DRAWING.write_text(drawing)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Frozen copies of what papers printed: their tables as lines of cells, by name."""

from pathlib import Path


def frozen(file: str) -> dict[str, list[tuple[str, ...]]]:
    """Read the tables of a file beside this one; `# name` begins a table, and tabs separate cells."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    rows: list[tuple[str, ...]] = []
    for line in (Path(__file__).parent / file).read_text().splitlines():
        if line.startswith("# "):
            rows = tables.setdefault(line[2:], [])
        else:
            rows.append(tuple(line.split("\t")))
    return tables

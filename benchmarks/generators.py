"""How fast ListOps and Pathfinder are generated on this machine: `python benchmarks/generators.py [--workers 2]`.

Whole preparations into a temporary folder: drawing, shards, de-duplication, hashing, writing. Compiling comes before.
"""

import argparse
import tempfile
import time

from rich.console import Console
from rich.table import Table

from longspan.datasets import get, listops, pathfinder
from longspan.datasets.generation.shards import available_cores

CASES = [
    ("ListOps, full size", "listops", listops.Data()),
    ("Pathfinder, 32 hard", "pathfinder", pathfinder.Data(32, "hard", 8_000, 1_000, 1_000)),
    ("Pathfinder, 64 hard", "pathfinder", pathfinder.Data(64, "hard", 1_600, 200, 200)),
    ("Path-X, 128 hard", "pathfinder", pathfinder.Data(128, "hard", 640, 80, 80)),
    ("Pathfinder, 256 hard", "pathfinder", pathfinder.Data(256, "hard", 160, 20, 20)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of the dataset generators.")
    parser.add_argument("--workers", type=int, default=available_cores())
    workers = parser.parse_args().workers
    table = Table("corpus", "examples", "seconds", "per second", title=f"Generators, {workers} threads")
    for title, name, data in CASES:
        get(name).samples(data, 2)  # compile, render the stamps
        with tempfile.TemporaryDirectory() as root:
            began = time.perf_counter()
            splits = get(name).prepare(data, root=root, workers=workers, progress=False)
            seconds = time.perf_counter() - began
        count = sum(splits.counts.values())
        table.add_row(title, f"{count:,}", f"{seconds:.2f}", f"{count / seconds:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()

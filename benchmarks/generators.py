"""How fast ListOps and Pathfinder are generated on this machine:

    python benchmarks/generators.py [--workers 2] [--quick]


Complete preparations into a temporary folder: drawing, shards, de-duplication, hashing, writing. Compilation is not
timed.
"""

import argparse
import tempfile
import time

from rich.console import Console
from rich.table import Table

from longspan.core.environment import available_cpus
from longspan.datasets import get, listops, pathfinder

CASES = [
    ("ListOps, full size", "listops", listops.Data()),
    ("Pathfinder, 32 hard", "pathfinder", pathfinder.Data(32, "hard", 8_000, 1_000, 1_000)),
    ("Pathfinder, 64 hard", "pathfinder", pathfinder.Data(64, "hard", 1_600, 200, 200)),
    ("Path-X, 128 hard", "pathfinder", pathfinder.Data(128, "hard", 640, 80, 80)),
    ("Pathfinder, 256 hard", "pathfinder", pathfinder.Data(256, "hard", 160, 20, 20)),
]

QUICK = [
    ("ListOps, short", "listops", listops.Data(100, 10, 10, longer_than=50, shorter_than=128, max_depth=5, max_args=8)),
    ("Pathfinder, 32 easy", "pathfinder", pathfinder.Data(32, "easy", 40, 10, 10)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of the dataset generators.")
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--quick", action="store_true", help="two small corpora")
    given = parser.parse_args()
    workers = given.workers
    table = Table("corpus", "examples", "seconds", "per second", title=f"Generators, {workers} threads")
    for title, name, data in QUICK if given.quick else CASES:
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

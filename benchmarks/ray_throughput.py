"""How many cells per second `longspan run --launcher ray` handles if they do nothing, and how much memory it takes.

Each cell returns a committed card, as long as one of a real run, which the command records in its journal.

python benchmarks/ray_throughput.py --cells 10000
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

from longspan.cli.run_cells import run_cells
from longspan.core.cell import Cell
from longspan.launchers.base import Budget, Outcome
from longspan.launchers.limits import Limits
from longspan.launchers.matrix import noted
from longspan.launchers.ray import Ray, Request

CARDS = Path(__file__).parents[1] / "results" / "h200" / "cards" / "listops"
CARD = json.loads(min(CARDS.glob("*.json")).read_text())


def do_nothing(cell: Cell, request: Request) -> Outcome:
    return Outcome(card={**CARD, "seed": cell.seed})


class NoOp(Ray):
    """The Ray launcher with cells that do nothing."""

    def _task(self, function):
        return super()._task(do_nothing)


def pass_through(launcher: Ray, count: int, out: Path) -> tuple[float, list[float]]:
    """Cells per second, and the memory of this process after each tenth of them."""
    cells = [Cell("listops", "softmax", seed=seed) for seed in range(count)]
    waiting, number, memory = iter(cells), itertools.count(1), []

    def ended(cell: Cell, outcome: Outcome) -> None:
        if next(number) % max(count // 10, 1) == 0:
            memory.append(memory_mib())

    with noted(out, "ray", cells) as journal, open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        begun = time.perf_counter()
        ran = run_cells(launcher, lambda left: next(waiting, None), cells, journal, ended=ended)
        seconds = time.perf_counter() - begun
    assert len(ran.shown) == count
    return count / seconds, memory


def memory_mib() -> float:
    """Memory of this process without mapped files."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="A few cells, to see that it runs.")
    asked = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        print("ray is not installed; pip install 'longspan[ray]'.")
        return
    first, count = (10, 20) if asked.quick else (500, asked.cells)
    with tempfile.TemporaryDirectory() as out, NoOp(Limits(), Budget(), out=out, device="cpu") as launcher:
        pass_through(launcher, first, Path(out))  # starts the Ray processes
        rate, memory = pass_through(launcher, count, Path(out))
    tenths = " ".join(f"{mib:.1f}" for mib in memory)
    print(f"{rate:.0f} cells/s; MiB of the driver after each tenth of {count:,} cells: {tenths}")


if __name__ == "__main__":
    main()

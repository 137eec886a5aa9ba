"""How many cells a second pass through the Ray launcher if they do nothing, and how much memory its process takes.

python benchmarks/ray_throughput.py --cells 10000
"""

import argparse
import importlib.util
import resource
import tempfile
import time

from longspan.core.cell import Cell
from longspan.launchers.base import Budget, Outcome
from longspan.launchers.limits import Limits
from longspan.launchers.ray import Ray, Request


def do_nothing(cell: Cell, request: Request) -> Outcome:
    return Outcome(card={"seed": cell.seed})


class NoOp(Ray):
    """The launcher with cells that do nothing."""

    def _task(self, function):
        return super()._task(do_nothing)


def cells_per_second(launcher: Ray, count: int) -> float:
    waiting = iter(Cell("listops", "softmax", seed=seed) for seed in range(count))
    begun = time.perf_counter()
    ended = sum(1 for _ in launcher.run(lambda left: next(waiting, None)))
    assert ended == count
    return count / (time.perf_counter() - begun)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
        cells_per_second(launcher, first)  # processes of Ray are started
        before = peak_mib()
        rate = cells_per_second(launcher, count)
        print(f"{rate:.0f} cells/s; {before:.0f} MiB after {first} cells, {peak_mib():.0f} MiB after {count:,} more")


if __name__ == "__main__":
    main()

"""Is anything slower than its card says? Repeats every committed measurement at some lengths on this GPU.

    python benchmarks/measured_again.py [MECHANISM...] [--lengths 1024 4096 16384] [--json FILE]
    python benchmarks/measured_again.py --warm --share 0/8         # only compile, the first of eight processes
    python benchmarks/measured_again.py --points FILE              # only the points of FILE that were slow there

Points are those of the newest cards under `--cards` (results/h200/cards): cores in bfloat16 under CUDA graphs, NS and
CS, forward and train. Prints each point's time over its card's, the sum over mechanisms, and exits 1 if a point is
slower by more than `--slower` (5 %). `--quick` runs two tiny points on a CPU, compared with nothing.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan import attentions
from longspan.attentions import Pattern
from longspan.efficiency.latency import time_call
from longspan.efficiency.setup import Setup
from longspan.efficiency.sweep import runner_of
from longspan.efficiency.workload import ModuleWorkload
from longspan.results.store import Store

Point = tuple[str, str, int, str]  # mechanism, pattern, length, mode


def points_of(cards: Path, lengths: list[int]) -> dict[Point, float]:
    """Seconds on the newest card of each point, in bfloat16 under graphs."""
    found: dict[Point, tuple[str, float]] = {}
    for _, card in Store(cards).entries():
        if card["kind"] != "measurement" or card.get("procedure", "").startswith("lra"):
            continue
        settings = card["settings"]
        if settings.get("module") != "core" or settings["dtype"] != "bfloat16":
            continue
        for point in card["points"]:
            if point.get("variant") == "graph" and point["status"] == "ok" and point["length"] in lengths:
                key = card["mechanism"], card["pattern"], point["length"], point["mode"]
                if point["mode"] in ("forward", "train") and card["created"] > found.get(key, ("",))[0]:
                    found[key] = card["created"], point["seconds"]["median"]
    return {key: seconds for key, (_, seconds) in sorted(found.items())}


def measure(points: list[Point], setup: Setup, device: str, *, warm: bool) -> Iterator[tuple[Point, float | None]]:
    bench, at = None, None
    for point in points:
        mechanism, pattern, length, mode = point
        if at != point[:3]:
            bench, at = None, point[:3]  # frees the previous one first
            bench = ModuleWorkload(attentions.get(mechanism), Pattern(pattern), setup, length, device)
        assert bench is not None
        work = bench.work(mode)  # type: ignore[arg-type]
        if warm:
            work.calls[0]()
            yield point, None
            continue
        runner, _ = runner_of(work, "graph" if device == "cuda" else "eager", device)
        timing = time_call(
            runner.run, device, repeats=setup.repeats, seconds=setup.seconds, warmup=setup.warmup, calls=runner.calls
        )
        yield point, timing.spread.median


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mechanisms", nargs="*")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--cards", type=Path, default=Path("results/h200/cards"))
    parser.add_argument("--points", type=Path, help="of an earlier --json: only those that were slower there")
    parser.add_argument("--slower", type=float, default=0.05)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th mechanism, from the I-th on")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        setup = Setup(lengths=(64,), dtype="float32", batch=1, heads=1, dim=8, repeats=5, seconds=0.01)
        known: dict[Point, float] = {}
        points = [("linear", "causal_self", 64, mode) for mode in ("forward", "train")]
        device = "cpu"
    else:
        setup, device = Setup.usual("cuda", seconds=0.15), "cuda"
        known = points_of(given.cards, given.lengths)
        points = [point for point in known if not given.mechanisms or point[0] in given.mechanisms]
        if given.points:
            limit = 1 + given.slower - 0.01
            slow = {tuple(row["point"]) for row in json.loads(given.points.read_text()) if (row["ratio"] or 0) > limit}
            points = [point for point in points if point in slow]
        index, count = map(int, given.share.split("/"))
        names = sorted({point[:2] for point in points})[index::count]
        points = [point for point in points if point[:2] in names]
    rows: list[dict[str, Any]] = []
    for point, seconds in measure(points, setup, device, warm=given.warm):
        if seconds is None:
            continue
        card = known.get(point)
        rows.append({"point": point, "seconds": seconds, "card": card, "ratio": card and seconds / card})
        ratio = f"{seconds / card:6.3f} of its card" if card else "no card"
        print(f"{' '.join(map(str, point)):55} {seconds * 1e6:10.1f} us  {ratio}", flush=True)
        if given.json:
            given.json.write_text(json.dumps(rows))
    slow = [row for row in rows if row["ratio"] and row["ratio"] > 1 + given.slower]
    compared = [row for row in rows if row["card"]]
    if compared:
        total = sum(row["seconds"] for row in compared) / sum(row["card"] for row in compared)
        print(f"{len(compared)} points, the sum is {total:.3f} of the cards'; {len(slow)} slower by more than allowed")
        for row in sorted(slow, key=lambda row: -row["ratio"]):
            print(f"  {row['ratio']:.3f}  {' '.join(map(str, row['point']))}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())

"""Race other packages against ours, print a line for each and save the numbers.

    python -m benchmarks.peers --lengths 1024 4096 16384 --json peers.json
    python -m benchmarks.peers --only performer linformer --lengths 1024 --batch 1 --device cpu --dtype float32
    python -m benchmarks.peers --show peers.json

Ratios are theirs over ours: above 1, ours is faster.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.packages import PEERS
from benchmarks.peers.race import MODES, Row, Setup, Side, missing, race, races
from longspan.core import atomic, environment
from longspan.core.errors import LongspanError


def main(arguments: list[str]) -> int:
    asked = _parse(arguments)
    if asked.show:
        print(table(json.loads(asked.show.read_text())["rows"]))
        return 0
    try:
        device = environment.choose_device(asked.device)
    except LongspanError as error:
        print(error, file=sys.stderr)
        return 2
    setup = Setup(batch=asked.batch, dtype=asked.dtype, device=device, repeats=asked.repeats, seconds=asked.seconds)
    wanted = [p for p in PEERS if not asked.only or any(word in p.name for word in asked.only)]
    if not wanted:
        print(f"No package is called {' or '.join(asked.only)}; there are: {_names()}.", file=sys.stderr)
        return 2
    present, skipped = [], []
    for peer in wanted:
        reason = missing(peer, device)
        if reason is None:
            present.append(peer)
        else:
            skipped.append({"package": peer.package, "offers": peer.offers, "reason": reason})
            print(f"{peer.name}: passed over, {reason}")
    rows: list[Row] = []
    for peer, pattern, length, mode in races(present, asked.lengths, asked.modes):
        rows.append(race(peer, pattern, length, mode, setup))
        print(line(rows[-1]), flush=True)
        if asked.json:  # after each race, so that an interrupted run keeps its results
            atomic.write_json(asked.json, report(rows, skipped, setup))
    if asked.json and not rows:
        atomic.write_json(asked.json, report(rows, skipped, setup))
    return 0


def line(row: Row) -> str:
    """
    >>> from longspan.efficiency.latency import Spread
    >>> side = Side(eager=Spread(1.0, 1.5, 2.0, 5))
    >>> line(Row("them", "1.0", "Attention", "linear", "core", "NS", 64, "train", side, side, ratio={"eager": 1.0}))
    'them Attention NS 64 train: 1.500 ms eager; linear: 1.500 ms eager; ratio 1.00 eager'
    """
    ratio = ", ".join(f"{value:.2f} {clock}" for clock, value in row.ratio.items()) or "none"
    race = f"{row.package} {row.offers} {row.pattern} {row.length} {row.mode}"
    return f"{race}: {_times(row.theirs_ms)}; {row.ours}: {_times(row.ours_ms)}; ratio {ratio}"


def _times(side: Side) -> str:
    clocks = {"eager": side.eager, "graph": side.graph}
    shown = [f"{spread.median:.3f} ms {clock}" for clock, spread in clocks.items() if spread is not None]
    return ", ".join([*shown, *([side.note] if side.note else [])])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of a report in Markdown: our time in microseconds, and the ratio theirs / ours for graph and eager."""
    lengths = sorted({row["length"] for row in rows})
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in rows:
        race = (f"{row['package']} {row['offers']}", row["pattern"], row["mode"])
        found.setdefault(race, {})[row["length"]] = _cell(row)
    head = ["package", "pattern", "mode", *(f"{length:,}" for length in lengths)]
    lines = [head, ["---"] * len(head)]
    lines += [[*race, *(cells.get(length, "–") for length in lengths)] for race, cells in found.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: Mapping[str, Any]) -> str:
    """`49, 19 / 4.43`: a dash where a side cannot be captured, the reason where theirs or ours cannot run."""
    ours, theirs = (row[side]["graph"] or row[side]["eager"] for side in ("ours_ms", "theirs_ms"))
    if ours is None:
        return f"ours: {row['ours_ms']['note']}"
    if theirs is None:
        return f"{1e3 * ours['median']:,.0f}, {row['theirs_ms']['note']}"
    ratios = (row["ratio"].get(clock) for clock in ("graph", "eager"))
    shown = ("–" if ratio is None else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2f}" for ratio in ratios)
    return f"{1e3 * ours['median']:,.0f}, {' / '.join(shown)}"


def report(rows: list[Row], skipped: list[dict[str, str]], setup: Setup) -> dict[str, Any]:
    return {
        "environment": environment.describe(),
        "setup": vars(setup),
        "rows": [row.to_json() for row in rows],
        "skipped": skipped,
    }


def _names() -> str:
    return ", ".join(sorted({peer.package for peer in PEERS}))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"some of: {_names()}")
    parser.add_argument("--batch", type=int, default=Setup.batch)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=Setup.dtype)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=Setup.repeats)
    parser.add_argument("--seconds", type=float, default=Setup.seconds, help="for one clock of one side")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print what --json kept as a Markdown table")
    parser.add_argument("--quick", action="store_true", help="torch's own attention, 64 tokens on a CPU")
    given = parser.parse_args(arguments)
    if given.quick:
        tiny = {"lengths": [64], "only": ["torch"], "batch": 1, "dtype": "float32", "device": "cpu", "repeats": 2}
        vars(given).update(tiny)
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

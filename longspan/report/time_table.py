"""The table of measured times at one length for a page, in Markdown."""

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import Bench, MeasuredMechanism, need_benches
from longspan.analysis.finding import table
from longspan.results.board_table import DASH
from longspan.results.collect import pattern_name

PATTERNS = ("NS", "CS")
MODES = ("forward", "train")
WORTH = 0.9  # compiled code is listed where it takes at most this share of the time


def times(evidence: Evidence, length: str, dtype: str = "bfloat16") -> str:
    """Microseconds under CUDA graphs and their multiple of the floor; compiled too, where that is a tenth less.

    Where energy was measured, millijoules of a call with gradients follow. The fastest in non-causal training is first.
    """
    tokens, benches = int(length), {}
    for bench in reversed(need_benches(evidence.measurements)):  # so that the fullest bench is written last
        if dict(bench.setup)["dtype"] == dtype and bench.module == "core":
            benches[bench.pattern] = bench
    rows = []
    for mechanism in sorted({name for bench in benches.values() for name in bench.mechanisms}):
        entries = [_entry(benches.get(pattern_name(pattern)), mechanism) for pattern in PATTERNS]
        cells = [_time(entry, tokens, mode) for entry in entries for mode in MODES]
        joules = [_joules(entry, tokens) for entry in entries]
        if any(cell != DASH for cell in cells):
            rows.append((_place(entries[0], tokens), mechanism, cells, joules))
    rows.sort()
    energy = any(text != DASH for _, _, _, joules in rows for text in joules)
    heads = ["mechanism", *(f"{pattern} {mode}" for pattern in PATTERNS for mode in MODES)]
    heads += [f"mJ, {pattern} train" for pattern in PATTERNS] if energy else []
    written = [(name, *cells, *(joules if energy else ())) for _, name, cells, joules in rows]
    return table(heads, written) if written else ""


def _entry(bench: Bench | None, mechanism: str) -> MeasuredMechanism | None:
    return None if bench is None else bench.mechanisms.get(mechanism)


def _seconds(entry: MeasuredMechanism | None, tokens: int, mode: str, variant: str) -> float | None:
    reading = None if entry is None else entry.reading(tokens, mode, variant)
    sample = None if reading is None else reading.sample("time")
    return None if sample is None else sample.median


def _time(entry: MeasuredMechanism | None, tokens: int, mode: str) -> str:
    """`500 (15.7), 364`"""
    graph, compiled = (_seconds(entry, tokens, mode, variant) for variant in ("graph", "compiled"))
    if entry is None or graph is None:
        return DASH
    reading = entry.reading(tokens, mode, "graph")
    over = f" ({reading.ratio:.1f})" if reading is not None and reading.ratio else ""
    faster = f", {1e6 * compiled:,.0f}" if compiled is not None and compiled <= WORTH * graph else ""
    return f"{1e6 * graph:,.0f}{over}{faster}"


def _joules(entry: MeasuredMechanism | None, tokens: int) -> str:
    reading = None if entry is None else entry.reading(tokens, "train", "graph")
    sample = None if reading is None else reading.sample("energy")
    return DASH if sample is None else f"{1e3 * sample.median:,.0f}"


def _place(entry: MeasuredMechanism | None, tokens: int) -> float:
    return _seconds(entry, tokens, "train", "graph") or float("inf")

"""What a sweep of `longspan measure` found, as tables: a mechanism in each row, a length in each column.

    for view in views(cards):
        print(view.title, view.grid())
    print(render(cards, "markdown"))

A view is one pattern, mode and variant on one machine; a cell is the median time of a call, or of a token in decoding.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.analysis.comparable import Bench, Reading, benches
from longspan.core.errors import UnknownName, did_you_mean
from longspan.core.readable_json import printed
from longspan.results.card import Card

FORMS = ("markdown", "csv", "json")
DASH = "–"
SHOWN = ("mechanism", "title", "pattern", "settings", "ceilings", "gate", "parameters", "points")
MS, MIB = 1e3, 2.0**-20


@dataclass(frozen=True)
class View:
    """The readings of one mode and variant on a bench, by mechanism and length."""

    bench: Bench
    mode: str
    variant: str
    rows: dict[str, dict[int, Reading]]

    @property
    def title(self) -> str:
        """`forward, graph · causal_self · NVIDIA H200 · bfloat16 · batch 4, 8 heads of 64 · core`."""
        return f"{self.mode}, {self.variant} · {self.bench.pattern} · {self.bench.where}"

    @property
    def lengths(self) -> list[int]:
        return sorted({length for row in self.rows.values() for length in row})

    @property
    def possible(self) -> bool:
        """Whether there was anything to measure."""
        return any(one.status != "unsupported" for row in self.rows.values() for one in row.values())

    def grid(self) -> list[list[str]]:
        """Texts, headings first."""
        heading = ["mechanism", *map(str, self.lengths)]
        return [heading, *([name, *(_cell(row.get(n)) for n in self.lengths)] for name, row in self.rows.items())]

    def notes(self) -> list[str]:
        """Why cells have no time, each reason once for all the mechanisms that share it."""
        found: dict[str, list[str]] = {}
        for name, row in self.rows.items():
            here: dict[str, list[str]] = {}
            for length, reading in sorted(row.items()):
                if reading.reason:
                    here.setdefault(reading.reason, []).append(str(length))
            for why, lengths in here.items():
                found.setdefault(why, []).append(f"{name} at {', '.join(lengths)}")
        return [f"{'; '.join(who)}: {why}." for why, who in found.items()]


def views(cards: Iterable[Card]) -> list[View]:
    """One view per bench, mode and variant."""
    made: list[View] = []
    for bench in benches(cards):
        own: dict[tuple[str, str], View] = {}
        for name, entry in bench.mechanisms.items():
            for (length, mode, variant), reading in entry.readings.items():
                view = own.setdefault((mode, variant), View(bench, mode, variant, {}))
                view.rows.setdefault(name, {})[length] = reading
        made += own.values()
    return made


def _cell(reading: Reading | None) -> str:
    if reading is None:
        return DASH
    time = reading.sample("time")
    return reading.status.upper() if time is None else duration(time.median)


def duration(seconds: float) -> str:
    """Three figures and the unit that suits them.

    >>> duration(23.84e-6), duration(4.777e-3), duration(1.5)
    ('23.8 µs', '4.78 ms', '1.50 s')
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{_three_figures(seconds / size)} {unit}"
    return f"{_three_figures(seconds * 1e9)} ns"


def _three_figures(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


# ------------------------------------------------------------------------------------------------------------ the forms


def render(cards: Sequence[Card], form: str = "markdown") -> str:
    """The cards of a sweep as text in one of `FORMS`; CSV has a line and JSON an object for every point."""
    if form not in FORMS:
        raise UnknownName(f"No form {form!r} for this table.{did_you_mean(form, FORMS)}")
    if form == "markdown":
        return "\n".join(map(_markdown, views(cards)))
    if form == "csv":
        return _csv(cards)
    shown = [{name: card[name] for name in SHOWN} for card in cards]
    return printed(shown) + "\n"


def _markdown(view: View) -> str:
    def escape(text: str) -> str:
        return re.sub(r"([\\`*_{}\[\]<>|#~!])", r"\\\1", " ".join(text.split()))

    heading, *lines = view.grid()
    rule = [":---", *["---:"] * (len(heading) - 1)]
    table = [heading, rule, *lines]
    rows = ["| " + " | ".join(line if line is rule else map(escape, line)) + " |" for line in table]
    notes = [f"- {escape(note)}" for note in view.notes()]
    parts = [rows] * view.possible + [notes] * bool(notes)
    return "\n".join([f"## {escape(view.title)}", *(line for part in parts for line in ("", *part))]) + "\n"


def _csv(cards: Sequence[Card]) -> str:
    """Made for a data frame, and for `longspan crossover --from` where it holds one mode and variant."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    head = ["mechanism", "pattern", "length", "mode", "variant", "status", "reason", "time_ms", "time_low_ms"]
    head += ["time_high_ms", "readings", "dropped", "memory_mib", "reserved_mib", "activations_mib", "energy_j"]
    writer.writerow([*head, "operations", "floor_ms", "over_floor", "state_bytes"])
    for card in cards:
        for point in card["points"]:
            which = [_plain(card["mechanism"]), card["pattern"], point["length"], point["mode"], point["variant"]]
            writer.writerow([*which, point["status"], _plain(point["reason"]), *_numbers(point)])
    return buffer.getvalue()


def _numbers(point: Mapping[str, Any]) -> list[float | None]:
    time, memory = point["seconds"] or {}, point["memory"] or {}
    energy, floor = point["energy"] or {}, point["floor"] or {}

    def scaled(number: float | None, by: float) -> float | None:
        return None if number is None else number * by

    return [
        *(scaled(time.get(name), MS) for name in ("median", "low", "high")),
        *(time.get(name) for name in ("count", "dropped")),
        *(scaled(memory.get(name), MIB) for name in ("allocated", "reserved", "activations")),
        energy.get("joules"),
        point["operations"],
        scaled(floor.get("seconds"), MS),
        floor.get("ratio"),
        point["state_bytes"],
    ]


def _plain(entry: str | None) -> str | None:
    """A spreadsheet must not take a name for a formula."""
    return f"'{entry}" if entry and entry.startswith(("=", "+", "-", "@", "\t")) else entry

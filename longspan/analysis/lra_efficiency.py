"""How fast, how big? Our measurements in the layout of Tables 2 and 4 of Long Range Arena, beside the printed ones.

    for view in tables(Store("out/cards").cards("measurement")):
        view.rows[0].cells[4000].steps_per_second

A table holds cards of one machine and one setting; ratios are to softmax at the same length in the same table. A
published row stands below the mechanism it is about: its ratios compare, its speeds and bytes are from other hardware.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from longspan.published import MeasuredTable, measured
from longspan.results.age import by_date
from longspan.results.card import Card, canonical

PROCEDURE = "lra-efficiency"
BASELINE = "softmax"
TITLES = {"train": "Training", "inference": "Inference"}
PAPER = {  # the paper's table for each mode, and its name for the speed
    "train": ("lra-training-speed", "training speed"),
    "inference": ("lra-inference-speed", "inference speed"),
}
MEMORY = "memory per device"
GIGABYTE = 1e9


@dataclass(frozen=True)
class SpeedCell:
    """One mechanism at one length; `ratio` is to softmax, by the wall clock or on compute alone."""

    status: str  # ok, oom, fail or missing
    reason: str | None = None
    steps_per_second: float | None = None
    quartiles: tuple[float, float] | None = None
    ratio: float | None = None
    compute_steps_per_second: float | None = None
    compute_quartiles: tuple[float, float] | None = None
    compute_ratio: float | None = None
    examples_per_second: float | None = None
    memory_gb: float | None = None
    printed: tuple[str, str] = ("", "")  # speed and memory as a paper spells them
    doubts: tuple[str, str] = ("", "")  # why these are not to be trusted


@dataclass(frozen=True)
class SpeedRow:
    """`source` is "own" for a mechanism that we measured, "published" for the paper's numbers of it."""

    source: Literal["own", "published"]
    mechanism: str
    title: str
    cells: Mapping[int, SpeedCell]
    parameters: int | None = None


@dataclass(frozen=True)
class SpeedTable:
    mode: str
    machine: str
    settings: Mapping[str, Any]
    lengths: tuple[int, ...]
    rows: tuple[SpeedRow, ...]

    @property
    def title(self) -> str:
        """`Training · NVIDIA H200 · bf16 · batch 32`."""
        parts = [TITLES[self.mode], self.machine, self.setting("precision"), f"batch {self.setting('batch')}"]
        return " · ".join([*parts, "compiled"] if self.settings.get("compile") else parts)

    def setting(self, name: str) -> str:
        """A setting as text; a card may lack it."""
        return str(self.settings.get(name, "unknown"))


# ------------------------------------------------------------------------------------------------ from cards to a table


def tables(cards: Sequence[Card], modes: Sequence[str] = ("train", "inference")) -> list[SpeedTable]:
    """One table per machine, setting and mode. Of two points of one mechanism at one length, the newer one is shown."""
    groups: dict[bytes, list[Card]] = {}
    for card in by_date(cards):
        if card["kind"] == "measurement" and card["procedure"] == PROCEDURE:
            shared = {name: value for name, value in card["settings"].items() if name not in ("lengths", "modes")}
            groups.setdefault(canonical({"on": _machine(card), "with": shared}), []).append(card)
    return [made for group in groups.values() for mode in modes if (made := _table(group, mode)) is not None]


def _machine(card: Card) -> str:
    gpu = card["settings"].get("device") == "cuda"
    return str(card["environment"].get("gpu" if gpu else "cpu") or "unknown machine")


def _table(cards: Sequence[Card], mode: str) -> SpeedTable | None:
    points: dict[str, dict[int, SpeedCell]] = {}
    newest: dict[str, Card] = {}
    for card in cards:
        newest[card["mechanism"]] = card
        mine = {point["length"]: _cell(point) for point in card["points"] if point["mode"] == mode}
        points.setdefault(card["mechanism"], {}).update(mine)
    lengths = tuple(sorted({length for mine in points.values() for length in mine}))
    if not lengths:
        return None
    baseline = points.get(BASELINE, {})
    rows, quoted = [], set()
    paper = measured(PAPER[mode][0])
    for name in sorted(points, key=lambda name: name != BASELINE):  # the baseline first, the others as they came
        cells = {n: _compared(points[name].get(n, SpeedCell("missing")), baseline.get(n)) for n in lengths}
        if name == BASELINE:
            cells = {n: replace(cell, ratio=None, compute_ratio=None) for n, cell in cells.items()}
        card = newest[name]
        rows.append(SpeedRow("own", name, card["title"], cells, card["parameters"]["total"]))
        quote = _published_row(paper, PAPER[mode][1], name, lengths)
        if quote is not None and quote.title not in quoted:
            quoted.add(quote.title)
            rows.append(quote)
    return SpeedTable(mode, _machine(cards[0]), cards[-1]["settings"], lengths, tuple(rows))


def _cell(point: Mapping[str, Any]) -> SpeedCell:
    return SpeedCell(
        status=point["status"],
        reason=point["reason"],
        steps_per_second=point["steps_per_second"],
        quartiles=_pair(point.get("steps_per_second_quartiles")),
        compute_steps_per_second=point["compute_steps_per_second"],
        compute_quartiles=_pair(point.get("compute_steps_per_second_quartiles")),
        examples_per_second=point["examples_per_second"],
        memory_gb=None if point["peak_bytes"] is None else point["peak_bytes"] / GIGABYTE,
    )


def _pair(given: Any) -> tuple[float, float] | None:
    """Two numbers, or nothing: an untrusted card may hold anything in a field that no schema knows."""
    sound = isinstance(given, list) and len(given) == 2 and all(isinstance(one, int | float) for one in given)
    return (given[0], given[1]) if sound else None


def _compared(cell: SpeedCell, baseline: SpeedCell | None) -> SpeedCell:
    if baseline is None:
        return cell
    return replace(
        cell,
        ratio=_ratio(cell.steps_per_second, baseline.steps_per_second),
        compute_ratio=_ratio(cell.compute_steps_per_second, baseline.compute_steps_per_second),
    )


def _ratio(speed: float | None, of: float | None) -> float | None:
    return None if not speed or not of else speed / of


def _published_row(paper: MeasuredTable, speed: str, mechanism: str, lengths: Sequence[int]) -> SpeedRow | None:
    """What the paper prints of a mechanism at these lengths; None where it has nothing."""
    row = paper.counterpart(mechanism)
    if row is None or not any(paper.column(speed, length) for length in lengths):
        return None
    # A quotient that rounding alone can explain is no reason for doubt.
    flags = {flag.column: flag.why for flag in paper.flags() if flag.row == row.title and flag.kind != "rounding"}
    cells = {}
    for length in lengths:
        columns = [paper.column(quantity, length) for quantity in (speed, MEMORY)]
        names = [column.name if column is not None and column.name in row.printed else None for column in columns]
        spoken, held = names
        cells[length] = SpeedCell(
            status="ok" if spoken else "missing",
            steps_per_second=row.value(spoken) if spoken else None,
            ratio=row.printed_ratio(spoken) if spoken else None,
            memory_gb=row.value(held) if held else None,
            printed=(row.printed[spoken] if spoken else "", row.printed[held] if held else ""),
            doubts=(flags.get(spoken or "", ""), flags.get(held or "", "")),
        )
    return SpeedRow("published", row.mechanism or "", row.title, cells)

"""What `longspan.measure` returns: cards of measurements as a table, a data frame and a plot."""

from collections.abc import Iterator, Sequence
from typing import Any

from longspan.core.errors import DataMissing
from longspan.notebook.frame import frame
from longspan.notebook.html_table import html_table

MIB = 2.0**20


class MeasuredView:
    """The cards of a sweep; `left` points were not measured because a budget was spent."""

    def __init__(self, cards: Sequence[dict[str, Any]], left: int = 0):
        self.cards, self.left = list(cards), left

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(f"{card['mechanism']} as {card['pattern']}" for card in self.cards))
        return f"<measurements: {names or 'none finished'}>"

    def _repr_html_(self) -> str:
        from longspan.analysis.measure_table import views

        parts = []
        for view in views(self.cards):
            heading, *rows = view.grid()
            parts.append(html_table(heading, rows, title=view.title, notes=view.notes(), numbers=heading[1:]))
        return "".join(parts)

    def to_pandas(self) -> Any:
        """A row for each point: mechanism, pattern, length, mode, variant, milliseconds, MiB, status."""
        return frame(measured_points(self.cards))

    def plot(self, mode: str = "forward") -> Any:
        """Time against length, both on logarithmic axes."""
        return times_drawn(self.cards, mode)


def measured_points(cards: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One plain record for each point of core measurements."""
    for card in cards:
        for point in card["points"]:
            seconds, memory = point.get("seconds"), point.get("memory")
            yield {
                "mechanism": card["mechanism"],
                "pattern": card.get("pattern"),
                "length": point["length"],
                "mode": point["mode"],
                "variant": point.get("variant"),
                "time_ms": 1e3 * seconds["median"] if isinstance(seconds, dict) else None,
                "memory_mib": memory["allocated"] / MIB
                if isinstance(memory, dict) and memory.get("allocated")
                else None,
                "status": point["status"],
            }


def times_drawn(cards: Sequence[dict[str, Any]], mode: str = "forward") -> Any:
    """A line for each mechanism, pattern and variant."""
    from longspan.notebook.figure import lines

    series: dict[str, list[tuple[float, float]]] = {}
    for point in measured_points(cards):
        if point["mode"] == mode and point["time_ms"] is not None:
            name = f"{point['mechanism']}, {point['pattern']}, {point['variant']}"
            series.setdefault(name, []).append((point["length"], point["time_ms"]))
    if not series:
        raise DataMissing(f"Nothing was timed in {mode} mode; measure it with modes=[{mode!r}].")
    call = "a token" if mode == "decode" else "a call"
    return lines(series, x="tokens", y=f"milliseconds for {call}", title=mode, log=True)

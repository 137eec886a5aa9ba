"""The matrix of cells as it is being run: a live table in a terminal, a line for every change elsewhere, and a page."""

import contextlib
import html
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.text import Text

from longspan.cli import tables
from longspan.cli.app import say
from longspan.core.atomic import write_text
from longspan.core.cell import differing, distinct_names, settings_text
from longspan.launchers.matrix import ENDED, Row, key_of, rows, seconds_left

EVERY = 2.0  # seconds between updates
SHOWN = {"running": 40, "failed": 20, "stopped": 5, "queued": 5, "done": 5}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>{title}</title>
<style>body {{ font: 15px/1.5 sans-serif; margin: 2em }} td, th {{ padding: 0 1.2em 0 0; text-align: left }}</style>
</head><body><h1>{title}</h1><table>
<tr>{head}</tr>
{body}
</table></body></html>
"""
COLUMNS = ("state", "task", "mechanism", "seed", "step", "steps/s", "time left", "", "changed")


def watch_matrix(out: Path, page: Path | None = None, *, every: float = EVERY) -> None:
    """Show what the commands in `out` are doing until all of it has ended, or until Ctrl-C."""
    screen = tables.console()
    if not (found := rows(out)):
        say(f"No cells were run in {out}; start some with longspan run.")
        return
    if not screen.is_terminal:
        _say_changes(out, page, every)
        return
    with Live(_drawn(found), console=screen, auto_refresh=False) as live:
        while True:
            live.update(_drawn(found), refresh=True)
            _write_page(page, found)
            if all(row.state in ENDED for row in found):
                return
            time.sleep(every)
            found = rows(out)


@contextlib.contextmanager
def live_table(out: Path) -> Iterator[None]:
    """The same table on standard error while the block runs cells, below what it prints; nothing without a terminal."""
    screen = tables.console(error=True)
    if not screen.is_terminal:
        yield
        return
    ended = threading.Event()
    with Live(console=screen, auto_refresh=False, transient=True) as live:

        def follow() -> None:
            while not ended.wait(EVERY):
                live.update(_drawn(rows(out)), refresh=True)

        following = threading.Thread(target=follow, daemon=True)
        following.start()
        try:
            yield
        finally:
            ended.set()
            following.join()


def _say_changes(out: Path, page: Path | None, every: float) -> None:
    """Print a line for each cell whose state has changed."""
    before: dict[str, str] = {}
    while True:
        found = rows(out)
        name = distinct_names([row.cell for row in found])
        for row in found:
            if row.state != before.get(key := key_of(row.cell), "queued"):
                say(": ".join(filter(None, (f"{row.state} {name(row.cell)}", row.reason))))
            before[key] = row.state
        _write_page(page, found)
        if all(row.state in ENDED for row in found):
            say(summary(found))
            return
        time.sleep(every)


def summary(found: Sequence[Row]) -> str:
    """How many cells are in which state, and the time left."""
    counts = Counter(row.state for row in found)
    order = ("running", "queued", "done", "failed", "stopped")
    words = [f"{counts[state]} {state}" for state in order if counts[state]]
    left = seconds_left(found)
    return f"{len(found)} cells: {', '.join(words)}{f'; about {tables.duration(left)} left' if left else ''}."


def _drawn(found: Sequence[Row]) -> Group:
    columns, lines = _table(found)
    return Group(Text(summary(found)), tables.table(columns, lines, right=("seed", "step", "steps/s")))


def _table(found: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns, and the rows to show: of each state, as many as SHOWN allows."""
    lines, seen = [], Counter()
    changed = differing(row.cell.overrides for row in found)
    for row in found:
        seen[row.state] += 1
        if seen[row.state] > SHOWN[row.state]:
            continue
        pace = row.pace
        step = f"{pace.step:,} of {pace.steps:,}" if pace else ""
        rate = f"{pace.rate:.1f}" if pace and pace.rate else ""
        left = tables.duration(pace.seconds_left if pace else None)
        took = f"took {tables.duration(row.seconds)}" if row.seconds is not None else row.reason
        line = (row.state, row.cell.task, row.cell.mechanism, str(row.cell.seed), step, rate, left, took)
        lines.append((*line, settings_text(row.cell.overrides, changed)) if changed else line)
    return COLUMNS if changed else COLUMNS[:-1], lines


def _write_page(page: Path | None, found: Sequence[Row]) -> None:
    if page is None:
        return
    columns, lines = _table(found)
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in line)}</tr>" for line in lines)
    write_text(page, PAGE.format(title=html.escape(summary(found)), head=head, body=body))

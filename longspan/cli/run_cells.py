"""Cells run one after another or several at once, with a line for each: what `run` and `plan --run` have in common."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from longspan.cli import tables
from longspan.cli.app import say
from longspan.core.cell import Cell
from longspan.launchers.lanes import Budget, Lanes
from longspan.launchers.limits import Limits, parse_seconds
from longspan.launchers.local import Outcome
from longspan.launchers.mps import GAIN, multi_process_service


@dataclass
class Ran:
    """The cards of cells that succeeded, the exit codes of those that failed, those for which time was up."""

    cards: list[dict[str, Any]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    unfinished: list[Cell] = field(default_factory=list)


@contextlib.contextmanager
def share_device(share: int, limits: Limits, budget: str | None, **how: Any) -> Iterator[Lanes]:
    """Lanes for cells on this machine's device; several go through NVIDIA's service where there is one.

    `lanes.slowdown` is how many times longer a cell takes among its neighbours than alone.
    """
    seconds = Budget(None if budget is None else parse_seconds(budget, "--budget"))
    if share > 1:
        how |= {"shared": True, "progress": False}  # bars of several processes would overwrite one another
    with (
        multi_process_service(share > 1 and how["device"] != "cpu") as served,
        Lanes(share, limits, seconds, slowdown=share / (GAIN if served else 1.0), **how) as lanes,
    ):
        if share > 1:
            by = " through NVIDIA's multi-process service" if served else ""
            say(f"Up to {share} cells share the device{by}; their cards have no speed.", error=True)
        yield lanes


def run_cells(
    lanes: Lanes,
    take: Callable[[float | None], Cell | None],
    total: int,
    *,
    about: Callable[[Cell], str] = lambda cell: "",
    ended: Callable[[Cell, Outcome], None] = lambda cell, outcome: None,
) -> Ran:
    """Run what `take` gives until it gives nothing; `about` is said of a cell when it begins."""
    ran, number = Ran(), itertools.count(1)

    def begin(left: float | None) -> Cell | None:
        if (cell := take(left)) is not None and total > 1:
            words = [cell.task, cell.mechanism, *filter(None, [cell.pattern]), f"seed {cell.seed}"]
            place = f"[{next(number)}/{total}] {' · '.join(words)}"
            say(f"{place}{about(cell)}", error=True)
        return cell

    for cell, outcome in lanes.run(begin):
        ended(cell, outcome)
        if outcome.card is not None:
            ran.cards.append(outcome.card)
            if outcome.card.get("preset") and outcome.card["mechanism"] != cell.mechanism:
                form = outcome.card["mechanism"]
                say(f"{cell.mechanism} ran as {form}, which {cell.protocol} has for it on {cell.task}.", error=True)
            continue
        tables.console(error=True).show_cursor()  # a progress bar that was killed has hidden it
        if outcome.unfinished:
            ran.unfinished.append(cell)
        else:
            say(outcome.sentence, error=True)
            ran.codes.append(outcome.code)
    return ran


def say_what_is_left(ran: Ran, waiting: int) -> None:
    """Where a budget ended: what was stopped, what was not begun, and how to go on."""
    if not (ran.unfinished or waiting):
        return
    stopped = ", ".join(f"{cell.task} {cell.mechanism} seed {cell.seed}" for cell in ran.unfinished)
    saved = f" Stopped, with the state saved: {stopped}." if stopped else ""
    say(f"The budget is spent.{saved} Not begun: {waiting}. The same command goes on.")

"""Run cells one after another or several at once and print a line for each: shared by `run` and `plan --run`."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan.cli import tables
from longspan.cli.app import say
from longspan.cli.matrix_clock import MatrixClock
from longspan.cli.spool import Spool
from longspan.core.cell import Cell, distinct_names
from longspan.launchers.base import Launcher, Outcome
from longspan.launchers.matrix import Journal

KEYS = ("task", "mechanism", "pattern", "protocol", "tier", "seed", "overrides")
KEPT = (*KEYS, "status", "score", "sha256")


@dataclass
class Ran:
    """What is shown of the cards of finished cells, the exit codes of failed ones, and those that ran out of time."""

    shown: Spool = field(default_factory=Spool)
    codes: list[int] = field(default_factory=list)
    unfinished: list[Cell] = field(default_factory=list)
    failed: list[tuple[Cell, str]] = field(default_factory=list)

    @property
    def cards(self) -> list[dict[str, Any]]:
        return list(self.shown)

    def to_json(self, waiting: Sequence[Cell] = ()) -> list[dict[str, Any]]:
        """An entry for each cell: done with its score and its card, failed with a reason, stopped or not begun."""
        done = [
            {"state": "done", **{name: card[name] for name in KEYS}, "score": card["score"], "card": card["sha256"]}
            for card in self.cards
        ]
        others = [("failed", cell, reason) for cell, reason in self.failed]
        others += [("stopped", cell, "") for cell in self.unfinished] + [("not begun", cell, "") for cell in waiting]
        for state, cell, reason in others:
            entry = {"state": state, **{name: getattr(cell, name) for name in KEYS}}
            done.append(entry | ({"reason": reason} if reason else {}))
        return done


def run_cells(
    launcher: Launcher,
    take: Callable[[float | None], Cell | None],
    cells: Sequence[Cell],
    journal: Journal,
    *,
    about: Callable[[Cell], str] = lambda cell: "",
    ended: Callable[[Cell, Outcome], None] = lambda cell, outcome: None,
) -> Ran:
    """Run the cells that `take` returns until it returns None; `about` is printed with a cell when it begins."""
    ran, number, clock = Ran(), itertools.count(1), MatrixClock(cells)
    places: dict[int, str] = {}  # of the running cells
    name = distinct_names(cells)

    def begin(left: float | None) -> Cell | None:
        if (cell := take(left)) is not None:
            places[id(cell)] = f"[{next(number)}/{len(cells)}] {name(cell)}"
            bar = tables.console(error=True).is_terminal and not launcher.several  # which shows what is being run
            if len(cells) > 1 and (about(cell) or not bar):
                say(f"{places[id(cell)]}{about(cell)}", error=True)
        return cell

    for cell, outcome in launcher.run(begin):
        ended(cell, outcome)
        place = places.pop(id(cell))
        state = "done" if outcome.card is not None else "stopped" if outcome.unfinished else "failed"
        seconds = None if outcome.card is None else outcome.card["timing"]["wall_seconds"]
        journal.note(cell, state, reason="" if state == "done" else outcome.sentence, seconds=seconds)
        if len(cells) > 1:
            say(f"{place}: {clock.ended(cell, outcome)}", error=True)
        if outcome.card is not None:
            ran.shown.append(_shown(outcome.card))
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
            ran.failed.append((cell, outcome.sentence))
    return ran


def _shown(card: dict[str, Any]) -> dict[str, Any]:
    """The fields of a card that the final table needs; thousands of whole cards would fill the memory."""
    short = {"dataset": ("name", "variant"), "parameters": ("total",), "timing": ("steps_per_second", "wall_seconds")}
    parts = {part: {name: card[part][name] for name in names} for part, names in short.items()}
    parts["timing"]["shared"] = card["timing"].get("shared", False)
    return {name: card[name] for name in KEPT} | parts


def say_what_is_left(ran: Ran, waiting: int, *, error: bool = False) -> None:
    """If the budget ran out, say what was stopped, what was not begun, and how to resume."""
    if not (ran.unfinished or waiting):
        return
    stopped = ", ".join(map(distinct_names(ran.unfinished), ran.unfinished))
    saved = f" Stopped, with the state saved: {stopped}." if stopped else ""
    say(f"The budget is spent.{saved} Not begun: {waiting}. The same command goes on.", error=error)

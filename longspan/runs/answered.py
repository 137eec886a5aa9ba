"""Cells that were run before: a card answers if its code, settings, data and files are those of the requested run."""

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from longspan.datasets.base import Splits
from longspan.results import card as cards
from longspan.results.age import is_future
from longspan.results.code_identity import same_code
from longspan.results.files import ALL_WEIGHTS, WEIGHTS, faults
from longspan.results.index import FILTERS
from longspan.results.run_settings import decisive
from longspan.results.store import Store
from longspan.runs.cell import RunPlan


def answer(
    store: Store, plan: RunPlan, splits: Splits, device: str, precision: str, *, weights: bool
) -> cards.Card | None:
    """The newest card that answers the cell, superseded or not: reverting to older code finds the card of that code.

    A card with a file that is missing or damaged is skipped with a line on stderr.
    """
    for path, card in _newest_first(store, plan):
        if not _matches(card, plan, splits, device, precision) or (weights and _was_run_without_weights(card)):
            continue
        if (fault := next(_faults(path, card, weights), None)) is None:
            return card
        print(f"{plan.title} is run again: {fault.rstrip('.')}.", file=sys.stderr, flush=True)
    return None


def _newest_first(store: Store, plan: RunPlan) -> list[tuple[Path, cards.Card]]:
    """The run cards of this cell in a store; one dated in the future, by a wrong clock, comes last."""
    wanted = {name: value for name, value in plan.identity.items() if name in FILTERS}

    def age(entry: tuple[Path, cards.Card]) -> tuple[bool, datetime, Path]:
        path, card = entry
        return not is_future(card), datetime.fromisoformat(card["created"]), path

    return sorted(store.entries(kind="run", **wanted), key=age, reverse=True)


def _matches(card: cards.Card, plan: RunPlan, splits: Splits, device: str, precision: str) -> bool:
    identity = plan.identity
    resolved = identity.pop("settings")
    settings = {"device": device, "precision": precision, "task_sha256": plan.task_source}
    data = {"name": plan.task.dataset, "sha256": splits.sha256, "variant": splits.variant}
    return (
        card["status"] == "ok"
        and all(card.get(name) == value for name, value in identity.items())
        and decisive(card) == decisive({"settings": resolved})
        and all(card["settings"].get(name) == value for name, value in settings.items())
        and all(card["dataset"].get(name) == value for name, value in data.items())
        and same_code(card["settings"], plan.code)
    )


def _was_run_without_weights(card: cards.Card) -> bool:
    """Whether weights were left out on request; cards that name no files at all are of runs made elsewhere."""
    return bool(card["files"]) and WEIGHTS not in card["files"]


def _faults(path: Path, card: cards.Card, weights: bool) -> Iterator[str]:
    """What is wrong with the files of a card; its weights count only where they are wanted."""
    wanted = {
        field: {key: value for key, value in card.get(field, {}).items() if weights or key not in ALL_WEIGHTS}
        for field in ("files", "files_sha256")
    }
    return faults(path, card | wanted)

"""Which mechanisms differ at all? Each against softmax on the very same test examples.

Both answered the same examples, so the luck of the test set is largely shared: examples are resampled with replacement,
the same for both, and seeds for each, and the difference of the means is taken each time. Windows of a series overlap
and are drawn in blocks of neighbours. Two mechanisms differ where the 95 % interval excludes 0. With one seed the
interval does not cover the luck of training.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.expected_time import BASELINE
from longspan.analysis.finding import Column, Finding
from longspan.analysis.paired import block_note, block_of, paired_interval, predictions_file
from longspan.core.errors import CorruptFile, DataMissing
from longspan.core.printable import shown
from longspan.results import predictions
from longspan.results.card import Card

COLUMNS = (
    Column("Task"),
    Column("Mechanism"),
    Column("From", context=True),
    Column("Pattern", context=True),
    Column("Seeds", "text", "of the mechanism and of softmax"),
    Column("Examples", "count"),
    Column("Score", "text", "mean over seeds"),
    Column("Softmax", "text", "mean over seeds"),
    Column("Difference", "text", "in points where the score is a rate"),
    Column("95 % interval", "text", "paired bootstrap over test examples and seeds"),
    Column("Differs", "text", "whether the interval leaves out 0"),
)


def answer(evidence: Evidence) -> Finding:
    rows, notes, lone = [], [], False
    for group in _groups(evidence):
        scores, faults = _scores(evidence, group)
        notes += faults
        softmax = scores.pop(BASELINE, None)
        if softmax is None:
            continue
        for mechanism, own in sorted(scores.items()):
            if own.shape[1] != softmax.shape[1]:
                notes.append(f"{shown(mechanism)} and softmax have other test examples on {shown(group[0]['task'])}.")
                continue
            lone |= min(len(own), len(softmax)) == 1
            card = next(card for card in group if card["mechanism"] == mechanism)
            block = block_of(card)
            rows.append(_row(evidence, card, own, softmax, block))
            notes += block_note(card, own.shape[1], block)
    if not rows:
        raise DataMissing(
            "No mechanism has predictions beside those of softmax on the same test examples; run both on one task, as "
            "in longspan run listops -a softmax linear."
        )
    if lone:
        notes.append("With one seed an interval knows the sampling of the test set, not the luck of training.")
    if len(rows) > 1:
        notes.append("Of twenty mechanisms that are all like softmax, one differs by chance.")
    return Finding(
        "differences",
        "Which mechanisms differ",
        "The difference to softmax on the same test examples, with a paired bootstrap interval.",
        COLUMNS,
        tuple(rows),
        tuple(dict.fromkeys(notes)),
    )


def _groups(evidence: Evidence) -> Iterator[list[Card]]:
    """Finished runs that are compared: of one task, protocol, tier, pattern and data, none with overrides."""
    groups: dict[tuple, list[Card]] = defaultdict(list)
    for card in evidence.runs:
        if card["status"] == "ok" and not card["overrides"] and "predictions" in card["files"]:
            names = ("task", "task_version", "protocol", "tier", "pattern")
            groups[(*(card[name] for name in names), card["dataset"]["sha256"], card["score"]["name"])].append(card)
    yield from (groups[key] for key in sorted(groups) if len({card["mechanism"] for card in groups[key]}) > 1)


def _scores(evidence: Evidence, cards: Sequence[Card]) -> tuple[dict[str, np.ndarray], list[str]]:
    """What each test example contributes to the score, [seeds, examples], by mechanism; and what could not be read."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    faults = []
    for card in cards:
        try:
            path = predictions_file(evidence, card)
            if path and (own := predictions.by_example(path, card["score"]["name"])) is not None:
                found[card["mechanism"]].append(own)
        except (CorruptFile, OSError) as error:
            faults.append(f"Left out: {shown(str(error))}")
    sound = {name: own for name, own in found.items() if len({len(one) for one in own}) == 1}
    return {name: np.stack(own) for name, own in sound.items()}, faults


def _row(evidence: Evidence, card: Card, own: np.ndarray, softmax: np.ndarray, block: int) -> tuple:
    percent = card["score"].get("unit", "percent") == "percent"
    scale, spell = (100.0, "{:.2f}".format) if percent else (1.0, "{:.4g}".format)
    signed = "{:+.2f}".format if percent else "{:+.3g}".format
    low, high = paired_interval(own, softmax, block=block)
    mine, theirs = float(own.mean()), float(softmax.mean())
    return (
        shown(card["task"]),
        name_of(card),
        evidence.rules(card),
        shown(card["pattern"]),
        f"{len(own)} / {len(softmax)}",
        own.shape[1],
        spell(scale * mine),
        spell(scale * theirs),
        signed(scale * (mine - theirs)),
        f"{signed(scale * low)} to {signed(scale * high)}",
        low > 0 or high < 0,
    )

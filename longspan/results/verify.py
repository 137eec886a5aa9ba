"""What can be checked of a card without training again: seal, files, numbers, labels, score and samples.

    for found in verify("out/cards/listops/....json"):
        print(found.check, found.status, found.detail)

Card and files are untrusted: whatever they hold, the answer is a finding, never an exception. Never imports torch.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longspan.core.errors import CorruptFile
from longspan.results import card as cards
from longspan.results import files, official, predictions, samples
from longspan.results.card import Card

SCORE_TOLERANCE = 1e-6  # below one example in any test set here, above the rounding of a float32 mean
RATIO_TOLERANCE = 1e-5  # a ratio of parameters is written with six digits


@dataclass(frozen=True)
class CardCheck:
    """One question asked of a card, and its answer."""

    check: Literal["card", "files", "numbers", "settings", "labels", "score", "samples"]
    status: Literal["kept", "broken", "not applicable"]
    detail: str


def verify(path: str | Path) -> list[CardCheck]:
    """Everything that can be checked without training again, one finding for each question."""
    path = Path(path)
    try:
        card = cards.read(path)
    except CorruptFile as error:
        return [CardCheck("card", "broken", str(error))]
    checks = [CardCheck("card", "kept", f"schema {card['schema']}, hash {card['sha256'][:12]}"), _files(path, card)]
    if card["kind"] == "run":
        checks += [_numbers(card), _settings(card), _labels(path, card), _score(path, card), *_samples(path, card)]
    return checks


def _files(path: Path, card: Card) -> CardCheck:
    if not card["files"]:
        return CardCheck("files", "not applicable", "the card names no files")
    if wrong := list(files.faults(path, card, bulky=False)):
        return CardCheck("files", "broken", " ".join(wrong))
    here = [what for what, name in card["files"].items() if (path.parent / name).exists()]
    hashed = sum(what in card.get("files_sha256", {}) for what in here)
    detail = f"{len(here)} present, {hashed} with the hash of the card"
    absent = sorted({what.removesuffix("_at") for what in card["files"] if what not in here})
    return CardCheck("files", "kept", f"{detail}; the {' and the '.join(absent)} are not" if absent else detail)


# --------------------------------------------------------------------------------------------------------- the numbers


def _numbers(card: Card) -> CardCheck:
    """Whether the numbers that a card states twice agree."""
    wrong = [*_score_faults(card), *_curve_faults(card), *_size_faults(card)]
    if wrong:
        return CardCheck("numbers", "broken", "; ".join(wrong[:4]))
    return CardCheck("numbers", "kept", "score, metrics, learning curve and sizes agree with one another")


def _score_faults(card: Card) -> Iterator[str]:
    score, metrics = card["score"], card["metrics"]
    if (card["status"] == "ok") != (score is not None):
        yield f"the status is {card['status']}, but there is {'a' if score else 'no'} score"
    if score is None:
        return
    measured = (metrics or {}).get(score["split"], {}).get(score["name"])
    if measured is None:
        yield f"{score['name']} on {score['split']} is the score, but not among the metrics"
    elif not _equal(measured["value"], score["value"]) or measured["count"] != score["count"]:
        yield (
            f"the score is {score['value']:.6g} of {score['count']}, "
            f"the metrics say {measured['value']:.6g} of {measured['count']}"
        )


def _curve_faults(card: Card) -> Iterator[str]:
    steps = [point["step"] for point in card["curve"]]
    if any(after <= before for before, after in itertools.pairwise(steps)):
        yield "the steps of the learning curve do not increase"
    planned = card["settings"]["recipe"].get("steps")
    if steps and isinstance(planned, int | float) and max(steps) > planned:
        yield f"the learning curve goes to step {max(steps)} of {planned}"
    selected = card["selected_step"]
    if selected is None or not steps:
        return
    if selected not in steps:
        yield f"step {selected} was selected, which is not on the learning curve"
        return
    if card["settings"]["recipe"].get("selection") == "mean_of_last":
        return  # averaged weights have no point of their own
    point = card["curve"][steps.index(selected)]
    for name, measured in ((card["metrics"] or {}).get("valid") or {}).items():
        drawn = point.get(f"valid_{name}")
        if drawn is not None and not _equal(drawn, measured["value"]):
            yield (
                f"the validation {name} of step {selected} is {drawn:.6g} on the learning curve "
                f"and {measured['value']:.6g} among the metrics"
            )


def _size_faults(card: Card) -> Iterator[str]:
    size = card["parameters"]
    if size["total"] is not None and size["baseline"] and size["ratio"] is not None:
        ratio = size["total"] / size["baseline"]
        if abs(ratio - size["ratio"]) > RATIO_TOLERANCE * max(1.0, ratio):
            yield f"{size['total']} parameters are {ratio:.4f} of {size['baseline']}, the card says {size['ratio']:.4f}"


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SCORE_TOLERANCE, abs_tol=SCORE_TOLERANCE)


def _settings(card: Card) -> CardCheck:
    """Whether the settings are those of the protocol, except for those that the card names as overrides."""
    if not official.can_judge(card):
        return CardCheck("settings", "not applicable", "they are not those of a protocol that is known here")
    if found := official.undeclared(card):
        return CardCheck("settings", "broken", f"not among the overrides: {found}")
    changed = f", except {', '.join(card['overrides'])}" if card["overrides"] else ""
    return CardCheck("settings", "kept", f"those of {card['protocol']} {card['tier']}{changed}")


# ------------------------------------------------------------------------------------------------- labels and the score


def _labels(path: Path, card: Card) -> CardCheck:
    """Whether the predictions were compared with the labels of the dataset, and the score with the chance they give."""
    recorded, name = card["dataset"].get("labels_sha256"), card["files"].get("predictions")
    if recorded is None or name is None or card["score"] is None:
        return CardCheck("labels", "not applicable", "the card has no digest of labels, or no predictions")
    try:
        labels, _ = predictions.labels_and_answers(path.parent / name)
    except CorruptFile as error:
        return CardCheck("labels", "broken", str(error))
    if predictions.labels_digest(labels) != recorded:
        return CardCheck("labels", "broken", f"the labels in {name} are not those of the dataset")
    fault = _chance_fault(card["score"], predictions.majority_rate(labels))
    if fault and "task_sha256" not in card["settings"]:  # a task that is a plug-in may define chance otherwise
        return CardCheck("labels", "broken", fault)
    return CardCheck("labels", "kept", f"{len(labels)} labels are those of the dataset")


def _chance_fault(score: Card, majority: float) -> str | None:
    """A chance level below what always giving the most frequent answer would score; None for other scores."""
    chance = score["chance"]
    if score["name"] != "accuracy" or (chance is not None and chance >= majority - SCORE_TOLERANCE):
        return None
    stated = "not stated" if chance is None else f"{chance:.6f}"
    return f"chance is {stated} on the card, but {majority:.6f} of the labels are the most frequent one"


def _score(path: Path, card: Card) -> CardCheck:
    """The score recomputed from the predictions."""
    score, name = card["score"], card["files"].get("predictions")
    if score is None:
        return CardCheck("score", "not applicable", "the run failed, there is no score")
    if name is None:
        return CardCheck("score", "not applicable", "no predictions were kept")
    try:
        labelled = card["dataset"].get("labels_sha256") is not None
        found = predictions.score_of(path.parent / name, score["name"], labelled=labelled)
    except CorruptFile as error:
        return CardCheck("score", "broken", str(error))
    if found is None:
        return CardCheck("score", "not applicable", f"{name} does not hold what {score['name']} is made of")
    value, count, rows = found
    stated = f"the card says {score['value']:.6f} of {score['count']}, the predictions give {value:.6f} of {count}"
    if count != score["count"] or not _equal(value, score["value"]):
        return CardCheck("score", "broken", stated)
    held = card["dataset"]["counts"].get(score["split"])
    if held is not None and rows != held:
        return CardCheck("score", "broken", f"{rows} rows were scored, the {score['split']} split has {held}")
    return CardCheck("score", "kept", f"{score['name']} {value:.6f} recomputed from {count} predictions")


def _samples(path: Path, card: Card) -> Iterator[CardCheck]:
    """Whether the samples kept for people to look at are valid for their kind; nothing for a card without any."""
    if (name := card["files"].get(files.SAMPLES)) is None:
        return
    if not (path.parent / name).exists():
        yield CardCheck("samples", "not applicable", "the samples are not beside the card")
        return
    try:
        found = samples.read(path.parent / name)
    except CorruptFile as error:
        yield CardCheck("samples", "broken", str(error))
        return
    known = "" if str(found["kind"]) in samples.MOST else ", of a kind that is not drawn"
    yield CardCheck("samples", "kept", f"samples of {found['kind']}{known}")

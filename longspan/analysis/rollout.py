"""Which pixels does an answer on Pathfinder come from? Attention rollout, figure 5 of Long Range Arena."""

from dataclasses import dataclass

from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing
from longspan.results.board import shown

COLUMNS = (
    Column("Mechanism"),
    Column("From"),
    Column("Seed", "count"),
    Column("Example", "count", "row of the validation set"),
    Column("Label", "count"),
    Column("Prediction", "count"),
    Column("Lit pixels", "percent", "share of pixels that are not black"),
    Column("Their share", "percent", "share of the rollout that falls on them"),
)
FIELDS = ("row", "label", "prediction", "lit_area", "lit_share")
QUERIES = {
    "cls": "query: class token",
    "first": "query: first token",
    "mean": "mean over all query rows (the model has no class token)",
}


@dataclass(frozen=True)
class Gallery:
    """Examples of one model with their maps."""

    title: str
    mechanism: str
    task: str
    rules: str
    seed: int
    query: str
    examples: tuple[dict, ...]


def answer(evidence: Evidence) -> Finding:
    cards = evidence.asked("rollout")
    if not cards:
        raise DataMissing(
            "No model was asked for its rollout; ask one with longspan probe rollout CARD, CARD being that of a run on "
            "pathfinder."
        )
    galleries, rows = [], []
    for card in cards:
        subject, found = card["subject"], card["results"]
        who = (name_of(subject), evidence.rules(card), subject["seed"])
        query = QUERIES.get(found["query"]) or shown(found["query"])
        examples = tuple(found["examples"])
        galleries.append(Gallery(who[0], subject["mechanism"], subject["task"], who[1], who[2], query, examples))
        rows += [(*who, *(one[name] for name in FIELDS)) for one in examples]
    return Finding(
        "rollout",
        "Attention rollout",
        "How much of the final representation comes from each pixel, heads averaged and layers multiplied.",
        COLUMNS,
        tuple(rows),
        (
            "Above each image: its label, and what the model said.",
            *dict.fromkeys(f"{gallery.title}, {gallery.rules}: {gallery.query}." for gallery in galleries),
        ),
        tuple(galleries),
    )

"""Which pixels does an answer on Pathfinder come from? Attention rollout, figure 5 of Long Range Arena."""

from dataclasses import dataclass

from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing
from longspan.core.printable import shown
from longspan.results.card import Card
from longspan.results.chance import is_above_chance

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
    cards = sorted(evidence.asked("rollout"), key=lambda card: card["results"]["query"] != "cls")  # as in the paper
    if not cards:
        raise DataMissing(
            "No model was asked for its rollout; ask one with longspan probe rollout CARD, CARD being that of a run on "
            "pathfinder_cls, or on pathfinder under lra-paper."
        )
    galleries, rows, guessing = [], [], []
    for card in cards:
        subject, found = card["subject"], card["results"]
        who = (name_of(subject), evidence.rules(card), subject["seed"])
        query = QUERIES.get(found["query"]) or shown(found["query"])
        examples = tuple(found["examples"])
        galleries.append(Gallery(who[0], subject["mechanism"], subject["task"], who[1], who[2], query, examples))
        rows += [(*who, *(one[name] for name in FIELDS)) for one in examples]
        guessing += [_guesses(evidence.run_of(card), galleries[-1])]
    return Finding(
        "rollout",
        "Attention rollout",
        "How much of the final representation comes from each pixel, heads averaged and layers multiplied.",
        COLUMNS,
        tuple(rows),
        (
            "Above each image: its label, and what the model said.",
            "The paper asks the class token; a model that pools by mean has none, and is not what its figure shows.",
            *dict.fromkeys(f"{gallery.title}, {gallery.rules}: {gallery.query}." for gallery in galleries),
            *dict.fromkeys(filter(None, guessing)),
        ),
        tuple(galleries),
    )


def _guesses(run: Card | None, gallery: Gallery) -> str:
    """A caveat on the map of a model that is no better than chance; empty where it is better, or not known."""
    score = run and run["score"]
    if not score or is_above_chance(score["value"], score["chance"], score["count"]) is not False:
        return ""
    who = f"{gallery.title}, {gallery.rules}, seed {gallery.seed}"
    return f"{who}: the model has not left chance, so that its maps explain nothing."

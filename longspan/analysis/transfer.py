"""Do models trained on Pathfinder answer Path-X? Long Range Arena tried and found chance; our models are tried here."""

from dataclasses import dataclass

from longspan.analysis.cards import Evidence, name_of
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing

COLUMNS = (
    Column("Mechanism"),
    Column("From"),
    Column("Seed", "count"),
    Column("Pathfinder", "percent", "test accuracy where it was trained"),
    Column("Path-X", "percent", "test accuracy without further training"),
    Column("Chance", "percent", "majority class of the Path-X examples"),
    Column("Above chance", "text", "by three standard errors"),
    Column("Examples", "count"),
    Column("Tokens", "count"),
)


@dataclass(frozen=True)
class Transfer:
    title: str
    mechanism: str
    rules: str
    seed: int
    before: float
    after: float
    chance: float
    error: float  # standard error of a guess
    above: bool


def answer(evidence: Evidence) -> Finding:
    cards = evidence.asked("transfer")
    if not cards:
        raise DataMissing(
            "No Pathfinder model was tried on Path-X; try one with longspan probe transfer CARD, CARD being that of a "
            "run on pathfinder."
        )
    made, rows = [], []
    for card in cards:
        subject, found = card["subject"], card["results"]
        one = Transfer(
            name_of(subject),
            subject["mechanism"],
            evidence.rules(card),
            subject["seed"],
            found["from_accuracy"],
            found["accuracy"],
            found["chance"],
            found["standard_error"],
            found["above_chance"],
        )
        made.append(one)
        start = (one.title, one.rules, one.seed, one.before, one.after, one.chance, one.above)
        rows.append((*start, found["count"], found["to_length"]))
    return Finding(
        "transfer",
        "From Pathfinder to Path-X",
        "Models trained on images of Pathfinder, evaluated as they are on the larger ones of Path-X.",
        COLUMNS,
        tuple(rows),
        ("The paper reports that none of its models generalises to 16K tokens this way, without numbers.",),
        tuple(made),
    )

"""Changes to honest cards that must be accepted: other numbers, longer texts, new fields, other seeds and dates."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from longspan.results import card as cards
from longspan.results.card import Card
from tests.fuzz.hostile import honest_cards

LETTERS = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789 _-.,:;/+*()[]=<>&'\"äöüßéñøłžαβγλπ∑∂漢字かなعربيעבריתहिन्दी🙂🧪²½№"
NUMBERED = ("timing", "memory", "energy", "settings", "environment")  # any positive number is valid here


def harmless_cards(count: int, seed: int) -> Iterator[Card]:
    """Sealed cards, each with one to five harmless changes."""
    draw = random.Random(seed)
    honest = honest_cards()
    for _ in range(count):
        card = copy.deepcopy(draw.choice(honest))
        del card["sha256"]
        for change in draw.choices(CHANGES, k=draw.randint(1, 5)):
            change(card, draw)
        yield cards.seal(card)


def text(draw: random.Random, longest: int = 300) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(1, longest))).strip() or "x"


def _number(draw: random.Random, old: Any) -> Any:
    """Another number of the same type and roughly the same size."""
    return max(1, int(old * draw.uniform(0.2, 5))) if isinstance(old, int) else old * draw.uniform(0.2, 5)


def _numbers(card: Card, draw: random.Random) -> None:
    for name in NUMBERED:
        holder = card.get(name)
        if isinstance(holder, dict):
            for key, value in holder.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.5:
                    holder[key] = _number(draw, value)


def _parameters(card: Card, draw: random.Random) -> None:
    """Another size, with the rule check that follows from it."""
    if card["kind"] == "run":
        total, baseline = draw.randint(1, 10**10), draw.randint(1, 10**10)
        ratio = total / baseline
        card["parameters"] |= {"total": total, "baseline": baseline, "ratio": ratio, "within_rule": ratio <= 1.1}
        card["parameters"]["parts"] = {"embedding": total // 2, text(draw, 30): total - total // 2}


def _score(card: Card, draw: random.Random) -> None:
    """Another result, the same wherever the card states it."""
    if not card.get("score"):
        return
    value, count, name = draw.random(), draw.randint(1, 10**6), card["score"]["name"]
    card["score"] |= {"value": value, "count": count, "chance": draw.choice((None, draw.random()))}
    card["dataset"]["counts"]["test"] = count
    for metric in card["metrics"]["test"].values():
        metric |= {"value": draw.uniform(0, 20), "count": count}
    card["metrics"]["test"][name]["value"] = value


def _curve(card: Card, draw: random.Random) -> None:
    """Another learning curve, consistent with the validation metrics at the selected step."""
    if card["kind"] != "run" or card["metrics"] is None:
        return
    steps = sorted(draw.sample(range(1, 10**5), draw.randint(1, 40)))
    metrics = card["metrics"]["valid"]
    values = ("train_loss", "learning_rate", "seconds", "train_perplexity", *(f"valid_{name}" for name in metrics))
    card["curve"] = [{"step": step} | {name: draw.random() for name in values} for step in steps]
    selected = draw.choice(card["curve"])
    card["selected_step"] = selected["step"]
    card["settings"]["recipe"]["steps"] = draw.randint(steps[-1], 10**6)
    for name, metric in metrics.items():
        metric["value"] = selected[f"valid_{name}"]


def _points(card: Card, draw: random.Random) -> None:
    for point in card.get("points", ()):
        point["length"] *= 2
        point[f"own_{draw.randint(0, 99)}"] = text(draw)
        if point.get("seconds"):
            factor = draw.uniform(0.1, 10)
            point["seconds"] |= {name: point["seconds"][name] * factor for name in ("median", "low", "high")}


def _texts(card: Card, draw: random.Random) -> None:
    card.get("subject", card)["title"] = text(draw)
    card["environment"]["cpu"] = text(draw)
    card["code"]["version"] = text(draw, 40)
    if card.get("reason"):
        card["reason"] = text(draw)


def _mechanism(card: Card, draw: random.Random) -> None:
    name = draw.choice(
        ("performer(features=128)", "my_attention.py:Mine", f"folder/{draw.randint(0, 99)}.py:Größer", "s4d")
    )
    card.get("subject", card)["mechanism"] = name


def _seed(card: Card, draw: random.Random) -> None:
    if card["kind"] != "measurement":
        card.get("subject", card)["seed"] = draw.randint(0, 2**31)


def _date(card: Card, draw: random.Random) -> None:
    day = f"20{draw.randint(20, 25)}-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}"
    card["created"] = f"{day}T{draw.randint(0, 23):02d}:{draw.randint(0, 59):02d}:00{draw.choice(('Z', '.125+00:00'))}"


def _new_field(card: Card, draw: random.Random) -> None:
    holder: Any = draw.choice((card, card["settings"], card["environment"], card["code"], card))
    value = draw.choice(
        (text(draw), draw.randint(-(10**9), 10**9), draw.random(), True, None, [1, 2], {"a": text(draw)})
    )
    holder[f"field_{draw.randint(0, 999)}"] = value


def _new_part(card: Card, draw: random.Random) -> None:
    if card["kind"] == "run":
        card["dataset"][f"field_{draw.randint(0, 9)}"] = text(draw)
        card["timing"]["shared"] = draw.random() < 0.5
        card["code"] |= {"commit": f"{draw.getrandbits(160):040x}", "dirty": draw.random() < 0.5}


def _override(card: Card, draw: random.Random) -> None:
    if card["kind"] == "run":
        card["overrides"]["recipe.learning_rate"] = card["settings"]["recipe"]["learning_rate"] = draw.random()


CHANGES: list[Callable[[Card, random.Random], None]] = [
    _numbers,
    _parameters,
    _score,
    _curve,
    _points,
    _texts,
    _mechanism,
    _seed,
]
CHANGES += [_date, _new_field, _new_field, _new_part, _override]

"""Which rules of the benchmark a run kept, as its card says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longspan.core.printable import shown
from longspan.results.card import Card


@dataclass(frozen=True)
class RuleVerdict:
    """Whether a run kept one rule of the benchmark, and what was found."""

    rule: str
    kept: bool
    finding: str


def verdicts_on(card: Card) -> list[RuleVerdict]:
    """The verdicts on a run; none for an older card. The schema does not cover this field, so it may hold anything."""
    given = card.get("rules")
    return [
        RuleVerdict(shown(rule), verdict["kept"], shown(str(verdict.get("finding") or "")))
        for rule, verdict in (given.items() if isinstance(given, dict) else ())
        if isinstance(verdict, dict) and isinstance(verdict.get("kept"), bool)
    ]


def fairness_table(cards: Sequence[Card]) -> dict[str, Any]:
    """Runs as rows, rules as columns; seeds with the same verdicts share a row. Cards without verdicts are counted."""
    names = ("task", "mechanism", "protocol", "tier")
    lines: dict[tuple, dict[str, Any]] = {}
    judged = [(card, verdicts) for card in cards if (verdicts := verdicts_on(card))]
    for card, verdicts in judged:
        key = (*(card[name] for name in names), tuple(verdicts))
        start = {name: card[name] for name in names}
        line = lines.setdefault(key, start | {"seeds": [], "verdicts": {one.rule: one for one in verdicts}})
        line["seeds"].append(card["seed"])
    rules = list(dict.fromkeys(one.rule for _, verdicts in judged for one in verdicts))
    return {"rules": rules, "rows": list(lines.values()), "silent": len(cards) - len(judged)}

"""What scores on Long Range Arena cost in the runs that gave them: speed and memory of training on Text.

Points for the figure of speed and accuracy where there are no separate measurements (`longspan measure lra`). The score
is the mean over the tasks that all mechanisms of the group have, so scores compare within a group alone.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from longspan import suites
from longspan.analysis.score_tables import is_ranked
from longspan.core.printable import shown
from longspan.results.alike import row_mechanism
from longspan.results.card import Card

ARENA = tuple(dict.fromkeys((*suites.get("lra").tasks, *suites.get("lra").tasks_under("lra-paper"))))
TEXT = ("text", *suites.get("lra").sources("lra-paper")["text"])
GB = 10**9


@dataclass(frozen=True)
class RunCost:
    """A mechanism with its mean score, and the speed and memory of its runs on Text."""

    card: Card
    score: float
    speed: float
    memory_gb: float | None


def cost_groups(runs: Iterable[Card]) -> Iterator[tuple[str, int, list[RunCost]]]:
    """A label, the tokens of a review, and two mechanisms or more that were timed on one machine."""
    groups: dict[tuple[str, ...], dict[str, dict[str, list[Card]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for card in runs:
        if is_ranked(card) and card["task"] in ARENA:
            key = (card["protocol"], card["tier"], card["pattern"], _machine(card))
            groups[key][card["task"]][row_mechanism(card)].append(card)
    for (protocol, tier, _, machine), by_task in sorted(groups.items(), key=lambda item: item[0]):
        for text in (task for task in TEXT if task in by_task):
            found = _costs(by_task, text)
            if len(found) > 1:
                shared = _shared(by_task, by_task[text])
                names = ", ".join(suites.heading(task) for task in shared)
                label = f"{protocol} · {tier}, mean of {names}, at the speed of {text} on {machine}"
                yield shown(label), _length(by_task[text]), found


def _machine(card: Card) -> str:
    on_gpu = str(card["settings"].get("device", "")).startswith("cuda")
    found = card["environment"].get("gpu" if on_gpu else "cpu") or "unknown machine"
    return f"{found}, {card['settings'].get('precision')}"


def _shared(by_task: Mapping[str, Mapping[str, list[Card]]], mechanisms: Iterable[str]) -> list[str]:
    """The tasks that all of these have."""
    wanted = set(mechanisms)
    return [task for task in ARENA if task in by_task and wanted <= set(by_task[task])]


def _costs(by_task: Mapping[str, Mapping[str, list[Card]]], text: str) -> list[RunCost]:
    shared, found = _shared(by_task, by_task[text]), []
    for mechanism, cards in sorted(by_task[text].items()):
        timed = [card["timing"] for card in cards if not card["timing"].get("shared")]
        speeds = [timing["steps_per_second"] for timing in timed if timing["steps_per_second"]]
        sizes = [size for card in cards if (size := card["memory"]["peak_bytes"])]
        if speeds:
            means = [statistics.fmean(card["score"]["value"] for card in by_task[task][mechanism]) for task in shared]
            memory = statistics.median(sizes) / GB if sizes else None
            found.append(RunCost(cards[0], statistics.fmean(means), statistics.median(speeds), memory))
    return found


def _length(by_mechanism: Mapping[str, Sequence[Card]]) -> int:
    card = next(iter(by_mechanism.values()))[0]
    length = card["settings"].get("data", {}).get("length")
    return length if isinstance(length, int) else 0

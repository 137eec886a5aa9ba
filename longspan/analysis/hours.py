"""What does a task cost to train? CAB's Table 15, in hours of an A100, beside the hours of our runs.

Our hours are those of single runs as they were made, each on its machine and in its tier; runs that shared their device
are left out. Hours of two machines, or of two tiers, do not compare.
"""

import statistics
from collections import defaultdict

from longspan import published, suites
from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Column, Finding
from longspan.core.printable import shown
from longspan.results.collect import pattern_order

PUBLISHED = "published"
COLUMNS = (
    Column("Task"),
    Column("From"),
    Column("On", context=True),
    Column("Hours", "number", "of one run, the median"),
    Column("Shortest", "number"),
    Column("Longest", "number"),
    Column("Runs", "count"),
    Column("Mechanisms", "count"),
)


def answer(evidence: Evidence) -> Finding:
    groups = defaultdict(list)
    for card in evidence.runs:
        timing = card["timing"]
        if card["status"] == "ok" and timing["wall_seconds"] and not timing.get("shared") and not card["overrides"]:
            gpu = str(card["settings"].get("device", "")).startswith("cuda")
            machine = card["environment"].get("gpu" if gpu else "cpu") or "unknown machine"
            groups[(card["task"], *pattern_order(card["pattern"]), evidence.rules(card), str(machine))].append(card)
    rows = []
    for (task, *_, rules, machine), cards in sorted(groups.items()):
        hours = [card["timing"]["wall_seconds"] / 3600 for card in cards]
        spread = (statistics.median(hours), min(hours), max(hours), len(hours))
        names = len({card["mechanism"] for card in cards})
        rows.append((shown(suites.heading(task)), rules, shown(machine), *spread, names))
    table = published.measured("cab-training-hours")
    (printed,) = table.rows
    rows += [(c.title, PUBLISHED, "A100-80G", printed.value(c.name), None, None, None, None) for c in table.columns]
    return Finding(
        "hours",
        "Training cost of tasks",
        "Hours of one training run.",
        COLUMNS,
        tuple(rows),
        (table.note, "Hours of two machines, tiers or protocols do not compare."),
    )

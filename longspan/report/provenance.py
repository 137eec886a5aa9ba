"""What was run on what: the data, the machine and the code behind the boards."""

from collections import Counter
from typing import Any

from longspan.core.printable import shown
from longspan.report.groups import BoardGroup, once
from longspan.results.device import device_of


def provenance(groups: list[BoardGroup]) -> list[dict[str, Any]]:
    """What was run on what: a line for every task, data set, machine and version of the code."""
    counted: Counter[tuple] = Counter()
    latest: dict[tuple, str] = {}
    for group in once(groups):
        for card in group.cards:
            code = card["code"]
            commit = (code["commit"] or "")[:10] + (" + changes" if code["dirty"] else "")
            data = card["dataset"]
            key = (
                card["task"],
                f"{card['protocol']} · {card['tier']}",
                data["variant"],
                data["sha256"][:10],
                f"{data['counts']['train']:,} / {data['counts']['valid']:,} / {data['counts']['test']:,}",
                f"{device_of(card)}, {shown(str(card['settings']['precision']))}",
                f"{shown(code['version'])} {shown(commit)}".strip(),
                shown(str(card["environment"].get("torch", ""))),
            )
            counted[key] += 1
            latest[key] = max(latest.get(key, ""), card["created"])
    names = ("task", "rules", "variant", "hash", "counts", "device", "code", "torch")
    return [
        {**dict(zip(names, key, strict=True)), "runs": runs, "latest": latest[key][:10]}
        for key, runs in counted.items()
    ]

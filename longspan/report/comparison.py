"""What the page that compares two mechanisms is drawn from: facts, pictures, scores and costs of all of them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from longspan.analysis.finding import Finding
from longspan.core.printable import shown
from longspan.report.attention_maps import maps_of
from longspan.report.board_figures import metric_name
from longspan.report.groups import BoardGroup, once
from longspan.report.look import Look, base_name
from longspan.report.mechanism_pages import MechanismPage, cost_curves
from longspan.report.run_figures import rows_of
from longspan.report.ticks import length_ticks, value_ticks
from longspan.results import board_table, render


def scores(groups: Sequence[BoardGroup], titles: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """By mechanism, its best row on every task under every set of rules, with its place among all."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for group in once(groups):
        for task in group.board.suite.tasks:
            rows, seen = rows_of(group, task), set()
            for place, row in enumerate(rows, 1):
                name, cell = base_name(row.mechanism), row.cells[task]
                key = (task, group.protocol, group.tier, group.data, group.board.pattern)
                if name in seen or any(one["key"] == key for one in found[name]):
                    continue
                seen.add(name)
                spread = f" ± {board_table.deviation_text(group.board, cell.std, task)}" if cell.std is not None else ""
                measure = group.board.suite.measure(task)
                found[name].append(
                    {
                        "key": key,
                        "task": task,
                        "title": shown(titles.get(task, task)),
                        "rules": shown(f"{group.protocol} · {group.tier}"),
                        "metric": metric_name(measure.metric),
                        "higher": measure.higher_is_better,
                        "value": cell.value,
                        "text": render.score_text(group.board, cell.value or 0.0, task) + spread,
                        "place": place,
                        "of": len(rows),
                        "data": group.data_in_words,
                    }
                )
    return dict(found)


def data(
    mechanisms: Mapping[str, MechanismPage],
    findings: Sequence[Finding],
    ran: Mapping[str, Sequence[Mapping[str, Any]]],
    look: Mapping[str, Look],
) -> dict[str, Any]:
    """Everything that the page may need, since it cannot fetch anything."""
    people = {
        name: {
            "title": shown(one.title),
            "page": one.page,
            "colour": look[name].colour,
            "facts": _facts(one),
            "maps": maps_of(name),
            "scores": [{key: value for key, value in score.items() if key != "key"} for score in ran.get(name, ())],
        }
        for name, one in mechanisms.items()
    }
    return {"mechanisms": people, "curves": [_curves(label, curves, look) for label, curves in cost_curves(findings)]}


def _facts(one: MechanismPage) -> dict[str, str]:
    entry = one.entry
    checked = f"{len(one.broken)} broken" if one.broken else "all kept" if one.conformance else "not checked"
    if not entry:
        return {"Family": one.family, "Promises": checked}
    patterns = ", ".join(pattern.replace("_", " ") for pattern in entry["patterns"])
    return {
        "Family": one.family,
        "Cost in length": f"O({entry['cost']})".replace("^2", "²").replace("^3", "³"),
        "Patterns": patterns,
        "Against softmax": "exact" if entry["exact"] else "another function",
        "Randomness": "stochastic" if entry["stochastic"] else "none",
        "Length": "bound to a maximum" if entry["length_bound"] else "any",
        "Positions": "brings its own" if entry["positions"] else "left to the backbone",
        "Promises": checked,
        "Paper": entry["paper"] or "none",
    }


def _curves(label: str, curves: Any, look: Mapping[str, Look]) -> dict[str, Any]:
    lines: dict[str, dict[str, Any]] = {}
    for line in curves.lines:
        lines.setdefault(
            base_name(line.mechanism),
            {"x": list(line.x), "y": [float(f"{y:.4g}") for y in line.y], "dash": look[shown(line.mechanism)].dash},
        )
    return {
        "label": label,
        "where": curves.where,
        "y": curves.label,
        "lines": lines,
        "xticks": list(length_ticks(x for line in curves.lines for x in line.x).items()),
        "yticks": list(value_ticks(y for line in curves.lines for y in line.y).items()),
    }

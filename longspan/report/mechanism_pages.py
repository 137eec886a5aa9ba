"""The pages of mechanisms: what the catalogue says about each, and its runs and measurements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longspan.analysis.finding import Finding
from longspan.analysis.growth import Curves
from longspan.core.printable import shown
from longspan.report import figure_json, run_figures
from longspan.report.efficiency_figures import length_line
from longspan.report.groups import BoardGroup, slug
from longspan.report.look import BASELINE, Look, base_name
from longspan.report.marks import Axis, Figure, FigureView
from longspan.report.ticks import length_ticks, value_ticks
from longspan.results.card import Card

MODES = {"forward": "Forward", "train": "Training", "decode": "Decoding"}


@dataclass
class MechanismPage:
    """One page: what the catalogue says about a mechanism, and what was measured."""

    name: str
    title: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    cards: list[Card] = field(default_factory=list)
    conformance: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def page(self) -> str:
        return f"mechanism/{slug(self.name)}.html"

    @property
    def family(self) -> str:
        if self.entry.get("fidelity"):
            return "Bug-compatible twins"
        return shown(self.entry.get("family") or "Not in the catalogue")

    @property
    def broken(self) -> list[str]:
        """The promises that it breaks somewhere."""
        promises = [promise for verdict in self.conformance for promise in verdict["promises"]]
        return list(dict.fromkeys(shown(one["promise"]) for one in promises if one["status"] == "broken"))


def mechanism_pages(
    cards: Sequence[Card], measured: Sequence[Card], catalogue: Mapping, conformance: Sequence[Mapping]
) -> dict[str, MechanismPage]:
    """By name, in the order of their titles."""
    found = {e["name"]: MechanismPage(e["name"], e["title"], entry=e) for e in catalogue.get("attentions", ())}
    for card in cards:
        name = base_name(card["mechanism"])
        found.setdefault(name, MechanismPage(name, shown(card["title"]))).cards.append(card)
    for card in measured:
        name = base_name(card["mechanism"])
        found.setdefault(name, MechanismPage(name, shown(card["title"])))
    for verdict in conformance:
        name = base_name(verdict["mechanism"])
        found.setdefault(name, MechanismPage(name, name)).conformance.append(verdict)
    return dict(sorted(found.items(), key=lambda item: item[1].title.casefold()))


def learning_figures(
    mechanism: MechanismPage, groups: Sequence[BoardGroup], look: Mapping[str, Look]
) -> list[dict[str, Any]]:
    """Its learning curves beside those of softmax, on every task it was run on, each once."""
    names = {card["mechanism"] for card in mechanism.cards} | {BASELINE}
    own_groups = [
        replace(group, cards=tuple(card for card in group.cards if card["mechanism"] in names)) for group in groups
    ]
    own = {(card["task"], card["protocol"], card["tier"]) for card in mechanism.cards}
    made: list[dict[str, Any]] = []
    for item in run_figures.curves(own_groups, look):
        known = any(item["figure"] == other["figure"] for other in made)
        if (item["task"], item["group"].protocol, item["group"].tier) in own and not known:
            made.append(item)
    return made


def cost_figure(name: str, findings: Sequence[Finding], look: Mapping[str, Look]) -> dict[str, Any] | None:
    """Time and memory over the length beside softmax, in every pattern and mode it was measured in."""
    chosen: dict[str, Curves] = {}
    for wanted in ({name, BASELINE}, {name}):  # alone only where no bench has both
        for label, curves in cost_curves(findings):
            if wanted <= {base_name(line.mechanism) for line in curves.lines}:
                chosen.setdefault(label, curves)
    several = len({curves.where for curves in chosen.values()}) > 1
    views = []
    for label, curves in chosen.items():
        lines = [line for line in curves.lines if base_name(line.mechanism) in (name, BASELINE)]
        marks = [
            length_line(line, look, [f"{x:,.0f} tokens: {y:,.4g}" for x, y in zip(line.x, line.y, strict=True)])
            for line in lines
        ]
        x = Axis("tokens", log=True, ticks=length_ticks(x for line in lines for x in line.x))
        y = Axis(curves.label, log=True, ticks=value_ticks(y for line in lines for y in line.y))
        views.append(FigureView(f"{label}, {curves.where}" if several else label, marks, x, y, compare=True))
    return figure_json.render(Figure(views)) if views else None


def cost_curves(findings: Sequence[Finding]) -> Iterator[tuple[str, Curves]]:
    """Every quantity for a pattern and mode, the fullest bench and the first variant first.

    Another bench follows only for a mechanism that an earlier one lacks, such as a plug-in measured on another machine.
    """
    seen: dict[str, list[set[str]]] = {}
    for finding in findings:
        if finding.question not in ("growth", "decode"):
            continue
        for curves in finding.figure or ():
            quantity = curves.label.partition(",")[0]
            pattern = curves.pattern.replace("_", " ")
            label = f"{MODES.get(curves.mode, curves.mode)} {quantity}, {pattern}"
            names = {base_name(line.mechanism) for line in curves.lines}
            if not any(names <= earlier for earlier in seen.setdefault(label, [])):
                seen[label].append(names)
                yield label, curves

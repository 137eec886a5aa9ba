"""What stands on each page of the site."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longspan import analysis, suites
from longspan import published as papers
from longspan.analysis import Evidence, lra_efficiency
from longspan.core.environment import installed
from longspan.report import board_figures, matrix, plotly_figure, printed
from longspan.report.fairness import fairness_table
from longspan.report.look import BASELINE, Look, looks
from longspan.report.question_figures import coloured_mechanisms, describe
from longspan.report.sample_panels import SamplePages
from longspan.report.templating import base_name, environment
from longspan.results import collect
from longspan.results.alike import alike
from longspan.results.board import RULES, USUAL_PATTERN, Board, board, device_of, shown, suites_of
from longspan.results.card import Card
from longspan.results.store import Problem
from longspan.results.variant import REAL, STANDIN, data_of, in_words

TIERS = ("full", "lite", "smoke")


@dataclass(frozen=True)
class BoardGroup:
    """Cards that may be compared: of one protocol, tier, pattern, kind of data, suite, and code of each mechanism."""

    protocol: str
    tier: str
    data: str
    board: Board
    cards: tuple[Card, ...]

    @property
    def anchor(self) -> str:
        slots = [] if self.board.pattern in (None, USUAL_PATTERN) else [self.board.pattern]
        other = [] if self.data == REAL else [self.data]
        return slug("-".join([self.board.suite.name, self.protocol, self.tier, *slots, *other]))

    @property
    def standin(self) -> bool:
        return self.data == STANDIN

    @property
    def data_in_words(self) -> str:
        """What a reader must know of the data; nothing where they are those of the task."""
        return in_words(self.data)


@dataclass
class MechanismPage:
    """One page: what the catalogue says about a mechanism, and what was measured of it."""

    name: str
    title: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    cards: list[Card] = field(default_factory=list)
    conformance: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def page(self) -> str:
        return f"mechanism/{slug(self.name)}.html"


def render(
    cards: list[Card],
    evidence: Evidence,
    catalogue: Mapping[str, Any],
    conformance: Sequence[Mapping[str, Any]],
    problems: Sequence[Problem],
    samples: SamplePages,
) -> dict[str, str]:
    """Every page of the site by its path."""
    findings = analysis.answers(evidence)
    measured = evidence.measurements
    mechanisms = _mechanisms(cards, measured, catalogue, conformance)
    groups = _groups(cards, conformance)
    others = [*coloured_mechanisms(findings), *(card["mechanism"] for card in measured)]
    look = looks((card["mechanism"] for card in cards), then=others)
    site = {
        "version": installed("longspan") or "",
        "cards": cards,
        "read": len(cards) + len(evidence.probes) + len(evidence.measurements),
        "groups": groups,
        "mechanisms": mechanisms,
        "page_of": {name: mechanism.page for name, mechanism in mechanisms.items()},
        "problems": [
            {"name": shown(at.path.name), "sentence": shown(at.sentence.removeprefix(f"{at.path.name}: "))}
            for at in (*problems, *samples.problems)
        ],
        "samples": bool(samples.sections),
        "set_aside": {card["sha256"]: shown(reason) for card, reason in alike(cards)[1]},
        "failures": [card for card in cards if card["status"] == "fail"],
        "task_titles": {task["name"]: task["title"] for task in catalogue.get("tasks", ())},
        "look": look,
        "rules": RULES,
    }
    env = environment(site)
    items = [{"finding": one, "figures": [*map(plotly_figure.render, describe(one, look))]} for one in findings]
    declared = {name: mechanism.entry["patterns"] for name, mechanism in mechanisms.items() if mechanism.entry}
    content: dict[str, dict[str, Any]] = {
        "index": {"provenance": _provenance(groups), "facts": _facts(cards)},
        "curves": {"figures": _curve_figures(groups, look)},
        "questions": {"findings": [item for item in items if item["finding"].question not in analysis.LAB]},
        "cost": {"figures": _cost_figures(groups, look)},
        "mechanisms": {"families": _families(mechanisms)},
        "efficiency": {
            "tables": lra_efficiency.tables(measured),
            "findings": [item for item in items if item["finding"].question in analysis.LAB],
        },
        "conformance": {"matrix": matrix.matrix(conformance, declared), "pattern_codes": matrix.CODES},
        "published": {
            "leaderboards": [printed.leaderboard(name) for name in reversed(papers.names())],
            "later": [printed.leaderboard(name) for name in papers.names("later")],
            "measured": [printed.measurements(name) for name in papers.names("measured")],
        },
        "problems": {},
    }
    if samples.sections:
        content["samples"] = {"sections": samples.sections, "clouds": samples.clouds}
    pages = {
        f"{name}.html": env.get_template(f"{name}.html").render(root="", **parts) for name, parts in content.items()
    }
    template = env.get_template("mechanism.html")
    for mechanism in mechanisms.values():
        pages[mechanism.page] = template.render(
            root="../",
            mechanism=mechanism,
            conformance=matrix.conformance_table(mechanism.conformance),
            fairness=fairness_table(mechanism.cards),
            figures=_own_figures(mechanism, groups, look),
        )
    return pages


def slug(text: str) -> str:
    """A file name that is safe everywhere and different for different texts."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")[:60]
    return plain if plain and plain == text else f"{plain or 'page'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _mechanisms(
    cards: list[Card], measured: Sequence[Card], catalogue: Mapping, conformance: Sequence[Mapping]
) -> dict[str, MechanismPage]:
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


def _families(mechanisms: Mapping[str, MechanismPage]) -> dict[str, list[MechanismPage]]:
    families: dict[str, list[MechanismPage]] = defaultdict(list)
    for mechanism in mechanisms.values():
        twin = mechanism.entry.get("fidelity")
        family = "Bug-compatible twins" if twin else mechanism.entry.get("family") or "Not in the catalogue"
        families[family].append(mechanism)
    last = ("Bug-compatible twins", "Not in the catalogue")
    return dict(sorted(families.items(), key=lambda item: (item[0] in last, item[0].casefold())))


def _groups(cards: list[Card], conformance: Sequence[Mapping[str, Any]]) -> list[BoardGroup]:
    keyed: dict[tuple[str, str, str, str], list[Card]] = defaultdict(list)
    for card in cards:
        keyed[card["protocol"], card["tier"], data_of(card), card["pattern"]].append(card)

    def order(key: tuple[str, str, str, str]) -> tuple:
        protocol, tier, data, pattern = key
        place = TIERS.index(tier) if tier in TIERS else len(TIERS)
        kind = data == STANDIN, data != REAL, data
        return *kind, place, protocol != "longspan", protocol, tier, collect.pattern_order(pattern)

    groups = []
    for key in sorted(keyed, key=order):
        protocol, tier, data, pattern = key
        official = (tier, data) == ("full", REAL)
        for suite in _suites_for(keyed[key], official, protocol, pattern):
            shown_here = {*suite.tasks, *suite.tasks_under(protocol)}
            own = tuple(card for card in keyed[key] if card["task"] in shown_here)
            table = collect.published_tables(suite).get(pattern) if official else None
            told = {"data": data, "published": table, "conformance": conformance}
            view = board(own, suite, protocol, tier, pattern, **told)
            groups.append(BoardGroup(protocol, tier, data, view, tuple(alike(own)[0])))
    return groups


def _suites_for(cards: Sequence[Card], official: bool, protocol: str, pattern: str) -> list[suites.Suite]:
    """Suites that show every task once. Full runs on real data stand beside published rows, however few they are.

    A board of several metrics comes besides those of its tasks, which say more of each, where two tasks can be shown.
    """
    tasks, chosen = {card["task"] for card in cards}, []
    several = [suite.patterns[pattern] for suite in suites.SUITES.values() if pattern in suite.patterns]
    complete = [{m.settings for m in suite.measures if tasks >= {*m.settings}} for suite in several]
    beside = [suite for suite, filled in zip(several, complete, strict=True) if len(filled) > 1]
    for suite in suites.SUITES.values():
        of_suite = {*suite.tasks, *suite.tasks_under(protocol)}
        if official and not suite.patterns and tasks & of_suite and collect.published_tables(suite):
            chosen.append(suite)
            tasks = tasks - of_suite
    return [*chosen, *beside, *(_suite_for(alike, protocol) for alike in suites_of(sorted(tasks), cards))]


def _suite_for(alike: suites.Suite, protocol: str) -> suites.Suite:
    """The smallest suite that has all the tasks and is at least half filled by them, else just their list."""
    fitting = [
        suite
        for suite in suites.SUITES.values()
        if set(alike.tasks) <= set(suite.tasks_under(protocol))
        and 2 * len(alike.tasks) >= len(suite.tasks)
        and suite.metric == alike.metric
        and not suite.patterns
        and not suite.slots
    ]
    return min(fitting, key=lambda suite: len(suite.tasks)) if fitting else alike


def _provenance(groups: list[BoardGroup]) -> list[dict[str, Any]]:
    """What was run on what: a line for every task, data set, machine and version of the code."""
    counted: Counter[tuple] = Counter()
    latest: dict[tuple, str] = {}
    for group in _once(groups):
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


def _once(groups: Sequence[BoardGroup]) -> list[BoardGroup]:
    """Without the boards of several metrics, whose cards have boards of their tasks too."""
    return [group for group in groups if not group.board.suite.measures]


def _curve_figures(groups: list[BoardGroup], look: Mapping[str, Look]) -> list[dict[str, Any]]:
    figures = []
    for group in _once(groups):
        for task in group.board.suite.tasks_under(group.protocol):
            of_task = [card for card in group.cards if card["task"] == task and not card["overrides"]]
            for pattern in sorted({card["pattern"] for card in of_task}):
                own = [card for card in of_task if card["pattern"] == pattern]
                if figure := board_figures.learning(own, look):
                    item = {"task": task, "group": group, "pattern": pattern}
                    figures.append(item | {"figure": plotly_figure.render(figure)})
    return figures


def _cost_figures(groups: list[BoardGroup], look: Mapping[str, Look]) -> list[dict[str, Any]]:
    return [
        {"task": task, "group": group, "figure": plotly_figure.render(figure)}
        for group in groups
        for task in (None, *(group.board.suite.tasks if not group.board.suite.measures else ()))
        if (figure := board_figures.cost(group.board, task, look))
    ]


def _own_figures(mechanism: MechanismPage, groups: list[BoardGroup], look: Mapping[str, Look]) -> list[dict[str, Any]]:
    """Its learning curves beside those of softmax, on every task it was run on."""
    names = {card["mechanism"] for card in mechanism.cards} | {BASELINE}
    own_groups = [
        replace(group, cards=tuple(card for card in group.cards if card["mechanism"] in names)) for group in groups
    ]
    own = {(card["task"], card["protocol"], card["tier"]) for card in mechanism.cards}
    return [
        item
        for item in _curve_figures(own_groups, look)
        if (item["task"], item["group"].protocol, item["group"].tier) in own
    ]


def _facts(cards: list[Card]) -> list[tuple[int, str, str]]:
    return [
        (len(cards), "run", "runs"),
        (len({base_name(card["mechanism"]) for card in cards}), "mechanism", "mechanisms"),
        (len({card["task"] for card in cards}), "task", "tasks"),
        (len({card["seed"] for card in cards}), "seed", "seeds"),
        (len({device_of(card) for card in cards}), "machine", "machines"),
    ]

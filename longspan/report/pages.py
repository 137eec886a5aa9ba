"""What each page of the site shows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from longspan import analysis, suites
from longspan import published as papers
from longspan.analysis import Evidence, lra_efficiency
from longspan.analysis.finding import Finding
from longspan.core.environment import installed
from longspan.core.printable import shown
from longspan.report import comparison, docs_pages, figure_json, landing, matrix, printed, run_figures
from longspan.report.attention_maps import maps_of
from longspan.report.fairness import fairness_table
from longspan.report.groups import BoardGroup, board_groups, slug
from longspan.report.look import BASELINE, Look, base_name, family_of, looks
from longspan.report.mechanism_pages import MechanismPage, cost_figure, learning_figures, mechanism_pages
from longspan.report.provenance import provenance
from longspan.report.question_figures import coloured_mechanisms, describe
from longspan.report.sample_panels import SamplePages
from longspan.report.task_pages import TaskPage, task_pages
from longspan.report.templating import environment
from longspan.results.alike import alike
from longspan.results.board_notes import RULES
from longspan.results.card import Card
from longspan.results.device import device_of
from longspan.results.store import Problem

__all__ = ["render", "slug"]
STRANGERS = ("Bug-compatible twins", "Not in the catalogue")


def render(
    cards: list[Card],
    evidence: Evidence,
    catalogue: Mapping[str, Any],
    conformance: Sequence[Mapping[str, Any]],
    problems: Sequence[Problem],
    samples: SamplePages,
    docs: Path | None = None,
) -> dict[str, str]:
    """Every page of the site by its path."""
    findings = analysis.answers(evidence)
    mechanisms = mechanism_pages(cards, evidence.measurements, catalogue, conformance)
    named = (card["mechanism"] for card in (*cards, *evidence.measurements))
    site = _Site(
        cards=cards,
        evidence=evidence,
        conformance=conformance,
        problems=problems,
        samples=samples,
        findings=findings,
        mechanisms=mechanisms,
        groups=board_groups(cards, conformance),
        tasks=task_pages(cards, catalogue, samples),
        books=docs_pages.linked(docs_pages.books(docs), mechanisms, lambda name: mechanisms[name].page) if docs else [],
        look=looks([*mechanisms, *named, *coloured_mechanisms(findings)]),
    )
    env = environment(site.shared())

    def filled(template: str, root: str, parts: Mapping[str, Any]) -> str:
        return env.get_template(f"{template}.html").render(root=root, **parts)

    pages = {f"{name}.html": filled(name, "", parts) for name, parts in site.main_pages().items()}
    for name, mechanism in mechanisms.items():
        pages[mechanism.page] = filled("mechanism", "../", site.mechanism_page(name))
    for task in site.tasks.values():
        pages[task.page] = filled("task", "../", site.task_page(task))
    shelves: dict[str, list[docs_pages.Book]] = {}
    for book in site.books:
        shelves.setdefault(book.section, []).append(book)
    for book in site.books:
        pages[book.page] = filled("doc", "../", {"book": book, "shelves": shelves})
    return pages


@dataclass(frozen=True)
class _Site:
    """What all pages are made from."""

    cards: list[Card]
    evidence: Evidence
    conformance: Sequence[Mapping[str, Any]]
    problems: Sequence[Problem]
    samples: SamplePages
    findings: list[Finding]
    mechanisms: Mapping[str, MechanismPage]
    groups: list[BoardGroup]
    tasks: Mapping[str, TaskPage]
    books: Sequence[docs_pages.Book]
    look: Mapping[str, Look]

    @cached_property
    def titles(self) -> dict[str, str]:
        return {name: task.title for name, task in self.tasks.items()}

    @cached_property
    def scores(self) -> dict[str, Any]:
        return comparison.scores(self.groups, self.titles)

    def shared(self) -> dict[str, Any]:
        """What every template may use, as `site`."""
        evidence = self.evidence
        return {
            "version": installed("longspan") or "",
            "cards": self.cards,
            "read": len(self.cards) + len(evidence.probes) + len(evidence.measurements),
            "groups": self.groups,
            "mechanisms": self.mechanisms,
            "page_of": {name: mechanism.page for name, mechanism in self.mechanisms.items()},
            "task_page": {name: task.page for name, task in self.tasks.items()},
            "problems": [
                {"name": shown(at.path.name), "sentence": shown(at.sentence.removeprefix(f"{at.path.name}: "))}
                for at in (*self.problems, *self.samples.problems)
            ],
            "samples": bool(self.samples.sections),
            "docs": bool(self.books),
            "set_aside": {card["sha256"]: shown(reason) for card, reason in alike(self.cards)[1]},
            "failures": [card for card in self.cards if card["status"] == "fail"],
            "task_titles": self.titles,
            "look": self.look,
            "rules": RULES,
        }

    def main_pages(self) -> dict[str, dict[str, Any]]:
        """What each page at the root shows, by the name of its template."""
        findings, groups, look, names = self.findings, self.groups, self.look, self.mechanisms
        # Findings with pictures come first.
        items = sorted((_answered(one, look) for one in findings), key=lambda item: not item["figures"])
        declared = {name: mechanism.entry["patterns"] for name, mechanism in names.items() if mechanism.entry}
        pages: dict[str, dict[str, Any]] = {
            "index": {
                "pictures": landing.pictures(groups, findings, look, self.titles),
                "facts": _facts(self.cards, self.evidence),
            },
            "board": {"provenance": provenance(groups)},
            "tasks": {"shelves": _shelves(self.tasks)},
            "questions": {"findings": [item for item in items if item["finding"].question not in analysis.LAB]},
            "mechanisms": {"families": _families(names), "maps": {name: maps_of(name) for name in names}},
            "compare": {"data": comparison.data(names, findings, self.scores, look)},
            "efficiency": {
                "tables": lra_efficiency.tables(self.evidence.measurements),
                "findings": [item for item in items if item["finding"].question in analysis.LAB],
            },
            "conformance": {"matrix": matrix.matrix(self.conformance, declared), "pattern_codes": matrix.CODES},
            "published": {
                "beside": [group for group in groups if group.board.paper],
                "leaderboards": [printed.leaderboard(name) for name in reversed(papers.names())],
                "later": [printed.leaderboard(name) for name in papers.names("later")],
                "measured": [printed.measurements(name) for name in papers.names("measured")],
            },
            "problems": {},
        }
        if self.samples.sections:
            pages["samples"] = {"sections": self.samples.sections, "clouds": self.samples.clouds}
        return pages

    def mechanism_page(self, name: str) -> dict[str, Any]:
        mechanism = self.mechanisms[name]
        return {
            "mechanism": mechanism,
            "look": self.look[name],
            "maps": maps_of(name),
            "conformance": matrix.conformance_table(mechanism.conformance),
            "fairness": fairness_table(mechanism.cards),
            "figures": learning_figures(mechanism, self.groups, self.look),
            "costs": cost_figure(name, self.findings, self.look),
            "scores": self.scores.get(name, []),
        }

    def task_page(self, task: TaskPage) -> dict[str, Any]:
        return {"task": task, "clouds": self.samples.clouds, **_task_parts(task, self.groups, self.look)}


def _answered(finding: Finding, look: Mapping) -> dict[str, Any]:
    return {"finding": finding, "figures": [figure_json.render(one, family_of) for one in describe(finding, look)]}


def _task_parts(task: TaskPage, groups: Sequence[BoardGroup], look: Mapping) -> dict[str, Any]:
    """Who solves a task under which rules, the learning curves and the costs."""
    standings = []
    for group in groups:
        ranked = not group.board.suite.measures and task.name in group.board.suite.tasks_under(group.protocol)
        if ranked and (figure := run_figures.scores(group, task.name, look)):
            cost = run_figures.costs(group, task.name, look)
            standings.append({"group": group, "figure": figure, "cost": cost})
    own = [item for item in run_figures.curves(groups, look) if item["task"] == task.name]
    return {"standings": _distinct(standings), "curves": _distinct(own)}


def _distinct(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each figure once: a suite and a part of it have the same scores of a task."""
    figures = [item["figure"] for item in items]
    return [item for place, item in enumerate(items) if item["figure"] not in figures[:place]]


def _families(mechanisms: Mapping[str, MechanismPage]) -> dict[str, list[MechanismPage]]:
    """By family; families of one or two are shown together, so that the page has few gaps."""
    families: dict[str, list[MechanismPage]] = defaultdict(list)
    for mechanism in mechanisms.values():
        families[mechanism.family].append(mechanism)
    kept = {name: members for name, members in families.items() if len(members) > 2 or name in STRANGERS}
    few = [one for name, members in families.items() if name not in kept for one in members]
    few.sort(key=lambda one: (one.family, one.title.casefold()))
    sections = kept | ({"One or two of a kind": few} if few else {})
    last = ("One or two of a kind", *STRANGERS)
    return dict(sorted(sections.items(), key=lambda item: (item[0] in last and 1 + last.index(item[0]), item[0])))


def _shelves(tasks: Mapping[str, TaskPage]) -> dict[str, list[TaskPage]]:
    """Tasks by the first suite that has them; those that were run come first on their shelf."""
    shelves: dict[str, list[TaskPage]] = defaultdict(list)
    for task in tasks.values():
        own = (suite.title for suite in suites.SUITES.values() if task.name in suite.tasks and suite.name != "starter")
        shelves[next(own, "Other tasks")].append(task)
    for shelf in shelves.values():
        shelf.sort(key=lambda task: (not task.cards, task.title.casefold()))
    return dict(sorted(shelves.items(), key=lambda item: (item[0] == "Other tasks", not any(t.cards for t in item[1]))))


def _facts(cards: list[Card], evidence: Evidence) -> list[tuple[int, str, str]]:
    everyone = {base_name(card["mechanism"]) for card in (*cards, *evidence.measurements)} | {BASELINE}
    return [
        (len(cards), "run", "runs"),
        (len(evidence.measurements), "measurement", "measurements"),
        (len(everyone), "mechanism", "mechanisms"),
        (len({card["task"] for card in cards}), "task", "tasks"),
        (len({device_of(card) for card in cards}), "machine", "machines"),
    ]

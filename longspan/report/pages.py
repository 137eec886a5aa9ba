"""What each page of the site shows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
from longspan.report.look import BASELINE, base_name, family_of, looks
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
    measured = evidence.measurements
    mechanisms = mechanism_pages(cards, measured, catalogue, conformance)
    groups = board_groups(cards, conformance)
    tasks = task_pages(cards, catalogue, samples)
    coloured = [*mechanisms, *(card["mechanism"] for card in (*cards, *measured)), *coloured_mechanisms(findings)]
    look = looks(coloured)
    titles = {name: task.title for name, task in tasks.items()}
    books = docs_pages.linked(docs_pages.books(docs), mechanisms, lambda name: mechanisms[name].page) if docs else []
    site = {
        "version": installed("longspan") or "",
        "cards": cards,
        "read": len(cards) + len(evidence.probes) + len(evidence.measurements),
        "groups": groups,
        "mechanisms": mechanisms,
        "page_of": {name: mechanism.page for name, mechanism in mechanisms.items()},
        "task_page": {name: task.page for name, task in tasks.items()},
        "problems": [
            {"name": shown(at.path.name), "sentence": shown(at.sentence.removeprefix(f"{at.path.name}: "))}
            for at in (*problems, *samples.problems)
        ],
        "samples": bool(samples.sections),
        "docs": bool(books),
        "set_aside": {card["sha256"]: shown(reason) for card, reason in alike(cards)[1]},
        "failures": [card for card in cards if card["status"] == "fail"],
        "task_titles": titles,
        "look": look,
        "rules": RULES,
    }
    env = environment(site)
    items = sorted((_answered(one, look) for one in findings), key=lambda item: not item["figures"])  # pictures first
    declared = {name: mechanism.entry["patterns"] for name, mechanism in mechanisms.items() if mechanism.entry}
    ran = comparison.scores(groups, titles)
    content: dict[str, dict[str, Any]] = {
        "index": {"pictures": landing.pictures(groups, findings, look, titles), "facts": _facts(cards, evidence)},
        "board": {"provenance": provenance(groups)},
        "tasks": {"shelves": _shelves(tasks)},
        "questions": {"findings": [item for item in items if item["finding"].question not in analysis.LAB]},
        "mechanisms": {"families": _families(mechanisms), "maps": {name: maps_of(name) for name in mechanisms}},
        "compare": {"data": comparison.data(mechanisms, findings, ran, look)},
        "efficiency": {
            "tables": lra_efficiency.tables(measured),
            "findings": [item for item in items if item["finding"].question in analysis.LAB],
        },
        "conformance": {"matrix": matrix.matrix(conformance, declared), "pattern_codes": matrix.CODES},
        "published": {
            "beside": [group for group in groups if group.board.paper],
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
    for name, mechanism in mechanisms.items():
        pages[mechanism.page] = env.get_template("mechanism.html").render(
            root="../",
            mechanism=mechanism,
            look=look[name],
            maps=maps_of(name),
            conformance=matrix.conformance_table(mechanism.conformance),
            fairness=fairness_table(mechanism.cards),
            figures=learning_figures(mechanism, groups, look),
            costs=cost_figure(name, findings, look),
            scores=ran.get(name, []),
        )
    for task in tasks.values():
        parts = _task_parts(task, groups, look)
        pages[task.page] = env.get_template("task.html").render(root="../", task=task, clouds=samples.clouds, **parts)
    shelves: dict[str, list[docs_pages.Book]] = {}
    for book in books:
        shelves.setdefault(book.section, []).append(book)
    for book in books:
        pages[book.page] = env.get_template("doc.html").render(root="../", book=book, shelves=shelves)
    return pages


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

"""Untrusted cards: hostile ones harm no reader, and harmless ones are never refused."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longspan import analysis
from longspan.cli import app
from longspan.results import collect, render
from longspan.results.store import Store, newest
from tests.fuzz.figures import Figures, inputs
from tests.fuzz.harmless import harmless_cards
from tests.fuzz.hostile import MARK, hostile_cards
from tests.fuzz.readers import FORMATS, commands, drawings, faults_in_files, faults_of, in_terminal
from tests.report.test_browser import browser  # noqa: F401  a fixture
from tests.results.factory import make_card

BATCH = 50
HONEST = {"listops": 0.4321, "pathfinder": 0.8765}
PAGES = ("index", "board", "questions", "tasks", "compare", "mechanisms", "efficiency", "conformance", "problems")
STRANGERS = 4  # pages per report for mechanisms that are in no catalogue


def fill(store: Path, count: int, seed: int) -> list[Path]:
    """Hostile cards, files that are not cards, and two honest cards among them."""
    store.mkdir(parents=True)
    for card in hostile_cards(count, seed):
        (store / card.name).write_bytes(card.content)
    (store / "passwords.json").symlink_to("/etc/passwd")
    (store / "nothing.json").symlink_to(store / "nowhere")
    (store / "loop.json").symlink_to(store / "loop.json")
    (store / "folder.json").mkdir()
    os.mkfifo(store / "pipe.json")
    for task, accuracy in HONEST.items():
        Store(store).add(make_card("honest", task, accuracy=accuracy))
    return sorted(store.glob("hostile*.json")) + sorted(store.glob("p*.json"))


def batches(count: int, most: int = BATCH) -> Iterator[tuple[int, int]]:
    """Seeds and sizes."""
    for seed, start in enumerate(range(0, count, most)):
        yield seed, min(most, count - start)


@inputs(quick=30, full=2_000)
def test_nobody_who_reads_hostile_cards_is_harmed(tmp_path, monkeypatch, figures, count):
    monkeypatch.chdir(tmp_path)
    names = ("cards", "commands", "unexpected", "traceback", "exit code", "control character", "honest cards unseen")
    for name in names:
        figures.add(name, 0)
    found = []
    for seed, size in batches(count):
        store, out = tmp_path / "cards", tmp_path / "out"
        paths = fill(store, size, seed)
        figures.add("cards", size)
        for words in commands(store, paths, out):
            for terminal in (False, True) if in_terminal(words) else (False,):
                figures.add("commands")
                found += [(seed, fault) for fault in faults_of(words, terminal=terminal)]
        found += [(seed, fault) for fault in faults_in_files(out)]
        if seed % 8 == 1:  # slow, hence not among the quick ones
            figures.add("commands")
            found += [(seed, fault) for fault in faults_of(drawings(store, out))]
        figures.add("honest cards unseen", len(set(HONEST) - honest_tasks(store)))
        for folder in (store, out):
            shutil.rmtree(folder)
    for _, fault in found:
        figures.add(fault.kind)
    assert not found, "\n".join(f"seed {seed}: {fault}" for seed, fault in found[:40])
    assert figures["honest cards unseen"] == 0


def honest_tasks(store: Path) -> set[str]:
    """Tasks for which a board still shows the honest score: in a row, or below the board with the reason."""
    found = set()
    for view in collect.boards(collect.cards_in([store]).cards, "lra-generated"):
        rows = [
            (task, cell.value) for row in view.rows if row.mechanism == "honest" for task, cell in row.cells.items()
        ]
        off = [(card.task, card.value) for card in view.off if card.mechanism == "honest"]
        found |= {task for task, value in (*rows, *off) if value == HONEST.get(task)}
    return found


@pytest.mark.browser
@inputs(quick=30, full=2_000)
def test_no_script_of_a_hostile_card_runs_in_the_report(browser, tmp_path, monkeypatch, figures, count):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    for name in ("cards", "pages", "scripts run", "messages", "requests"):
        figures.add(name, 0)
    wrong: list[str] = []
    for seed, size in batches(count, 2 * BATCH):
        store, out = tmp_path / "cards", tmp_path / "out"
        fill(store, size, seed)
        figures.add("cards", size)
        faults = list(faults_of(["report", "-o", str(out), "--cards", str(store), "--out", str(tmp_path / "own")]))
        assert not faults
        for name in pages_of(out, few=count <= BATCH):
            figures.add("pages")
            wrong += [f"{seed} {name}: {what}" for what in visit(browser, out / name, figures)]
        shutil.rmtree(store)
    assert not wrong


def pages_of(site: Path, *, few: bool) -> list[str]:
    known = {page.stem for page in (Path(__file__).parents[2] / "docs" / "mechanisms").glob("*.md")}
    strangers = sorted(path.name for path in (site / "mechanism").glob("*.html") if path.stem not in known)
    own = [f"mechanism/{name}" for name in strangers[: 1 if few else STRANGERS]]
    return [*(f"{name}.html" for name in (PAGES[:3] if few else PAGES)), *own]


HANDLERS = "[...document.querySelectorAll('*')].filter((e) => e.getAttributeNames().some((n) => n.startsWith('on')))"
LINKS = (
    "[...document.querySelectorAll('[href],[src]')].filter((e) => /^\\s*(javascript|vbscript):/i.test(e.href || e.src))"
)
DRAWN = "[...document.querySelectorAll('.canvas')].every((c) => c.querySelector('svg'))"


def visit(browser, path: Path, figures: Figures) -> Iterator[str]:  # noqa: F811
    """Open a page and yield what it ran, logged or fetched that it should not have."""
    said: list[str] = []
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{path}")
    page.wait_for_load_state("load")
    page.wait_for_function(DRAWN)
    ran = sum(frame.evaluate(f"Number('{MARK}' in window)") for frame in page.frames)
    ran += page.evaluate(f"{HANDLERS}.length + {LINKS}.length")
    fetched = [url for url in asked if not url.startswith((f"file://{path.parents[1]}", "data:"))]
    context.close()
    for name, count in (("scripts run", ran), ("messages", len(said)), ("requests", len(fetched))):
        figures.add(name, count)
    yield from [f"{ran} scripts or handlers"] * bool(ran)
    yield from said
    yield from fetched


@inputs(quick=100, full=1_000)
def test_harmless_changes_are_never_refused(tmp_path, figures, count):
    for name in ("harmless changes", "refused", "broken", "not on a board"):
        figures.add(name, 0)
    wrong = []
    for seed, size in batches(count):
        folder = tmp_path / str(seed)
        store = Store(folder)
        made = list(harmless_cards(size, seed))
        paths = [store.add(card) for card in made]
        figures.add("harmless changes", len(made))
        found = collect.cards_in([folder])
        refused = [problem.sentence for problem in found.problems]
        verified = CliRunner().invoke(app, ["verify", *map(str, paths)])
        broken = [verified.stderr] if verified.exit_code else []
        runs = {card["sha256"] for card in newest(card for card in made if card["kind"] == "run")}
        missing = runs - {card["sha256"] for card in found.cards}
        for name, some in (("refused", refused), ("broken", broken), ("not on a board", missing)):
            figures.add(name, len(some))
            wrong += some
        for task in {card["task"] for card in found.cards}:
            views = list(collect.boards(found.cards, task))
            assert views
            for form in FORMATS:
                assert render.render_all(views, form)
        assert analysis.answers(analysis.gather([folder]))
    assert not wrong

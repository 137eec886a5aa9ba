"""What the commands print while they work and about their results: scores, time left, ranks, titles, whole words."""

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longspan import suites
from longspan.cli import app, matrix_clock, tables
from longspan.cli.app import ProgressBar
from longspan.cli.doctor import Diagnosis
from longspan.cli.matrix_clock import MatrixClock
from longspan.cli.run_cells import Ran, run_cells, say_what_is_left
from longspan.core.cell import Cell, cells
from longspan.launchers.base import Outcome
from longspan.launchers.matrix import noted
from longspan.results.board import board
from longspan.results.render import render
from longspan.results.terminal_board import _broken
from longspan.runs.unfinished import Unfinished
from longspan.training.display import LineFromTimeToTime
from longspan.training.progress import Progress
from tests.results.factory import make_card

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances by hand."""
    now = [1000.0]
    for name in ("monotonic", "time"):
        monkeypatch.setattr(matrix_clock.time, name, lambda: now[0])
    return now


def finished(seconds, created="2030-01-01T00:00:00Z", **fields):
    card = make_card(accuracy=0.336, created=created, sealed=False, **fields)
    return Outcome({**card, "timing": {**card["timing"], "wall_seconds": seconds}})


def test_a_finished_cell_says_its_result_and_the_time_left(clock):
    todo = list(cells(["listops"], ["softmax", "linear", "local"]))
    watch = MatrixClock(todo)
    clock[0] += 8
    assert watch.ended(todo[0], finished(8.0)) == "accuracy 33.60 % in 8.0 s; about 16 s left"
    clock[0] += 8
    assert watch.ended(todo[1], finished(8.0)) == "accuracy 33.60 % in 8.0 s; about 8.0 s left"
    assert watch.ended(todo[2], finished(8.0)) == "accuracy 33.60 % in 8.0 s"


def test_a_cell_that_was_done_before_says_so_and_foretells_nothing(clock):
    todo = list(cells(["listops"], ["softmax", "linear"]))
    watch = MatrixClock(todo)
    assert watch.ended(todo[0], finished(500.0, created="1970-01-01T00:00:01Z")) == "accuracy 33.60 %, done before"


def test_cells_that_run_at_once_share_the_time(clock):
    todo = list(cells(["listops"], ["a", "b", "c", "d"]))
    watch = MatrixClock(todo)
    clock[0] += 10  # two at a time
    watch.ended(todo[0], finished(10.0))
    assert watch.ended(todo[1], finished(10.0)).endswith("about 10 s left")


def test_a_task_that_takes_longer_is_expected_to(clock):
    todo = [*cells(["listops"], ["a", "b"]), *cells(["lm"], ["a", "b"])]
    watch = MatrixClock(todo)
    clock[0] += 110
    watch.ended(todo[0], finished(10.0))
    watch.ended(todo[2], finished(100.0))
    assert watch.seconds_left() == pytest.approx(110)


def test_a_failed_or_stopped_cell_says_so(clock):
    todo = list(cells(["listops"], ["softmax", "linear"]))
    watch = MatrixClock(todo)
    assert watch.ended(todo[0], Outcome(sentence="No.", code=4)) == "failed"
    assert watch.ended(todo[1], Outcome(unfinished=True)) == "stopped, the state is saved"


CANDIDATES = [{"recipe.steps": 9}, {"recipe.steps": 9, "model.layers": 6}, {"recipe.steps": 9, "model.layers": 2}]


def test_cells_that_differ_in_settings_are_told_apart(tmp_path, capsys):
    """As the candidates of a recipe, which used to be lines and rows that said the same."""
    asked = [Cell("listops", "softmax", tier=tier, overrides=one) for tier in ("lite", "full") for one in CANDIDATES]
    waiting = iter(asked)

    class Now:
        several = False

        def run(self, take):
            while (cell := take(None)) is not None:
                yield cell, Outcome(make_card(tier=cell.tier, overrides=cell.overrides))

    with noted(tmp_path, "local", asked) as journal:
        ran = run_cells(Now(), lambda left: next(waiting, None), asked, journal)
    said = [line.split(": ")[0] for line in capsys.readouterr().err.splitlines() if "accuracy" in line]
    assert said[:2] == [
        "[1/6] listops · softmax · lite · seed 0",
        "[2/6] listops · softmax · lite · seed 0 · model.layers=6",
    ]
    assert len(set(said)) == len(asked)
    changes = list(map(str, tables.cards_table(ran.cards).columns[-1].cells))
    assert changes == ["", "model.layers=6", "model.layers=2"] * 2
    assert [entry["overrides"] for entry in ran.to_json()] == CANDIDATES * 2
    say_what_is_left(Ran(unfinished=asked[:2]), 0)
    assert "· seed 0, listops · softmax · seed 0 · model.layers=6." in " ".join(capsys.readouterr().out.split())
    stopped = [Unfinished(tmp_path, cell, 1, 9, 10, datetime.now(UTC)) for cell in asked[:3]]
    assert list(map(str, tables.unfinished_table(stopped).columns[4].cells)) == changes[:3]
    assert "changed" not in [column.header for column in tables.unfinished_table(stopped[:1]).columns]


def test_off_a_terminal_a_long_command_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(ProgressBar, "EVERY", 0.0)
    with ProgressBar(2) as advance:
        advance("softmax, 256 tokens")
    assert "0 of 2 done after 0.0 s; now softmax, 256 tokens" in capsys.readouterr().err


def test_off_a_terminal_a_long_run_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(LineFromTimeToTime, "EVERY", 0.0)
    watch = LineFromTimeToTime("listops softmax seed 0", "accuracy")
    for step in (10, 20):
        watch(Progress(step=step), 30)
    assert capsys.readouterr().err.startswith("listops softmax seed 0: step 20 of 30, ")


def test_a_board_of_one_task_has_ranks_and_a_title():
    runs = [make_card(name, accuracy=score, tier="full") for name, score in (("linear", 0.3), ("softmax", 0.4))]
    view = board(runs, ["listops"], "longspan", "full")
    assert [(row.rank, row.mechanism) for row in view.rows] == [(1, "softmax"), (2, "linear")]
    assert render(view).startswith("ListOps · longspan · full")


def test_every_built_in_task_has_a_title_for_its_column():
    skip = {path.stem for path in (ROOT / "longspan" / "tasks").glob("*.py")}
    from longspan.results import catalogue

    for entry in catalogue.read(catalogue.SHIPPED)["tasks"]:
        assert entry["name"] in skip
        assert suites.heading(entry["name"]) != entry["name"], f"{entry['name']} needs a heading in suites.py"


@pytest.mark.parametrize(
    "name, width, pieces",
    [
        ("Linear Transformer", 12, ["Linear", "Transformer"]),
        ("Performer [performer(features=32)]", 14, ["Performer", "[performer(", "features=32)]"]),
        ("Antidisestablishmentarianism", 12, ["Antidisestab", "lishmentaria", "nism"]),
    ],
)
def test_a_long_name_on_a_board_is_broken_between_words(name, width, pieces):
    assert _broken(name, width) == pieces


def test_a_narrow_table_breaks_lines_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("a" * 22, "Linear Transformer", "below the shortest")]
    with (screen := tables.console()).capture() as caught:
        screen.print(tables.table(("mechanism", "title", "words"), rows))
    assert {"Linear", "Transformer", "shortest"} <= set(re.findall(r"\w+", caught.get()))


def examples_of_crossover():
    pages = (ROOT / "docs").glob("*.md")
    return sorted(
        {line for page in pages for line in page.read_text().splitlines() if line.startswith("longspan cros")}
    )


@pytest.mark.parametrize("line", [line for line in examples_of_crossover() if "--from" not in line])
def test_the_examples_of_crossover_work_on_the_cards_that_come_with_the_package(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("longspan.analysis.crossover.RESAMPLES", 20, raising=False)
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "line, sentence, code",
    [
        ("run missing.toml", "The matrix missing.toml cannot be read: No such file or directory; name a file.", 2),
        ("board lra --compare", "Option '--compare' requires 2 arguments. See longspan board --help.", 2),
        ("board lra --tier lite", "create some with longspan run lra -a softmax --tier lite.", 3),
        ("tables page.md", "page.md has no marked table; longspan tables --help shows how to mark one.", 0),
    ],
)
def test_what_was_asked_is_what_the_advice_is_about(line, sentence, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("No table.\n")
    with pytest.raises(SystemExit) as ended:
        app(shlex.split(line))
    assert ended.value.code == code
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_doctor_shows_what_matters_and_all_on_request(monkeypatch):
    found = [Diagnosis("torch", "has", "2"), Diagnosis("rich", "has", "15"), Diagnosis("numba", "lacks", "slow", "pip")]
    monkeypatch.setattr("longspan.cli.doctor.diagnose", lambda out: found)
    few, every = (CliRunner().invoke(app, ["doctor", *words]).stdout for words in ([], ["--all"]))
    assert "rich" not in few
    assert {"torch", "numba", "1 more"} <= {name for name in ("torch", "numba", "1 more") if name in few}
    assert "rich" in every

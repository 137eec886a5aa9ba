"""`plan` on the command line: what it prints, what it runs, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from longspan.cli import app
from longspan.cli.tables import cards_table
from longspan.core import environment, meter
from longspan.core.errors import DataMissing
from longspan.launchers import supervisor
from longspan.report.build import build
from longspan.results.board import board
from longspan.results.store import Store
from tests.launchers.in_process import InProcess
from tests.results.factory import make_card

HERE = "Test CPU"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A machine with the same processor as the test cards; cells run in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(supervisor, "Worker", InProcess)
    monkeypatch.setattr(environment, "cpu_name", lambda: HERE)
    monkeypatch.setattr(meter, "gpu_name", lambda: None)
    return tmp_path


def call(*words):
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def add(mechanism="softmax", **fields):
    Store("out/cards").add(make_card(mechanism, **fields))


@pytest.fixture
def ran(monkeypatch):
    """The cells that were run, in order; nothing is trained."""
    found = []

    def run(cell, **how):
        found.append((cell.task, cell.mechanism, cell.seed, how.get("shared", False)))
        if cell.task == "text":
            raise DataMissing("There is no IMDb here.")
        return make_card(cell.mechanism, cell.task, seed=cell.seed, tier=cell.tier)

    monkeypatch.setattr("longspan.runs.run", run)
    return found


def test_the_example_with_an_h200_works_on_the_cards_that_come_with_the_package():
    result = call("lra", "--tier", "full", "--on", "H200", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["device"] == "NVIDIA H200"
    assert plan["present"]["listops"] == 0  # they say how long it takes, not that it was run here
    assert any(one["task"] == "listops" and one["seconds"] and not one["guess"] for one in plan["missing"])


def test_it_says_what_is_missing_and_that_times_are_not_known_before_a_first_run():
    result = call("listops", "-a", "softmax", "linear", "--tier", "smoke")
    assert result.exit_code == 0, result.output
    for words in ("listops on Test CPU", "softmax", "linear", "not known", "The same command with --run --budget 25m"):
        assert words in result.stdout


def test_json_has_every_cell_with_its_time_and_where_that_comes_from():
    add(settings=listops_settings("full"), tier="full")
    content = json.loads(call("listops", "-a", "softmax", "linear", "--json").stdout)
    assert (content["device"], content["present"]) == (HERE, {"listops": 1})
    (one,) = content["missing"]
    assert (one["mechanism"], one["seconds"], one["guess"]) == ("linear", pytest.approx(500.0), True)
    assert one["source"] == "guess: as softmax"


def listops_settings(tier):
    from longspan.cli.app import catalogue

    entry = next(one for one in catalogue(("tasks",))["tasks"] if one["name"] == "listops")
    return entry["settings"][f"longspan/{tier}"] | {"precision": "fp32", "device": "cpu"}


@pytest.mark.parametrize("share", [1, 2])
def test_it_runs_what_is_missing_and_marks_what_shares_the_device(ran, share):
    result = call("listops", "-a", "softmax", "linear", "--seeds", 2, "--tier", "smoke", "--run", "--share", share)
    assert result.exit_code == 0, result.output
    assert sorted(ran) == [("listops", m, seed, share > 1) for m in ("linear", "softmax") for seed in (0, 1)]
    assert ("Up to 2 cells share the device; their cards have no speed." in result.stderr) == (share > 1)
    assert "[4/4]" in result.stderr


@pytest.mark.parametrize("words, kept", [((), True), (("--no-weights",), False)])
def test_weights_are_kept_unless_they_are_not_wanted(monkeypatch, words, kept):
    asked = []
    monkeypatch.setattr("longspan.runs.run", lambda cell, *, weights, **how: asked.append(weights) or make_card())
    assert call("listops", "-a", "softmax", "--tier", "smoke", "--run", *words).exit_code == 0
    assert asked == [kept]


def test_where_the_data_of_a_task_are_missing_its_other_cells_are_left_out(ran):
    result = call("text", "-a", "softmax", "linear", "none", "--run")
    assert result.exit_code == 3
    assert len(ran) == 1
    assert "There is no IMDb here." in result.stderr
    assert "2 more cells of text were left out" in result.stderr


def test_what_a_budget_leaves_is_said_and_nothing_is_begun_after_it(ran):
    result = call("listops", "-a", "softmax", "linear", "--tier", "smoke", "--run", "--budget", "0.000001s")
    assert (result.exit_code, ran) == (0, [])
    assert "The budget is spent. Not begun: 2. The same command goes on." in result.stdout


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["listops", "--budget", "25m"], "are for --run"),
        (["listops", "--share", "2"], "are for --run"),
        (["listops", "--no-weights"], "are for --run"),
        (["listops", "--run", "--budget", "soon"], "--budget takes a number with a unit"),
        (["listops", "--run", "--json"], "leave out --run, or --json"),
        (["chess"], "No suite or task named 'chess'"),
        (["listops", "--on", "TPU"], "--on TPU names 0 devices; cards are of: NVIDIA H200."),
        (["listops", "-a", "softmax", "--run", "--share", "0"], "--share"),
    ],
)
def test_a_wrong_request_is_one_sentence(words, sentence):
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.stderr.split())


# -------------------------------------------------------------------------------------- no speed from a shared device

SHARED = {"timing": {"wall_seconds": 50.0, "steps_per_second": 8642.0, "examples_per_second": 9.0, "shared": True}}


def test_no_board_table_or_page_shows_the_speed_of_a_run_that_shared_its_device(tmp_path):
    alone, shared = make_card(steps_per_second=1234.0), make_card("linear", **SHARED)
    view = board([alone, shared], ["listops"], "longspan", "smoke")
    speeds = {row.mechanism: row.steps_per_second for row in view.rows}
    assert speeds == {"softmax": pytest.approx(1234.0), "linear": None}
    cells = [str(cell) for column in cards_table([alone, shared]).columns for cell in column.cells]
    assert "shared" in cells
    assert not any("8,642" in cell or "8642.0" in cell for cell in cells)
    index = build([alone, shared], tmp_path / "site")
    pages = [path.read_text() for path in index.parent.rglob("*.html")]
    assert any("1,234" in page or "1234" in page for page in pages)
    assert not any("8,642" in page or "8642.0" in page for page in pages)


def on_a_gpu(mechanism, seconds, peak, **fields):
    made = make_card(mechanism, **fields)
    made.pop("sha256", None)
    made["timing"]["wall_seconds"] = seconds
    made["memory"] = {"peak_bytes": peak}
    made["environment"] |= {"gpu": "Big GPU", "gpu_memory_bytes": 80 << 30}
    made["settings"]["device"] = "cuda"
    return made


def test_a_cluster_is_estimated_in_hours_money_and_memory_and_what_needs_several_gpus():
    Store("out/cards").add(on_a_gpu("softmax", 3600.0, 30 << 30, tier="full"))
    Store("out/cards").add(on_a_gpu("linear", 7200.0, 100 << 30, tier="full"))
    words = ("listops", "-a", "softmax", "linear", "--seeds", 3, "--on", "Big", "--nodes", 2, "--gpus", 2)
    found = json.loads(call(*words, "--price", 2, "--json").stdout)
    cluster, seconds = found["cluster"], {one["mechanism"]: one["seconds"] for one in found["missing"]}
    assert cluster["cells"] == len(found["missing"])
    assert cluster["largest_bytes"] == 100 << 30
    assert {(one["mechanism"], one["gpus"]) for one in cluster["spread"]} == {("linear", 2)}
    count = {name: sum(one["mechanism"] == name for one in found["missing"]) for name in seconds}
    trained = sum(count[name] * seconds[name] for name in seconds)
    started = 30 * (count["softmax"] + 2 * count["linear"])
    assert cluster["gpu_hours"] == pytest.approx((trained + started) / 3600)
    assert cluster["cost"] == pytest.approx(2 * cluster["gpu_hours"])
    assert cluster["cost_of_all"] == pytest.approx(2 * 4 * cluster["hours"])
    shown = call(*words, "--price", 2).stdout
    for part in ("On 2 x 2 Big GPU", "GPU-hours", "At 2 for a GPU-hour", "--devices 2 --parallel", "100.0 GiB of 80.0"):
        assert part in shown

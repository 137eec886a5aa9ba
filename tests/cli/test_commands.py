"""What the command line promises: the right words, the right exit code, one sentence when something is wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longspan.cli import app
from longspan.core.errors import PluginError
from longspan.core.lock import only_one
from longspan.launchers import supervisor
from longspan.results.store import Store
from tests.conformance.one_promise import asking_only
from tests.launchers.in_process import InProcess
from tests.results.factory import make_card, write_predictions

ROOT = Path(__file__).parents[2]
VERBS = ["list", "show", "check", "data", "run", "runs", "measure", "params", "board", "report", "verify"]
VERBS += ["plan", "probe", "analyze", "new", "doctor"]
DATA_VERBS = ["prepare", "import", "status", "verify"]

# A cell that takes a second: the real code path with a small network, little data and two steps.
TINY = {"recipe.steps": 2, "recipe.evaluate_every": 1, "recipe.batch_size": 4}
TINY |= {"data.train": 8, "data.valid": 4, "data.test": 8, "model.dim": 8, "model.layers": 1, "model.mlp": 8}
SET = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own; cells run in this process unless the test starts a command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(supervisor, "Worker", InProcess)
    return tmp_path


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def longspan(*words, **settings):
    """The real command in a process of its own."""
    command = [sys.executable, "-c", "from longspan.cli import main; main()", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **settings)


def assert_one_sentence(result, code):
    assert result.exit_code == code, result.output
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "Traceback" not in result.output


# ---------------------------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("words", [[verb] for verb in VERBS] + [["data", verb] for verb in DATA_VERBS], ids=" ".join)
def test_every_verb_has_help_with_an_example(words):
    result = call(*words, "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"longspan {' '.join(words)}" in result.stdout.split("Example", 1)[1]


def test_alone_it_shows_its_help_and_every_verb():
    result = call()
    assert result.exit_code == 0
    assert all(f"\n  {verb} " in result.stdout for verb in VERBS)


LISTED = ["attentions", "tasks", "backbones", "datasets", "suites", "protocols"]
NO_TORCH = [["--help"], ["--version"], ["run", "--help"], ["list"], ["list", "--json"], *(["list", k] for k in LISTED)]
NO_TORCH += [["show", "softmax"], ["show", "listops"], ["board", "lra"], ["data", "status"], ["data", "status", "imdb"]]
NO_TORCH += [["tables", "--help"]]
NO_TORCH += [["data", "prepare", "listops", "--tier", "smoke"], ["show", "listops", "--samples", "1"], ["plan", "lra"]]


@pytest.mark.parametrize("words", NO_TORCH, ids=" ".join)
def test_what_needs_no_torch_never_imports_it(folder, words):
    done = _without_torch(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_data_are_imported_and_verified_without_torch(folder):
    small = ["--set", "train=8", "--set", "valid=4", "--set", "test=8"]
    assert _without_torch("data", "import", "listops", "nowhere", cwd=folder).returncode == 3
    assert _without_torch("data", "prepare", "listops", "--tier", "smoke", cwd=folder).returncode == 0
    assert _without_torch("data", "verify", cwd=folder).returncode == 0
    assert _without_torch("data", "prepare", "pathfinder", "--tier", "smoke", *small, cwd=folder).returncode == 0


def _without_torch(*words, cwd=None):
    """The command in an interpreter that refuses to import torch."""
    refuse = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'lightning'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from longspan.cli import main; main()"
    )
    command = [sys.executable, "-c", refuse, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


# -------------------------------------------------------------------------------------------------------- list and show


def test_the_catalogue_is_pure_json_with_every_kind():
    catalogue = json.loads(call("list", "--json").stdout)
    assert catalogue["schema"] == 1
    for kind in ("attentions", "tasks", "backbones", "datasets", "suites", "protocols"):
        assert catalogue[kind], kind
    softmax = next(entry for entry in catalogue["attentions"] if entry["name"] == "softmax")
    assert softmax["patterns"] == ["noncausal_self", "causal_self", "noncausal_cross", "causal_cross"]
    assert softmax["exact"] is True
    assert {"name": "kernel", "default": "auto"}.items() <= softmax["options"][0].items()
    listops = next(entry for entry in catalogue["tasks"] if entry["name"] == "listops")
    assert ["longspan", "smoke"] in listops["protocols"]
    assert listops["slots"] == {"encoder": "noncausal_self"}


def test_one_kind_can_be_listed_alone():
    result = call("list", "attentions")
    assert result.exit_code == 0
    assert "softmax" in result.stdout
    assert "pathfinder" not in result.stdout
    assert set(json.loads(call("list", "suites", "--json").stdout)) == {"schema", "suites", "problems"}


@pytest.mark.parametrize(
    "name, words",
    [
        ("softmax(kernel=plain)", ["softmax", "arXiv:1706.03762", "causal_cross", "kernel", "n^2"]),
        ("yoso", ["surrogate gradient"]),
        ("flash", ["owns block"]),
        ("luna", ["to the next layer"]),
        ("compressive_transformer", ["auxiliary loss", "to the next segment"]),
        ("listops", ["evaluate a nested bracket expression", "lra-paper", "max_depth"]),  # the task and the dataset
        ("encoder_classifier", ["pre-norm"]),
        ("starter", ["listops, recall, lm"]),
        ("lra-paper", ["pathfinder"]),
    ],
)
def test_show_says_everything_about_one_thing(name, words):
    result = call("show", name)
    assert result.exit_code == 0, result.output
    assert all(word in result.stdout for word in words), result.stdout


def test_show_prints_the_bibtex_entry_of_a_paper_and_no_more():
    result = call("show", "performer", "--bibtex")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("@inproceedings{choromanski2021rethinking,")
    assert result.stdout.endswith("}\n")
    assert call("show", "listops", "--bibtex").stdout.count("@") == 1  # the task and the data come from one paper


def test_show_prints_samples_of_text_and_draws_those_of_images(folder):
    lines = call("show", "listops", "--samples", 3, "--set", "longer_than=10", "--set", "shorter_than=60").stdout
    assert len(lines.splitlines()) == 3
    assert all(line.partition("  ")[2].startswith("[") for line in lines.splitlines())
    assert_one_sentence(call("show", "pathfinder", "--samples", 1, "--set", "difficulty=easy"), 2)
    result = call("show", "pathfinder", "--samples", 2, "-o", "x.png", "--set", "difficulty=easy")
    assert result.exit_code == 0, result.output
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------------ wrong requests


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["show", "sofmax"], "Did you mean 'softmax'?"),
        (["show", "softmax", "--samples", "2"], "No dataset named 'softmax'"),
        (["show", "listops", "-o", "x.png"], "--samples"),
        (["check"], "--all"),
        (["check", "liner"], "Did you mean 'linear'?"),
        (["check", "softmax(kernl=plain)"], "Did you mean 'kernel'?"),
        (["check", "softmax(kernel=3)"], "Option 'kernel'"),
        (["check", "softmax(kernel="], "brackets do not match"),
        (["check", "softmax(__import__('os'))"], "options must be given by name"),
        (["check", "softmax(kernel=__import__('os'))"], "not a plain number"),
        (["check", "softmax", "--pattern", "sideways"], "No pattern named 'sideways'"),
        (["check", "fnet", "--pattern", "causal_self"], "noncausal_self"),
        (["check", "softmax", "--device", "cuda:99"], "cuda:99"),
        (["check", "missing.py:Mine"], "No file 'missing.py'"),
        (["check", "no_such_package.module:Mine"], "no_such_package"),
        (["run", "listops"], "No mechanism was named"),
        (["run", "-a", "softmax", "listops"], "before -a"),
        (["run", "listop", "-a", "softmax"], "Did you mean 'listops'?"),
        (["run", "listops", "-a", "softmx"], "Did you mean 'softmax'?"),
        (["run", "listops", "-a", "softmax", "--pattern", "CS"], "noncausal_self"),
        (["run", "listops", "-a", "softmax", "--protocol", "lra"], "lra-paper"),
        (["run", "listops", "-a", "softmax", "--tier", "smok"], "Did you mean 'smoke'?"),
        (["run", "listops", "-a", "softmax", "--seeds", "0"], "--seeds"),
        (["run", "listops", "-a", "softmax", "--set", "recipe.step=5"], "recipe.step"),
        (["run", "listops", "-a", "softmax", "--set", "recipe.steps=many"], "takes int"),
        (["run", "listops", "-a", "softmax", "--set", "recipe.steps"], "name=value"),
        (["run", "listops", "-a", "softmax", "--set", "a=1", "--set", "a=2"], "twice"),
        (["params", "--tier", "huge"], "huge"),
        (["board", "startr"], "Did you mean 'starter'?"),
        (["board", "starter", "--pattern", "XX"], "No pattern named 'XX'"),
        (["board", "starter", "--format", "docx"], "markdown"),
        (["board", "starter", "--cards", "nowhere"], "no folder"),
        (["verify", "nothing.json"], "No card at nothing.json"),
        (["data", "prepare", "listop"], "Did you mean 'listops'?"),
        (["data", "prepare", "listops", "--tier", "huge"], "huge"),
        (["data", "prepare", "listops", "--set", "max_depth=1"], "max_depth"),
        (["new", "attention", "Not-A-Name"], "my_attention"),
        (["new", "attention", "class"], "my_attention"),
        (["new", "suite", "mine"], "attention"),
        (["list", "gadgets"], "attentions"),
        (["dance"], "dance"),
        (["board"], "SUITE"),
        (["run", "listops", "-a", "softmax", "--unheard-of"], "--unheard-of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_request_is_answered_with_one_sentence_and_exit_code_2(words, sentence):
    result = call(*words)
    assert_one_sentence(result, 2)
    assert sentence in result.stderr


def test_a_plug_in_that_raises_on_import_is_one_sentence(folder):
    for name, source in {
        "boom": "raise RuntimeError('first line\\nsecond line')",
        "quits": "import sys; sys.exit(7)",
        "torn": "def attend(:",
    }.items():
        (folder / f"{name}.py").write_text(source)
        for words in (["check", f"{name}.py:Mine"], ["run", "listops", "-a", f"{name}.py:Mine"]):
            result = call(*words)
            assert_one_sentence(result, 2)
            assert f"{name}.py:Mine" in result.stderr


def test_a_traceback_is_shown_only_with_debug(folder):
    (folder / "boom.py").write_text("raise RuntimeError('boom')")
    done = longspan("check", "boom.py:Mine")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for words in (["--debug", "check", "boom.py:Mine"], ["check", "boom.py:Mine", "--debug"]):
        result = call(*words)
        assert isinstance(result.exception, PluginError)  # raised to the interpreter, which shows the traceback
        assert result.stderr == ""


# --------------------------------------------------------------------------------------------------------------- check


@pytest.fixture
def few_promises():
    with asking_only("shape and dtype", "no future leak"):
        yield


def test_check_prints_one_line_per_promise_and_keeps_the_result(folder):
    result = call("check", "softmax", "--pattern", "NS", "--quick")
    assert result.exit_code == 0, result.output
    assert "no future leak" in result.stdout
    kept = list((folder / "out" / "conformance").glob("*.json"))
    assert len(kept) == 1
    assert json.loads(kept[0].read_text())["ok"] is True


@pytest.mark.usefixtures("few_promises")
def test_check_of_several_patterns_has_a_column_each_and_json_is_pure(folder):
    assert "causal_self" in call("check", "linear", "--quick").stdout.splitlines()[2]
    reports = json.loads(call("check", "local", "--quick", "--json").stdout)
    assert [report["pattern"] for report in reports] == ["noncausal_self", "causal_self"]
    assert all(report["ok"] for report in reports)


@pytest.mark.usefixtures("few_promises")
def test_a_broken_promise_is_named_and_exits_with_1(folder):
    (folder / "leaky.py").write_text(
        "from longspan import AttentionMeta, HeadwiseAttention, Pattern\n"
        "class Leaky(HeadwiseAttention):\n"
        "    meta = AttentionMeta('Leaky', 'none', 'own', 'n', (Pattern.CAUSAL_SELF,))\n"
        "    def attend(self, q, k, v, *, key_mask=None, query_mask=None):\n"
        "        return v + v.mean(dim=2, keepdim=True)\n"
    )
    result = call("check", "leaky.py:Leaky", "--quick")
    assert_one_sentence(result, 1)
    assert "'no future leak'" in result.stderr
    done = call("check", "leaky.py:Leaky", "softmax", "--quick", "--pattern", "CS", "--json")
    assert done.exit_code == 1
    assert [report["ok"] for report in json.loads(done.stdout)] == [False, True]


@pytest.mark.usefixtures("few_promises")
def test_a_check_counts_even_where_its_result_cannot_be_saved(folder):
    (folder / "out").write_text("a file where a folder should be")
    result = call("check", "softmax", "--pattern", "NS", "--quick")
    assert result.exit_code == 0
    assert "was not saved" in result.stderr


def test_new_writes_a_file_that_passes_check_and_never_overwrites(folder):
    assert call("new", "attention", "my_idea").exit_code == 0
    result = call("check", "my_idea.py:MyIdea", "--quick")
    assert result.exit_code == 0, result.output
    (folder / "my_idea.py").write_text("precious")
    assert_one_sentence(call("new", "attention", "my_idea"), 2)
    assert (folder / "my_idea.py").read_text() == "precious"


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_run_goes_from_data_to_board_and_is_not_run_twice(folder):
    assert call("new", "attention", "mine").exit_code == 0
    words = ["run", "listops", "-a", "softmax", "mine.py:Mine", *SET]
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert "longspan board listops" in result.stdout
    assert "mine.py:Mine" in result.stdout
    cards = sorted((folder / "out" / "cards").rglob("*.json"))
    assert len(cards) == 2
    assert call(*words).exit_code == 0
    assert sorted((folder / "out" / "cards").rglob("*.json")) == cards
    assert call("verify", *cards).exit_code == 0
    shown = call("board", "listops")
    assert shown.exit_code == 0
    assert "Off the board" in shown.stdout  # the settings were overridden
    assert call("runs").stdout.startswith("No unfinished runs")


def test_a_run_without_weights_keeps_the_rest_and_one_that_wants_them_trains_again(folder):
    def kept():
        names = [path.name for path in (folder / "out" / "cards").glob("listops/*")]
        return {name.partition(".")[2] for name in names}

    words = ["run", "listops", "-a", "softmax", *SET]
    for _ in range(2):  # the second command finds the card
        result = call(*words, "--no-weights")
        assert result.exit_code == 0, result.output
        assert kept() == {"json", "log.csv", "predictions.npz"}
    assert call("verify", *(folder / "out" / "cards").glob("listops/*.json")).exit_code == 0
    assert call(*words).exit_code == 0
    assert "weights.safetensors" in kept()


PARAMS = ["params", "forecasting_etth1_univariate", "-a", "softmax", "linformer(rank=16, sharing='key-value')"]


@pytest.mark.parametrize(
    "words",
    [["list"], ["show", "listops"], [*PARAMS, "--tier", "smoke"], ["data", "status"]],
    ids=lambda words: words[0],
)
def test_a_narrow_terminal_breaks_texts_but_never_cuts_them_off(monkeypatch, words):
    shown = {}
    for width in (60, 100, 300):
        monkeypatch.setenv("COLUMNS", str(width))
        result = call(*words)
        assert result.exit_code == 0, result.output
        shown[width] = Counter(re.sub(r"[\s─]", "", result.stdout))
    assert shown[60] == shown[100] == shown[300]


def test_a_failing_cell_does_not_stop_the_others(folder):
    (folder / "fails.py").write_text(
        "from longspan import AttentionMeta, HeadwiseAttention, Pattern\n"
        "class Fails(HeadwiseAttention):\n"
        "    meta = AttentionMeta('Fails', 'none', 'own', 'n', tuple(Pattern))\n"
        "    def attend(self, q, k, v, *, key_mask=None, query_mask=None):\n"
        "        raise RuntimeError('no luck')\n"
    )
    result = call("run", "listops", "-a", "fails.py:Fails", "softmax", *SET)
    assert result.exit_code == 4
    assert "no luck" in result.stderr
    assert "1 of 2 cells failed." in result.stderr
    assert "softmax" in result.stdout
    statuses = {card["mechanism"]: card["status"] for card in Store(folder / "out" / "cards").cards()}
    assert statuses == {"fails.py:Fails": "fail", "softmax": "ok"}


def test_an_unwritable_folder_is_one_sentence_and_exit_code_4(folder):
    call("data", "prepare", "listops", "--tier", "smoke", *_data_only(SET))
    (folder / "taken").write_text("a file where a folder should be")
    result = call("run", "listops", "-a", "softmax", "--out", "taken", *SET)
    assert_one_sentence(result, 4)
    assert "taken" in result.stderr
    assert (folder / "taken").read_text() == "a file where a folder should be"


def _data_only(words):
    """The --set words for data, as `data prepare` spells them."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [w for flag, text in pairs if text.startswith("data.") for w in (flag, text.removeprefix("data."))]


def test_a_full_disk_is_one_sentence_and_exit_code_4(monkeypatch):
    import errno

    from longspan import runs
    from longspan.core.atomic import storage_errors

    def full(*_, **__):
        with storage_errors(Path("out/runs/x")):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "run", full)
    result = call("run", "listops", "-a", "softmax")
    assert_one_sentence(result, 4)
    assert "No space left on device" in result.stderr


def test_missing_data_is_exit_code_3(monkeypatch):
    from longspan import runs
    from longspan.core.errors import DataMissing

    def absent(*_, **__):
        raise DataMissing("text needs its corpus, which is not here; run longspan data import text PATH.")

    monkeypatch.setattr(runs, "run", absent)
    assert_one_sentence(call("run", "listops", "-a", "softmax"), 3)
    assert_one_sentence(call("data", "import", "listops", "nowhere"), 3)
    assert_one_sentence(call("data", "verify", "listops"), 3)
    assert_one_sentence(call("board", "starter", "--tier", "full"), 3)


def test_an_unexpected_error_is_still_one_sentence(monkeypatch):
    from longspan import runs

    def surprise(*_, **__):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(runs, "run", surprise)
    result = call("run", "listops", "-a", "softmax")
    assert_one_sentence(result, 4)
    assert "ZeroDivisionError" in result.stderr


BLIND = """
from longspan.attentions import AttentionMeta, HeadwiseAttention, Pattern

class Mine(HeadwiseAttention):
    meta = AttentionMeta(title="Mine", paper="none", family="test", cost="n", patterns=(Pattern.NONCAUSAL_SELF,))

    def attend(self, q, k, v):  # takes no masks
        return v
"""


def test_a_mechanism_that_always_raises_is_told_why_and_not_everything_it_breaks(folder):
    (folder / "mine.py").write_text(BLIND)
    result = call("check", "mine.py:Mine", "--quick")
    assert_one_sentence(result, 1)
    assert re.search(
        r"'shape and dtype', .* and \d\d more, all for one reason: raised TypeError: .*key_mask", result.stderr
    )
    assert len(result.stderr) < 500


def test_ctrl_c_in_a_command_that_saves_nothing_says_so(folder, monkeypatch):
    from longspan import conformance

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(conformance, "explanation", interrupted)
    result = call("check", "--explain")
    assert (result.exit_code, result.stderr, result.stdout) == (130, "Stopped.\n", "")


LONG = [word if word != "recipe.steps=2" else "recipe.steps=1000000" for word in SET]


def started(words, reached):
    """Start the command in its own process and wait until `reached()` holds."""
    command = [sys.executable, "-c", "from longspan.cli import main; main()", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.1)
    return process


def training(folder, changes):
    """Start a run and wait until it is training."""
    logs = (folder / "out" / "runs").glob
    words = ["run", "listops", "-a", "softmax", *changes]
    return started(words, lambda: any(len(log.read_text().splitlines()) > 2 for log in logs("*/log.csv")))


def test_ctrl_c_keeps_the_state_and_says_so(folder):
    process = training(folder, LONG)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "state is saved" in errors
    assert "Traceback" not in errors
    assert list((folder / "out" / "runs").glob("*/checkpoint-*.pt"))
    assert "softmax" in call("runs").stdout
    assert "Removed" in call("runs", "--clean").stdout
    assert call("runs").stdout.startswith("No unfinished runs")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_what_a_scheduler_sends_saves_the_state_and_says_so(folder, number):
    process = training(folder, LONG)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == f"Stopped by {number.name}. The state is saved; the same command resumes the run.\n"
    assert list((folder / "out" / "runs").glob("*/checkpoint-*.pt"))


def test_a_sweep_that_is_stopped_says_that_its_points_are_saved(folder):
    words = ["measure", "softmax", "--device", "cpu", "--mode", "forward", "--repeats", "2", "--lengths"]
    words += [str(length) for length in range(16, 4000, 8)]
    process = started(words, lambda: any((folder / "out" / "runs").glob("measure-*/points.jsonl")))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "Stopped. The measured points are saved; the same command goes on with the others.\n"


def test_a_dead_command_leaves_no_worker_and_no_lock(folder):
    process = training(folder, LONG)
    (lock,) = (folder / "out" / "runs").glob("*/lock")
    worker = int(lock.read_text())
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, "the worker lives on"
        time.sleep(0.05)
    with only_one(lock, "it", wait=False):
        pass


def test_a_dry_run_estimates_and_writes_nothing(folder):
    result = call("run", "listops", "-a", "softmax", "linear", *SET, "--attention", "fnet", "--seeds", 2, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "Estimated on" in result.stdout
    assert [result.stdout.count(f" {name} ") for name in ("softmax", "linear", "fnet")] == [2, 2, 2]
    assert not (folder / "out").exists()


def test_params_compares_every_mechanism_with_softmax():
    rows = json.loads(call("params", "listops", "lm", "--tier", "smoke", "--json").stdout)
    softmax = next(row for row in rows if row["task"] == "listops" and row["mechanism"] == "softmax")
    assert softmax["ratio"] == 1
    assert softmax["total"] == sum(softmax["parts"].values())
    assert "listops" in call("params", "listops", "--tier", "smoke").stdout


# ---------------------------------------------------------------------------------------------------------------- data


def test_data_is_prepared_shown_and_verified_and_damage_is_exit_code_1(folder):
    smoke = ["data", "prepare", "listops", "--tier", "smoke"]
    result = call(*smoke)
    assert result.exit_code == 0, result.output
    assert call(*smoke).exit_code == 0
    statuses = json.loads(call("data", "status", "listops", "--json").stdout)
    assert [status["ready"] for status in statuses if "longspan/smoke" in status["for"]] == [True]
    assert "ready" in call("data", "status").stdout
    assert call("data", "verify", "listops").exit_code == 0
    tokens = next((folder / "out" / "data").rglob("test.tokens.npy"))
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"\x7f")
    assert_one_sentence(call("data", "verify", "listops"), 1)


# ----------------------------------------------------------------------------------------------------- the reading half


@pytest.fixture
def cards(folder):
    """A store with two tasks, two mechanisms, and one whose name is hostile."""
    store = Store(folder / "out" / "cards")
    predictions = write_predictions(folder / "predictions.npz", 800, 2000)
    for mechanism in ("softmax", "linear", "<script>alert(1)</script>"):
        for task in ("listops", "pathfinder"):
            store.add(make_card(mechanism, task), files={"predictions": predictions})
    return store


def test_board_report_and_verify_work_without_torch(folder, cards):
    done = _without_torch("board", "lra-generated", "--tier", "smoke", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Softmax" in done.stdout
    done = _without_torch("report", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "out" / "report" / "index.html").is_file()
    done = _without_torch("verify", *cards.folder.rglob("*.json"), cwd=folder)
    assert done.returncode == 0, done.stderr
    done = _without_torch("run", "listops", "-a", "softmax", cwd=folder)
    assert done.returncode == 2
    assert "torch" in done.stderr


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex", "json", "html"])
def test_a_board_has_every_form(cards, form):
    result = call("board", "lra-generated", "--tier", "smoke", "--format", form)
    assert result.exit_code == 0, result.output
    assert "oftmax" in result.stdout
    if form == "json":
        assert json.loads(result.stdout)["tier"] == "smoke"
    if form == "html":
        assert "<script>alert" not in result.stdout


def test_a_snapshot_is_frozen(folder, cards):
    words = ["board", "lra-generated", "--tier", "smoke", "--snapshot", "spring"]
    assert call(*words).exit_code == 0
    assert call(*words).exit_code == 0
    cards.add(make_card("performer", "listops"))
    assert_one_sentence_last(call(*words), 2, "frozen")


def assert_one_sentence_last(result, code, word):
    assert result.exit_code == code, result.output
    assert word in result.stderr.strip().splitlines()[-1]


def test_the_board_of_a_suite_with_published_numbers_needs_no_cards():
    result = call("board", "lra")
    assert result.exit_code == 0, result.output
    assert "Published" in result.stdout


@pytest.mark.usefixtures("few_promises")
def test_the_report_shows_cards_conformance_and_the_catalogue(folder, cards):
    assert call("check", "softmax", "--pattern", "NS", "--quick").exit_code == 0
    result = call("report", "-o", "site")
    assert result.exit_code == 0, result.output
    assert (folder / "out" / "catalogue.json").is_file()
    pages = {path.name: path.read_text() for path in (folder / "site").rglob("*.html")}
    assert "no future leak" in pages["softmax.html"]
    assert not any("<script>alert(1)" in page for page in pages.values())


def test_corrupt_and_hostile_cards_are_named_and_lose_nothing(folder, cards):
    broken = cards.folder / "listops" / "broken.json"
    broken.write_text('{"schema": 1, "kind": "run"')
    result = call("board", "lra-generated")
    assert result.exit_code == 0
    assert "broken.json" in result.stderr
    assert "<script>alert(1)</script>" in result.stdout  # shown as plain text
    assert "broken.json" in call("report").stderr
    assert_one_sentence(call("verify", broken), 1)
    assert broken.exists()


def test_a_card_cannot_speak_to_the_terminal(cards):
    cards.add(make_card("linear", "listops", title="\x1b[2Jgone [bold]markup[/bold]", seed=5))
    for words in (["board", "listops"], ["verify", *cards.folder.rglob("*.json")]):
        result = call(*words)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.stdout


def test_an_altered_card_fails_to_verify(cards):
    path = next(cards.folder.rglob("listops-softmax*.json"))
    path.write_text(path.read_text().replace('"accuracy"', '"Accuracy"', 1))
    result = call("verify", path)
    assert_one_sentence(result, 1)


@pytest.mark.usefixtures("few_promises")
def test_conformance_results_below_results_are_not_taken_for_cards(folder, cards):
    done = call("check", "softmax", "--pattern", "NS", "--quick", "--json")
    (folder / "results" / "cpu").mkdir(parents=True)
    (folder / "results" / "cpu" / "conformance.json").write_text(done.stdout)
    (folder / "results" / "cpu" / "conformance-torn.json").write_text("[{")
    result = call("board", "lra-generated")
    assert "conformance.json" not in result.stderr
    assert result.stderr.count("conformance-torn.json") == 1
    assert "conformance-torn.json" in call("report").stderr


# --------------------------------------------------------------------------------------------------------------- doctor


@pytest.mark.parametrize("width", [60, 140])
def test_doctor_says_what_is_there_and_what_to_do(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = call("doctor")
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    assert "torch" in result.stdout
    assert "numba" in call("doctor", "--all").stdout


def test_doctor_fails_when_something_required_is_broken(folder):
    done = _without_torch("doctor", cwd=folder)
    assert done.returncode == 1
    assert "torch" in done.stderr
    (folder / "out").write_text("a file where a folder should be")
    assert_one_sentence(call("doctor"), 1)

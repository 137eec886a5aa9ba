"""A run that is stopped in one checkout, exported and imported in a new one ends as it would have without a break."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAME = ("curve", "metrics", "score", "selected_step", "parameters", "dataset", "settings", "files_sha256")
RUN = ["run", "listops", "-a", "s4d", "--protocol", "strong", "--tier", "smoke", "--device", "cpu"]
SMALL = {"recipe.steps": 160, "recipe.evaluate_every": 20, "recipe.pretraining_steps": 20, "data.test": 200}


def longspan(checkout, *words):
    """The command of that checkout, on a CPU with one thread."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    how = {"cwd": checkout, "env": kept | one | {"PYTHONPATH": str(checkout), "LONGSPAN_DATA": str(checkout / "data")}}
    return subprocess.Popen([sys.executable, "-m", "longspan", *words], stdout=subprocess.DEVNULL, **how)


def finish(checkout, *words):
    assert longspan(checkout, *words).wait(timeout=300) == 0


def card_of(checkout):
    (path,) = (checkout / "out" / "cards").glob("*/*.json")
    return json.loads(path.read_text())


@pytest.fixture
def checkouts(tmp_path):
    """Three clones of the committed state: one for the whole run, one where it is interrupted, a new one."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    places = [tmp_path / name for name in ("whole", "here", "there")]
    for place in places:
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(place)], check=True)
    return places


def commit(checkout, file):
    """A commit that adds a line to a file."""
    with (checkout / file).open("a") as opened:
        opened.write("\n# One more line.\n")
    git = ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*git, "commit", "--quiet", "--all", "--message", f"{file}: one more line"], check=True)


@pytest.mark.full
@pytest.mark.parametrize("changed, resumed", [("README.md", 1), ("longspan/training/gradient.py", 0)])
def test_a_run_goes_on_in_a_new_checkout_with_the_same_scores_curve_and_digests(checkouts, changed, resumed):
    """Also after a commit that changes nothing behind its training; after any other it starts over."""
    whole, here, there = checkouts
    commit(there, changed)
    words = [*RUN, *(word for name, value in SMALL.items() for word in ("--set", f"{name}={value}"))]
    finish(whole, *words)
    process = longspan(here, *words)
    deadline = time.monotonic() + 200
    while not any(log.read_text().count("\n") > 2 for log in (here / "out" / "runs").glob("*/log.csv")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    finish(here, "runs", "--export", "runs.tar", "--part-size", "100kB")
    for part in here.glob("runs.tar*"):
        shutil.move(part, there / part.name)
    finish(there, "runs", "--import", "runs.tar")
    finish(there, *words)
    unbroken, moved = card_of(whole), card_of(there)
    assert [moved[part] for part in SAME] == [unbroken[part] for part in SAME]
    assert (unbroken["timing"]["resumed"], moved["timing"]["resumed"]) == (0, resumed)
    assert unbroken["code"]["commit"] != moved["code"]["commit"]
    assert (unbroken["code"]["training_sha256"] == moved["code"]["training_sha256"]) == bool(resumed)

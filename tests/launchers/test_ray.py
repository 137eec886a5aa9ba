"""Cells on a real Ray cluster: whatever dies, each has one card, equal to the one from `local`."""

import importlib.util
import signal
import subprocess
import sys

import pytest

from longspan.results.store import Store
from tests.launchers import hostile
from tests.launchers.ray_cluster import cluster
from tests.launchers.test_isolation import longspan
from tests.launchers.waiting import finish, wait_for

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed; pip install 'longspan[ray]'"
    ),
]
SMALL = {"recipe.steps": 300, "recipe.evaluate_every": 30, "recipe.batch_size": 8, "data.train": 256, "data.valid": 64}
SMALL |= {"data.test": 64, "data.shorter_than": 100, "model.dim": 16, "model.layers": 1, "model.mlp": 16}
SET = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
MECHANISMS = ("softmax", "linear", "local", "performer", "fnet", "linformer(rank=8)", "cosformer", "abc")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, folder / "data") as nodes:
        yield nodes


def cards(out):
    """The results of every cell; a cell with two cards (it ran to the end twice) fails the test."""
    found = {}
    for _, card in Store(out / "cards").entries():
        cell = card["mechanism"], card["seed"]
        assert cell not in found, f"{cell} ran twice"
        parts = ("status", "score", "metrics", "curve", "selected_step", "parameters", "dataset", "overrides")
        digests = {name: card["files_sha256"][name] for name in ("predictions", "weights")}
        found[cell] = {name: card[name] for name in parts} | {"digests": digests}
    return found


def wait_for_cards(out, count, process):
    wait_for(lambda: len(list((out / "cards").rglob("*.json"))) >= count, f"{count} cards", process)


def command(nodes, *words):
    code = "from longspan.cli import main; main()"
    return [
        sys.executable,
        "-c",
        code,
        "run",
        *words,
        "--device",
        "cpu",
        "--launcher",
        "ray",
        "--address",
        nodes.address,
    ]


def test_a_node_and_the_driver_are_killed_and_every_card_is_that_of_local(nodes, tmp_path):
    words = ["listops", "-a", *MECHANISMS, "--seeds", "3", *SET, "--out", str(tmp_path / "out")]
    how = {"env": nodes.environment, "cwd": nodes.folder, "text": True}
    driver = subprocess.Popen(command(nodes, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    try:
        wait_for_cards(tmp_path / "out", 4, driver)
        nodes.kill(nodes.joined[1])
        wait_for_cards(tmp_path / "out", 10, driver)
    finally:
        driver.kill()
        driver.communicate()
    assert len(cards(tmp_path / "out")) < 24
    again = subprocess.run(command(nodes, *words), capture_output=True, check=False, timeout=900, **how)
    assert again.returncode == 0, again.stderr
    words[-1] = str(tmp_path / "local")
    local = longspan("run", *words, "--device", "cpu", cwd=nodes.folder)
    assert local.returncode == 0, local.stderr
    theirs = cards(tmp_path / "local")
    assert len(theirs) == 24
    assert cards(tmp_path / "out") == theirs


def test_ctrl_c_saves_the_states_and_the_same_command_goes_on(nodes, tmp_path):
    out = tmp_path / "out"
    words = ["listops", "-a", "softmax", "linear", *SET, "--set", "model.dropout=0.1", "--out", str(out)]
    how = {"env": nodes.environment, "cwd": nodes.folder, "text": True}
    driver = subprocess.Popen(command(nodes, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
    try:
        wait_for(lambda: list(out.glob("runs/*/progress.json")), "a cell to be trained", driver)
        driver.send_signal(signal.SIGINT)
        _, said = finish(driver)
    finally:
        driver.kill()
    assert driver.returncode == 130, said
    assert "Stopped. The state is saved; the same command resumes the run." in said
    assert list(out.glob("runs/*/checkpoint-*.pt"))
    assert not list(out.glob("runs/*/.lock.*")), "no process is at it"
    again = subprocess.run(command(nodes, *words), capture_output=True, check=False, timeout=900, **how)
    assert again.returncode == 0, again.stderr
    assert sorted(card["timing"]["resumed"] for _, card in Store(out / "cards").entries())[-1] == 1


def test_a_cell_that_kills_its_processes_each_time_has_a_fail_card_and_the_others_theirs(nodes, tmp_path):
    """It kills its supervisor, which is one of Ray's processes."""
    poison = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    name = hostile.write(nodes.folder, "poison", in_attend=poison)
    words = ["listops", "-a", name, "softmax", *SET, "--out", str(tmp_path / "out")]
    how = {"env": nodes.environment, "cwd": nodes.folder, "text": True}
    done = subprocess.run(command(nodes, *words), capture_output=True, check=False, timeout=900, **how)
    assert done.returncode == 4, done.stderr
    found = {card["status"]: card for _, card in Store(tmp_path / "out" / "cards").entries()}
    assert found["ok"]["mechanism"] == "softmax"
    assert "its process on the cluster died 3 times" in found["fail"]["reason"]

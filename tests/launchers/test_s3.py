"""Cards, checkpoints, leases and data on a real S3 server, whichever process is killed in the middle."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from longspan.core import bucket, mirror
from longspan.results.store import Store
from tests.launchers import hostile
from tests.launchers.s3_server import read_here, s3_server, why_not
from tests.launchers.test_ray import SET, cards
from tests.launchers.waiting import finish, wait_for
from tests.results.factory import make_card

absent = why_not()
pytestmark = [pytest.mark.full, pytest.mark.skipif(absent is not None, reason=absent or "")]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with (tmp_path_factory.mktemp("s3") / "log").open("w") as log, s3_server(log) as (door, environment):
        yield door, environment


@pytest.fixture
def address(server, request, monkeypatch, tmp_path):
    """An empty place on the server for this test, which this process can read too."""
    read_here(server[1], tmp_path / "reader", monkeypatch)
    return f"s3://arena/{request.node.name[:40]}"


def start(server, address, machine, *words):
    """Start a command on a machine, which has its own private cache."""
    own = {"LONGSPAN_CACHE": str(machine), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    own |= {"LONGSPAN_COMMIT": "0" * 40}
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from longspan.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "listops", *words, *SET, "--device", "cpu", "--out", address]
    machine.mkdir(exist_ok=True)
    how = {"cwd": machine, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=server[1] | own, **how)


def held(machine):
    """A mechanism on a machine that pauses in training, after a checkpoint, until it is told to go on."""
    machine.mkdir(exist_ok=True)
    return hostile.write(machine, "held", in_attend=hostile.HELD_LATER)


def go(machine):
    (machine / "go").touch()


def test_of_many_who_create_an_object_one_does(address):
    shared = bucket.Bucket(address)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda number: shared.create("lease", b"%d" % number), range(8)))
    assert sum(made) == 1
    assert shared.get("lease") == b"%d" % made.index(True)


def test_a_machine_is_killed_in_a_run_and_another_goes_on_from_its_checkpoint(server, address, tmp_path):
    shared = bucket.Bucket(address)
    machines = [tmp_path / name for name in ("first", "second", "third")]
    words = ["-a", *{held(machine) for machine in machines}, "linear"]
    first = start(server, address, machines[0], *words)
    try:
        wait_for(lambda: [name for name in shared.sizes("runs") if "checkpoint-" in name], "a checkpoint", first)
    finally:
        children = subprocess.run(["pgrep", "-P", str(first.pid)], capture_output=True, text=True, check=False)
        for pid in [first.pid, *map(int, children.stdout.split())]:
            os.kill(pid, signal.SIGKILL)
        first.communicate()
    (leased,) = [name for name in shared.sizes("runs") if name.endswith(".lease")]
    shared.remove(leased)  # instead of waiting two and a half minutes for it to expire
    go(machines[1])
    second = start(server, address, machines[1], *words)
    _, said = finish(second)
    assert second.returncode == 0, said
    assert len(cards(_fetched(address, tmp_path))) == 2
    assert max(card["timing"]["resumed"] for card in Store(f"{address}/cards").cards()) == 1
    assert not shared.sizes("runs"), "nothing is left of runs that have cards"
    assert "generating" not in said, "the data were prepared by the first machine"
    assert list((tmp_path / "second").rglob("manifest.json"))
    go(machines[2])
    local = start(server, str(tmp_path / "plain"), machines[2], *words)
    _, said = finish(local)
    assert local.returncode == 0, said
    assert cards(_fetched(address, tmp_path)) == cards(tmp_path / "plain")


def test_two_machines_with_the_same_command_run_each_cell_once(server, address, tmp_path):
    words = ["-a", "softmax", "linear", "--seeds", "2"]
    machines = [start(server, address, tmp_path / name, *words) for name in ("first", "second")]
    for machine in machines:
        _, said = finish(machine)
        assert machine.returncode == 0, said
    assert len(cards(_fetched(address, tmp_path))) == 4


def test_the_store_is_away_for_a_while_in_the_middle_of_a_run_and_nothing_is_lost(server, address, tmp_path):
    door, _ = server
    shared = bucket.Bucket(address)
    run = start(server, address, tmp_path / "first", "-a", held(tmp_path / "first"), "linear")
    wait_for(lambda: [name for name in shared.sizes("runs") if "checkpoint-" in name], "a checkpoint", run)
    door.shut()
    go(tmp_path / "first")
    time.sleep(60)
    door.open()
    _, said = finish(run)
    assert run.returncode == 0, said
    assert "cannot be reached" in said
    assert len(cards(_fetched(address, tmp_path))) == 2


@contextlib.contextmanager
def cut(door, after, meanwhile=lambda: None):
    """Shut the door after `after` bytes, in the middle of what the block writes, then open it again."""

    def follow():
        wait_for(lambda: door.is_shut, "the door to be shut")
        meanwhile()
        door.open()

    door.passed, door.after = 0, after
    following = threading.Thread(target=follow)
    following.start()
    yield
    following.join()


@pytest.mark.parametrize("after", [1_000, 20_000, 2_000_000, 5_000_000])
def test_the_server_dies_in_the_middle_of_a_write_and_the_object_is_whole_or_absent(server, address, tmp_path, after):
    """A write is retried until it succeeds."""
    door, _ = server
    shared, content = bucket.Bucket(address), os.urandom(6 * 2**20)
    (tmp_path / "large").write_bytes(content * 3)
    with cut(door, after):
        shared.put("one", content)
    assert shared.get("one") == content
    with cut(door, after):
        shared.put("parts", tmp_path / "large")
    assert shared.get("parts") == content * 3
    assert set(shared.sizes("")) == {"one", "parts"}


def test_the_server_is_killed_in_the_middle_of_a_write_and_the_next_one_has_the_whole_object(server, address):
    door, _ = server
    shared, content = bucket.Bucket(address), os.urandom(6 * 2**20)

    def replace():
        door.server.kill()
        door.server.start_again()

    with cut(door, 2_000_000, replace):
        shared.put("one", content)
    assert shared.get("one") == content
    assert set(shared.sizes("")) == {"one"}


def test_a_writer_that_is_killed_in_the_middle_leaves_no_half_of_a_card(server, address, tmp_path, monkeypatch):
    code = (
        "import sys, itertools\n"
        "from longspan.results.store import Store\n"
        "from tests.results.factory import make_card\n"
        "store = Store(sys.argv[1])\n"
        "for seed in itertools.count(int(sys.argv[2])):\n"
        "    print(store.add(make_card(seed=seed, points=500)), flush=True)\n"
    )
    for number in range(3):
        own = {"LONGSPAN_CACHE": str(tmp_path / "writer"), "PYTHONPATH": str(ROOT)}
        how = {"env": server[1] | own, "stdout": subprocess.PIPE, "cwd": tmp_path}
        writer = subprocess.Popen([sys.executable, "-c", code, f"{address}/cards", str(1000 * number)], **how)
        for _ in range(3):
            assert writer.stdout.readline(), "the writer has ended"
        time.sleep(0.037 * number)  # into the next card, sooner or later
        writer.kill()
        writer.communicate()
    store = Store(f"{address}/cards")
    found = store.cards()
    assert len(found) >= 9
    assert store.problems == []
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "writer"))  # the next process there sends what was not sent
    mirror._address.cache_clear()
    assert {card["seed"] for card in found} <= {card["seed"] for card in Store(f"{address}/cards").cards()}
    assert store.add(make_card("linear"))


def _fetched(address, tmp_path):
    """A folder in which `cards` finds the cards of the store."""
    Store(f"{address}/cards").cards()
    place = tmp_path / "fetched"
    place.mkdir(exist_ok=True)
    (place / "cards").unlink(missing_ok=True)
    (place / "cards").symlink_to(mirror.local(f"{address}/cards"))
    return place

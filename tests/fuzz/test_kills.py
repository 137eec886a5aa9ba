"""Whatever is killed, whenever it is killed: rerunning the command gives the same bits and leaves no litter."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from longspan.launchers.matrix import FOLDER
from tests.fuzz import killer, remains
from tests.fuzz.figures import Figures, inputs
from tests.fuzz.kill_server import PATIENCE_S, SHARDS, TINY
from tests.fuzz.killer import PHASES, KillPlan

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
RUNS = [("run", "softmax"), ("run", "performer(features=8)")]
SUBJECTS: dict[str, list[tuple[str, str]]] = {  # by phase: the commands that go through it
    "training": RUNS,
    "evaluation": RUNS,
    "checkpoint": RUNS,
    "card": RUNS,
    "dataset": [("prepare", "listops"), ("prepare", "imdb"), ("run", "softmax")],
    "measurement": [("measure", "linear"), ("measure", "softmax")],
}
KINDS = ("event", "event", "event", "event", "torn", "torn", "torn", "terminate", "interrupt", "any time")
BYTES = (0, 1, 60, 400, 3_000)  # how many are written before a torn write


@dataclass(frozen=True)
class Unbroken:
    """What an undisturbed command leaves."""

    out: Path
    results: dict[str, Any]
    names: Any
    counts: dict[str, int]


class Server:
    """Commands in processes that are forked, not started; see kill_server.py."""

    def __init__(self, folder: Path):
        command = [sys.executable, "-m", "tests.fuzz.kill_server"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, cwd=folder, **pipes)
        self.folder = folder
        self.unbroken: dict[tuple[str, str], Unbroken] = {}

    def ask(self, do: tuple[str, str], cwd: Path, plan: KillPlan | None = None, after: float | None = None) -> Any:
        order = {"do": do, "cwd": str(cwd), "plan": plan and asdict(plan), "after": after}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def reference(self, do: tuple[str, str]) -> Unbroken:
        if do not in self.unbroken:
            folder = self.folder / f"unbroken-{len(self.unbroken)}"
            folder.mkdir()
            answer = self.ask(do, folder)
            assert answer["code"] == 0, answer["log"]
            out = folder / "out"
            self.unbroken[do] = Unbroken(out, remains.results(out), remains.names(out), answer.get("counts", {}))
        return self.unbroken[do]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("kills"))
    yield made
    made.process.communicate()


def moments(phase: str, counts: dict[str, int], draw: random.Random) -> tuple[KillPlan | None, float | None]:
    """A plan for one kill in a phase, or a time after which to kill at any point."""
    kind = draw.choice(KINDS)
    if kind == "any time":
        return None, draw.uniform(0.0, 1.2)
    signals = {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT}
    if kind == "torn" and (files := counts.get(f"{phase} file")):
        return KillPlan(phase, draw.randrange(files), torn=draw.choice(BYTES)), None
    return KillPlan(phase, draw.randrange(counts[phase]), signal=signals.get(kind, signal.SIGKILL)), None


class Chain:
    """A folder in which a command is killed several times and then left alone."""

    def __init__(self, server: Server, folder: Path, do: tuple[str, str]):
        self.server, self.folder, self.do, self.out = server, folder, do, folder / "out"
        self.kept: dict[Path, bytes] = {}
        self.points: list[Any] = []
        self.kills, self.began = 0, 0  # kills, and those after which there was something to resume
        bystander = server.reference(RUNS[do == RUNS[0]])
        shutil.copytree(bystander.out / "cards", self.out / "cards")
        self.before = remains.names(self.out)
        self.results = remains.results(self.out)
        self.cards = len(remains.stored(self.out))
        self._note()

    def kill(self, phase: str, draw: random.Random) -> bool:
        """Kill it once; whether it was killed before it had ended."""
        plan, after = moments(phase, self.server.reference(self.do).counts, draw)
        if self.server.ask(self.do, self.folder, plan, after)["code"] == 0:
            return False
        self.kills += 1
        self.began += self._has_begun()
        self._note()
        return True

    def _has_begun(self) -> bool:
        """Whether there is something to resume: its card, a checkpoint, a shard, a dataset, a measured point."""
        left = {
            "run": ("runs/*/checkpoint-*.pt",),
            "prepare": ("data/*/*.work/*.npz", "data/*/*/manifest.json"),
            "measure": (),
        }[self.do[0]]
        card = len(remains.stored(self.out)) > self.cards
        return bool(card or remains.points(self.out) or any(next(self.out.glob(p), None) for p in left))

    def _note(self) -> None:
        self.kept |= remains.kept(self.out)
        self.points += remains.points(self.out)

    def finish(self, figures: Figures) -> str:
        """Run it to the end and compare; returns a description of what is wrong."""
        answer, unbroken = self.server.ask(self.do, self.folder), self.server.reference(self.do)
        found = remains.results(self.out) if answer["code"] == 0 else {}
        litter = remains.tops(remains.names(self.out) - (self.before | unbroken.names))
        lost = [str(path) for path, content in self.kept.items() if not path.exists() or path.read_bytes() != content]
        lost += [f"{key} of {self.do}" for key in self.results | unbroken.results if key not in found]
        now = [point for _, card in remains.stored(self.out) for point in card.get("points", ())]
        different = [key for key, value in (self.results | unbroken.results).items() if found.get(key, value) != value]
        different += [f"the point {point}" for point in self.points if point not in now]
        for name, wrong in (("lost", lost), ("different", different), ("litter", litter)):
            figures.add(name, len(wrong))
        wrong = {"lost": lost, "different": different, "litter": litter}
        told = {name: some for name, some in wrong.items() if some}
        return f"{self.do}, {self.kills} kills: {told} {answer['log']}" if told else ""


class CommandLine(Server):
    """The same commands as a user types them: processes that start others, all armed with the plan."""

    def __init__(self, server: Server, folder: Path):
        self.server, self.folder, self.unbroken = server, folder, {}
        (folder / "site").mkdir()
        hook = "from tests.fuzz.killer import arm_as_the_environment_says\n\narm_as_the_environment_says()\n"
        (folder / "site" / "sitecustomize.py").write_text(hook)

    def ask(self, do: tuple[str, str], cwd: Path, plan: KillPlan | None = None, after: float | None = None) -> Any:
        environment: dict[str, str] = os.environ | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{self.folder / 'site'}:{ROOT}",
        }
        environment |= killer.in_environment(plan)
        command = [sys.executable, "-m", "longspan", *words(*do)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, env=environment, cwd=cwd, start_new_session=True, **pipes)
        try:
            told, _ = process.communicate(timeout=PATIENCE_S if after is None else 8 * after)
        except subprocess.TimeoutExpired:
            process.kill()  # only this process: its children must notice
            told, _ = process.communicate()
        return {"code": process.returncode, "log": told[-2000:]}

    def reference(self, do: tuple[str, str]) -> Unbroken:
        """For a run what the function leaves, with a journal, as the command must; else what the command leaves."""
        inner = self.server.reference(do)
        if do in RUNS:
            return replace(inner, names=inner.names + Counter([FOLDER, remains.JOURNALS]))
        return replace(super().reference(do), counts=inner.counts)


def words(what: str, name: str) -> list[str]:
    """The command line for one of the commands of kill_server.py."""
    if what == "run":
        changes = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
        return ["run", "listops", "-a", name, "--device", "cpu", *changes]
    if what == "prepare":
        changes = [word for key, value in SHARDS[name].items() for word in ("--set", f"{key}={value}")]
        return ["data", "prepare", name, "--workers", "2", *changes]
    return ["measure", name, "--device", "cpu", "--batch", "1", "--heads", "2", "--dim", "4", "--lengths", "8", "16"]


@inputs(quick=6, full=100)
def test_a_killed_command_ends_with_the_bits_of_an_unbroken_one(server, tmp_path, figures, count):
    kill_again_and_again(server, tmp_path, figures, count, SUBJECTS)


@pytest.mark.full
def test_a_killed_process_tree_ends_with_the_bits_of_an_unbroken_one(server, tmp_path, figures):
    subjects = SUBJECTS | {"dataset": [("prepare", "listops")]}
    kill_again_and_again(CommandLine(server, tmp_path), tmp_path, figures, 12, subjects)


def kill_again_and_again(
    server: Server, folder: Path, figures: Figures, count: int, subjects: dict[str, list[tuple[str, str]]]
) -> None:
    draw = random.Random(count)
    wrong = []
    for name in ("kills", "resumed", "started anew", "lost", "different", "litter"):
        figures.add(name, 0)
    for number, phase in enumerate(itertools.cycle(PHASES)):
        if figures["kills"] >= count:
            break
        do = draw.choice(subjects[phase]) if count > len(PHASES) else subjects[phase][0]
        (folder / str(number)).mkdir()
        chain = Chain(server, folder / str(number), do)
        for _ in range(min(draw.choice((1, 1, 2, 3)), count - figures["kills"])):
            if not chain.kill(phase, draw):
                break
            figures.add(f"in {phase}")
        figures.add("kills", chain.kills)
        figures.add("resumed", chain.began)
        figures.add("started anew", chain.kills - chain.began)
        wrong.append(chain.finish(figures))
        shutil.rmtree(chain.folder)
    assert not any(wrong), "\n".join(filter(None, wrong))

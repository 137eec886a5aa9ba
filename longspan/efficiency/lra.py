"""The efficiency protocol of Long Range Arena (Tables 2 and 4): steps per second and memory on bytes of text.

    cards = measure(["performer", "linear"], LraSetup(lengths=(1000, 2000)), device="cuda")

The network is the encoder of the arena with 4 layers, 8 heads and 128 channels, on batches of 32 rows of exactly 1000,
2000, 3000 and 4000 bytes. A step has three measurements: wall-clock time with everything a real step does (choosing
rows, making and moving the batch, updating the weights), time by the device's own clock on one fixed batch, and peak
memory. What runs out of memory or cannot run is a point on the card too. Paper: arXiv:2011.04006. Departs from the
paper in: one device holds the whole batch; the widths that the paper leaves open for training are those of inference;
the MLP, whose width it does not give, is four times as wide as the model.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from longspan import attentions
from longspan.attentions import Mechanism, Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes
from longspan.core import environment
from longspan.core.errors import RunFailed, UsageError
from longspan.core.mirror import local
from longspan.core.seeding import derive, seed_everything, seed_torch
from longspan.datasets.base import Split
from longspan.efficiency import source
from longspan.efficiency.faults import is_sound
from longspan.efficiency.latency import Spread, affordable, time_calls, time_stretches, warm_up
from longspan.efficiency.memory import METHODS, is_out_of_memory, peak_bytes, release
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.tasks.base import Recipe
from longspan.tasks.token_feed import Batch, TokenFeed
from longspan.training.optimizer import learning_rate, make_optimizer, set_learning_rate
from longspan.training.order import ExampleOrder

PROCEDURE = "lra-efficiency"
BASELINE = "softmax"  # every ratio is to this one
VOCABULARY, CLASSES = 257, 2  # a byte is its value + 1, so that 0 can mean padding
FEED_BATCHES = 8  # size of the feed, in batches
TIMED_PARTS = ("kernels", "backbones/encoder_classifier.py", "attentions/base.py", "tasks/token_feed.py")
TIMED_PARTS += (
    "tasks/classification.py",
    "backbones/encoder_block.py",
    "backbones/norms.py",
    "training/optimizer.py",
    "efficiency",
)

Mode = Literal["train", "inference"]
MODES: tuple[Mode, ...] = ("train", "inference")
SIZES = Sizes(dim=128, heads=8, layers=4, mlp=512)


@dataclass(frozen=True)
class LraSetup:
    """All settings of a measurement, except the mechanism and the machine."""

    lengths: tuple[int, ...] = (1000, 2000, 3000, 4000)
    modes: tuple[Mode, ...] = MODES
    batch: int = 32
    model: Sizes = SIZES
    realistic_steps: int = 50  # by the wall clock
    repeats: int = 20  # by the device's clock
    warmup: int = 3
    seconds: float = 20.0  # limit for each clock, which takes at least three readings
    compile: bool = False
    seed: int = 0

    def __post_init__(self):
        if not self.lengths or min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise UsageError(f"Lengths are different positive numbers, got {self.lengths}; give them like 1000 2000.")
        if not self.modes or not set(self.modes) <= set(MODES) or len(set(self.modes)) < len(self.modes):
            raise UsageError(f"A mode is train or inference, got {self.modes}.")
        for name in ("batch", "realistic_steps", "repeats", "warmup"):
            if (number := getattr(self, name)) < 1:
                raise UsageError(f"A measurement needs {name} of at least 1, got {number}; give a positive number.")
        if not self.seconds > 0:
            raise UsageError(f"A measurement needs time, got seconds={self.seconds}; give a positive number.")


LRA = LraSetup()


def measure(
    mechanisms: Sequence[str | Mechanism],
    setup: LraSetup = LRA,
    *,
    device: str = "auto",
    out: str | Path = "out",
    again: bool = False,
    watch: Callable[[str], None] | None = None,
) -> list[cards.Card]:
    """One card per mechanism in `out/cards/measurements`, softmax first; one that has its card is not measured again.

    `watch` is called with what is measured next. A point that fails, whatever the reason, does not stop the others.
    """
    chosen = {str(mechanism): mechanism for mechanism in map(attentions.get, (BASELINE, *mechanisms))}
    device = environment.choose_device(device)
    store = Store(local(out) / "cards")
    found = []
    for mechanism in chosen.values():
        card = None if again else _measured_before(store, mechanism, setup, device)
        if card is None:
            card = _describe(mechanism, setup, device) | _points(mechanism, setup, device, watch)
            card = cards.read(store.add(card))
        found.append(card)
        if not is_sound(device):
            raise RunFailed(f"{device} stopped working after {mechanism}; the same command goes on with the others.")
    return found


# ------------------------------------------------------------------------------------------------------- what a step is


class Workload:
    """A network in one mode with a feed of random bytes, and the two kinds of step that are timed."""

    def __init__(self, mechanism: Mechanism, setup: LraSetup, length: int, mode: Mode, device: str):
        seed_everything(setup.seed)
        self.device, self.seed, self.trains = device, setup.seed, mode == "train"
        model = EncoderClassifier(mechanism, setup.model, vocabulary=VOCABULARY, classes=CLASSES, length=length)
        model.whole = True  # a mechanism is timed on all rows of every layer, also of the last
        self.model = model.to(device).train(self.trains)
        if setup.compile:
            torch.compiler.reset()  # else the graphs of one mechanism count against the limit of the next
            self.model.compile_parts()
        # The rates of the arena's text task; they do not change the cost of a step.
        self.recipe = Recipe(steps=20_000, batch_size=setup.batch, learning_rate=0.05, warmup=8_000)
        self.optimizer = make_optimizer(self.model, self.recipe) if self.trains else None
        self.feed = TokenFeed(byte_rows(length, FEED_BATCHES * setup.batch, setup.seed), device, shift=1)
        self.order = ExampleOrder(len(self.feed), setup.batch, setup.seed)
        self.fixed = self.feed.batch(self.order.rows(0))
        self.done = 0
        self.loss = torch.zeros((), device=device)

    def compute(self) -> None:
        """A step on the fixed batch: nothing but the network and, in training, the update of its weights."""
        self._train(self.fixed) if self.trains else self._infer(self.fixed)

    def step(self) -> None:
        """A step as in real training: the next rows, their batch, and the sums the training loop keeps."""
        batch = self.feed.batch(self.order.rows(self.done))
        if self.optimizer is not None:
            seed_torch(derive(self.seed, "step", self.done), self.device)
            set_learning_rate(self.optimizer, learning_rate(self.recipe, self.done))
        self.loss += self._train(batch) if self.trains else self._infer(batch)
        self.done += 1

    def held(self) -> list[Tensor]:
        """What exists between steps."""
        state = self.optimizer.state.values() if self.optimizer is not None else ()
        moments = chain.from_iterable(entry.values() for entry in state)
        return [*self.model.parameters(), *self.model.buffers(), *(m for m in moments if torch.is_tensor(m))]

    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _train(self, batch: Batch) -> Tensor:
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def _infer(self, batch: Batch) -> Tensor:
        return self._loss(batch)

    def _loss(self, batch: Batch) -> Tensor:
        with _precision(self.device):
            logits = self.model(batch.tokens, batch.lengths)
        return F.cross_entropy(logits.float(), batch.label)


def byte_rows(length: int, count: int, seed: int) -> Split:
    """Random bytes in rows of exactly this length: their content does not change the cost."""
    tokens = np.random.default_rng(derive(seed, "bytes", length)).integers(0, 256, count * length, dtype=np.uint8)
    return Split.of_rows(tokens, np.arange(count + 1, dtype=np.int64) * length, np.arange(count) % CLASSES)


def _precision(device: str) -> contextlib.AbstractContextManager:
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else contextlib.nullcontext()


# ----------------------------------------------------------------------------------------------------- points of a card


def _points(
    mechanism: Mechanism, setup: LraSetup, device: str, watch: Callable[[str], None] | None
) -> dict[str, list | dict]:
    """Every length in every mode, shortest first, and the parameters of the longest network that could be built."""
    points = []
    for length in sorted(setup.lengths):
        for mode in setup.modes:
            if watch is not None:
                watch(f"{mechanism} · {mode} · {length}")
            points.append(measure_point(mechanism, setup, length, mode, device))
    counts = [point["parameters"] for point in points if point["parameters"] is not None]
    return {"points": points, "parameters": {"total": counts[-1] if counts else None}}


def measure_point(mechanism: Mechanism, setup: LraSetup, length: int, mode: Mode, device: str) -> dict[str, Any]:
    """One point of a card: numbers where the step runs, else the status and the reason."""
    point: dict[str, Any] = {"length": length, "mode": mode, "status": "ok", "reason": None}
    try:
        numbers = _numbers(mechanism, setup, length, mode, device)
    except (Exception, SystemExit) as error:  # a mechanism may raise anything at all, and the sweep goes on
        numbers = dict.fromkeys(NUMBERS)
        point["status"], point["reason"] = "fail", f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if is_out_of_memory(error):
            point["status"] = "oom"
            point["reason"] = f"out of memory on {device} with {setup.batch} rows of length {length}"
    release(device)  # only now: the error kept alive the frames that hold its tensors
    return point | numbers


NUMBERS = ("steps_per_second", "steps_per_second_quartiles", "realistic_steps")
NUMBERS += ("compute_steps_per_second", "compute_steps_per_second_quartiles", "repeats")
NUMBERS += ("examples_per_second", "peak_bytes", "parameters")


def _numbers(mechanism: Mechanism, setup: LraSetup, length: int, mode: Mode, device: str) -> dict[str, Any]:
    work = Workload(mechanism, setup, length, mode, device)
    cost = warm_up(work.compute, device, calls=setup.warmup)
    repeats = affordable(cost, setup.repeats, seconds=setup.seconds)
    compute = Spread.of(time_calls(work.compute, device, count=repeats)).rate()
    warm_up(work.step, device, calls=1)
    steps = affordable(cost, setup.realistic_steps, seconds=setup.seconds)
    realistic = Spread.of(time_stretches(work.step, device, count=steps)).rate()
    counted = _memory_is_counted(setup, device)
    return {
        "steps_per_second": _figures(realistic.median),
        "steps_per_second_quartiles": [_figures(realistic.low), _figures(realistic.high)],
        "realistic_steps": steps,
        "compute_steps_per_second": _figures(compute.median),
        "compute_steps_per_second_quartiles": [_figures(compute.low), _figures(compute.high)],
        "repeats": repeats,
        "examples_per_second": _figures(realistic.median * setup.batch),
        "peak_bytes": peak_bytes(work.compute, device, held=work.held()) if counted else None,
        "parameters": work.parameters(),
    }


def _memory_is_counted(setup: LraSetup, device: str) -> bool:
    """On a CPU, memory is measured by tracking tensors, which compiled code hides."""
    return not (setup.compile and device == "cpu")


def _figures(number: float) -> float:
    """Rounded to six significant digits, more than any clock here resolves."""
    return float(f"{number:.6g}")


# ----------------------------------------------------------------------------------------------------- cards and resume


def _describe(mechanism: Mechanism, setup: LraSetup, device: str) -> cards.Card:
    """The part of a card that is known before measuring."""
    return {
        "schema": cards.SCHEMA_VERSION,
        "kind": "measurement",
        "procedure": PROCEDURE,
        "mechanism": str(mechanism),
        "title": mechanism.meta.title,
        "pattern": Pattern.NONCAUSAL_SELF.value,
        "settings": _settings(setup, device),
        "code": environment.code_version() | source.timed_code(mechanism.cls, source_hash(mechanism.cls)),
        "environment": environment.describe(),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _settings(setup: LraSetup, device: str) -> dict[str, Any]:
    own = asdict(setup) | {"lengths": sorted(setup.lengths), "modes": list(setup.modes)}
    return own | {
        "vocabulary": VOCABULARY,
        "classes": CLASSES,
        "data": "random bytes",
        "device": device,
        "precision": "bf16" if device == "cuda" else "fp32",
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "compute_clock": "device events" if device == "cuda" else "process clock",
        "memory": METHODS[device] if _memory_is_counted(setup, device) else None,
    }


def _measured_before(store: Store, mechanism: Mechanism, setup: LraSetup, device: str) -> cards.Card | None:
    """The newest card with the same settings, code and machine that holds every requested point."""
    asked = {(length, mode) for length in setup.lengths for mode in setup.modes}
    settings, machine = _common(_settings(setup, device)), environment.describe()
    code = source_hash(mechanism.cls)
    for card in reversed(store.find(kind="measurement", procedure=PROCEDURE, mechanism=str(mechanism))):
        same = _common(card["settings"]) == settings and card["environment"] == machine
        points = {(point["length"], point["mode"]) for point in card["points"]}
        if same and card["code"].get("source_sha256") == code and asked <= points:
            return card
    return None


def _common(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without the choice of points: a card that holds more of them is as good."""
    return {name: value for name, value in settings.items() if name not in ("lengths", "modes")}


def source_hash(cls: type) -> str:
    """Hash of the code that is timed."""
    return source.source_hash(cls, TIMED_PARTS)

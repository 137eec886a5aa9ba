"""What a task and a network promise, before anything is trained: `longspan check my_task.py:MyTask`.

    for result in check_task("my_task.py:MyTask"):
        print(result.promise, result.status, result.detail)
    check_backbone("my_network.py:MyNetwork")        # replaces the network of a task, ListOps unless another is named

The smoke tier is checked, on a few rows of its own data, with two mechanisms in the slots.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from longspan import attentions, tasks
from longspan.attentions import Pattern
from longspan.backbones.slots import Slots, slots_of
from longspan.conformance.report import Outcome, PromiseResult, broken, kept, not_applicable
from longspan.core.errors import DataMissing, LongspanError
from longspan.core.seeding import seed_everything
from longspan.datasets.base import Split
from longspan.tasks import Protocol, Task

ROWS = 12  # of the test split
MECHANISMS = ("softmax", "linear")
TOLERANCE = 1e-4  # in float32, between batches of different widths


@dataclass(frozen=True)
class TaskSubject:
    """A task under the protocol that is checked, with what is built once for all promises."""

    task: Task
    protocol: Protocol

    @cached_property
    def splits(self) -> Any:
        return self.task.splits(self.protocol)

    @cached_property
    def feed(self) -> Any:
        return self.task.feed(self.splits.test, self.protocol, "cpu")

    @property
    def rows(self) -> np.ndarray:
        return np.arange(min(ROWS, len(self.feed)))

    def patterns(self) -> list[Pattern]:
        return list(dict.fromkeys(self.task.meta.slots.values()))

    def model(self, mechanism: str) -> nn.Module:
        """The network with a mechanism in all slots that it can fill, softmax in the others."""
        found = attentions.get(mechanism)
        fitting = frozenset(pattern for pattern in self.patterns() if pattern in found.meta.patterns)
        seed_everything(0)
        return self.task.model(Slots(found, fitting, self.task.others(self.protocol)), self.protocol)


def declaration(subject: TaskSubject) -> Outcome:
    """Its title, version, score and slots are declared, and it has a smoke tier to try it with."""
    meta = subject.task.meta
    faults = [name for name in ("title", "score", "backbone") if not getattr(meta, name)]
    faults += ["version, a number from 1"] if not isinstance(meta.version, int) or meta.version < 1 else []
    faults += ["slots, one at least"] if not meta.slots else []
    if faults:
        return broken(f"meta lacks {', '.join(faults)}")
    return kept(f"{meta.title}, version {meta.version}, scored by {meta.score}")


def slots(subject: TaskSubject) -> Outcome:
    """The network asks its factory for slots of all declared patterns and of no other."""
    declared = set(subject.patterns())
    found = {slot.pattern for slot in slots_of(subject.model("softmax"))}
    if found == declared:
        return kept(f"{len(slots_of(subject.model('softmax')))} slots: {', '.join(sorted(found))}")
    words = [f"declared but without a slot: {', '.join(sorted(declared - found))}"] if declared - found else []
    words += [f"not declared: {', '.join(sorted(found - declared))}"] if found - declared else []
    return broken("; ".join(words) or "the network has no slot")


def splits_apart(subject: TaskSubject) -> Outcome:
    """No test example is also one of training or validation."""
    parts = {name: getattr(subject.splits, name) for name in ("train", "valid", "test")}
    known = {name: set(_texts(part)) for name, part in parts.items() if isinstance(part, Split)}
    if len(known) < len(parts):
        return not_applicable("the data are no rows of tokens")
    shared = len(known["test"] & (known["train"] | known["valid"]))
    total = max(1, len(known["test"]))
    if shared:
        return broken(f"{shared} of {total} test examples are in training or validation too")
    return kept(f"{total} test examples, none of them elsewhere")


def _texts(split: Split) -> Iterator[bytes]:
    for i in range(len(split)):
        example = split.example(i)
        yield b"|".join(text.tobytes() for text in (example if isinstance(example, tuple) else (example,)))


def gradients(subject: TaskSubject) -> Outcome:
    """The loss of a batch is finite, and every parameter of the network gets a gradient."""
    for mechanism in MECHANISMS:
        model = subject.model(mechanism).train()
        result = subject.task.loss(model, subject.feed.batch(subject.rows))
        if not torch.isfinite(result.loss):
            return broken(f"the loss with {mechanism} is {result.loss.item()}")
        result.loss.backward()
        left = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
        if left:
            return broken(f"with {mechanism} no gradient comes to {', '.join(left[:4])}")
    return kept(f"with {' and '.join(MECHANISMS)}")


def score(subject: TaskSubject) -> Outcome:
    """An evaluation gives the score that is declared, the same one each time, and a prediction for each row."""
    first, second = (_evaluated(subject, len(subject.rows)) for _ in range(2))
    name = subject.task.meta.score
    if name not in first[0]:
        return broken(f"evaluate gives {', '.join(first[0]) or 'nothing'}, and the score is {name}")
    if first[0][name] != second[0][name]:
        return broken(f"{name} is {first[0][name]:.6g}, then {second[0][name]:.6g} for the same rows")
    if not np.array_equal(first[1].get("row", []), subject.rows):
        return broken("predictions need an array `row` with the rows that were asked for, in their order")
    return kept(f"{name} {first[0][name]:.4g} before training")


def batches(subject: TaskSubject) -> Outcome:
    """What is in the other rows of a batch, and how far it is padded, never matters to a row."""
    together, alone = _evaluated(subject, len(subject.rows))[0], _evaluated(subject, 1)[0]
    for name, value in together.items():
        if not np.isclose(value, alone[name], rtol=TOLERANCE, atol=TOLERANCE):
            return broken(f"{name} is {value:.6g} in one batch and {alone[name]:.6g} row by row")
    return kept(f"{len(subject.rows)} rows in one batch and one by one")


def _evaluated(subject: TaskSubject, size: int) -> tuple[dict[str, float], Any]:
    """All metrics of the rows in batches of `size`, and the predictions."""
    model = subject.model("softmax").eval()
    with torch.no_grad():
        found = subject.task.evaluate(model, subject.feed, subject.rows, size)
    means = found.metrics | subject.task.summary(found.predictions)
    return means | subject.task.derived(means), found.predictions


def chance(subject: TaskSubject) -> Outcome:
    """The score of a guess is known, and is a possible score."""
    level = subject.task.chance(subject.splits.test)
    if level is None:
        return not_applicable("the task says that chance means nothing here")
    percent = subject.task.meta.unit == "percent"
    if not np.isfinite(level) or (percent and not 0 <= level <= 1):
        return broken(f"chance is {level}; a score in percent is a fraction from 0 to 1")
    return kept(f"{level:.4g}")


Promise = Callable[[TaskSubject], Outcome]
OF_TASKS: tuple[Promise, ...] = (declaration, slots, splits_apart, chance, gradients, score, batches)
OF_BACKBONES: tuple[Promise, ...] = (slots, gradients, score, batches)


def check_task(name: str | Task, promises: tuple[Promise, ...] = OF_TASKS) -> list[PromiseResult]:
    """Every promise of a task in its smoke tier, if it has one; an exception is a broken promise that names it."""
    task = tasks.get(name)
    if not task.protocols:
        return [PromiseResult("declaration", "broken", "the task has no protocols")]
    key = next((key for key in task.protocols if key[1] == "smoke"), next(iter(task.protocols)))
    subject = TaskSubject(task, task.protocols[key])
    return [PromiseResult(promise.__name__.replace("_", " "), *_asked(promise, subject)) for promise in promises]


def check_backbone(target: str, task: str = "listops") -> list[PromiseResult]:
    """The promises of a network that replaces the network of a task."""
    return check_task(f"{task}@{target}", OF_BACKBONES)


def _asked(promise: Promise, subject: TaskSubject) -> Outcome:
    try:
        return promise(subject)
    except DataMissing as error:
        return not_applicable(str(error))
    except LongspanError as error:
        return broken(str(error))
    except Exception as error:  # of the author's code, which may raise anything; the sentence names it
        return broken(f"{type(error).__name__}: {error}".splitlines()[0][:300])

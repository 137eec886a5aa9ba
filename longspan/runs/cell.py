"""What is to be run: a cell names it in the words of the command line, a plan has every name resolved."""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from longspan import attentions, tasks
from longspan.attentions import Mechanism, Pattern
from longspan.backbones import parameters
from longspan.backbones.slots import Slots
from longspan.core.cell import Cell, cells
from longspan.core.errors import LongspanError, PluginError, UnsupportedPattern, UsageError
from longspan.core.seeding import seed_everything
from longspan.core.signals import Stopped
from longspan.core.spec import Spec
from longspan.results.schema import LARGEST_INTEGER
from longspan.runs.fingerprint import code_identity, is_builtin, source_hash
from longspan.runs.initial import initial_sha256
from longspan.tasks import Protocol, Task

__all__ = ["Cell", "RunPlan", "as_json", "cells", "count_baseline", "count_parameters", "first_line"]


@dataclass(frozen=True)
class RunPlan:
    """A cell with every name resolved and every setting known."""

    cell: Cell
    task: Task
    mechanism: Mechanism
    patterns: tuple[Pattern, ...]
    protocol: Protocol

    @classmethod
    def of(cls, cell: Cell, *, presets: bool = True) -> "RunPlan":
        """The plan of a cell.

        A mechanism named without options runs in the form that its protocol has for it. A card already names that form,
        which is taken as it is: `presets=False`.
        """
        task = tasks.get(cell.task)
        patterns = task.patterns(cell.pattern)
        spec = Spec.parse(cell.mechanism)
        named = presets and not spec.options
        mechanism = attentions.get(task.runs_as(cell.protocol, spec.target, patterns) if named else spec)
        for pattern in patterns:
            if pattern not in mechanism.meta.patterns:
                raise UnsupportedPattern(
                    f"{mechanism} cannot run as {pattern}, which {task.name} needs; "
                    f"it supports: {', '.join(mechanism.meta.patterns)}."
                )
        if isinstance(cell.seed, bool) or not 0 <= cell.seed <= LARGEST_INTEGER:
            raise UsageError(f"A seed is an integer from 0 to {LARGEST_INTEGER}, got {cell.seed}.")
        rules = task.rules(cell.protocol, cell.tier, str(mechanism)).override(cell.overrides)
        return cls(cell, task, mechanism, patterns, rules)

    @property
    def preset(self) -> str | None:
        """The plain name that stands for this form of the mechanism under the protocol, if one does."""
        for name, preset in self.task.presets.get(self.cell.protocol, {}).items():
            forms = {preset.form(pattern) for pattern in self.patterns}
            if len(forms) == 1 and (form := forms.pop()) and str(attentions.get(form)) == str(self.mechanism):
                return name
        return None

    @property
    def pattern(self) -> str:
        """The patterns whose slots are replaced, in one word: "noncausal_self+causal_self"."""
        return "+".join(self.patterns)

    @property
    def slots(self) -> Slots:
        """What fills the slots of the network."""
        return Slots(self.mechanism, frozenset(self.patterns), self.task.others(self.protocol))

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the outcome, except the code; with the same code, the same run."""
        initial = self.protocol.recipe.initial_weights
        return {
            "task": self.task.name,
            "task_version": self.task.meta.version,
            "mechanism": str(self.mechanism),
            "pattern": self.pattern,
            "protocol": self.cell.protocol,
            "tier": self.cell.tier,
            "seed": self.cell.seed,
            "overrides": as_json(dict(self.cell.overrides)),
            "settings": as_json(asdict(self.protocol)),
            **({} if initial is None else {"initial_sha256": initial_sha256(initial)}),
        }

    @property
    def code(self) -> dict[str, Any]:
        """Which code the mechanism is: a version and a fingerprint for a built-in, a source hash for a plug-in."""
        return code_identity(self.mechanism)

    @property
    def task_source(self) -> str | None:
        """Hash of the files of a task or network that is a plug-in; None for a built-in, which has a version."""
        hashes = [source_hash(cls) for cls in self.task_classes if not cls.__module__.startswith("longspan.")]
        return hashlib.sha256("".join(hashes).encode()).hexdigest() if len(hashes) > 1 else (*hashes, None)[0]

    @property
    def task_classes(self) -> list[type]:
        """The class of the task, and that of its network where it is not the task's own."""
        return [type(self.task), *([] if self.task.network is None else [self.task.network])]

    @property
    def is_builtin(self) -> bool:
        """Whether all code of the cell is ours."""
        ours = all(cls.__module__.startswith("longspan.") for cls in self.task_classes)
        return is_builtin(self.mechanism) and ours

    @property
    def title(self) -> str:
        return f"{self.task.name} {self.mechanism} seed {self.cell.seed}"

    def model(self) -> nn.Module:
        """The network with initial weights that the seed decides."""
        seed_everything(self.cell.seed)
        try:
            return self.task.model(self.slots, self.protocol)
        except BaseException as error:  # a plug-in may raise anything at all, SystemExit included
            if isinstance(error, (LongspanError, Stopped)) or self.is_builtin:
                raise
            what = self.mechanism if is_builtin(self.mechanism) is False else self.task.name
            raise PluginError(f"{what} could not be built ({first_line(error)}); fix it.") from error


@functools.cache
def count_parameters(task: str, mechanism: str, protocol: str, tier: str, pattern: str | None = None) -> dict[str, Any]:
    """Parameters in total and by part of the network, of which only the shapes are built."""
    plan = RunPlan.of(Cell(task, mechanism, pattern, protocol, tier), presets=False)
    return parameters.count_shapes(plan.model)


def count_baseline(plan: RunPlan) -> int:
    """Parameters of the same network, of the same sizes, with softmax attention in the same slots."""
    cell = plan.cell
    if plan.protocol == plan.task.rules(cell.protocol, cell.tier, "softmax"):
        return count_parameters(cell.task, "softmax", cell.protocol, cell.tier, plan.pattern)["total"]
    softmax = replace(plan, mechanism=attentions.get("softmax"))
    return parameters.count_shapes(softmax.model)["total"]


def as_json(value: Any) -> Any:
    """As JSON sees it: tuples are lists."""
    return json.loads(json.dumps(value))


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]

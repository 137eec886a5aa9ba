"""Streams: what the layers of a network carry from one step to the next, if a recipe reads rows in order.

    streams = Streams(task, model, feed, fabric)
    parts = streams.before(parts, rows)      # each part with what its rows carry from the previous step
    streams.after(rows, update(parts))

Every row of a batch is a lane that continues where it stopped, always in the same part and process. A lane that jumps
starts without a carry. Evaluation never sees any of this.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from longspan.attentions import Carry
from longspan.backbones.carrying import forget
from longspan.backbones.slots import slots_of
from longspan.core.errors import UsageError
from longspan.tasks.base import Feed, StepResult, Task

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Saved = list[list[dict[str, torch.Tensor]]]  # for each part and layer: tensors by name, over all lanes in order


class Streams:
    def __init__(self, task: Task, model: nn.Module, feed: Feed, fabric: "Fabric"):
        if not task.streams:
            raise UsageError(
                f"recipe.order=streams reads the rows of a text one after the other, which {task.name} does not do; "
                "leave the order of its recipe, or take a task such as lm."
            )
        self._feed, self._fabric, self._slots = feed, fabric, slots_of(model)
        self._carries: list[list[Carry | None]] | None = None
        self._rows: list[np.ndarray] = []

    def before(self, parts: Sequence[Any], rows: Sequence[np.ndarray]) -> list[Any]:
        """The parts, each with what its rows carry."""
        if self._carries is None or [len(old) for old in self._rows] != [len(new) for new in rows]:
            self._carries = [[None] * len(self._slots) for _ in parts]
            return [replace(part, carry=carry) for part, carry in zip(parts, self._carries, strict=True)]
        given = []
        for part, carry, old, new in zip(parts, self._carries, self._rows, rows, strict=True):
            jumped = ~self._feed.follows(new, old)
            fresh = torch.from_numpy(jumped).to(self._fabric.device)
            given.append(replace(part, carry=forget(carry, fresh) if jumped.any() else carry))
        return given

    def after(self, rows: Sequence[np.ndarray], results: Sequence[StepResult]) -> None:
        """Keep what the parts carry on."""
        self._rows, self._carries = list(rows), [list(result.carry) for result in results]

    def state(self) -> Saved:
        """What all processes carry, in plain tensors for a checkpoint; every process must call this."""
        own = [
            [{} if carry is None else {n: t.detach().cpu() for n, t in carry._tensors().items()} for carry in part]
            for part in self._carries or []
        ]
        if self._fabric.world_size == 1:
            return own
        gathered: list[Any] = [None] * self._fabric.world_size
        torch.distributed.all_gather_object(gathered, own)
        parts = zip(*gathered, strict=True)  # each part, and below each of its layers, from all processes
        return [[_in_turn(layer) for layer in zip(*part, strict=True)] for part in parts]

    def load(self, saved: Saved, rows: Sequence[np.ndarray]) -> None:
        """Resume from the state after a step that read these rows."""
        rank, processes = self._fabric.global_rank, self._fabric.world_size
        own = [[{name: lanes[rank::processes] for name, lanes in layer.items()} for layer in part] for part in saved]
        self._rows = list(rows)
        self._carries = [
            [self._carry(slot.carry_type, tensors) for slot, tensors in zip(self._slots, part, strict=True)]
            for part in own
        ] or None

    def _carry(self, kind: type[Carry] | None, tensors: dict[str, torch.Tensor]) -> Carry | None:
        if kind is None or not tensors:
            return None
        return kind(**{name: tensor.to(self._fabric.device) for name, tensor in tensors.items()})


def _in_turn(shares: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The lanes of all processes: the first of each, the second of each, and so on.

    Memories are aligned at the right; one shorter than that of another process is padded at the left.
    """
    return {name: torch.stack(_as_long(*(share[name] for share in shares)), dim=1).flatten(0, 1) for name in shares[0]}


def _as_long(*tensors: torch.Tensor) -> list[torch.Tensor]:
    if tensors[0].ndim < 2:
        return list(tensors)
    longest = max(tensor.shape[1] for tensor in tensors)
    missing = [tensor.new_zeros(len(tensor), longest - tensor.shape[1], *tensor.shape[2:]) for tensor in tensors]
    return [torch.cat(pair, dim=1) for pair in zip(missing, tensors, strict=True)]

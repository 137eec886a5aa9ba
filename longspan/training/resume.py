"""Resuming from a checkpoint: everything in it is checked before any of it is used.

A state that belongs to another run, or that does not fit the model, the optimiser or the recipe, is set aside; training
starts from an earlier one or from the beginning. Nothing is loaded partially.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from longspan.backbones.slots import slots_of
from longspan.tasks.base import Recipe
from longspan.training import checkpoint
from longspan.training.belongs import Belongs
from longspan.training.ema import RunningAverage
from longspan.training.optimizer import STATE, load_optimizer
from longspan.training.progress import Progress
from longspan.training.selection import Selection
from longspan.training.sharding import in_one_piece, shared_as

if TYPE_CHECKING:
    from lightning.fabric import Fabric

PARTS = {"belongs", "model", "optimizer", "average", "best", "also", "sum", "progress"}
CARRY = "carry"  # one more part, if rows are read as streams
OWN = {"lr", "fused", "capturable"}  # of a parameter group: set anew on every device


@dataclass
class Resumable:
    """What a checkpoint holds of a run, and what it must fit to be used again."""

    folder: Path
    belongs: Belongs
    model: nn.Module
    optimizer: Any
    average: RunningAverage
    recipe: Recipe
    selection: Selection
    carry: list[Any] = field(default_factory=list)  # as loaded from the checkpoint

    def state(self, progress: Progress, carry: list[Any] | None = None) -> dict[str, Any]:
        """Everything that a checkpoint holds; if the model is sharded, every process must call this."""
        state: dict[str, Any] = {
            "belongs": dict(self.belongs.facts),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.mean,
            "best": self.selection.best,
            "also": self.selection.also,
            "sum": self.selection.mean.sum,
            "progress": asdict(progress),
        }
        if carry:
            state[CARRY] = carry
        return in_one_piece(state)

    def save(self, state: dict[str, Any]) -> None:
        checkpoint.save(self.folder, state["progress"]["step"], state)

    def resume(self, fabric: "Fabric") -> Progress:
        """Where the run stopped. One process chooses the checkpoint, so that all load the same one."""
        name = None
        if fabric.is_global_zero:
            state, unusable = checkpoint.latest(self.folder, self.fault)
            for path, sentence in unusable:
                checkpoint.set_aside(path, sentence)
            name = None if state is None else checkpoint.newest_first(self.folder)[0].name
        if fabric.world_size > 1:
            name = fabric.broadcast(name)
            state = None if name is None else checkpoint.load(self.folder / name)
        return Progress() if state is None else self._use(state)

    def _use(self, state: dict[str, Any]) -> Progress:
        own = self.model.state_dict()
        self.model.load_state_dict(shared_as(state["model"], own))
        load_optimizer(self.optimizer, state["optimizer"])
        self.average.load(state["average"])
        self.selection.best, self.selection.also = (shared_as(state[part], own) for part in ("best", "also"))
        self.selection.mean.load(shared_as(state["sum"], own), self.device)
        self.carry = state.get(CARRY, [])
        progress = Progress(**state["progress"])
        progress.resumed += 1
        return progress

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.state_dict().values()), torch.empty(0)).device

    def fault(self, path: Path, state: Any) -> str | None:
        """Why a state cannot be used: words that follow "The checkpoint ..."; None if it can."""
        if not isinstance(state, dict) or set(state) - {CARRY} != PARTS:
            return "is of another version of longspan, or not of longspan"
        if different := list(self.belongs.differences(state["belongs"])):
            more = f"; and {len(different) - 3} more" if len(different) > 3 else ""
            return f"belongs to another run ({'; '.join(different[:3])}{more})"
        return next(self._misfits(path, state), None)

    def _misfits(self, path: Path, state: dict[str, Any]) -> Iterator[str]:
        if not fits(state["model"], self.model.state_dict()):
            yield "has other weights than the model"
        if not fits_optimizer(state["optimizer"], self.optimizer):
            yield "has a state that does not fit the optimiser"
        if not self._fits_carry(state.get(CARRY)):
            yield "carries something else than its network does from step to step"
        if not _fits_list(state["average"], self.average.mean):
            yield "has running averages that do not fit the model"
        if wrong := unsound_progress(state["progress"], self.recipe, self.selection.metric):
            yield f"has a progress that cannot be ({wrong})"
        elif state["progress"]["step"] != checkpoint.step_of(path):
            yield f"is of step {state['progress']['step']}, which is not that of its name"
        else:
            yield from self._unselected(state)

    def _fits_carry(self, saved: Any) -> bool:
        """Whether this is what parts and layers carry, by tensor names; None without streams."""
        if self.recipe.order != "streams":
            return saved is None
        lanes = self.recipe.batch_size // self.recipe.accumulate
        return _is_list(saved, self.recipe.accumulate) and all(self._fits_part(part, lanes) for part in saved)

    def _fits_part(self, saved: Any, rows: int) -> bool:
        slots = slots_of(self.model)
        return _is_list(saved, len(slots)) and all(
            isinstance(layer, dict)
            and layer.keys() == ({one.name for one in fields(slot.carry_type)} if slot.carry_type else set())
            and all(isinstance(value, Tensor) and value.shape[:1] == (rows,) for value in layer.values())
            for layer, slot in zip(saved, slots, strict=True)
        )

    def _unselected(self, state: dict[str, Any]) -> Iterator[str]:
        """What is wrong with the weights selected so far; the progress says which of them must be there."""
        own, progress, mean = self.model.state_dict(), state["progress"], self.selection.mean
        present = {"best": progress["curve"] and not mean.steps, "also": progress["also_step"] is not None}
        if not all(fits(state[part], own if there else {}) for part, there in present.items()):
            yield "has selected weights that do not fit the model"
        if not fits(state["sum"], mean.expected(progress["step"], own)):
            yield "has a sum of weights that does not fit the model"


def fits(saved: Any, own: Mapping[str, Any]) -> bool:
    """Whether a saved state dict can replace this one: names, types, shapes, dtypes."""
    return isinstance(saved, dict) and saved.keys() == own.keys() and all(_alike(saved[n], own[n]) for n in own)


def fits_optimizer(saved: Any, optimizer: Optimizer) -> bool:
    """Whether a saved state fits this optimiser: the same groups and settings, moments for their parameters."""
    own = optimizer.state_dict()["param_groups"]
    if not isinstance(saved, dict) or saved.keys() != {"state", "param_groups"}:
        return False
    groups, states = saved["param_groups"], saved["state"]
    if not isinstance(groups, list) or not isinstance(states, dict) or len(groups) != len(own):
        return False
    if not all(
        isinstance(group, dict)
        and group.keys() == mine.keys()
        and all(repr(group[name]) == repr(mine[name]) for name in mine.keys() - OWN)
        for group, mine in zip(groups, own, strict=True)
    ):
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = dict(zip((n for group in own for n in group["params"]), parameters, strict=True))
    return all(
        number in numbers
        and isinstance(moments, dict)
        and moments.keys() == STATE
        and all(_alike(moments[name], numbers[number]) for name in STATE - {"step"})
        and isinstance(moments["step"], Tensor)
        and moments["step"].shape == ()
        for number, moments in states.items()
    )


def unsound_progress(saved: Any, recipe: Recipe, score: str) -> str | None:
    """What is wrong with a saved progress, in a few words; None if it can be that of a run by this recipe."""
    if not isinstance(saved, dict) or saved.keys() != {f.name for f in fields(Progress)}:
        return "other fields"
    for name in ("step", "train_count", "valid_count", "peak_bytes", "resumed"):
        if type(saved[name]) is not int or saved[name] < 0:
            return f"{name} is {saved[name]!r:.40}"
    for name in ("train_seconds", "total_seconds"):
        if not _is_number(saved[name]) or saved[name] < 0:
            return f"{name} is {saved[name]!r:.40}"
    sums = saved["train_sums"]  # may hold a NaN loss: the next evaluation reports it
    if not isinstance(sums, dict) or not all(isinstance(n, str) and type(v) is float for n, v in sums.items()):
        return "train_sums are no numbers"
    if saved["step"] > recipe.steps:
        return f"step {saved['step']} of {recipe.steps}"
    if wrong := _unsound_curve(saved["curve"], saved["step"], recipe, score):
        return wrong
    best = {point["step"]: point[f"valid_{score}"] for point in saved["curve"]}
    if not best:
        nothing = saved["best_step"] is saved["best_score"] is saved["also_step"] is None
        return None if nothing else "a selected step without a curve"
    chosen = saved["best_step"]
    fine = type(chosen) is int and chosen in best and repr(saved["best_score"]) == repr(best[chosen])
    if not fine:
        return "a selected step that the curve does not have"
    also, at = saved["also_step"], recipe.also_at
    reached = at is not None and at <= saved["step"] and at < recipe.steps
    fine = (type(also) is int and also in best and also <= at) if reached else also is None  # type: ignore[operator]
    return None if fine else "a second selected step that cannot be"


def _unsound_curve(curve: Any, step: int, recipe: Recipe, score: str) -> str | None:
    if not isinstance(curve, list) or not all(isinstance(point, dict) for point in curve):
        return "no learning curve"
    for point in curve:
        if not all(isinstance(name, str) and _is_number(value) for name, value in point.items()):
            return "a learning curve with something else than finite numbers"
        if not {"step", "learning_rate", f"valid_{score}"} <= point.keys():
            return f"a learning curve without valid_{score}"
    if [point["step"] for point in curve] != recipe.evaluations(step):
        return f"a learning curve of other steps than those up to {step}"
    return None


def _is_list(saved: Any, length: int) -> bool:
    return isinstance(saved, list) and len(saved) == length


def _fits_list(saved: Any, own: list[Tensor]) -> bool:
    return isinstance(saved, list) and len(saved) == len(own) and all(map(_alike, saved, own))


def _alike(saved: Any, own: Any) -> bool:
    if not isinstance(own, Tensor):
        return type(saved) is type(own)
    return isinstance(saved, Tensor) and saved.shape == own.shape and saved.dtype == own.dtype


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)

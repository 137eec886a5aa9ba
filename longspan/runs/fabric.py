"""Where and in which precision a cell runs."""

import logging
import typing

import torch
from torch import nn

from longspan.core.errors import UsageError
from longspan.tasks.base import Recipe

if typing.TYPE_CHECKING:
    from lightning.fabric import Fabric

WORTH_COMPILING = 2_000  # steps from which a GPU run earns back the time torch.compile takes
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}


def _silence() -> None:
    """Mute Lightning's messages on choices made here on purpose; which logger sends them depends on what came first."""
    for part in ("fabric", "pytorch"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
        logging.getLogger(f"lightning.{part}.utilities.rank_zero").setLevel(logging.WARNING)


_silence()  # in a process that Lightning has started, it is imported already


@typing.runtime_checkable
class Compilable(typing.Protocol):
    """A backbone that knows which of its parts torch.compile should fuse."""

    def compile_parts(self) -> None: ...


def choose_precision(asked: str, device: str) -> str:
    if asked == "auto":
        return "bf16" if device == "cuda" else "fp32"
    if asked not in PRECISIONS:
        raise UsageError(f"A precision is auto, {' or '.join(PRECISIONS)}, got {asked!r}.")
    return asked


def make_fabric(device: str, precision: str, devices: int) -> "Fabric":
    """Lightning is imported here: that takes twice as long as torch, and checking or loading does not need it."""
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.strategies.ddp import DDPStrategy

    _silence()  # its import has reset the levels
    several = DDPStrategy(start_method="spawn", find_unused_parameters=True)  # some weights may be unused
    strategy = "auto" if devices == 1 else several
    how = {"accelerator": device, "devices": devices, "strategy": strategy, "precision": PRECISIONS[precision]}
    return Fabric(**how, plugins=LightningEnvironment())  # processes are started here, also in a Slurm job


def compile_long_runs(model: nn.Module, device: str, recipe: Recipe) -> None:
    """Compile the parts of the network where that pays off; with activation checkpointing it stays as it is."""
    earned = recipe.steps >= WORTH_COMPILING and not recipe.checkpoint_activations
    if device == "cuda" and earned and isinstance(model, Compilable):
        torch.compiler.reset()  # else graphs of earlier cells use up torch's limit, and no new one is compiled
        model.compile_parts()

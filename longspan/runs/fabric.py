"""Where and in which precision a cell runs."""

import logging
import typing

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import nn

from longspan.core.errors import UsageError

WORTH_COMPILING = 2_000  # steps from which a GPU run earns back the time torch.compile takes
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}

# Lightning announces what is decided here on purpose, in every process as soon as it is started. Which of these loggers
# it uses depends on what was imported first.
for _part in ("fabric", "pytorch"):
    logging.getLogger(f"lightning.{_part}").setLevel(logging.WARNING)
    logging.getLogger(f"lightning.{_part}.utilities.rank_zero").setLevel(logging.WARNING)


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


def make_fabric(device: str, precision: str, devices: int) -> Fabric:
    several = DDPStrategy(start_method="spawn", find_unused_parameters=True)  # a mechanism need not use all it has
    strategy = "auto" if devices == 1 else several
    return Fabric(accelerator=device, devices=devices, strategy=strategy, precision=PRECISIONS[precision])  # type: ignore[arg-type]


def compile_long_runs(model: nn.Module, device: str, steps: int) -> None:
    """Let torch.compile fuse the network where that is earned back."""
    if device == "cuda" and steps >= WORTH_COMPILING and isinstance(model, Compilable):
        torch.compiler.reset()  # else the graphs of earlier cells use up what torch allows, and none is made
        model.compile_parts()

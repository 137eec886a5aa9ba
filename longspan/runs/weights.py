"""The weights of a card, read into the network that they were trained in.

A card and its weights may come from a stranger. The hash is compared first, then every shape with those of the plan,
of which only shapes are built: nothing is allocated that the file does not hold. The format (safetensors) has no code.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from longspan.backbones.parameters import Unfilled
from longspan.core.errors import CorruptFile, LongspanError
from longspan.results.files import fault_of
from longspan.runs.cell import RunPlan
from longspan.runs.fingerprint import is_builtin

Shapes = dict[str, tuple[int, ...]]
SMALLEST_LIMIT = 2**20  # sizes up to this are built whatever the file holds
MAX_TABLES = 2**32  # bytes of unsaved tensors that a network computes when it is built, such as sinusoids


def filled_with(plan: RunPlan, path: Path, recorded: str | None = None) -> nn.Module:
    """The network of a plan with the weights of a file, whose hash is compared with the one on the card."""
    if fault := fault_of(path, recorded):
        raise CorruptFile(f"{fault} Run the cell again to get the weights of this card.")
    shapes = _shapes_in(path)
    if fault := _misfit(plan, shapes, path.stat().st_size):
        raise CorruptFile(f"The weights {path.name} do not fit the card ({fault}); run its cell again.")
    model = plan.model()
    try:
        model.load_state_dict(load_file(path))
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptFile(f"The weights {path.name} do not fit the card ({reason}); run its cell again.") from error
    return model


def _shapes_in(path: Path) -> Shapes:
    """The shape of every tensor, from the header of the file."""
    try:
        with safe_open(path, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise CorruptFile(f"The weights {path.name} cannot be read ({error}); run the cell again.") from error


def _misfit(plan: RunPlan, found: Shapes, size: int) -> str | None:
    """How the plan contradicts the file, in words."""
    limit = max(size, SMALLEST_LIMIT)
    numbers = {**asdict(plan.protocol.model), **plan.mechanism.options}
    for name, value in numbers.items():
        if isinstance(value, int) and value > limit:
            return f"{name} is {value}, and the file has {size} bytes"
    try:
        with torch.device("meta"), Unfilled(), _at_most(4 * len(found) + 100):
            model = plan.model()
    except (NotImplementedError, RuntimeError):  # a mechanism that looks at the numbers it draws needs real ones
        if is_builtin(plan.mechanism):
            raise
        return None  # the caller's own code, which was passed or trusted
    except _TooMany:
        return f"it has {len(found)} tensors, the network of the card has more"
    planned: Shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name in [*planned, *found]:
        if planned.get(name) != found.get(name):
            return f"{name} is {found.get(name, 'absent')}, the card makes it {planned.get(name, 'absent')}"
    if (tables := sum(one.numel() * one.element_size() for one in model.buffers())) > max(MAX_TABLES, 2 * size):
        return f"the network of the card needs {tables} bytes beside its weights"
    return None


class _TooMany(LongspanError):
    """The network of a card has more parameters than its file."""


@contextlib.contextmanager
def _at_most(count: int) -> Iterator[None]:
    """Stop building a network after so many parameters: a card may ask for any number of layers."""
    made = 0

    def one_more(module: nn.Module, name: str, parameter: Any) -> None:
        nonlocal made
        made += 1
        if made > count:
            raise _TooMany

    hook = register_module_parameter_registration_hook(one_more)
    try:
        yield
    finally:
        hook.remove()

"""Sharding (FSDP2): every process holds a share of the weights, of their gradients and of the optimiser's moments.

    shard(model)                                  # in place; each layer is gathered while it computes
    with gathered(model): ...                     # all weights are present, as evaluation needs them
    state = in_one_piece(model.state_dict())             # plain tensors, as in one process; every process must call it
    shared_as(state, model.state_dict())          # and back, among any number of processes

What is not sharded passes through all of these unchanged, so that checkpoints are the same however a model is trained.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from longspan.backbones.slots import layers_of

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def shard(model: nn.Module, device: torch.device) -> None:
    """Shard the parameters of a model over all processes, layer by layer.

    A layer that shares a parameter with another is gathered with the rest of the model.
    """
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    wishes = {name: vars(parameter).get("optim") for name, parameter in model.named_parameters()}
    owners = Counter(id(p) for part in model.modules() for p in part.parameters(recurse=False))
    for layer in layers_of(model):
        if all(owners[id(parameter)] == 1 for parameter in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    for name, parameter in model.named_parameters():
        if wishes[name] is not None:
            parameter.optim = wishes[name]  # type: ignore[attr-defined]


def set_up(model: nn.Module, optimizer: Any, fabric: "Fabric") -> tuple[Any, Any]:
    """The model and its optimiser as Fabric runs them; a sharded model is not wrapped again."""
    if not isinstance(model, FSDPModule):
        return fabric.setup(model, optimizer)
    from lightning.fabric.wrappers import _FabricModule

    return _FabricModule(model, fabric.strategy, original_module=model), fabric.setup_optimizers(optimizer)


def kept_back(model: Any, fabric: "Fabric", enabled: bool) -> contextlib.AbstractContextManager:
    """Gradients are not synchronised inside the block, as for all but the last part of a batch."""
    sharded = next((part for part in model.modules() if isinstance(part, FSDPModule)), None)
    return fabric.no_backward_sync(model, enabled) if sharded is None else _unreduced(sharded, enabled)


@contextlib.contextmanager
def _unreduced(model: FSDPModule, enabled: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(not enabled)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@contextlib.contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Every process has all weights inside the block; does nothing if nothing is sharded."""
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)


def in_one_piece(state: Any) -> Any:
    """A state with every sharded tensor gathered, however deep in dictionaries and lists."""
    return tree_map_only(DTensor, lambda tensor: tensor.full_tensor(), state)


def shared_as(saved: Mapping[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Any]:
    """Saved tensors, sharded where the tensors of the same names in `own` are."""
    return {name: share_as(value, own.get(name)) for name, value in saved.items()}


def share_as(saved: Any, own: Any) -> Any:
    """One saved tensor, of which this process keeps its shard if `own` is sharded."""
    if not isinstance(own, DTensor) or not isinstance(saved, Tensor):
        return saved
    return distribute_tensor(saved.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

"""Vectors of memory-compressed attention: the memory of the authors' tensor2tensor, and which slots a query sees."""

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.mca import MemoryCompressed
from tests.attentions.parity import Contradiction, Replay, Vector, call_with


class Core(nn.Module):
    """The memory before it is projected."""

    def __init__(self, spec: str, vector: Vector):
        super().__init__()
        layer = attentions.get(spec)(vector.arrays["x"].shape[-1], 1, vector.pattern, bias=False)
        assert isinstance(layer, MemoryCompressed)
        self.layer = layer.to(vector.dtype).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.memory(x)


def replay(vector: Vector) -> Replay:
    spec = f"mca(factor={vector.meta['hyperparameters']['factor']}, dense=True)"
    core = Core(spec, vector)
    visible = vector.arrays["mask"]
    slots, queries = torch.arange(visible.shape[1]), torch.arange(visible.shape[0])
    if vector.pattern.causal and not (visible == (core.layer.first_seen(slots) <= queries[:, None])).all():
        raise Contradiction(f"its mask is not that of {spec}")

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        weight = rearrange(arrays["param_conv_weight"], "f i o -> o i f")
        return call_with(core, {"layer.compress.weight": weight}, (arrays["x"],))

    return Replay(spec, run)

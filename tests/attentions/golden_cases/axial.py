"""Vectors of axial attention: the PyTorch package, per axis one map for queries and one for keys and values."""

from collections.abc import Mapping

import torch
from torch import Tensor

from longspan import attentions
from tests.attentions.parity import Replay, Vector, agree, call_with


def replay(vector: Vector) -> Replay:
    sizes, width = vector.meta["hyperparameters"], vector.arrays["x"].shape[-1]
    shape, combine = tuple(sizes["shape"]), "sum" if sizes["sum_axial_out"] else "chain"
    spec = f"axial(shape={shape}, combine={combine}, projections=own)"
    inner = len(vector.arrays["param_axial_attentions__0__fn__to_q__weight"])
    agree(vector, dim_heads=inner // sizes["heads"])
    layer = attentions.get(spec)(width, sizes["heads"], vector.pattern, inner=inner).to(vector.dtype).eval()

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        tensors = {}
        for axis in range(len(shape)):
            recorded = f"param_axial_attentions__{axis}__fn__to_"
            tensors[f"axes.{axis}.query.weight"] = arrays[f"{recorded}q__weight"]
            key, value = arrays[f"{recorded}kv__weight"].chunk(2)
            tensors |= {f"axes.{axis}.key.weight": key, f"axes.{axis}.value.weight": value}
            tensors |= {f"axes.{axis}.out.{name}": arrays[f"{recorded}out__{name}"] for name in ("weight", "bias")}
            zero = torch.zeros(inner, dtype=vector.dtype)  # the package has no other biases
            tensors |= {f"axes.{axis}.{name}.bias": zero for name in ("query", "key", "value")}
        return call_with(layer, tensors, (arrays["x"].flatten(1, -2),)).reshape(arrays["x"].shape)

    return Replay(spec, run)

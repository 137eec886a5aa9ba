"""Vectors of SOFT: the authors' code on pictures, with the gradient of an exact inverse."""

from collections.abc import Mapping

from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.released.authors_soft import AuthorsSOFT
from tests.attentions.parity import Replay, Vector, agree, call_with

PARAMETERS = {
    "layer.summarise.weight": "param_Qlandmark_op__weight",
    "layer.norm.weight": "param_Qnorm_act__0__weight",
    "layer.norm.bias": "param_Qnorm_act__0__bias",
    "layer.conv.weight": "param_conv__weight",
}


class Core(nn.Module):
    """The attention between the projections."""

    def __init__(self, spec: str, vector: Vector):
        super().__init__()
        _, heads, _, channels = vector.arrays["q"].shape
        layer = attentions.get(spec)(heads * channels, heads, vector.pattern)
        assert isinstance(layer, AuthorsSOFT)
        self.layer = layer.to(vector.dtype).eval()

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.layer.attend(u, v)


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    agree(vector, H=vector.arrays["q"].shape[2] // sizes["W"])
    options = f"ratio={sizes['ratio']}, columns={sizes['W']}, iterations={sizes['max_iter']}, conv={sizes['conv_size']}"
    spec = f"authors_soft({options})"
    core = Core(spec, vector)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        parameters = {own: arrays[recorded] for own, recorded in PARAMETERS.items() if recorded in arrays}
        return call_with(core, parameters, (arrays["q"], arrays["v"]))

    return Replay(spec, run)

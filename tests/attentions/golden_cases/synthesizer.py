"""Vectors of the Synthesizer: all are Long Range Arena's code, whose plain random kind is the paper's."""

from collections.abc import Callable, Mapping

import torch
from einops import rearrange
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.released.lra_synthesizer import LRASynthesizer
from longspan.attentions.synthesizer import Synthesizer
from longspan.kernels.factor_attention import score_attention
from tests.attentions.parity import Replay, Vector, call_with

MODES = ("random", "factorized_random", "dense")


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    mode, dot = sizes["mode"], not sizes["ignore_dot_product"]
    if mode not in MODES:
        return f"synthesizer is {', '.join(MODES)}, not {mode}"
    if mode != "dense" and not dot and vector.key_mask is None:  # as in the paper; LRA's code ignores masks
        return _of_the_paper(vector, mode, sizes["k"])
    if vector.pattern.causal:
        return "lra_synthesizer is the encoder of Long Range Arena, which is not causal"
    if mode == "dense":
        return _replay(f"lra_synthesizer(kind=dense, dot={dot})", vector, _dense)
    if mode == "random":
        spec = f"lra_synthesizer(kind=random, dot={dot})"
        return _replay(spec, vector, lambda arrays: {"random": arrays["param_random"]})
    spec = f"lra_synthesizer(kind=factorised_random, rank={sizes['k']}, dot={dot})"
    return _replay(spec, vector, lambda arrays: {name: arrays[f"param_{name}"] for name in ("random1", "random2")})


def _of_the_paper(vector: Vector, mode: str, rank: int) -> Replay:
    if mode == "random":
        return _replay("synthesizer(kind=random)", vector, lambda arrays: {"scores": arrays["param_random"]})
    spec = f"synthesizer(kind=factorised_random, rank={rank})"
    return _replay(
        spec,
        vector,
        lambda arrays: {"row_factors": arrays["param_random1"], "column_factors": arrays["param_random2"].mT},
    )


def _replay(spec: str, vector: Vector, parameters: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> Replay:
    """Scores and weighted values of a layer; its input is q, k and v concatenated, as recorded."""
    _, heads, _, channels = vector.arrays["q"].shape
    longest = vector.meta["hyperparameters"]["max_length"]
    layer = attentions.get(spec)(
        3 * heads * channels, heads, vector.pattern, inner=heads * channels, max_length=longest
    )
    core = _Core(layer.to(vector.dtype).eval())

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        tensors = {f"layer.{name}": tensor for name, tensor in parameters(arrays).items()}
        return call_with(core, tensors, (arrays["q"], arrays["k"], arrays["v"], vector.key_mask))

    return Replay(spec, run)


class _Core(nn.Module):
    """The attention between the projections of either mechanism."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        x = torch.cat([rearrange(u, "b h n c -> b n (h c)") for u in (q, k, v)], dim=-1)
        layer = self.layer
        if isinstance(layer, Synthesizer):
            n = x.shape[1]
            return score_attention(layer._scores(x, slice(n), k), v, mask, causal=layer.pattern.causal)
        assert isinstance(layer, LRASynthesizer)
        return layer.attend(layer.scores(x), v, q if layer.dot else None, k if layer.dot else None, mask)


def _dense(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        "hidden.weight": rearrange(arrays["param_dense_syn_kernel"], "d h c -> (h c) d"),
        "hidden.bias": arrays["param_dense_syn_bias"].flatten(),
        "to_places.weight": arrays["param_dense_syn_len_kernel"].T,
        "to_places.bias": arrays["param_dense_syn_len_bias"],
    }

"""Vectors of S4D: the short official file, the long official module without its output map, and CAB's layer."""

from collections.abc import Mapping
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from longspan import attentions
from tests.attentions.golden_cases.s4 import Mixing, in_turn
from tests.attentions.parity import Replay, Vector, agree, call_with

RULES = ("zoh", "bilinear")

OUTPUTS = {"GLU(1x1 conv)": "glu"}
ACTIVATIONS = {"gelu (exact)": "gelu"}
KERNELS = ("s4d", "diag")  # the same formula under two names


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    options = {"state": sizes["d_state"], "channels": sizes.get("channels", 1)}
    options["bidirectional"] = sizes.get("bidirectional", False)
    if vector.pattern.causal:
        agree(vector, bidirectional=False)
    if "param_B" in vector.arrays:
        return _module_without_output_map(vector, options)
    read = _cab_layer if "param_w_imag" in vector.arrays else _official_file
    activation, rule = sizes.get("activation", "gelu (exact)"), sizes.get("discretisation", "zoh")
    output = "linear" if read is _cab_layer else OUTPUTS.get(sizes.get("output", "GLU(1x1 conv)"))
    if output is None or activation not in ACTIVATIONS or rule not in RULES or not sizes.get("B_is_ones", True):
        return f"s4d has GELU before its map out, B of ones and the rules {' and '.join(RULES)}"
    options |= {"output": output, "activation": ACTIVATIONS[activation], "rule": rule, "tied": read is _cab_layer}
    spec = f"s4d({', '.join(f'{name}={value}' for name, value in options.items())})"
    layer = attentions.get(spec)(sizes["d_model"], 1, vector.pattern).to(vector.dtype)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        if "x" in arrays:
            return call_with(layer, read(arrays), (arrays["x"],))
        y = call_with(layer, read(arrays), (rearrange(arrays["u"], "b d t -> b t d"),))
        return rearrange(y, "b t d -> b d t")

    return Replay(spec, run)


def _module_without_output_map(vector: Vector, options: dict[str, Any]) -> Replay | str:
    """The convolution of the long official module, which concatenates all its channels in the output."""
    sizes = vector.meta["hyperparameters"]
    if sizes["disc"] not in RULES or sizes.get("mode", "s4d") not in KERNELS:
        return f"s4d has a diagonal matrix and the rules {' and '.join(RULES)}, not {sizes['mode']} by {sizes['disc']}"
    if (sizes.get("l_max") or sizes["length"]) < sizes["length"]:
        return "s4d has a kernel as long as the sequence"
    agree(vector, n_ssm=len(vector.arrays["param_A_real"]))
    width = sizes["d_model"]
    options |= {"rule": sizes["disc"], "tied": len(vector.arrays["param_A_real"]) == 1 and width > 1}
    spec = f"s4d({', '.join(f'{name}={value}' for name, value in options.items())})"
    layer = Mixing(attentions.get(spec)(width, 1, vector.pattern).to(vector.dtype))

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        tensors = _official_module(in_turn(arrays, width))
        u = rearrange(arrays["u"], "b d t -> b t d")
        y = call_with(layer, {f"layer.{name}": value for name, value in tensors.items()}, (u,))
        return rearrange(y, "b t cd -> b cd t")

    return Replay(spec, run)


def _official_file(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        "log_decay": arrays["param_log_A_real"],
        "frequency": arrays["param_A_imag"],
        "log_step": arrays["param_log_dt"],
        "c": rearrange(arrays["param_C"], "h n two -> 1 h n two"),
        "skip": rearrange(arrays["param_D"], "h -> 1 h"),
        "out.weight": rearrange(arrays["param_output_linear_0_weight"], "e d 1 -> e d"),
        "out.bias": arrays["param_output_linear_0_bias"],
    }


def _official_module(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    b, c = (torch.view_as_complex(arrays[name]) for name in ("param_B", "param_C"))
    return {
        "log_decay": arrays["param_A_real"],
        "frequency": -arrays["param_A_imag"],  # stored with the opposite sign there
        "log_step": rearrange(arrays["param_inv_dt"], "h 1 -> h"),
        "c": torch.view_as_real(b * c),
        "skip": arrays["param_D"],
    }


def _cab_layer(arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        "log_decay": arrays["param_log_w_real"],
        "frequency": arrays["param_w_imag"],
        "log_step": arrays["param_log_dt"],
        "c": arrays["param_C"],
        "skip": arrays["param_D"],
        "out.weight": arrays["param_output_linear_weight"],
        "out.bias": arrays["param_output_linear_bias"],
    }

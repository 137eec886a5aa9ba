"""Vectors of S4D: the short official file, the long official module without its output map, and CAB's layer."""

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor
from torch.func import functional_call

from longspan import attentions
from tests.attentions.parity import Replay, Vector


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    options = {"state": sizes["d_state"], "channels": sizes.get("channels", 1)}
    options["bidirectional"] = sizes.get("bidirectional", False)
    if "param_B" in vector.arrays:
        if sizes["disc"] not in ("zoh", "bilinear") or options["channels"] > 1:
            return "s4d without its output map has one channel a feature, and the rules zoh and bilinear"
        options["tied"] = len(vector.arrays["param_A_real"]) == 1 and sizes["d_model"] > 1
        read, options = _official_module, options | {"activation": "none", "output": "none", "rule": sizes["disc"]}
    elif "param_w_imag" in vector.arrays:
        read, options = _cab_layer, options | {"output": "linear", "tied": True}
    else:
        read = _official_file
    spec = f"s4d({', '.join(f'{name}={value}' for name, value in options.items())})"
    layer = attentions.get(spec)(sizes["d_model"], 1, vector.pattern).to(vector.dtype)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        if "x" in arrays:
            return functional_call(layer, read(arrays), (arrays["x"],))
        y = functional_call(layer, read(arrays), (rearrange(arrays["u"], "b d t -> b t d"),))
        return rearrange(y, "b t d -> b d t")

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
        "frequency": -arrays["param_A_imag"],  # stored with the other sign there
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

"""Vectors of S4: the official kernel and convolution, whose stored C~ = C (I - A^L) belongs to one length."""

from collections.abc import Mapping

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions.state_space import StateSpace
from longspan.kernels.state_space import state_space
from tests.attentions.parity import Replay, Vector, agree, call_with


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if len(vector.arrays["param_P"]) > 1:
        return "s4 corrects its diagonal matrix by one rank, not more"
    if sizes.get("mode", "dplr") != "dplr":
        return f"s4 has a diagonal matrix with a correction of low rank, not {sizes['mode']}"
    if (sizes.get("l_max") or sizes["length"]) < sizes["length"]:
        return "s4 has a kernel as long as the sequence"
    if vector.pattern.causal:
        agree(vector, bidirectional=False)
    agree(vector, n_ssm=len(vector.arrays["param_A_real"]))
    spec = f"s4(state={sizes['d_state']}, channels={sizes['channels']}, {_kind(vector)})"
    layer = attentions.get(spec)(sizes["d_model"], 1, vector.pattern).to(vector.dtype)

    def run(arrays: Mapping[str, Tensor]) -> Tensor:
        arrays = in_turn(arrays, sizes["d_model"])
        c = uncorrected(arrays, sizes["length"])
        recorded = torch.view_as_complex(arrays["param_C_before_correction"])
        torch.testing.assert_close(c.detach(), recorded, rtol=0, atol=1e-9)  # a solve against I - A^L amplifies
        tensors = {
            "log_decay": arrays["param_A_real"],
            "frequency": -arrays["param_A_imag"],  # stored with the opposite sign there
            "log_step": rearrange(arrays["param_inv_dt"], "d 1 -> d"),
            "p": rearrange(arrays["param_P"], "1 d n two -> d n two"),
            "b": rearrange(arrays["param_B"], "1 d n two -> d n two"),
            "c": torch.view_as_real(c.resolve_conj()),
            "skip": arrays["param_D"],
        }
        u = rearrange(arrays["u"], "b d t -> b t d")
        y = call_with(Mixing(layer), {f"layer.{name}": value for name, value in tensors.items()}, (u,))
        return rearrange(y, "b t cd -> b cd t")

    return Replay(spec, run)


def _kind(vector: Vector) -> str:
    sizes = vector.meta["hyperparameters"]
    tied = len(vector.arrays["param_A_real"]) == 1 and sizes["d_model"] > 1
    return f"tied={tied}, bidirectional={sizes.get('bidirectional', True)}"


def in_turn(arrays: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Features cycle through the systems where there are several but fewer than features."""
    owners = len(arrays["param_A_real"])
    more = 1 if owners == 1 else width // owners
    repeated = {name: arrays[name].repeat(more, 1) for name in ("param_A_real", "param_A_imag")}
    repeated |= {n: arrays[n].repeat(1, more, 1, 1) for n in ("param_B", "param_P") if n in arrays}
    return {**arrays, **repeated}


def uncorrected(arrays: Mapping[str, Tensor], length: int) -> Tensor:
    """C from C~ = C (I - A^L), with all conjugate pairs written out, so that gradients reach C~."""
    p, c = (torch.view_as_complex(arrays[name]) for name in ("param_P", "param_C"))
    diagonal = torch.complex(-arrays["param_A_real"].exp(), -arrays["param_A_imag"])
    p, c, diagonal = (torch.cat([half, half.conj()], dim=-1) for half in (p[0], c, diagonal))
    a = torch.diag_embed(diagonal) - einsum(p, p.conj(), "d i, d j -> d i j")
    half_step = arrays["param_inv_dt"].exp()[..., None] / 2
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    sampled = torch.linalg.solve(one - half_step * a, one + half_step * a)
    correction = one - torch.linalg.matrix_power(sampled, length)
    whole = torch.linalg.solve(correction, rearrange(c, "c d n -> c d 1 n"), left=False)
    return rearrange(whole, "c d 1 n -> c d n")[..., : c.shape[-1] // 2]


class Mixing(nn.Module):
    """The convolution without the output map, as a separate module so that its parameters can be replaced."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        assert isinstance(layer, StateSpace)
        self.layer = layer

    def forward(self, u: Tensor) -> Tensor:
        return state_space(u, self.layer.system(), self.layer.skip)

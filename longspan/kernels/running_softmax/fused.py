"""Weights within a chunk by Triton kernels, as operators of torch: all pairs, slot by slot, and none of it is kept.

With w_tsf = exp(a_sf - m_tf) for s <= t, else 0, there are three sums, each of which is a gradient of the others:

    rows     T_tf = sum_s x_ts w_tsf      Z_tf = sum_s w_tsf
    pairs    G_ts = sum_f p_tf w_tsf
    keys     A_sf = sum_t (u_tf x_ts + z_tf) w_tsf

Signatures of operators are read by torch, which knows tensors but no shapes: x and G are [N, C, C], others [N, C, r].
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.kernels.choice import HAS_TRITON

SHORTEST = 33  # tokens below which a chunk is not full


@dataclass(frozen=True)
class Fused:
    """The weights exp(a_s - m_t) for s <= t in the same chunk."""

    a: Float[Tensor, "b h g c r"]
    m: Float[Tensor, "b h g c r"]

    def within(self, x: Float[Tensor, "b h g c c"]) -> tuple[Float[Tensor, "b h g c r"], Float[Tensor, "b h g c r"]]:
        """sum_{s <= t} x_ts exp(a_s - m_t), and the sums without x."""
        total, sums = rows(_flat(x), *self._flat)
        return total.view(self.a.shape), sums.view(self.a.shape)

    def sums(self) -> Float[Tensor, "b h g c r"]:
        """sum_{s <= t} exp(a_s - m_t)."""
        return rows(None, *self._flat)[1].view(self.a.shape)

    def over_slots(self, p: Float[Tensor, "b h g c r"]) -> Float[Tensor, "b h g c c"]:
        """sum_f p_tf exp(a_sf - m_tf) for s <= t, and 0 for later s."""
        return pairs(_flat(p), *self._flat).unflatten(0, self.a.shape[:3])

    @property
    def _flat(self) -> tuple[Tensor, Tensor]:
        return _flat(self.a), _flat(self.m)


def fits(a: Float[Tensor, "b h t r"]) -> bool:
    """Whether `impl="auto"` takes these kernels: on a GPU, in single precision, for whole chunks."""
    return HAS_TRITON and a.device.type == "cuda" and a.dtype == torch.float32 and a.shape[2] >= SHORTEST


def _flat(x: Float[Tensor, "b h g c r"]) -> Float[Tensor, "n c r"]:
    return x.flatten(0, 2).contiguous()


@torch.library.custom_op("longspan::running_softmax_rows", mutates_args=())
def rows(x: Tensor | None, a: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """T and Z; without x only Z is computed."""
    from longspan.kernels.running_softmax import triton

    with torch.cuda.device_of(a):  # Triton launches on the current device
        return triton.rows(x, a, m)


@rows.register_fake
def _(x, a, m):
    return torch.empty_like(a), torch.empty_like(a)


@torch.library.custom_op("longspan::running_softmax_pairs", mutates_args=())
def pairs(p: Tensor, a: Tensor, m: Tensor) -> Tensor:
    """G."""
    from longspan.kernels.running_softmax import triton

    with torch.cuda.device_of(a):
        return triton.pairs(p, a, m)


@pairs.register_fake
def _(p, a, m):
    return a.new_empty(*a.shape[:2], a.shape[1])


@torch.library.custom_op("longspan::running_softmax_keys", mutates_args=())
def keys(u: Tensor | None, x: Tensor | None, z: Tensor | None, a: Tensor, m: Tensor) -> Tensor:
    """A; u and x come together."""
    from longspan.kernels.running_softmax import triton

    with torch.cuda.device_of(a):
        return triton.keys(u, x, z, a, m)


@keys.register_fake
def _(u, x, z, a, m):
    return torch.empty_like(a)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)
    ctx.set_materialize_grads(False)


def _back_from_rows(ctx, dt, dz):
    x, a, m = ctx.saved_tensors
    dt, dz = (None if u is None else u.contiguous() for u in (dt, dz))
    if x is None or dt is None:
        return None, None if dz is None else keys(None, None, dz, a, m), None
    return pairs(dt, a, m), keys(dt, x, dz, a, m), None


def _back_from_pairs(ctx, dg):
    p, a, m = ctx.saved_tensors
    dg = dg.contiguous()
    return rows(dg, a, m)[0], keys(p, dg, None, a, m), None


rows.register_autograd(_back_from_rows, setup_context=_remember)
pairs.register_autograd(_back_from_pairs, setup_context=_remember)

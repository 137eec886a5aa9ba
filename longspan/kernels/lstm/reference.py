"""The LSTM token by token, and its gradient written out, since an operator has no autograd inside."""

import torch
from jaxtyping import Float
from torch import Tensor


def forward(
    z: Float[Tensor, "b n gates"], recurrent: Float[Tensor, "gates r"]
) -> tuple[Float[Tensor, "b n r"], Float[Tensor, "b n kept"]]:
    """h, and for the backward pass the cells and the open gates c, i, f, g, o side by side [b n 5r]."""
    b, n, r = *z.shape[:2], recurrent.shape[1]
    h = c = z.new_zeros(b, r)
    to_gates, states, kept = recurrent.mT, [], []
    for z_t in z.unbind(1):
        i, f, g, o = torch.addmm(z_t, h, to_gates).chunk(4, dim=1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        states.append(h)
        kept += [c, i, f, g, o]
    if n == 0:
        return z.new_zeros(b, 0, r), z.new_zeros(b, 0, 5 * r)
    return torch.stack(states, dim=1), torch.cat(kept, dim=1).view(b, n, 5 * r)


def backward(
    dh: Float[Tensor, "b n r"], kept: Float[Tensor, "b n kept"], recurrent: Float[Tensor, "gates r"]
) -> Float[Tensor, "b n gates"]:
    """The gradient of z, from the last token to the first.

    dc_t = dh_t o (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1), and dh_t includes W^T dz_(t+1).
    """
    c, i, f, g, o = kept.chunk(5, dim=2)
    before = torch.cat([torch.zeros_like(c[:, :1]), c[:, :-1]], dim=1)
    top = c.tanh()
    of_cell = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], dim=2)  # [b n 3 r], times dc
    of_state, to_cell = top * o * (1 - o), o * (1 - top * top)  # times dh
    onto_h = onto_c = dh.new_zeros(len(dh), recurrent.shape[1])
    dz = dh.new_zeros(*dh.shape[:2], len(recurrent))
    steps = zip(*(x.unbind(1) for x in (dz, dh, to_cell, of_cell, of_state, f)), strict=True)
    for dz_t, dh_t, to_c, by_c, by_h, f_t in reversed(list(steps)):
        dh_t = dh_t + onto_h
        dc = dh_t * to_c + onto_c
        dz_t.copy_(torch.cat([(dc[:, None] * by_c).flatten(1), dh_t * by_h], dim=1))
        onto_h, onto_c = dz_t @ recurrent, dc * f_t
    return dz

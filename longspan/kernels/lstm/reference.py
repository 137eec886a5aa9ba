"""The LSTM token by token, and its gradient written out, for an operator has no autograd inside."""

import torch
from jaxtyping import Float
from torch import Tensor


def forward(
    z: Float[Tensor, "b n gates"], recurrent: Float[Tensor, "gates r"]
) -> tuple[Float[Tensor, "b n r"], Float[Tensor, "b n kept"]]:
    """h, and for the backward pass the cells and the open gates c, i, f, g, o side by side [b n 5r]."""
    b, r = len(z), recurrent.shape[1]
    h = c = z.new_zeros(b, r)
    states, kept = [z.new_empty(b, 0, r)], [z.new_empty(b, 0, 5 * r)]
    for z_t in z.unbind(1):
        i, f, g, o = (z_t + h @ recurrent.mT).chunk(4, dim=1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        states.append(h[:, None])
        kept.append(torch.cat([c, i, f, g, o], dim=1)[:, None])
    return torch.cat(states, dim=1), torch.cat(kept, dim=1)


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
    dz = dh.new_zeros(*dh.shape[:2], len(recurrent))
    onto_h = onto_c = dh.new_zeros(len(dh), recurrent.shape[1])
    for t in reversed(range(dh.shape[1])):
        dh_t = dh[:, t] + onto_h
        dc = dh_t * to_cell[:, t] + onto_c
        dz[:, t] = torch.cat([(dc[:, None] * of_cell[:, t]).flatten(1), dh_t * of_state[:, t]], dim=1)
        onto_h, onto_c = dz[:, t] @ recurrent, dc * f[:, t]
    return dz

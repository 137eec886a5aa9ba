"""The loss of every token over a large vocabulary, without ever holding all logits.

    nll_t = logsumexp_v (h_t . e_v + b_v) - (h_t . e_y + b_y)

Tokens are taken chunk by chunk; the backward pass recomputes their logits. The loss is in float32, also under autocast.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ENTRIES = 2**28  # logits held at once: 1 GiB in float32


def chunked_cross_entropy(
    hidden: Float[Tensor, "*tokens d"],
    table: Float[Tensor, "v d"],
    target: Int[Tensor, "*tokens"],
    bias: Float[Tensor, " v"] | None = None,
    *,
    entries: int = ENTRIES,
) -> Float[Tensor, "*tokens"]:
    """Negative log-likelihood in nats of each target; 0 where the target is negative."""
    chunk = max(1, entries // table.shape[0])
    h, y = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    parts = []
    for h_part, y_part in zip(h.split(chunk), y.split(chunk), strict=True):
        if torch.is_grad_enabled() and len(y) > chunk:
            part = checkpoint(_nll, h_part, table, bias, y_part, use_reentrant=False, preserve_rng_state=False)
        else:
            part = _nll(h_part, table, bias, y_part)
        parts.append(part)
    return (torch.cat(parts) if parts else h.new_zeros(0)).reshape(target.shape)


def _nll(
    hidden: Float[Tensor, "t d"],
    table: Float[Tensor, "v d"],
    bias: Float[Tensor, " v"] | None,
    target: Int[Tensor, " t"],
) -> Float[Tensor, " t"]:
    logits = F.linear(hidden, table, bias)
    precise = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(precise, target.clamp(min=0).long(), reduction="none")
    return loss.masked_fill(target < 0, 0.0)

"""Linear attention in plain PyTorch: the definition.

`step` is the recurrence of the causal form for one token, used in decoding; `recurrence` applies it to all tokens, and
`chunked` computes the same a chunk at a time. States hold key-value sums [b h r e].
"""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.kernels.packing import Layout, Rows
from longspan.kernels.precision import at_least_single
from longspan.kernels.running_sum import fading_sum


def linear_attention(
    q: Float[Tensor, "b h n c"],
    k: Float[Tensor, "b h m c"],
    v: Float[Tensor, "b h m e"],
    *,
    feature: str,
    causal: bool,
    key_mask: Bool[Tensor, "b m"] | None,
    angles: tuple[Tensor | None, Tensor | None],
    decay: Float[Tensor, "b h m"] | None,
    normalize: bool,
    eps: float,
    floor: float,
    signed: bool,
    initial_state: Float[Tensor, "b h r e_"] | None,
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h r e_"]]:
    """The output and the state after all keys."""
    phi_q, phi_k = features(q, feature, angles[0]), features(k, feature, angles[1], key_mask)
    values = with_ones(v) if normalize else at_least_single(v)
    if decay is not None and key_mask is not None:  # padding does not advance the state
        decay = decay.masked_fill(~key_mask[:, None], 0)
    if causal:
        y, state = chunked(phi_q, phi_k, values, decay, initial_state)
    else:
        state = phi_k.mT @ values
        state = state if initial_state is None else state + initial_state
        y = phi_q @ state
    return (divided(y, eps=eps, floor=floor, signed=signed) if normalize else y).to(v.dtype), state


def features(
    x: Float[Tensor, "b h *n c"],
    feature: str,
    angles: Float[Tensor, " b *n"] | None = None,
    mask: Bool[Tensor, " b *n"] | None = None,
) -> Float[Tensor, "b h *n r"]:
    """phi(x) in float32 or better; a hidden key gets 0, so that it adds nothing to any sum."""
    x = at_least_single(x)
    if feature == "elu":
        x = F.elu(x.contiguous()) + 1  # all three keep strides that a compiled graph does not expect
    elif feature == "sigmoid":
        x = x.contiguous().sigmoid()
    elif feature == "cosine":
        assert angles is not None
        x, angle = F.relu(x.contiguous()), rearrange(angles, "b ... -> b 1 ... 1")
        x = torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)
    return x if mask is None else x.masked_fill(~rearrange(mask, "b ... -> b 1 ... 1"), 0)


def with_ones(v: Float[Tensor, "*n e"]) -> Float[Tensor, "*n e_plus_1"]:
    """Values with a column of ones, whose weighted sum is the denominator."""
    v = at_least_single(v)
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def divided(
    y: Float[Tensor, "*n e_plus_1"], *, eps: float = 0.0, floor: float = 0.0, signed: bool = False
) -> Float[Tensor, "*n e"]:
    """Numerators over the denominator, which is the last column."""
    denominator = y[..., -1:] + eps if eps else y[..., -1:]
    if signed:
        size = denominator.abs().clamp(min=floor)
        return y[..., :-1] / torch.where(denominator < 0, -size, size)
    return y[..., :-1] / denominator.clamp(min=floor)


def step(
    phi_q: Float[Tensor, "b h r"],
    phi_k: Float[Tensor, "b h r"] | None,
    v: Float[Tensor, "b h e"] | None,
    decay: Float[Tensor, "b h"] | None,
    state: Float[Tensor, "b h r e"],
) -> tuple[Float[Tensor, "b h e"], Float[Tensor, "b h r e"]]:
    """S_t = exp(g_t) S_{t-1} + phi(k_t) v_t^T and y_t = phi(q_t) S_t; without a key the state is only read."""
    if decay is not None:
        state = state * decay[..., None, None].exp()
    if phi_k is not None and v is not None:
        state = state + einsum(phi_k, v, "b h r, b h e -> b h r e")
    return einsum(phi_q, state, "b h r, b h r e -> b h e"), state


def recurrence(
    phi_q: Float[Tensor, "b h t r"],
    phi_k: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    decay: Float[Tensor, "b h t"] | None = None,
    initial_state: Float[Tensor, "b h r e"] | None = None,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h r e"]]:
    """Token by token."""
    state, y = _start(phi_k, v, initial_state), [v[:, :, :0]]
    for t in range(v.shape[2]):
        g = None if decay is None else decay[:, :, t]
        y_t, state = step(phi_q[:, :, t], phi_k[:, :, t], v[:, :, t], g, state)
        y.append(y_t[:, :, None])
    return torch.cat(y, dim=2), state


def chunked(
    phi_q: Float[Tensor, "b h t r"],
    phi_k: Float[Tensor, "b h t r"],
    v: Float[Tensor, "b h t e"],
    decay: Float[Tensor, "b h t"] | None = None,
    initial_state: Float[Tensor, "b h r e"] | None = None,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h r e"]]:
    """The recurrence by chunks: dense inside a chunk, one state between chunks.

        y_t = sum_{s <= t, same chunk} (q_t . k_s) exp(G_t - G_s) v_s  +  exp(G_t - G_start) q_t S

    with G the running sum of the log-decay. Time O(n (C + r) e), memory O(n (C + r + e) + (n / C) r e) for chunks of C
    tokens: no state per token is ever stored.
    """
    length, start = v.shape[2], _start(phi_k, v, initial_state)
    if length == 0:
        return v, start
    chunk = 64 if phi_q.shape[3] <= 64 else 128  # writing states costs no more than reading tokens, scores stay small
    chunk = chunk if chunk < length else length  # min() would stay symbolic in a graph compiled for any length
    chunks = -(-length // chunk)
    fill = chunks * chunk - length
    q, k, v = (F.pad(x, (0, 0, 0, fill)).unflatten(2, (chunks, chunk)) for x in (phi_q, phi_k, v))
    scores = (q @ k.mT).tril()
    if chunks == 1 and initial_state is None:  # nothing comes before
        if decay is not None:
            between, _ = _sums_between(decay.to(q.dtype)[:, :, None])
            scores, k = scores * between.exp(), k * between[..., -1, :, None].exp()
        return (scores @ v)[:, :, 0], (k.mT @ v)[:, :, 0]
    if decay is None:
        states = fading_sum(torch.cat([start[:, :, None], k.mT @ v], dim=2), None)
        y = scores @ v + q @ states[:, :, :-1]
    else:
        g = F.pad(decay.to(q.dtype), (0, fill)).unflatten(2, (chunks, chunk))
        between, since_start = _sums_between(g)
        to_end = between[..., -1, :, None].exp()  # how much of each key is left at the end of its chunk
        faded = F.pad(since_start[..., -1:], (0, 0, 1, 0))
        states = fading_sum(torch.cat([start[:, :, None], (k * to_end).mT @ v], dim=2), faded)
        y = (scores * between.exp()) @ v + since_start[..., None].exp() * (q @ states[:, :, :-1])
    return rearrange(y, "b h g c e -> b h (g c) e")[:, :, :length], states[:, :, -1]


def ragged(
    q: Float[Tensor, "n h c"],
    k: Float[Tensor, "m h c"],
    v: Float[Tensor, "m h e"],
    cu_seqlens: tuple[Int[Tensor, " rows_plus_1"], Int[Tensor, " rows_plus_1"]],
    max_seqlens: tuple[int, int],
    *,
    angles: tuple[Tensor | None, Tensor | None],
    decay: Float[Tensor, "m h"] | None,
    **options,
) -> tuple[Float[Tensor, "n h e"], Float[Tensor, "rows h r e_"]]:
    """Ragged rows of queries and keys, by padding them to one length."""
    queries, keys = (
        Layout.of_rows(Rows(rows.diff().long(), len(x), longest, len(rows) - 1))
        for rows, x, longest in zip(cu_seqlens, (q, k), max_seqlens, strict=True)
    )
    q, k, v = (rearrange(layout.unpack(x), "b n h c -> b h n c") for layout, x in ((queries, q), (keys, k), (keys, v)))
    options["angles"] = tuple(
        None if x is None else layout.unpack(x) for layout, x in zip((queries, keys), angles, strict=True)
    )
    options["decay"] = None if decay is None else rearrange(keys.unpack(decay), "b m h -> b h m")
    y, state = linear_attention(q, k, v, key_mask=keys.mask, **options)
    return queries.pack(rearrange(y, "b h n e -> b n h e")), state


def _start(
    k: Float[Tensor, "b h t r"], v: Float[Tensor, "b h t e"], initial_state: Float[Tensor, "b h r e"] | None
) -> Float[Tensor, "b h r e"]:
    if initial_state is not None:
        return initial_state.to(v.dtype)
    return v.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])


def _sums_between(g: Float[Tensor, "b h g c"]) -> tuple[Float[Tensor, "b h g c c"], Float[Tensor, "b h g c"]]:
    """G_t - G_s for all s <= t of a chunk (-inf above the diagonal), and G_t counted from the start of the chunk.

    Each entry sums its own terms: subtracting two long cumulative sums would lose every digit after a large jump.
    """
    size = g.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=g.device).tril(-1)  # t > s
    terms = g[..., :, None].expand(*g.shape, size).masked_fill(~later, 0)
    return terms.cumsum(dim=-2).masked_fill(later.mT, -torch.inf), g.cumsum(dim=-1)

"""A drop-in replacement for `torch.nn.MultiheadAttention` with any attention mechanism.

    attend = longspan.MultiheadAttention(512, 8, batch_first=True, attention="performer(features=64)")
    y, weights = attend(x, x, x, key_padding_mask=padded, need_weights=False)

Everything is as in torch: arguments, shapes, masks (True = ignored), parameter names. With softmax attention the state
dict loads from torch's module and into it, and outputs, weights and gradients agree, with one exception: a query that
may see no key at all gets 0, where torch may give NaN. Other mechanisms need to know their `pattern` at construction
(noncausal_self unless given), return None for the weights where they have no attention matrix, and refuse an
`attn_mask` that they cannot honour.
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from longspan import attentions
from longspan.attentions import HeadwiseAttention, Mechanism, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.precision import as_operand


class MultiheadAttention(nn.Module):
    """`torch.nn.MultiheadAttention` with the extra arguments `attention`, `pattern`, `max_length` and `max_context`."""

    # where this is True, torch's encoder layers bypass `forward` and compute softmax attention themselves
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str | Mechanism = "softmax",
        pattern: Pattern | str | None = None,
        max_length: int | None = None,
        max_context: int | None = None,
    ):
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise UsageError(f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}.")
        if add_bias_kv or add_zero_attn:
            raise UsageError("add_bias_kv and add_zero_attn add a key that belongs to no token; leave them False.")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.batch_first = dropout, batch_first
        mechanism = attentions.get(attention)
        self.exact = mechanism.meta.exact
        if pattern is None:  # exact attention takes its pattern from the masks of each call, as torch does
            pattern = Pattern.NONCAUSAL_CROSS if self.exact else Pattern.NONCAUSAL_SELF
        self.pattern = Pattern.parse(pattern)
        self.headwise = issubclass(mechanism.cls, HeadwiseAttention) and (
            mechanism.cls.forward is HeadwiseAttention.forward
        )
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"):
            self.register_parameter(name, None)
        if self.headwise:
            self._own_projections(bias)
        elif self.kdim != embed_dim or self.vdim != embed_dim:
            raise UsageError(
                f"{mechanism} mixes whole tokens, so that kdim and vdim must equal embed_dim; leave them out."
            )
        shell = {"bias": bias, "dropout": dropout, "max_length": max_length, "max_context": max_context}
        self.core: Any = mechanism(embed_dim, num_heads, self.pattern, **shell)
        if self.headwise:  # it runs between the projections of this module
            del self.core.query, self.core.key, self.core.value, self.core.out
        self.to(device=device, dtype=dtype)

    def _own_projections(self, bias: bool) -> None:
        """The projections, named, drawn and ordered as torch does: the same seed gives the same weights."""
        d = self.embed_dim
        self.out_proj = nn.Linear(d, d, bias=bias)
        if self.kdim == d and self.vdim == d:
            self.in_proj_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(3 * d, d)))
        else:
            self.q_proj_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(d, d)))
            self.k_proj_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(d, self.kdim)))
            self.v_proj_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(d, self.vdim)))
        if bias:
            self.in_proj_bias = nn.Parameter(torch.zeros(3 * d))
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Float[Tensor, "... d"],
        key: Float[Tensor, "... dk"],
        value: Float[Tensor, "... dv"],
        key_padding_mask: Shaped[Tensor, "..."] | None = None,
        need_weights: bool = True,
        attn_mask: Shaped[Tensor, "..."] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "... d"], Float[Tensor, "..."] | None]:
        """The output and, if `need_weights` and the mechanism has one, the attention matrix.

        Batches come as [n b d] unless `batch_first`; a single sequence as [n d].
        """
        if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
            axes = f"{query.dim()}, {key.dim()} and {value.dim()}"
            raise UsageError(f"query, key and value must all have 3 axes, or 2 without a batch, got {axes}.")
        self._check_sources(query, key, value)
        batched = query.dim() == 3
        arrange = _as_is if batched and self.batch_first else _swap if batched else _add_batch
        query, key, value = arrange(query), arrange(key), arrange(value)
        if key.shape[:2] != value.shape[:2] or len(query) != len(key):
            raise UsageError(
                f"query, key and value must agree in batch, and key and value in length, got (batch, length) "
                f"{tuple(query.shape[:2])}, {tuple(key.shape[:2])} and {tuple(value.shape[:2])}."
            )
        padding = key_padding_mask if key_padding_mask is None or batched else key_padding_mask[None]
        if padding is not None and padding.shape != key.shape[:2]:
            raise UsageError(
                f"key_padding_mask must have a flag per key, {tuple(key.shape[:2])}, got {tuple(padding.shape)}."
            )

        if self.headwise:
            q, k, v = self._project(query, key, value)
            attend = self._attend_exactly if self.exact else self._attend
            y, weights = attend(q, k, v, padding, attn_mask, is_causal, need_weights)
            y = self.out_proj(as_operand(rearrange(y, "b h n e -> b n (h e)"), self.out_proj.weight))
        else:
            y, weights = self._mix(query, key, padding, attn_mask, is_causal), None
        if weights is not None:
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if batched else weights[0]
        return (y if batched and self.batch_first else _swap(y) if batched else y[0]), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values by head, [b h n c]."""
        weights = (
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            if self.in_proj_weight is None
            else self.in_proj_weight.chunk(3)
        )
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(
            rearrange(F.linear(x, weight, bias), "b n (h c) -> b h n c", h=self.num_heads)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )

    def _attend_exactly(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        padding: Shaped[Tensor, "b m"] | None,
        attn_mask: Shaped[Tensor, "..."] | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n m"] | None]:
        """Softmax attention under any mask; with padding alone and no weights wanted, by the mechanism itself."""
        marks_padding_only = attn_mask is None and not is_causal and (padding is None or padding.dtype == torch.bool)
        if marks_padding_only and not need_weights:
            return self.core.attend(q, k, v, key_mask=None if padding is None else ~padding), None
        n, m = q.shape[2], k.shape[2]
        bias = q.new_zeros(1, 1, n, m)
        if attn_mask is not None:
            bias = bias + self._per_head(_additive(attn_mask, "attn_mask", q.dtype), len(q), n, m)
        if padding is not None:
            bias = bias + _additive(padding, "key_padding_mask", q.dtype)[:, None, None, :]
        if (is_causal and attn_mask is None) or self.pattern is Pattern.CAUSAL_SELF:
            bias = bias.masked_fill(_future(n, m, q.device), -torch.inf)
        blind = (bias == -torch.inf).all(dim=-1, keepdim=True)
        bias = bias.masked_fill(blind, 0)  # fully masked rows see every key, which is finite, and are zeroed below
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout).masked_fill(
                blind, 0
            ), None
        weights = torch.softmax(q @ k.mT / self.head_dim**0.5 + bias, dim=-1).masked_fill(blind, 0)
        weights = F.dropout(weights, dropout)
        return weights @ v, weights

    def _attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        padding: Shaped[Tensor, "b m"] | None,
        attn_mask: Shaped[Tensor, "..."] | None,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n m"] | None]:
        real = self._honoured(q.shape[2], k.shape[2], padding, attn_mask, is_causal)
        masks = {"key_mask": real, "query_mask": None if self.pattern.cross else real}
        return self.core.attend(q, k, v, **masks), self.core.weights(q, k, **masks) if need_weights else None

    def _mix(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"],
        padding: Shaped[Tensor, "b m"] | None,
        attn_mask: Shaped[Tensor, "..."] | None,
        is_causal: bool,
    ) -> Float[Tensor, "b n d"]:
        """A mechanism that takes whole tokens and has projections of its own, or none."""
        real = self._honoured(x.shape[1], context.shape[1], padding, attn_mask, is_causal)
        return self.core(x, context, context_mask=real) if self.pattern.cross else self.core(x, mask=real)

    def _check_sources(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if self.headwise:
            return
        if key is not value or (query is not key and not self.pattern.cross):
            wanted = "key and value" if self.pattern.cross else "query, key and value"
            name = type(self.core).__name__
            raise UsageError(f"{name} as {self.pattern} mixes whole tokens; pass one and the same tensor as {wanted}.")

    def _honoured(
        self,
        n: int,
        m: int,
        padding: Shaped[Tensor, "b m"] | None,
        attn_mask: Shaped[Tensor, "..."] | None,
        is_causal: bool,
    ) -> Bool[Tensor, "b m"] | None:
        """The real keys, once it is clear that the masks ask for nothing beyond the pattern."""
        name, causal_self = type(self.core).__name__, self.pattern is Pattern.CAUSAL_SELF
        if not self.pattern.cross and n != m:
            raise UsageError(
                f"{name} runs as {self.pattern}, where queries and keys are one sequence, got lengths {n} and {m}; "
                "build it with pattern='noncausal_cross'."
            )
        if is_causal and not causal_self:
            raise UsageError(f"{name} runs as {self.pattern}, got is_causal=True; build it with pattern='causal_self'.")
        if attn_mask is not None and not is_causal:
            hidden = _hidden(attn_mask, "attn_mask", name)
            allowed = _future(n, m, attn_mask.device) if causal_self else hidden.new_zeros(n, m)
            if hidden.shape[-2:] != (n, m) or bool((hidden != allowed).any()):
                what = "the causal one" if causal_self else "one that hides nothing"
                raise UsageError(
                    f"{name} as {self.pattern} honours no attn_mask but {what}; leave it out, "
                    "build it with pattern='causal_self' for a causal one, or use attention='softmax'."
                )
        return None if padding is None else ~_hidden(padding, "key_padding_mask", name)

    def _per_head(self, mask: Tensor, batch: int, n: int, m: int) -> Float[Tensor, "#b #h n m"]:
        """[n m] for all, or [(b h) n m] for each head of each row."""
        if mask.shape == (n, m):
            return mask[None, None]
        if mask.shape == (batch * self.num_heads, n, m):
            return rearrange(mask, "(b h) n m -> b h n m", h=self.num_heads)
        raise UsageError(
            f"attn_mask must have the shape {(n, m)} or {(batch * self.num_heads, n, m)}, got {tuple(mask.shape)}."
        )


def _as_is(x: Tensor) -> Tensor:
    return x


def _swap(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def _add_batch(x: Tensor) -> Tensor:
    return x[None]


def _additive(mask: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: a float mask as it is, -inf where a boolean one says ignored."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
    if not mask.is_floating_point():
        raise UsageError(f"{name} must be boolean (True = ignored) or floating point, got {mask.dtype}.")
    return mask.to(dtype)


def _hidden(mask: Tensor, name: str, mechanism: str) -> Bool[Tensor, "..."]:
    """True = ignored; a float mask that does anything but hide cannot be honoured by a mechanism without scores."""
    additive = _additive(mask, name, torch.float32)
    hidden = additive == -torch.inf
    if mask.dtype != torch.bool and bool((additive.masked_fill(hidden, 0) != 0).any()):
        raise UsageError(f"{mechanism} can hide keys but not weigh them; a float {name} may hold 0 and -inf only.")
    return hidden


def _future(n: int, m: int, device: torch.device) -> Bool[Tensor, "n m"]:
    return torch.ones(n, m, dtype=torch.bool, device=device).triu(1)

"""The slot: what every attention mechanism looks like to a backbone, and what it declares about itself.

To write your own mechanism, subclass `HeadwiseAttention` with one method, `attend`:

    class Mean(HeadwiseAttention):
        meta = AttentionMeta(title="Mean", paper="none", family="toy", cost="n", patterns=(Pattern.NONCAUSAL_SELF,))

        def attend(self, q, k, v, *, key_mask=None, query_mask=None):
            return v.mean(dim=2, keepdim=True).expand(-1, -1, q.shape[2], -1)

Masks are always boolean, and True means a real token.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions.auxiliary import tied
from longspan.attentions.states import Carry, DecodeState, History, KeyValueCache
from longspan.core.errors import UnknownName, UnsupportedPattern, UsageError, WrongShape, did_you_mean
from longspan.kernels import context_parallel
from longspan.kernels.masked import attend_once, masked_weights
from longspan.kernels.packing import Layout, left_align, real
from longspan.kernels.precision import as_operand
from longspan.kernels.rotary import rotate


class Pattern(StrEnum):
    """Which tokens a query may see, and whether keys come from the same sequence."""

    NONCAUSAL_SELF = "noncausal_self"
    CAUSAL_SELF = "causal_self"
    NONCAUSAL_CROSS = "noncausal_cross"
    CAUSAL_CROSS = "causal_cross"

    @property
    def causal(self) -> bool:
        """Row i must not depend on rows after i of x (a causal cross attention still sees its whole context)."""
        return self in (Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS)

    @property
    def cross(self) -> bool:
        return self in (Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS)

    @property
    def code(self) -> str:
        """The two letters of the literature: NS, CS, NC or CC."""
        return ("C" if self.causal else "N") + ("C" if self.cross else "S")

    @classmethod
    def parse(cls, text: str) -> "Pattern":
        for pattern in cls:
            if text.lower() == pattern.value or text.upper() == pattern.code:
                return pattern
        raise UnknownName(f"No pattern named {text!r}.{did_you_mean(text, [p.value for p in cls])}")


ALL_PATTERNS = tuple(Pattern)
SELF_PATTERNS = (Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF)
NONCAUSAL_PATTERNS = (Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS)


@dataclass(frozen=True)
class AttentionMeta:
    """What a mechanism claims about itself; `longspan check` holds it to that.

    Padding is never seen, but may take up positions. Where `places` is "tokens" it takes up none: a row's output is
    that of its real tokens alone, wherever they lie. With "distances" a gap between two tokens sets them further apart,
    as in a window of positions, while padding on the left changes nothing. With "positions" left padding also moves the
    borders of blocks, or the rows of a table, which are counted from the edge of the batch.
    """

    title: str  # as papers and boards write it
    paper: str
    family: str
    cost: Literal["n", "n log n", "n sqrt n", "n^2"]  # training time and memory as a function of the sequence length
    patterns: tuple[Pattern, ...]
    version: int = 1  # of a built-in: raised when its outputs change on purpose, to keep old cards separate
    exact: bool = False  # computes softmax attention itself
    stochastic: bool = False  # the function depends on random numbers: kept in buffers, or redrawn while training
    length_bound: bool = False  # parameters or the transform depend on a length fixed at construction
    rowwise: bool = False  # an output row depends on its own query and on all keys, not on the position of the query
    mixes: bool = True  # an output depends on other tokens too; False is for ablations
    positions: bool = False  # brings its own sense of position
    places: Literal["tokens", "distances", "positions"] = "tokens"  # what windows and blocks count (see above)
    spatial: bool = False  # uses the two axes of an image, which Long Range Arena forbids
    dropout: Literal["weights", "none"] = "none"  # where attention dropout acts
    surrogate_gradient: bool = False  # the paper defines a gradient other than the derivative: see `surrogate`
    auxiliary_loss: bool = False  # adds a term to the loss while training (`with_auxiliary`)
    owns_block: bool = False  # replaces attention and MLP: networks leave the MLP out
    carries: Literal["", "layers", "segments"] = ""  # where `carried` hands its carry: to the next layer or segment
    limit: str = ""  # options with which it equals softmax attention, as in "window=4096"
    fidelity: bool = False  # a bug-compatible twin of released code: shown apart, never ranked
    remark: str = ""  # one sentence, such as a disagreement with a published table

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", checked_patterns(self.title, self.patterns))


def checked_patterns(title: str, declared: Any) -> tuple[Pattern, ...]:
    """The patterns a mechanism declares, given as patterns or their names; anything else is refused."""
    if isinstance(declared, str) or not declared:
        raise UsageError(
            f"The patterns of {title!r} are a tuple of at least one Pattern, got {declared!r}; "
            "write it like (Pattern.CAUSAL_SELF,)."
        )
    try:
        return tuple(Pattern.parse(pattern) for pattern in declared)
    except (UnknownName, AttributeError, TypeError) as error:
        known = ", ".join(pattern.value for pattern in Pattern)
        raise UsageError(
            f"The patterns of {title!r} are {declared!r}, of which one is no pattern; known: {known}."
        ) from error


class Attention(nn.Module, ABC):
    """A mechanism in its slot: `forward(x, context) -> like x`, and decoding step by step for causal patterns."""

    meta: ClassVar[AttentionMeta]
    out: nn.Linear  # if there is one
    carry_type: ClassVar[type[Carry] | None] = None  # class of what it carries from segment to segment
    segment: int | None = None  # tokens per segment, where it carries something between segments
    auxiliary_terms: list[tuple[Tensor, Tensor]] | None = None  # (term, weight) per call since collecting began

    def __init__(
        self,
        dim: int,
        heads: int,
        pattern: Pattern,
        *,
        inner: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        max_length: int | None = None,
        max_context: int | None = None,
    ):
        super().__init__()
        pattern = Pattern.parse(pattern)
        if pattern not in self.meta.patterns:
            raise UnsupportedPattern(
                f"{type(self).__name__} cannot run as {pattern}; it supports: {', '.join(self.meta.patterns)}."
            )
        self.dim, self.heads, self.pattern = dim, heads, pattern
        self.inner = dim if inner is None else inner
        if self.inner % heads:
            raise UsageError(f"The width {self.inner} must be a multiple of the number of heads, got {heads} heads.")
        self.dropout, self.max_length, self.max_context = dropout, max_length, max_context

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Mix the tokens of x, or look into the context; `mask` belongs to x, `context_mask` to the context."""

    def packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "t d"]:
        """`forward` of a self pattern on the real tokens alone."""
        return layout.pack(self(layout.unpack(x), mask=layout.mask))

    def first(self, x: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b d"]:
        """`forward` of a self pattern at the first token alone, for networks that read only that."""
        return self(x, mask=mask)[:, 0]

    def first_packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "b d"]:
        """`packed` at the first token of each row, 0 for a row without tokens."""
        return self.packed(x, layout)[layout.firsts].masked_fill((layout.cu_seqlens.diff() == 0)[:, None], 0)

    def carried(
        self, x: Float[Tensor, "b n d"], *inputs: Any, carry: Any = None, **masks: Any
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """`forward` given the carry of the previous layer or segment; returns the output and the new carry.

        Mechanisms that declare nothing in `meta.carries` return `carry` unchanged.
        """
        return self(x, *inputs, **masks), carry

    def in_segments(
        self, x: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None, carry: Any = None
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """`carried` over segments of `segment` tokens, each given the detached carry of the previous one.

        A mechanism whose carry depends only on its inputs need not go segment by segment, and may compute all at once.
        """
        parts, length = [], self.segment or x.shape[1]
        for first in range(0, x.shape[1], length):
            own = None if mask is None else mask[:, first : first + length]
            y, carry = self.carried(x[:, first : first + length], mask=own, carry=carry)
            carry = None if carry is None else carry.detached()
            parts.append(y)
        return torch.cat(parts, dim=1), carry

    def with_auxiliary(
        self, y: Float[Tensor, "..."], term: Float[Tensor, ""], count: Tensor | int = 1
    ) -> Float[Tensor, "..."]:
        """y unchanged; while training, `term`, weighted as in the paper, is added to the loss.

        `count` is how many items the term is a mean over, for layers called several times per loss.
        """
        if not self.training or self.auxiliary_terms is None:
            return y
        self.auxiliary_terms.append((term, torch.as_tensor(count, dtype=term.dtype, device=term.device)))
        return tied(y, term)

    def auxiliary_loss(self) -> Float[Tensor, ""] | None:
        """What the layer adds to the loss: the mean over its calls since collecting began; None if there were none.

        Terms are kept only while the training loop collects them (`attentions/auxiliary.py`); otherwise they would keep
        the graph alive.
        """
        if not self.auxiliary_terms:
            return None
        terms, counts = (torch.stack(each) for each in zip(*self.auxiliary_terms, strict=True))
        return (terms * counts).sum() / counts.sum().clamp(min=1)

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        """The output for a prefix (which may be empty) and the state from which `step` continues."""
        self._needs_decoding()
        y = self(x, context, mask=mask, context_mask=context_mask) if x.shape[1] else x
        return y, self._state_after(x, mask, context, context_mask)

    def _state_after(self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *context: Any) -> DecodeState:
        """The state of `prefill`: the whole history, with the context and its mask, unless a mechanism keeps less."""
        return History(*left_align(x, mask), *context)

    def step(self, x_t: Float[Tensor, "b d"], state: Any) -> tuple[Float[Tensor, "b d"], Any]:
        """The output for one more token of each row; by default this runs the whole history again."""
        self._needs_decoding()
        rows = torch.arange(x_t.shape[0], device=x_t.device)
        x = torch.cat([state.x, torch.zeros_like(x_t)[:, None]], dim=1)
        x = x.index_put((rows, state.lengths), x_t)
        lengths = state.lengths + 1
        width = int(lengths.max())
        x = x[:, :width]
        y = self(x, state.context, mask=real(lengths, width), context_mask=state.context_mask)
        return y[rows, state.lengths], dataclasses.replace(state, x=x, lengths=lengths)

    def rotate_positions(self, base: float = 10_000.0) -> None:
        """Apply rotary embeddings (`kernels/rotary.py`) to queries and keys from now on, where there are any."""
        raise UsageError(
            f"{type(self).__name__} as {self.pattern} has no queries and keys that a network could turn by their "
            "places; choose other positions than rope."
        )

    def drop_inside(self, rate: float, *, tied: bool = False) -> None:
        """From now on drop channels before the output projection while training; a no-op where that is not possible.

        `tied` drops a channel of a row at all tokens of the row.
        """

    def projections(self) -> Iterator[nn.Linear]:
        """The linear projections around the mechanism, which the backbone initialises."""
        return (child for child in self.children() if isinstance(child, nn.Linear))

    @property
    def active_dropout(self) -> float:
        """The dropout rate of attention weights: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def _needs_decoding(self) -> None:
        if not self.pattern.causal:
            raise UnsupportedPattern(
                f"{type(self).__name__} as {self.pattern} has no decoding; only causal patterns go step by step."
            )

    def _source(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None,
        mask: Bool[Tensor, "b n"] | None,
        context_mask: Bool[Tensor, "b m"] | None,
    ) -> tuple[Float[Tensor, "b m d"], Bool[Tensor, "b m"] | None]:
        """The sequence that keys and values come from, and its mask."""
        if self.pattern.cross:
            if context is None:
                raise UsageError(
                    f"{type(self).__name__} as {self.pattern} needs a context; pass it as second argument."
                )
            return context, context_mask
        if context is not None or context_mask is not None:
            raise UsageError(f"{type(self).__name__} as {self.pattern} takes no context; leave it out.")
        return x, mask

    def _longest(self, name: Literal["max_length", "max_context"]) -> int:
        """The value of a shell setting that this mechanism requires."""
        longest = getattr(self, name)
        if longest is None:
            raise UsageError(
                f"{type(self).__name__} has parameters for each place; say how many there may be with {name}=..."
            )
        return longest

    def _check_room(self, found: int, longest: int | None, what: str) -> None:
        if longest is not None and found > longest:
            raise UsageError(
                f"This {type(self).__name__} was built for at most {longest} {what}, got {found}; "
                "build it for more or cut the input."
            )

    def _of_shape(self, y: Any, method: str, shape: tuple[int, ...]) -> Any:
        """y as `method` returned it, after checking that it has this shape."""
        if not torch.is_tensor(y) or y.shape != shape:
            found = tuple(y.shape) if torch.is_tensor(y) else type(y).__name__
            raise WrongShape(f"{type(self).__name__}.{method} must return a tensor of shape {shape}, got {found}.")
        return y

    def _split(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n c"]:
        return rearrange(x, "b n (h c) -> b h n c", h=self.heads)

    def _merge(self, y: Float[Tensor, "b h n e"]) -> Float[Tensor, "b n d"]:
        return self.out(as_operand(rearrange(y, "b h n e -> b n (h e)"), self.out.weight))


class HeadwiseAttention(Attention):
    """Attention between projected queries, keys and values, head by head: most mechanisms write only `attend`.

    A causal mechanism with a decoding state of its own also writes `begin` and `advance`; without them every step runs
    the whole history again, which is correct but slow.
    """

    rotary_base: float | None = None  # of rotary positions; None for no rotation

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, bias: bool = True, **shell: Any):
        super().__init__(dim, heads, pattern, bias=bias, **shell)
        self.query = nn.Linear(dim, self.inner, bias=bias)
        self.key = nn.Linear(dim, self.inner, bias=bias)
        self.value = nn.Linear(dim, self.inner, bias=bias)
        self.out = nn.Linear(self.inner, dim, bias=bias)

    @property
    def head_dim(self) -> int:
        return self.inner // self.heads

    @abstractmethod
    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        """The mechanism itself; the output of a query that sees no real key is 0."""

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"] | None:
        """The matrix of attention weights of `attend`, where there is one."""
        return None

    @property
    def shares_context(self) -> bool:
        """Whether `attend_shared` is implemented, so that several processes can share the tokens of a row."""
        return False

    def attend_shared(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h n c"], v: Float[Tensor, "b h n e"]
    ) -> Float[Tensor, "b h n e"]:
        """`attend` of causal self attention where each process has a part of every row (`kernels/context_parallel`)."""
        raise UsageError(
            f"{type(self).__name__} needs the whole of each row; leave recipe.parallel at ddp or fsdp, or take "
            "softmax, linear or dpfp."
        )

    def weights_by_attending(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        """`weights` of a mechanism that is linear in v: its output for one-hot values, one per key."""
        one_hot = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        return self.attend(q, k, one_hot, key_mask=key_mask, query_mask=query_mask)

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> DecodeState | None:
        """The decoding state after these keys and values (no keys at all for an empty prefix)."""
        return None

    def advance(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "b h c"] | None, v: Float[Tensor, "b h e"] | None, state: Any
    ) -> tuple[Float[Tensor, "b h e"], Any]:
        """Output for one query; in a self pattern its own key and value enter the state first, else they are None."""
        raise UsageError(f"{type(self).__name__} defines begin without advance; write both.")

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        source, key_mask = self._source(x, context, mask, context_mask)
        q, k, v = self._split(self.query(x)), self._split(self.key(source)), self._split(self.value(source))
        q, k = self._rotated(q), self._rotated(k)
        return self._merge(self._attended(q, k, v, key_mask=key_mask, query_mask=mask))

    def rotate_positions(self, base: float = 10_000.0) -> None:
        """Rotate queries and keys after projection and before any feature map, in non-causal self attention."""
        plain = all(
            getattr(type(self), method) is getattr(HeadwiseAttention, method)
            for method in ("forward", "packed", "first", "first_packed")
        )
        if self.pattern is not Pattern.NONCAUSAL_SELF or not plain:
            super().rotate_positions(base)
        if self.head_dim % 2:
            raise UsageError(
                f"Rotary positions turn pairs of channels, got heads of {self.head_dim}; choose an even width."
            )
        self.rotary_base = base

    def _rotated(self, u: Float[Tensor, "b h n c"]) -> Float[Tensor, "b h n c"]:
        if self.rotary_base is None:
            return u
        return rotate(u, torch.arange(u.shape[2], device=u.device), self.rotary_base)

    def _rotated_packed(
        self, u: Float[Tensor, "tokens h c"], layout: Layout, *, first: bool = False
    ) -> Float[Tensor, "tokens h c"]:
        """All tokens rotated, or the first of each row, which lies further on if the layout leaves out those before."""
        if self.rotary_base is None:
            return u
        index = layout.index[layout.firsts] if first else layout.index
        return rotate(u, (index % layout.mask.shape[1])[:, None], self.rotary_base)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, **masks: Any) -> Tensor:
        y = self.attend_shared(q, k, v) if context_parallel.is_shared() else self.attend(q, k, v, **masks)
        return self._of_shape(y, "attend", (*q.shape[:3], self.head_dim))

    def packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "t d"]:
        q, k, v = (project(x).unflatten(1, (self.heads, -1)) for project in (self.query, self.key, self.value))
        q, k = self._rotated_packed(q, layout), self._rotated_packed(k, layout)
        return self.out(as_operand(self.attend_packed(q, k, v, layout).flatten(1), self.out.weight))

    def first(self, x: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None) -> Float[Tensor, "b d"]:
        if not self._rows_are_free:
            return super().first(x, mask=mask)
        q, k, v = self._split(self.query(x[:, :1])), self._split(self.key(x)), self._split(self.value(x))
        query_mask = None if mask is None else mask[:, :1]
        k = self._rotated(k)  # the query is at position 0, where the rotation is the identity
        return self._merge(self._attended(q, k, v, key_mask=mask, query_mask=query_mask))[:, 0]

    def first_packed(self, x: Float[Tensor, "t d"], layout: Layout) -> Float[Tensor, "b d"]:
        if not self._rows_are_free:
            return super().first_packed(x, layout)
        k, v = (project(x).unflatten(1, (self.heads, -1)) for project in (self.key, self.value))
        q = self.query(x[layout.firsts]).unflatten(1, (self.heads, -1))
        q, k = self._rotated_packed(q, layout, first=True), self._rotated_packed(k, layout)
        return self.out(as_operand(self.attend_first_packed(q, k, v, layout).flatten(1), self.out.weight))

    @property
    def _rows_are_free(self) -> bool:
        """Whether one output row can be computed without the others."""
        return self.meta.rowwise and not self.pattern.causal

    def attend_first_packed(
        self, q: Float[Tensor, "b h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "b h out"]:
        """`attend` for one query a row; kernels for ragged batches override this."""
        k, v = (rearrange(layout.unpack(u), "b n h c -> b h n c") for u in (k, v))
        return self._attended(q[:, :, None], k, v, key_mask=layout.mask)[:, :, 0]

    def attend_packed(
        self, q: Float[Tensor, "t h c"], k: Float[Tensor, "t h c"], v: Float[Tensor, "t h e"], layout: Layout
    ) -> Float[Tensor, "t h out"]:
        """`attend` of a self pattern on real tokens alone; kernels for ragged batches override this."""
        q, k, v = (rearrange(layout.unpack(u), "b n h c -> b h n c") for u in (q, k, v))
        y = self._attended(q, k, v, key_mask=layout.mask, query_mask=layout.mask)
        return layout.pack(rearrange(y, "b h n e -> b n h e"))

    def prefill(
        self,
        x: Float[Tensor, "b n d"],
        context: Float[Tensor, "b m d"] | None = None,
        *,
        mask: Bool[Tensor, "b n"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], DecodeState]:
        self._needs_decoding()
        source, key_mask = self._source(x, context, mask, context_mask)
        k, v = self._split(self.key(source)), self._split(self.value(source))
        state = self.begin(k, v, key_mask=key_mask)
        if state is None:
            return super().prefill(x, context, mask=mask, context_mask=context_mask)
        if x.shape[1] == 0:
            return x, state
        q = self._split(self.query(x))
        return self._merge(self._attended(q, k, v, key_mask=key_mask, query_mask=mask)), state

    def step(self, x_t: Float[Tensor, "b d"], state: Any) -> tuple[Float[Tensor, "b d"], Any]:
        if isinstance(state, History):
            return super().step(x_t, state)
        q, k, v = self.query(x_t).unflatten(1, (self.heads, -1)), None, None
        if not self.pattern.cross:
            k, v = (project(x_t).unflatten(1, (self.heads, -1)) for project in (self.key, self.value))
        y, state = self.advance(q, k, v, state)
        return self.out(as_operand(y.flatten(1), self.out.weight)), state


class GatedValue(nn.Linear):
    """The projection of values, with the logit of a gate for each head and token as their last channel.

    Headwise mechanisms whose gate depends on the token itself use it as `value`; the gate keeps torch's own
    initialisation.
    """

    def __init__(self, dim: int, inner: int, heads: int, *, bias: bool = True):
        super().__init__(dim, inner, bias=bias)
        self.heads = heads
        self.gate = nn.Linear(dim, heads)

    def forward(self, input: Float[Tensor, "*b d"]) -> Float[Tensor, "*b inner_plus_heads"]:
        v = super().forward(input).unflatten(-1, (self.heads, -1))
        return torch.cat([v, self.gate(input)[..., None]], dim=-1).flatten(-2)


class MaskedAttention(HeadwiseAttention):
    """Softmax attention over the pairs that `visible` allows: with its weights, and decoding from a full cache."""

    @abstractmethod
    def visible(
        self, i: Int[Tensor, "_b n"], j: Int[Tensor, " m"], key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Bool[Tensor, "_b _h n m"]:
        """Whether the queries at positions i may see the keys at positions j, real or not."""

    def weights(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n m"]:
        return masked_weights(q, k, self.visible_pairs(q, k, key_mask))

    def visible_pairs(
        self, q: Float[Tensor, "b h n c"], k: Float[Tensor, "b h m c"], key_mask: Bool[Tensor, "b m"] | None
    ) -> Bool[Tensor, "_b _h n m"]:
        """Which real keys each query sees."""
        i, j = (torch.arange(x.shape[2], device=q.device) for x in (q, k))
        visible = self.visible(i[None], j, key_mask)
        return visible if key_mask is None else visible & key_mask[:, None, None, :]

    def begin(
        self, k: Float[Tensor, "b h m c"], v: Float[Tensor, "b h m e"], *, key_mask: Bool[Tensor, "b m"] | None = None
    ) -> KeyValueCache:
        return KeyValueCache.of(k, v, key_mask)

    def advance(
        self,
        q: Float[Tensor, "b h c"],
        k: Float[Tensor, "b h c"] | None,
        v: Float[Tensor, "b h e"] | None,
        state: KeyValueCache,
    ) -> tuple[Float[Tensor, "b h e"], KeyValueCache]:
        t = state.lengths
        state = state if k is None or v is None else state.plus(k, v)
        place = torch.arange(state.k.shape[2], device=t.device)
        visible = place < t[:, None, None] if k is None else self.visible(t[:, None], place)[:, :, 0]
        return attend_once(q, state.k, state.v, visible), state


SHELL = frozenset({"inner", "bias", "dropout", "max_length", "max_context"})


def centred_conv(heads: int, taps: int) -> nn.Conv2d | None:
    """A filter along the tokens for each head, None for 0 taps."""
    if taps < 0 or (taps and taps % 2 == 0):
        raise UsageError(f"conv counts the taps of a centred filter, got {taps}; choose an odd number, or 0 for none.")
    return nn.Conv2d(heads, heads, (taps, 1), padding=(taps // 2, 0), groups=heads, bias=False) if taps else None

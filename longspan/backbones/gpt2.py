"""GPT-2 as the Comprehensive Attention Benchmark has it: pre-norm blocks over causal self slots, tied output.

    x = sqrt(d) E[token] + sinusoid      x <- x + Attention(LN(x))      x <- x + MLP(LN(x))      logits = LN(x) E^T

Paper: arXiv:2210.07661 (LM), after fairseq's `transformer_lm_gpt`. Positions are sinusoids, which exist for any length:
those of the Transformer's paper, or with `sinusoid="fairseq"` those of fairseq (`fairseq_sinusoid.py`). Departs from
fairseq in: nothing else.

A mechanism that carries something from segment to segment reads a row in segments, each with the detached carry that
the ones before left in the same layer. A row starts without a carry unless `carry` is given. Each layer reads all
segments before the next layer does, since a segment needs only what earlier ones left in its own layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attentions import Attention, Carry, Pattern
from longspan.backbones.carrying import carried_by_segments, segment_of
from longspan.backbones.compiling import compile_each
from longspan.backbones.encoder_classifier import sinusoid
from longspan.backbones.fairseq_sinusoid import fairseq_sinusoid
from longspan.backbones.sizes import check_sizes
from longspan.backbones.slots import AttentionFactory, adds_loss, mlp_beside
from longspan.kernels.chunked_cross_entropy import chunked_cross_entropy
from longspan.kernels.context_parallel import first_token


@dataclass(frozen=True)
class Sizes:
    """Everything but vocabulary and length that decides the shape of a language model."""

    dim: int
    heads: int
    layers: int
    mlp: int
    dropout: float = 0.0
    attention_dropout: float = 0.1

    def __post_init__(self):
        check_sizes(self, "dim", "heads", "layers", "mlp")


@dataclass(frozen=True)
class GPT2Sizes(Sizes):
    """The sizes of GPT-2, and which sinusoids encode positions: sines and cosines alternating from 0, or fairseq's."""

    sinusoid: Literal["alternating", "fairseq"] = "alternating"


SINUSOIDS = {"alternating": sinusoid, "fairseq": fairseq_sinusoid}


@dataclass
class Decoding:
    """What the network remembers between steps: the state of every slot, and how many tokens it has read."""

    slots: list[Any]
    length: int

    def select(self, rows: Int[Tensor, " r"]) -> "Decoding":
        """Keep these rows, in this order."""
        return Decoding([state.select(rows) for state in self.slots], self.length)

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self.slots)


@dataclass
class SegmentDecoding:
    """The same if rows are read in segments: what each layer carries, and the current segment as embedded."""

    carries: list[Carry | None]
    x: Float[Tensor, "b t d"]
    begun: int  # tokens before that segment

    def select(self, rows: Int[Tensor, " r"]) -> "SegmentDecoding":
        """Keep these rows, in this order."""
        carries: list[Any] = [None if carry is None else carry.select(rows) for carry in self.carries]
        return SegmentDecoding(carries, self.x.index_select(0, rows.to(self.x.device)), self.begun)

    @property
    def nbytes(self) -> int:
        return self.x.nbytes + sum(carry.nbytes for carry in self.carries if carry is not None)


class GPT2(nn.Module):
    def __init__(self, attention: AttentionFactory, sizes: GPT2Sizes, *, vocabulary: int, length: int):
        super().__init__()
        self.sizes = sizes
        self.sinusoid = SINUSOIDS[sizes.sinusoid]
        self.embedding = nn.Embedding(vocabulary, sizes.dim)
        self.register_buffer("positions", self.sinusoid(length, sizes.dim), persistent=False)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(attention, sizes, length) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.dim)
        self.segment = segment_of([block.attention for block in self.blocks])  # type: ignore[misc]
        self.apply(initialise)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        target: Int[Tensor, "b n"] | None = None,
        carry: Sequence[Carry | None] | None = None,
        at: Int[Tensor, "b k"] | None = None,
        mask: Bool[Tensor, "b n"] | None = None,
    ) -> Any:
        """Logits of the token after each one; with targets, their negative log-likelihood in nats instead.

        With `at`, logits only at these places of each row; `mask` then says which tokens are real, the first ones of
        each row. `carry` has what each layer carries from the rows before these, or None; with it, the result is a pair
        of the output and what each layer carries after these rows. A target below 0 is then padding, which is not
        carried.
        """
        x = self._embed(tokens, first_token(tokens.shape[1]))
        if target is not None:
            mask = target >= 0
        if carry is None and not adds_loss(self):
            mask = None  # padding is at the end, where no output sees it
        x, after = self._through(x, [None] * len(self.blocks) if carry is None else carry, mask)
        if at is not None:
            x = x.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))
        x = self.norm(x)
        y = self._logits(x) if target is None else chunked_cross_entropy(x, self.embedding.weight, target)
        return y if carry is None else (y, after)

    def _through(
        self, x: Float[Tensor, "b n d"], carry: Sequence[Carry | None], mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], list[Carry | None]]:
        """The output of all blocks, and what they carry to the tokens that follow."""
        after: list[Carry | None] = []
        for block, own in zip(self.blocks, carry, strict=True):
            x, own = block(x, mask, own)
            after.append(own)
        return x, after

    def prefill(self, tokens: Int[Tensor, "b n"]) -> tuple[Float[Tensor, "b n v"], Any]:
        """`forward` of a prefix (which may be empty), and the state from which `step` continues."""
        if self.segment is not None:
            return self._prefill_segments(tokens, self.segment)
        x, slots = self._embed(tokens, 0), []
        for block in self.blocks:
            assert isinstance(block, Block)
            x, state = block.prefill(x)
            slots.append(state)
        return self._logits(self.norm(x)), Decoding(slots, tokens.shape[1])

    def step(self, token: Int[Tensor, " b"], state: Any) -> tuple[Float[Tensor, "b v"], Any]:
        """The logits after one more token of each row."""
        if isinstance(state, SegmentDecoding):
            return self._step_in_segment(token, state)
        x, slots = self._embed(token[:, None], state.length)[:, 0], []
        for block, slot in zip(self.blocks, state.slots, strict=True):
            assert isinstance(block, Block)
            x, slot = block.step(x, slot)
            slots.append(slot)
        return self._logits(self.norm(x)), Decoding(slots, state.length + 1)

    def _prefill_segments(
        self, tokens: Int[Tensor, "b n"], length: int
    ) -> tuple[Float[Tensor, "b n v"], SegmentDecoding]:
        x, whole = self._embed(tokens, 0), tokens.shape[1] // length * length
        state = SegmentDecoding([None] * len(self.blocks), x[:, whole:], whole)
        parts = [x[:, :0]]
        if whole:
            y, state.carries = self._through(x[:, :whole], state.carries)
            parts.append(y)
        if whole < tokens.shape[1]:
            parts.append(self._through(state.x, state.carries)[0])
        return self._logits(self.norm(torch.cat(parts, dim=1))), state

    def _step_in_segment(
        self, token: Int[Tensor, " b"], state: SegmentDecoding
    ) -> tuple[Float[Tensor, "b v"], SegmentDecoding]:
        """Runs the current segment again, which is correct but slow."""
        x = torch.cat([state.x, self._embed(token[:, None], state.begun + state.x.shape[1])], dim=1)
        y, after = self._through(x, state.carries)
        if x.shape[1] == self.segment:
            state = SegmentDecoding(after, x[:, :0], state.begun + x.shape[1])
        else:
            state = SegmentDecoding(state.carries, x, state.begun)
        return self._logits(self.norm(y[:, -1])), state

    def compile_parts(self) -> None:
        """Let torch.compile fuse each block; a mechanism that cannot be compiled runs as it is, with a warning."""
        compile_each(self.blocks)

    def _embed(self, tokens: Int[Tensor, "b n"], first: int) -> Float[Tensor, "b n d"]:
        stop = first + tokens.shape[1]
        if stop > self.positions.shape[0]:  # longer than in training: extend the sinusoids
            longer = self.sinusoid(max(stop, 2 * self.positions.shape[0]), self.sizes.dim)
            self.positions = longer.to(self.positions)
        scale = math.sqrt(self.sizes.dim)
        return self.dropout(scale * self.embedding(tokens) + self.positions[first:stop])

    def _logits(self, x: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens v"]:
        return F.linear(x, self.embedding.weight)


class Block(nn.Module):
    """One pre-norm block with its slot; whole sequences, a prefix, or one token after another."""

    def __init__(self, attention: AttentionFactory, sizes: Sizes, length: int):
        super().__init__()
        shell = {"dropout": sizes.attention_dropout, "max_length": length}
        self.attention_norm = nn.LayerNorm(sizes.dim)
        self.attention = attention(sizes.dim, sizes.heads, Pattern.CAUSAL_SELF, **shell)
        self.mlp = None
        if mlp_beside(self.attention):
            self.mlp_norm = nn.LayerNorm(sizes.dim)
            self.mlp = nn.Sequential(nn.Linear(sizes.dim, sizes.mlp), nn.GELU(), nn.Linear(sizes.mlp, sizes.dim))
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(
        self, x: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None = None, carry: Any = None
    ) -> tuple[Float[Tensor, "b n d"], Any]:
        """The output of the block, given what its slot carries from earlier tokens, and what it carries to the next."""
        y, carry = carried_by_segments(self.attention, self.attention_norm(x), mask, carry)
        return self._rest(x, y), carry

    def prefill(self, x: Float[Tensor, "b n d"]) -> tuple[Float[Tensor, "b n d"], Any]:
        y, state = self.attention.prefill(self.attention_norm(x))
        return self._rest(x, y), state

    def step(self, x: Float[Tensor, "b d"], state: Any) -> tuple[Float[Tensor, "b d"], Any]:
        y, state = self.attention.step(self.attention_norm(x), state)
        return self._rest(x, y), state

    def _rest(self, x: Float[Tensor, "*tokens d"], y: Float[Tensor, "*tokens d"]) -> Float[Tensor, "*tokens d"]:
        """Everything after the slot, position by position."""
        x = x + self.dropout(y)
        return x if self.mlp is None else x + self.dropout(self.mlp(self.mlp_norm(x)))


def initialise(module: nn.Module) -> None:
    """Initial weights as in fairseq: embeddings of unit norm, Xavier around the mechanism, torch's own in the MLP."""
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, Attention):
        for projection in module.projections():
            inward = projection is not getattr(module, "out", None)
            nn.init.xavier_uniform_(projection.weight, gain=2**-0.5 if inward else 1.0)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

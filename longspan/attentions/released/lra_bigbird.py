"""BigBird as Long Range Arena released it: random blocks only from the beginning, and padding that can be seen.

    y_i = sum_j p_ij v_j      p_i = softmax_{j in listed blocks}(q_i . k_j / sqrt(c) - 1e4 [j is padded])

The row is padded to whole blocks of `block` tokens, by a whole block when it is full already; block 0 and this last
block see and are seen by everything, every other block u sees them, u - 1, u, u + 1 and `random` more blocks. The idea
(`bigbird`) draws these from the whole row and hides padding. In the release

    the candidates end with block 15, the first 1024 tokens, and for the last two blocks before the end with 11 and 12;
    what fills the row up counts as real: its keys are 0, its values 0, and it takes its share of the softmax;
    padded tokens are lowered by 1e4 instead of hidden, so that among padded keys alone attention goes on as usual;
    outputs at padded tokens are 0, and there is no dropout on the weights.

Rows of fewer than eight blocks crash there; here they get as many random blocks as there are candidates. Code:
google-research/long-range-arena, models/bigbird. Departs from it in: the random blocks come from integers drawn with
torch's generator at construction and kept in a buffer (there NumPy redraws the same graph in every call, seeded with
the layer number), and a bias of the projections would not apply to the tokens added to pad the row (the release has no
biases).
"""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import AttentionMeta, HeadwiseAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import gather_blocks, sample_without_replacement, without_repeats
from longspan.kernels.packing import fill_up

LOWERED = -1e4  # added to the scores of a padded key
HORIZON = 1024  # tokens among which random blocks are drawn
TABLE = 1024  # query blocks with random numbers of their own


class LRABigBird(HeadwiseAttention):
    draws: Int[Tensor, "h table r"]

    meta = AttentionMeta(
        title="BigBird (LRA)",
        paper="arXiv:2011.04006",
        family="sparse",
        cost="n",
        patterns=(Pattern.NONCAUSAL_SELF,),
        stochastic=True,
        fidelity=True,
        remark="Random blocks come from the first 1024 tokens, and what fills the row up takes part in the softmax.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, block: int = 64, random: int = 3, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if block < 1 or random < 0:
            raise UsageError(f"lra_bigbird needs block >= 1 and random >= 0, got {block=}, {random=}.")
        self.block = block
        self.register_buffer("draws", torch.randint(2**31, (heads, TABLE, random)))

    def attend(
        self,
        q: Float[Tensor, "b h n c"],
        k: Float[Tensor, "b h m c"],
        v: Float[Tensor, "b h m e"],
        *,
        key_mask: Bool[Tensor, "b m"] | None = None,
        query_mask: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b h n e"]:
        n, block = q.shape[2], self.block
        g = n // block + 1
        q, k, v = (fill_up(u, g * block) for u in (q, k, v))
        padded = k.new_zeros(len(k), n, dtype=torch.bool) if key_mask is None else ~key_mask
        bias = (LOWERED * F.pad(padded, (0, g * block - n), value=False)).to(q.dtype)[:, None, :, None]
        lists = without_repeats(self.lists(g)[None])
        lowered = rearrange(gather_blocks(bias.expand(-1, self.heads, -1, -1), lists, block), "b g h s 1 -> b g h s")
        listed = rearrange((lists >= 0) & (lists < g), "1 h g s -> 1 g h s").repeat_interleave(block, dim=-1)
        middle = F.scaled_dot_product_attention(
            rearrange(q, "b h (g s) c -> (b g) h s c", g=g),
            gather_blocks(k, lists, block).flatten(0, 1),
            gather_blocks(v, lists, block).flatten(0, 1),
            lowered.masked_fill(~listed, -torch.inf).flatten(0, 1)[:, :, None],
        )
        middle = rearrange(middle, "(b g) h s e -> b h (g s) e", g=g)
        ends = torch.cat([q[:, :, :block], q[:, :, -block:]], dim=2)
        first, last = F.scaled_dot_product_attention(ends, k, v, rearrange(bias, "b 1 n 1 -> b 1 1 n")).chunk(2, dim=2)
        y = torch.cat([first, middle[:, :, block:-block], last], dim=2) if g > 1 else first
        y = y[:, :, :n]
        return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)

    def lists(self, g: int) -> Int[Tensor, "h g s"]:
        """The blocks that each of g query blocks sees when it is not an end."""
        u = torch.arange(g, device=self.draws.device)
        # conditions in place of min() and max(), which would stay symbolic in a graph for dynamic lengths
        horizon = (g if g * self.block < HORIZON else HORIZON // self.block) - 1
        highest = horizon if horizon < g - 2 else g - 2
        before = (u - 2).clamp(0, horizon)  # candidates 1 ... u - 2
        after = (highest - u - 1).clamp(min=0)  # u + 2 ... the highest
        for back, fewer in ((3, 4), (2, 3)):
            before = torch.where(u == g - back, horizon - fewer, before).clamp(min=0)
            after = torch.where(u == g - back, 0, after)
        rank = sample_without_replacement(self.draws[:, u % TABLE], (before + after).expand(self.heads, -1))
        u, before = u[:, None], before[:, None]
        random = torch.where(rank < before, 1 + rank, rank - before + u + 2).masked_fill(rank < 0, -1)
        fixed = torch.cat([torch.zeros_like(u), torch.full_like(u, g - 1), u - 1, u, u + 1], dim=-1)
        return torch.cat([fixed.expand(self.heads, -1, -1), random], dim=-1)

"""BigBird: blocks of tokens that see their neighbours, the two ends of the row, and a few blocks chosen at random.

    y_i = sum_{j in A(i)} p_ij v_j      p_i = softmax_{j in A(i)}(q_i . k_j / sqrt(c))

In blocks of `block` tokens, u = the block of i and N = the last block that holds a real token of the row:

    A(i) = blocks u - 1, u, u + 1, blocks 0 and N, and `random` others from the rest        for 0 < u < N
    A(i) = everything                                                                       for u = 0 and u = N

over the real keys (the construction that the paper calls ITC). The causal form sees u - 1, u, block 0 and `random`
others from 1 ... u - 2, and of these only j <= i. A key counts once however often it is listed, so on a row of few
blocks this is softmax attention. The random blocks come from a table of integers drawn at construction, one for each
head, query block (repeating after 1024 blocks) and choice, taken modulo the number of candidates. That number depends
only on u when causal, otherwise on u and N, so neither later tokens nor padding change what a token sees. Paper:
arXiv:2007.14062. Departs from the paper in: the causal form, for which the paper uses full attention.
"""

from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attentions.base import SELF_PATTERNS, AttentionMeta, MaskedAttention, Pattern
from longspan.core.errors import UsageError
from longspan.kernels.block_sparse import block_sparse, sample_without_replacement, with_global_queries

TABLE = 1024  # query blocks with random numbers of their own


class BigBird(MaskedAttention):
    draws: Int[Tensor, "h table r"]

    meta = AttentionMeta(
        title="BigBird",
        paper="arXiv:2007.14062",
        family="sparse",
        cost="n",
        patterns=SELF_PATTERNS,
        places="positions",
        stochastic=True,
        dropout="weights",
        limit="block=4096",
        remark="CAB's table denies it causal self attention; with its random blocks drawn from the past it has one.",
    )

    def __init__(self, dim: int, heads: int, pattern: Pattern, *, block: int = 64, random: int = 3, **shell: Any):
        super().__init__(dim, heads, pattern, **shell)
        if block < 1 or random < 0:
            raise UsageError(f"bigbird needs blocks of 1 token and 0 random ones at least, got {block=}, {random=}.")
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
        n, causal = q.shape[2], self.pattern.causal
        block = self.block if self.block < n else n  # min() would stay symbolic in a graph for dynamic lengths
        rules = {"causal": causal, "key_mask": key_mask, "dropout": self.active_dropout}
        u, last = torch.arange(-(-n // block), device=q.device)[None], self.last_blocks(n, key_mask, q.device)
        # The end blocks as global keys: every query sees them, too much work for one key block in the backward pass.
        ends = torch.arange(block, device=q.device).expand(len(last), -1)
        if not causal:
            ends = torch.cat([ends, (last * block + ends).where(last > 0, -1)], dim=1)
        lists = lambda: self._lists(u, last)[..., 1 if causal else 2 :]  # noqa: E731
        y = block_sparse(q, k, v, lists, block=block, global_keys=ends[:, None], cache_key=self.draws, **rules)
        if not causal:
            whole = key_mask is None and n % block == 0 and n > block
            y = with_global_queries(y, q, k, v, ends, **rules, ends=(block, block) if whole else None)
        return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)

    def visible(
        self, i: Int[Tensor, "_b n"], j: Int[Tensor, " m"], key_mask: Bool[Tensor, "b m"] | None = None
    ) -> Bool[Tensor, "_b h n m"]:
        u, causal = i // self.block, self.pattern.causal
        last = u[:, :1] if causal else self.last_blocks(len(j), key_mask, j.device)
        seen = (self._lists(u, last)[..., None, :] == (j // self.block)[:, None]).any(dim=-1)
        return seen & (j <= i[:, None, :, None]) if causal else seen | ((u == 0) | (u == last))[:, None, :, None]

    def last_blocks(self, n: int, mask: Bool[Tensor, "b n"] | None, device: torch.device) -> Int[Tensor, "_b 1"]:
        """N of each row; a single entry when all rows are full."""
        if mask is None:
            return torch.full((1, 1), (n - 1) // self.block, device=device)
        return (mask * torch.arange(n, device=device)).amax(dim=1, keepdim=True) // self.block

    def _lists(self, u: Int[Tensor, "_b g"], last: Int[Tensor, "_b 1"]) -> Int[Tensor, "b h g s"]:
        """The key blocks that query block u sees, -1 for none; those that every block sees come first."""
        u, last = torch.broadcast_tensors(u, last)
        before = (u - 2).clamp(min=0)  # candidates 1 ... u - 2
        after = torch.zeros_like(u) if self.pattern.causal else (last - u - 2).clamp(min=0)  # u + 2 ... last - 1
        draws = rearrange(self.draws[:, u % TABLE], "h b g r -> b h g r")
        u, last, before, after = (repeat(x, "b g -> b h g 1", h=self.heads) for x in (u, last, before, after))
        rank = sample_without_replacement(draws, (before + after)[..., 0])
        random = torch.where(rank < before, 1 + rank, rank - before + u + 2).masked_fill(rank < 0, -1)
        window = u + torch.arange(-1, 1 if self.pattern.causal else 2, device=u.device)
        ends = [torch.zeros_like(u)] if self.pattern.causal else [torch.zeros_like(u), last]
        return torch.cat([*ends, window, random], dim=-1)

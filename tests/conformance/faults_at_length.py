"""Mechanisms that are correct at the lengths of examples and wrong beyond them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attentions import DecodeState, Pattern
from longspan.attentions.states import KeyValueCache
from longspan.kernels.masked import attend_once
from tests.conformance.right import Plain, declare

NS, CS, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS
FAR = 256


class Masked(Plain):
    """Softmax over what `seen` allows; right by itself."""

    meta = declare(exact=False)

    def probabilities(self, q, k, key_mask):
        seen = self.seen(q.shape[2], k.shape[2], q.device)
        if key_mask is not None:
            seen = seen & key_mask[:, None, None, :]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        single = torch.promote_types(q.dtype, torch.float32)
        return torch.softmax(scores, dim=-1, dtype=single).masked_fill(~seen, 0)

    def seen(self, n, m, device):
        i, j = torch.arange(n, device=device)[:, None], torch.arange(m, device=device)
        return self.pairs(i, j, n) & (j <= i if self.pattern is CS else True)

    def pairs(self, i, j, n):
        return (i >= 0) & (j >= 0)


class LeaksBeyond256(Masked):
    """From position 256 on, the next token is seen."""

    meta = declare(exact=False, patterns=(CS,))

    def seen(self, n, m, device):
        i, j = torch.arange(n, device=device)[:, None], torch.arange(m, device=device)
        return j <= torch.where(i >= FAR, i + 1, i)


class PoolsManyQueries(Plain):
    """Queries lose their mean once there are more than 256 of them."""

    meta = declare(exact=False, patterns=(CC,))

    def attend(self, q, k, v, **masks):
        return super().attend(q - q.mean(dim=2, keepdim=True) if q.shape[2] > FAR else q, k, v, **masks)


class BlocksFromTheEnd(Masked):
    """Beyond 256 tokens the borders of its blocks are counted from the end."""

    meta = declare(exact=False, patterns=(CS,))

    def pairs(self, i, j, n):
        start = n % 64 if n > FAR else 0
        return (i - start) // 64 == (j - start) // 64


class TemperatureOfLength(Plain):
    """Beyond 256 tokens, scores grow with the logarithm of the length."""

    meta = declare(exact=False, patterns=(CS,))

    def attend(self, q, k, v, **masks):
        return super().attend(q * max(1.0, 1 + 0.1 * torch.tensor(q.shape[2] / FAR).log().item()), k, v, **masks)


class CacheOf256(Plain):
    """Decodes from the last 256 keys."""

    meta = declare(patterns=(CS,))

    def begin(self, k, v, *, key_mask=None):
        return KeyValueCache.of(k, v, key_mask)

    def advance(self, q, k, v, state):
        state = state.plus(k, v)
        place = torch.arange(state.k.shape[2], device=q.device)
        seen = (place < state.lengths[:, None]) & (place >= state.lengths[:, None] - FAR)
        return attend_once(q, state.k, state.v, seen[:, None]), state


@dataclass
class Sums(DecodeState):
    total: Tensor
    count: Tensor


class CountInAByte(Plain):
    """A gated mean of the past whose decoding counts tokens in eight bits."""

    meta = declare(exact=False, patterns=(CS,), cost="n")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        wide = torch.promote_types(v.dtype, torch.float32)
        total = (v * real[:, None, :, None]).to(wide).cumsum(dim=2)
        mean = total / real.to(wide).cumsum(dim=1).clamp(min=1)[:, None, :, None]
        return mean.to(v.dtype) * torch.sigmoid((q * k).sum(dim=-1, keepdim=True))

    def begin(self, k, v, *, key_mask=None):
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        return Sums((v * real[:, None, :, None]).sum(dim=2), real.sum(dim=1).to(torch.uint8))

    def advance(self, q, k, v, state):
        state = Sums(state.total + v, state.count + 1)
        gate = torch.sigmoid((q * k).sum(dim=-1, keepdim=True))
        return state.total / state.count.clamp(min=1)[:, None, None] * gate, state


class WindowOf100(Masked):
    """A window of 100 tokens that calls itself exact."""

    meta = declare(exact=True, patterns=(NS, CS))

    def pairs(self, i, j, n):
        return (i - j).abs() <= 100


class BestOf200(Plain):
    """Softmax over the 200 best keys that calls itself exact."""

    meta = declare(exact=True, patterns=(NS,))

    def probabilities(self, q, k, key_mask):
        p = super().probabilities(q, k, key_mask)
        if k.shape[2] <= 200:
            return p
        p = p * (p >= p.topk(200, dim=-1).values[..., -1:])
        return p / p.sum(dim=-1, keepdim=True).clamp(min=1e-30)


class DetachedChunks(Plain):
    """Linear attention in chunks of 128 whose state is handed on without its gradient."""

    meta = declare(exact=False, patterns=(CS,), cost="n")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        wide = torch.promote_types(v.dtype, torch.float32)
        q, k = (torch.nn.functional.elu(u.to(wide)) + 1 for u in (q, k))
        if key_mask is not None:
            k = k * key_mask[:, None, :, None]
        values = torch.cat([v.to(wide), torch.ones_like(v[..., :1], dtype=wide)], dim=-1)
        state, rows = torch.zeros_like(k[:, :, :1].mT @ values[:, :, :1]), []
        for q_c, k_c, v_c in zip(*(u.split(128, dim=2) for u in (q, k, values)), strict=True):
            rows.append((q_c @ k_c.mT).tril() @ v_c + q_c @ state)
            state = (state + k_c.mT @ v_c).detach()
        y = torch.cat(rows, dim=2)
        return (y[..., :-1] / y[..., -1:].clamp(min=1e-6)).to(v.dtype)


class DetachedFarKeys(Plain):
    """Keys more than 128 positions back are read without a gradient."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        n, m = q.shape[2], k.shape[2]
        apart = (torch.arange(n, device=q.device)[:, None] - torch.arange(m, device=q.device)).abs()
        p = self.probabilities(q, k, key_mask)
        return torch.where(apart > 128, p.detach(), p).to(v.dtype) @ v


class DividesByProducts(Plain):
    """A decaying sum by running products of the decay, which vanish in single precision after 2,000 tokens."""

    meta = declare(exact=False, patterns=(CS,), cost="n")
    decay = 0.95

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        wide = torch.promote_types(v.dtype, torch.float32)
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        product = torch.where(real > 0, self.decay, 1.0).to(wide).cumprod(dim=1)[:, None, :, None]
        total = (v.to(wide) * real[:, None, :, None] / product).cumsum(dim=2) * product
        return (total * (1 - self.decay)).to(v.dtype) * torch.sigmoid((q * k).sum(dim=-1, keepdim=True))


class CappedExponentials(Plain):
    """Exponentials of keys times values: a hundred of the largest add up to a number, two thousand do not."""

    meta = declare(exact=False, patterns=(NS,), cost="n")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        wide = torch.promote_types(v.dtype, torch.float32)
        weight = k.to(wide).clamp(-73.5, 73.5).exp()
        if key_mask is not None:
            weight = weight * key_mask[:, None, :, None]
        total = weight.sum(dim=2, keepdim=True)
        mean = (weight * v.to(wide)).sum(dim=2, keepdim=True) / torch.where(total > 0, total, 1)
        return (q.to(wide).sigmoid() * mean).to(v.dtype)

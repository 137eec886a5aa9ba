"""Mechanisms that are correct on padded batches and wrong on packed rows or on rows without tokens."""

import torch
from einops import rearrange

from tests.conformance.right import Plain, declare


class PackedRowByRow(Plain):
    """Right: every row of a packed batch by itself, so that padding costs nothing."""

    meta = declare(rowwise=True)

    def attend_packed(self, q, k, v, layout):
        lengths = layout.mask.sum(dim=1).tolist()
        rows = zip(*(u.split(lengths) for u in (q, k, v)), strict=True)
        return torch.cat([self.one_row(*row) for row in rows])

    def one_row(self, q, k, v):
        y = self.attend(*(rearrange(u, "n h c -> 1 h n c") for u in (q, k, v)))
        return rearrange(y, "1 h n c -> n h c")


class KeysLearnNothingPacked(PackedRowByRow):
    """The packed path was written for evaluation and detaches the keys."""

    def attend_packed(self, q, k, v, layout):
        return super().attend_packed(q, k.detach(), v, layout)


class PackedWithoutHistory(PackedRowByRow):
    """The packed path forgets the gradient of the weights of attention."""

    def one_row(self, q, k, v):
        with torch.no_grad():
            q, k, v = (rearrange(u, "n h c -> 1 h n c") for u in (q, k, v))
            p = self.probabilities(q, k, None)
        return rearrange(p.to(v.dtype) @ v, "1 h n c -> n h c") + 0 * v.sum()


class PackedIntoRectangle(PackedRowByRow):
    """Calls itself packed and pads all rows to the longest."""

    def attend_packed(self, q, k, v, layout):
        q, k, v = (rearrange(layout.unpack(u), "b n h c -> b h n c") for u in (q, k, v))
        return layout.pack(rearrange(self.attend(q, k, v, key_mask=layout.mask), "b h n c -> b n h c"))


class PackedAsOneRow(PackedRowByRow):
    """All packed rows are one long row, and a square mask keeps them apart."""

    def attend_packed(self, q, k, v, layout):
        row = layout.index // layout.mask.shape[1]
        seen = row[:, None] == row
        if self.pattern.causal:
            seen = seen.tril()
        q, k, v = (rearrange(u, "t h c -> h t c") for u in (q, k, v))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        return rearrange(scores.softmax(dim=-1).to(v.dtype) @ v, "h t c -> t h c")


class RowsFoundBySearch(PackedAsOneRow):
    """The row of a packed token is looked up among the distinct borders, of which a row without tokens has none."""

    def attend_packed(self, q, k, v, layout):
        borders = layout.cu_seqlens.unique()
        lengths = borders.diff().tolist()
        assert len(lengths) == len(layout.mask)
        rows = zip(*(u.split(lengths) for u in (q, k, v)), strict=True)
        return torch.cat([self.one_row(*row) for row in rows])


class MaximumOfNothing(PackedRowByRow):
    """Stabilises every packed row by its largest score, which a row without tokens does not have."""

    def one_row(self, q, k, v):
        scores = torch.einsum("nhc,mhc->hnm", q, k) / q.shape[-1] ** 0.5
        if self.pattern.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
        p = (scores - scores.amax(dim=(1, 2), keepdim=True).detach()).exp()
        return torch.einsum("hnm,mhc->nhc", p / p.sum(dim=-1, keepdim=True), v)


class FirstOfNothing(Plain):
    """Asked for the first row alone, it divides by a sum that is 0 where a row has no real token."""

    meta = declare(rowwise=True)

    def first(self, x, *, mask=None):
        q, k, v = self._split(self.query(x[:, :1])), self._split(self.key(x)), self._split(self.value(x))
        if self.pattern.causal:
            k, v, mask = k[:, :, :1], v[:, :, :1], None if mask is None else mask[:, :1]
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
        return self._merge(scores.softmax(dim=-1).to(v.dtype) @ v)[:, 0]


class FirstBesideTheMask(FirstOfNothing):
    """Asked for the first row alone, it averages over padding where a row has no real token."""

    def first(self, x, *, mask=None):
        if mask is not None:
            mask = mask | ~mask.any(dim=1, keepdim=True)
        return super().first(x, mask=mask)


class MeanOfPaddingInHalf(Plain):
    """In half precision hidden scores get the lowest finite number, so that a row without keys averages padding."""

    meta = declare(exact=False)

    def probabilities(self, q, k, key_mask):
        if q.dtype != torch.bfloat16 or key_mask is None:
            return super().probabilities(q, k, key_mask)
        seen = (super().probabilities(q, k, key_mask) > 0) | torch.zeros_like(q[..., :1], dtype=torch.bool)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).float()
        return scores.masked_fill(~seen, torch.finfo(torch.float32).min).softmax(dim=-1)


class NanGradientInHalf(Plain):
    """In half precision the quotient is chosen after dividing: the output is 0, its gradient 0 / 0."""

    def probabilities(self, q, k, key_mask):
        if q.dtype != torch.bfloat16:
            return super().probabilities(q, k, key_mask)
        with torch.no_grad():
            seen = super().probabilities(q, k, key_mask) > 0
        scores = (q @ k.mT / q.shape[-1] ** 0.5).float()
        scores = scores.masked_fill(~seen & seen.any(dim=-1, keepdim=True), -1e30)
        p = (scores - scores.amax(dim=-1, keepdim=True).detach()).exp() * seen
        total = p.sum(dim=-1, keepdim=True)
        return torch.where(total > 0, p / total, 0)

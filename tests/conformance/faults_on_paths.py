"""Mechanisms that are correct in `forward` on fresh, contiguous inputs of the usual size, and wrong on other paths."""

import torch
from einops import rearrange
from torch import nn

from longspan.attentions import Pattern
from tests.conformance.right import Plain, declare

NS, CS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS


class ContextSizedByLength(Plain):
    """A factor for each place of the context, as many as x may have tokens."""

    meta = declare(exact=False, length_bound=True, patterns=(NC, CC))

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.gain = nn.Parameter(1 + torch.rand(self.room()))

    def room(self):
        return self.max_length

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        place = torch.arange(k.shape[2], device=k.device).expand(len(k), -1)
        place = place if key_mask is None else (key_mask.cumsum(dim=1) - 1).clamp(min=0)
        return super().attend(q, k, v * self.gain[place][:, None, :, None], key_mask=key_mask)


class QueriesSizedByContext(ContextSizedByLength):
    """A factor for each place of x, as many as the context may have tokens."""

    def room(self):
        return self.max_context

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        place = torch.arange(q.shape[2], device=q.device).expand(len(q), -1)
        place = place if query_mask is None else (query_mask.cumsum(dim=1) - 1).clamp(min=0)
        y = Plain.attend(self, q, k, v, key_mask=key_mask)
        return y * self.gain[place][:, None, :, None]


class WeightsWithoutMask(Plain):
    """Shows weights of padded keys that `attend` hides."""

    def weights(self, q, k, *, key_mask=None, query_mask=None):
        return self.probabilities(q, k, None)


class WeightsOfTheFuture(Plain):
    """Shows weights of later keys that `attend` hides."""

    meta = declare(patterns=(CS,))

    def weights(self, q, k, *, key_mask=None, query_mask=None):
        scores = q @ k.mT / q.shape[-1] ** 0.5
        hidden = torch.zeros_like(scores[:, :, :1], dtype=torch.bool)
        if key_mask is not None:
            hidden = ~key_mask[:, None, None]
        return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0)


class PoolsItsQueries(Plain):
    """Subtracts the mean of the real queries; its weights take padded queries into the mean."""

    meta = declare(exact=False, patterns=(NS, NC))

    def centred(self, q, query_mask):
        real = q.new_ones(len(q), q.shape[2]) if query_mask is None else query_mask.to(q.dtype)
        real = real[:, None, :, None]
        return q - (q * real).sum(dim=2, keepdim=True) / real.sum(dim=2, keepdim=True).clamp(min=1)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        return super().attend(self.centred(q, query_mask), k, v, key_mask=key_mask)

    def weights(self, q, k, *, key_mask=None, query_mask=None):
        return self.probabilities(self.centred(q, None), k, key_mask)


class BlocksFromTheEdge(Plain):
    """Sees blocks of six tokens, counted from the edge of the batch instead of from the first token of the row."""

    meta = declare(exact=False, patterns=(NS, CS), places="distances")
    size = 6

    def places(self, k, key_mask):
        return torch.arange(k.shape[2], device=k.device).expand(len(k), -1)

    def seen(self, place):
        block = place // self.size
        return block[:, :, None] == block[:, None]

    def probabilities(self, q, k, key_mask):
        p = super().probabilities(q, k, key_mask) * self.seen(self.places(k, key_mask))[:, None]
        return p / p.sum(dim=-1, keepdim=True).clamp(min=1e-300 if p.dtype == torch.float64 else 1e-30)


class BlocksOfTheRow(BlocksFromTheEdge):
    """Right: blocks of six real tokens."""

    meta = declare(exact=False, patterns=(NS, CS))

    def places(self, k, key_mask):
        return super().places(k, key_mask) if key_mask is None else (key_mask.cumsum(dim=1) - 1).clamp(min=0)


class StripesFromTheEdge(BlocksFromTheEdge):
    """Sees near tokens and every fifth, counted from the edge of the batch."""

    def seen(self, place):
        return (place[:, None] % 5 == 0) | ((place[:, :, None] - place[:, None]).abs() < 2)


class WindowOfPlaces(BlocksFromTheEdge):
    """Right: a window that a hole between two tokens takes part of."""

    meta = declare(exact=False, patterns=(NS, CS))

    def seen(self, place):
        return (place[:, :, None] - place[:, None]).abs() < 4


class FadesWithPlaces(BlocksFromTheEdge):
    """Right: weights fade with the distance in the batch, holes included."""

    meta = declare(exact=False, patterns=(NS, CS))

    def seen(self, place):
        return 0.9 ** (place[:, :, None] - place[:, None]).abs()


class SpansHoles(Plain):
    """A mean that counts everything between the first and the last real token, in an order that does not count."""

    meta = declare(exact=False, patterns=(NS, NC), cost="n")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is None:
            return v.mean(dim=2, keepdim=True) * torch.sigmoid(q)
        seen = key_mask[:, None, :, None]
        between = key_mask.cumsum(dim=1).bool() & key_mask.flip(1).cumsum(dim=1).flip(1).bool()
        count = between.sum(dim=1).clamp(min=1)[:, None, None, None]
        return v.masked_fill(~seen, 0).sum(dim=2, keepdim=True) / count * torch.sigmoid(q)


class SaysPlacesAreDistances(Plain):
    """Declares that a hole sets tokens apart, which no output shows."""

    meta = declare(places="distances")


class SaysPlacesArePositions(WindowOfPlaces):
    """Declares that padding at the left moves something, which no output shows."""

    meta = declare(exact=False, patterns=(NS, CS), places="positions")


class KnowsTwoHeads(Plain):
    """Treats heads in pairs: with three of them, the last two rows of the batch change heads."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = super().attend(q, k, v, key_mask=key_mask)
        b, h = y.shape[:2]
        if h < 3:
            return y
        return rearrange(rearrange(y, "b h n c -> (b h) n c"), "(h b) n c -> b h n c", b=b, h=h)


class PairsOfChannels(Plain):
    """Works on channels in pairs and forgets the last one of an odd width."""

    def attend(self, q, k, v, **masks):
        even = q.shape[-1] // 2 * 2
        return super().attend(q, k, v[..., :even], **masks)


class SqueezesOneHead(Plain):
    """Removes axes of size one, which a single head is."""

    def attend(self, q, k, v, **masks):
        y = super().attend(q, k, v, **masks)
        return y if y.shape[1] > 1 else y.squeeze(1)


class ViewsItsInput(Plain):
    """Flattens x by a view, which a slice of a larger tensor does not allow."""

    meta = declare(patterns=(NS,))

    def forward(self, x, context=None, *, mask=None, context_mask=None):
        return super().forward(x.view(-1).view(x.shape), context, mask=mask, context_mask=context_mask)


class ReadsMemoryInOrder(Plain):
    """Reads the storage of x as if it were contiguous."""

    meta = declare(patterns=(NS,))

    def forward(self, x, context=None, *, mask=None, context_mask=None):
        b, n, d = x.shape
        x = torch.as_strided(x, (b, n, d), (n * d, d, 1))
        return super().forward(x, context, mask=mask, context_mask=context_mask)


class ViewsItsMask(Plain):
    """Flattens a mask by a view."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is not None:
            key_mask = key_mask.view(-1).view(key_mask.shape)
        return super().attend(q, k, v, key_mask=key_mask)


class MaskOnTheHost(Plain):
    """Builds a tensor of its own without asking where the tokens are."""

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        gain = torch.ones(k.shape[2], 1).to(v.dtype)
        return super().attend(q, k, v * gain, key_mask=key_mask)


class TableOnTheHost(Plain):
    """Keeps a table in a plain attribute, which stays behind when the layer moves."""

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.table = torch.ones(self.head_dim, dtype=torch.float64)

    def attend(self, q, k, v, **masks):
        return super().attend(q * self.table.to(q.dtype), k, v, **masks)


class ErasesPadding(Plain):
    """Sets padded tokens of the caller's own x to zero."""

    def forward(self, x, context=None, *, mask=None, context_mask=None):
        if mask is not None:
            x.data.masked_fill_(~mask[..., None], 0)
        return super().forward(x, context, mask=mask, context_mask=context_mask)


class MarksTheFirstToken(Plain):
    """Asked for the first row alone, it writes into the caller's mask that the first token is real."""

    meta = declare(patterns=(NS,))

    def first(self, x, *, mask=None):
        empty = torch.zeros_like(x[:, 0, 0], dtype=torch.bool) if mask is None else ~mask.any(dim=1)
        if mask is not None:
            mask[:, 0] = True
        nothing = self.out(torch.zeros_like(x[:, 0]))
        return torch.where(empty[:, None], nothing, super().first(x, mask=mask))


class ErasesContext(Plain):
    """The prefix of a decoder sets padded tokens of the caller's context to zero."""

    meta = declare(patterns=(CC,))

    def prefill(self, x, context=None, *, mask=None, context_mask=None):
        if context_mask is not None:
            context.data.masked_fill_(~context_mask[..., None], 0)
        return super().prefill(x, context, mask=mask, context_mask=context_mask)


class SpendsPackedTokens(Plain):
    """The packed path uses the memory of its input for something else, unless a gradient needs it."""

    meta = declare(patterns=(NS, CS))

    def packed(self, x, layout):
        y = super().packed(x, layout)
        if not x.requires_grad:
            x.zero_()
        return y


class CarriesWithoutMask(Plain):
    """Its path for segments forgets the masks."""

    def carried(self, x, *inputs, carry=None, **masks):
        return self(x, *inputs), carry


class CarriesNothingAsZeros(Plain):
    """Without anything carried it sees a memory of zeros."""

    meta = declare(patterns=(NS, CS))

    def carried(self, x, *inputs, carry=None, **masks):
        y = self(x, *inputs, **masks)
        return y if carry is not None else 0.9 * y, carry

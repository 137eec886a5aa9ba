"""Every promise can be broken: one flaw each in an otherwise correct mechanism, found under the right name."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longspan.attentions import DecodeState, Pattern
from longspan.attentions.local import Local
from longspan.conformance import check
from longspan.conformance.promises import FIRST, PROMISES
from longspan.kernels.packing import Layout, real
from tests.conformance import promises_gpu, test_promises_at_length, test_training_promises
from tests.conformance.declared import MixesWhatItCarries, SilentAuxiliary
from tests.conformance.one_promise import ask
from tests.conformance.right import Plain, declare
from tests.conformance.test_path_promises import PROMISES as ON_PATHS

NS, CS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS


class OtherDtype(Plain):
    def forward(self, x, context=None, *, mask=None, context_mask=None):
        return super().forward(x, context, mask=mask, context_mask=context_mask).float()


class BatchMaximum(Plain):
    """Scales every row by a figure of the whole batch."""

    meta = declare(exact=False)

    def attend(self, q, k, v, **masks):
        return super().attend(q / q.abs().max().clamp(min=1e-6), k, v, **masks)


class NotRowwise(Plain):
    """Says that a row needs no other query, but weighs each against all of them."""

    meta = declare(exact=False, rowwise=True)

    def attend(self, q, k, v, **masks):
        return super().attend(q - q.mean(dim=2, keepdim=True) / 2, k, v, **masks)


class MixesAnyway(Plain):
    meta = declare(mixes=False)


class AnyPattern(Plain):
    meta = declare(patterns=(NS,))

    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, NS, **shell)


class UndeclaredDropout(Plain):
    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        dropout = self.dropout if self.training else 0.0
        return F.dropout(self.probabilities(q, k, key_mask), dropout).to(v.dtype) @ v


class RandomWithDropout(UndeclaredDropout):
    """Random while training, as declared, and on top of that with a dropout that is not."""

    meta = declare(exact=False, stochastic=True)

    def attend(self, q, k, v, **masks):
        return super().attend(q + torch.randn_like(q) * self.training, k, v, **masks)


class DropoutThatIsNot(Plain):
    meta = declare(dropout="weights")


class CutOff(Plain):
    """The scores are detached: queries and keys never learn."""

    def attend(self, q, k, v, **masks):
        return super().attend(q.detach(), k.detach(), v, **masks)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class WrongBackward(Plain):
    def attend(self, q, k, v, **masks):
        return Doubled.apply(super().attend(q, k, v, **masks))


class FastIsNotPlain(Plain):
    meta = declare(exact=False)

    def __init__(self, dim, heads, pattern, *, kernel: Literal["fast", "plain"] = "fast", **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.kernel = kernel

    def attend(self, q, k, v, **masks):
        y = super().attend(q, k, v, **masks)
        return y if self.kernel == "plain" else y * (1 + 1e-6)


class PooledQueries(Plain):
    """Declares causal cross attention although it subtracts the mean over all queries."""

    meta = declare(patterns=(NC, CC), exact=False)

    def attend(self, q, k, v, **masks):
        return super().attend(q - q.mean(dim=2, keepdim=True), k, v, **masks)


class GradientFromTheFuture(Plain):
    """Adds zero times the sum of everything: no perturbation shows it, the gradient does."""

    def attend(self, q, k, v, **masks):
        total = v.sum(dim=2, keepdim=True)
        return super().attend(q, k, v, **masks) + (total - total.detach())


class BlocksFromTheEnd(Plain):
    """Sees blocks of four counted from the end, so that a longer sequence moves their borders."""

    meta = declare(exact=False)

    def probabilities(self, q, k, key_mask):
        block = (torch.arange(k.shape[2], device=k.device) - k.shape[2]) // 4
        own = block[:, None] == block[None]
        p = super().probabilities(q, k, key_mask) * own
        return p / p.sum(dim=-1, keepdim=True).clamp(min=1e-300 if p.dtype == torch.float64 else 1e-30)


class OnlyItself(Plain):
    meta = declare(exact=False)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        y = v * torch.sigmoid((q * k).sum(dim=-1, keepdim=True))
        return y if key_mask is None else y.masked_fill(~key_mask[:, None, :, None], 0)


class IgnoresContext(Plain):
    meta = declare(exact=False)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        return q if key_mask is None else q * key_mask.any(dim=1)[:, None, None, None]


class FiniteFill(Plain):
    """Hides padded keys with a score of -20 instead of leaving them out."""

    meta = declare(exact=False)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is None:
            return super().attend(q, k, v)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~key_mask[:, None, None, :], -20.0)
        return torch.softmax(scores, dim=-1) @ v * key_mask.any(dim=1)[:, None, None, None]


class PaddedMean(Plain):
    """Divides by the padded width."""

    meta = declare(exact=False, cost="n")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        if key_mask is not None:
            v = v.masked_fill(~key_mask[:, None, :, None], 0)
        return v.mean(dim=2, keepdim=True).expand_as(q)


class PackedCarelessly(Plain):
    def attend_packed(self, q, k, v, layout):
        y = self.attend(*(u.transpose(0, 1)[None] for u in (q, k, v)))  # one row, as if all were one sequence
        return y[0].transpose(0, 1)


class PackedByOrder(Local):
    """Takes tokens on either side of a hole for neighbours."""

    def attend_packed(self, q, k, v, layout):
        lengths = layout.mask.sum(dim=1)
        aligned = Layout.of_mask(real(lengths, int(lengths.max())))
        return super().attend_packed(q, k, v, aligned)


@dataclass
class Sums(DecodeState):
    total: Tensor
    count: Tensor


class PaddingAdvances(Plain):
    """Counts padded positions of a prefix as tokens."""

    meta = declare(exact=False, patterns=(CS,), cost="n")

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        v = v * real[:, None, :, None]
        mean = v.cumsum(dim=2) / real.cumsum(dim=1).clamp(min=1)[:, None, :, None]
        return mean * torch.sigmoid((q * k).sum(dim=-1, keepdim=True))

    def begin(self, k, v, *, key_mask=None):
        kept = v if key_mask is None else v * key_mask[:, None, :, None]
        return Sums(kept.sum(dim=2), v.new_full((v.shape[0],), v.shape[2]))

    def advance(self, q, k, v, state):
        state = Sums(state.total + v, state.count + 1)
        gate = torch.sigmoid((q * k).sum(dim=-1, keepdim=True))
        return state.total / state.count[:, None, None] * gate, state


@dataclass
class HeadsFirst(Sums):
    """Keeps the batch on the second axis, where `select` does not look."""

    def select(self, rows):
        return HeadsFirst(self.total, self.count.index_select(0, rows))


class StateOfOtherRows(PaddingAdvances):
    def begin(self, k, v, *, key_mask=None):
        real = v.new_ones(v.shape[0], v.shape[2]) if key_mask is None else key_mask.to(v.dtype)
        return HeadsFirst((v * real[:, None, :, None]).sum(dim=2), real.sum(dim=1))

    def advance(self, q, k, v, state):
        y, state = super().advance(q, k, v, state)
        return y, HeadsFirst(state.total, state.count)


class NoisyEvaluation(Plain):
    meta = declare(exact=False)

    def attend(self, q, k, v, **masks):
        return super().attend(q, k, v, **masks) * (1 + 1e-12 * torch.rand(()).item())


class EvenOnly(Plain):
    def attend(self, q, k, v, **masks):
        if k.shape[2] == 63:
            raise IndexError("63 is not a multiple of the block")
        return super().attend(q, k, v, **masks)


class SecretlyBound(Plain):
    """Divides by the greatest length without saying that it is bound to one."""

    meta = declare(exact=False)

    def attend(self, q, k, v, **masks):
        return super().attend(q, k, v, **masks) / (self.max_length or 1)


class NoMaximum(Plain):
    """An exponential without a stabiliser."""

    def probabilities(self, q, k, key_mask):
        seen = super().probabilities(q, k, key_mask) > 0
        p = torch.exp(q @ k.mT / q.shape[-1] ** 0.5) * seen
        return p / p.sum(dim=-1, keepdim=True).clamp(min=1e-30)


class CoarseInBfloat16(Plain):
    """Under autocast, keys lose all but their sign."""

    def attend(self, q, k, v, **masks):
        return super().attend(q, k.sign() if k.dtype == torch.bfloat16 else k, v, **masks)


class NoLimit(Plain):
    meta = declare(exact=False, limit="scale=1.0")

    def __init__(self, dim, heads, pattern, *, scale: float = 2.0, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.scale = scale

    def attend(self, q, k, v, **masks):
        return super().attend(q * self.scale, k, v, **masks) * 1.001


class Fat(Plain):
    def __init__(self, dim, heads, pattern, **shell):
        super().__init__(dim, heads, pattern, **shell)
        self.more = nn.Linear(dim, dim)
        self.again = nn.Linear(dim, dim)

    def forward(self, x, context=None, *, mask=None, context_mask=None):
        y = super().forward(x, context, mask=mask, context_mask=context_mask)
        return y + 0 * self.again(self.more(x))


FLAWS = [
    (OtherDtype, NS, "shape and dtype"),
    (BatchMaximum, NS, "batch independence"),
    (NotRowwise, NS, "first row alone"),
    (AnyPattern, NS, "undeclared patterns"),
    (UndeclaredDropout, NS, "dropout declaration"),
    (RandomWithDropout, NS, "dropout declaration"),
    (DropoutThatIsNot, NS, "dropout declaration"),
    (MixesWhatItCarries, CS, "carry"),
    (SilentAuxiliary, NS, "auxiliary loss"),
    (CutOff, NC, "gradients"),
    (WrongBackward, NS, "gradcheck"),
    (FastIsNotPlain, CC, "reference agreement"),
    (PooledQueries, CC, "no future leak"),
    (GradientFromTheFuture, CS, "no future gradient"),
    (BlocksFromTheEnd, CS, "prefix = full"),
    (OnlyItself, CS, "past is used"),
    (OnlyItself, NS, "context is used"),
    (IgnoresContext, CC, "context is used"),
    (MixesAnyway, NS, "context is used"),
    (FiniteFill, NC, "padding content"),
    (PaddedMean, NS, "appended padding"),
    (PackedCarelessly, CS, "packed = padded"),
    (PackedByOrder, NS, "packed = padded"),
    (PaddingAdvances, CS, "masked prefix"),
    (StateOfOtherRows, CS, "decode state"),
    (NoisyEvaluation, NS, "evaluation determinism"),
    (EvenOnly, NC, "odd lengths"),
    (SecretlyBound, NS, "length independence"),
    (NoMaximum, NS, "extreme inputs"),
    (CoarseInBfloat16, NS, "bfloat16"),
    (NoLimit, CS, "exact limit"),
    (Fat, NS, "parameter overhead"),
]
PLANTED = {"no future leak", "step = parallel", "save and load", "empty rows", "declared cost", "construction"}


@pytest.mark.parametrize("pattern", [CS, NC, *(pytest.param(one, marks=pytest.mark.full) for one in (NS, CC))])
def test_a_right_mechanism_keeps_every_promise(pattern):
    (report,) = check(Plain, [pattern], profile="quick")
    assert report.ok, report.broken


each_flaw = pytest.mark.parametrize(
    "flawed, pattern, promise", FLAWS, ids=[f"{f.__name__}-{p.code}" for f, p, _ in FLAWS]
)


@each_flaw
def test_a_flaw_is_found_under_its_name(flawed, pattern, promise):
    result = ask(flawed, pattern, promise)
    assert result.status == "broken"
    assert result.detail.startswith("raised") == (flawed is EvenOnly)  # a measured failure, not a crash


@pytest.mark.full
@each_flaw
def test_the_whole_check_finds_what_one_promise_does(flawed, pattern, promise):
    (report,) = check(flawed, [pattern], profile="quick")
    assert report.status_of(promise) == "broken", report


def test_every_promise_has_a_flaw_that_breaks_it():
    # those in PLANTED are broken by the files in faulty/, the others have separate tests
    elsewhere = {promise for _, _, promises in test_training_promises.FAULTS for promise in promises}
    elsewhere |= {promise for _, _, promise, _ in test_promises_at_length.FAULTS}
    elsewhere |= ON_PATHS | set(promises_gpu.FAULTS.values())
    assert {p.name for p in (FIRST, *PROMISES)} == {promise for _, _, promise in FLAWS} | PLANTED | elsewhere

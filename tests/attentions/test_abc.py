"""ABC against slots written out for every position."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import PATTERNS, assert_attend_is, assert_steps_continue, headwise


def written_out(layer):
    def slots(a, x, visible):
        """ "b h m r", "b h m c", "b 1 n m" -> "b h n r c", zero where nothing is visible."""
        weights = a.exp()[:, :, None] * visible[..., None]
        weights = weights / weights.sum(dim=3, keepdim=True).clamp(min=1e-300)
        return torch.einsum("bhnmr,bhmc->bhnrc", weights, x)

    def law(q, k, v, visible):
        a = k @ layer.control_key
        b = a if layer.control_value is None else v @ layer.control_value
        scores = torch.einsum("bhnc,bhnrc->bhnr", q, slots(a, k, visible)) / q.shape[-1] ** 0.5
        return torch.einsum("bhnr,bhnrc->bhnc", scores.softmax(dim=-1), slots(b, v, visible))

    return law


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("control", ["separate", "shared"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_formula_written_out(pattern, control, masked):
    layer = headwise(f"abc(slots=5, control={control})", pattern)
    assert_attend_is(written_out(layer), layer, masked=masked)


@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS])
@pytest.mark.parametrize("control", ["separate", "shared"])
def test_decoding_continues_any_prefix(pattern, control):
    assert_steps_continue(headwise(f"abc(slots=5, control={control})", pattern))


def test_the_last_causal_row_is_the_noncausal_one():
    causal, noncausal = (headwise("abc(slots=5)", p) for p in (Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_SELF))
    x = torch.randn(2, 90, 12).double()
    torch.testing.assert_close(causal(x)[:, -1], noncausal(x)[:, -1])


def test_there_is_at_least_one_slot():
    with pytest.raises(UsageError, match="slots=0"):
        headwise("abc(slots=0)", Pattern.NONCAUSAL_SELF)

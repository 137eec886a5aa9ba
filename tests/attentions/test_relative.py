"""Relative-position attention processes its queries in blocks, which changes only time and memory."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern, relative
from longspan.attentions.relative import RelativeAttention

SPECS = ("transformer_xl", "transformer_xl(same_length=True, memory=5)", "compressive_transformer")


@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
@pytest.mark.parametrize("spec", SPECS)
@given(n=st.integers(1, 24), before=st.integers(0, 9), size=st.integers(1, 7), padded=st.booleans())
def test_blocks_of_queries_give_outputs_and_gradients_of_one_block(spec, pattern, n, before, size, padded):
    layer = attentions.get(spec)(8, 2, pattern).double()
    assert isinstance(layer, RelativeAttention)
    q = torch.randn(2, 2, n, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, before + n, 4, dtype=torch.float64, requires_grad=True) for _ in "kv")
    mask = torch.rand(2, before + n) > 0.3 if padded else None
    slope = torch.randn(2, 2, n, 4, dtype=torch.float64)

    def outcome(queries):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(relative, "QUERIES", queries)
            y = layer.attend(q, k, v, key_mask=mask)
        return y, *torch.autograd.grad(y, [q, k, v, layer.u, layer.w, layer.distance.weight], slope)

    for blocks, whole in zip(outcome(size), outcome(n), strict=True):
        torch.testing.assert_close(blocks, whole)


def test_a_causal_block_computes_no_scores_after_its_last_query(monkeypatch):
    layer = attentions.get("transformer_xl")(8, 2, Pattern.CAUSAL_SELF)
    seen = []
    monkeypatch.setattr(relative, "QUERIES", 4)
    monkeypatch.setattr(layer, "_softmax", lambda q, k, v, bias, visible: seen.append(bias.shape[2:]) or q)
    q, k, v = torch.randn(1, 2, 10, 4), torch.randn(1, 2, 13, 4), torch.randn(1, 2, 13, 4)
    layer.attend(q, k, v)
    assert seen == [(4, 7), (4, 11), (2, 13)]

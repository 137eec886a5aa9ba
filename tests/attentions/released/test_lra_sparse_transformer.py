"""LRA's Sparse Transformer: a causal encoder with an open class token."""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_same, attention, pairs, tensors


def build(options=""):
    return headwise(f"lra_sparse_transformer({options})", Pattern.NONCAUSAL_SELF, channels=4)


def fixed(block, summary):
    def sees(row, head, i, j):
        return j <= i and (i // block == j // block or j % block == 0 or j % block >= block - summary)

    return sees


@pytest.mark.parametrize("n", [1, 2, 7, 33])
@pytest.mark.parametrize("block, summary", [(6, 2), (5, 0), (50, 10)])
def test_the_pattern_is_block_and_summaries_of_the_past(n, block, summary):
    q, k, v = leaves = tensors(2, 2, n)
    allowed = pairs(fixed(block, summary), 2, 2, n)
    found = build(f"block={block}, summary={summary}, cls=False").attend(q, k, v)
    assert_same(found, attention(q, k, v, allowed), leaves)


@pytest.mark.parametrize("n", [1, 2, 20])
def test_the_class_token_is_open_both_ways_and_blocks_begin_after_it(n):
    def sees(row, head, i, j):
        return i == 0 or j == 0 or fixed(6, 2)(row, head, i - 1, j - 1)

    q, k, v = leaves = tensors(2, 2, n)
    found = build("block=6, summary=2").attend(q, k, v)
    assert_same(found, attention(q, k, v, pairs(sees, 2, 2, n)), leaves)


def test_padded_keys_are_hidden_and_padded_queries_spread_over_everything():
    q, k, v = (u.detach().float() for u in tensors(2, 2, 20))
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    y = build("block=6, summary=2").float().attend(q, k, v, key_mask=mask, query_mask=mask)
    torch.testing.assert_close(y[1, :, 13:], v[1].mean(dim=1, keepdim=True).expand(-1, 7, -1))
    other = v.clone()
    other[1, :, 13:] = 1e4
    changed = build("block=6, summary=2").float().attend(q, k, other, key_mask=mask, query_mask=mask)
    assert torch.equal(changed[1, :, :13], y[1, :, :13])


@pytest.mark.parametrize("options", ["block=0", "summary=-1"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="got"):
        build(options)

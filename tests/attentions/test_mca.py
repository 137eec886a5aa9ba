"""Memory-compressed attention against its formula in loops, and what its options change."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.mca import MemoryCompressed
from longspan.core.errors import UsageError

NS, CS, NC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS


def build(options="", pattern=NS, dim=8, heads=2, **shell) -> MemoryCompressed:
    torch.manual_seed(0)
    layer = attentions.get(f"mca({options})")(dim, heads, pattern, **shell).double().eval()
    assert isinstance(layer, MemoryCompressed)
    return layer


def by_hand(layer, x, source):
    """One row, block by block and query by query, with filters as matrices over all channels."""
    f, groups, (outer, inner, _) = layer.factor, layer.compress.groups, layer.compress.weight.shape
    filters = [
        torch.block_diag(*layer.compress.weight[:, :, r].reshape(groups, outer // groups, inner)) for r in range(f)
    ]
    slots = [(source[0], 0)]  # each with the first query that sees it
    for start in range(0, len(source) - f + 1, f):
        z = layer.compress.bias + sum(filters[r] @ source[start + r] for r in range(f))
        slots.append((z, start + f - layer.inclusive))
    y = []
    for i, token in enumerate(x):
        seen = torch.stack([z for z, since in slots if layer.pattern is not CS or since <= i])
        heads = []
        for q, k, v in zip(*(m(u).chunk(layer.heads, dim=-1) for m, u in (
            (layer.query, token), (layer.key, seen), (layer.value, seen))), strict=True):  # fmt: skip
            heads.append((q @ k.T / len(q) ** 0.5).softmax(dim=-1) @ v)
        y.append(torch.cat(heads))
    return layer.out(torch.stack(y))


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 14),
    m=st.integers(1, 14),
    factor=st.integers(1, 5),
    flags=st.tuples(st.booleans(), st.booleans()),
    pattern=st.sampled_from([NS, CS, NC]),
)
def test_it_is_softmax_attention_over_the_first_token_and_compressed_blocks(n, m, factor, flags, pattern):
    layer = build(f"factor={factor}, inclusive={flags[0]}, dense={flags[1]}", pattern)
    x, context = torch.randn(2, n, 8).double(), torch.randn(2, m, 8).double() if pattern is NC else None
    expected = [by_hand(layer, u, u if context is None else context[b]) for b, u in enumerate(x)]
    torch.testing.assert_close(layer(x, context), torch.stack(expected))


def test_the_first_tokens_see_the_first_alone():
    layer, x = build("factor=4", CS), torch.randn(1, 6, 8).double()
    first = layer.out(layer.value(x[:, :1]))
    torch.testing.assert_close(layer(x)[:, :4], first.expand(-1, 4, -1))
    assert not torch.allclose(layer(x)[:, 4], first[:, 0])


def test_filters_of_all_channels_make_a_layer_larger():
    few, many = (sum(p.numel() for p in build(f"dense={dense}").parameters()) for dense in (False, True))
    assert few == 4 * (8 * 8 + 8) + 3 * 8 * 4 + 8
    assert many == few + 3 * 8 * 4


def test_a_factor_below_one_is_refused():
    with pytest.raises(UsageError, match="factor=0"):
        build("factor=0")

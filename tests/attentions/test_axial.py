"""Axial attention: lines of a grid pair by pair, which tokens are reached causally, and where the grid comes from."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.allowed import attention

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(spec, pattern=NS, dim=8, heads=2, **shell):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, heads, pattern, **shell).double().eval()


def line(shape, axis, n, causal):
    """[n n], True for tokens whose positions differ along one axis only."""
    places = torch.cartesian_prod(*(torch.arange(size) for size in shape))[:n].view(n, len(shape))
    others = [other for other in range(len(shape)) if other != axis]
    allowed = (places[:, None] == places)[..., others].all(dim=-1)
    return allowed.tril() if causal else allowed


def along(layer, axis, x, allowed):
    maps = layer.axes[axis if len(layer.axes) > 1 else 0]
    q, k, v = (m(x).unflatten(-1, (layer.heads, -1)).transpose(1, 2) for m in (maps.query, maps.key, maps.value))
    return maps.out(attention(q, k, v, allowed).transpose(1, 2).flatten(2))


@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=3).map(tuple),
    combine=st.sampled_from(["sum", "chain"]),
    projections=st.sampled_from(["own", "shared"]),
    pattern=st.sampled_from([NS, CS]),
    data=st.data(),
)
@settings(deadline=None, max_examples=25)
def test_it_is_attention_along_the_lines_of_a_grid(shape, combine, projections, pattern, data):
    n = data.draw(st.integers(1, math.prod(shape)))
    layer = build(f"axial(shape={shape}, combine={combine}, projections={projections})", pattern)
    x, mask = torch.randn(2, n, 8).double(), torch.rand(2, n) < 0.8
    total, last = torch.zeros_like(x), x
    for axis in range(len(shape)):
        allowed = line(shape, axis, n, pattern.causal) & mask[:, None, None]
        last = along(layer, axis, last if combine == "chain" else x, allowed)
        total = total + last
    expected = total if combine == "sum" else last
    torch.testing.assert_close(layer(x, mask=mask)[mask], expected[mask])


@pytest.mark.parametrize("combine, reached", [("sum", 6), ("chain", 12), ("outer", 15)])
def test_causally_only_the_outer_decoder_reaches_every_earlier_token(combine, reached):
    """Token 14 of a 4 x 4 grid has three full rows before it and is the third of its own."""
    layer = build(f"axial(shape=(4, 4), combine={combine})", CS)
    x = torch.randn(1, 15, 8).double().requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0, 14].sum(), x)
    seen = {int(i) for i in gradient[0].abs().sum(dim=-1).nonzero()}
    assert len(seen) == reached
    assert (3 in seen) == (combine == "outer"), "the end of the first row stands further to the right"


@pytest.mark.parametrize("combine", ["sum", "chain", "outer"])
def test_no_later_token_and_no_padding_changes_an_output(combine):
    layer = build(f"axial(shape=(5, 4), combine={combine})", CS)
    x, mask = torch.randn(1, 20, 8).double(), torch.ones(1, 20, dtype=torch.bool)
    mask[0, 5:7] = False
    for t in range(1, 20):
        changed = torch.where(((torch.arange(20) >= t) | ~mask)[..., None], torch.randn(1, 20, 8).double(), x)
        found, expected = (layer(u, mask=mask)[:, :t][mask[:, :t]] for u in (changed, x))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("options", ["", "combine=chain", "combine=outer", "combine=chain, projections=own"])
def test_decoding_continues_any_prefix(options):
    layer = build(f"axial(shape=(5, 4), {options})", CS)
    x, mask = torch.randn(2, 20, 8).double(), torch.ones(2, 20, dtype=torch.bool)
    mask[1, 2:5] = False
    for prefix in (0, 1, 7, 19):
        _, state = layer.prefill(x[:, :prefix], mask=mask[:, :prefix])
        for t in range(prefix, 20):
            y, state = layer.step(x[:, t], state)
            for row in range(2):
                tokens = torch.cat([x[row, :prefix][mask[row, :prefix]], x[row, prefix : t + 1]])
                torch.testing.assert_close(y[row], layer(tokens[None])[0, -1])


@pytest.mark.parametrize("longest, shape", [(1, (1, 1)), (1024, (32, 32)), (1025, (33, 32)), (2000, (45, 45))])
def test_the_grid_follows_from_the_greatest_length(longest, shape):
    assert build("axial", max_length=longest).shape == shape
    assert build("axial(shape=(6, 8, 3))", max_length=longest).shape == (6, 8, 3)


def test_without_shape_and_length_it_is_refused():
    with pytest.raises(UsageError, match=r"axial\(shape=\(32, 32\)\), or say how long"):
        build("axial")


@pytest.mark.parametrize("shape", ["(3,)", "(3, 0)", "(2.5, 4)"])
def test_a_shape_that_is_no_grid_is_refused(shape):
    with pytest.raises(UsageError, match="two whole numbers or more"):
        build(f"axial(shape={shape})")


def test_more_tokens_than_the_grid_holds_are_refused():
    with pytest.raises(UsageError, match="at most 6 tokens, a grid of 2x3, got 7"):
        build("axial(shape=(2, 3))")(torch.zeros(1, 7, 8).double())


@pytest.mark.parametrize("pattern, shape", [(NS, "(4, 4)"), (CS, "(2, 2, 2)")])
def test_the_outer_decoder_is_causal_and_has_two_axes(pattern, shape):
    with pytest.raises(UsageError, match="choose 'sum' or 'chain'"):
        build(f"axial(shape={shape}, combine=outer)", pattern)


@pytest.mark.parametrize("projections, sets", [("shared", 1), ("own", 3)])
def test_a_layer_has_the_parameters_of_softmax_for_each_set(projections, sets):
    layer = build(f"axial(shape=(2, 2, 2), projections={projections})")
    assert sum(p.numel() for p in layer.parameters()) == sets * 4 * (8 * 8 + 8)
    assert len(list(layer.projections())) == 4 * sets

"""What the slot itself promises for any mechanism: refusals, decoding by history, states, packing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import ALL_PATTERNS, Attention, AttentionMeta, DecodeState, HeadwiseAttention, Pattern
from longspan.attentions.states import History
from longspan.core.errors import UnknownName, UnsupportedPattern, UsageError
from longspan.kernels.packing import Layout

ROOT = Path(__file__).parents[2]
NS, CS, NC, CC = ALL_PATTERNS


class Plain(HeadwiseAttention):
    """Softmax by the formula, causal or not, with only `attend`, as a user would write it."""

    meta = AttentionMeta(title="Plain", paper="none", family="toy", cost="n^2", patterns=ALL_PATTERNS)

    def attend(self, q, k, v, *, key_mask=None, query_mask=None):
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        visible = visible.tril() if self.pattern is CS else visible
        visible = visible if key_mask is None else visible & key_mask[:, None, None]
        scores = (q @ k.mT).masked_fill(~visible, -1e30)
        return torch.softmax(scores, dim=-1).masked_fill(~visible, 0) @ v


class CausalOnly(Plain):
    meta = AttentionMeta(title="Causal", paper="none", family="toy", cost="n^2", patterns=(CS,))


class HalfDecoder(Plain):
    def begin(self, k, v, *, key_mask=None):
        return DecodeState()


class Doubling(Attention):
    """A mechanism that works on tokens without projections."""

    meta = AttentionMeta(title="Doubling", paper="none", family="toy", cost="n", patterns=(NS, NC))

    def forward(self, x, context=None, *, mask=None, context_mask=None):
        source, _ = self._source(x, context, mask, context_mask)
        return x + source.mean(dim=1, keepdim=True)


def build(cls=Plain, pattern=CS, **shell):
    torch.manual_seed(0)
    return cls(12, 3, pattern, **shell).double()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_an_undeclared_pattern_is_refused_with_a_sentence():
    with pytest.raises(
        UnsupportedPattern, match=r"CausalOnly cannot run as noncausal_self; it supports: causal_self\."
    ):
        build(CausalOnly, NS)


def test_heads_must_divide_the_width():
    with pytest.raises(UsageError, match="width 10 must be a multiple of the number of heads, got 3"):
        build(inner=10)
    assert build(inner=6).head_dim == 2


@pytest.mark.parametrize("cls", [Plain, Doubling])
def test_a_cross_pattern_needs_a_context_and_a_self_pattern_takes_none(cls):
    with pytest.raises(UsageError, match="needs a context"):
        build(cls, NC)(randn(2, 5, 12))
    for given_ in ({"context": randn(2, 5, 12)}, {"context_mask": torch.ones(2, 5, dtype=torch.bool)}):
        with pytest.raises(UsageError, match="takes no context"):
            build(cls, NS)(randn(2, 5, 12), **given_)


@pytest.mark.parametrize("text, pattern", [("NS", NS), ("cs", CS), ("noncausal_cross", NC), ("CAUSAL_CROSS", CC)])
def test_patterns_have_two_spellings(text, pattern):
    assert Pattern.parse(text) is pattern
    assert (pattern.causal, pattern.cross) == (pattern in (CS, CC), pattern in (NC, CC))


def test_every_mechanism_takes_its_pattern_by_name():
    """In another interpreter, since tests check types, and a name is no Pattern."""
    every = "[(get(name), pattern.value) for name in names() for pattern in get(name).meta.patterns]"
    code = f"""if True:
        from longspan.attentions import get, names
        for mechanism, pattern in {every}:
            assert mechanism(12, 3, pattern, max_length=16, max_context=16).pattern.value == pattern
    """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_an_unknown_pattern_gets_a_hint():
    with pytest.raises(UnknownName, match="Did you mean 'causal_self'"):
        Pattern.parse("casual_self")


def test_noncausal_patterns_are_not_decoded():
    layer = build(pattern=NS)
    with pytest.raises(UnsupportedPattern, match="noncausal_self has no decoding"):
        layer.prefill(randn(2, 5, 12))
    with pytest.raises(UnsupportedPattern, match="has no decoding"):
        layer.step(randn(2, 12), History(randn(2, 0, 12), torch.zeros(2, dtype=torch.long)))


def test_begin_without_advance_is_a_sentence():
    layer = build(HalfDecoder)
    _, state = layer.prefill(randn(2, 5, 12))
    with pytest.raises(UsageError, match="defines begin without advance"):
        layer.step(randn(2, 12), state)


@pytest.mark.parametrize("start", [0, 1, 4])
@pytest.mark.parametrize("pattern", [CS, CC])
def test_decoding_by_history_equals_the_parallel_form(pattern, start):
    layer = build(pattern=pattern)
    x = randn(2, 6, 12)
    sources = (randn(2, 7, 12),) if pattern is CC else ()
    masks = {"context_mask": torch.arange(7) < torch.tensor([[7], [3]])} if pattern is CC else {}
    full = layer(x, *sources, **masks)
    y, state = layer.prefill(x[:, :start], *sources, **masks)
    torch.testing.assert_close(y, full[:, :start])
    for t in range(start, 6):
        y_t, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y_t, full[:, t])


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_decoding_by_history_skips_padding(data):
    """A prefix with holes or padding continues as if it had only its real tokens."""
    layer = build()
    n = data.draw(st.integers(1, 5))
    mask = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=2, max_size=2)))
    x, following = randn(2, n, 12).masked_fill(~mask[..., None], 1e4), randn(2, 3, 12)
    _, state = layer.prefill(x, mask=mask)
    assert state.lengths.tolist() == mask.sum(dim=1).tolist()
    for t in range(3):
        y_t, state = layer.step(following[:, t], state)
        for row in range(2):
            compact = torch.cat([x[row][mask[row]], following[row, : t + 1]])[None]
            torch.testing.assert_close(y_t[row], layer(compact)[0, -1])


def test_rows_of_a_state_can_be_selected_and_weighed():
    layer = build(pattern=CC)
    x, context = randn(3, 5, 12), randn(3, 4, 12)
    _, state = layer.prefill(x[:, :4], context)
    assert state.nbytes == 3 * 4 * 12 * 8 * 2 + 3 * 8  # tokens and context in double precision, lengths
    chosen = state.select(torch.tensor([2, 0, 2]))
    assert isinstance(chosen, History)
    assert chosen.context_mask is None
    y_t, _ = layer.step(x[[2, 0, 2], 4], chosen)
    torch.testing.assert_close(y_t, layer(x, context)[[2, 0, 2], 4])


@pytest.mark.parametrize("cls, pattern", [(Plain, NS), (Plain, CS)])
@pytest.mark.parametrize("lengths", [[5, 1, 3], [4], [1, 1]])
def test_packed_equals_padded_on_real_tokens(cls, pattern, lengths):
    layer = build(cls, pattern)
    layout = Layout.of_lengths(lengths, width=6)
    x = randn(len(lengths), 6, 12)
    torch.testing.assert_close(layer.packed(layout.pack(x), layout), layout.pack(layer(x, mask=layout.mask)))


def test_packing_has_a_default_for_mechanisms_on_whole_tokens():
    layer, layout = build(Doubling, NS), Layout.of_lengths([3, 3])
    x = randn(2, 3, 12)
    torch.testing.assert_close(layer.packed(layout.pack(x), layout), layout.pack(layer(x)))


def test_what_is_carried_passes_by_default():
    layer, x, carry = build(pattern=NS), randn(2, 5, 12), object()
    y, after = layer.carried(x, carry=carry)
    torch.testing.assert_close(y, layer(x))
    assert after is carry


def test_the_projections_are_the_linear_maps():
    layer = build()
    assert list(layer.projections()) == [layer.query, layer.key, layer.value, layer.out]
    assert not list(build(Doubling, NS).projections())


def test_the_inner_width_and_the_bias_are_the_shells():
    layer = build(inner=6, bias=False)
    assert layer(randn(2, 5, 12)).shape == (2, 5, 12)
    assert layer.query.out_features == 6
    assert all(p.bias is None for p in layer.projections())


def test_mechanisms_without_weights_return_none():
    assert build().weights(randn(2, 3, 5, 4), randn(2, 3, 5, 4)) is None

"""CAB's causal long-short attention against its formula in loops; its memory, its positions, and decoding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.released.cab_longshort import CABLongShort
from longspan.core.errors import UsageError

CS = Pattern.CAUSAL_SELF


def build(options="") -> CABLongShort:
    torch.manual_seed(0)
    layer = attentions.get(f"cab_longshort({options})")(8, 2, CS).double().eval()
    assert isinstance(layer, CABLongShort)
    for parameter in layer.parameters():  # so that no layer norm is the identity and no bias zero
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def rows(n, b=2):
    torch.manual_seed(n)
    return torch.randn(b, n, 8, dtype=torch.float64, requires_grad=True)


def heads_of(layer, x):
    """[n d] as a list of [n c], one for each head."""
    return list(x.chunk(layer.heads, dim=-1))


def pooled(layer, x, values):
    """A chunk of values [s d] as summaries [r d]."""
    p = layer.summaries(x).reshape(len(x), layer.heads, layer.rank).softmax(dim=0)
    return torch.cat([p[:, h].T @ u for h, u in enumerate(heads_of(layer, values))], dim=-1)


def formula(layer, x, memory):
    """One row [n d] after its memory [l d], query by query."""
    size, past = layer.chunk, len(memory)
    tokens = torch.cat([memory, x])
    k, v = layer.near_norm(layer.key(tokens)), layer.near_norm(layer.value(tokens))
    old = [pooled(layer, u, u) for u in memory.split(size) if len(u)]  # pooled, then projected
    out = []
    for i, q in enumerate(layer.query(x)):
        earlier = [x[start : start + size] for start in range(0, i // size * size, size)]  # projected, then pooled
        near = range(max(0, past + i - layer.window + 1), past + i + 1)
        keys, values = (
            torch.cat(
                [
                    normed[:0],
                    *(layer.far_norm(project(u)) for u in old),
                    *(layer.far_norm(pooled(layer, u, project(u))) for u in earlier),
                    normed[near],
                ]
            )
            for project, normed in ((layer.key, k), (layer.value, v))
        )
        out.append(attended(layer, q, keys, values, len(near)))
    return layer.out(torch.stack(out))


def attended(layer, q, keys, values, near):
    far = len(keys) - near

    def sinusoid(distance):
        angle = distance / 10_000 ** (torch.arange(0, layer.dim, 2, dtype=torch.float64) / layer.dim)
        return torch.cat([angle.sin(), angle.cos()])

    near_places = layer.near_places(torch.stack([sinusoid(near - 1 - s) for s in range(near)]))
    far_places = [sinusoid(far - 1 - s) for s in range(far)]
    far_places = layer.far_places(torch.stack(far_places)) if far else near_places[:0]
    parts = (heads_of(layer, u) for u in (q, keys, values, near_places, far_places))
    found = []
    for q_h, k_h, v_h, near_h, far_h, u, t in zip(
        *parts, layer.near_key_bias[:, 0], layer.near_place_bias[:, 0], strict=True
    ):
        q_h = q_h / len(q_h) ** 0.5
        scores = k_h @ q_h + torch.cat([far_h @ q_h, k_h[far:] @ u + near_h @ (q_h + t)])
        found.append(scores.softmax(dim=0) @ v_h)
    return torch.cat(found)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 25), window=st.integers(1, 9), chunk=st.integers(1, 7), rank=st.integers(1, 3),
    chunks=st.integers(0, 3), carried=st.booleans(),
)  # fmt: skip
def test_outputs_and_gradients_follow_the_formula(n, window, chunk, rank, chunks, carried):
    layer, x = build(f"window={window}, chunk={chunk}, rank={rank}, memory={chunk * chunks}"), rows(n)
    memory = torch.randn(2, chunk * chunks, 8, dtype=torch.float64) if carried else x.new_zeros(2, chunk * chunks, 8)
    found = layer.carried(x, carry=memory)[0] if carried else layer(x)
    expected = torch.stack([formula(layer, x[b], memory[b]) for b in range(2)])
    torch.testing.assert_close(found, expected)
    leaves, weights = [x, *layer.parameters()], torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, leaves, weights, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, leaves, weights, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_many_tiles_agree_with_the_formula():
    layer, x = build("window=20, chunk=7, rank=2, memory=14"), rows(150, b=1)
    with torch.no_grad():
        torch.testing.assert_close(layer(x)[0], formula(layer, x[0], x.new_zeros(14, 8)))


def test_a_segment_hands_on_its_last_tokens():
    layer, x = build("window=6, chunk=3, memory=9"), rows(14)
    _, carry = layer.carried(x)
    torch.testing.assert_close(carry, x[:, -9:])
    assert not carry.requires_grad
    _, carry = layer.carried(x[:, :4], carry=carry)
    torch.testing.assert_close(carry, torch.cat([x[:, -5:], x[:, :4]], dim=1))


def test_the_window_reaches_across_the_border_of_segments():
    layer, x = build("window=6, chunk=3, memory=9"), rows(4, b=1).detach()
    with torch.no_grad():  # all summaries equal, so that only near tokens have gradients
        layer.far_norm.weight.zero_()
    memory = rows(9, b=1)
    y, _ = layer.carried(x, carry=memory)
    for i in range(4):
        (gradient,) = torch.autograd.grad(y[:, i].sum(), memory, retain_graph=True)
        seen = (gradient.abs().amax(dim=-1) > 0)[0]
        assert seen.tolist() == [9 - j + i < 6 for j in range(9)]


def test_a_memory_of_zeros_takes_its_share_of_every_softmax():
    layer, without, x = build("window=6, chunk=3, memory=9"), build("window=6, chunk=3, memory=0"), rows(14)
    without.load_state_dict(layer.state_dict())
    assert ((layer(x) - without(x)).abs().amax(dim=-1) > 1e-3).all()


@pytest.mark.parametrize("prefix", [0, 5])
def test_steps_continue_the_sequence(prefix):
    layer, x = build("window=4, chunk=3, memory=6"), rows(11).detach()
    y, state = layer.prefill(x[:, :prefix])
    found = [y]
    for t in range(prefix, 11):
        y_t, state = layer.step(x[:, t], state)
        found.append(y_t[:, None])
    torch.testing.assert_close(torch.cat(found, dim=1), layer(x))


def test_the_backbone_initialises_the_four_projections_alone():
    assert len(list(build().projections())) == 4


@pytest.mark.parametrize("options, words", [("window=0", "at least 1"), ("memory=20, chunk=16", "choose a multiple")])
def test_impossible_options_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        build(options)

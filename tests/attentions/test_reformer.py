"""Reformer: what a token sees, and that later tokens and padding never affect that choice."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.reformer import Reformer
from longspan.core.errors import UsageError
from longspan.kernels.packing import Layout

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF
SMALL = "reformer(rounds=2, buckets=4, chunk=2)"  # buckets fuller than the window


def build(spec=SMALL, pattern=CS, dim=12, heads=3, seed=0):
    torch.manual_seed(seed)
    layer = attentions.get(spec)(dim, heads, pattern).double().eval()
    assert isinstance(layer, Reformer)
    return layer


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_hand(layer, z, v, mask):
    """The formula, one token at a time."""
    b, heads, n, c = z.shape
    rows = torch.zeros_like(v)
    for row in range(b):
        for h in range(heads):
            rotated = torch.einsum("nc,crk->nrk", z[row, h].detach(), layer.rotations[h])
            bucket = torch.cat([rotated, -rotated], dim=-1).argmax(dim=-1)
            for i in (i for i in range(n) if mask[row, i]):
                seen = []
                for r in range(bucket.shape[1]):
                    mates = [j for j in range(n) if mask[row, j] and bucket[j, r] == bucket[i, r]]
                    place = mates.index(i)
                    if layer.pattern.causal:
                        seen += mates[max(0, place - 2 * layer.chunk + 1) : place]
                    else:
                        seen += mates[max(0, place - layer.chunk) : place] + mates[place + 1 : place + layer.chunk + 1]
                seen = seen or [i]
                keys = z[row, h, seen]
                keys = keys / (keys.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() / math.sqrt(c)
                rows[row, h, i] = torch.softmax(keys @ z[row, h, i], dim=0) @ v[row, h, seen]
    return rows


@pytest.mark.parametrize("pattern", [NS, CS])
@given(
    n=st.integers(1, 24),
    rounds=st.integers(1, 3),
    buckets=st.sampled_from([2, 6]),
    chunk=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=12)
def test_outputs_and_gradients_follow_the_formula(pattern, n, rounds, buckets, chunk, seed):
    layer = build(f"reformer(rounds={rounds}, buckets={buckets}, chunk={chunk})", pattern, dim=8, heads=2, seed=seed)
    z, v = (randn(2, 2, n, 4, seed=seed + k).requires_grad_() for k in (1, 2))
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.8
    found, expected = layer.attend(z, v, mask=mask), by_hand(layer, z, v, mask)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(layer.weights(z, mask=mask) @ v, expected)
    if mask.any():
        w = randn(*found.shape, seed=3)
        gradients = (torch.autograd.grad((y * w).sum(), (z, v)) for y in (found, expected))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


@given(buckets=st.integers(1, 200).map(lambda k: 4 * k), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_many_buckets_are_numbered_by_two_hashes_and_few_by_one(buckets, seed):
    layer = build(f"reformer(buckets={buckets})", NS, dim=8, heads=2, seed=seed)
    z = randn(2, 2, 30, 4, seed=seed)
    directions = layer.rotations.shape[-1]
    found = layer.hash(z)
    rotated = torch.einsum("bhnc,hcrk->bhrnk", z, layer.rotations)
    first, second = rotated.split([layer.factors[0] // 2, directions - layer.factors[0] // 2], dim=-1)
    hashes = [torch.cat([part, -part], dim=-1).argmax(dim=-1) for part in (first, second) if part.shape[-1]]
    expected = hashes[0] if buckets <= 128 else hashes[0] * 2 * second.shape[-1] + hashes[1]
    assert torch.equal(found, expected)
    assert math.prod(layer.factors) == buckets
    assert directions <= 64 or 2 * directions < buckets


def test_of_equally_near_directions_the_first_counts():
    layer = build("reformer(buckets=6)", NS, dim=8, heads=2)
    layer.rotations.fill_(1.0)
    z = randn(1, 2, 20, 4)
    assert torch.equal(layer.hash(z)[:, :, 0], torch.where(z.sum(dim=-1) >= 0, 0, 3))


def test_the_table_of_directions_grows_far_slower_than_the_buckets():
    def directions(length):
        return Reformer(16, 2, NS, max_length=length).rotations.shape[-1]

    assert directions(65_536) <= 4 * directions(4_096)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_one_bucket_that_is_seen_whole_is_softmax_over_all_others(scale):
    layer = build(f"reformer(chunk=50, scale={scale})", NS, dim=8, heads=2)
    layer.rotations.zero_()
    z, v = randn(2, 2, 30, 4), randn(2, 2, 30, 4, seed=1)
    scores = scale * z @ torch.nn.functional.normalize(z, dim=-1).mT
    oneself = torch.eye(30, dtype=torch.bool)
    expected = scores.masked_fill(oneself, -torch.inf).softmax(dim=-1) @ v
    torch.testing.assert_close(layer.attend(z, v), expected, rtol=1e-5, atol=1e-5)  # keys are guarded against |z| = 0


def change_of_the_past(spec, trials=12):
    """The largest change of any output when later tokens change."""
    worst = 0.0
    for seed in range(trials):
        layer, x = build(spec, seed=seed), randn(2, 40, 12, seed=seed)
        changed = torch.cat([x[:, :25], 3 * randn(2, 15, 12, seed=seed + 100)], dim=1)
        worst = max(worst, (layer(x) - layer(changed))[:, :25].abs().max().item())
    return worst


def test_later_tokens_do_not_choose_what_earlier_ones_see():
    assert change_of_the_past(SMALL) < 1e-12


@pytest.mark.parametrize("spec", [SMALL, "reformer(rounds=3, buckets=2, chunk=1)", "reformer"])
@pytest.mark.parametrize("start", [0, 1, 13])
def test_decoding_continues_any_prefix(spec, start):
    layer, x = build(spec), randn(3, 25, 12)
    full = layer(x)
    y, state = layer.prefill(x[:, :start])
    torch.testing.assert_close(y, full[:, :start])
    for t in range(start, 25):
        y_t, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y_t, full[:, t], rtol=1e-11, atol=1e-11)  # in double precision throughout


@given(st.data())
@settings(deadline=None, max_examples=15)
def test_padding_does_not_advance_the_state(data):
    layer = build()
    n = data.draw(st.integers(1, 16))
    mask = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=2, max_size=2)))
    x, following = randn(2, n, 12).masked_fill(~mask[..., None], 1e4), randn(2, 3, 12, seed=1)
    _, state = layer.prefill(x, mask=mask)
    for t in range(3):
        y_t, state = layer.step(following[:, t], state)
        for row in range(2):
            compact = torch.cat([x[row][mask[row]], following[row, : t + 1]])[None]
            torch.testing.assert_close(y_t[row], layer(compact)[0, -1])


def test_the_weights_are_those_of_the_output():
    layer = build("reformer(buckets=4, chunk=3)", NS)
    z, v = randn(2, 3, 20, 4), randn(2, 3, 20, 4, seed=1)
    mask = torch.rand(2, 20, generator=torch.Generator().manual_seed(0)) < 0.7
    torch.testing.assert_close(layer.weights(z, mask=mask) @ v, layer.attend(z, v, mask=mask))


@pytest.mark.parametrize("bias", [True, False])
def test_autocast_leaves_every_token_in_its_bucket(bias):
    torch.manual_seed(0)
    layer = attentions.get("reformer")(64, 4, CS, bias=bias)
    x = torch.randn(2, 500, 64)
    _, exact = layer.prefill(x)
    with torch.autocast("cpu", torch.bfloat16):
        _, coarse = layer.prefill(x)
        rounded = layer.hash(layer.query_key(x).unflatten(-1, (4, 16)).transpose(1, 2))
    assert coarse.k.dtype == torch.bfloat16
    assert torch.equal(coarse.buckets, exact.buckets)
    assert not torch.equal(rounded.transpose(2, 3), exact.buckets), "else nothing was to be shown"


def test_each_head_and_each_layer_has_rotations_of_its_own_and_keeps_them():
    one, other = build(seed=0), build(seed=1)
    assert not torch.equal(one.rotations[0], one.rotations[1])
    assert not torch.equal(one.rotations, other.rotations)
    other.load_state_dict(one.state_dict())
    x = randn(2, 30, 12)
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize(
    "options",
    ["rounds=0", "chunk=0", "buckets=5", "buckets=0", "buckets=130"],
)
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="got"):
        build(f"reformer({options})")


@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_packed_rows_never_share_a_bucket(pattern):
    torch.manual_seed(0)
    layer = attentions.get("reformer(buckets=4, chunk=3)")(8, 2, pattern).double().eval()
    lengths = [3, 0, 17, 1, 40]
    layout, x = Layout.of_lengths(lengths), torch.randn(sum(lengths), 8).double()
    alone = [layer(row[None])[0] for row in x.split(lengths) if len(row)]
    torch.testing.assert_close(layer.packed(x, layout), torch.cat(alone))

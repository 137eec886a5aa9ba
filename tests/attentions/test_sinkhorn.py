"""Sinkhorn attention: blocks sorted softly, normalisation without padding, and what remains of it in each pattern."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import ALL_PATTERNS, Pattern
from longspan.conformance import check
from longspan.core.errors import UsageError
from longspan.kernels.sinkhorn_normalize import sinkhorn_normalize
from longspan.kernels.sinkhorn_normalize.reference import top_softmax

NS, CS, NC, CC = ALL_PATTERNS


def build(options="block=4", pattern=NS, *, longest=40, heads=2, channels=3, seed=0):
    torch.manual_seed(seed)
    layer = attentions.get(f"sinkhorn({options})")(
        heads * channels, heads, pattern, max_length=longest, max_context=longest
    )
    return layer.double().eval()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


# ------------------------------------------------------------------------------------- the formula, token by token


def formula(layer, q, k, v, mask):
    """One row and one head at a time, with lists of blocks and without logarithms."""
    rows = [
        torch.stack([head_formula(layer, h, q[b, h], k[b, h], v[b, h], mask[b].tolist()) for h in range(layer.heads)])
        for b in range(len(q))
    ]
    return torch.stack(rows)


def head_formula(layer, h, q, k, v, real):
    size, causal = layer.block, layer.pattern is CS
    blocks = [range(start, min(start + size, len(k))) for start in range(0, len(k), size)]
    places = [[j for j in block if real[j]] for block in blocks]
    candidates = [u for u, block in enumerate(places) if block]
    matrix = sort_matrix(layer, h, q, k, blocks, real, candidates)
    sorted_blocks = []  # for each block: a list of sorted blocks, each a list of (key, value) or None for a hidden slot
    for u in range(len(blocks)):
        sorted_blocks.append([])
        for row in matrix[u]:
            slots = []
            for s in range(size):
                there = [(blocks[x][s], w) for x, w in row if x >= 0 and s < len(blocks[x])]
                pairs = [(w, k[j], v[j]) for j, w in there if real[j]]
                pairs += [(w, layer.null_key[h, 0], layer.null_value[h, 0]) for x, w in row if x < 0]
                slots.append((sum(w * a for w, a, _ in pairs), sum(w * a for w, _, a in pairs)) if pairs else None)
            sorted_blocks[-1].append(slots)
    outputs = []
    for i, query in enumerate(q):
        if layer.cut:
            seen = [slot for u in candidates[: layer.cut] for slots in sorted_blocks[u] for slot in slots]
            outputs.append(softmax_over(query, seen, v))
            continue
        u = i // size
        nothing_yet = causal and not any(real[: i + 1])
        seen = [] if nothing_yet else [slot for slots in sorted_blocks[u] for slot in slots]
        own = [(k[j], v[j]) for j in places[u] if j <= i or not causal]
        if layer.combine == "sum":
            outputs.append(softmax_over(query, seen, v) + softmax_over(query, own, v))
        else:
            outputs.append(softmax_over(query, seen + own, v))
    return torch.stack(outputs)


def sort_matrix(layer, h, q, k, blocks, real, candidates):
    """For each block the rows of S that belong to it, as lists of (source, weight); sources below 0 are null blocks."""
    causal, nulls = layer.pattern is CS, layer.nulls

    def mean(u, last):
        chosen = [u[j] for j in range(last + 1) if real[j]] if causal else [u[j] for j in last if real[j]]
        return sum(chosen) / max(len(chosen), 1) if chosen else torch.zeros_like(u[0])

    def logit(u, x):
        if x < 0:
            return torch.zeros((), dtype=k.dtype)
        first = blocks[u][0] if causal else blocks[u]
        if layer.sort is not None:
            return mean(k, first) @ layer.sort[h, :, x]
        other = sum(mean(k, j) for j in blocks[x] if real[j]) if causal else mean(k, blocks[x])
        return mean(q, first) @ other / k.shape[1] ** 0.5

    rows = []
    for u in range(len(blocks)):
        sources = [x for x in candidates if x < u] if causal else candidates if u in candidates else []
        sources = list(range(-nulls, 0)) + sources
        rows.append({x: torch.exp(logit(u, x) / layer.temperature) for x in sources})
    if layer.top:
        return [best_of(row, layer.top) for row in rows]
    if causal:
        return [[normalised(row)] for row in rows]
    for _ in range(layer.iterations):
        rows = [dict(normalised(row)) for row in rows]
        totals = {x: sum(row[x] for row in rows if x in row) for x in candidates}
        rows = [{x: w / totals[x] for x, w in row.items()} for row in rows]
    return [[list(row.items())] for row in rows]


def normalised(row):
    return [(x, w / sum(row.values())) for x, w in row.items()]


def best_of(row, top):
    chosen = []
    for _ in range(top):
        shares = dict(normalised(row))
        x = max(shares, key=lambda x: shares[x].item(), default=None)
        chosen.append([] if x is None else [(x, shares[x])])
        row = {y: w for y, w in row.items() if y != x}
    return chosen


def softmax_over(query, pairs, v):
    pairs = [pair for pair in pairs if pair is not None]
    if not pairs:
        return torch.zeros_like(v[0])
    keys, values = (torch.stack(part) for part in zip(*pairs, strict=True))
    return torch.softmax(keys @ query / len(query) ** 0.5, dim=0) @ values


SETTINGS = [
    ("block=4", NS),
    ("block=4, net=attention, iterations=2", NS),
    ("block=4, combine=sum, temperature=1.5", NS),
    ("block=4, top=2", NS),
    ("block=3, combine=cut", NS),
    ("block=3, combine=cut, net=attention, top=2", NS),
    ("block=4", CS),
    ("block=4, null_block=False, combine=sum", CS),
    ("block=3, top=2, net=attention", CS),
    ("block=4", NC),
    ("block=3, cut=1, top=2", CC),
]


@pytest.mark.parametrize("options, pattern", SETTINGS)
@given(n=st.integers(1, 14), m=st.integers(1, 14), data=st.data())
@settings(deadline=None, max_examples=6)
def test_outputs_and_gradients_follow_the_formula(options, pattern, n, m, data):
    m = m if pattern.cross else n
    mask = torch.tensor([[True] * m, data.draw(st.lists(st.booleans(), min_size=m, max_size=m))])
    layer = build(options, pattern)
    q, k, v = randn(2, 2, n, 3), randn(2, 2, m, 3), randn(2, 2, m, 3)
    leaves = [u.requires_grad_() for u in (q, k, v)]
    leaves += [p for p in (layer.sort, layer.null_key, layer.null_value) if p is not None]
    found, expected = layer.attend(q, k, v, key_mask=mask), formula(layer, q, k, v, mask)
    torch.testing.assert_close(found, expected)
    w = randn(*found.shape)
    for one, other in zip(
        torch.autograd.grad((found * w).sum(), leaves, allow_unused=True, materialize_grads=True),
        torch.autograd.grad((expected * w).sum() + 0 * sum(u.sum() for u in leaves), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("options, pattern", SETTINGS)
@pytest.mark.parametrize("n", [4, 12, 13])
def test_without_a_mask_everything_is_real(options, pattern, n):
    layer, q, k, v = build(options, pattern), *(randn(2, 2, n, 3) for _ in range(3))
    everything = torch.ones(2, n, dtype=torch.bool)
    torch.testing.assert_close(layer.attend(q, k, v), layer.attend(q, k, v, key_mask=everything))


# ---------------------------------------------------------------------------------------------------- normalisation


def test_the_normalisation_tends_to_a_doubly_stochastic_matrix():
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    matrix = sinkhorn_normalize(randn(2, 3, 5, 5), allowed, 200)
    torch.testing.assert_close(matrix.sum(dim=2), torch.ones(2, 3, 5, dtype=torch.float64))
    torch.testing.assert_close(matrix.sum(dim=3), torch.ones(2, 3, 5, dtype=torch.float64))


def test_blocks_that_are_not_there_have_no_share():
    logits, there = randn(1, 2, 6, 6), torch.tensor([True, False, True, True, False, False])
    matrix = sinkhorn_normalize(logits, (there & there[:, None])[None, None], 5)
    alone = sinkhorn_normalize(logits[:, :, there][..., there], torch.ones(1, 1, 3, 3, dtype=torch.bool), 5)
    torch.testing.assert_close(matrix[:, :, there][..., there], alone)
    assert not matrix[:, :, ~there].any()
    assert not matrix[..., ~there].any()


def test_the_best_blocks_keep_their_share_among_those_left():
    logits = torch.tensor([3.0, 1.0, 2.0]).log()[None, None, None]
    matrix, chosen = top_softmax(logits, torch.tensor([[[[True, True, True]]]]), 2)
    torch.testing.assert_close(matrix[0, 0, 0], torch.tensor([[3 / 6, 0, 0], [0, 0, 2 / 3]]))
    assert torch.equal(chosen, matrix > 0)
    _, chosen = top_softmax(logits, torch.tensor([[[[False, True, False]]]]), 2)
    assert chosen.sum() == 1, "there is no second best of one"


def test_a_permutation_shows_each_block_itself_and_the_one_sorted_to_it(monkeypatch):
    layer, order = build("block=4"), torch.tensor([2, 0, 3, 1])
    q, k, v = (randn(2, 2, 16, 3) for _ in range(3))
    monkeypatch.setattr(layer, "_by_net", lambda *_: 1e3 * torch.eye(4)[order].double().expand(2, 2, 4, 4))
    block = torch.arange(16) // 4
    seen = (block == block[:, None]) | (block == order[block][:, None])
    scores = (q @ k.mT / 3**0.5).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(layer.attend(q, k, v), scores.softmax(dim=-1) @ v)


# --------------------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    "options, pattern",
    [
        ("block=8", CS),
        pytest.param("block=8", CC, marks=pytest.mark.full),
        pytest.param("block=8, combine=sum, top=3", CS, marks=pytest.mark.full),
        pytest.param("block=8", NS, marks=pytest.mark.full),
        pytest.param("block=8", NC, marks=pytest.mark.full),
        pytest.param("block=8, net=attention, top=2", CS, marks=pytest.mark.full),
    ],
)
def test_small_blocks_keep_the_promises_too(options, pattern):
    (report,) = check(f"sinkhorn({options})", [pattern], profile="quick")
    broken = [finding for finding in report.broken if finding.promise != "exact limit"]  # "sum" has none
    assert not broken, "\n".join(f"{f.promise}: {f.detail}" for f in broken)


def test_sortcut_takes_the_first_blocks_that_hold_a_token():
    layer, context, x = build("block=4", NC), randn(1, 11, 6), randn(1, 5, 6)
    mask = torch.tensor([[False] * 8 + [True] * 3])
    assert layer(x, context, context_mask=mask).ne(layer.out.bias).all()


def test_decoding_sorts_once_per_block():
    layer, x = build("block=4", CS), randn(2, 11, 6)
    _, state = layer.prefill(x[:, :5])
    for t in range(5, 8):
        before = state.k
        _, state = layer.step(x[:, t], state)
        assert torch.equal(before, state.k)
    _, state = layer.step(x[:, 8], state)
    assert not torch.equal(before, state.k)


def test_a_context_is_sorted_once():
    layer, x, context = build("block=4", CC), randn(2, 6, 6), randn(2, 30, 6)
    _, state = layer.prefill(x[:, :2], context)
    assert state.k.shape == (2, 2, 1, 2 * 4, 3)
    for t in range(2, 6):
        y_t, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y_t, layer(x, context)[:, t])


@pytest.mark.parametrize("pattern", ALL_PATTERNS)
def test_the_weights_times_the_values_are_the_output(pattern):
    layer = build("block=4, null_block=False", pattern)
    q, k, v = (randn(2, 2, 13, 3) for _ in range(3))
    mask = torch.arange(13) < torch.tensor([[13], [6]])
    weights = layer.weights(q, k, key_mask=mask)
    torch.testing.assert_close(weights @ v, layer.attend(q, k, v, key_mask=mask))
    if pattern is CS:
        assert not weights.triu(1).any()


# ---------------------------------------------------------------------------------------------------------- options


def test_noise_sorts_in_training_and_only_there():
    x = randn(2, 20, 6)
    for gumbel in (True, False):
        layer = build(f"block=4, gumbel={gumbel}")
        assert torch.equal(layer(x), layer(x))
        layer.train()
        assert torch.equal(layer(x), layer(x)) is not gumbel
        y = layer(x)
        assert y.isfinite().all()


def test_the_sort_network_has_a_column_for_each_block_of_the_longest_sequence():
    assert build("block=4", longest=41).sort.shape == (2, 3, 11)
    assert build("block=4, net=attention", longest=None).sort is None
    with pytest.raises(UsageError, match="at most 10 blocks of 4, got 11"):
        build("block=4", longest=40)(randn(1, 41, 6))
    free = build("block=4, net=attention", longest=None)
    assert free(randn(1, 411, 6)).isfinite().all()


@pytest.mark.parametrize(
    "options, pattern, longest, words",
    [
        ("block=0", NS, 40, "at least 1"),
        ("temperature=0.0", NS, 40, "temperature above 0"),
        ("combine=cut", CS, 40, "SortCut shows later blocks"),
        ("net=attention", NC, 40, "blocks of one sequence"),
        ("block=4", NS, None, "max_length="),
        ("block=4", CC, None, "max_context="),
    ],
)
def test_impossible_options_are_refused(options, pattern, longest, words):
    with pytest.raises(UsageError, match=words):
        build(options, pattern, longest=longest)


@pytest.mark.parametrize("fill", [1e4, -1e4, 0.5])
def test_huge_keys_are_sorted_without_overflow(fill):
    layer = build("block=4").float()
    x = torch.full((2, 30, 6), fill) * torch.randn(2, 30, 6).sign()
    y = layer(x.requires_grad_())
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    assert math.isfinite(x.grad.abs().max())


def test_patterns_are_all_declared():
    assert set(attentions.get("sinkhorn").meta.patterns) == set(Pattern)


@pytest.mark.parametrize("chosen", [[1], [2, 0], [0, 2, 1, 0]])
def test_rows_of_a_cross_state_can_be_chosen_without_a_context_mask(chosen):
    layer, rows = build("block=4", CC), torch.tensor(chosen)
    x, context = torch.randn(3, 2, 6).double(), torch.randn(3, 13, 6).double()  # not a whole number of blocks
    _, state = layer.prefill(x[:, :1], context)
    expected, _ = layer.step(x[:, 1], state)
    found, _ = layer.step(x[rows, 1], state.select(rows))
    torch.testing.assert_close(found, expected[rows])


def test_noise_while_training_is_declared():
    layer, x = build("block=4").train(), torch.randn(1, 12, 6).double()
    assert not torch.equal(layer(x), layer(x))
    assert layer.meta.stochastic

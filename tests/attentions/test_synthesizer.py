"""Synthesizer: scores without comparing tokens, from positions or single tokens, cut to the current length."""

import copy
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import ALL_PATTERNS, synthesizer
from longspan.conformance import check
from longspan.core.errors import UsageError
from longspan.kernels import factor_attention as kernel
from longspan.kernels.factor_attention import FEW_ROWS, factor_attention, score_attention

NS, CS, NC, CC = ALL_PATTERNS
KINDS = ["random", "factorised_random", "dense", "factorised_dense"]


def build(options="", pattern=NS, *, longest=14, context=17, dim=6, heads=2, **shell):
    torch.manual_seed(0)
    layer = attentions.get(f"synthesizer({options})")(
        dim, heads, pattern, max_length=longest, max_context=context, **shell
    )
    return layer.double().eval()


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def score(layer, h, i, j, x, source):
    """The score R_ij of head h for one row of tokens."""
    c = layer.inner // layer.heads
    own = slice(h * c, (h + 1) * c)
    if layer.kind == "random":
        r = layer.scores[h, i, j]
    elif layer.kind == "factorised_random":
        r = layer.row_factors[h, i] @ layer.column_factors[h, j]
    else:
        hidden = torch.relu(layer.hidden(x[i]))[own]
        maps = [hidden @ to.weight[h] + to.bias[h, 0] for to in layer.to_places]
        r = maps[0][j] if len(maps) == 1 else maps[0][j % len(maps[0])] * maps[1][j // len(maps[0])]
    if not layer.dot:
        return r
    alpha = torch.softmax(layer.shares, dim=0)
    return alpha[0] * r + alpha[1] * layer.query(x[i])[own] @ layer.key(source[j])[own] / c**0.5


def formula(layer, x, source, mask):
    rows = []
    for b in range(len(x)):
        heads = []
        for h, v in enumerate(layer.value(source[b]).chunk(layer.heads, dim=-1)):
            outputs = []
            for i in range(x.shape[1]):
                seen = [j for j in range(len(v)) if mask[b, j] and (j <= i or layer.pattern is not CS)]
                if seen:
                    p = torch.softmax(torch.stack([score(layer, h, i, j, x[b], source[b]) for j in seen]), dim=0)
                outputs.append(p @ v[seen] if seen else torch.zeros_like(v[0]))
            heads.append(torch.stack(outputs))
        rows.append(torch.cat(heads, dim=-1))
    return layer.out(torch.stack(rows))


@pytest.mark.parametrize("pattern", ALL_PATTERNS)
@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 8), m=st.integers(1, 9), data=st.data())
@settings(deadline=None, max_examples=3)
def test_outputs_and_gradients_follow_the_formula(kind, dot, pattern, n, m, data):
    layer = build(f"kind={kind}, rank=3, dot={dot}", pattern, longest=9, context=10)
    m = m if pattern.cross else n
    mask = torch.tensor([[True] * m, data.draw(st.lists(st.booleans(), min_size=m, max_size=m))])
    x = randn(2, n, 6).requires_grad_()
    context = randn(2, m, 6).requires_grad_() if pattern.cross else None
    masks = {"context_mask": mask} if pattern.cross else {"mask": mask}
    found = layer(x, context, **masks)
    expected = formula(layer, x, x if context is None else context, mask)
    torch.testing.assert_close(found, expected)
    leaves = [x, *([] if context is None else [context]), *layer.parameters()]
    w = randn(*found.shape)
    gradients = (
        torch.autograd.grad((y * w).sum(), leaves, allow_unused=True, materialize_grads=True) for y in (found, expected)
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_scores_shared_by_the_batch_weigh_as_scores_of_each_row(causal):
    scores, v = 3 * randn(1, 2, 9, 9), randn(3, 2, 9, 4)
    mask = torch.rand(3, 9) < torch.tensor([[1.0], [0.6], [0.0]])
    each = scores.expand(3, -1, -1, -1)
    for key_mask in (None, mask):
        torch.testing.assert_close(
            score_attention(scores, v, key_mask, causal=causal), score_attention(each, v, key_mask, causal=causal)
        )
    assert not score_attention(scores, v, mask)[2].any()


def test_a_padded_key_with_a_far_greater_score_changes_nothing():
    scores, v = torch.randn(1, 2, 9, 9).requires_grad_(), torch.randn(3, 2, 9, 4)
    mask = torch.arange(9) < torch.tensor([[9], [5], [1]])
    found = score_attention(scores + 200 * (torch.arange(9) == 7), v, mask)
    torch.testing.assert_close(found[1:], score_attention(scores, v, mask)[1:])
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert gradient.isfinite().all()


def test_a_dropped_weight_is_dropped_in_all_rows():
    torch.manual_seed(0)
    units = torch.eye(9, dtype=torch.float64).expand(2, 2, 9, 9)
    weights = score_attention(randn(1, 2, 9, 9), units, dropout=0.5)
    assert torch.equal(weights[0] == 0, weights[1] == 0)
    assert 0.3 < (weights == 0).double().mean() < 0.7


# ------------------------------------------------------------------------------------- scores that are a product


def with_gradients(layer, x, context, masks, by_weights=False):
    """Outputs and all gradients, optionally from explicit weights that are computed once."""
    with pytest.MonkeyPatch.context() as patch:
        if by_weights:
            patch.setattr(synthesizer, "factor_attention", partial(factor_attention, impl="weights"))
        y = layer(x, context, **masks)
    w = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    leaves = [u for u in (x, context) if u is not None] + list(layer.parameters())
    return [y.detach(), *torch.autograd.grad((y.double() * w).sum(), leaves, materialize_grads=True)]


@pytest.mark.parametrize("pattern", ALL_PATTERNS)
@given(
    n=st.integers(2, 13),
    m=st.integers(1, 17),
    rows=st.integers(1, FEW_ROWS),
    rank=st.integers(1, 9),
    masked=st.booleans(),
    data=st.data(),
)
@settings(deadline=None, max_examples=5)
def test_exact_attention_with_the_factors_is_the_same_function(pattern, n, m, rows, rank, masked, data):
    layer = build(f"rank={rank}", pattern, dim=8)
    m = m if pattern.cross else n
    x = randn(rows, n, 8).requires_grad_()
    context = randn(rows, m, 8).requires_grad_() if pattern.cross else None
    name, flags = "context_mask" if pattern.cross else "mask", st.lists(st.booleans(), min_size=m, max_size=m)
    masks = {name: torch.tensor([data.draw(flags) for _ in range(rows)])} if masked else {}
    found, expected = (with_gradients(layer, x, context, masks, by_weights) for by_weights in (False, True))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", ALL_PATTERNS)
def test_half_precision_rounds_values_and_not_scores(pattern, masked):
    fine = build(pattern=pattern, longest=60, context=70, dim=64)
    with torch.no_grad():
        fine.row_factors.mul_(30)  # a score of 30 is off by a tenth if its factors are rounded to bfloat16
    coarse = copy.deepcopy(fine).float()
    x, context = randn(3, 60, 64), randn(3, 70, 64) if pattern.cross else None
    mask = torch.rand(3, 70 if pattern.cross else 60) < torch.tensor([[1.0], [0.6], [0.0]])
    masks = {"context_mask" if pattern.cross else "mask": mask} if masked else {}
    inputs = [None if u is None else u.requires_grad_() for u in (x, context)]
    expected = with_gradients(fine, *inputs, masks)
    inputs = [None if u is None else u.detach().float().requires_grad_() for u in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(coarse, *inputs, masks)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 2e-2 * other.norm()  # a few roundings of 2^-9 each within a layer


@pytest.mark.parametrize("dropout, training, fused", [(0.5, True, False), (0.5, False, True), (0.0, True, True)])
def test_weights_that_may_be_dropped_are_made_once(monkeypatch, dropout, training, fused):
    layer, calls = build(dropout=dropout).train(training), []
    monkeypatch.setattr(
        kernel, "score_attention", lambda *rest, **how: calls.append(how) or score_attention(*rest, **how)
    )
    layer(randn(2, 9, 6))
    assert bool(calls) is not fused


@pytest.mark.parametrize("pattern", [NS, CS])
def test_the_first_row_alone_is_that_of_all(pattern):
    layer, x, mask = build(pattern=pattern), randn(3, 9, 6), torch.rand(3, 9) < 0.5
    mask[0], mask[1, 0] = False, True
    torch.testing.assert_close(layer.first(x), layer(x)[:, 0])
    torch.testing.assert_close(layer.first(x, mask=mask), layer(x, mask=mask)[:, 0])


# --------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("pattern", [CS, CC])
@pytest.mark.parametrize("options", ["", "kind=random", "dot=True", "kind=dense", "kind=factorised_dense, dot=True"])
def test_decoding_equals_the_parallel_form(options, pattern):
    layer, x, context = build(options, pattern), randn(2, 9, 6), randn(2, 17, 6)
    cross = {"context": context, "context_mask": torch.rand(2, 17) < 0.7} if pattern is CC else {}
    full = layer(x, **cross)
    for start in (0, 4):
        y, state = layer.prefill(x[:, :start], **cross)
        torch.testing.assert_close(y, full[:, :start])
        state = state.select(torch.tensor([1, 0]))
        for t in range(start, 9):
            y_t, state = layer.step(x[[1, 0], t], state)
            torch.testing.assert_close(y_t, full[[1, 0], t])


def kinds_and_patterns():
    """Each kind has one quick pattern: dense here in causal cross attention, random in `test_options.py`."""
    for kind, pattern in product(["random", "dense"], ALL_PATTERNS):
        quick = (kind, pattern) == ("dense", CC)
        yield pytest.param(kind, pattern, marks=[] if quick else pytest.mark.full)


@pytest.mark.parametrize("kind, pattern", kinds_and_patterns())
def test_every_kind_keeps_the_promises(kind, pattern):
    (report,) = check(f"synthesizer(kind={kind}, dot={pattern.cross})", [pattern], profile="quick")
    assert report.ok, "\n".join(f"{f.promise}: {f.detail}" for f in report.broken)


# ------------------------------------------------------------------------------------------------------- parameters


def parameters(layer):
    return {name: tuple(p.shape) for name, p in layer.named_parameters() if not name.endswith("bias")}


def test_queries_and_keys_exist_only_where_they_are_compared():
    around = {"value.weight": (6, 6), "out.weight": (6, 6)}
    assert parameters(build()) == {**around, "row_factors": (2, 14, 8), "column_factors": (2, 14, 8)}
    assert parameters(build("kind=random", NC)) == {**around, "scores": (2, 14, 17)}
    compared = {"query.weight": (6, 6), "key.weight": (6, 6)}
    assert {**around, **compared}.items() <= parameters(build("dot=True")).items()


def test_dense_scores_have_a_hidden_layer_and_a_map_to_places():
    assert parameters(build("kind=dense", NC))["to_places.0.weight"] == (2, 3, 17)
    folded = parameters(build("kind=factorised_dense", NC))
    assert folded["to_places.0.weight"] == (2, 3, 5)
    assert folded["to_places.1.weight"] == (2, 3, 4)  # 5 * 4 positions cover 17


def test_frozen_scores_are_saved_but_not_trained():
    layer = build("kind=random, frozen=True")
    assert "scores" in layer.state_dict()
    assert "scores" not in dict(layer.named_parameters())
    assert not layer.scores.requires_grad


@pytest.mark.parametrize("options", ["kind=random", "kind=factorised_random"])
def test_random_scores_begin_with_a_variance_of_one(options):
    layer = build(options, longest=300, heads=2).float()
    scores = layer._scores(torch.zeros(1, 300, 6), slice(300), torch.zeros(1, 2, 300, 0))
    assert scores.var().item() == pytest.approx(1, rel=0.2)


# ---------------------------------------------------------------------------------------------------------- lengths


@pytest.mark.parametrize(
    "options, pattern, shell, words",
    [
        ("", NS, {"longest": None}, "max_length="),
        ("", NC, {"context": None}, "max_context="),
        ("", CC, {"longest": None}, "max_length="),
        ("rank=0", NS, {}, "at least 1 column"),
        ("kind=dense, frozen=True", NS, {}, "frozen is for random scores"),
    ],
)
def test_what_must_be_known_is_asked_for(options, pattern, shell, words):
    with pytest.raises(UsageError, match=words):
        build(options, pattern, **shell)


def test_dense_rows_need_no_longest_target():
    layer = build("kind=dense", NC, longest=None)
    assert layer(randn(1, 40, 6), randn(1, 17, 6)).isfinite().all()


def test_more_places_than_were_built_are_refused():
    with pytest.raises(UsageError, match="at most 14 keys, got 15"):
        build()(randn(1, 15, 6))
    with pytest.raises(UsageError, match="at most 17 keys"):
        build("kind=dense", NC)(randn(1, 3, 6), randn(1, 18, 6))
    layer = build(pattern=CC)
    _, state = layer.prefill(randn(1, 14, 6), randn(1, 5, 6))
    with pytest.raises(UsageError, match="14 queries"):
        layer.step(randn(1, 6), state)


def test_a_shorter_sequence_uses_the_first_places():
    layer, short = build("kind=random"), build("kind=random", longest=9)
    state = {**layer.state_dict(), "scores": layer.scores[:, :9, :9]}
    short.load_state_dict(state)
    x = randn(2, 9, 6)
    torch.testing.assert_close(layer(x), short(x))

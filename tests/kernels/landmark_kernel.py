"""The Triton kernels of landmark attention and layer-normed means against their references, on a GPU or interpreted.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern, lara, nystromformer
from longspan.kernels import masked
from longspan.kernels.landmark import landmark_attend, landmark_pool, operator
from longspan.kernels.pooling import borders, normed_means
from longspan.kernels.pooling import operator as pooling_operator
from tests.kernels.agreement import assert_agrees, by_triton, gradients, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.landmark_problems import TOLERANCE, mask_of, normal
from tests.kernels.memory import channel_by_channel, token_by_token


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """In the interpreter a small tile takes as long as a large one; on a GPU the real tile shapes are kept."""
    if DEVICE == "cpu":
        monkeypatch.setitem(operator.TILES, 4, (64, 8))
        monkeypatch.setitem(pooling_operator.SHAPES, (4, False), (64, 8, 2))


def leaves_of(kind, n, *, r=5, c=16, e=16, rows=1, heads=1, dtype=torch.float32, device=DEVICE, size=1.0):
    """The leaf tensors of a call; those over all tokens have `dtype`."""
    few, many = (rows, heads, r), (rows, heads, n)
    if kind == "pool":
        shapes_of = {"q": (*few, c), "k": (*many, c), "v": (*many, e)}
    elif kind == "attend":
        shapes_of = {"q": (*many, c), "k": (*few, c), "v": (*few, e), "shift": few, "center": (*few, c), "base": few}
    else:
        shapes_of = {"x": (*many, c), "weight": (c, c), "bias": (c,)}
    return [
        size * normal(*shape, seed=i, device=device, dtype=dtype if shape[:3] == many and len(shape) == 4 else None)
        for i, shape in enumerate(shapes_of.values())
    ]


def call(kind, impl, *, mask=None, segments=5, plain=False, step=None):
    """The function that computes outputs from those leaves."""
    if kind == "pool":
        norm = 0.0 if plain else 0.06
        return lambda q, k, v: landmark_pool(q, k, v, key_norm=norm, key_mask=mask, step=step, impl=impl)
    if kind == "means":
        return lambda x, weight, bias: normed_means(x, weight, bias, segments, mask, impl=impl)[:1]
    if plain:
        return lambda q, k, v, *unused: (landmark_attend(q, k, v, query_mask=mask, impl=impl),)
    return lambda q, k, v, shift, center, base: (
        landmark_attend(q, k, v, shift=shift, factor=(center, base, 0.8), query_mask=mask, impl=impl),
    )


def follow(kind, n, *, masked=False, plain=False, segments=5, rows=1, step=None, dtype=torch.float32, **sizes):
    leaves = leaves_of(kind, n, rows=rows, dtype=dtype, **sizes)
    leaves = leaves[:3] if plain else leaves
    mask = mask_of(rows, n, device=DEVICE) if masked else None
    how = {"mask": mask, "plain": plain, "segments": segments, "step": step}
    fast, reference, tolerance = call(kind, "triton", **how), call(kind, "reference", **how), TOLERANCE[dtype]
    assert_agrees(fast, reference, leaves, atol=tolerance, rtol=tolerance, least=1.0)


KINDS = ("pool", "attend", "means")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_the_reference(kind, dtype):
    follow(kind, 130, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_tokens_and_rows_of_nothing_else_agree(kind):
    follow(kind, 70, masked=True, rows=2, dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", ["pool", "attend"])
def test_plain_attention_is_softmax_attention(kind):
    follow(kind, 70, plain=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, pytest.param(63, marks=pytest.mark.full), 65])
def test_awkward_lengths_agree(kind, n):
    follow(kind, n, dtype=torch.bfloat16, segments=7)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_long_row_add_up(kind, monkeypatch):
    monkeypatch.setattr(operator.LandmarkShape, "SHORTEST", 64)
    follow(kind, 200, masked=True, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "n, r, step, masked",
    [(1, 1, 7, False), (63, 9, 7, True), (130, 5, 40, False), (200, 5, 20, True), (40, 40, 1, False)],
)
def test_queries_that_are_tokens_see_those_up_to_themselves(n, r, step, masked, monkeypatch):
    monkeypatch.setattr(operator.LandmarkShape, "SHORTEST", 64)
    follow("pool", n, r=r, step=step, masked=masked, rows=2 if masked else 1)
    follow("pool", n, r=r, step=step, masked=masked, plain=True, dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(1, 90), st.integers(1, 9), st.sampled_from([3, 16, 40]), st.sampled_from([1, 8, 20]), st.booleans())
@settings(deadline=None, max_examples=3)
def test_any_sizes_agree(kind, n, r, c, e, masked):
    follow(kind, n, r=r, c=c, e=e, masked=masked, segments=r, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "sizes", [pytest.param({"r": 100, "c": 20}, marks=pytest.mark.full), {"r": 20, "c": 100, "e": 70}], ids=str
)
@pytest.mark.parametrize("kind", KINDS)
def test_wide_ones_agree(kind, sizes):
    follow(kind, 40, **sizes, dtype=torch.bfloat16)


@pytest.mark.parametrize("heads", [1, 2])
def test_one_query_of_decoding_is_attention_over_what_it_may_see(heads, monkeypatch):
    shapes = ((2, 2, 8), (2, 2, 70, 8), (2, 2, 70, 5))
    q, k, v = (normal(*shape, seed=seed, device=DEVICE) for seed, shape in enumerate(shapes))
    visible = torch.rand(2, heads, 70, generator=torch.Generator().manual_seed(2)).to(DEVICE) < 0.4
    visible[0, 0] = False
    expected = masked.masked_attention(q[:, :, None], k, v, visible[:, :, None])[:, :, 0]
    monkeypatch.setattr(masked.landmark, "is_faster", lambda *x: True)
    monkeypatch.setattr(masked, "LONG", 70)
    calls = by_triton(monkeypatch, masked.landmark, "landmark_pool")
    torch.testing.assert_close(masked.attend_once(q, k, v, visible), expected, atol=1e-5, rtol=1e-5)
    assert calls


def test_a_key_that_is_not_there_counts_nowhere():
    q, k, v, shift, center, base = leaves_of("attend", 40, rows=2)
    shift[0, :, 3] = -torch.inf
    there = [0, 1, 2, 4]
    y = landmark_attend(q, k, v, shift=shift, factor=(center, base, 0.8), impl="triton")
    few = [x[:1, :, there] for x in (k, v, shift, center, base)]
    one = landmark_attend(q[:1], few[0], few[1], shift=few[2], factor=(few[3], few[4], 0.8), impl="triton")
    torch.testing.assert_close(y[:1], one, atol=1e-5, rtol=1e-5)
    assert not landmark_attend(q, k, v, shift=torch.full_like(shift, -torch.inf), impl="triton").any()


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_huge_tokens_stay_finite_forward_and_backward(kind, dtype):
    leaves = [x.requires_grad_() for x in leaves_of(kind, 70, dtype=dtype, size=1e4)]
    assert all(x.isfinite().all() for x in outcome(call(kind, "triton"), leaves))


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_deterministic(kind, monkeypatch):
    monkeypatch.setattr(operator.LandmarkShape, "SHORTEST", 64)
    leaves = [x.requires_grad_() for x in leaves_of(kind, 130, dtype=torch.bfloat16)]
    one, other = (outcome(call(kind, "triton"), leaves) for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_may_lie_in_memory_in_any_order(kind):
    def forward_and_backward(reorder):
        leaves = [reorder([x])[0] if x.ndim == 4 else x for x in leaves_of(kind, 20, heads=2)]
        return outcome(call(kind, "triton"), [x.requires_grad_() for x in leaves])

    expected = forward_and_backward(lambda tensors: tensors)
    for reorder in (token_by_token, channel_by_channel):
        assert all(map(torch.equal, forward_and_backward(reorder), expected))


def test_torch_finds_nothing_wrong_with_the_operators():
    q, k, v = (x.requires_grad_() for x in leaves_of("pool", 20))
    for step in (0, 4):
        check(operator.pool, q, k, v, None, 0.1, step)
    few = [x.requires_grad_() for x in leaves_of("attend", 20)]
    check(operator.attend, *few, None, 0.8)
    check(operator.attend, *few[:3], *[None] * 4, 0.0)
    x, weight, bias = (x.requires_grad_() for x in leaves_of("means", 20))
    mask = mask_of(1, 20, device=DEVICE)
    for beside in ((None, None), (mask, borders(mask, 5)[0])):
        check(pooling_operator.normed_means, x, weight, bias, *beside, 5, 1e-5)


def layer_of(spec, pattern=Pattern.NONCAUSAL_SELF, dim=16, heads=1):
    torch.manual_seed(0)
    layer = attentions.get(spec)(dim, heads, pattern).to(DEVICE).eval()
    for parameter in layer.parameters():  # so that no layer norm is the identity and no bias zero
        torch.nn.init.normal_(parameter, std=0.4)
    return layer


LARA = ["normed_means", "normed_means", "landmark_pool", "landmark_attend"]
NYSTROM = ["landmark_pool", "pseudo_inverse", "landmark_attend"]


@pytest.mark.parametrize(
    "spec, pattern, expected_calls",
    [
        ("lara(landmarks=6)", Pattern.NONCAUSAL_SELF, LARA),
        pytest.param("lara(landmarks=6)", Pattern.NONCAUSAL_CROSS, LARA, marks=pytest.mark.full),
        pytest.param("lara(landmarks=6, weighting=biased)", Pattern.NONCAUSAL_SELF, LARA, marks=pytest.mark.full),
        ("nystromformer(landmarks=6)", Pattern.NONCAUSAL_SELF, NYSTROM),
        pytest.param("nystromformer(landmarks=6)", Pattern.NONCAUSAL_CROSS, NYSTROM, marks=pytest.mark.full),
    ],
)
def test_mechanisms_are_themselves_by_the_kernels_with_gradients_of_all_parameters(
    spec, pattern, expected_calls, monkeypatch
):
    layer, (b, n, m) = layer_of(spec, pattern), (2, 40, 30 if pattern.cross else 40)
    x, context = normal(b, n, 16, device=DEVICE), normal(b, m, 16, seed=1, device=DEVICE)
    mask = torch.rand(b, n, generator=torch.Generator().manual_seed(0)).to(DEVICE) < 0.8
    mask[1, 5:] = False  # fewer tokens than landmarks

    def forward_and_backward(dtype):
        leaf = x.to(dtype).requires_grad_()
        y = layer.to(dtype)(leaf, *([context.to(dtype)] if pattern.cross else []), mask=mask)
        return y, *gradients(y, [leaf, *layer.parameters()])

    expected = forward_and_backward(torch.float64)
    calls = by_triton(monkeypatch, lara if expected_calls is LARA else nystromformer, *set(expected_calls))
    found = forward_and_backward(torch.float32)
    assert calls == expected_calls
    for one, other in zip(found, expected, strict=True):
        size = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, atol=1e-4 * size, rtol=1e-4)


def test_all_go_into_one_compiled_graph_for_any_length():
    def attend(q, k, v, weight, bias):
        few = normed_means(q * 1, weight, bias, 5, impl="triton")[0]
        y, lse = landmark_pool(few, k, v, key_norm=0.1, impl="triton")
        return landmark_attend(q, few, y, shift=lse, factor=(few, lse, 0.5), impl="triton") * 2

    def leaves(n):
        _, weight, bias = leaves_of("means", n)
        tokens = [normal(1, 1, n, 16, seed=i, device=DEVICE) for i in range(3)]
        return [x.requires_grad_() for x in (*tokens, weight, bias)]

    assert_one_graph(attend, map(leaves, (24, 37)))


@on_a_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_at_real_size_bfloat16_agrees(kind):
    sizes = {"r": 64, "c": 64, "e": 64, "rows": 4, "heads": 8}
    follow(kind, 4096, **sizes, dtype=torch.bfloat16, size=0.3, segments=64)


@on_a_gpu
@pytest.mark.parametrize("spec", ["lara", "nystromformer"])
def test_compiled_mechanisms_are_themselves_forward_and_backward(spec):
    layer = layer_of(spec, dim=128, heads=2)
    compiled = torch.compile(layer.attend, fullgraph=True, dynamic=True)
    for n in (1024, 1536):
        q, k, v = (normal(2, 2, n, 64, seed=i, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for i in range(3))
        one, other = (attend(q, k, v) for attend in (compiled, layer.attend))
        torch.testing.assert_close(one, other, atol=2e-2, rtol=2e-2)
        for found, expected in zip(gradients(one, [q, k, v]), gradients(other, [q, k, v]), strict=True):
            torch.testing.assert_close(found, expected, atol=5e-2 * float(expected.abs().max()), rtol=5e-2)


@on_a_gpu
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("spec", ["lara", "nystromformer"])
def test_a_graph_records_mechanisms_forward_and_backward(spec, training):
    layer = layer_of(spec, dim=128, heads=2).train(training)
    x = normal(2, 2048, 128, device=DEVICE).requires_grad_()

    def train():
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
        return torch.autograd.grad(y.float().square().mean(), [x, *layer.parameters()])

    for one, other in replayed(train):
        assert one.isfinite().all()
        if not (training and spec == "lara"):  # its noise differs every time
            torch.testing.assert_close(one, other)

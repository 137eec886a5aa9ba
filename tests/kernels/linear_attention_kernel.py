"""The Triton kernels of linear attention against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.kernels import linear_attention as engine
from longspan.kernels.linear_attention import linear_attention, operator
from longspan.kernels.linear_attention import shape as shapes
from tests.attentions.agreement import headwise
from tests.kernels.agreement import assert_agrees, by_triton, gradients, outcome
from tests.kernels.device import DEVICE
from tests.kernels.graphs import assert_one_graph, check
from tests.kernels.linear_attention_problems import doubled, draw, draw_ragged, offsets_of
from tests.kernels.memory import channel_by_channel, token_by_token

# In float32 only the order of summation differs. In bfloat16 phi, w, weights within a tile and results are each rounded
# by a relative 2^-9, and sums of numbers near 1 may cancel afterwards.
TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (8e-3, 1e-2)}  # absolute and relative
CASES = {
    "features": {"feature": "none"},
    "elu, masked": {"feature": "elu", "masked": True},
    "cosine, masked": {"feature": "cosine", "masked": True},
    "causal features, masked": {"feature": "none", "causal": True, "masked": True},
    "causal elu": {"feature": "elu", "causal": True},
    "causal elu, masked": {"feature": "elu", "causal": True, "masked": True},
    "causal cosine, masked": {"feature": "cosine", "causal": True, "masked": True},
    "sigmoid, masked": {"feature": "sigmoid", "masked": True},
    "causal sigmoid, masked, one value": {"feature": "sigmoid", "causal": True, "masked": True, "e": 1},
}


@pytest.fixture
def large_tiles(monkeypatch):
    """In the interpreter a small tile takes as long as a large one; on a GPU the real tile shapes are kept."""
    if DEVICE == "cpu":
        for tiles in (shapes.FORWARD, shapes.BACKWARD, shapes.CAUSAL_BACKWARD, shapes.RAGGED):
            for size, (_, *rest) in list(tiles.items()):
                monkeypatch.setitem(tiles, size, (64, *rest))


def follow(*lengths, **problem):
    inputs, options = draw(*lengths, device=DEVICE, **problem)
    atol, rtol = TOLERANCE[inputs[2].dtype]
    assert_agrees(
        lambda q, k, v: linear_attention(q, k, v, **options, impl="triton"),
        lambda q, k, v: linear_attention(q, k, v, **doubled(options), impl="reference"),
        inputs,
        atol=atol,
        rtol=rtol,
        least=1.0,
    )


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_reference(case):
    follow(70, **CASES[case], rows=2, heads=1)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize(
    "case", ["features", "cosine, masked", "causal elu, masked", "causal sigmoid, masked, one value"]
)
def test_in_bfloat16_only_rounding_is_added(case):
    follow(70, **CASES[case], rows=1, heads=1, dtype=torch.bfloat16)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("floor", [1e-6, 4.0])
@pytest.mark.parametrize("c, causal", [(16, True), (16, False), pytest.param(272, True, marks=pytest.mark.full)])
def test_denominators_with_a_sign_agree(c, causal, floor):
    """Some are negative, and with a high floor some are clamped; none is where sums cancel to 0."""
    (q, k, v), options = draw(40, feature="none", causal=causal, c=c, rows=1, heads=1, device=DEVICE)
    with torch.no_grad():
        q[:, :, ::3] *= -1
        q[:, :, ::4] /= 50
    options |= {"eps": 0.0, "floor": floor, "signed": True}
    assert_agrees(
        lambda *qkv: linear_attention(*qkv, **options, impl="triton"),
        lambda *qkv: linear_attention(*qkv, **options, impl="reference"),
        [q, k, v],
        atol=2e-5,
        rtol=2e-5,
        least=1.0,
    )


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("n", [1, pytest.param(64, marks=pytest.mark.full), 65])
def test_awkward_lengths_agree(n):
    follow(n, feature="elu", causal=True, masked=True, rows=1, heads=1)
    follow(n, 70, feature="elu", rows=1, heads=1)


@pytest.mark.parametrize("case", ["elu, masked", "causal cosine, masked"])
def test_the_tiles_of_a_gpu_give_the_same_in_single_precision(case):
    follow(70, **CASES[case], rows=1, heads=1)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("case", ["cosine, masked", "causal elu"])
def test_parts_of_a_long_row_add_up(case, monkeypatch):
    monkeypatch.setattr(shapes.Shape, "SHORTEST", 64)
    follow(200, **CASES[case], rows=1, heads=1)


@pytest.mark.usefixtures("large_tiles")
@given(st.integers(1, 80), st.integers(1, 80), st.booleans(), st.sampled_from([3, 16, 40]), st.sampled_from([1, 8, 48]))
@settings(deadline=None, max_examples=4)
def test_any_lengths_and_widths_agree(n, m, causal, c, e):
    follow(n, n if causal else m, feature="elu", causal=causal, masked=True, c=c, e=e, heads=1)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("feature, c, e", [("cosine", 64, 64), ("elu", 128, 112)])
def test_wide_features_agree(feature, c, e):
    follow(70, feature=feature, c=c, e=e, causal=True, heads=1, rows=1, dtype=torch.bfloat16)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize(
    "how",
    [
        {"causal": False},
        pytest.param({"causal": True}, marks=pytest.mark.full),
        {"causal": True, "dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_features_too_wide_for_a_program_come_in_slices_that_add_up(how):
    follow(70, feature="none", c=272, heads=1, rows=1, **how)


@pytest.mark.usefixtures("large_tiles")
def test_queries_that_see_nothing_give_zero_and_finite_gradients():
    inputs, options = draw(70, feature="elu", causal=True, device=DEVICE)
    mask = torch.ones(2, 70, dtype=torch.bool, device=DEVICE)
    mask[0, :3], mask[1] = False, False
    y = linear_attention(*inputs, **options | {"key_mask": mask}, impl="triton")
    assert not y[0, :, :3].any()
    assert not y[1].any()
    assert all(x.isfinite().all() for x in gradients(y, inputs))


@pytest.mark.usefixtures("large_tiles")
def test_it_is_deterministic():
    inputs, options = draw(130, feature="elu", causal=True, heads=1, device=DEVICE)
    one, other = (
        outcome(lambda q, k, v: linear_attention(q, k, v, **options, impl="triton"), inputs) for _ in range(2)
    )
    assert all(map(torch.equal, one, other))


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.full), True])
def test_inputs_and_gradients_may_lie_in_memory_in_any_order(causal):
    inputs, options = draw(66, feature="elu", causal=causal, rows=1, device=DEVICE)
    strided = token_by_token(inputs)

    def run(q, k, v):
        y = linear_attention(q, k, v, **options, impl="triton")
        return y, *torch.autograd.grad(y.sum(), (q, k, v))  # the gradient of a sum is one number, expanded

    expected = run(*inputs)
    for given_inputs in (strided, channel_by_channel(inputs)):
        for found, same in zip(run(*given_inputs), expected, strict=True):
            torch.testing.assert_close(found, same)
    assert run(*strided)[0].transpose(1, 2).is_contiguous(), "heads can be merged without a copy"


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("spec", ["linear", "cosformer", "performer(features=20, kernel=relu)"])
@pytest.mark.parametrize(
    "pattern", [pytest.param(pattern, marks=pytest.mark.full) if pattern.cross else pattern for pattern in Pattern]
)
def test_mechanisms_are_themselves_by_the_kernel(spec, pattern, monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 1, 40, 6, device=DEVICE) for _ in "qkv")
    layer = headwise(spec, pattern, heads=1, max_length=40, max_context=40).to(DEVICE)
    mask = torch.rand(2, 40, device=DEVICE) < 0.8
    expected = layer.attend(q.double(), k.double(), v.double(), key_mask=mask, query_mask=mask)
    calls = by_triton(monkeypatch, importlib.import_module(type(layer).__module__), "linear_attention")
    found = layer.float().attend(q, k, v, key_mask=mask, query_mask=mask)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)
    assert len(calls) == 1


@pytest.mark.usefixtures("large_tiles")
def test_torch_finds_nothing_wrong_with_the_operator():
    inputs, _ = draw(20, 30, device=DEVICE)
    nothing = [*[None] * 5, 0, 0]
    for causal in (False, True):
        q, k, v = (x[:, :, :20] for x in inputs) if causal else inputs
        check(operator.forward, q, k, v, *nothing, "elu", causal, 1e-6, 0.0, False)


@pytest.mark.usefixtures("large_tiles")
def test_it_goes_into_one_compiled_graph_for_any_length():
    def layer(q, k, v):
        return linear_attention(q * 1, k, v, feature="elu", causal=True, eps=1e-6, impl="triton") * 2

    assert_one_graph(layer, (draw(n, device=DEVICE)[0] for n in (40, 70)))


def test_auto_takes_it_on_a_gpu_alone():
    (q, k, v), _ = draw(20, device=DEVICE)
    assert not engine._unsupported_reason(q, k, v, "elu")
    assert "float32 or all in bfloat16" in engine._unsupported_reason(q.double(), k.double(), v.double(), "elu")


def follow_ragged(lengths, *, dtype=torch.float32, feature="elu", causal=False, heads=2, r=16, e=32, queries=None):
    inputs = draw_ragged(lengths, heads, r, e, queries=queries, dtype=dtype, positive=feature == "none", device=DEVICE)
    rows = {"cu_seqlens": offsets_of(lengths, DEVICE), "max_seqlen": max(lengths)}
    if queries is not None:
        rows |= {"query_cu_seqlens": offsets_of(queries, DEVICE), "max_query_seqlen": max(queries)}
    options = {"feature": feature, "causal": causal, "eps": 1e-6}
    if feature == "cosine":
        places = torch.cat([torch.arange(n) for n in lengths]).to(DEVICE)
        # Rectified queries and keys may barely overlap, and a denominator near 0 amplifies bfloat16 rounding.
        options |= {"angles": (places * (torch.pi / 2 / max(lengths)),) * 2, "eps": 0.25}

    def by(impl):
        return lambda q, k, v: linear_attention(q, k, v, **rows, **options, impl=impl)

    atol, rtol = TOLERANCE[dtype]
    assert_agrees(by("triton"), by("reference"), inputs, atol=atol, rtol=rtol, least=1.0)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.full)])
@pytest.mark.parametrize("feature, causal", [("elu", False), ("none", False), ("elu", True), ("cosine", True)])
def test_ragged_rows_of_awkward_lengths_agree(feature, causal, dtype):
    follow_ragged([1, 2, 63, 64, 65, 200], feature=feature, causal=causal, dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_the_tiles_of_a_gpu_give_the_same_for_ragged_rows(causal):
    follow_ragged([17, 1, 70], causal=causal)


@pytest.mark.usefixtures("large_tiles")
@given(
    st.lists(st.integers(0, 66), min_size=1, max_size=3).filter(any),
    *(st.integers(1, 3), st.sampled_from([3, 16, 48]), st.booleans()),
)
@settings(deadline=None, max_examples=5)
def test_any_ragged_rows_agree(lengths, heads, r, causal):
    follow_ragged(lengths, heads=heads, r=r, e=16, causal=causal)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("r, e", [(128, 48), pytest.param(16, 112, marks=pytest.mark.full)])
def test_widths_of_ragged_rows_may_differ_and_need_no_power_of_two(r, e):
    follow_ragged([5, 66], r=r, e=e, heads=1, dtype=torch.bfloat16)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("queries", [[1, 1, 1, 1], [0, 65, 3, 0]])
def test_queries_of_ragged_rows_may_be_others_than_the_keys(queries):
    follow_ragged([64, 2, 0, 70], queries=queries)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_a_long_ragged_row_add_up(causal, monkeypatch):
    monkeypatch.setattr(shapes.Shape, "SHORTEST", 64)
    follow_ragged([200, 3, 130], causal=causal)


@pytest.mark.usefixtures("large_tiles")
def test_ragged_rows_may_lie_in_memory_in_any_order_and_give_the_same_bits_again():
    inputs = draw_ragged([5, 66], 2, 16, 16, device=DEVICE)
    strided = [x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for x in inputs]
    rows = {"cu_seqlens": offsets_of([5, 66], DEVICE), "max_seqlen": 66}

    def run(q, k, v):
        y = linear_attention(q, k, v, **rows, feature="elu", eps=1e-6, impl="triton")
        return y, *torch.autograd.grad(y.sum(), (q, k, v))  # the gradient of a sum is one number, expanded

    expected = run(*inputs)
    assert all(map(torch.equal, run(*strided), expected))
    assert all(map(torch.equal, run(*inputs), expected))
    assert expected[0].is_contiguous(), "heads can be merged without a copy"


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("causal", [False, True])
def test_torch_finds_nothing_wrong_with_ragged_rows(causal):
    inputs = [x.detach().transpose(0, 1)[None].requires_grad_() for x in draw_ragged([3, 20], 2, 16, 32, device=DEVICE)]
    cu_seqlens = offsets_of([3, 20], DEVICE)
    check(operator.forward, *inputs, None, None, None, cu_seqlens, cu_seqlens, 20, 20, "elu", causal, 1e-6, 0.0, False)


@pytest.mark.usefixtures("large_tiles")
def test_it_goes_into_one_compiled_graph_for_any_ragged_rows():
    def layer(q, k, v, cu_seqlens, max_seqlen):
        rows = {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
        return linear_attention(q * 1, k, v, **rows, feature="elu", eps=1e-6, impl="triton") * 2

    rows = [4, 30], [9, 7, 66]
    assert_one_graph(layer, ((*draw_ragged(x, 2, 16, 16, device=DEVICE), offsets_of(x, DEVICE), max(x)) for x in rows))


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("c", [16, pytest.param(272, marks=pytest.mark.full)])
@pytest.mark.parametrize("causal", [False, True])
def test_without_a_denominator_only_sums_are_left(causal, c):
    inputs, _ = draw(70, feature="none", c=c, rows=1, heads=1, device=DEVICE)

    def by(impl):
        return lambda q, k, v: linear_attention(q - 0.5, k - 0.5, v, causal=causal, normalize=False, impl=impl)

    assert_agrees(by("triton"), by("reference"), inputs, atol=2e-4, rtol=2e-5, least=1.0)  # sums of 70 numbers

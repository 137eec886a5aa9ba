"""The Triton kernels of attention by random features against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.attentions import performer as mechanism
from longspan.kernels import favor as engine
from longspan.kernels.favor import favor, operator
from longspan.kernels.favor import shape as shapes
from tests.attentions.agreement import headwise
from tests.kernels.agreement import assert_agrees, by_triton, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.memory import channel_by_channel, token_by_token

# Relative to the largest entry. In float32 only the order of summation differs. In bfloat16 phi, sums that are read,
# weights within a tile and results are each rounded by a relative 2^-9.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
TABLES = {name: getattr(shapes, name) for name in ("TILES", "CAUSAL_TILES")}


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """In the interpreter a small tile takes as long as a large one; on a GPU the real tile shapes are kept."""
    if DEVICE == "cpu":
        for name, tiles in TABLES.items():
            monkeypatch.setattr(shapes, name, dict.fromkeys(tiles, (64, 64, 4)))


def draw(n, m=None, *, c=16, e=16, r=70, rows=1, heads=1, dtype=torch.float32, spread=1.0):
    """q, k and v with requires_grad, the projection, and a mask."""
    generator = torch.Generator().manual_seed(n)
    m = n if m is None else m
    q, k, v = (torch.randn(rows, heads, *shape, generator=generator) for shape in ((n, c), (m, c), (m, e)))
    projection, mask = torch.randn(r, c, generator=generator), torch.rand(rows, m, generator=generator) < 0.7
    inputs = [x.to(DEVICE, dtype).requires_grad_() for x in (spread * q, spread * k, v)]
    return inputs, projection.to(DEVICE), mask.to(DEVICE)


def with_gradients(inputs, projection, **how):
    return outcome(lambda q, k, v: favor(q, k, v, projection, **how), inputs)


def follow(inputs, projection, mask, *, causal):
    how = {"causal": causal, "key_mask": mask}
    assert_agrees(
        lambda q, k, v: favor(q, k, v, projection, **how, impl="triton"),
        lambda q, k, v: favor(q, k, v, projection.double(), **how, impl="reference"),
        inputs,
        atol=TOLERANCE[inputs[0].dtype],
        rtol=0,
        least=2.0,  # with one feature the gradients of q and k cancel to zero
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_outputs_and_gradients_are_those_of_the_reference(causal, masked, dtype):
    inputs, projection, mask = draw(70, dtype=dtype)
    follow(inputs, projection, mask if masked else None, causal=causal)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_tiles_of_a_gpu_give_the_same(dtype, monkeypatch):
    for name, tiles in TABLES.items():
        monkeypatch.setattr(shapes, name, tiles)
    inputs, projection, mask = draw(40 if dtype is torch.float32 else 140, r=40, dtype=dtype)
    follow(inputs, projection, mask, causal=True)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_a_long_row_add_up(causal, dtype, monkeypatch):
    monkeypatch.setattr(shapes.Shape, "SHORTEST", 1)
    inputs, projection, mask = draw(200, r=40, dtype=dtype)
    if DEVICE == "cpu":
        assert shapes.Shape.of(inputs[0], inputs[2], projection, causal).parts(200) == 4
    follow(inputs, projection, mask, causal=causal)


@given(
    *(st.integers(1, 80) for _ in "nm"), st.booleans(), st.sampled_from([3, 16, 40]), st.sampled_from([1, 8, 48]),
    st.sampled_from([1, 31, 32, 70]),
)  # fmt: skip
@settings(deadline=None, max_examples=4)
def test_any_lengths_widths_and_numbers_of_features_agree(n, m, causal, c, e, r):
    inputs, projection, mask = draw(n, n if causal else m, c=c, e=e, r=r)
    follow(inputs, projection, mask, causal=causal)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_wide_heads_agree(causal, dtype):
    inputs, projection, mask = draw(70, c=72, e=100, dtype=dtype)
    follow(inputs, projection, mask, causal=causal)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_huge_tokens_give_what_the_reference_gives_and_finite_gradients(causal, dtype):
    inputs, projection, mask = draw(140, r=40, dtype=dtype, spread=1e4)
    y, *gradients = with_gradients(inputs, projection, causal=causal, key_mask=mask, impl="triton")
    expected = favor(*inputs, projection, causal=causal, key_mask=mask, impl="reference")
    torch.testing.assert_close(y, expected, atol=1e-2, rtol=1e-2)  # each row is the value of one key, or 0
    assert y.any()
    assert all(x.isfinite().all() for x in gradients)


def test_a_later_key_that_is_huge_leaves_earlier_rows_alone():
    inputs, projection, _ = draw(140, r=40)
    y = favor(*inputs, projection, causal=True, impl="triton")
    q, k, v = (x.detach().clone() for x in inputs)
    k[:, :, 100:] *= 30
    changed = favor(q, k, v, projection, causal=True, impl="triton")
    assert torch.equal(changed[:, :, :100], y[:, :, :100])
    assert not torch.equal(changed[:, :, 100:], y[:, :, 100:])


@pytest.mark.parametrize("causal", [False, True])
def test_queries_that_see_nothing_give_zero_and_hidden_tokens_get_no_gradient(causal):
    inputs, projection, mask = draw(70, r=40, rows=2)
    mask[0, :40], mask[1] = False, False
    y, *gradients = with_gradients(inputs, projection, causal=causal, key_mask=mask, impl="triton")
    assert not y[1].any()
    assert not (causal and y[0, :, :40].any())
    assert all(x.isfinite().all() for x in gradients)
    assert not any(x.movedim(1, 2)[~mask].any() for x in gradients[1:])


def test_what_hidden_tokens_contain_never_matters():
    inputs, projection, mask = draw(70, r=40)
    q, k, v = (x.detach() for x in inputs)
    hidden = ~mask[:, None, :, None]
    for causal in (False, True):
        one, other = (
            favor(q, k.masked_fill(hidden, x), v.masked_fill(hidden, x), projection, causal=causal,
                               key_mask=mask, impl="triton") for x in (1e4, torch.nan)
        )  # fmt: skip
        assert torch.equal(one, other)


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.full), True])
def test_it_is_deterministic(causal):
    inputs, projection, mask = draw(70)
    one, other = (with_gradients(inputs, projection, causal=causal, key_mask=mask, impl="triton") for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.full), True])
def test_inputs_and_gradients_may_lie_in_memory_in_any_order(causal):
    inputs, projection, mask = draw(66, r=40, heads=2)

    def run(inputs):
        y = favor(*inputs, projection, causal=causal, key_mask=mask, impl="triton")
        return y, *torch.autograd.grad(y.sum(), inputs)  # the gradient of a sum is one number, expanded

    strided, expected = token_by_token(inputs), run(inputs)
    assert all(map(torch.equal, run(strided), expected))
    assert all(map(torch.equal, run(channel_by_channel(inputs)), expected))
    assert run(strided)[0].transpose(1, 2).is_contiguous(), "heads can be merged without a copy"


@pytest.mark.parametrize("pattern", list(Pattern))
def test_performer_is_itself_by_the_kernels(pattern, monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 1, 40, 6, device=DEVICE) for _ in "qkv")
    layer, mask = (
        headwise("performer(features=20)", pattern, heads=1).to(DEVICE),
        torch.rand(2, 40, device=DEVICE) < 0.8,
    )
    expected = layer.attend(q.double(), k.double(), v.double(), key_mask=mask, query_mask=mask)
    calls = by_triton(monkeypatch, mechanism, "favor")
    found = layer.float().attend(q, k, v, key_mask=mask, query_mask=mask)
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)
    assert len(calls) == 1


def test_torch_finds_nothing_wrong_with_the_operator():
    inputs, projection, mask = draw(20, r=40)
    for causal in (False, True):
        check(operator.forward, *inputs, projection, mask, causal)


def test_it_goes_into_one_compiled_graph_for_any_length():
    for causal in (False, True):

        def layer(q, k, v, projection, causal=causal):
            return favor(q * 1, k, v, projection, causal=causal, impl="triton") * 2

        assert_one_graph(layer, ((*inputs, projection) for inputs, projection, _ in map(draw, (40, 150))))


def test_auto_takes_it_on_a_gpu_alone():
    inputs, *_ = draw(20)
    assert not engine.unsupported_reason(*inputs)
    assert "float32 or all in bfloat16" in engine.unsupported_reason(*(x.double() for x in inputs))


@on_a_gpu
@pytest.mark.parametrize("causal", [False, True])
def test_real_sizes_agree_on_a_gpu(causal):
    inputs, projection, mask = draw(4096, c=64, e=64, r=266, rows=4, heads=8, dtype=torch.bfloat16)
    follow(inputs, projection, mask, causal=causal)


@on_a_gpu
@pytest.mark.parametrize("causal", [False, True])
def test_a_recorded_step_replays_the_same_numbers(causal):
    inputs, projection, mask = draw(1000, c=64, e=64, r=266, rows=2, heads=2, dtype=torch.bfloat16)

    def step():
        y = favor(*inputs, projection, causal=causal, key_mask=mask)
        return y, *torch.autograd.grad(y, inputs, torch.ones_like(y))

    assert all(torch.equal(*pair) for pair in replayed(step))

"""The Triton kernels of a window and extra keys against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.block_sparse.extra_keys import window_forward, window_with_extra_keys
from tests.kernels.agreement import assert_agrees, gradients, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import check
from tests.kernels.half_layers import assert_compiled_for_any_length, assert_itself, assert_recorded
from tests.kernels.memory import channel_by_channel, token_by_token

# In float32 only the order of summation differs. In bfloat16 weights and results are each rounded by a relative 2^-9.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
BLOCKS = {"step": 8, "left": 4, "right": 4}
WINDOW = {"left": 511, "chunk": 16}


def draw(n, far, *, c=16, rows=1, heads=2, dtype=torch.float32, masked=False):
    generator = torch.Generator().manual_seed(n)
    shapes = [(rows, heads, t, c) for t in (n, n, n, far, far)]
    tensors = [torch.randn(*shape, generator=generator).to(DEVICE, dtype).requires_grad_() for shape in shapes]
    return tensors, (torch.rand(rows, n, generator=generator) < 0.6).to(DEVICE) if masked else None


def follow(inputs, mask, **rule):
    def by(impl):
        return lambda *leaves: window_with_extra_keys(*leaves, key_mask=mask, **rule, impl=impl)

    tolerance = TOLERANCE[inputs[0].dtype]
    assert_agrees(by("triton"), by("reference"), inputs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_with_overlap_and_all_far_keys(masked, dtype):
    follow(*draw(135, 20, dtype=dtype, masked=masked, heads=1), **BLOCKS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_causal_window_and_the_summaries_of_earlier_chunks(dtype):
    follow(*draw(135, 16, dtype=dtype, heads=1), left=70, chunk=16, rank=2)


@settings(deadline=None, max_examples=5)
@given(
    n=st.integers(1, 50), step=st.integers(1, 12), left=st.integers(0, 40), right=st.integers(0, 9),
    far=st.integers(1, 20), c=st.sampled_from([1, 24, 72]),
)  # fmt: skip
def test_any_blocks_agree(n, step, left, right, far, c):
    follow(*draw(n, far, c=c, heads=1, masked=True), step=step, left=left, right=right)


@settings(deadline=None, max_examples=5)
@given(n=st.integers(1, 60), left=st.integers(0, 60), chunk=st.integers(1, 20), rank=st.integers(1, 3))
def test_any_windows_and_chunks_agree(n, left, chunk, rank):
    follow(*draw(n, n // chunk * rank, heads=1), left=left, chunk=chunk, rank=rank)


def test_a_hidden_token_gets_no_gradient():
    inputs, _ = draw(40, 3)
    mask = torch.arange(40, device=DEVICE)[None] % 3 > 0
    _, dk, dv, *_ = gradients(window_with_extra_keys(*inputs, key_mask=mask, **BLOCKS, impl="triton"), inputs)
    for gradient in (dk, dv):
        assert not gradient.transpose(1, 2)[~mask].any()
        assert gradient.transpose(1, 2)[mask].any(dim=-1).all()


def test_inputs_and_gradients_may_lie_in_memory_in_any_order():
    inputs, _ = draw(40, 5)
    strided = token_by_token(inputs)

    def back(leaves):
        y = window_with_extra_keys(*leaves, **BLOCKS, impl="triton")
        return y, *torch.autograd.grad(y.sum(), leaves)  # the gradient of a sum is one number, expanded

    for others in (strided, channel_by_channel(inputs)):
        for found, same in zip(back(others), back(inputs), strict=True):
            torch.testing.assert_close(found, same)
    assert back(strided)[0].transpose(1, 2).is_contiguous(), "heads can be merged without a copy"


def test_no_two_runs_differ_in_a_bit():
    inputs, _ = draw(70, 4, heads=1)
    rule = {"left": 30, "chunk": 16, "impl": "triton"}
    one, other = (outcome(lambda *x: window_with_extra_keys(*x, **rule), inputs) for _ in range(2))
    assert all(map(torch.equal, one, other))


def test_huge_scores_stay_finite():
    inputs, _ = draw(40, 5)
    inputs = [(1e4 * x).detach().requires_grad_() for x in inputs]
    found = outcome(lambda *x: window_with_extra_keys(*x, **BLOCKS, impl="triton"), inputs)
    assert all(x.isfinite().all() for x in found)


def test_a_query_that_sees_nothing_gives_0_and_gets_no_gradient():
    inputs, _ = draw(40, 5)
    mask = (torch.arange(40, device=DEVICE) >= 12)[None]  # the first 8 queries see 8 tokens and no earlier chunk
    y, dq, *found = outcome(lambda *x: window_with_extra_keys(*x, chunk=8, key_mask=mask, impl="triton"), inputs)
    assert not y[:, :, :8].any()
    assert not dq[:, :, :8].any()
    assert y[:, :, 12:].any(dim=-1).all()
    assert all(x.isfinite().all() for x in (dq, *found))


def test_torch_finds_nothing_wrong_with_the_operator():
    for rule in ((8, 4, 4, 0, 1), (1, 7, 0, 4, 1)):
        inputs, _ = draw(20, 5, heads=1)
        check(window_forward, *inputs, None, *rule)


@on_a_gpu
@pytest.mark.parametrize("rule, far", [(BLOCKS, 32), (WINDOW, 256)])
@pytest.mark.parametrize("n", [4096, 4001])
def test_real_sizes_agree(n, rule, far):
    inputs, _ = draw(n, n // 16 if "chunk" in rule else far, c=64, rows=4, heads=8, dtype=torch.bfloat16)
    follow(inputs, None, **rule)


def layer_and_tokens(pattern, n=1000):
    torch.manual_seed(0)
    layer = attentions.get("longshort")(128, 2, pattern).to(DEVICE)
    return layer, torch.randn(2, n, 128, device=DEVICE, requires_grad=True)


@on_a_gpu
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_a_layer_in_half_precision_is_the_layer(pattern, masked):
    layer, x = layer_and_tokens(pattern)
    mask = torch.arange(1000, device=DEVICE) < torch.tensor([[1000], [300]], device=DEVICE) if masked else None
    assert_itself(layer, x, mask)


@on_a_gpu
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_a_compiled_layer_takes_it_into_one_graph_for_any_length(pattern):
    layer, x = layer_and_tokens(pattern)
    assert_compiled_for_any_length(layer, (x, layer_and_tokens(pattern, 1200)[1]))


@on_a_gpu
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_a_graph_records_it_forward_and_backward(pattern):
    assert_recorded(*layer_and_tokens(pattern))

"""The Triton kernels of a block and extra keys against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern, sinkhorn
from longspan.kernels.block_sparse.extra_keys import block_forward, block_with_extra_keys
from tests.kernels.agreement import assert_agrees, by_triton, gradients, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import check
from tests.kernels.half_layers import assert_compiled_for_any_length, assert_itself, assert_recorded
from tests.kernels.memory import channel_by_channel, token_by_token

# In float32 only the order of summation differs. In bfloat16 weights and results are each rounded by a relative 2^-9.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # what the kernel takes here
PATTERNS = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


def draw(n, block, *, beside=None, c=16, e=None, rows=2, heads=2, dtype=HALF):
    generator, g = torch.Generator().manual_seed(n), -(-n // block)
    shapes = [(n, c), (n, c), (n, e or c), (g, beside or block, c), (g, beside or block, e or c)]
    drawn = (torch.randn(rows, heads, *shape, generator=generator) for shape in shapes)
    return [x.to(DEVICE, dtype).requires_grad_() for x in drawn]


def draw_masks(n, block, *, beside=None, rows=2, heads=2):
    """Masks of own tokens, of extra keys and of the queries that see these; in the first row no query sees anything."""
    generator, g = torch.Generator().manual_seed(n), -(-n // block)
    shapes = {"key_mask": (rows, n), "extra_mask": (rows, heads, g, beside or block), "sees_extra": (rows, n)}
    masks = {name: torch.rand(shape, generator=generator) < 0.6 for name, shape in shapes.items()}
    for mask in masks.values():
        mask[0] = False
    return {name: mask.to(DEVICE) for name, mask in masks.items()}


def follow(inputs, **rule):
    def by(impl):
        return lambda *leaves: block_with_extra_keys(*leaves, **rule, impl=impl)

    tolerance = TOLERANCE[inputs[0].dtype]
    assert_agrees(by("triton"), by("reference"), inputs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [128, 100])
def test_whole_blocks_and_a_last_one_that_is_shorter(n, causal):
    follow(draw(n, 64, rows=1), block=64, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_every_kind(causal):
    follow(draw(40, 16), block=16, causal=causal, **draw_masks(40, 16))


def test_a_mask_for_all_rows_and_heads():
    masks = draw_masks(40, 16)
    follow(draw(40, 16), block=16, extra_mask=masks["extra_mask"][1:, :1])


@settings(deadline=None, max_examples=4)
@given(
    n=st.integers(1, 50), block=st.integers(1, 20), beside=st.integers(1, 20), c=st.sampled_from([1, 24, 72]),
    e=st.sampled_from([3, 16]), causal=st.booleans(), masked=st.booleans(),
)  # fmt: skip
def test_any_blocks_agree(n, block, beside, c, e, causal, masked):
    inputs = draw(n, block, beside=beside, c=c, e=e, heads=1)
    follow(inputs, block=block, causal=causal, **draw_masks(n, block, beside=beside, heads=1) if masked else {})


def test_who_sees_nothing_gets_nothing_and_gives_nothing_back():
    inputs = draw(40, 16)
    y, *found = outcome(lambda *x: block_with_extra_keys(*x, block=16, **draw_masks(40, 16), impl="triton"), inputs)
    for x in (y, *found):
        assert not x[0].any()
        assert x[1].any()


def test_a_hidden_token_gets_no_gradient():
    inputs, mask = draw(40, 16), torch.arange(40, device=DEVICE)[None].expand(2, -1) % 3 > 0
    _, dk, dv, *_ = gradients(block_with_extra_keys(*inputs, block=16, key_mask=mask, impl="triton"), inputs)
    for gradient in (dk, dv):
        assert not gradient.transpose(1, 2)[~mask].any()
        assert gradient.transpose(1, 2)[mask].any(dim=-1).all()


def test_inputs_and_gradients_may_lie_in_memory_in_any_order():
    *own, other_k, other_v = draw(40, 16)
    strided = token_by_token(own)

    def back(leaves):
        y = block_with_extra_keys(*leaves, other_k, other_v, block=16, impl="triton")
        return y, *torch.autograd.grad(y.sum(), leaves)  # the gradient of a sum is one number, expanded

    for others in (strided, channel_by_channel(own)):
        for found, same in zip(back(others), back(own), strict=True):
            torch.testing.assert_close(found, same)
    assert back(strided)[0].transpose(1, 2).is_contiguous(), "heads can be merged without a copy"


def test_no_two_runs_differ_in_a_bit():
    inputs = draw(70, 32)
    one, other = (outcome(lambda *x: block_with_extra_keys(*x, block=32, impl="triton"), inputs) for _ in range(2))
    assert all(map(torch.equal, one, other))


def test_huge_scores_stay_finite():
    inputs = [(1e4 * x).detach().requires_grad_() for x in draw(40, 16)]
    found = outcome(lambda *x: block_with_extra_keys(*x, block=16, impl="triton"), inputs)
    assert all(x.isfinite().all() for x in found)


def test_torch_finds_nothing_wrong_with_the_operator():
    inputs = draw(20, 16, heads=1)
    check(block_forward, *inputs, None, None, None, 16, False)
    check(block_forward, *inputs, *draw_masks(20, 16, heads=1).values(), 16, True)


@on_a_gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [4096, 4001])
def test_real_sizes_agree(n, causal):
    follow(draw(n, 64, c=64, rows=4, heads=8), block=64, causal=causal)


def layer_and_tokens(pattern, n=1000, **options):
    torch.manual_seed(0)
    layer = attentions.get("sinkhorn")(128, 2, pattern, max_length=2048, gumbel=False, **options).to(DEVICE)
    return layer, torch.randn(2, n, 128, device=DEVICE, requires_grad=True)


def sinkhorns():
    """Every option with every mask; the quick cases have each option once, each mask once, and both patterns."""
    options, lengths = [{}, {"net": "attention", "top": 1}, {"null_block": False}], [None, [40, 0], [21, 33]]
    causal = Pattern.CAUSAL_SELF
    quick = [(causal, [21, 33], {}), (PATTERNS[0], [40, 0], options[1]), (causal, None, options[2])]
    for case in product(PATTERNS, lengths, options):
        yield pytest.param(*case, marks=[] if case in quick else pytest.mark.full)


@pytest.mark.parametrize("pattern, lengths, options", sinkhorns())
def test_sinkhorn_by_the_kernel_is_sinkhorn(pattern, lengths, options, monkeypatch):
    torch.manual_seed(0)
    layer = attentions.get("sinkhorn")(32, 2, pattern, block=16, max_length=64, gumbel=False, **options).to(DEVICE)
    x = torch.randn(2, 40, 32, device=DEVICE, requires_grad=True)
    place = torch.arange(40, device=DEVICE)
    # the second row starts late, so the nulls must stay hidden from the tokens before its start
    mask = None if lengths is None else torch.stack([place < lengths[0], place >= 40 - lengths[1]])

    def train():
        y = layer(x, mask=mask)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()], allow_unused=True)]

    if DEVICE == "cuda":
        pytest.skip("float32 has no kernel on a GPU")
    reference = train()
    calls = by_triton(monkeypatch, sinkhorn, "block_with_extra_keys")
    for found, expected in zip(train(), reference, strict=True):
        if expected is not None:
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert calls


@on_a_gpu
@pytest.mark.parametrize("options", [{}, {"net": "attention"}, {"null_block": False}])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_layer_in_half_precision_is_the_layer(pattern, masked, options):
    layer, x = layer_and_tokens(pattern, **options)
    mask = torch.arange(1000, device=DEVICE) < torch.tensor([[1000], [300]], device=DEVICE) if masked else None
    assert_itself(layer, x, mask)


@on_a_gpu
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_compiled_layer_takes_it_into_one_graph_for_any_length(pattern):
    layer, x = layer_and_tokens(pattern)
    assert_compiled_for_any_length(layer, (x, layer_and_tokens(pattern, 1200)[1]))


@on_a_gpu
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_graph_records_it_forward_and_backward(pattern):
    assert_recorded(*layer_and_tokens(pattern))

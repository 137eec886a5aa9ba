"""The Triton kernel of block-sparse attention against the reference, on a GPU or in Triton's interpreter.

    python -m pytest tests/kernels/block_sparse_kernel.py --noconftest -q

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to
interpret. Tests that need a GPU are skipped without one.
"""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.efficiency.operations import count_operations
from longspan.kernels.block_sparse import block_sparse, operator
from longspan.kernels.block_sparse.plan import make_plan
from tests.kernels.agreement import exact, gradients, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.memory import token_by_token

EXACT = torch.float32 if DEVICE == "cpu" else torch.bfloat16  # the kernel takes float32 only in the interpreter
# Relative to the norm: in float32 only the order of summation differs, in bfloat16 weights and results are rounded by
# a relative 2^-9. A small absolute term is added, since a query with one key has no gradient of scores at all.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def tensors(n, b=1, h=2, c=16, e=16, dtype=EXACT, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(b, h, n, width, generator=generator) for width in (c, c, e))
    return [x.to(DEVICE, dtype).requires_grad_() for x in drawn]


def assert_agrees(compute, reference, leaves):
    for found, expected in zip(outcome(compute, leaves), outcome(reference, exact(leaves)), strict=True):
        assert found.dtype == leaves[0].dtype
        assert (found - expected).norm() <= TOLERANCE[found.dtype] * (expected.norm() + 0.1)


def agree(n, lists, *, b=1, h=2, c=16, e=16, dtype=EXACT, **rules):
    assert_agrees(
        lambda *x: block_sparse(*x, lists, **rules, impl="triton"),
        lambda *x: block_sparse(*x, lists, **rules, impl="reference"),
        tensors(n, b, h, c, e, dtype),
    )


def at(*positions):
    return torch.tensor(positions, device=DEVICE)[None, None]


def drawn(n, block, count, rows=1, heads=2):
    g, generator = -(-n // block), torch.Generator().manual_seed(3)
    return torch.randint(-1, g + 1, (rows, heads, g, count), generator=generator).to(DEVICE)


def holes(n, rows=2):
    mask = torch.rand(rows, n, generator=torch.Generator().manual_seed(4)) < 0.8
    mask[0, : n // 3] = False
    mask[-1, n // 2 :] = False
    return mask.to(DEVICE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block, reach", [(90, None), (64, 30)])
def test_neighbours_of_any_block(block, reach, causal):
    agree(200, (1, 0 if causal else 1), block=block, reach=reach, causal=causal, h=1)


@pytest.mark.parametrize("left, right", [(70, 0), (9, 140)])
def test_a_band_is_neighbours_one_by_one(left, right):
    agree(200, (left, right), b=2, h=1, block=1, key_mask=holes(200))


@on_a_gpu
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
@pytest.mark.parametrize("n", [200, 4093])
def test_local_attention_over_padded_rows_takes_it_and_agrees_with_itself(n, pattern, monkeypatch):
    layer = attentions.get("local")(128, 2, pattern).cuda().eval()
    calls, kernel = [], operator.forward
    monkeypatch.setattr(operator, "forward", lambda *x: calls.append(1) or kernel(*x))
    attend = lambda *x: layer.attend(*x, key_mask=holes(n))  # noqa: E731
    assert_agrees(attend, attend, tensors(n, b=2, c=64, e=64))
    assert len(calls) == 1


def test_a_window_with_global_keys_and_rows_of_different_lengths_some_of_which_see_nothing():
    agree(150, (1, 1), b=2, h=1, block=64, reach=20, global_keys=at(0, 7, 140, -1, 150), key_mask=holes(150))


@pytest.mark.parametrize("near", [pytest.param((0, 0), marks=pytest.mark.full), (0, -1)])
def test_own_block_and_many_global_keys_or_these_alone(near):
    agree(170, near, h=1, block=40, global_keys=torch.arange(169, 0, -2, device=DEVICE)[None, None], causal=True)


def test_global_keys_of_each_head_and_of_each_row():
    own = torch.stack([torch.arange(0, 40, 2), torch.arange(1, 41, 2)]).to(DEVICE)
    agree(41, (0, 0), block=32, global_keys=own[None])
    agree(41, (0, 0), b=2, h=1, block=32, global_keys=own[:, None])


@pytest.mark.parametrize("causal", [False, True])
def test_lists_with_repeats_gaps_and_global_keys(causal):
    agree(140, drawn(140, 64, 3, heads=1), h=1, block=64, global_keys=at(*range(20)), causal=causal)


def test_lists_of_blocks_of_several_tiles_that_end_within_one():
    agree(330, drawn(330, 256, 2, heads=1), h=1, block=256, reach=100, key_mask=holes(330, rows=1))


@pytest.mark.parametrize(
    "dtype, c, e", [(torch.bfloat16, 48, 32), pytest.param(torch.float16, 16, 8, marks=pytest.mark.full)]
)
def test_half_precision_and_widths_that_are_no_power_of_two(dtype, c, e):
    agree(130, (1, 1), h=1, block=64, reach=40, global_keys=at(3, 99), dtype=dtype, c=c, e=e)


def test_a_single_token():
    agree(1, (1, 1), block=1, global_keys=at(0))


def test_it_is_deterministic():
    leaves = tensors(80, h=1)

    def run():
        y = block_sparse(*leaves, (1, 1), block=64, reach=20, global_keys=at(0, 75), impl="triton")
        return y, *gradients(y, leaves)

    assert all(map(torch.equal, run(), run()))


def test_axes_may_lie_in_memory_in_any_order():
    leaves = tensors(40)
    strided = token_by_token(leaves)

    def run(q, k, v):
        y = block_sparse(q, k, v, (1, 1), block=32, global_keys=at(5), impl="triton")
        return y, *torch.autograd.grad(y.sum(), (q, k, v))  # the gradient of a sum is one number, expanded

    for found, expected in zip(run(*strided), run(*leaves), strict=True):
        torch.testing.assert_close(found, expected)
    assert run(*strided)[0].transpose(1, 2).is_contiguous()


def test_operations_are_those_of_the_tiles_that_are_visited():
    """Queries in tiles of 128 (64 in the backward pass and for lists of blocks of 64), keys in chunks of 64."""
    q, k, v = tensors(256, h=1)
    c = e = 16
    window = lambda: block_sparse(q, k, v, (20, 0), block=1, impl="triton")  # noqa: E731
    forward = 2 * 128 * (128 + 192) * (c + e)
    assert count_operations(window) == forward
    backward = 2 * 64 * (64 + 3 * 128) * (4 * c + 3 * e)
    assert count_operations(lambda: window().sum().backward()) == forward + backward
    lists = torch.tensor([[[[0, -1], [0, 1], [3, 3], [-1, -1]]]], device=DEVICE)
    listed = lambda: block_sparse(q, k, v, lists, block=64, global_keys=at(5, 9), impl="triton")  # noqa: E731
    assert count_operations(listed) == 2 * 64 * (4 * 64 + 4 * 16) * (c + e)


def test_torch_finds_nothing_wrong_with_the_operator():
    rules = {"block": 64, "reach": None, "causal": True, "global_keys": at(0, 5), "key_mask": None}
    plan = make_plan(70, drawn(70, 64, 2).sort(dim=-1).values, **rules, device=torch.device(DEVICE))
    check(operator.forward, *tensors(70), None, *plan, 64, 0, 0, 70, True)


def test_it_goes_into_one_compiled_graph_for_any_length():
    def layer(q, k, v):
        n = q.shape[2]
        global_keys = torch.arange(0, n, 9, device=q.device)[None, None]
        lists = torch.arange(-(-n // 64), device=q.device)[:, None] + torch.arange(-1, 1, device=q.device)
        return (
            block_sparse(q * 1, k, v, lists[None, None], block=64, causal=True, global_keys=global_keys, impl="triton")
            * 2
        )

    assert_one_graph(layer, (tensors(n, h=1) for n in (70, 100)))


SPECS = ["bigbird", "longformer", "longformer(window=128,global_tokens=4)", "sparse_transformer"]
SPECS += ["sparse_transformer(stride=91)", "sparse_transformer(stride=64,bands=2,part=far)"]
SPECS += ["local(window=128,shape=blocks,overlap=128)"]
SELF = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


@on_a_gpu
@pytest.mark.parametrize("pattern", SELF)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("masked", [False, True])
def test_mechanisms_take_it_and_agree_with_themselves_at_real_size(spec, pattern, masked, monkeypatch):
    n = 4096 - 3
    layer = attentions.get(spec)(512, 8, pattern, max_length=4096).cuda().eval()
    leaves, mask = tensors(n, b=4, h=8, c=64, e=64, dtype=torch.bfloat16), holes(n, rows=4) if masked else None
    calls, kernel = [], operator.forward
    monkeypatch.setattr(operator, "forward", lambda *x: calls.append(1) or kernel(*x))
    assert_agrees(lambda *x: layer.attend(*x, key_mask=mask), lambda *x: layer.attend(*x, key_mask=mask), leaves)
    assert len(calls) == 1  # the expected result is in double precision, which the kernel does not take


@on_a_gpu
@pytest.mark.parametrize("spec", SPECS)
def test_a_graph_records_forward_and_backward(spec):
    layer = attentions.get(spec)(128, 2, Pattern.NONCAUSAL_SELF, max_length=4096).cuda().eval()
    leaves = tensors(4096, b=2, c=64, e=64)

    def train():
        y = layer.attend(*leaves)
        return [y, *gradients(y, leaves)]

    for found, expected in replayed(train, redrawn=leaves):
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


@on_a_gpu
@pytest.mark.parametrize("pattern", SELF)
@pytest.mark.parametrize("spec", SPECS)
def test_a_compiled_caller_takes_it_into_his_graph(spec, pattern):
    torch.compiler.reset()
    layer = attentions.get(spec)(128, 2, pattern, max_length=4096).cuda().eval()
    compiled = torch.compile(layer.attend, fullgraph=True, dynamic=True)
    for n in (2048, 3000):
        leaves = tensors(n, b=2, c=64, e=64)
        found, expected = compiled(*leaves), layer.attend(*leaves)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
        for a, b in zip(gradients(found, leaves), gradients(expected, leaves), strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)

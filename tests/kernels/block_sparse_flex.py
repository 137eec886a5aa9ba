"""The compiled kernel beside the law, on a GPU: outputs, gradients, one compilation for all lengths, graphs, compilers.

    python -m pytest tests/kernels/block_sparse_flex.py

Needs neither beartype nor a conftest, and is skipped where there is no GPU. Expected is the law in float64 on the same
numbers, rounded to half precision.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.block_sparse import block_sparse, flex

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="flex_attention is fused on a GPU only")

TOLERANCE = 0.02  # of the largest number: bfloat16 keeps 8 bits of weights, sums and results


def tensors(n, b=2, h=2, c=64, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = b, h, n, c
    return [torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_() for _ in range(3)]


def assert_close(found, expected, leaves, exact):
    assert_near(found, expected)
    w = torch.randn(found.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(9)).to(found.dtype)
    one = torch.autograd.grad(found, leaves, w)
    other = torch.autograd.grad(expected, exact, w.double())
    for a, b in zip(one, other, strict=True):
        assert_near(a, b)


def assert_near(found, expected):
    assert found.isfinite().all()
    assert (found.double() - expected).abs().max() <= TOLERANCE * expected.abs().max()


def agree(n, lists, *, dtype=torch.bfloat16, c=64, **rules):
    leaves = tensors(n, c=c, dtype=dtype)
    exact = [u.detach().double().requires_grad_() for u in leaves]
    found = block_sparse(*leaves, lists, **rules, impl="flex")
    assert_close(found, block_sparse(*exact, lists, **rules, impl="reference"), leaves, exact)


def around(n, block, before=1, after=1):
    near = torch.arange(-before, after + 1, device="cuda")
    return (torch.arange(-(-n // block), device="cuda")[:, None] + near)[None, None]


def drawn(n, block, count, rows=1, heads=2):
    g = -(-n // block)
    generator = torch.Generator("cuda").manual_seed(3)
    return torch.randint(-1, g + 1, (rows, heads, g, count), device="cuda", generator=generator)


def holes(n):
    mask = torch.rand(2, n, device="cuda", generator=torch.Generator("cuda").manual_seed(4)) < 0.8
    mask[1, n // 2 :] = False
    mask[0, : n // 3] = False
    return mask


@pytest.mark.parametrize("n", [128, 1000, 2048, 2049])
@pytest.mark.parametrize("block", [64, 96, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_neighbours_and_random_blocks(n, block, causal):
    agree(n, torch.cat([around(n, block).expand(1, 2, -1, -1), drawn(n, block, 2)], dim=-1), block=block, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_reach_columns_and_padding(causal, masked):
    n = 1500
    columns = torch.tensor([[[0, 7, 700, -1, 1499, 1600]]], device="cuda")
    mask = holes(n) if masked else None
    for block, reach in [(256, 256), (64, 40)]:
        agree(n, around(n, block), block=block, reach=reach, causal=causal, columns=columns, key_mask=mask)


def test_columns_of_each_head_and_rows_with_lists_of_their_own():
    n = 1100
    columns = torch.stack([torch.arange(0, 1100, 11), torch.arange(5, 1105, 11)])[None].cuda()
    agree(n, drawn(n, 64, 3, rows=2), block=64, columns=columns, key_mask=holes(n))
    agree(n, around(n, 128)[..., :0], block=128, columns=columns, causal=True)


@pytest.mark.parametrize("dtype, c", [(torch.float16, 64), (torch.bfloat16, 32), (torch.bfloat16, 128)])
def test_types_and_widths(dtype, c):
    agree(900, around(900, 128), block=128, reach=100, dtype=dtype, c=c)


def test_lengths_and_rules_do_not_compile_again():
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    for n in (512, 640, 1000, 2048, 4096):
        for reach, causal in [(None, False), (100, True)]:
            q, k, v = (u.detach() for u in tensors(n))
            block_sparse(q, k, v, around(n, 128), block=128, reach=reach, causal=causal, impl="flex")
    assert counters["stats"]["unique_graphs"] - before <= 2  # a length of its own for the first, then any


SPECS = ["bigbird(block=96)"]


@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("masked", [False, True])
def test_mechanisms_take_it_and_agree_with_themselves(spec, pattern, masked, monkeypatch):
    n = 4096
    layer = attentions.get(spec)(128, 2, pattern, max_length=n).cuda().eval()
    leaves, mask = tensors(n), holes(n) if masked else None
    exact = [u.detach().float().requires_grad_() for u in leaves]
    assert flex.is_faster(leaves[0], leaves[2], 64, 0.0)
    found = layer.attend(*leaves, key_mask=mask)
    with monkeypatch.context() as patch:
        patch.setattr(flex, "is_faster", lambda *case: False)
        expected = layer.attend(*exact, key_mask=mask).double()
    assert_close(found, expected, leaves, exact)


@pytest.mark.parametrize("spec", SPECS)
def test_a_graph_captures_it_forth_and_back_without_waiting(spec):
    n = 4096
    layer = attentions.get(spec)(128, 2, Pattern.NONCAUSAL_SELF, max_length=n).cuda().eval()
    leaves = tensors(n)

    def train():
        y = layer.attend(*leaves)
        return y, *torch.autograd.grad(y, leaves, torch.ones_like(y))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = train()
    with torch.no_grad():
        for leaf in leaves:
            leaf.normal_()
    graph.replay()
    for found, expected in zip(captured, train(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("spec", SPECS)
def test_a_compiled_caller_takes_it_into_his_graph(spec):
    torch.compiler.reset()
    layer = attentions.get(spec)(128, 2, Pattern.CAUSAL_SELF, max_length=4096).cuda().eval()
    compiled = torch.compile(layer.attend, fullgraph=True)
    for n in (2048, 4096):
        leaves = tensors(n)
        found, expected = compiled(*leaves), layer.attend(*leaves)
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
        one, other = (torch.autograd.grad(y, leaves, torch.ones_like(y)) for y in (found, expected))
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)

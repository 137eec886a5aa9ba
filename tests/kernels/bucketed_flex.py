"""Attention within buckets by the compiled kernel beside the law, on a GPU: outputs, gradients, graphs, all lengths.

    python -m pytest tests/kernels/bucketed_flex.py

Needs neither beartype nor a conftest, and is skipped where there is no GPU.
"""

import pytest
import torch
from torch._dynamo.utils import counters

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.bucketed import bucketed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="flex_attention is fused on a GPU only")

TOLERANCE = 0.02  # of the largest number: bfloat16 keeps 8 bits of weights, sums and results


def tensors(n, rounds=2, buckets=8, b=2, h=2, c=64):
    generator = torch.Generator("cuda").manual_seed(n)
    leaves = [torch.randn(b, h, n, c, generator=generator, device="cuda").bfloat16() for _ in range(3)]
    leaves[1] = torch.nn.functional.normalize(leaves[1], dim=-1)
    return [x.requires_grad_() for x in leaves], torch.randint(
        buckets, (b, h, rounds, n), generator=generator, device="cuda"
    )


def assert_near(found, expected):
    assert found.isfinite().all()
    assert (found.double() - expected).abs().max() <= TOLERANCE * expected.abs().max()


@pytest.mark.parametrize("n", [128, 1000, 2049])
@pytest.mark.parametrize("left, right", [(64, 64), (127, 0), (3, 1)])
@pytest.mark.parametrize("buckets", [4, 2000])
def test_outputs_and_gradients_follow_the_law(n, left, right, buckets):
    """With 2000 buckets most tokens see nobody in either round."""
    leaves, numbers = tensors(n, buckets=buckets)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    found = bucketed(*leaves, numbers, left=left, right=right, impl="flex")
    expected = bucketed(*exact, numbers, left=left, right=right, impl="reference")
    assert_near(found, expected)
    w = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, leaves, w.bfloat16()), torch.autograd.grad(expected, exact, w)
    for one, other in zip(*gradients, strict=True):
        assert_near(one, other)


def test_lengths_and_windows_do_not_compile_again():
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    for n in (512, 640, 1000, 2048):
        for left, right in [(64, 64), (127, 0)]:
            leaves, numbers = tensors(n)
            bucketed(*(x.detach() for x in leaves), numbers, left=left, right=right, impl="flex")
    assert counters["stats"]["unique_graphs"] - before <= 2  # a length of its own for the first, then any


@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_a_graph_captures_reformer_forth_and_back(pattern):
    layer = attentions.get("reformer")(128, 2, pattern, max_length=4096).cuda()
    x = torch.randn(2, 4096, 128, device="cuda", requires_grad=True)

    def train():
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
        return y, *torch.autograd.grad(y.float().sum(), x)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = train()
    graph.replay()
    for found, expected in zip(captured, train(), strict=True):
        torch.testing.assert_close(found, expected)

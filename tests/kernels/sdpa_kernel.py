"""On a GPU: windows and packed rows, by FlashAttention too, agree with the reference in outputs and gradients.

python -m pytest tests/kernels/sdpa_kernel.py --noconftest -q
"""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.efficiency.operations import count_operations
from longspan.kernels import sdpa
from longspan.kernels.block_sparse import sliding_window
from longspan.kernels.packing import Layout
from tests.kernels.agreement import exact, outcome
from tests.kernels.graphs import replayed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel is one of a GPU")
SELF = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


def tensors(*shape):
    torch.manual_seed(0)
    return [torch.randn(*shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in "qkv"]


def assert_agrees(compute, reference, leaves):
    """Outputs and gradients, up to bfloat16 rounding (a query with one key has no gradient of scores at all)."""
    for a, b in zip(outcome(compute, leaves), outcome(reference, exact(leaves)), strict=True):
        assert (a - b).norm() < 0.01 * b.norm() + 1e-3


@pytest.mark.parametrize("left, right", [(16, 16), (15, 0), (0, 0), (256, 256), (5000, 5000), (5000, 0)])
@pytest.mark.parametrize("n", [1, 100, 1000])
@pytest.mark.parametrize("way", [sliding_window, sdpa.flash_window])
def test_a_window_is_that_of_the_reference(n, left, right, way):
    leaves = tensors(2, 3, n, 64)  # as wide as the Triton kernel takes
    assert sdpa.flash_fits(leaves[0], leaves[2])
    sides = {"left": min(left, n - 1), "right": min(right, n - 1)}
    assert_agrees(lambda *x: way(*x, **sides), lambda *x: sliding_window(*x, **sides, impl="reference"), leaves)


@pytest.mark.parametrize("pattern", SELF)
@pytest.mark.parametrize("window", [1, 16, 300])
def test_packed_rows_are_what_each_row_is_by_itself(window, pattern):
    layer = attentions.get(f"local(window={window})")(128, 2, pattern).cuda().eval()
    lengths = [5, 700, 1, 300]
    layout = Layout.of_lengths(lengths, device="cuda")

    def one_by_one(q, k, v):
        rows = zip(*(x.split(lengths) for x in (q, k, v)), strict=True)
        return torch.cat([layer.attend(*(x.transpose(0, 1)[None] for x in row))[0].transpose(0, 1) for row in rows])

    assert_agrees(lambda *x: layer.attend_packed(*x, layout), one_by_one, tensors(sum(lengths), 2, 64))


@pytest.mark.parametrize("pattern", SELF)
def test_a_compiled_caller_takes_it_into_his_graph(pattern):
    layer = attentions.get("local")(128, 2, pattern).cuda().eval()
    compiled = torch.compile(layer.attend, fullgraph=True, dynamic=True)
    for n in (300, 500):
        leaves = tensors(2, 2, n, 64)
        torch.testing.assert_close(compiled(*leaves), layer.attend(*leaves), rtol=0.02, atol=0.02)


def test_a_graph_records_forward_and_backward():
    layer = attentions.get("local")(128, 2, Pattern.NONCAUSAL_SELF).cuda().eval()
    leaves = tensors(2, 2, 512, 64)

    def train():
        y = layer.attend(*leaves)
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    for a, b in replayed(train):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("width", [64, 128])
def test_operations_of_a_window_are_counted_on_the_path_that_runs(width):
    """With the Triton kernel (width 64) or FlashAttention: at least the visible pairs, never all pairs."""
    n, leaves = 4096, tensors(1, 2, 4096, width)
    seen = 2 * n * (16 + 1 + 16) * 2 * 2 * width
    counted = count_operations(lambda: sliding_window(*leaves, left=16, right=16))
    assert 0.98 * seen < counted < 10 * seen
    with_backward = count_operations(lambda: sliding_window(*leaves, left=16, right=16).sum().backward())
    assert 3 * counted < with_backward < 6 * counted

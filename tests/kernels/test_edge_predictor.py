"""The edge predictor against its formula with all pairs written out: its choice, its loss and the gradients."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from longspan.conformance.counting import count
from longspan.kernels import edge_predictor as kernel
from longspan.kernels.flops import formulas
from tests.kernels.graphs import check

FARTHEST = 4


def draw(n, *, r=3, h=2, c=5, dtype=torch.float64):
    """a, o and d, then q and k, then the mask."""
    generator = torch.Generator().manual_seed(n)
    shapes = [(2, n, r), (2, n, r), (2, n, 2 * FARTHEST + 1), (2, h, n, c), (2, h, n, c)]
    mask = torch.rand(2, n, generator=generator) < 0.8
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes], mask


def written_out(a, o, d, mask, causal):
    """Scores of all pairs, and which are allowed."""
    n = a.shape[1]
    place = torch.arange(n)
    column = (place - place[:, None]).clamp(-FARTHEST, FARTHEST) + FARTHEST
    allowed = mask[:, None].expand(-1, n, -1)
    scores = (a @ o.mT + d.gather(2, column.expand(len(a), -1, -1))) / a.shape[2] ** 0.5
    return scores, allowed.tril() if causal else allowed


@pytest.fixture(params=[128, 7])
def queries(request, monkeypatch):
    monkeypatch.setattr(kernel, "QUERIES", request.param)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.usefixtures("queries")
def test_the_loss_and_its_gradients_are_those_of_the_formula(n, causal):
    (*leaves, q, k), mask = draw(n)
    leaves = [x.requires_grad_() for x in leaves]
    scores, allowed = written_out(*leaves, mask, causal)
    exact = (q @ k.mT / q.shape[3] ** 0.5).masked_fill(~allowed[:, None], -torch.inf).softmax(dim=3).nan_to_num(0)
    said = scores.masked_fill(~allowed, -1e300).log_softmax(dim=2).masked_fill(~allowed, 0)
    expected = -(exact.mean(dim=1) * said)[mask].sum() / mask.sum().clamp(min=1)
    found = kernel.edge_loss(*leaves, q, k, mask, causal=causal)
    torch.testing.assert_close(found, expected)
    found, expected = (torch.autograd.grad(3 * loss, leaves) for loss in (found, expected))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("edges", [1, 3, 50])
@pytest.mark.usefixtures("queries")
def test_the_largest_scores_and_the_query_itself_are_chosen(edges, causal):
    (a, o, d, _, _), mask = draw(30)
    scores, allowed = written_out(a, o, d, mask, causal)
    found = kernel.best_edges(a, o, d, mask, edges, causal=causal)
    for row in range(2):
        for i in range(30):
            others = [j for j in range(30) if j != i and allowed[row, i, j]]
            best = sorted(others, key=lambda j: -scores[row, i, j].item())[:edges]
            itself = [i] if allowed[row, i, i] else []
            assert found[row, i].nonzero().flatten().tolist() == sorted([*best, *itself])


@pytest.mark.parametrize("causal", [False, True])
def test_memory_of_the_loss_is_linear_in_the_length(causal):
    def bytes_needed(n):
        tensors, mask = draw(n, dtype=torch.float32)
        return count(lambda: kernel.compare(*tensors, mask, causal)).peak_bytes

    assert bytes_needed(1024) < 2.1 * bytes_needed(512)


@pytest.mark.parametrize("causal", [False, True])
def test_operations_declared_are_those_done(causal):
    tensors, mask = draw(300)
    done = []
    for compute in (
        lambda: kernel.find(*tensors[:3], mask, 2, causal),
        lambda: kernel.compare(*tensors, mask, causal),
    ):
        with FlopCounterMode(display=False) as counter:
            compute()
        done.append(counter.get_total_flops())
    shapes = [tuple(x.shape) for x in (*tensors, mask)]
    assert done == [
        formulas()[torch.ops.longspan.best_edges](*shapes[:3], shapes[5], 2, causal),
        formulas()[torch.ops.longspan.edge_loss](*shapes, causal),
    ]


def test_torch_finds_nothing_wrong_with_the_operators():
    tensors, mask = draw(9)
    check(kernel._best_edges, *tensors[:3], mask, 2, True, differentiable=False)
    check(kernel._edge_loss, *(x.requires_grad_() for x in tensors[:3]), *tensors[3:], mask, True)

"""Collision attention: blocks of queries change nothing, memory is linear, and the operations performed are counted."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from longspan.conformance.counting import count
from longspan.kernels import collision_attention as kernel
from longspan.kernels.flops import formulas
from tests.kernels.graphs import check


def draw(n, m, c=8, e=6, dtype=torch.float64):
    q, k = (F.normalize(torch.randn(1, 2, t, c, dtype=dtype), dim=-1) for t in (n, m))
    return q, k, torch.randn(1, 2, m, e, dtype=dtype)


@pytest.mark.parametrize("n, m, causal", [(1, 1, True), (63, 63, True), (63, 40, False), (0, 5, False)])
def test_outputs_and_gradients_do_not_depend_on_the_blocks(n, m, causal, monkeypatch):
    inputs, du = draw(n, m), torch.randn(1, 2, n, 6, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in inputs]
    found = []
    for queries in (256, 16):
        monkeypatch.setattr(kernel, "QUERIES", queries)
        u = kernel.collision_attention(*leaves, 5, causal=causal)
        found.append([u, *torch.autograd.grad(u, leaves, du)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_length(causal):
    def bytes_needed(n):
        inputs, du = draw(n, n, dtype=torch.float32), torch.randn(1, 2, n, 6)
        return count(lambda: kernel.attend(*inputs, 9, causal), lambda u: kernel.gradients(du, *inputs, 9, causal))

    small, large = (bytes_needed(n).peak_bytes for n in (1024, 2048))
    assert large < 2.1 * small


@pytest.mark.parametrize("causal", [False, True])
def test_operations_declared_are_those_done(causal):
    inputs, du = draw(600, 600), torch.randn(1, 2, 600, 6, dtype=torch.float64)
    done = []
    for compute in (lambda: kernel.attend(*inputs, 9, causal), lambda: kernel.gradients(du, *inputs, 9, causal)):
        with FlopCounterMode(display=False) as counter:
            compute()
        done.append(counter.get_total_flops())
    shapes = [tuple(x.shape) for x in inputs]
    assert done == [
        formulas()[torch.ops.longspan.collision_attention](*shapes, 9, causal),
        formulas()[torch.ops.longspan.collision_attention_backward](tuple(du.shape), *shapes, 9, causal),
    ]


def test_torch_finds_nothing_wrong_with_the_operator():
    check(kernel._attend, *(x.requires_grad_() for x in draw(9, 9)), 3, True)

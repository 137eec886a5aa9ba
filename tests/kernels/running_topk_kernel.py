"""The Triton kernel of the running top-k against its reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.running_topk import operator, running_topk
from longspan.kernels.running_topk import triton as kernel
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import check
from tests.kernels.half_layers import assert_compiled_for_any_length, assert_recorded


def budgets(n, factor):
    counts = torch.arange(1, n + 1)
    return torch.minimum(factor * counts.double().log().ceil().long().clamp(min=1), counts)[None]


@settings(deadline=None, max_examples=5)
@given(st.integers(1, 50), st.integers(1, 5), st.integers(0, 3), st.sampled_from(["any", "ties", "rising", "falling"]))
def test_the_choice_is_that_of_the_reference(n, k, seed, kind):
    x = torch.randn(2, 1, n, generator=torch.Generator().manual_seed(seed))
    x = {"any": x, "ties": x.round(), "rising": x.sort().values, "falling": -x.sort().values}[kind].clone()
    x[0, :, n // 3 : n // 2] = -torch.inf
    budget = budgets(n, k)
    budget = budget if seed % 2 else torch.cat([budget, budget // 2])
    x, budget = x.to(DEVICE), budget.to(DEVICE)
    expected = running_topk(x, budget, k, impl="reference")
    whole = kernel.TILE
    for tile in (whole, 16):  # one tile, and several with a carry between them
        kernel.TILE = tile
        assert torch.equal(running_topk(x, budget, k, impl="triton"), expected)
    kernel.TILE = whole


def test_torch_finds_nothing_wrong_with_the_operator():
    x, budget = torch.randn(1, 2, 9, device=DEVICE), torch.arange(9, device=DEVICE)[None]
    check(operator.running_topk, x, budget, 2, differentiable=False)


@on_a_gpu
def test_rows_of_real_length_agree():
    x, budget = torch.randn(4, 8, 16_384, device=DEVICE), budgets(16_384, 5).to(DEVICE)
    assert torch.equal(running_topk(x, budget, 5, impl="triton"), running_topk(x, budget, 5, impl="reference"))


def layer_and_tokens(n=1024):
    torch.manual_seed(0)
    layer = attentions.get("probsparse")(128, 2, Pattern.CAUSAL_SELF, max_length=n).to(DEVICE).eval()
    return layer, torch.randn(2, n, 128, device=DEVICE, requires_grad=True)


@on_a_gpu
def test_compiled_probsparse_takes_it_into_one_graph_for_any_length():
    layer, _ = layer_and_tokens(2048)
    # rounding may change the choice for single queries, so not every entry
    assert_compiled_for_any_length(layer, (layer_and_tokens(n)[1] for n in (1024, 1536)), most=0.99)


@on_a_gpu
def test_a_graph_records_it_forward_and_backward():
    assert_recorded(*layer_and_tokens())

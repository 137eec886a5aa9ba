"""The Triton kernel of attention over diagonals against its reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.kernels.diagonals import diagonals, operator
from tests.kernels.agreement import assert_agrees, gradients
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import check, replayed

# In float32 only the order of summation differs; in half precision results are rounded.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def draw(n, *, b=2, h=2, c=16, e=16, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = (torch.randn(b, n, h, width, generator=generator).to(DEVICE, dtype) for width in (c, c, e))
    return [x.transpose(1, 2).requires_grad_() for x in tensors]


def follow(n, offsets, masked=False, apart=False, **problem):
    inputs = draw(n, **problem)
    generator = torch.Generator().manual_seed(1)
    mask = (torch.rand(len(inputs[0]), n, generator=generator) < 0.6).to(DEVICE) if masked else None
    rows = (torch.arange(n).expand(len(inputs[0]), -1) // 7).to(DEVICE) if apart else None

    def by(impl):
        return lambda q, k, v: diagonals(q, k, v, offsets, key_mask=mask, rows=rows, impl=impl)

    tolerance = TOLERANCE[inputs[0].dtype]
    assert_agrees(by("triton"), by("reference"), inputs, atol=tolerance, rtol=tolerance, least=1.0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_outputs_and_gradients_are_those_of_the_reference(masked, apart):
    follow(70, [0, 1, 2, 4, 8, 16, 32, 64], masked, apart)
    follow(37, [-32, -8, -1, 0, 1, 5, 36], masked, apart)


@pytest.mark.parametrize("n, offsets", [(1, [0]), (65, [3, 64]), (300, [0, 1, 256])])
def test_awkward_lengths_agree(n, offsets):
    follow(n, offsets)


@pytest.mark.parametrize("c, e", [(48, 80), (3, 5), (128, 128)])
def test_awkward_widths_agree(c, e):
    follow(40, [0, 1, 2, 8], c=c, e=e)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_only_rounding_is_added(dtype):
    follow(130, [0, 1, 2, 4, 8, 128], masked=True, c=64, e=64, dtype=dtype)


def test_torch_finds_nothing_wrong_with_the_operator():
    mask = torch.ones(2, 9, dtype=torch.bool, device=DEVICE)
    check(operator.forward, *draw(9), [0, 1, 4], mask, None, True)


@on_a_gpu
def test_a_recorded_step_can_be_replayed():
    leaves = draw(200, dtype=torch.bfloat16)
    step = lambda: gradients(diagonals(*leaves, [0, 1, 2, 4, 128]), leaves)  # noqa: E731
    for one, other in replayed(step, leaves):
        assert torch.equal(one, other)


@on_a_gpu
def test_a_compiled_layer_gives_what_the_layer_gives():
    layer = attentions.get("logsparse")(32, 2, Pattern.CAUSAL_SELF).to(DEVICE)
    x = torch.randn(2, 300, 32, device=DEVICE)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))

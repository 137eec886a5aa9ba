"""The Triton kernels of running softmax with one memory against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.kernels import bounded_memory
from longspan.kernels.bounded_memory import one_memory_operator as operator
from tests.attentions.agreement import headwise
from tests.kernels.agreement import assert_agrees, by_triton, exact, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.memory import channel_by_channel, token_by_token

# In float32 only the order of summation differs. In bfloat16 weights, coefficients and results are each rounded by a
# relative 2^-9, and sums of numbers near 1 may cancel afterwards.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
FUNCTIONS = {"mix": bounded_memory.mix, "attend_values": bounded_memory.attend_values}
WIDTHS = {"mix": (None, 20, 24), "attend_values": (8, 5, 24)}  # width of keys, number of slots, width of values


def draw(name, n, *, rows=1, heads=2, widths=None, spread=1.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    c, r, e = widths or WIDTHS[name]

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    if name == "mix":
        inputs = [normal(rows, heads, n, r), spread * normal(rows, heads, n, r), normal(rows, heads, n, e)]
        return [x.to(DEVICE, dtype).requires_grad_() for x in inputs]
    tokens = [normal(rows, heads, n, width).to(DEVICE, dtype) for width in (e, c, e)]
    control = (spread * normal(heads, c, r) / c**0.5).to(DEVICE)  # float32, as parameters are under autocast
    return [x.requires_grad_() for x in (*tokens, control)]


def hidden(rows, n):
    mask = torch.rand(rows, n, generator=torch.Generator().manual_seed(n)) < 0.7
    mask[0, : n // 3] = False
    return mask.to(DEVICE)


def by(name, impl, **options):
    return lambda *leaves: FUNCTIONS[name](*leaves, **options, impl=impl)


def follow(name, n, *, masked=False, **problem):
    inputs = draw(name, n, **problem)
    options = {"key_mask": hidden(len(inputs[0]), n)} if masked else {}
    tolerance = TOLERANCE[inputs[0].dtype]
    fast, reference = by(name, "triton", **options), by(name, "reference", **options)
    assert_agrees(fast, reference, inputs, atol=tolerance, rtol=tolerance, least=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_outputs_and_gradients_are_those_of_the_reference(name, masked, dtype):
    follow(name, 63, masked=masked, rows=2 - masked, dtype=dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_single_token_agrees(name):
    follow(name, 1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parts_of_a_long_row_add_up(name, monkeypatch):
    monkeypatch.setattr(operator.OneMemoryShape, "SHORTEST", 64)
    follow(name, 140, masked=True, heads=1, widths=(8, 3, 16))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_logits_that_leap_within_a_tile_lose_nothing(name):
    """Weights differ by factors of e^100 and more, yet no time step and no gradient loses its own."""
    inputs = draw(name, 40, heads=1, widths=(4, 2, 16))
    with torch.no_grad():
        steps = 100.0 * (torch.arange(40, device=DEVICE) // 8)
        if name == "mix":
            inputs[1] += steps[:, None]
        else:
            inputs[1][..., 0], inputs[3][:, 0] = steps, 1.0
    found, expected = outcome(by(name, "triton"), inputs), outcome(by(name, "reference"), exact(inputs))
    for one, other in zip(found, expected, strict=True):
        size = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, atol=2e-4 * size, rtol=2e-4)  # logits up to 400 are rounded


@pytest.mark.parametrize("name", FUNCTIONS)
def test_logits_of_any_size_stay_finite(name):
    inputs = draw(name, 40, spread=1e8, dtype=torch.bfloat16)
    assert all(x.isfinite().all() for x in outcome(by(name, "triton", key_mask=hidden(1, 40)), inputs))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_that_see_nothing_give_zero_and_finite_gradients(name):
    inputs, mask = draw(name, 40, rows=2), torch.ones(2, 40, dtype=torch.bool, device=DEVICE)
    mask[0, :36], mask[1] = False, False
    y, *gradients = outcome(by(name, "triton", key_mask=mask), inputs)
    assert not y[1].any()
    assert not y[0, :, :36].any()
    assert all(x.isfinite().all() for x in gradients)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_padding_holds_never_matters(name):
    inputs, mask = draw(name, 40), hidden(1, 40)
    other = [x.detach().clone() for x in inputs]
    for x in other[1:3]:
        x[~mask[:, None].expand(x.shape[:3])] = torch.inf
    compute = by(name, "triton", key_mask=mask)
    assert torch.equal(compute(*inputs), compute(*other))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_may_lie_in_memory_in_any_order_and_the_result_is_deterministic(name):
    inputs = draw(name, 20)
    strided = token_by_token(inputs[:3])
    expected = outcome(by(name, "triton"), inputs)
    assert all(map(torch.equal, outcome(by(name, "triton"), inputs), expected))
    for others in ([*strided, *inputs[3:]], channel_by_channel(inputs)):
        for found, same in zip(outcome(by(name, "triton"), others), expected, strict=True):
            torch.testing.assert_close(found, same)
    y = by(name, "triton")(*strided, *inputs[3:])
    assert y.transpose(1, 2).is_contiguous(), "heads can be merged without a copy"


@pytest.mark.parametrize(
    "spec, name", [("efficient_attention", "mix"), ("set_transformer(points=5)", "attend_values")], ids=str
)
def test_the_mechanism_is_itself_by_the_kernel(spec, name, monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 40, 6, device=DEVICE) for _ in "qkv")
    layer, mask = headwise(spec, Pattern.CAUSAL_SELF, heads=1).to(DEVICE), hidden(1, 40)
    reference = layer.double().attend(q.double(), k.double(), v.double(), key_mask=mask)
    calls = by_triton(monkeypatch, bounded_memory, name)
    found = layer.float().attend(q, k, v, key_mask=mask)
    torch.testing.assert_close(found.double(), reference, atol=2e-5, rtol=2e-5)
    assert len(calls) == 1


def test_torch_finds_nothing_wrong_with_the_operator():
    check(operator.forward, *draw("mix", 20), None, None, False)
    check(operator.forward, *draw("attend_values", 20), hidden(1, 20), True)


def test_the_gradient_of_a_transposed_control_lies_as_torch_compile_expects():
    *tokens, control = (x.detach() for x in draw("attend_values", 20))
    transposed = control.mT.contiguous().mT  # the layout of the points of set attention
    y, states = operator.forward(*tokens, transposed, None, True)
    check(operator.backward, torch.ones_like(y), states, *tokens, transposed, None, True, differentiable=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_goes_into_one_compiled_graph_for_any_length(name):
    compute = by(name, "triton")
    assert_one_graph(lambda q, *rest: compute(q * 1, *rest) * 2, (draw(name, n) for n in (40, 70)))


REAL = {"mix": (None, 64, 64), "attend_values": (64, 32, 64)}  # the sizes of efficient attention and of set attention


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 63, 1000])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_heads_of_real_width_agree(name, n, dtype):
    inputs = draw(name, n, rows=2, heads=2, widths=REAL[name], dtype=dtype)
    found, expected = outcome(by(name, "triton"), inputs), outcome(by(name, "chunked"), exact(inputs))
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other).norm() <= TOLERANCE[dtype] * max(1.0, float(other.norm()))


@on_a_gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_real_size_it_is_the_other_path_up_to_rounding(name):
    inputs = draw(name, 4096, rows=4, heads=8, widths=REAL[name], dtype=torch.bfloat16)
    single = [x.detach().float().requires_grad_() for x in inputs]
    for found, expected in zip(outcome(by(name, "auto"), inputs), outcome(by(name, "chunked"), single), strict=True):
        assert (found.float() - expected).norm() < 1e-2 * expected.norm()


@on_a_gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_can_be_recorded_and_compiled(name):
    inputs = draw(name, 1000, widths=REAL[name], dtype=torch.bfloat16)
    compute = by(name, "auto", key_mask=hidden(1, 1000))
    compiled = torch.compile(compute, fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(*inputs), compute(*inputs))
    assert all(torch.equal(*pair) for pair in replayed(lambda: outcome(compute, inputs)))

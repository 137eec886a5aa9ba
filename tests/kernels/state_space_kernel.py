"""State spaces chunk by chunk against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import SELF_PATTERNS, Pattern
from longspan.kernels import state_space as engine
from longspan.kernels.state_space import filter_chunks, operator, reference, systems
from longspan.kernels.state_space import triton as kernel
from tests.kernels.agreement import exact
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed

LENGTH = 16  # tokens per chunk, few enough that short rows have several chunks
# In float32 only the order of summation differs. In bfloat16 all factors are rounded by a relative 2^-9, and the slope
# of GELU is taken at sums of many such products, which may cancel.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Smaller tiles are faster in the interpreter, and there are few channels and chunks here."""
    if DEVICE == "cpu":
        monkeypatch.setitem(kernel.TILE, "D", 4)
        monkeypatch.setattr(kernel, "CHUNKS", 4)


def dynamics(n=3, *, channels=1, directions=1, d=3, seed=0):
    """The logarithm of A, C and D; modes that decay within a few dozen tokens."""
    generator = torch.Generator().manual_seed(seed)
    real = [torch.randn(*shape, generator=generator).double() for shape in [(d, n)] * 2 + [(channels, d)]]
    c = torch.randn(directions * channels, d, n, dtype=torch.complex128, generator=generator)
    leaves = torch.complex(-0.2 * real[0].abs(), real[1]), c, real[2]
    return [leaf.to(DEVICE).requires_grad_() for leaf in leaves]


def in_chunks(log_a, c, skip, dtype, *, dense=False):
    """A chunk of the recurrence, or the same with a real matrix in place of complex numbers."""
    chunk = systems.Diagonal(log_a, c).chunk(skip, LENGTH, dtype)
    return chunk._replace(across=systems._rotations(chunk.across)) if dense else chunk


def compare(found, expected, tolerance):
    """Errors are relative to the largest expected entry, since small entries are sums of large terms."""
    size = float(expected.detach().abs().max()) or 1.0
    torch.testing.assert_close(found.to(expected), expected, atol=tolerance * size, rtol=0)


def follow(n, *, channels=1, directions=1, dense=False, gelu=True, hidden=False, dtype=torch.float32, seed=0):
    leaves = dynamics(channels=channels, directions=directions, seed=seed)
    log_a, c, skip = leaves
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3 if hidden else 1, n, 3, generator=generator).to(DEVICE, dtype).requires_grad_()
    mask = (torch.rand(3, n, generator=generator) < torch.tensor([[1.0], [0.6], [0.0]])).to(DEVICE) if hidden else None
    (doubled,) = exact([x])
    past, future = (*systems.impulse_response(log_a, c, n).chunk(directions), None)[:2]
    slow = reference.filter_tokens(doubled, past, future, skip, mask)
    slow = F.gelu(slow) if gelu else slow
    fast = filter_chunks(x, in_chunks(*leaves, dtype, dense=dense), mask, gelu=gelu)
    assert fast.dtype == dtype
    compare(fast, slow, TOLERANCE[dtype])
    direction = torch.randn(slow.shape, generator=generator).to(DEVICE, dtype)
    gradients = (
        torch.autograd.grad(y, (tokens, *leaves), direction.to(y.dtype), materialize_grads=True)
        for y, tokens in ((fast, x), (slow, doubled))
    )
    for found, expected in zip(*gradients, strict=True):
        compare(found, expected, TOLERANCE[dtype])


def kinds():
    """Every combination; the four quick ones cover every pair of values."""
    for directions, dense, dtype in product([1, 2], [False, True], TOLERANCE):
        quick = ((directions == 2) ^ dense) == (dtype == torch.bfloat16)
        yield pytest.param(directions, dense, dtype, marks=[] if quick else pytest.mark.full)


@pytest.mark.parametrize("directions, dense, dtype", kinds())
def test_outputs_and_gradients_are_those_of_the_reference(directions, dense, dtype):
    follow(37, directions=directions, dense=dense, dtype=dtype)


@given(st.integers(1, 50), st.integers(1, 2), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=3)
def test_any_lengths_channels_and_masks_agree(n, channels, both_sides, dense, gelu, seed):
    directions = 2 if both_sides else 1
    follow(n, channels=channels, directions=directions, dense=dense, gelu=gelu, hidden=True, seed=seed)


@pytest.mark.parametrize(
    "spec, pattern",
    [
        pytest.param("s4(state=6)", Pattern.CAUSAL_SELF, marks=pytest.mark.full),
        ("s4(state=8, tied=False, channels=2)", Pattern.NONCAUSAL_SELF),
        pytest.param("s4d(state=6, channels=2)", Pattern.NONCAUSAL_SELF, marks=pytest.mark.full),
        ("s4d(state=6, rule=bilinear, activation=none, output=none)", Pattern.CAUSAL_SELF),
    ],
)
def test_mechanisms_are_themselves_in_chunks(spec, pattern, monkeypatch):
    torch.manual_seed(0)
    layer = attentions.get(spec)(6, 1, pattern).to(DEVICE)
    x, mask = torch.randn(2, 37, 6, device=DEVICE, requires_grad=True), torch.rand(2, 37, device=DEVICE) < 0.8
    monkeypatch.setattr(systems, "LENGTH", LENGTH)

    def run(dtype):
        monkeypatch.setattr(engine, "chunk_type", lambda x, states: dtype)
        y = layer(x, mask=mask)
        return y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))

    for found, expected in zip(run(torch.float32), run(None), strict=True):
        compare(found, expected, 3e-5)  # the reference too is in single precision here


@pytest.mark.parametrize("k, families, length", [(6, 3, 64), (40, 2, 4), (5, 1, 1)])
def test_powers_by_doubling_are_those_of_one_product_after_another(k, families, length):
    generator = torch.Generator().manual_seed(k)
    a, rows = (torch.randn(2, m, k, generator=generator) / k**0.5 for m in (k, families))
    given = [x.to(DEVICE).requires_grad_() for x in (a, rows)]
    doubled = exact(given)
    found, slow = operator.matrix_powers(*given, length), reference.matrix_powers(*doubled, length)
    directions = [torch.randn(y.shape, generator=generator).to(DEVICE) for y in slow]
    gradients = (
        torch.autograd.grad(ys, xs, [w.to(ys[0].dtype) for w in directions])
        for ys, xs in ((found, given), (slow, doubled))
    )
    for one, other in zip((*found, *next(gradients)), (*slow, *next(gradients)), strict=True):
        compare(one, other, 1e-5)


def test_it_is_deterministic():
    def run():
        leaves = dynamics(directions=2)
        x = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
        y = filter_chunks(x, in_chunks(*leaves, torch.float32), gelu=True)
        return y, *torch.autograd.grad(y.square().sum(), (x, *leaves))

    assert all(map(torch.equal, run(), run()))


def test_tokens_and_gradients_may_lie_in_memory_in_any_order():
    leaves = dynamics()
    x = torch.randn(2, 20, 3, device=DEVICE)

    def run(x):
        y = filter_chunks(x.requires_grad_(), in_chunks(*leaves, torch.float32))
        return y, *torch.autograd.grad(y.sum(), x)  # the gradient of a sum is one number, expanded

    for found, expected in zip(run(x.mT.contiguous().mT), run(x.clone()), strict=True):
        torch.testing.assert_close(found, expected)


def operands(dense=False):
    chunk = in_chunks(*dynamics(directions=2), torch.float32, dense=dense)
    x = torch.randn(2, 20, 3, device=DEVICE, requires_grad=True)
    across = chunk.across if dense else torch.view_as_real(chunk.across)
    leaves = [leaf.detach().float().requires_grad_() for leaf in (chunk.read, chunk.write, across)]
    return x, *leaves, None, None, not dense, True


def test_torch_finds_nothing_wrong_with_the_operators():
    for dense in (False, True):
        check(operator.forward, *operands(dense))
    a, rows = (torch.randn(2, m, 4, device=DEVICE, requires_grad=True) for m in (4, 3))
    check(operator.powers_forward, a, rows, 2)


def test_it_goes_into_one_compiled_graph_for_any_length():
    _, *chunk, _, _, diagonal, gelu = operands()

    def layer(x):
        return operator.forward(x * 1, *chunk, None, None, diagonal, gelu)[0] * 2

    assert_one_graph(layer, ([torch.randn(2, n, 3, device=DEVICE, requires_grad=True)] for n in (20, 37)))


def real_size(spec, pattern, n=4096):
    """A layer, its input, and the gradient of its output."""
    torch.manual_seed(0)
    layer = attentions.get(spec)(512, 8, pattern).to(DEVICE)
    x, direction = (torch.randn(4, n, 512, device=DEVICE).bfloat16() for _ in range(2))
    return layer, x.requires_grad_(), direction


def run_and_differentiate(layer, x, direction):
    with torch.autocast(DEVICE, torch.bfloat16):
        y = layer(x)
    return y, *torch.autograd.grad(y, (x, *layer.parameters()), direction)


def assert_near(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert float((one.float() - other.float()).norm() / other.float().norm()) < tolerance


@on_a_gpu
@pytest.mark.parametrize("spec", ["s4", "s4d"])
@pytest.mark.parametrize("pattern", SELF_PATTERNS)
def test_in_half_precision_layers_of_real_size_are_what_transforms_make_of_them(spec, pattern, monkeypatch):
    layer, *given = real_size(spec, pattern)
    found = run_and_differentiate(layer, *given)
    monkeypatch.setattr(engine, "chunk_type", lambda x, states: None)
    # Both round the inputs of the last map, and their gradients, to bfloat16, which alone is 4e-3 in each.
    assert_near(found, run_and_differentiate(layer, *given), 3e-2)


@on_a_gpu
@pytest.mark.parametrize("spec", ["s4", "s4d"])
def test_a_recorded_update_is_the_update(spec):
    layer, *given = real_size(spec, Pattern.NONCAUSAL_SELF)
    found, expected = zip(*replayed(lambda: run_and_differentiate(layer, *given)), strict=True)
    assert_near(found, expected, 1e-3)


@on_a_gpu
@pytest.mark.parametrize("spec", ["s4", "s4d"])
def test_a_compiled_layer_is_the_layer_at_any_length(spec):
    layer, *_ = real_size(spec, Pattern.CAUSAL_SELF)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for n in (1000, 1500):
        _, *given = real_size(spec, Pattern.CAUSAL_SELF, n)
        # When compiled, autocast is on in the backward pass where the layer has it off.
        assert_near(run_and_differentiate(compiled, *given), run_and_differentiate(layer, *given), 5e-2)

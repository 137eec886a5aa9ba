"""State spaces: powers in blocks give what the recurrence gives token by token, and so do chunks on a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import UsageError
from longspan.kernels.dispatch import HAS_TRITON
from longspan.kernels.flops import formulas
from longspan.kernels.state_space import chunk_type, filter_chunks, filter_tokens, reference, systems
from longspan.kernels.state_space.systems import fast_length, long_convolution
from tests.kernels.sm90 import compiled, needs_compiler


def dynamics(d=3, n=4, channels=2):
    """Logarithms of A with a negative real part, and C."""
    log_a = torch.complex(-torch.rand(d, n, dtype=torch.float64), torch.randn(d, n, dtype=torch.float64))
    return log_a.requires_grad_(), torch.randn(channels, d, n, dtype=torch.complex128, requires_grad=True)


def assert_agree(slow, fast, leaves):
    torch.testing.assert_close(fast, slow)
    w = torch.randn_like(slow)
    gradients = (torch.autograd.grad((y * w).sum().real, leaves, materialize_grads=True) for y in (fast, slow))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("length", [1, 2, 5, 63, 64, 65])
def test_the_response_to_a_pulse_is_that_of_the_recurrence(length):
    torch.manual_seed(0)
    log_a, c = dynamics()
    found = (module.impulse_response(log_a, c, length) for module in (reference, systems))
    assert_agree(*found, (log_a, c))


@given(st.lists(st.integers(0, 25), max_size=3), st.integers(0, 2**31))
@settings(deadline=None, max_examples=12)
def test_the_last_state_is_that_of_each_row_at_its_end(lengths, seed):
    torch.manual_seed(seed)
    log_a, _ = dynamics()
    lengths = [*lengths, 3]
    u = torch.randn(len(lengths), max(lengths) + 1, 3, dtype=torch.float64, requires_grad=True)
    found = (module.last_state(log_a, u, torch.tensor(lengths)) for module in (reference, systems))
    assert_agree(*found, (log_a, u))


def test_nothing_leaves_an_empty_state():
    log_a, _ = dynamics()
    assert not systems.last_state(log_a, torch.zeros(2, 0, 3), torch.zeros(2, dtype=torch.long)).any()


@given(st.integers(1, 40), st.booleans(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=12)
def test_hidden_tokens_are_not_time(length, both_sides, seed):
    torch.manual_seed(seed)
    x = torch.randn(3, length, 4, dtype=torch.float64, requires_grad=True)
    kernel, reverse = (torch.randn(2, 4, length, dtype=torch.float64, requires_grad=True) for _ in range(2))
    skip = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, length) < torch.tensor([[1.0], [0.6], [0.0]])
    back = reverse if both_sides else None
    found = (compute(x, kernel, back, skip, mask) for compute in (reference.filter_tokens, filter_tokens))
    assert_agree(*found, (x, kernel, skip))


@pytest.mark.parametrize("both_sides", [False, True])
@pytest.mark.parametrize("length", [1, 2, 63, 200])
def test_the_transform_agrees_with_the_sum_over_pairs_in_outputs_and_gradients(length, both_sides):
    torch.manual_seed(0)
    shapes = [(2, 1, 3), (4, 3), (4, 3)][: 3 if both_sides else 2]
    inputs = [torch.randn(*shape, length, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert_agree(reference.long_convolution(*inputs), long_convolution(*inputs), inputs)


def test_a_unit_reverse_kernel_returns_the_next_token():
    u = torch.tensor([1.0, 2.0, 3.0, 4.0])
    next_token = long_convolution(u, torch.zeros(4), torch.tensor([1.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(next_token, torch.tensor([2.0, 3.0, 4.0, 0.0]))


@given(st.integers(1, 10**6))
def test_a_fast_length_suffices_and_wastes_at_most_a_third(least):
    length = fast_length(least)
    assert least <= length <= max(least, least * 4 / 3)
    while length % 2 == 0:
        length //= 2
    assert length in (1, 3, 5)


@pytest.mark.parametrize("both_sides", [False, True])
def test_a_chunk_is_a_step_of_a_larger_system(both_sides):
    """From the states before and after it, a chunk computes the same outputs as the recurrence, and the next states."""
    torch.manual_seed(0)
    (log_a, c), length = dynamics(channels=2 if both_sides else 1), 8
    skip, u = torch.randn(1, 3).double(), torch.randn(3, length).double()
    chunk, c = systems.Diagonal(log_a, c / 2).chunk(skip, length, torch.float64), c.transpose(0, 1)

    states = [torch.randn(3, 4, dtype=torch.complex128) for _ in c[0]]
    before = torch.cat([u, *map(systems.as_pairs, states)], dim=1)
    y, new = (chunk.read @ before[..., None])[..., 0], (u[:, None] @ chunk.write)[:, 0].unflatten(1, (len(states), -1))
    rows, s = [], states[0]
    for t in range(length):
        s = log_a.exp() * s + u[:, t, None]
        rows.append((c[:, 0] * s).sum(dim=1).real + skip[0] * u[:, t])
    torch.testing.assert_close(systems.as_pairs(chunk.across * states[0]) + new[:, 0], systems.as_pairs(s))
    if both_sides:
        s = states[1]
        for t in reversed(range(length)):
            rows[t] = rows[t] + (c[:, 1] * s).sum(dim=1).real
            s = log_a.exp() * s + u[:, t, None]
        torch.testing.assert_close(systems.as_pairs(chunk.across * states[1]) + new[:, 1], systems.as_pairs(s))
    torch.testing.assert_close(y, torch.stack(rows, dim=1))


def test_operations_are_those_of_the_products():
    d, b, n, t, s, ct = 3, 2, 20, 8, 4, 16
    x, read, write, rows = (b, n, d), (d, ct, t + s), (d, t, s), (d, b, 3, t + s)
    forward, backward = formulas()[torch.ops.longspan.state_space], formulas()[torch.ops.longspan.state_space_backward]
    products = 2 * d * b * 3 * (t * s + (t + s) * ct)
    assert forward(x, read, write, (d, 2, 2), None, None, True, False) == products
    assert forward(x, read, write, (d, s, s), None, None, False, False) == products + 2 * d * b * 3 * s * s
    products = 2 * d * b * 3 * (ct * s + (ct + s) * t + (ct + s) * (t + s))
    assert backward((b, n, 2 * d), rows, (d, b, 3, ct), read, write, (d, 2, 2), None, None, True, True) == products
    assert formulas()[torch.ops.longspan.matrix_powers]((d, s, s), (d, 2, s), 3) == 2 * d * s * s * (3 * s + 2 * 7)


@pytest.mark.skipif(not HAS_TRITON, reason="says first that triton is missing")
@pytest.mark.parametrize("n, dtype, words", [(300, torch.float32, "128.*got 600"), (4, torch.float64, "or bfloat")])
def test_what_chunks_cannot_do_is_refused_with_a_sentence(n, dtype, words):
    x = torch.zeros(1, 3, 2, dtype=dtype)
    read, write, across = torch.zeros(2, 4, 4 + 2 * n), torch.zeros(2, 4, 2 * n), torch.zeros(2, n, dtype=torch.cfloat)
    with pytest.raises(UsageError, match=f"cannot run here.*{words}.*impl='auto'"):
        filter_chunks(x, systems.Chunk(read, write, across))


def test_a_cpu_takes_the_fourier_transform():
    assert chunk_type(torch.zeros(1, 3, 2), 64) is None


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("kind", ["bf16", "fp32"])
def test_kernels_compile_for_a_large_gpu_within_the_memory_on_its_chip(kind):
    from longspan.kernels.state_space import triton as kernels

    turns = {"T": systems.LENGTH, "ORDERED": True, "GELU": True, **kernels.TILE}
    diagonal, dense = kernels.launch(32, True), kernels.launch(64)
    powers = kernels.launch(64)
    cases = {"_into_rows": turns, "_out_of_rows": turns, "_scan_diagonal": diagonal, "_scan_dense": dense}
    cases |= {"_next_rows": powers, "_square": powers, "_next_rows_backward": powers, "_square_backward": powers}
    matrices = dict.fromkeys(("across", "squares", "drows", "dsquares"), "*fp32")
    for name, constants in cases.items():
        kernel = getattr(kernels, name)
        constants = {"BACKWARD": True, "B": kernels.BLOCK} | constants
        kinds = dict.fromkeys(("x", "rows", "before", "tokens", "v", "z"), f"*{kind}") | matrices
        kinds |= {"order": "*i32", "places": "*i32", "rows": "*fp32" if "squares" in kernel.arg_names else f"*{kind}"}
        built = compiled(kernel, constants, kinds, otherwise="i32")
        assert built.metadata.shared <= 112 * 1024

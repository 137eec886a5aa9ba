"""The Triton kernels of LSH attention and its hash against their references, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions import reformer as reformer_file
from longspan.kernels.lsh_attention import hash as hashing
from longspan.kernels.lsh_attention import lsh_attention, operator
from longspan.kernels.lsh_attention import triton as kernel
from tests.kernels.agreement import assert_agrees, by_triton, exact, gradients, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.memory import channel_by_channel

# In float32 only the order of summation differs. In half precision weights, gradients of scores and results are each
# rounded by a relative 2^-9 or 2^-12, and sums of numbers near 1 may cancel afterwards.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture
def large_tiles(monkeypatch):
    """In the interpreter a small tile takes as long as a large one; on a GPU the real tile shapes are kept."""
    if DEVICE == "cpu":
        for shapes in (kernel.FORWARD, kernel.BACKWARD):
            for size, (_, _, *rest) in list(shapes.items()):
                monkeypatch.setitem(shapes, size, (64, 64, *rest))


def draw(n, *, rounds=2, buckets=4, b=1, h=1, c=16, e=16, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z, v = (torch.randn(b, n, h, width, generator=generator).to(DEVICE, dtype) for width in (c, e))
    numbers = torch.randint(buckets, (b, h, rounds, n), generator=generator).to(DEVICE)
    return [x.transpose(1, 2).requires_grad_() for x in (z, v)], numbers


def follow(n, *, left, right, scale=1.0, **problem):
    inputs, numbers = draw(n, **problem)

    def by(impl):
        return lambda z, v: lsh_attention(z, v, numbers, left=left, right=right, scale=scale, impl=impl)

    tolerance = TOLERANCE[inputs[1].dtype]
    assert_agrees(by("triton"), by("reference"), inputs, atol=tolerance, rtol=tolerance, least=1.0)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize(
    "left, right, buckets",
    [(5, 5, 1), pytest.param(40, 0, 1, marks=pytest.mark.full), (3, 1, 6), (0, 0, 6), (200, 200, 6)],
)
def test_outputs_and_gradients_are_those_of_the_reference(left, right, buckets):
    follow(70, left=left, right=right, buckets=buckets)


@pytest.mark.usefixtures("large_tiles")
def test_rows_and_heads_do_not_mix():
    follow(20, left=5, right=5, b=2, h=3)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)])
def test_in_half_precision_only_rounding_is_added(dtype):
    follow(130, left=64, right=64, buckets=3, c=64, e=64, dtype=dtype)
    follow(130, left=127, right=0, buckets=3, c=64, e=64, dtype=dtype, rounds=1)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("n", [1, pytest.param(64, marks=pytest.mark.full), 65])
def test_awkward_lengths_agree(n):
    follow(n, left=64, right=64)


@pytest.mark.usefixtures("large_tiles")
@given(
    st.integers(1, 100),
    st.integers(1, 3),
    st.sampled_from([1, 5, 60]),
    *(st.integers(0, 80),) * 2,
    st.sampled_from([3, 16, 40]),
    st.sampled_from([1, 8, 24]),
    st.sampled_from([1.0, 0.2]),
)
@settings(deadline=None, max_examples=4)
def test_any_lengths_windows_and_widths_agree(n, rounds, buckets, left, right, c, e, scale):
    follow(n, rounds=rounds, buckets=buckets, left=left, right=right, c=c, e=e, scale=scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("c", [16, pytest.param(80, marks=pytest.mark.full)])
def test_the_tiles_of_a_gpu_give_the_same(dtype, c):
    follow(50, left=20, right=20, buckets=3, c=c, e=c, dtype=dtype, rounds=1)


@pytest.mark.usefixtures("large_tiles")
def test_tokens_that_see_nobody_give_their_own_value_and_pass_its_gradient_on():
    (z, v), numbers = draw(50, buckets=1)
    numbers[..., 33] = 1
    y = lsh_attention(z, v, numbers, left=9, right=9, impl="triton")
    assert torch.equal(y[:, :, 33], v[:, :, 33])
    dz, dv = torch.autograd.grad(y[:, :, 33].sum(), (z, v))
    assert not dz.any()
    assert torch.equal(dv.sum(dim=2), torch.ones_like(dv[:, :, 0]))
    everyone_alone = torch.arange(50, device=DEVICE).expand_as(numbers)
    assert torch.equal(lsh_attention(z, v, everyone_alone, left=9, right=9, impl="triton"), v)


@pytest.mark.usefixtures("large_tiles")
def test_huge_vectors_and_vanishing_ones_stay_finite():
    (z, v), numbers = draw(40)
    for factor in (1e4, 0.0):
        inputs = (factor * z.detach()).requires_grad_(), v
        y = lsh_attention(*inputs, numbers, left=9, right=9, impl="triton")
        assert all(x.isfinite().all() for x in (y, *gradients(y, inputs)))


@pytest.mark.usefixtures("large_tiles")
def test_it_is_deterministic():
    inputs, numbers = draw(70)
    one, other = (
        outcome(lambda z, v: lsh_attention(z, v, numbers, left=30, right=30, impl="triton"), inputs) for _ in range(2)
    )
    assert all(map(torch.equal, one, other))


@pytest.mark.usefixtures("large_tiles")
def test_inputs_and_gradients_may_lie_in_memory_in_any_order():
    inputs, numbers = draw(20, h=2)
    numbers = numbers.mT.contiguous().mT

    def back(z, v):
        y = lsh_attention(z, v, numbers, left=9, right=9, impl="triton")
        return y, *torch.autograd.grad(y.sum(), (z, v))  # the gradient of a sum is one number, expanded

    expected = back(*inputs)
    for others in ([x.detach().contiguous().requires_grad_() for x in inputs], channel_by_channel(inputs)):
        assert all(map(torch.equal, back(*others), expected))
    assert expected[0].transpose(1, 2).is_contiguous(), "heads can be merged without a copy"


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_reformer_is_itself_by_the_kernels(pattern, monkeypatch):
    torch.manual_seed(0)
    layer = attentions.get("reformer(buckets=4, chunk=5)")(16, 2, pattern).double().to(DEVICE)
    x, mask = torch.randn(2, 40, 16, device=DEVICE), torch.rand(2, 40, device=DEVICE) < 0.8
    mask[1, 30:] = False
    expected = layer(x.double(), mask=mask)
    attended = by_triton(monkeypatch, reformer_file, "lsh_attention")
    hashed = by_triton(monkeypatch, hashing, "cross_polytope_hash")
    torch.testing.assert_close(layer.float()(x, mask=mask).double(), expected, atol=2e-5, rtol=2e-5)
    assert len(attended) == len(hashed) == 1


@pytest.mark.usefixtures("large_tiles")
def test_torch_finds_nothing_wrong_with_the_operator():
    inputs, numbers = draw(20)
    bucket, order = numbers.sort(dim=-1, stable=True)
    check(operator.forward, *inputs, order, bucket, 5, 5, 1.0)


@pytest.mark.usefixtures("large_tiles")
def test_it_goes_into_one_compiled_graph_for_any_length():
    def layer(z, v, numbers):
        return lsh_attention(z * 1, v, numbers, left=15, right=15, impl="triton") * 2

    assert_one_graph(layer, ((*inputs, numbers) for inputs, numbers in map(draw, (40, 70))))


def draw_integers(*shape, seed=0):
    """Small integers, so that many are equal and no sum is rounded."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).float().to(DEVICE)


def assert_same_hash(u, factors, offset=None):
    found, expected = (hashing.cross_polytope_hash(u, factors, offset, impl=impl) for impl in ("triton", "reference"))
    assert found.dtype == expected.dtype == torch.long
    assert torch.equal(found, expected)


@given(st.integers(1, 200), st.integers(1, 5), st.integers(1, 40), st.integers(0, 20), st.booleans())
@settings(deadline=None, max_examples=15)
def test_buckets_are_those_of_the_reference_ties_included(n, m, one, other, moved):
    factors = (2 * one, 2 * other) if other else (2 * one,)
    offset = draw_integers(m, one + other, seed=n + 1) if moved else None
    assert_same_hash(draw_integers(n, m, one + other, seed=n), factors, offset)


@pytest.mark.parametrize("factors", [(2,), (1024, 2), (16, 32)])
def test_tokens_may_have_several_axes_and_hashes_any_width(factors):
    assert_same_hash(draw_integers(2, 5, 4, sum(factors) // 2), factors)


def test_nan_falls_into_a_bucket_that_exists():
    u = torch.full((3, 2, 8), torch.nan, device=DEVICE)
    assert (hashing.cross_polytope_hash(u, (16,), impl="triton") < 16).all()


def test_torch_finds_nothing_wrong_with_the_hash():
    check(operator.cross_polytope_hash, draw_integers(5, 2, 8), [4, 12], draw_integers(2, 8), differentiable=False)


def assert_near(found, expected):
    """Equal in norm up to bfloat16 rounding."""
    assert found.isfinite().all()
    assert (found.double() - expected.double()).norm() <= 0.02 * expected.double().norm()


@on_a_gpu
@pytest.mark.parametrize("left, right", [(64, 64), (127, 0)])
@pytest.mark.parametrize("buckets", [128, 4096])
def test_rows_of_real_length_agree_with_the_blocks_of_a_finer_precision(left, right, buckets):
    """With 4096 buckets many tokens see no other token in either round."""
    inputs, numbers = draw(4096, b=4, h=8, c=64, e=64, buckets=buckets, dtype=torch.bfloat16)
    fast, slow = (
        outcome(lambda z, v: lsh_attention(z, v, numbers, left=left, right=right), leaves)
        for leaves in (inputs, exact(inputs))
    )
    for found, expected in zip(fast, slow, strict=True):
        assert_near(found, expected)


def reformer(pattern, n):
    torch.manual_seed(0)
    layer = attentions.get("reformer")(512, 8, pattern, max_length=n).cuda()
    return layer, torch.randn(4, n, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def train(layer, x):
    with torch.autocast("cuda", torch.bfloat16):
        y = layer(x)
    return y, *torch.autograd.grad(y.float().square().sum(), (x, *layer.parameters()))


@on_a_gpu
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_reformer_in_bfloat16_is_reformer_in_double_precision(pattern):
    layer, x = reformer(pattern, 4096)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        found, buckets = layer(x), layer._project(x)[2]
    finer = layer.double()
    with torch.no_grad():
        expected, exact_buckets = finer(x.double()), finer._project(x.double())[2]
    assert (buckets != exact_buckets).float().mean() < 1e-4  # with bfloat16 it would be a hundredth
    assert (found.double() - expected).norm() < 0.03 * expected.norm()


@on_a_gpu
@pytest.mark.parametrize("pattern", [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF])
def test_a_graph_records_reformer_forward_and_backward(pattern):
    layer, x = reformer(pattern, 4096)
    for found, expected in replayed(lambda: train(layer, x)):
        assert_near(found, expected)


@on_a_gpu
def test_a_reformer_is_compiled_as_one_graph_for_any_length():
    layer, _ = reformer(Pattern.NONCAUSAL_SELF, 4096)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for n in (1000, 4096):
        x = torch.randn(2, n, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for found, expected in zip(train(compiled, x)[:2], train(layer, x)[:2], strict=True):
            assert (found.double() - expected.double()).norm() <= 0.03 * expected.double().norm()

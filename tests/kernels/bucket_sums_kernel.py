"""The Triton kernel of sums over buckets against its reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions import yoso as yoso_file
from longspan.kernels.bucket_sums import bucket_sums, operator
from longspan.kernels.bucket_sums import triton as kernels
from tests.kernels.agreement import assert_agrees, by_triton, exact, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed

# In float32 only the order of summation differs. In half precision gradients are rounded before they are combined, and
# so are the products and sums that combine them.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture
def short_parts(monkeypatch):
    """So that a short row has several parts of several steps each."""
    monkeypatch.setattr(operator, "SHORTEST", 64)
    monkeypatch.setattr(operator, "TILES", {key: (16, warps) for key, (_, warps) in operator.TILES.items()})


def draw(n, m=None, *, b=1, h=1, c=16, e=16, hashes=2, codes=4, dtype=torch.float32, seed=0):
    """q, k and v, then the codes of queries and keys."""
    generator = torch.Generator().manual_seed(seed)
    m = n if m is None else m
    leaves = [torch.randn(b, h, t, width, generator=generator) for t, width in ((n, c), (m, c), (m, e))]
    numbers = [torch.randint(codes, (b, h, t, hashes), generator=generator, dtype=torch.int16) for t in (n, m)]
    leaves[2] = leaves[2].to(dtype)
    return [x.to(DEVICE).requires_grad_() for x in leaves], [x.to(DEVICE) for x in numbers]


def summed(numbers, causal, impl):
    return lambda q, k, v: bucket_sums(q, k, v, *numbers, slope=1.5, causal=causal, impl=impl)


def assert_follows(leaves, numbers, causal):
    tolerance = TOLERANCE[leaves[2].dtype]
    fast, reference = (summed(numbers, causal, impl) for impl in ("triton", "reference"))
    assert_agrees(fast, reference, leaves, atol=tolerance, rtol=tolerance, least=1.0)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("codes", [1, 3, 300], ids=["one bucket for all", "large buckets", "mostly empty buckets"])
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_and_gradients_are_those_of_the_reference(causal, codes):
    assert_follows(*draw(100, codes=codes), causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 63, pytest.param(1000, marks=pytest.mark.full)])
def test_awkward_lengths_agree(n, causal):
    assert_follows(*draw(n, codes=5, c=20, e=24), causal)


@pytest.mark.usefixtures("short_parts")
@given(
    n=st.integers(1, 120),
    m=st.integers(1, 120),
    widths=st.sampled_from([(3, 16), (16, 5), (32, 40)]),
    codes=st.sampled_from([1, 2, 9, 200]),
    hashes=st.integers(1, 6),
    causal=st.booleans(),
)
@settings(deadline=None, max_examples=3)
def test_any_lengths_widths_and_codes_agree(n, m, widths, codes, hashes, causal):
    c, e = widths
    assert_follows(*draw(n, n if causal else m, c=c, e=e, codes=codes, hashes=hashes), causal)


@pytest.mark.usefixtures("short_parts")
def test_rows_and_heads_do_not_mix():
    assert_follows(*draw(40, b=2, h=3), True)
    assert_follows(*draw(30, 50, b=2, h=3), False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_only_rounding_is_added(dtype):
    assert_follows(*draw(90, c=32, e=32, codes=3, dtype=dtype), True)


@pytest.mark.parametrize("causal", [False, True])
def test_directions_of_empty_sums_in_float16_have_finite_gradients(causal):
    """A query without matching keys has a sum of 0; normalising it has a gradient beyond the range of float16."""
    (q, k, v), numbers = draw(40, codes=200, hashes=1, dtype=torch.float16)
    gradients = {}
    for impl in ("triton", "reference"):
        u = summed(numbers, causal, impl)(q, k, v)
        assert (u == 0).all(dim=-1).any()
        gradients[impl] = torch.autograd.grad(torch.nn.functional.normalize(u, dim=-1).sum(), (q, k, v))
    for found, expected in zip(gradients["triton"], gradients["reference"], strict=True):
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)  # v is float16, and so is its gradient


def test_sums_of_values_in_half_precision_are_not_rounded():
    (q, k, v), numbers = draw(200, codes=2, dtype=torch.bfloat16)
    found, expected = (summed(numbers, True, impl)(q, k, v) for impl in ("triton", "reference"))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("short_parts")
def test_nothing_of_a_bucket_meets_another_to_the_last_bit():
    (q, k, v), numbers = draw(150, codes=6, hashes=1)
    huge = v.detach().clone()
    huge[:, :, -1] = 1e30
    other = numbers[0][0, 0, :, 0] != numbers[1][0, 0, -1, 0]
    for causal in (False, True):
        one, two = (summed(numbers, causal, "triton")(q, k, x)[0, 0, other] for x in (v, huge))
        assert torch.equal(one, two)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("causal", [False, True])
def test_without_queries_and_keys_only_values_have_a_gradient(causal):
    (_, _, v), numbers = draw(50)
    assert_agrees(
        lambda v: bucket_sums(None, None, v, *numbers, causal=causal, impl="triton"),
        lambda v: bucket_sums(None, None, v, *numbers, causal=causal, impl="reference"),
        [v],
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.usefixtures("short_parts")
def test_it_is_deterministic_and_the_layout_of_its_inputs_does_not_matter():
    leaves, numbers = draw(70, h=2)
    apart = [x.detach().mT.contiguous().mT.requires_grad_() for x in leaves]
    strided = [x.mT.contiguous().mT for x in numbers]
    expected = outcome(summed(numbers, True, "triton"), leaves)
    for inputs, codes in ((leaves, numbers), (apart, strided)):
        assert all(map(torch.equal, outcome(summed(codes, True, "triton"), inputs), expected))


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("pattern", list(Pattern))
def test_yoso_is_itself_by_the_kernel(pattern, monkeypatch):
    torch.manual_seed(0)
    layer = attentions.get("yoso(hashes=3, bits=3)")(16, 2, pattern).to(DEVICE)
    x, context = torch.randn(2, 2, 40, 16, device=DEVICE)
    mask = torch.rand(2, 40, device=DEVICE) < 0.8
    masks = {"mask": mask, "context_mask": mask.roll(1, 1)} if pattern.cross else {"mask": mask}
    inputs = (x.requires_grad_(), context) if pattern.cross else (x.requires_grad_(),)

    def step():
        y = layer(*inputs, **masks) * mask[..., None]
        return y, *torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))

    expected = step()
    calls = by_triton(monkeypatch, yoso_file, "bucket_sums")
    for one, other in zip(step(), expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)
    assert len(calls) == 1


def test_torch_finds_nothing_wrong_with_the_operators():
    leaves, numbers = draw(20)
    check(operator.forward, *leaves, *numbers, 1.5, True)
    check(operator.forward, None, None, leaves[2], *numbers, 1.5, True)
    detached = [x.detach() for x in leaves]
    du = torch.randn(1, 1, 20, 16, device=DEVICE)
    check(operator.backward, du, *detached, *numbers, 1.5, True, differentiable=False)


@pytest.mark.parametrize("causal", [False, True])
def test_compiled_callers_have_one_graph_for_any_length(causal):
    def layer(q, k, v, *numbers):
        return bucket_sums(q * 1, k, v, *numbers, slope=1.5, causal=causal, impl="triton") * 2

    assert_one_graph(layer, ((*leaves, *numbers) for leaves, numbers in map(draw, (20, 40))))


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codes", [1, 512, 30_000])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_real_length_agree(causal, codes, dtype):
    """Compared in norm, since thousands of rounded numbers are added, some of which cancel."""
    leaves, numbers = draw(4096, b=2, h=2, c=64, e=64, hashes=6, codes=codes, dtype=dtype)
    found = outcome(summed(numbers, causal, "auto"), leaves)
    expected = outcome(summed(numbers, causal, "reference"), exact(leaves))
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other).norm() <= TOLERANCE[dtype] * other.norm()


@on_a_gpu
@pytest.mark.parametrize("c", [8, 80, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_of_any_width_agree(c, dtype):
    assert_follows(*draw(300, c=c, e=c, codes=40, dtype=dtype), True)


@on_a_gpu
def test_memory_is_linear_in_the_length_and_does_not_grow_with_the_number_of_hashes():
    def bytes_needed(n, hashes):
        leaves, numbers = draw(n, b=1, h=8, c=64, e=64, hashes=hashes, codes=1, dtype=torch.bfloat16)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        summed(numbers, True, "auto")(*leaves).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    bytes_needed(64, 1)
    assert bytes_needed(16_384, 32) < 2.2 * bytes_needed(8192, 32)
    assert bytes_needed(8192, 32) < 1.1 * bytes_needed(8192, 8)


@on_a_gpu
def test_it_chooses_the_kernel_by_itself_and_a_graph_records_it(monkeypatch):
    leaves, numbers = draw(2048, b=2, h=2, c=64, e=64, codes=100, dtype=torch.bfloat16)

    def step():
        y = summed(numbers, True, "auto")(*leaves)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    for one, other in replayed(step, leaves):
        assert torch.equal(one, other)
    monkeypatch.setattr(kernels, "sums", None)
    with pytest.raises(TypeError):
        step()

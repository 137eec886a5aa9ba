"""The Triton kernels of running softmax against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.kernels import bounded_memory
from longspan.kernels.bounded_memory import operator
from tests.attentions.agreement import headwise
from tests.kernels.agreement import assert_agrees, by_triton, exact
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.memory import channel_by_channel, token_by_token
from tests.kernels.slot_problems import draw, outcome

# In float32 only the order of summation differs. In bfloat16 weights, coefficients and results are each rounded by a
# relative 2^-9, and sums of numbers near 1 may cancel afterwards.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
CASES = {
    "causal": {},
    "causal, masked": {"masked": True},
    "causal, one control, masked": {"shared": True, "masked": True},
    "one moment, masked": {"causal": False, "m": 90, "masked": True, "rows": 2},
    "one moment, one control": {"causal": False, "m": 40, "shared": True},
}


@pytest.fixture
def large_tiles(monkeypatch):
    """In the interpreter a small tile takes as long as a large one; on a GPU the real tile shapes are kept."""
    if DEVICE == "cpu":
        for which, (_, warps) in list(operator.TILES.items()):
            monkeypatch.setitem(operator.TILES, which, (64, warps))


def follow(n, **problem):
    inputs, options = draw(n, device=DEVICE, **problem)

    def by(impl):
        return lambda *leaves: bounded_memory.attend(*leaves, **options, impl=impl)

    tolerance = TOLERANCE[inputs[0].dtype]
    assert_agrees(by("triton"), by("reference"), inputs, atol=tolerance, rtol=tolerance, least=1.0)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_reference(case):
    follow(70, **CASES[case])


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("case", ["causal, one control, masked", "one moment, masked"])
def test_in_bfloat16_only_rounding_is_added(case):
    follow(70, **CASES[case] | {"rows": 1}, dtype=torch.bfloat16)


def test_the_tiles_of_a_gpu_give_the_same_in_single_precision():
    follow(20, slots=17, e=24)


@pytest.mark.usefixtures("large_tiles")
@given(
    st.integers(1, 80), st.integers(1, 80), st.booleans(), st.booleans(), st.sampled_from([1, 16, 20]),
    st.sampled_from([(3, 17), (16, 8)]),
)  # fmt: skip
@settings(deadline=None, max_examples=3)
def test_any_lengths_and_widths_agree(n, m, causal, masked, slots, widths):
    c, e = widths
    follow(n, m=n if causal else m, causal=causal, masked=masked, slots=slots, c=c, e=e)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.full)])
def test_parts_of_a_long_row_add_up(causal, monkeypatch):
    monkeypatch.setattr(operator.MemoryShape, "SHORTEST", 64)
    follow(140, causal=causal, masked=True)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("how", ["up", pytest.param("down", marks=pytest.mark.full), "back and forth"])
def test_logits_that_leap_within_a_tile_lose_nothing(how):
    """Weights differ by factors of e^100 and more, yet no time step and no gradient loses its own."""
    inputs, options = draw(100, slots=2, c=16, e=16, device=DEVICE)
    token = torch.arange(100, device=DEVICE)
    steps = {"up": token // 20, "down": -(token // 20), "back and forth": (token // 20) % 2 * (token // 20)}[how]
    with torch.no_grad():
        for x, control in (inputs[1::2], inputs[2::2]):
            x[..., 0], control[0], control[1:] = steps, 100.0, control[1:] / 4
    found, expected = outcome(inputs, options, "triton"), outcome(exact(inputs), options, "reference")
    for one, other in zip(found, expected, strict=True):
        size = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, atol=2e-4 * size, rtol=2e-4)  # logits up to 400 are rounded


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.full), torch.bfloat16])
def test_logits_of_any_size_stay_finite(dtype):
    inputs, options = draw(70, spread=1e8, masked=True, dtype=dtype, device=DEVICE)
    assert all(x.isfinite().all() for x in outcome(inputs, options, "triton"))


@pytest.mark.usefixtures("large_tiles")
def test_a_huge_logit_at_the_end_does_not_erase_the_past():
    (q, k, v, *controls), options = draw(70, device=DEVICE)
    before = bounded_memory.attend(q, k, v, *controls, **options, impl="triton")
    last = torch.zeros_like(k)
    last[:, :, -1] = 1e6
    after = bounded_memory.attend(q, k + last, v + last, *controls, **options, impl="triton")
    torch.testing.assert_close(before[:, :, :-1], after[:, :, :-1])


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("causal", [True, False])
def test_rows_that_see_nothing_give_zero_and_finite_gradients(causal):
    inputs, options = draw(70, rows=2, causal=causal, device=DEVICE)  # more than a tile
    mask = torch.ones(2, 70, dtype=torch.bool, device=DEVICE)
    mask[0, :66], mask[1] = False, False
    y, *gradients = outcome(inputs, options | {"key_mask": mask}, "triton")
    assert not y[1].any()
    assert not (causal and y[0, :, :66].any())
    assert all(x.isfinite().all() for x in gradients)


@pytest.mark.usefixtures("large_tiles")
def test_what_padding_holds_never_matters():
    inputs, options = draw(70, masked=True, device=DEVICE)
    other = [x.detach().clone() for x in inputs]
    for x in other[1:3]:
        x[~options["key_mask"][:, None].expand(x.shape[:3])] = torch.inf
    y, same = (bounded_memory.attend(*given_, **options, impl="triton") for given_ in (inputs, other))
    assert torch.equal(y, same)


@pytest.mark.usefixtures("large_tiles")
def test_it_is_deterministic():
    inputs, options = draw(64, device=DEVICE)
    one, other = (outcome(inputs, options, "triton") for _ in range(2))
    assert all(map(torch.equal, one, other))


@pytest.mark.usefixtures("large_tiles")
def test_inputs_may_lie_in_memory_in_any_order():
    inputs, options = draw(20, heads=2, device=DEVICE)
    strided = token_by_token(inputs[:3])
    expected = outcome(inputs, options, "triton")
    for others in ([*strided, *inputs[3:]], channel_by_channel(inputs)):
        for found, same in zip(outcome(others, options, "triton"), expected, strict=True):
            torch.testing.assert_close(found, same)
    y = bounded_memory.attend(*strided, *inputs[3:], **options, impl="triton")
    assert y.transpose(1, 2).is_contiguous(), "heads can be merged without a copy"


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("control", ["separate", pytest.param("shared", marks=pytest.mark.full)])
@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS])
def test_the_mechanism_is_itself_by_the_kernel(pattern, control, monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 40, 6, device=DEVICE) for _ in "qkv")
    layer, mask = headwise(f"abc(slots=5, control={control})", pattern, heads=1).to(DEVICE), torch.rand(1, 40) < 0.8
    reference = layer.attend(q.double(), k.double(), v.double(), key_mask=mask.to(DEVICE))
    calls = by_triton(monkeypatch, bounded_memory, "attend")
    found = layer.float().attend(q, k, v, key_mask=mask.to(DEVICE))
    torch.testing.assert_close(found.double(), reference, atol=2e-5, rtol=2e-5)
    assert len(calls) == 1


@pytest.mark.usefixtures("large_tiles")
def test_torch_finds_nothing_wrong_with_the_operator():
    (q, k, v, a, b), _ = draw(20, device=DEVICE)
    check(operator.forward, q, k, v, a, b, None, True)
    check(operator.forward, q, k, v, a, None, None, False)


@pytest.mark.usefixtures("large_tiles")
def test_it_goes_into_one_compiled_graph_for_any_length():
    def layer(q, k, v, a, b):
        return bounded_memory.attend(q * 1, k, v, a, b, causal=True, impl="triton") * 2

    assert_one_graph(layer, (draw(n, device=DEVICE)[0] for n in (40, 70)))


@on_a_gpu
@pytest.mark.parametrize("slots", [16, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_at_real_size_it_is_the_other_path_up_to_rounding(causal, slots):
    how = {"c": 64, "e": 64, "rows": 4, "heads": 8, "dtype": torch.bfloat16, "device": DEVICE}
    inputs, options = draw(4096, slots=slots, causal=causal, **how)
    single = [x.detach().float().requires_grad_() for x in inputs]
    for found, expected in zip(outcome(inputs, options, "triton"), outcome(single, options, "chunked"), strict=True):
        assert (found.float() - expected).norm() < 1e-2 * expected.norm()


@on_a_gpu
@pytest.mark.parametrize("causal", [True, False])
def test_it_can_be_recorded_and_compiled(causal):
    how = {"c": 64, "e": 64, "slots": 16, "heads": 2, "dtype": torch.bfloat16, "device": DEVICE}
    inputs, options = draw(1000, causal=causal, masked=True, **how)

    def layer(q, k, v, a, b):
        return bounded_memory.attend(q, k, v, a, b, **options)

    def step():
        return outcome(inputs, options, "triton")

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(*inputs), step()[0])
    assert all(torch.equal(*pair) for pair in replayed(step))

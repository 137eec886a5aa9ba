"""The Triton kernels of feature maps against the reference, on a GPU or in Triton's interpreter.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.kernels import feature_map, linear_attention
from longspan.kernels.feature_map import operator
from tests.attentions.agreement import headwise
from tests.kernels.agreement import assert_agrees, by_triton, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, check, replayed
from tests.kernels.memory import channel_by_channel, token_by_token

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}  # order of summation; rounding of features and slopes
MAPS = {"dpfp": {"nu": 3}, "waves": {"scale": 0.3}}


def draw(name, n, c=12, *, r=20, rows=2, heads=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(rows, heads, n, c, generator=generator).to(DEVICE, dtype)
    matrix = torch.randn(heads, r, c, generator=generator).to(DEVICE)  # float32, as parameters are under autocast
    return [u.requires_grad_() for u in ([x] if name == "dpfp" else [x, matrix])]


def by(name, impl):
    return lambda *leaves: getattr(feature_map, name)(*leaves, **MAPS[name], impl=impl)


def follow(name, leaves):
    tolerance = TOLERANCE[leaves[0].dtype]
    assert_agrees(by(name, "triton"), by(name, "reference"), leaves, atol=tolerance, rtol=tolerance, least=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n, c", [(1, 4), (63, 12), (70, 16)])
@pytest.mark.parametrize("name", MAPS)
def test_features_and_gradients_are_those_of_the_reference(name, n, c, dtype):
    follow(name, draw(name, n, c, dtype=dtype))


@pytest.mark.parametrize("name", MAPS)
def test_parts_of_a_long_row_add_up(name, monkeypatch):
    monkeypatch.setattr(operator.FeatureShape, "SHORTEST", 64)
    follow(name, draw(name, 150, 5, rows=1))


@pytest.mark.parametrize("name", MAPS)
def test_tokens_of_0_have_finite_features_and_gradients(name):
    x, *matrix = draw(name, 5)
    leaves = [torch.zeros_like(x).requires_grad_(), *matrix]
    follow(name, leaves)
    assert all(u.isfinite().all() for u in outcome(by(name, "triton"), leaves))


@pytest.mark.parametrize("name", MAPS)
def test_inputs_may_lie_in_memory_in_any_order(name):
    x, *matrix = draw(name, 9)
    expected = outcome(by(name, "triton"), [x, *matrix])
    for others in (token_by_token([x]), channel_by_channel([x])):
        for found, same in zip(outcome(by(name, "triton"), [*others, *matrix]), expected, strict=True):
            torch.testing.assert_close(found, same)


@pytest.mark.parametrize("spec, name", [("dpfp", "dpfp"), ("rfa(features=10)", "waves")])
@pytest.mark.parametrize("pattern", [Pattern.CAUSAL_SELF, Pattern.NONCAUSAL_CROSS])
def test_the_mechanism_is_itself_by_the_kernels(pattern, spec, name, monkeypatch):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 20, 6, device=DEVICE) for _ in "qkv")
    layer, mask = headwise(spec, pattern, heads=1).to(DEVICE), torch.rand(1, 20) < 0.8
    reference = layer.attend(q.double(), k.double(), v.double(), key_mask=mask.to(DEVICE))
    calls = by_triton(monkeypatch, feature_map, name)
    found = layer.float().attend(q, k, v, key_mask=mask.to(DEVICE))
    torch.testing.assert_close(found.double(), reference, atol=1e-4, rtol=1e-4)  # of denominators that may be small
    assert calls == [name, name]


def test_torch_finds_nothing_wrong_with_the_operators():
    (x,), (same, matrix) = draw("dpfp", 5), draw("waves", 5)
    check(operator.dpfp, x, 2)
    check(operator.waves, same, matrix, 0.5)


@pytest.mark.parametrize("name", MAPS)
def test_compiled_callers_have_one_graph_for_any_length(name):
    assert_one_graph(lambda *leaves: by(name, "triton")(*leaves) * 2, (draw(name, n) for n in (40, 70)))


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 63, 1000])
@pytest.mark.parametrize("name", MAPS)
def test_heads_of_real_width_agree(name, n, dtype):
    follow(name, draw(name, n, 64, r=64, dtype=dtype))


@on_a_gpu
@pytest.mark.parametrize("causal", [True, False])
def test_whole_mechanisms_agree_with_their_references_in_bfloat16(causal):
    """Features and sums by the kernels, compared with the reference in single precision."""
    for name, how in (("dpfp", {"eps": 1e-4}), ("waves", {"floor": 1e-6, "signed": True})):
        (q, *matrix), (k, *_) = draw(name, 1000, 64, r=64, dtype=torch.bfloat16), draw(name, 1001, 64, r=64)
        k = k[:, :, :1000].detach().bfloat16().requires_grad_()
        v = torch.randn_like(k).requires_grad_()

        def both(q, k, v, *matrix, name=name, how=how, impl):
            phi_q, phi_k = (getattr(feature_map, name)(x, *matrix, **MAPS[name], impl=impl) for x in (q, k))
            return linear_attention.linear_attention(phi_q, phi_k, v, causal=causal, **how, impl=impl)

        found = outcome(lambda *leaves: both(*leaves, impl="triton"), [q, k, v, *matrix])
        single = [x.detach().float().requires_grad_() for x in (q, k, v, *matrix)]
        expected = outcome(lambda *leaves: both(*leaves, impl="reference"), single)
        for one, other in zip(found, expected, strict=True):
            assert (one.float() - other).norm() < 2e-2 * other.norm()


@on_a_gpu
@pytest.mark.parametrize("name", MAPS)
def test_a_graph_records_them(name):
    leaves = draw(name, 512, 64, r=64, dtype=torch.bfloat16)
    assert all(torch.equal(*pair) for pair in replayed(lambda: outcome(by(name, "auto"), leaves)))

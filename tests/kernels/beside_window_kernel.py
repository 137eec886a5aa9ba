"""A window combined with random features, by the kernels of both, against its definition, on a GPU or interpreted.

`test_interpreted.py` runs this file in its own process, because Triton decides at import whether to interpret.
"""

import pytest
import torch

from longspan.attentions import Pattern
from longspan.attentions.scatterbrain import Scatterbrain
from longspan.kernels.favor import beside_window
from longspan.kernels.favor import shape as shapes
from tests.kernels.agreement import assert_agrees, outcome
from tests.kernels.device import DEVICE, on_a_gpu
from tests.kernels.graphs import assert_one_graph, replayed

# As in `favor_kernel.py`; on a GPU windows are computed in half precision only.
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE) if DEVICE == "cpu" else [torch.bfloat16]
AT_LENGTH = pytest.mark.full
SELF = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    """In the interpreter a small tile takes as long as a large one; on a GPU the real tile shapes are kept."""
    if DEVICE == "cpu":
        for name in ("TILES", "CAUSAL_TILES"):
            monkeypatch.setattr(shapes, name, dict.fromkeys(getattr(shapes, name), (64, 64, 4)))


def attending(pattern, by_kernels, monkeypatch, window=9, mask=None):
    """A layer with few features; its `attend` uses the kernels or the definition."""
    torch.manual_seed(0)
    layer = Scatterbrain(32, 2, pattern, window=window, features=20).to(DEVICE)

    def attend(q, k, v):
        monkeypatch.setattr(beside_window, "is_faster", lambda *call: by_kernels)
        return layer.to(torch.float32 if by_kernels else q.dtype).attend(q, k, v, key_mask=mask)

    return attend


def draw(n, dtype, spread=1.0):
    generator = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(2, 2, n, 16, generator=generator) for _ in "qkv")
    return [x.to(DEVICE, dtype).requires_grad_() for x in (spread * q, spread * k, v)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", SELF)
@pytest.mark.parametrize("padded", ["nowhere", pytest.param("right", marks=AT_LENGTH), "holes"])
def test_outputs_and_gradients_are_those_of_the_definition(padded, pattern, dtype, monkeypatch):
    mask = None
    if padded == "right":
        mask = torch.arange(150, device=DEVICE) < torch.tensor([[150], [70]], device=DEVICE)
    if padded == "holes":
        mask = torch.rand(2, 150, generator=torch.Generator().manual_seed(0)).to(DEVICE) < 0.7
    ways = (attending(pattern, fast, monkeypatch, mask=mask) for fast in (True, False))
    assert_agrees(*ways, draw(150, dtype), atol=TOLERANCE[dtype], rtol=0, least=2.0)


@pytest.mark.parametrize("pattern", SELF)
@pytest.mark.parametrize("window", [1, *(pytest.param(w, marks=AT_LENGTH) for w in (2, 129)), 400])
def test_windows_of_one_key_and_of_all_keys_agree(window, pattern, monkeypatch):
    ways = (attending(pattern, fast, monkeypatch, window) for fast in (True, False))
    assert_agrees(*ways, draw(130, DTYPES[-1]), atol=TOLERANCE[DTYPES[-1]], rtol=0, least=2.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", SELF)
@pytest.mark.parametrize("spread", [pytest.param(10.0, marks=AT_LENGTH), 1e4])
def test_huge_tokens_give_finite_outputs_and_gradients(spread, pattern, dtype, monkeypatch):
    for x in outcome(attending(pattern, True, monkeypatch), draw(150, dtype, spread)):
        assert x.isfinite().all()


def test_later_keys_that_are_huge_leave_earlier_rows_alone(monkeypatch):
    attend, (q, k, v) = attending(Pattern.CAUSAL_SELF, True, monkeypatch), draw(150, DTYPES[0])
    changed = torch.cat([k[:, :, :100], 30 * k[:, :, 100:]], dim=2)
    assert torch.equal(attend(q, k, v)[:, :, :100], attend(q, changed, v)[:, :, :100])


def test_a_gpu_takes_the_kernels_and_a_cpu_the_definition():
    q, k, v = draw(150, DTYPES[-1])
    assert beside_window.is_faster(q, k, v, 0.0) == (DEVICE == "cuda")
    assert not beside_window.is_faster(q, k, v, 0.1)


def test_it_goes_into_one_compiled_graph():
    projection = torch.randn(20, 16, device=DEVICE)

    def layer(q, k, v):
        return beside_window.window_beside_favor(q * 1, k, v, projection, left=4, right=4) * 2

    assert_one_graph(layer, [draw(150, DTYPES[0])])


@on_a_gpu
@pytest.mark.parametrize("pattern", SELF)
def test_it_can_be_recorded(pattern, monkeypatch):
    attend, leaves = attending(pattern, True, monkeypatch), draw(300, torch.bfloat16)
    for found, expected in replayed(lambda: outcome(attend, leaves), leaves):
        torch.testing.assert_close(found, expected)

"""FlashAttention called directly: the arguments it gets, with a stand-in that computes pair by pair on a CPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from longspan import attentions
from longspan.attentions import Pattern
from longspan.efficiency.operations import count_operations
from longspan.kernels import block_sparse as engine
from longspan.kernels import sdpa
from longspan.kernels.block_sparse import sliding_window
from longspan.kernels.flops import formulas
from longspan.kernels.packing import Layout

SELF = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


def one_row(q, k, v, causal, left, right):
    """[n h c] each, by the rules torch documents for its kernel."""
    lag = torch.arange(len(k)) - torch.arange(len(q))[:, None]
    seen = (lag <= (0 if causal else len(k))) & (lag >= (-len(k) if left is None else -left))
    seen = seen & (lag <= (len(k) if right is None else right))
    scores = torch.einsum("nhc,mhc->hnm", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hnm,mhc->nhc", scores.masked_fill(~seen, -torch.inf).softmax(dim=-1), v)


def stand_in(
    q, k, v, rows_q, rows_k, most_q, most_k, dropout, causal, debug, window_size_left=None, window_size_right=None
):
    how = (causal, window_size_left, window_size_right)
    if rows_q is None:
        assert most_q == most_k == q.shape[1]
        return (torch.stack([one_row(*row, *how) for row in zip(q, k, v, strict=True)]),)
    assert most_q >= rows_q.diff().max()
    assert most_k >= rows_k.diff().max()
    cut = [x.tensor_split(edges[1:-1].long()) for x, edges in ((q, rows_q), (k, rows_k), (v, rows_k))]
    return (torch.cat([one_row(*row, *how) for row in zip(*cut, strict=True)]),)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Pretend the kernel is available."""
    asked = []

    def kernel(*inputs, **how):
        asked.append(how)
        return stand_in(*inputs, **how)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", kernel)
    monkeypatch.setattr(sdpa, "flash_fits", lambda q, v: True)
    monkeypatch.setattr("longspan.attentions.softmax.flash_fits", lambda q, v: True)
    return asked


@pytest.mark.parametrize("left, right", [(3, 3), (2, 0), (0, 0), (40, 40)])
def test_a_window_is_that_of_the_reference(on_a_gpu, left, right):
    q, k, v = torch.randn(3, 2, 3, 17, 8).double().unbind()
    found = sliding_window(q, k, v, left=left, right=right)
    assert len(on_a_gpu) == 1
    torch.testing.assert_close(found, sliding_window(q, k, v, left=left, right=right, impl="reference"))


def test_it_is_not_asked_for_hidden_keys_or_other_positions(on_a_gpu):
    q, k, v = torch.randn(3, 1, 2, 9, 8).double().unbind()
    mask = torch.arange(9)[None] < 7
    sliding_window(q, k, v, left=2, right=2, key_mask=mask)
    sliding_window(q, k, v, left=2, right=2, positions=torch.arange(9)[None] * 2)
    assert not on_a_gpu


@pytest.mark.parametrize("width, hidden, kernel", [(8, False, "triton"), (80, False, "flash"), (80, True, "triton")])
def test_wide_heads_take_flash_attention_and_others_the_triton_kernel(on_a_gpu, monkeypatch, width, hidden, kernel):
    asked = []
    monkeypatch.setattr(engine, "is_faster", lambda *_: True)
    monkeypatch.setattr(engine, "block_sparse", lambda q, k, v, *_, **rules: asked.append(rules) or v)
    q, k, v = torch.randn(3, 1, 2, 9, width).double().unbind()
    sliding_window(q, k, v, left=2, right=2, key_mask=torch.arange(9)[None] < 7 if hidden else None)
    assert (len(asked), len(on_a_gpu)) == ((1, 0) if kernel == "triton" else (0, 1))


@pytest.mark.parametrize("pattern", SELF)
@pytest.mark.parametrize("spec", ["local(window=3)", "local(window=1)", "softmax"])
def test_packed_rows_are_what_each_row_is_by_itself(on_a_gpu, spec, pattern):
    layer = attentions.get(spec)(16, 2, pattern).double().eval()
    layout = Layout.of_lengths([5, 1, 8])
    q, k, v = torch.randn(3, 14, 2, 8).double().unbind()
    found = layer.attend_packed(q, k, v, layout)
    assert len(on_a_gpu) == 1
    for row in (slice(0, 5), slice(5, 6), slice(6, 14)):
        alone = [x[row].transpose(0, 1)[None] for x in (q, k, v)]
        torch.testing.assert_close(found[row].transpose(0, 1)[None], layer.attend(*alone, key_mask=None))


def test_neighbours_around_a_hole_are_not_taken_for_neighbours(on_a_gpu):
    layer = attentions.get("local(window=1)")(16, 2, Pattern.NONCAUSAL_SELF).double().eval()
    layout = Layout.of_mask(torch.tensor([[True, False, True]]))
    q, k, v = torch.randn(3, 2, 2, 8).double().unbind()
    torch.testing.assert_close(layer.attend_packed(q, k, v, layout), v)
    assert not on_a_gpu


def test_a_counter_of_operations_takes_the_same_path(on_a_gpu):
    q, k, v = torch.randn(3, 1, 2, 64, 8).unbind()
    assert count_operations(lambda: sliding_window(q, k, v, left=1, right=1)) > 0
    assert len(on_a_gpu) == 1


def test_the_operations_of_a_window_are_those_of_its_pairs():
    counted, aten = formulas(), torch.ops.aten
    q = torch.zeros(2, 10, 3, 8)  # [b n h c]
    pairs = sum(min(i, 2) + 1 for i in range(10))
    forward = counted[aten._flash_attention_forward]
    given = (q, q, q, None, None, 10, 10, 0.0, False, False)
    assert forward(*given, window_size_left=2, window_size_right=0) == 2 * 2 * 3 * pairs * 16
    assert forward(*given) == 2 * 2 * 3 * 100 * 16
    rows = torch.tensor([0, 4, 10])
    ragged = (q[0], q[0], q[0], rows, rows, 6, 6, 0.0)
    assert forward(*ragged, False, False, window_size_left=9, window_size_right=9) == 2 * 3 * (16 + 36) * 16
    assert forward(*ragged, True, False) == 2 * 3 * (10 + 21) * 16
    backward = counted[aten._flash_attention_backward]
    given = (q, q, q, q, q, q, None, None, 10, 10, 0.0, False, None, None)
    assert backward(*given, window_size_left=2, window_size_right=0) == 2 * 2 * 3 * pairs * 40


def test_only_half_precision_on_a_gpu_and_widths_of_its_kernel_fit():
    assert not sdpa.flash_fits(torch.zeros(4, 8), torch.zeros(4, 8))
    for dtype, q, v, fit in [
        (torch.bfloat16, 64, 64, True),
        (torch.float16, 256, 256, True),
        (torch.float32, 64, 64, False),
        (torch.bfloat16, 64, 32, False),
        (torch.bfloat16, 12, 12, False),
        (torch.bfloat16, 264, 264, False),
    ]:
        with FakeTensorMode():  # tensors without data, on a device that need not exist
            one, other = (torch.empty(4, width, dtype=dtype, device="cuda") for width in (q, v))
        assert sdpa.flash_fits(one, other) == fit

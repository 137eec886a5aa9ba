"""Linformer: slots along the length, a maximum length, and a context summarised once."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError

NS, NC, CC = Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS, Pattern.CAUSAL_CROSS


def build(spec="linformer(rank=5)", pattern=NS, longest=40, dim=8, heads=2):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, heads, pattern, max_length=longest, max_context=longest).double().eval()


def formula(layer, q, k, v, mask=None):
    """Slot by slot, token by token."""
    e, f = (u.expand(layer.heads, *u.shape[-2:]) for u in (layer.to_key_slots, layer.to_value_slots))
    rows = []
    for b in range(q.shape[0]):
        real = [j for j in range(k.shape[2]) if mask is None or mask[b, j]]
        keys = sum(e[:, j, :, None] * k[b, :, j, None] for j in real)
        values = sum(f[:, j, :, None] * v[b, :, j, None] for j in real)
        rows.append(torch.softmax(q[b] @ keys.mT / q.shape[3] ** 0.5, dim=-1) @ values)
    return torch.stack(rows)


@pytest.mark.parametrize("sharing", ["none", "headwise", "key-value"])
@pytest.mark.parametrize("n, m", [(1, 1), (7, 40), (40, 13)])
def test_outputs_and_gradients_follow_the_formula(sharing, n, m):
    layer = build(f"linformer(rank=5, sharing={sharing!r})", NC)
    q, k, v = (torch.randn(2, 2, length, 4, dtype=torch.float64, requires_grad=True) for length in (n, m, m))
    mask = torch.arange(m) < torch.tensor([[m], [max(1, m - 3)]])
    found, expected = layer.attend(q, k, v, key_mask=mask), formula(layer, q, k, v, mask)
    torch.testing.assert_close(found, expected)
    leaves = [q, k, v, *{layer.to_key_slots, layer.to_value_slots}]
    w = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad((found * w).sum(), leaves), torch.autograd.grad((expected * w).sum(), leaves), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_sharing_decides_the_number_of_parameters():
    sizes = {
        sharing: sum(
            p.numel() for name, p in build(f"linformer(sharing={sharing!r})").named_parameters() if "slots" in name
        )
        for sharing in ("none", "headwise", "key-value")
    }
    assert sizes == {"none": 2 * 2 * 40 * 128, "headwise": 2 * 40 * 128, "key-value": 40 * 128}


@pytest.mark.parametrize("pattern", [NS, NC, CC])
def test_padding_adds_nothing_to_any_slot(pattern):
    layer = build(pattern=pattern)
    x = torch.randn(2, 20, 8, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor([[20], [11]])
    padded = torch.cat([x, torch.zeros(2, 20, 8, dtype=torch.float64)], dim=1).masked_fill(~mask[..., None], 1e4)
    if pattern is NS:
        short, long = layer(x, mask=mask[:, :20]), layer(padded, mask=mask)
    else:
        short, long = layer(x, x, context_mask=mask[:, :20]), layer(x, padded, context_mask=mask)
    torch.testing.assert_close(long[0, :20], short[0])
    torch.testing.assert_close(long[1, :11], short[1, :11])


def test_an_empty_context_gives_zero_and_finite_gradients():
    layer = build(pattern=NC)
    q, k, v = (torch.randn(2, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.tensor([[True] * 6, [False] * 6])
    y = layer.attend(q, k, v, key_mask=mask)
    assert not y[1].any()
    for gradient in torch.autograd.grad(y.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert not gradient[1].any()


def test_decoding_reads_the_context_once():
    layer = build(pattern=CC)
    x, context = torch.randn(3, 9, 8, dtype=torch.float64), torch.randn(3, 31, 8, dtype=torch.float64)
    mask = torch.rand(3, 31) < 0.7
    full = layer(x, context, context_mask=mask)
    y, state = layer.prefill(x[:, :4], context, context_mask=mask)
    torch.testing.assert_close(y, full[:, :4])
    assert state.nbytes == 2 * 3 * 5 * 8 * 8  # keys and values, batch, rank, width, bytes
    state = state.select(torch.tensor([2, 0]))
    for t in range(4, 9):
        y_t, state = layer.step(x[[2, 0], t], state)
        torch.testing.assert_close(y_t, full[[2, 0], t])


@pytest.mark.parametrize("pattern, name", [(NS, "max_length"), (NC, "max_context"), (CC, "max_context")])
def test_the_length_must_be_known(pattern, name):
    with pytest.raises(UsageError, match=f"{name}="):
        attentions.get("linformer")(8, 2, pattern)


def test_a_longer_sequence_is_refused():
    with pytest.raises(UsageError, match="at most 40 keys, got 41"):
        build()(torch.randn(1, 41, 8, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [1e4, -1e4, 0.5])
def test_extreme_inputs_stay_finite(dtype, fill):
    layer = build(longest=1000).to(dtype)
    assert layer(torch.full((2, 1000, 8), fill, dtype=dtype)).isfinite().all()

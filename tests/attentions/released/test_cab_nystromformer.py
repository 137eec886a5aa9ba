"""CAB's Nystromformer: scaled twice, short segments first, and masks that belong to other rows."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.released.cab_nystromformer import tile_heads_first
from longspan.core.errors import UsageError


def build(spec="cab_nystromformer(landmarks=6)", dim=8, heads=2):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, heads, Pattern.NONCAUSAL_SELF).double().eval()


def tensors(n, b=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(b, 2, n, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


def released(q, k, v, r, mask=None, taps=None):
    """Heads and rows as one axis, as in the release, with the whole mask repeated once per head."""
    b, h, n, c = q.shape
    q, k, v = (u.flatten(0, 1) for u in (q, k, v))
    hidden = torch.zeros(b * h, 1, n, dtype=torch.bool) if mask is None else ~torch.cat([mask] * h)[:, None]
    k, v = (u * ~hidden.mT for u in (k, v))
    q, k = q / c**0.5, k / c**0.5
    if n <= r:
        y = torch.softmax((q @ k.mT).masked_fill(hidden, -torch.inf), dim=-1) @ v
    else:
        size, longer = divmod(n, r)
        sizes = [size] * (r - longer) + [size + 1] * longer
        means_q, means_k = (torch.stack([s.mean(dim=1) for s in u.split(sizes, dim=1)], dim=1) for u in (q, k))
        a = torch.softmax(means_q @ means_k.mT, dim=-1)
        z, one = a.mT / a.sum(dim=-2).max(), torch.eye(r, dtype=a.dtype)
        for _ in range(6):
            z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
        seen = torch.softmax((means_q @ k.mT).masked_fill(hidden, -torch.inf), dim=-1)
        y = torch.softmax(q @ means_k.mT, dim=-1) @ z @ (seen @ v)
    if taps is not None:
        values, reach = v.unflatten(0, (b, h)), len(taps[0]) // 2
        for shift in range(-reach, reach + 1):
            source = [t for t in range(n) if 0 <= t + shift < n]
            moved = torch.zeros_like(values)
            moved[:, :, source] = values[:, :, [t + shift for t in source]]
            y = y + (taps[:, shift + reach, None, None] * moved).flatten(0, 1)
    return y.unflatten(0, (b, h))


@pytest.mark.parametrize("n", [1, 6, 7, 24, 29])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("conv", [0, 3])
def test_it_computes_what_was_released_in_outputs_and_gradients(n, masked, conv):
    layer = build(f"cab_nystromformer(landmarks=6, conv={conv})")
    q, k, v = tensors(n)
    mask = torch.arange(n) < torch.tensor([[n], [(n + 1) // 2], [max(1, n - 2)]]) if masked else None
    found = layer.attend(q, k, v, key_mask=mask, query_mask=mask)
    taps = layer.conv.weight[:, 0, :, 0] if conv else None
    expected = released(q, k, v, 6, mask, taps)
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad((y * w).sum(), (q, k, v)) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_the_authors_code_divides_by_the_root_and_masks_the_row_itself():
    layer, (q, k, v) = build("cab_nystromformer(landmarks=6, code=authors)"), tensors(5)
    mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
    weights = (q @ k.mT / 2).masked_fill(~mask[:, None, None], -torch.inf).softmax(dim=-1)
    found = layer.attend(q, k, v, key_mask=mask, query_mask=mask)
    real = mask[:, None].expand(-1, 2, -1)
    torch.testing.assert_close(found[real], (weights @ v)[real])


def test_a_head_is_masked_as_the_row_it_is_mistaken_for():
    mask = torch.eye(3, dtype=torch.bool)
    rows = tile_heads_first(mask, 2).long().argmax(dim=-1)
    assert rows.tolist() == [[0, 1], [2, 0], [1, 2]]  # (2 row + head) modulo 3
    assert torch.equal(tile_heads_first(mask, 1)[:, 0], mask)


def test_logits_are_divided_by_the_width_of_a_head():
    q, k, v = (u.detach() for u in tensors(5))
    colder = torch.softmax(q @ k.mT / 4, dim=-1) @ v
    torch.testing.assert_close(build().attend(q, k, v), colder)


def test_rows_of_a_batch_change_one_another_even_without_padding():
    layer, x = build(), torch.randn(3, 32, 8, dtype=torch.float64) * torch.tensor([1.0, 20.0, 90.0])[:, None, None]
    assert not torch.allclose(layer(x)[:1], layer(x[:1]))


@pytest.mark.parametrize("n", [1, 6, 50])
def test_a_row_without_tokens_is_finite_forward_and_backward(n):
    x = torch.randn(2, n, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True], [False]]).expand(2, n)
    y = build("cab_nystromformer(landmarks=6, conv=3)")(x, mask=mask)
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("spec, words", [("landmarks=0", "at least 1 landmark"), ("conv=4", "odd number")])
def test_impossible_options_are_refused(spec, words):
    with pytest.raises(UsageError, match=words):
        build(f"cab_nystromformer({spec})")

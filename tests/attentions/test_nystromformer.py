"""Nystromformer: landmarks over real tokens, softmax where there are few, and an inverse computed per matrix."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from longspan.kernels.pseudo_inverse import pseudo_inverse

NS, NC = Pattern.NONCAUSAL_SELF, Pattern.NONCAUSAL_CROSS


def build(spec, pattern=NS, dim=8, heads=2):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, heads, pattern).double().eval()


def tensors(n, m, b=2, h=2, c=4, e=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, n, c), (b, h, m, c), (b, h, m, e))
    return [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]


def plain_softmax(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def means(x, r):
    """The means of r runs: token p of n belongs to run floor(p r / n)."""
    runs = [[p for p in range(len(x)) if p * r // len(x) == run] for run in range(r)]
    return torch.stack([x[run].mean(dim=0) for run in runs])


def formula(q, k, v, r, iterations=6):
    """One head of one row without padding, as the paper writes it."""
    if min(len(q), len(k)) <= r:
        return plain_softmax(q, k, v)
    scale = q.shape[-1] ** 0.25
    q, k = q / scale, k / scale
    landmark_q, landmark_k = means(q, r), means(k, r)
    f, a, b = (torch.softmax(s, dim=-1) for s in (q @ landmark_k.T, landmark_q @ landmark_k.T, landmark_q @ k.T))
    z, one = a.T / (a.sum(dim=0).max() * a.sum(dim=1).max()), torch.eye(r, dtype=q.dtype)
    for _ in range(iterations):
        z = 0.25 * z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z)))
    return f @ z @ b @ v


@pytest.mark.parametrize("n, m", [(24, 24), (23, 23), (41, 19), (9, 40), (3, 50), (50, 3), (1, 1)])
def test_outputs_and_gradients_follow_the_formula(n, m):
    q, k, v = tensors(n, m)
    found = build("nystromformer(landmarks=6)", NS if n == m else NC).attend(q, k, v)
    expected = torch.stack([torch.stack([formula(q[b, h], k[b, h], v[b, h], 6) for h in range(2)]) for b in range(2)])
    torch.testing.assert_close(found, expected)
    w = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad((found * w).sum(), (q, k, v)),
        torch.autograd.grad((expected * w).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


LENGTHS = [(30, 30), (17, 30), (6, 30), (30, 6), (5, 4), (1, 9), (8, 0)]  # number of real queries and keys of each row


def test_each_row_of_a_ragged_batch_is_what_it_is_alone():
    """Rows with many tokens, few queries, few keys and no keys, in one batch."""
    q, k, v = tensors(33, 35, b=len(LENGTHS))
    query_mask, key_mask = (
        torch.arange(width) < torch.tensor(lengths)[:, None]
        for width, lengths in zip((33, 35), zip(*LENGTHS, strict=True), strict=True)
    )
    junk = [
        u.detach().masked_fill(~m[:, None, :, None], 1e4) for u, m in ((q, query_mask), (k, key_mask), (v, key_mask))
    ]
    y = build("nystromformer(landmarks=6)", NC).attend(*junk, key_mask=key_mask, query_mask=query_mask)
    for row, (n, m) in enumerate(LENGTHS):
        if m == 0:
            assert not y[row].any()
            continue
        alone = torch.stack([formula(q[row, h, :n], k[row, h, :m], v[row, h, :m], 6) for h in range(2)])
        torch.testing.assert_close(y[row, :, :n], alone)


@pytest.mark.parametrize("conv", [0, 5])
def test_the_amount_of_padding_changes_nothing(conv):
    layer = build(f"nystromformer(landmarks=6, conv={conv})")
    x = torch.randn(2, 20, 8, dtype=torch.float64)
    mask = torch.arange(20) < torch.tensor([[20], [5]])
    alone = layer(x, mask=mask)
    padded = torch.cat([x, torch.full((2, 30, 8), 1e4, dtype=torch.float64)], dim=1)
    padded[1, 5:20] = -1e4
    wider = layer(padded, mask=torch.cat([mask, torch.zeros(2, 30, dtype=torch.bool)], dim=1))
    torch.testing.assert_close(wider[0, :20], alone[0])
    torch.testing.assert_close(wider[1, :5], alone[1, :5])


def test_holes_and_left_padding_are_cut_out():
    layer = build("nystromformer(landmarks=6)")
    x = torch.randn(1, 40, 8, dtype=torch.float64)
    mask = torch.rand(1, 40, generator=torch.Generator().manual_seed(0)) < 0.7
    mask[:, :4] = False
    torch.testing.assert_close(layer(x, mask=mask)[0, mask[0]], layer(x[:, mask[0]])[0])


def test_a_row_without_keys_is_zero_and_its_gradient_finite():
    q, k, v = tensors(20, 20)
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[1] = False
    y = build("nystromformer(landmarks=6)").attend(q, k, v, key_mask=mask, query_mask=mask)
    assert not y[1].any()
    for gradient in torch.autograd.grad(y.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert not gradient[1].any()


def test_neighbours_in_the_batch_do_not_matter():
    x = torch.randn(3, 32, 8, dtype=torch.float64) * torch.tensor([5.0, 10.0, 50.0])[:, None, None]
    layer = build("nystromformer(landmarks=4)")
    torch.testing.assert_close(layer(x)[:1], layer(x[:1]))


def test_enough_iterations_give_the_inverse():
    a = torch.softmax(
        4 * torch.eye(8, dtype=torch.float64) + 0.3 * torch.randn(1, 2, 8, 8, dtype=torch.float64), dim=-1
    )
    torch.testing.assert_close(pseudo_inverse(a, 20), torch.linalg.inv(a))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [1e4, -1e4, 0.5])
def test_extreme_inputs_stay_finite(dtype, fill):
    layer = build("nystromformer(landmarks=8, conv=3)").to(dtype)
    x = torch.full((2, 100, 8), fill, dtype=dtype)
    assert layer(x).isfinite().all()
    assert layer(x * torch.randn_like(x).sign()).isfinite().all()


def test_half_precision_is_computed_in_single_precision():
    q, k, v = (u.detach().bfloat16() for u in tensors(40, 40))
    layer = build("nystromformer(landmarks=6)")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer.attend(q, k, v)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, layer.attend(q.float(), k.float(), v.float()).bfloat16())


@pytest.mark.parametrize(
    "spec, pattern, words",
    [
        ("nystromformer(landmarks=0)", NS, "at least 1"),
        ("nystromformer(conv=4)", NS, "odd number"),
        ("nystromformer(conv=5)", NC, "leave it out"),
        ("nystromformer", Pattern.CAUSAL_SELF, "cannot run as causal_self"),
    ],
)
def test_impossible_options_are_refused(spec, pattern, words):
    with pytest.raises(UsageError, match=words):
        build(spec, pattern)

"""LRA's BigBird: a row padded with visible zeros, random blocks from a short range, a mask that only lowers scores."""

import pytest
import torch
import torch.nn.functional as F

from longspan.attentions import Pattern
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_same, tensors


def build(options="", seed=0):
    return headwise(f"lra_bigbird({options})", Pattern.NONCAUSAL_SELF, channels=4, seed=seed)


def candidates(u, g):
    """Blocks of 64 that block u of g may draw from: outside the window, within the first 16, not the first or last."""
    if g > 16 and u == g - 3:
        return set(range(1, 12))
    if g > 16 and u == g - 2:
        return set(range(1, 13))
    return {w for w in range(1, min(16, g - 1)) if abs(u - w) > 1}


@pytest.mark.parametrize("g", [8, 15, 16, 17, 18, 33])
def test_random_blocks_are_three_different_ones_from_the_first_1024_tokens(g):
    lists = build().lists(g)
    assert lists.shape == (2, g, 8)
    for head in range(2):
        for u in range(1, g - 1):
            *fixed, a, b, c = lists[head, u].tolist()
            assert fixed == [0, g - 1, u - 1, u, u + 1]
            assert len({a, b, c}) == 3
            assert {a, b, c} <= candidates(u, g)


def test_every_candidate_is_drawn_sooner_or_later():
    g = 19
    seen = [set() for _ in range(g)]
    for seed in range(60):
        for u, drawn in enumerate(build(seed=seed).lists(g)[..., 5:].transpose(0, 1).flatten(1).tolist()):
            seen[u] |= set(drawn)
    assert all(seen[u] == candidates(u, g) for u in range(1, g - 1))


def law(layer, q, k, v, mask):
    """All scores of the zero-padded row, lowered and hidden as described."""
    n, s = q.shape[2], layer.block
    g = n // s + 1
    q, k, v = (F.pad(u, (0, 0, 0, g * s - n)) for u in (q, k, v))
    lowered = F.pad(torch.zeros(q.shape[0], n) if mask is None else -1e4 * (~mask).double(), (0, g * s - n))
    lists, block = layer.lists(g), torch.arange(g * s) // s
    seen = (lists[:, block][:, :, None, :] == block[:, None]).any(dim=-1)
    seen[:, (block == 0) | (block == g - 1)] = True
    scores = q @ k.mT / q.shape[-1] ** 0.5 + lowered[:, None, None]
    y = (torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1) @ v)[:, :, :n]
    return y if mask is None else y * mask[:, None, :, None]


@pytest.mark.parametrize("n", [1, 3, 4, 11, 12, 13, 40])
@pytest.mark.parametrize("masked", [False, True])
def test_outputs_and_gradients_follow_the_description(n, masked):
    layer = build("block=4")
    q, k, v = leaves = tensors(2, 2, n)
    mask = torch.arange(n) < torch.tensor([[n], [(n + 1) // 2]]) if masked else None
    found = layer.attend(q, k, v, key_mask=mask, query_mask=mask)
    assert_same(found, law(layer, q, k, v, mask), leaves)


def test_what_fills_the_row_up_takes_its_share():
    v = torch.ones(1, 2, 4, 4, dtype=torch.float64)
    y = build("block=4").attend(torch.zeros_like(v), torch.zeros_like(v), v)
    torch.testing.assert_close(y, torch.full_like(y, 0.5))  # four tokens of 1, and a whole block of 0


def test_padding_is_lowered_not_hidden():
    q, k, v = (u.detach() for u in tensors(1, 2, 7))
    k[:], padded = 0, torch.zeros(1, 7, dtype=torch.bool)
    k[..., 0], q[..., 0] = 1e3, 40.0  # all padded keys together still outweigh the zeros that fill the row
    y = build("block=4").attend(q, k, v, key_mask=padded)
    torch.testing.assert_close(y[:, :, 0], v.mean(dim=2))


def test_outputs_at_padded_tokens_are_zero_and_there_is_no_dropout():
    x, mask = torch.randn(2, 30, 8, dtype=torch.float64), torch.arange(30) < torch.tensor([[30], [9]])
    layer = build("block=4").train()
    layer.dropout = 0.5
    assert torch.equal(layer(x), layer(x))
    y = layer(x, mask=mask)
    torch.testing.assert_close(y[1, 9:], layer.out.bias.expand(21, -1))


@pytest.mark.parametrize("options", ["block=0", "random=-1"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="got"):
        build(options)

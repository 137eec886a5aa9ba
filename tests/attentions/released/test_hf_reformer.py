"""Hugging Face's Reformer: chunks that mix buckets, token by token, and the leak that makes it a twin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.released.hf_reformer import HFReformer
from longspan.core.errors import UsageError
from tests.attentions import parity

NS, CS = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF


def build(spec, pattern=CS, dim=12, heads=3, seed=0):
    torch.manual_seed(seed)
    layer = attentions.get(spec)(dim, heads, pattern).double().eval()
    assert isinstance(layer, HFReformer)
    return layer


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_hand(layer, z, v, mask):
    """One token of one row and head at a time."""
    rows, (rounds, chunk) = torch.zeros_like(v), (layer.rotations.shape[2], layer.chunk)
    buckets = layer.hash(z, mask)
    for b in range(z.shape[0]):
        for h in range(z.shape[1]):
            n, chunks = z.shape[2], []
            for r in range(rounds):
                order = sorted(range(n), key=lambda i, r=r: (buckets[b, h, r, i].item(), i))
                chunks += [order[start : start + chunk] for start in range(0, n, chunk)]
            for i in range(n):
                seen = []
                for g in (g for g, members in enumerate(chunks) if i in members):
                    seen += [j for step in layer.neighbours for j in chunks[(g + step) % len(chunks)] if j != i]
                seen = [j for j in seen if mask[b, j] and (j < i or layer.pattern is NS)] or [i]
                k = torch.nn.functional.normalize(z[b, h, seen], dim=-1)
                rows[b, h, i] = torch.softmax(k @ z[b, h, i], dim=0) @ v[b, h, seen]
    return rows


@pytest.mark.parametrize("pattern", [NS, CS])
@given(
    n=st.integers(1, 20),
    rounds=st.integers(1, 3),
    chunk=st.integers(1, 8),
    before=st.integers(0, 2),
    after=st.integers(0, 2),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=8)
def test_chunks_of_sorted_tokens_attend(pattern, n, rounds, chunk, before, after, seed):
    options = f"rounds={rounds}, buckets=6, chunk={chunk}, chunks_before={before}, chunks_after={after}"
    layer = build(f"hf_reformer({options})", pattern, dim=8, heads=2, seed=seed)
    z, v = (randn(2, 2, n, 4, seed=seed + k) for k in (1, 2))
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(seed)) < 0.8
    # keys are guarded against |z| = 0
    torch.testing.assert_close(layer.attend(z, v, mask=mask), by_hand(layer, z, v, mask), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", sorted(parity.SHIPPED.glob("reformer__*.npz")), ids=lambda path: path.stem)
def test_tokens_hash_into_the_recorded_buckets(path):
    vector = parity.read(path)
    sizes = vector.meta["hyperparameters"]
    layer = build(f"hf_reformer(rounds={sizes['hashes']}, buckets={sizes['buckets']})", dim=16, heads=2)
    layer.rotations.copy_(vector.arrays["param_rotations"])
    offset = torch.arange(sizes["hashes"])[:, None] * (sizes["buckets"] + (vector.key_mask is not None))
    assert torch.equal(layer.hash(vector.arrays["q"], vector.key_mask) + offset, vector.arrays["param_buckets"])


def test_later_tokens_choose_what_earlier_ones_see():
    worst = 0.0
    for seed in range(12):
        layer, x = build("hf_reformer(buckets=4, chunk=4)", seed=seed), randn(2, 40, 12, seed=seed)
        changed = torch.cat([x[:, :25], 3 * randn(2, 15, 12, seed=seed + 100)], dim=1)
        worst = max(worst, (layer(x) - layer(changed))[:, :25].abs().max().item())
    assert worst > 0.01


def test_it_is_decoded_from_the_history():
    layer, x = build("hf_reformer(buckets=4, chunk=4)"), randn(2, 9, 12)
    _, state = layer.prefill(x[:, :8])
    y, _ = layer.step(x[:, 8], state)
    torch.testing.assert_close(y, layer(x)[:, 8])


@pytest.mark.parametrize("options", ["rounds=0", "chunk=0", "buckets=5", "chunks_before=-1"])
def test_impossible_options_are_refused(options):
    with pytest.raises(UsageError, match="got"):
        build(f"hf_reformer({options})")

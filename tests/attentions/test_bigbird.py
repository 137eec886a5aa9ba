"""BigBird: window, first and last blocks, random blocks; a choice that neither padding nor the future can change."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.attentions import Pattern
from longspan.attentions.bigbird import TABLE
from longspan.core.errors import UsageError
from tests.attentions.agreement import headwise
from tests.attentions.allowed import assert_attend_is, assert_steps_continue, holes

PATTERNS = [Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF]


def picked(draws, candidates):
    """Drawing without replacement, from an explicit list."""
    left = list(candidates)
    return {left.pop(draw % len(left)) for draw in draws.tolist() if left}


@given(
    n=st.integers(1, 40),
    block=st.integers(1, 5),
    random=st.integers(0, 4),
    pattern=st.sampled_from(PATTERNS),
    seed=st.integers(0, 1_000),
)
@settings(deadline=None, max_examples=25)
def test_outputs_gradients_and_weights_follow_the_pattern(n, block, random, pattern, seed):
    layer = headwise(f"bigbird(block={block}, random={random})", pattern, channels=4, seed=seed)
    mask = holes(2, n, seed)
    last = [(n - 1) // block] * 2
    if mask is not None:
        last = [max([j for j in range(n) if mask[row, j]], default=0) // block for row in range(2)]

    def sees(row, head, i, j):
        u, w, end = i // block, j // block, last[row]
        draws = layer.draws[head, u]
        if pattern.causal:
            return j <= i and (w in (0, u - 1, u) or w in picked(draws, range(1, u - 1)))
        rest = [x for x in range(1, end) if abs(x - u) > 1]
        if u > end:  # padding, which has its own lists but no effect
            rest = [*range(1, u - 1)]
        return u in (0, end) or w in (0, end) or abs(u - w) <= 1 or w in picked(draws, rest)

    assert_attend_is(layer, sees, n, seed)


def test_random_blocks_make_a_difference_and_differ_between_heads_and_blocks():
    x = torch.randn(1, 80, 12, dtype=torch.float64)
    layer = headwise("bigbird(block=4, random=3)", Pattern.NONCAUSAL_SELF)
    bare = headwise("bigbird(block=4, random=0)", Pattern.NONCAUSAL_SELF)
    bare.load_state_dict({**layer.state_dict(), "draws": bare.draws})
    assert not torch.allclose(layer(x)[:, 20:60], bare(x)[:, 20:60])
    assert layer.draws.shape == (2, TABLE, 3)
    assert len(layer.draws.unique()) > 0.99 * layer.draws.numel()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_change_of_precision_leaves_the_random_blocks_as_they_are(dtype):
    layer = headwise("bigbird", Pattern.NONCAUSAL_SELF)
    before = layer.draws.clone()
    assert torch.equal(layer.to(dtype).draws, before)


@given(st.integers(1, 60), st.integers(0, 40), st.integers(0, 100))
@settings(deadline=None, max_examples=25)
def test_appended_padding_changes_no_real_row(n, more, seed):
    layer = headwise("bigbird(block=4)", Pattern.NONCAUSAL_SELF, seed=seed)
    x = torch.randn(1, n + more, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[:, n:] *= 1e4
    mask = torch.arange(n + more)[None] < n
    torch.testing.assert_close(layer(x, mask=mask)[:, :n], layer(x[:, :n]))


def test_the_width_of_the_batch_would_change_what_real_tokens_see(monkeypatch):
    q, k, v = torch.randn(3, 1, 2, 40, 6, dtype=torch.float64).unbind()
    mask = torch.arange(40)[None] < 22
    layer = headwise("bigbird(block=4)", Pattern.NONCAUSAL_SELF)
    alone = layer.attend(q[:, :, :22], k[:, :, :22], v[:, :, :22])
    for last, same in ((5, True), (9, False)):
        monkeypatch.setattr(layer, "last_blocks", lambda *_, last=last: torch.tensor([[last]]))
        found = layer.attend(q, k, v, key_mask=mask)[:, :, :22]
        assert torch.allclose(found, alone) is same


@pytest.mark.parametrize("options", ["block=2", "block=3, random=1", "block=2, random=0", "block=64"])
def test_decoding_continues_any_prefix(options):
    assert_steps_continue(headwise(f"bigbird({options})", Pattern.CAUSAL_SELF), n=23)


@pytest.mark.parametrize("spec", ["block=0", "random=-1"])
def test_impossible_options_are_refused(spec):
    with pytest.raises(UsageError, match="got"):
        headwise(f"bigbird({spec})", Pattern.CAUSAL_SELF)

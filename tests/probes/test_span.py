"""The attention span is a mean distance, however the weights are obtained, and padding never counts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.encoder_classifier import EncoderClassifier, Sizes
from longspan.probes.matrices import Heard, attribution, listening, matrix, slots_of
from longspan.probes.span import span


def everything(n):
    return torch.arange(n), torch.ones(n, dtype=torch.bool)


@settings(deadline=None)
@given(st.integers(1, 80))
def test_uniform_attention_has_the_known_span(n):
    queries, counted = everything(n)
    found = span(torch.full((2, n, n), 1 / n), queries, counted)
    torch.testing.assert_close(found, torch.full((2,), (n * n - 1) / (3 * n)))


@settings(deadline=None)
@given(st.integers(1, 40))
def test_attention_to_oneself_has_no_span(n):
    queries, counted = everything(n)
    assert span(torch.eye(n)[None], queries, counted) == 0


def test_attention_to_a_fixed_distance_has_that_span():
    queries, counted = everything(30)
    weights = torch.zeros(1, 30, 30)
    weights[0, queries, (queries + 7) % 30] = 1  # the last seven wrap around
    assert span(weights[:, :23], queries[:23], counted) == 7
    assert span(weights[:, 23:], queries[23:], counted) == 23


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=30), st.integers(0, 2**31))
def test_tokens_that_do_not_count_change_nothing(counts, seed):
    counted = torch.tensor(counts)
    if not counted.any():
        return
    weights = torch.rand(1, len(counts), len(counts), generator=torch.Generator().manual_seed(seed))
    queries = counted.nonzero()[:, 0]
    changed = weights.masked_fill(~counted, 9.0)
    before, after = (span(one[:, queries], queries, counted) for one in (weights, changed))
    torch.testing.assert_close(before, after)


def slot(spec, dim=8):
    torch.manual_seed(0)
    return attentions.get(spec)(dim, 2, Pattern.NONCAUSAL_SELF, max_length=64).eval()


@pytest.mark.parametrize("window", [1, 3, 6])
def test_gradients_find_nothing_outside_a_local_window(window):
    n, queries = 24, torch.tensor([0, 5, 23])
    found = attribution(Heard(slot(f"local(window={window})"), torch.randn(1, n, 8), None), queries, seed=0)
    far = (queries[:, None] - torch.arange(n)).abs() > window
    assert found[far].abs().max() == 0
    assert (found[~far] > 0).all()
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(3))


@pytest.mark.parametrize("spec", ["softmax", "linear", "s4d", "fnet"])
def test_gradients_of_any_mechanism_are_shares(spec):
    found = attribution(Heard(slot(spec), torch.randn(1, 16, 8), None), torch.arange(16), seed=0)
    assert found.min() >= 0
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(16))


def test_gradients_see_no_padding():
    mask = torch.arange(16)[None] < 10
    found = attribution(Heard(slot("softmax"), torch.randn(1, 16, 8), mask), torch.arange(10), seed=0)
    assert found[:, 10:].abs().max() == 0


def encoder(pooling, layers=2):
    torch.manual_seed(0)
    sizes = Sizes(dim=8, heads=2, layers=layers, mlp=8, dropout=0.0, attention_dropout=0.0, pooling=pooling)
    return EncoderClassifier(attentions.get("softmax"), sizes, vocabulary=20, classes=3, length=32).eval()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_every_layer_is_heard_and_padding_changes_no_weight(pooling, lengths):
    """Rows packed with others have the same matrices as alone, also in a last layer of which one row is read."""
    model, longest = encoder(pooling), max(lengths)
    tokens = torch.randint(1, 20, (len(lengths), longest), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), listening(model) as together:
        model(tokens, lengths)
    assert [one.slot for one in together] == list(slots_of(model))
    first = pooling == "cls"
    for row, length in enumerate(lengths):
        with torch.no_grad(), listening(model) as alone:
            model(tokens[row : row + 1, :length], [length])
        for one, other in zip(together, alone, strict=True):
            own, padded = matrix(other), matrix(one.row(row))
            assert own is not None
            assert padded is not None
            n = length + first
            torch.testing.assert_close(own, padded[:, :, :n, :n])
            assert padded[..., n:].abs().sum() == 0


def test_listening_leaves_the_model_as_it_was():
    model, tokens = encoder("cls"), torch.randint(1, 20, (2, 9))
    before, keys = model(tokens, [9, 4]), [set(vars(one)) for one in slots_of(model)]
    with listening(model) as heard:
        torch.testing.assert_close(model(tokens, [9, 4]), before)
    count = len(heard)
    torch.testing.assert_close(model(tokens, [9, 4]), before)
    assert len(heard) == count
    assert [set(vars(one)) for one in slots_of(model)] == keys

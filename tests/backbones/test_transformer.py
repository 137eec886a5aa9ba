"""The encoder-decoder: CAB's exact parameter counts, nothing from the future, stepwise decoding equals the forward."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Attention, Pattern
from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.backbones.greedy import Limits
from longspan.backbones.slots import Slots, filled
from longspan.backbones.transformer import Sizes, Transformer
from longspan.core.errors import UsageError
from tests.attentions.cases import each_case
from tests.backbones.representatives import one_of_each_kind

NS, CS, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS
TINY = Sizes(
    dim=12,
    heads=2,
    layers=2,
    mlp=16,
    dropout=0.0,
    attention_dropout=0.0,
    source_places=24,
    target_places=20,
    longest=12,
    shortest=3,
)
VOCABULARY = 23
CAUSAL = [(spec, pattern) for spec, pattern in each_case() if pattern in (CS, CC)]
S4D = "s4d(bidirectional=False, channels=8, init=inv, output=linear, tied=True)"


def build(spec="softmax", *patterns, sizes=TINY, vocabulary=VOCABULARY, seed=0):
    torch.manual_seed(seed)
    slots = Slots(attentions.get(spec), frozenset(patterns))
    return Transformer(slots, sizes, vocabulary=vocabulary).double().eval()


def tokens(rows, length, seed):
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


# --------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    "spec, pattern, expected",
    [
        ("softmax", NS, 123_706_880),
        ("longshort(landmarks=16, window=15)", NS, 124_113_152),
        *(("abc(slots=64)", pattern, 123_756_032) for pattern in (NS, CS, CC)),
        *((S4D, pattern, 131_590_016) for pattern in (NS, CS)),
        ("cab_longshort", CS, 126_886_448),
        *((spec, NS, 123_706_880) for spec in ("local", "cosformer", "cab_lara", "performer", "probsparse")),
        ("performer", CC, 123_706_880),
    ],
)
def test_the_network_has_the_parameters_of_cabs_tables_to_the_last_one(spec, pattern, expected):
    with torch.device("meta"):
        model = Transformer(Slots(attentions.get(spec), frozenset({pattern})), Sizes(), vocabulary=50_265)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_nothing_is_tied_and_the_first_weights_are_drawn_as_stated():
    torch.manual_seed(0)
    sizes = Sizes(dim=64, heads=4, layers=1, mlp=128, source_places=300, target_places=200, longest=100, shortest=0)
    model = Transformer(attentions.get("softmax"), sizes, vocabulary=999)
    for matrix in (model.source.embedding.weight, model.target.embedding.weight, model.out.weight):
        assert abs(matrix.detach().std().item() * 64**0.5 - 1) < 0.02
    for matrix in (model.source.positions, model.target.positions):
        assert abs(matrix.detach().std().item() * 64**0.5 - 1) < 0.05
    attention = model.decoder[0].cross
    assert (
        attention.query.weight.abs().max()
        <= (6 / 128 / 2) ** 0.5
        < attention.out.weight.abs().max()
        <= (6 / 128) ** 0.5
    )
    assert not attention.query.bias.any()
    matrices = [model.source.embedding.weight, model.target.embedding.weight, model.out.weight]
    assert len({matrix.data_ptr() for matrix in matrices}) == 3


# --------------------------------------------------------------------------------------------------------------- slots


@pytest.mark.parametrize("pattern", [NS, CS, CC])
def test_replacing_one_pattern_leaves_the_slots_of_the_others_untouched(pattern):
    plain, replaced = build(), build("abc", pattern)
    patterns = {"encoder.{}.attention": NS, "decoder.{}.attention": CS, "decoder.{}.cross": CC}
    expected = {
        name.format(layer): f"{'ABC' if own is pattern else 'Softmax'} ({own})"
        for name, own in patterns.items()
        for layer in range(TINY.layers)
    }
    assert filled(replaced) == expected
    shapes, before = ({n: p.shape for n, p in model.named_parameters()} for model in (replaced, plain))
    others = {name for name in before if not any(n in name for n, own in expected.items() if own.startswith("ABC"))}
    assert {name: shapes[name] for name in others} == {name: before[name] for name in others}


def test_every_slot_is_asked_for_once_with_its_pattern_and_its_lengths():
    asked = []

    def factory(dim, heads, pattern, **shell):
        asked.append((pattern, shell["max_length"], shell.get("max_context")))
        return attentions.get("softmax")(dim, heads, pattern, **shell)

    Transformer(factory, TINY, vocabulary=VOCABULARY)
    assert asked == [(NS, 24, None)] * 2 + [(CS, 20, None), (CC, 20, 24)] * 2


# ----------------------------------------------------------------------------------------------------------- causality


@pytest.mark.parametrize("spec, pattern", one_of_each_kind(CAUSAL))
def test_future_words_never_change_what_is_said_of_the_past(spec, pattern):
    model = build(spec, pattern)
    source, target = tokens(2, 17, seed=1), tokens(2, 11, seed=2)
    before = model(source, [17, 9], target)
    for first in (1, 6, 10):
        changed = target.clone()
        changed[:, first:] = (changed[:, first:] + 1) % VOCABULARY
        after = model(source, [17, 9], changed)
        torch.testing.assert_close(after[:, :first], before[:, :first])
        assert not torch.allclose(after[:, first:], before[:, first:])


@pytest.mark.parametrize("spec, pattern", one_of_each_kind(CAUSAL))
def test_words_one_by_one_get_the_logits_they_get_all_at_once(spec, pattern):
    model = build(spec, pattern)
    source, target = tokens(3, 13, seed=3), tokens(3, 12, seed=4)
    lengths = [13, 1, 7]
    with torch.no_grad():
        expected = model(source, lengths, target)
        for given_first in (1, 5):
            logits, state = model.prefill(target[:, :given_first], *model.encode(source, lengths))
            for place in range(given_first, target.shape[1]):
                torch.testing.assert_close(logits, expected[:, place - 1])
                logits, state = model.step(target[:, place], state)
            torch.testing.assert_close(logits, expected[:, -1])
            assert state.place == target.shape[1]
            assert state.nbytes > 0


# ------------------------------------------------------------------------------------------------------------- batches


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 24), min_size=1, max_size=4), st.integers(0, 3))
def test_a_row_knows_nothing_of_its_neighbours_or_of_its_padding(lengths, seed):
    model = build(seed=seed)
    width = max(lengths)
    source, target = tokens(len(lengths), width, seed), tokens(len(lengths), 7, seed + 1)
    together = model(source, lengths, target)
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], None, target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone)


def test_logits_of_real_words_alone_are_those_of_the_padded_rows():
    model = build()
    source, target = tokens(3, 9, seed=5), tokens(3, 6, seed=6)
    padded = model(source, [9, 9, 2], target)
    packed = model(source, [9, 9, 2], target, [2, 6, 1])
    torch.testing.assert_close(packed, torch.cat([padded[0, :2], padded[1], padded[2, :1]]))


def test_what_is_written_does_not_depend_on_who_else_is_in_the_batch():
    model, end = build(seed=0), 19  # some rows write it early, some late and some never
    lengths = [9, 4, 1, 7, 9, 2]
    source = tokens(len(lengths), 9, seed=7)
    limits = Limits(end=end, pad=0, longest=TINY.longest, shortest=TINY.shortest)
    with torch.no_grad():
        together = model(source, lengths, begin=2, limits=limits)
        for row, length in enumerate(lengths):
            alone = model(source[row : row + 1, :length], None, begin=2, limits=limits)
            assert torch.equal(together[row], alone[0])
    ends = {row.tolist().index(end) if end in row else None for row in together}
    assert len(ends) > 2, "the case must have rows that end at different places"


# -------------------------------------------------------------------------------------------------------------- errors


def test_a_row_longer_than_the_positions_is_refused_with_a_sentence():
    model = build()
    with pytest.raises(UsageError, match="has 24 positions, but a row of 25 tokens came in; cut it"):
        model(tokens(1, 25, 0), None, tokens(1, 3, 0))
    with pytest.raises(UsageError, match="has 20 positions, but a row of 21 tokens"):
        model(tokens(1, 5, 0), None, tokens(1, 21, 0))
    with pytest.raises(UsageError, match="neither a target nor the limits"):
        model(tokens(1, 5, 0))


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"dim": 0}, "dim of at least 1, got 0"),
        ({"dropout": 1.0}, "dropout is a rate from 0 to below 1, got 1.0"),
        ({"shortest": 401}, "shortest <= longest <= target_places, got shortest=401, longest=400"),
        ({"longest": 513}, "longest=513 and target_places=512"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        Sizes(**changes)


def test_every_slot_is_an_attention():
    assert all(isinstance(build().get_submodule(name), Attention) for name in filled(build()))


@pytest.mark.parametrize("spec, pattern", [("sac(edges=3)", CS), ("routing_transformer(clusters=2)", CC)])
def test_the_padding_of_a_target_is_not_in_the_auxiliary_loss(spec, pattern):
    model = build(spec, pattern).train()
    source, target = tokens(2, 9, 1), tokens(2, 12, 2)

    def term(width):
        with collecting(model) as layers:
            model(source, [9, 6], target[:, :width], [8, 5])
            return auxiliary_loss(layers)

    torch.testing.assert_close(term(12), term(8))

"""FastSpeech 2: CAB's exact parameter counts, durations by hand, and rows that do not see their padding."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan import attentions
from longspan.attentions import Pattern
from longspan.backbones.fastspeech2 import FastSpeech2, Sizes, bins, repeat_states, whole_durations
from longspan.backbones.slots import Slots, filled

NS = Pattern.NONCAUSAL_SELF
TINY = Sizes(
    dim=8,
    heads=2,
    encoder_layers=1,
    decoder_layers=2,
    mlp=12,
    bins=16,
    mels=5,
    dropout=0.0,
    attention_dropout=0.0,
    predictor_dropout=0.0,
    source_places=16,
    longest=40,
)
TOPS = torch.tensor([6.0, 4.0])
S4D = "s4d(bidirectional=False, channels=2, init=inv, output=linear, tied=True)"


def build(spec="softmax", sizes=TINY, seed=0):
    torch.manual_seed(seed)
    return FastSpeech2(Slots(attentions.get(spec), frozenset({NS})), sizes, vocabulary=11).double().eval()


def some(rows=3, phones=7, seed=0):
    """Phones in rows of decreasing length, with everything known about them in training."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.arange(phones, phones - 2 * rows, -2)
    tokens = torch.randint(4, 11, (rows, phones), generator=draw)
    durations = torch.randint(0, 5, (rows, phones), generator=draw)
    past = torch.arange(phones) >= lengths[:, None]
    pitch, energy = (torch.rand(rows, phones, generator=draw).double() * top for top in (6, 4))
    return tokens.masked_fill(past, 1), lengths, durations.masked_fill(past, 0), pitch, energy


# --------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    "spec, more",
    [
        ("softmax", 0),
        ("abc(slots=64)", 131_072),
        ("longshort(conv=5, landmarks=64, window=15)", 271_440),
        ("nystromformer(conv=5, landmarks=64)", 80),
        (S4D, -785_920),
        *((spec, 0) for spec in ("local", "performer", "cab_lara", "probsparse", "cosformer")),
    ],
)
def test_the_network_has_the_parameters_of_cabs_tables_to_the_last_one(spec, more):
    for vocabulary in (75, 62):
        with torch.device("meta"):
            model = FastSpeech2(Slots(attentions.get(spec), frozenset({NS})), Sizes(), vocabulary=vocabulary)
        assert sum(p.numel() for p in model.parameters()) == 41_209_173 + 256 * vocabulary + more


def test_the_mechanism_fills_the_slots_over_phones_and_over_frames():
    found = filled(build("abc"))
    assert found == {f"{part}.attention": "ABC (noncausal_self)" for part in ("encoder.0", "decoder.0", "decoder.1")}


def test_first_weights_are_drawn_as_in_fairseq():
    torch.manual_seed(0)
    sizes = replace(TINY, dim=64, mlp=128)
    model = FastSpeech2(attentions.get("softmax"), sizes, vocabulary=999)
    assert abs(model.embedding.weight.detach().std().item() * 8 - 1) < 0.02
    assert model.embedding.weight[1].abs().sum() > 0, "padding has a row, which is not trained"
    block = model.encoder[0]
    for convolution, fan in ((block.widen, 9 * (64 + 128)), (block.narrow, 9 * (64 + 128))):
        assert 0.95 * (12 / fan) ** 0.5 < convolution.weight.abs().max() <= (12 / fan) ** 0.5
    assert block.attention.query.weight.abs().max() <= (6 / 128 / 2) ** 0.5 < block.attention.out.weight.abs().max()
    assert block.attention.query.bias.any()
    assert not block.attention.out.bias.any()


# ------------------------------------------------------------------------------------------------- bins and durations


def test_a_value_goes_to_the_row_of_as_many_edges_as_lie_below_it():
    values = torch.tensor([[0.0, 0.5, 1.0, 254.0, 300.0]])
    assert bins(values, torch.tensor(254.0), 256).tolist() == [[0, 1, 1, 254, 255]]


def test_states_are_repeated_and_a_state_of_no_length_is_left_out():
    x = torch.tensor([[[1.0], [2], [3]], [[4], [5], [6]]])
    ends = torch.tensor([[2, 0, 1], [1, 3, 0]]).cumsum(dim=1)
    assert repeat_states(x, ends, 5)[..., 0].tolist() == [[1, 1, 3, 0, 0], [4, 5, 5, 5, 0]]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.integers(1, 60))
def test_repeating_is_what_torch_does_for_one_row_at_a_time(durations, width):
    x = torch.randn(1, len(durations), 3)
    got = repeat_states(x, torch.tensor([durations]).cumsum(dim=1), width)[0]
    expected = x[0].repeat_interleave(torch.tensor(durations), dim=0)[:width]
    assert torch.equal(got[: len(expected)], expected)
    assert not got[len(expected) :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_durations_are_rounded_half_to_even(dtype):
    said = torch.tensor([[1.0, 0.4, math.log(3.5), -2.0, 90.0]], dtype=dtype)
    assert whole_durations(said, 40).tolist() == [[2, 0, 2, 0, 40]]
    exact = torch.tensor([[0.0, 0.5, 1.5, 2.5]], dtype=torch.float64).add(1).log()
    assert whole_durations(exact, 40).tolist() == [[0, 0, 2, 2]]


# ------------------------------------------------------------------------------------------------------------- forward


def test_truth_is_embedded_in_training_and_what_is_predicted_later():
    model, (tokens, lengths, durations, pitch, energy) = build(), some()
    told = model(tokens, lengths, TOPS, durations, pitch, energy)
    assert told.frames.tolist() == durations.sum(dim=1).tolist()
    assert told.mel.shape == (3, int(durations.sum(dim=1).max()), 5)
    higher = model(tokens, lengths, TOPS, durations, pitch + 3, energy)
    assert not torch.allclose(told.mel, higher.mel)
    torch.testing.assert_close(told.pitch, higher.pitch)
    with torch.no_grad():
        model.duration.out.bias.fill_(1.3)
    free = model(tokens, lengths, TOPS)
    says = whole_durations(free.log_durations, 40).masked_fill(torch.arange(7) >= lengths[:, None], 0)
    again = model(tokens, lengths, TOPS, says, free.pitch, free.energy)
    assert free.frames.tolist() == says.sum(dim=1).clamp(max=40).tolist()
    torch.testing.assert_close(free.mel, again.mel)


def test_predicted_durations_end_at_the_longest_row_the_network_has():
    model, (tokens, lengths, *_) = build(), some()
    with torch.no_grad():
        model.duration.out.bias.fill_(50.0)
    assert model(tokens, lengths, TOPS).mel.shape == (3, 40, 5)


def test_a_row_of_no_length_at_all_gives_no_frames():
    model, (tokens, lengths, *_) = build(), some()
    with torch.no_grad():
        model.duration.out.bias.fill_(-50.0)
    free = model(tokens, lengths, TOPS)
    assert free.frames.tolist() == [0, 0, 0]
    assert free.mel.isfinite().all()


@pytest.mark.parametrize("spec", ["softmax", "local(window=3)", "abc(slots=4)", "s4d"])
@settings(max_examples=5, deadline=None)
@given(more=st.integers(0, 5))
def test_a_clip_alone_gives_what_it_gives_in_a_batch(spec, more):
    model, (tokens, lengths, durations, pitch, energy) = build(spec), some()
    width = int(durations.sum(dim=1).max()) + more
    whole = model(tokens, lengths, TOPS, durations, pitch, energy, width=width)
    for row, (m, n) in enumerate(zip(lengths.tolist(), whole.frames.tolist(), strict=True)):
        cut = (u[row : row + 1, :m] for u in (tokens, durations, pitch, energy))
        one, *truth = cut
        alone = model(one, lengths[row : row + 1], TOPS, *truth)
        torch.testing.assert_close(alone.mel[0], whole.mel[row, :n])
        torch.testing.assert_close(alone.log_durations[0], whole.log_durations[row, :m])


def test_where_padding_is_seen_a_clip_depends_on_its_batch():
    tokens, lengths, durations, pitch, energy = some()
    means = []
    for pads in ("hidden", "seen"):
        model = build(sizes=replace(TINY, pads=pads))
        whole = model(tokens, lengths, TOPS, durations, pitch, energy)
        m = int(lengths[2])
        alone = model(tokens[2:, :m], lengths[2:], TOPS, durations[2:, :m], pitch[2:, :m], energy[2:, :m])
        means.append((alone.mel[0] - whole.mel[2, : int(whole.frames[2])]).abs().max().item())
    assert means[0] < 1e-9 < 1e-4 < means[1]


def test_gradients_reach_every_parameter_and_not_the_row_of_padding():
    model, (tokens, lengths, durations, pitch, energy) = build().train(), some()
    said = model(tokens, lengths, TOPS, durations, pitch, energy)
    (said.mel.abs().sum() + said.log_durations.sum() + said.pitch.sum() + said.energy.sum()).backward()
    for name, parameter in model.named_parameters():
        if "key.bias" not in name:  # shifts all scores of a query equally
            assert parameter.grad.abs().sum() > 0, name
    assert not model.embedding.weight.grad[1].any()

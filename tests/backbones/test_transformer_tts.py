"""Transformer-TTS: CAB's exact parameter counts, nothing from the future, stepwise decoding equals the forward."""

from dataclasses import replace

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern
from longspan.attentions.auxiliary import auxiliary_loss, collecting
from longspan.backbones.batch_norm import BatchNorm
from longspan.backbones.continuous import Ending
from longspan.backbones.slots import Slots, filled
from longspan.backbones.transformer_tts import Sizes, TransformerTTS
from tests.attentions.cases import each_case
from tests.backbones.representatives import one_of_each_kind

NS, CS, CC = Pattern.NONCAUSAL_SELF, Pattern.CAUSAL_SELF, Pattern.CAUSAL_CROSS
TINY = Sizes(
    dim=12,
    heads=2,
    layers=2,
    mlp=16,
    postnet=10,
    prenet=12,
    mels=3,
    packed=2,
    dropout=0.0,
    attention_dropout=0.0,
    source_places=16,
    longest=12,
)
S4D = "s4d(bidirectional=False, channels=4, init=inv, output=linear, tied=True)"
CAUSAL = [(spec, pattern) for spec, pattern in each_case() if pattern in (CS, CC)]


def build(spec="softmax", *patterns, sizes=TINY, seed=0):
    torch.manual_seed(seed)
    slots = Slots(attentions.get(spec), frozenset(patterns))
    model = TransformerTTS(slots, sizes, vocabulary=11).double()
    for module in model.modules():  # as if trained: statistics that are neither 0 nor 1
        if isinstance(module, BatchNorm):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval()


def some(rows=3, tokens=7, steps=9, seed=0):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.arange(tokens, tokens - 2 * rows, -2)
    text = torch.randint(4, 11, (rows, tokens), generator=draw)
    target = torch.randn(rows, steps, TINY.step, generator=draw, dtype=torch.float64)
    return text.masked_fill(torch.arange(tokens) >= lengths[:, None], 1), lengths, target


# --------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    "spec, pattern, more",
    [
        ("softmax", NS, 0),
        *(("abc(slots=64)", pattern, 98_304) for pattern in (NS, CS, CC)),
        ("longshort(conv=5, landmarks=64, window=15)", NS, 800_376),
        ("cab_longshort", CS, 3_167_256),
        ("nystromformer(conv=5, landmarks=64)", NS, 120),
        *((S4D, pattern, 792_960) for pattern in (NS, CS)),
        *((spec, NS, 0) for spec in ("local", "performer", "cab_lara", "probsparse", "cosformer")),
        ("local", CS, 0),
        ("performer", CC, 0),
    ],
)
def test_the_network_has_the_parameters_of_cabs_tables_to_the_last_one(spec, pattern, more):
    for vocabulary in (81, 79):
        with torch.device("meta"):
            model = TransformerTTS(Slots(attentions.get(spec), frozenset({pattern})), Sizes(), vocabulary=vocabulary)
        assert sum(p.numel() for p in model.parameters()) == 54_361_859 + 512 * vocabulary + more


@pytest.mark.parametrize("pattern, slot", [(NS, "encoder"), (CS, "decoder"), (CC, "cross")])
def test_replacing_a_pattern_leaves_the_other_slots_untouched(pattern, slot):
    plain, replaced = build(), build("abc", pattern)
    names = {"encoder": "encoder.{}.attention", "decoder": "decoder.{}.attention", "cross": "decoder.{}.cross"}
    expected = {name.format(i): kind for kind, name in names.items() for i in range(2)}
    for name, what in filled(replaced).items():
        assert what.startswith("ABC" if expected[name] == slot else "Softmax")
    assert set(filled(replaced)) == set(expected)
    sizes, others = ({n: p.shape for n, p in m.named_parameters() if "control" not in n} for m in (plain, replaced))
    assert sizes == others


def test_first_weights_are_drawn_as_in_fairseq():
    torch.manual_seed(0)
    model = TransformerTTS(attentions.get("softmax"), replace(TINY, dim=64, postnet=64), vocabulary=999)
    assert abs(model.embedding.weight[4:].detach().std().item() - 1) < 0.02
    assert not model.embedding.weight[1].any()
    for convolution, gain in ((model.convolutions.convolutions[0], 2**0.5), (model.postnet.convolutions[1], 5 / 3)):
        bound = gain * (6 / (5 * 128)) ** 0.5
        assert 0.95 * bound < convolution.weight.abs().max() <= bound


# ------------------------------------------------------------------------------------------------------------- forward


@pytest.mark.parametrize("spec, pattern", [("softmax", CS), ("abc(slots=3)", CS), ("abc(slots=3)", CC), ("s4d", CS)])
def test_no_step_sees_a_later_one(spec, pattern):
    model, (text, lengths, target) = build(spec, pattern), some()
    changed = target.clone()
    changed[:, 5:] = torch.randn_like(changed[:, 5:])
    one, other = (model(text, lengths, t) for t in (target, changed))
    torch.testing.assert_close(one.before[:, :6], other.before[:, :6])
    torch.testing.assert_close(one.stop[:, :6], other.stop[:, :6])
    assert not torch.allclose(one.before[:, 6:], other.before[:, 6:])


@pytest.mark.parametrize("spec, pattern", one_of_each_kind(CAUSAL), ids=lambda value: str(value).partition("(")[0])
def test_step_by_step_it_says_what_it_says_at_once(spec, pattern):
    model, (text, lengths, target) = build(spec, pattern), some(steps=8)
    rows = torch.tensor([5, 0, 7])
    with torch.no_grad():
        at_once = model(text, lengths, target, rows=rows)
        memory, mask = model.encode(text, lengths)
        previous = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
        before, stop, state = model.prefill(previous[:, :3], memory, mask, rows)
        torch.testing.assert_close(before, at_once.before[:, :3])
        for place in range(3, 8):
            before, stop, state = model.step(previous[:, place], state)
            torch.testing.assert_close(before, at_once.before[:, place])
            torch.testing.assert_close(stop, at_once.stop[:, place])


@pytest.mark.parametrize("spec, pattern", [("softmax", CS), ("local(window=3)", CS), ("abc(slots=3)", CC)])
def test_what_is_spoken_is_what_teacher_forcing_says_of_it(spec, pattern):
    model, (text, lengths, _) = build(spec, pattern, sizes=replace(TINY, postnet_layers=1)), some()
    spoken = []
    step = model.step
    model.step = lambda previous, state: spoken.append(step(previous, state)) or spoken[-1]
    with torch.no_grad():
        model.stop.bias.fill_(-50)
        made = model(text, lengths, ending=Ending(9))
        frames = torch.stack([frame for frame, _, _ in spoken], dim=1)
        again = model(text, lengths, frames)
    torch.testing.assert_close(again.before, frames)
    torch.testing.assert_close(again.after, made.after)


def test_the_prenet_is_never_quiet_and_draws_for_each_row_and_step():
    model, (*_, target) = build(), some()
    rows = torch.tensor([4, 4, 9])
    same = target[:1].expand(3, -1, -1)
    drawn = model.prenet(same, rows, 0)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    constant = model.prenet(same[:, :1].expand(-1, 9, -1), rows, 0)
    assert not torch.equal(constant[:, 0], constant[:, 1])
    torch.testing.assert_close(model.prenet(same[:, 4:], rows, 4), drawn[:, 4:])
    share = (model.prenet(torch.rand(40, 50, TINY.step).double(), torch.arange(40), 0) == 0).double().mean()
    assert 0.4 < share < 0.9


# ------------------------------------------------------------------------------------------------------------- batches


def alone_and_together(sizes, text, lengths):
    """The last row alone, and in its batch, whose rows end after 2, 12 and 6 steps."""
    model = build(sizes=sizes)
    step, ends = model.step, {0: 2, 1: 12, 2: 6}

    def stopping(previous, state):
        frame, _, after = step(previous, state)
        stop = [50.0 if after.place == ends[row] else -50.0 for row in state.rows.tolist()]
        return frame, torch.tensor(stop).double(), after

    model.step = stopping
    rows = torch.arange(3)
    with torch.no_grad():
        whole = model(text, lengths, rows=rows)
        alone = model(text[2:, : int(lengths[2])], lengths[2:], rows=rows[2:])
    assert whole.lengths.tolist() == [2, 12, 6]
    assert alone.lengths.tolist() == [6]
    return alone.after[0, :6], whole.after[2, :6]


def test_a_clip_alone_is_spoken_as_in_a_batch():
    text, lengths, _ = some()
    torch.testing.assert_close(*alone_and_together(TINY, text, lengths))


@pytest.mark.parametrize("change", [{"together": True}, {"pads": "seen"}])
def test_each_habit_of_fairseq_makes_a_clip_depend_on_its_batch(change):
    """The post-net sees what short rows generated after their end; convolutions see padding."""
    text, lengths, _ = some()
    alone, whole = alone_and_together(replace(TINY, **change), text, lengths)
    assert (alone - whole).abs().max() > 1e-4


def test_the_limit_is_1200_steps_and_can_be_another():
    assert Sizes().longest == 1_200
    lengths = []
    for longest in (5, 9):
        model, (text, text_lengths, _) = build(sizes=replace(TINY, longest=longest)), some()
        with torch.no_grad():
            model.stop.bias.fill_(-50)
            lengths.append(model(text, text_lengths).lengths.tolist())
    assert lengths == [[5] * 3, [9] * 3]


def test_statistics_of_hidden_padding_are_those_of_the_real_places():
    torch.manual_seed(0)
    x, mask = torch.randn(2, 4, 6).double(), torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    masked, plain = BatchNorm(4).double(), torch.nn.BatchNorm1d(4).double()
    got = masked(x, mask)
    flat = x.mT[mask].mT[None]
    torch.testing.assert_close(got.mT[mask].mT[None], plain(flat))
    torch.testing.assert_close(masked.running_var, plain.running_var)
    torch.testing.assert_close(masked.running_mean, plain.running_mean)
    x[1, :, 3:] = 1e6
    torch.testing.assert_close(BatchNorm(4).double()(x, mask)[0], got[0])


@pytest.mark.parametrize("pads, differs", [("hidden", False), ("seen", True)])
def test_training_does_not_see_how_far_rows_are_padded_unless_it_is_told_to(pads, differs):
    text, lengths, target = some()
    wider = torch.nn.functional.pad(text, (0, 4), value=1), torch.nn.functional.pad(target, (0, 0, 0, 3), value=7.0)
    steps = torch.tensor([9, 4, 6])
    outcomes = []
    for tokens, frames in ((text, target), wider):
        sizes = replace(TINY, pads=pads, prenet_dropout=0.0, convolution_dropout=0.0)
        outcomes.append(build(sizes=sizes).train()(tokens, lengths, frames, steps).after[1, :4])
    assert bool((outcomes[0] - outcomes[1]).abs().max() > 1e-6) == differs


def test_the_padding_of_a_target_is_not_in_the_auxiliary_loss():
    model = build("sac(edges=3)", CS, sizes=replace(TINY, prenet_dropout=0.0)).train()
    text, lengths, target = some()

    def term(steps):
        torch.manual_seed(0)  # for the dropout in convolutions
        with collecting(model) as layers:
            model(text, lengths, target[:, :steps], torch.tensor([6, 4, 5]))
            return auxiliary_loss(layers)

    torch.testing.assert_close(term(9), term(6))

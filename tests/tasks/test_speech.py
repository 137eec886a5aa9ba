"""Speech: losses and gradients by hand, scores independent of the batch, and an interrupted run that ends the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from longspan import attentions, runs, tasks
from longspan.backbones.slots import Slots
from longspan.core.errors import UsageError
from longspan.results import card as cards
from longspan.results.store import Store
from longspan.tasks.speech_feed import Hearing, SpeechFeed
from longspan.tasks.speech_sound import distortion, sound
from longspan.tasks.tts_transformer import pack, stop_loss, unpack
from longspan.training import loop
from longspan.training.gradient import Gradient
from longspan.training.optimizer import learning_rate

FAST, SLOW = (tasks.get(name) for name in ("tts_fastspeech2", "tts_transformer"))
BOTH = pytest.mark.parametrize("task", [FAST, SLOW], ids=lambda task: task.name)
TINY = {  # 3.5 batches per epoch, two parts per batch
    "data.train": 28,
    "data.valid": 5,
    "data.test": 6,
    "model.dim": 16,
    "model.mlp": 16,
    "model.turns": 2,
    "model.validation_turns": 2,
    "model.heard": 2,
    "recipe.steps": 7,
    "recipe.batch_size": 8,
    "recipe.accumulate": 2,
    "recipe.evaluate_every": 3,
    "recipe.warmup": 3,
    "recipe.evaluation_batch": 4,
}
SMALLER = {FAST.name: {"model.width": 3}, SLOW.name: {"model.postnet": 16, "model.prenet": 16, "model.longest": 20}}


def rules(task, protocol="longspan", **changes):
    return task.protocol(protocol, "smoke").override(TINY | SMALLER[task.name] | changes)


def build(task, protocol, mechanism="softmax", seed=0):
    torch.manual_seed(seed)
    return task.model(Slots(attentions.get(mechanism), frozenset(task.patterns(None))), protocol).eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def splits(data):
    return {task: task.splits(rules(task), data) for task in (FAST, SLOW)}


# ------------------------------------------------------------------------------------------------------------- batches


@BOTH
def test_a_batch_holds_its_clips_normalised_and_padding_after_them(task, splits):
    split, rows = splits[task].train, np.array([5, 0, 27])
    for protocol, wide in (("longspan", True), ("cab-2023", False)):
        batch = task.feed(split, rules(task, protocol), "cpu").batch(rows)
        for place, row in enumerate(rows):
            tokens, mel = split.example(row)
            frames = len(mel) // task.packed * task.packed
            assert batch.tokens[place].tolist()[: len(tokens)] == tokens.tolist()
            assert (batch.tokens[place, len(tokens) :] == 1).all()
            assert (int(batch.lengths[place]), int(batch.frames[place])) == (len(tokens), frames)
            normal = (mel[:frames].astype(np.float32) - split.mean) / split.std
            np.testing.assert_allclose(batch.mel[place, :frames], normal, atol=1e-5)
            assert not batch.mel[place, frames:].any()
        assert batch.row.tolist() == rows.tolist()
        longest = int(batch.frames.max())
        assert batch.mel.shape[1] == (-(-longest // 64) * 64 if wide else longest)
        assert batch.tokens.shape[1] == (-(-int(batch.lengths.max()) // 16) * 16 if wide else int(batch.lengths.max()))


def test_phones_come_with_what_is_known_of_them(splits):
    split = splits[FAST].train
    batch = FAST.feed(split, rules(FAST), "cpu").batch(np.array([3, 9]))
    assert batch.durations.sum(dim=1).tolist() == batch.frames.tolist()
    for place, row in enumerate((3, 9)):
        a, b = split.token_edges[row : row + 2]
        np.testing.assert_allclose(batch.pitch[place, : b - a], split.pitch[a:b])
        np.testing.assert_allclose(batch.energy[place, : b - a], split.energy[a:b])
    assert batch.tops.tolist() == pytest.approx([split.pitch_range[1], split.energy_range[1]])


def test_frames_beyond_a_whole_step_are_dropped_and_a_step_is_four_frames():
    mel = torch.randn(2, 10, 80)
    steps = pack(mel, 4)
    assert steps.shape == (2, 2, 320)
    assert torch.equal(steps[0, 1], mel[0, 4:8].flatten())
    assert torch.equal(unpack(steps, 4), mel[:, :8])


# ---------------------------------------------------------------------------------------------------------------- loss


def test_the_loss_of_fastspeech_is_four_means_over_what_is_real(splits):
    protocol = rules(FAST)
    model, batch = build(FAST, protocol), FAST.feed(splits[FAST].train, protocol, "cpu").batch(np.arange(5))
    result = FAST.loss(model, batch)
    said = model(batch.tokens, batch.lengths, batch.tops, batch.durations, batch.pitch, batch.energy)
    rows = list(zip(batch.frames.tolist(), batch.lengths.tolist(), strict=True))
    mel = torch.cat([(said.mel[i, :n] - batch.mel[i, :n]).flatten() for i, (n, _) in enumerate(rows)]).abs().mean()
    wanted = {"duration": (batch.durations + 1).log(), "pitch": batch.pitch, "energy": batch.energy}
    means = {"mel": mel}
    for (name, truth), guess in zip(wanted.items(), (said.log_durations, said.pitch, said.energy), strict=True):
        pieces = [(guess[i, :m] - truth[i, :m]).square() for i, (_, m) in enumerate(rows)]
        means[name] = torch.cat(pieces).mean()
    for name, expected in means.items():
        torch.testing.assert_close(result.terms[name][0], expected)
    torch.testing.assert_close(result.loss, sum(means.values()))
    assert {name: int(count) for name, (_, count) in result.terms.items()} == {
        "mel": int(batch.frames.sum()),
        **dict.fromkeys(("duration", "pitch", "energy"), int(batch.lengths.sum())),
    }


def test_the_loss_of_transformer_tts_is_four_means_and_that_of_stopping(splits):
    protocol = rules(SLOW)
    model, batch = build(SLOW, protocol), SLOW.feed(splits[SLOW].train, protocol, "cpu").batch(np.arange(5))
    result, steps = SLOW.loss(model, batch), (batch.frames // 4).tolist()
    target = pack(batch.mel, 4)
    said = model(batch.tokens, batch.lengths, target, batch.frames // 4, rows=batch.row)
    mel = 0.0
    for found in (said.before, said.after):
        away = torch.cat([found[i, :n] - target[i, :n] for i, n in enumerate(steps)])
        mel = mel + away.abs().mean() + away.square().mean()
    torch.testing.assert_close(result.terms["mel"][0], mel)
    ends = torch.cat([torch.eye(n)[-1] for n in steps])
    logits = torch.cat([said.stop[i, :n] for i, n in enumerate(steps)])
    stop = F.binary_cross_entropy_with_logits(logits, ends, pos_weight=torch.tensor(5.0))
    torch.testing.assert_close(result.terms["stop"][0], stop)
    assert int(result.count) == sum(steps)


def test_stopping_at_the_last_of_three_steps_costs_what_it_costs_by_hand():
    assert float(stop_loss(torch.zeros(1, 3), torch.tensor([3]))) == pytest.approx(1.617343, abs=1e-6)


@BOTH
def test_the_rate_rises_for_4000_updates_and_falls_with_the_root(task):
    recipe = task.protocol("cab-2023", "full").recipe
    rates = [learning_rate(recipe, update - 1) for update in (1, 2, 4_001, 20_000, 200_000)]
    assert rates == pytest.approx([0, 1.25e-7, 5e-4, 2.236124e-4, 7.071085e-5], rel=1e-6)


@pytest.mark.parametrize(
    "task, protocol, divisor",
    [(FAST, "cab-2023", 4), (SLOW, "cab-2023", 16), (FAST, "longspan", 2), (SLOW, "longspan", 2)],
)
def test_gradients_of_two_parts_are_joined_by_the_rule_of_the_protocol(task, protocol, divisor, splits):
    """Parts of 3 and 1 sentences with 10 and 6 steps: summed and divided by sentences or by steps, or averaged."""
    recipe = task.protocol(protocol, "full").recipe
    network = rules(task, protocol)
    feed = task.feed(splits[task].train, network, "cpu")
    parts = []
    for rows, frames in ((np.arange(3), [16, 12, 12]), (np.array([3]), [24])):
        batch, cut = feed.batch(rows), torch.tensor(frames)
        parts.append(replace(batch, frames=cut))
    torch.manual_seed(0)
    model = build(task, network)
    gradients = []
    for part in parts:
        model.zero_grad()
        task.loss(model, part).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    expected = [(a + b) / divisor for a, b in zip(*gradients, strict=True)]
    model.zero_grad()
    fabric = Fabric(accelerator="cpu", devices=1)
    joined = Gradient(task, fabric.setup(model), recipe, fabric)
    results = [joined.part(part, joined.totals(parts), last=part is parts[-1], alone=False) for part in parts]
    joined.finish([result.count for result in results], True)
    for found, wanted in zip((p.grad for p in model.parameters() if p.grad is not None), expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("task, mechanism", [(FAST, "abc"), (SLOW, "softmax")])
def test_nothing_of_an_update_waits_for_the_device(task, mechanism, splits):
    """A fake tensor cannot be read by the host: an update that runs on fake tensors can be recorded."""
    protocol = rules(task)
    model, feed = build(task, protocol, mechanism).train(), task.feed(splits[task].train, protocol, "cpu")
    batch = feed.batch(np.arange(4))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        empty = {name: mode.from_tensor(value) for name, value in model.state_dict(keep_vars=True).items()}
        buffers = {name: mode.from_tensor(value) for name, value in model.named_buffers()}
        shapes = type(batch)(**{name: mode.from_tensor(value) for name, value in vars(batch).items()})
        called = Called(model, buffers | empty)
        result = task.loss(called, shapes)
        parameters = [value for value in empty.values() if value.requires_grad]
        assert any(one is not None for one in torch.autograd.grad(result.loss, parameters, allow_unused=True))
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            task.speak(called, shapes)


class Called(torch.nn.Module):
    """A network with other tensors in place of its own."""

    def __init__(self, model, tensors):
        super().__init__()
        self.call = lambda *inputs, **options: torch.func.functional_call(model, tensors, inputs, options)

    def forward(self, *inputs, **options):
        return self.call(*inputs, **options)


# ---------------------------------------------------------------------------------------------------------- evaluation


def answers(task, protocol, split, rows, batch_size):
    feed = task.feed(split, protocol, "cpu")
    model = build(task, protocol)
    with torch.no_grad():
        if task is FAST:
            model.duration.out.bias.fill_(1.6)  # about four frames a phone
        else:
            model.stop.bias.fill_(-0.5)
        return task.evaluate(model, feed, rows, batch_size)


@BOTH
def test_under_longspan_neither_the_batch_nor_the_order_changes_a_clip(task, splits):
    protocol, rows = rules(task), np.arange(6)
    whole = answers(task, protocol, splits[task].test, rows, 6)
    alone = answers(task, protocol, splits[task].test, rows[::-1].copy(), 1)
    assert whole.predictions["frames"].min() > 0
    for name in ("mcd_cost", "mcd_told_cost", "frames", "made_frames"):
        np.testing.assert_allclose(whole.predictions[name], alone.predictions[name][::-1], rtol=2e-3, err_msg=name)
    for name, value in whole.metrics.items():
        assert alone.metrics[name] == pytest.approx(value, rel=1e-4), name


@BOTH
def test_under_cab_2023_a_clip_depends_on_its_batch(task, splits):
    protocol, rows = rules(task, "cab-2023"), np.arange(6)
    whole, alone = (answers(task, protocol, splits[task].test, rows, size) for size in (6, 1))
    assert np.abs(whole.predictions["mcd_told_cost"] - alone.predictions["mcd_told_cost"]).max() > 1e-2


@BOTH
def test_scores_are_ratios_of_sums_over_all_clips(task, splits):
    result = answers(task, rules(task), splits[task].test, np.arange(6), 4)
    found, scores = result.predictions, task.summary(result.predictions)
    assert scores["mcd"] == pytest.approx(found["mcd_cost"].sum() / found["made_frames"].sum())
    assert scores["mcd_loss"] == pytest.approx(found["mcd_cost"].sum() / found["reference_frames"].sum())
    assert scores["mcd_told"] == pytest.approx(found["mcd_told_cost"].sum() / found["reference_frames"].sum())
    away = np.abs(found["frames"] - found["true_frames"]).sum()
    assert scores["length_error"] == pytest.approx(away / found["true_frames"].sum())
    assert result.metrics["loss"] == pytest.approx(sum(result.metrics[term] for term in task.terms))


def test_errors_of_durations_and_pitch_are_those_of_the_phones(splits):
    protocol, split = rules(FAST), splits[FAST].test
    result = answers(FAST, protocol, split, np.arange(6), 4)
    feed, model = FAST.feed(split, protocol, "cpu"), build(FAST, protocol)
    with torch.no_grad():
        model.duration.out.bias.fill_(1.6)
        batch = feed.batch(np.arange(6))
        said = model(batch.tokens, batch.lengths, batch.tops)
    late, hertz, phones = 0.0, 0.0, 0
    for i, m in enumerate((batch.lengths - 1).tolist()):
        late += (said.log_durations[i, :m].exp().sub(1).round() - batch.durations[i, :m]).abs().sum().item()
        hertz += (said.pitch[i, :m].exp() - batch.pitch[i, :m].exp()).abs().sum().item()
        phones += m
    scores = FAST.summary(result.predictions)
    assert scores["duration_error"] == pytest.approx(late / phones, rel=1e-4)
    assert scores["pitch_error_hz"] == pytest.approx(hertz / phones, rel=1e-4)


@BOTH
def test_validation_speaks_the_first_clips_only_and_all_under_cab_2023(task, splits):
    for protocol, heard in (("longspan", [0, 1]), ("cab-2023", [0, 1, 2, 3, 4])):
        settings = rules(task, protocol, **({} if protocol == "longspan" else {"model.heard": None}))
        assert task.protocol(protocol, "full").model.heard == (16 if protocol == "longspan" else None)
        feed = task.feed(splits[task].valid, settings, "cpu")
        with torch.no_grad():
            result = task.validate(build(task, settings), feed, np.arange(5), 4)
        assert result.predictions["row"].tolist() == heard
        assert list(task.summary(result.predictions)) == ["mcd_loss"]
        assert set(result.metrics) == {*task.terms, "loss"}


def test_the_truth_sounds_like_itself_and_a_clip_without_frames_is_one_of_zeros(splits):
    feed = SpeechFeed(splits[SLOW].test, "cpu", Hearing())
    batch = feed.batch(np.arange(3))
    true = sound(feed, batch.mel, batch.frames, 3)
    assert distortion(true, true).mcd.tolist() == [0, 0, 0]
    nothing = sound(feed, batch.mel, batch.frames * 0, 3)
    assert (nothing.frames.tolist(), nothing.samples.tolist()) == ([1] * 3, [0] * 3)
    assert not nothing.mel.any()
    assert distortion(true, nothing).mcd.isfinite().all()
    loud = sound(feed, batch.mel + 1e6, batch.frames, 3)
    assert distortion(true, loud).mcd.isfinite().all()


@BOTH
def test_chance_is_the_distortion_of_the_mean_spectrum(task, splits, monkeypatch):
    monkeypatch.setattr(Hearing, "turns", 2)
    split = splits[task].test
    feed = SpeechFeed(split, "cpu", Hearing(), packed=task.packed)
    costs, frames = 0.0, 0
    for row in range(len(split)):
        batch = feed.batch(np.array([row]))
        flat = torch.tensor(split.mean).expand(1, int(batch.frames[0]), -1)
        mean = sound(feed, (flat - feed.mean) / feed.std, batch.frames, 2)
        found = distortion(sound(feed, batch.mel, batch.frames, 2), mean)
        costs, frames = costs + float(found.mcd[0]), frames + int(found.made_frames[0])
    assert task.chance(split) == pytest.approx(costs / frames, rel=1e-3)


# ---------------------------------------------------------------------------------------------------------------- runs


def run(task, out, data, mechanism="softmax", pattern=None, changes=(), **more):
    overrides = TINY | SMALLER[task.name] | dict(changes)
    cell = runs.Cell(task.name, mechanism, pattern, overrides=overrides, **more)
    return runs.run(cell, out=out, data=data, device="cpu", progress=False)


def outcome(card, out):
    (path, _), *_ = ((path, one) for path, one in Store(out / "cards").entries() if one["sha256"] == card["sha256"])
    found = {part: card[part] for part in ("curve", "metrics", "score", "selected_step", "parameters", "slots")}
    for file in ("predictions", "samples"):
        with np.load(path.with_name(card["files"][file])) as arrays:
            found |= {f"{file} {name}": arrays[name].tolist() for name in arrays.files}
    return found


class Killed(Exception):
    """Stands for the end of the process."""


@BOTH
def test_a_run_cut_in_the_middle_of_an_epoch_ends_with_the_card_of_an_unbroken_one(task, data, tmp_path, monkeypatch):
    whole = run(task, tmp_path / "whole", data)
    update, updates = loop.set_learning_rate, []

    def die(optimizer, rate):
        updates.append(rate)
        if len(updates) > 5:
            raise Killed
        update(optimizer, rate)

    monkeypatch.setattr(loop, "SAVE_EVERY_SECONDS", -1)
    with monkeypatch.context() as patched:
        patched.setattr(loop, "set_learning_rate", die)
        with pytest.raises(Killed):
            run(task, tmp_path / "cut", data)
    resumed = run(task, tmp_path / "cut", data)
    assert resumed["timing"]["resumed"] == 1
    assert outcome(resumed, tmp_path / "cut") == outcome(whole, tmp_path / "whole")


FEW = {"recipe.steps": 2, "recipe.evaluate_every": 2}
CELLS = [
    *((FAST, mechanism, None, "coder.0.attention", 2) for mechanism in ("local", "abc", "s4d")),
    *((SLOW, mechanism, "NS", "encoder.0.attention", 1) for mechanism in ("local", "abc", "s4d")),
    *((SLOW, mechanism, "CS", "decoder.0.attention", 1) for mechanism in ("local", "abc", "s4d")),
    *((SLOW, mechanism, "CC", "decoder.0.cross", 1) for mechanism in ("abc", "performer", "linear")),
]


@pytest.mark.parametrize("task, mechanism, pattern, slot, count", CELLS)
def test_every_pattern_can_be_replaced_and_the_card_lists_the_slots(
    task, mechanism, pattern, slot, count, data, tmp_path
):
    card = run(task, tmp_path, data, mechanism, pattern, FEW)
    replaced = {name for name, what in card["slots"].items() if not what.startswith("Softmax")}
    assert len(replaced) == count
    assert all(name.endswith(slot) for name in replaced)
    assert (card["status"], card["dataset"]["variant"]) == ("ok", "standin")
    assert card["score"]["name"] == "mcd"
    assert card["score"]["chance"] > 0
    assert cards.read(next(path for path, _ in Store(tmp_path / "cards").entries()), "run") == card


@BOTH
def test_a_run_in_mixed_precision_speaks_and_is_scored(task, data, tmp_path):
    cell = runs.Cell(task.name, "abc", overrides=TINY | SMALLER[task.name] | FEW)
    card = runs.run(cell, out=tmp_path, data=data, device="cpu", progress=False, precision="bf16")
    assert card["settings"]["precision"] == "bf16"
    assert np.isfinite(card["score"]["value"])


@BOTH
def test_samples_can_be_heard_and_seen_beside_the_card(task, data, tmp_path, splits):
    card = run(task, tmp_path, data, changes=FEW)
    (path, _), *_ = Store(tmp_path / "cards").entries()
    with np.load(path.with_name(card["files"]["samples"])) as kept:
        assert kept["kind"] == "speech"
        assert kept["text"].tolist() == splits[task].test.texts[:2]
        assert kept["rate"] == 22_050
        for name in ("made", "true"):
            assert kept[f"{name}_wave"].dtype == np.int16
            assert kept[f"{name}_mel"].dtype == np.float16
            frames, samples = np.diff(kept[f"{name}_mel_edges"]), np.diff(kept[f"{name}_wave_edges"])
            assert len(frames) == len(samples) == 2
            assert samples.tolist() == ((frames - 1) * 256).tolist()
        true = splits[task].test.example(0)[1]
        np.testing.assert_allclose(kept["true_mel"][: len(true) // 4 * 4], true[: len(true) // 4 * 4], atol=0.02)


@BOTH
def test_a_trained_network_speaks(task, splits):
    protocol = rules(task)
    voice = task.user_object(build(task, protocol), protocol, splits[task], "cpu")
    wave, again = voice.speak("La sa, fa."), voice.speak("La sa, fa.")
    assert wave.dtype == np.float32
    assert wave.ndim == 1
    assert np.isfinite(wave).all()
    assert np.array_equal(wave, again)


def test_a_card_leads_back_to_a_voice(data, tmp_path):
    run(FAST, tmp_path, data, changes=FEW)
    (path, _), *_ = Store(tmp_path / "cards").entries()
    assert runs.load(path, data=data).speak("La sa.").dtype == np.float32


@BOTH
def test_smoke_of_cab_runs_with_its_quirks(task, data, tmp_path):
    card = run(task, tmp_path, data, changes=FEW, protocol="cab-2023")
    settings = card["settings"]
    assert settings["model"]["pads"] == "seen"
    assert settings["recipe"]["parts"] == "sum_over_samples"
    assert settings["model"].get("together", True)


@BOTH
def test_the_longest_clip_that_smoke_keeps_fits_its_network(task):
    """A user's recordings may be longer than any sentence of LJSpeech; the small network has fewer positions."""
    rules = task.protocol("longspan", "smoke")
    assert rules.data.longest is not None
    assert rules.data.longest <= rules.model.longest * task.packed


@pytest.mark.full
@BOTH
def test_the_smoke_model_learns_to_speak(task, tmp_path):
    card = runs.run(runs.Cell(task.name, "softmax"), out=tmp_path, data=tmp_path, device="cpu", progress=False)
    assert card["metrics"]["test"]["mcd_told"]["value"] < 0.85 * card["score"]["chance"]
    assert card["curve"][-1]["valid_loss"] < card["curve"][0]["valid_loss"]


# -------------------------------------------------------------------------------------------------------------- errors


@BOTH
def test_what_does_not_fit_the_network_is_refused_before_training(task, splits):
    with pytest.raises(UsageError, match="has 9 entries, but the texts are written in a vocabulary of"):
        task.feed(splits[task].train, rules(task, **{"model.vocabulary": 9}), "cpu")
    with pytest.raises(UsageError, match=r"Clips of \d+ frames and \d+ tokens do not fit a network for"):
        task.feed(splits[task].train, rules(task, **{"model.longest": 3}), "cpu")
    with pytest.raises(UsageError, match=r"label_smoothing must be 0, got 0\.1"):
        task.loss(build(task, rules(task)), None, smoothing=0.1)


@BOTH
def test_a_voice_without_data_is_refused(task):
    with pytest.raises(UsageError, match="needs the data of its run"):
        task.user_object(torch.nn.Linear(1, 1), rules(task), None, "cpu")

"""The efficiency protocol of Long Range Arena: what its cards hold, what it survives, what it does not repeat."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from longspan import attentions
from longspan.backbones.encoder_classifier import Sizes
from longspan.cli import app
from longspan.core.errors import RunFailed, UsageError
from longspan.efficiency import lra
from longspan.efficiency.lra import LraSetup, Workload, byte_rows, measure, measure_point, source_hash
from longspan.results import card as cards
from longspan.results.store import Store

PLANTED = Path(__file__).with_name("planted.py")
TINY = LraSetup(
    lengths=(16, 48),
    batch=2,
    model=Sizes(dim=8, heads=2, layers=1, mlp=8),
    realistic_steps=4,
    repeats=3,
    warmup=1,
)


def planted(name):
    return f"{PLANTED}:{name}"


def statuses(card):
    return {(point["length"], point["mode"]): point["status"] for point in card["points"]}


def test_every_mechanism_gets_a_sound_card_with_every_point_and_softmax_comes_first(tmp_path):
    found = measure(["linear"], TINY, device="cpu", out=tmp_path)
    assert [card["mechanism"] for card in found] == ["softmax", "linear"]
    for card in found:
        cards.validate(card)
        assert (card["kind"], card["procedure"]) == ("measurement", "lra-efficiency")
        assert set(statuses(card)) == {(n, mode) for n in (16, 48) for mode in ("train", "inference")}
        for point in card["points"]:
            low, high = point["steps_per_second_quartiles"]
            assert 0 < low <= point["steps_per_second"] <= high
            low, high = point["compute_steps_per_second_quartiles"]
            assert 0 < low <= point["compute_steps_per_second"] <= high
            assert point["examples_per_second"] == pytest.approx(2 * point["steps_per_second"], rel=1e-4)
            assert point["peak_bytes"] > 4 * point["parameters"]
    assert len(list((tmp_path / "cards" / "measurements").glob("*.json"))) == 2


def test_training_holds_more_memory_than_inference_and_long_rows_more_than_short_ones(tmp_path):
    (card,) = measure([], TINY, device="cpu", out=tmp_path)
    held = {(point["length"], point["mode"]): point["peak_bytes"] for point in card["points"]}
    assert held[48, "train"] > held[16, "train"] > held[16, "inference"]
    assert held[48, "train"] > held[48, "inference"] > held[16, "inference"]


def test_running_out_of_memory_is_a_point_and_leaves_the_others(tmp_path):
    asked = [planted("Hungry"), planted("HungryOnlyInTraining"), "linear"]
    softmax, hungry, training, linear = measure(asked, TINY, device="cpu", out=tmp_path)
    assert set(statuses(softmax).values()) == set(statuses(linear).values()) == {"ok"}
    assert statuses(hungry) == {
        (16, "train"): "ok",
        (16, "inference"): "ok",
        (48, "train"): "oom",
        (48, "inference"): "oom",
    }
    assert [where for where, status in statuses(training).items() if status == "oom"] == [(48, "train")]
    point = hungry["points"][-1]
    assert point["reason"] == "out of memory on cpu with 2 rows of length 48"
    assert point["steps_per_second"] is point["compute_steps_per_second"] is point["peak_bytes"] is None


@pytest.mark.parametrize(
    "name, reason",
    [
        ("Broken", "IndexError: no more than 40"),
        ("Leaves", "SystemExit: 3"),
        ("Bound", "ValueError: rows of 49 are more than it has parameters for"),
    ],
)
def test_what_cannot_run_fails_with_its_reason_where_it_cannot_and_nowhere_else(tmp_path, name, reason):
    _, card, linear = measure([planted(name), "linear"], TINY, device="cpu", out=tmp_path)
    assert [point["status"] for point in card["points"]] == ["ok", "ok", "fail", "fail"]
    assert {point["reason"] for point in card["points"][2:]} == {reason}
    assert set(statuses(linear).values()) == {"ok"}


def test_a_mechanism_without_the_pattern_fails_with_the_sentence_of_the_slot():
    point = measure_point(attentions.get(planted("OnlyCausal")), TINY, 16, "inference", "cpu")
    assert point["status"] == "fail"
    assert "noncausal_self" in point["reason"]
    assert point["parameters"] is None


def test_ctrl_c_stops_the_sweep_and_keeps_the_cards_that_are_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        measure([planted("Interrupted"), "linear"], TINY, device="cpu", out=tmp_path)
    assert [card["mechanism"] for card in Store(tmp_path / "cards").cards("measurement")] == ["softmax"]


def test_a_device_that_is_lost_ends_the_sweep_with_a_sentence_and_keeps_the_card(tmp_path, monkeypatch):
    monkeypatch.setattr(lra, "is_sound", lambda device: False)
    with pytest.raises(RunFailed, match="after softmax; the same command goes on"):
        measure(["linear"], TINY, device="cpu", out=tmp_path)
    assert len(Store(tmp_path / "cards").cards("measurement")) == 1


# -------------------------------------------------------------------------------------------------------------- resume


@pytest.fixture
def measured(monkeypatch):
    """The points that were actually measured, in order."""
    seen = []

    def record(mechanism, setup, length, mode, device):
        seen.append((str(mechanism), length, mode))
        return measure_point(mechanism, setup, length, mode, device)

    monkeypatch.setattr(lra, "measure_point", record)
    return seen


def test_what_has_its_card_is_not_measured_again_unless_asked(tmp_path, measured):
    setup = replace(TINY, lengths=(16,))
    first = measure(["linear"], setup, device="cpu", out=tmp_path)
    assert len(measured) == 4
    assert measure(["linear"], setup, device="cpu", out=tmp_path) == first
    assert len(measured) == 4
    measure(["linear"], setup, device="cpu", out=tmp_path, again=True)
    assert len(measured) == 8


def test_a_card_with_more_points_answers_a_smaller_question_but_not_a_larger_one(tmp_path, measured):
    first = measure([], TINY, device="cpu", out=tmp_path)
    assert measure([], replace(TINY, lengths=(48,), modes=("train",)), device="cpu", out=tmp_path) == first
    assert len(measured) == 4
    measure([], replace(TINY, lengths=(16, 20, 48)), device="cpu", out=tmp_path)
    assert len(measured) == 4 + 6


@pytest.mark.parametrize("change", [{"batch": 3}, {"realistic_steps": 3}, {"model": replace(TINY.model, layers=2)}])
def test_another_setting_is_another_measurement(tmp_path, measured, change):
    setup = replace(TINY, lengths=(16,), modes=("inference",))
    measure([], setup, device="cpu", out=tmp_path)
    measure([], replace(setup, **change), device="cpu", out=tmp_path)
    assert len(measured) == 2


def test_changed_code_is_another_measurement(tmp_path, measured, monkeypatch):
    setup = replace(TINY, lengths=(16,), modes=("inference",))
    measure([], setup, device="cpu", out=tmp_path)
    monkeypatch.setattr(lra, "source_hash", lambda cls: "changed")
    measure([], setup, device="cpu", out=tmp_path)
    assert len(measured) == 2


def test_the_source_hash_tells_mechanisms_apart_and_is_stable():
    softmax, linear = (attentions.get(name).cls for name in ("softmax", "linear"))
    assert source_hash(softmax) == source_hash(softmax) != source_hash(linear)


# ---------------------------------------------------------------------------------------------------- what a step does


@given(length=st.integers(1, 50), count=st.integers(1, 9), seed=st.integers(0, 3))
def test_rows_are_full_bytes_of_one_length_and_both_classes_in_turn(length, count, seed):
    rows = byte_rows(length, count, seed)
    assert len(rows) == count
    assert set(rows.lengths.tolist()) == {length}
    assert rows.tokens.dtype == "uint8"
    assert rows.labels.tolist() == [i % 2 for i in range(count)]


def test_a_training_step_moves_the_weights_on_new_rows_and_an_inference_step_moves_nothing():
    for mode in ("train", "inference"):
        work = Workload(attentions.get("linear"), TINY, 16, mode, "cpu")
        before = [p.detach().clone() for p in work.model.parameters()]
        seen = []
        work.feed.batch = lambda rows, batch=work.feed.batch, seen=seen: seen.append(rows.tolist()) or batch(rows)
        for _ in range(3):
            work.step()
        moved = any(not torch.equal(a, b) for a, b in zip(before, work.model.parameters(), strict=True))
        assert moved == (mode == "train")
        assert len({tuple(rows) for rows in seen}) == 3
        assert work.loss.isfinite()


def test_no_symbol_of_a_batch_is_padding():
    work = Workload(attentions.get("softmax"), TINY, 16, "inference", "cpu")
    assert tuple(work.fixed.tokens.shape) == (2, 16)
    assert 1 <= int(work.fixed.tokens.min()) <= int(work.fixed.tokens.max()) <= 256


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"lengths": ()}, "Lengths"),
        ({"lengths": (16, 16)}, "Lengths"),
        ({"lengths": (0,)}, "Lengths"),
        ({"modes": ("decode",)}, "train or inference"),
        ({"batch": 0}, "batch"),
        ({"warmup": 0}, "warmup"),
        ({"seconds": 0}, "seconds"),
    ],
)
def test_a_setup_that_measures_nothing_is_refused(wrong, word):
    with pytest.raises(UsageError, match=word):
        replace(TINY, **wrong)


def test_a_device_that_is_not_there_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(UsageError, match="auto, cpu or cuda"):
        measure([], TINY, device="tpu", out=tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="sees no GPU"):
            measure([], TINY, device="cuda", out=tmp_path)
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------------------------------- the command line

WORDS = [
    "--lengths",
    "16",
    "24",
    "--mode",
    "train",
    "--batch",
    "2",
    "--layers",
    "1",
    "--heads",
    "2",
    "--dim",
    "8",
    "--mlp",
    "8",
]
WORDS += ["--realistic-steps", "3", "--repeats", "3", "--device", "cpu"]


def call(*words, out):
    return CliRunner().invoke(app, ["measure", "lra", *words, *WORDS, "--out", str(out)])


def test_the_verb_prints_a_row_per_mechanism_in_every_format(tmp_path):
    shown = call("-a", "linear", "local(window=8)", out=tmp_path)
    assert shown.exit_code == 0, shown.output
    assert all(word in shown.stdout for word in ("Training", "16 steps/s", "24 GB", "Softmax", "Linear", "x)"))
    (table,) = json.loads(call("-a", "linear", "--json", out=tmp_path).stdout)
    assert [row["mechanism"] for row in table["rows"] if row["source"] == "own"] == ["softmax", "linear"]
    assert call("-a", "linear", "--format", "md", out=tmp_path).stdout.startswith("## Training")
    assert call("-a", "linear", "--format", "csv", out=tmp_path).stdout.count("\n") == 1 + 2 * 2


def test_the_verb_ends_with_4_when_a_mechanism_cannot_run_and_still_prints_the_others(tmp_path):
    result = call("-a", planted("OnlyCausal"), "linear", out=tmp_path)
    assert result.exit_code == 4
    assert "Linear" in result.stdout
    assert "FAIL" in result.stdout
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_verb_refuses_an_unknown_mechanism_before_it_measures(tmp_path):
    result = call("-a", "liner", out=tmp_path)
    assert result.exit_code == 2
    assert "linear" in result.stderr
    assert not (tmp_path / "cards").exists()

"""The efficiency lab: what its cards hold, what gets no speed, what it survives, and what it does not do twice."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from longspan import attentions, published
from longspan.attentions import Pattern
from longspan.cli import app
from longspan.core.errors import RunFailed, UnsupportedPattern, UsageError
from longspan.efficiency import cab, roofline, sweep, variants
from longspan.efficiency.faults import status_of
from longspan.efficiency.setup import Setup
from longspan.efficiency.sweep import _Sheet, measure, pairs_of, ranked, runner_of, why_unsupported
from longspan.efficiency.variants import Runner
from longspan.efficiency.workload import TimedCalls
from longspan.results import card as cards
from longspan.results.store import Store

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).with_name("planted.py")
FAULTY = ROOT / "tests" / "conformance" / "faulty"
TINY = Setup(lengths=(16, 48), dtype="float32", batch=2, heads=2, dim=4, repeats=5, seconds=0.005, warmup=1)
CEILINGS = {"bytes_per_second": 1e10, "operations_per_second": 1e11, "method": "made up"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Skip the slow parts that these tests do not examine."""
    monkeypatch.setattr("longspan.efficiency.latency.WARM", 0.0)
    monkeypatch.setattr(sweep, "_measured_ceilings", {})
    monkeypatch.setattr(roofline, "measure_ceilings", lambda device, dtype: CEILINGS)


@pytest.fixture
def measured(monkeypatch):
    """The points that were actually measured, in order."""
    seen = []
    point = _Sheet._point

    def record(sheet, key, workloads):
        seen.append((str(sheet.mechanism), *key))
        return point(sheet, key, workloads)

    monkeypatch.setattr(_Sheet, "_point", record)
    return seen


def planted(name):
    return f"{PLANTED}:{name}"


def trust(*mechanisms, pattern="noncausal_self", ok=True):
    """Made-up reports of a check."""
    lines = [{"promise": "no future leak", "status": "kept" if ok else "broken", "detail": "made up"}]
    report = {"pattern": pattern, "device": "cpu", "dtype": "float32", "profile": "full", "ok": ok, "promises": lines}
    return [{"mechanism": str(attentions.get(name)), **report} for name in mechanisms]


def swept(mechanisms, setup, out, *, patterns=("NS",), trusted=None, **how):
    if trusted is None:
        trusted = [report for p in Pattern for report in trust(*mechanisms, pattern=p.value)]
    return measure(pairs_of(mechanisms, patterns), setup, device="cpu", out=out, trusted=trusted, **how)


def statuses(card):
    return {(p["length"], p["mode"], p["variant"]): p["status"] for p in card["points"]}


# ------------------------------------------------------------------------------------------------------- what is on it


@pytest.mark.parametrize("module", ["core", "layer", "block"])
def test_every_point_asked_for_is_on_a_sound_card(tmp_path, module):
    setup = replace(
        TINY, lengths=(16,), modes=("forward", "train", "decode"), variants=("eager", "graph"), module=module
    )
    found = swept(["linear", "s4d"], setup, tmp_path, patterns=("CS",)).cards
    assert [card["mechanism"] for card in found] == ["linear", "s4d"]
    for card in found:
        cards.validate(card)
        assert (card["procedure"], card["pattern"], card["settings"]["module"]) == ("core", "causal_self", module)
        assert card["gate"]["ok"]
        assert card["ceilings"] == CEILINGS
        status = statuses(card)
        assert set(status) == set(setup.asked())
        assert {status[16, mode, "graph"] for mode in setup.modes} == {"unsupported"}
        assert status[16, "forward", "eager"] == status[16, "train", "eager"] == "ok"
        assert status[16, "decode", "eager"] == ("unsupported" if module == "block" else "ok")
        for point in card["points"]:
            assert (point["reason"] is None) == (point["status"] == "ok") == (point["seconds"] is not None)


def test_a_core_is_attend_where_the_mechanism_works_head_by_head_and_else_the_layer(tmp_path):
    setup = replace(TINY, lengths=(16,), modes=("forward",))
    said = {card["mechanism"]: card["settings"]["core_is"] for card in swept(["linear", "fnet"], setup, tmp_path).cards}
    assert said == {"linear": "attend", "fnet": "layer"}


def test_the_numbers_of_a_point_fit_together(tmp_path):
    (card,) = swept(["linear"], replace(TINY, modes=("forward", "train", "decode")), tmp_path, patterns=("CS",)).cards
    for point in card["points"]:
        time = point["seconds"]
        assert 0 < time["low"] <= time["median"] <= time["high"]
        assert time["count"] + time["dropped"] == 5
        assert point["floor"]["ratio"] == pytest.approx(time["median"] / point["floor"]["seconds"], rel=1e-4)
        achieved = point["achieved"]["operations_per_second"]
        assert achieved == pytest.approx(point["operations"] / time["median"], rel=1e-4)
        assert (point["state_bytes"] is not None) == (point["mode"] == "decode")
        assert (point["memory"]["activations"] is not None) == (point["mode"] == "train")
        assert point["agreement"] < 1e-3
    held = {(p["length"], p["mode"]): p["memory"]["allocated"] for p in card["points"]}
    assert held[48, "train"] > held[16, "train"] > held[16, "forward"]
    operations = {(p["length"], p["mode"]): p["operations"] for p in card["points"]}
    assert operations[48, "train"] > operations[48, "forward"] > operations[16, "forward"]
    assert operations[48, "decode"] == operations[16, "decode"]  # the state of linear attention does not grow


def test_the_state_of_softmax_grows_with_the_context_and_that_of_linear_attention_does_not(tmp_path):
    setup = replace(TINY, modes=("decode",))
    softmax, linear = swept(["softmax", "linear"], setup, tmp_path, patterns=("CS",)).cards
    short, long = (point["state_bytes"] for point in softmax["points"])
    assert long > 2.5 * short
    assert len({point["state_bytes"] for point in linear["points"]}) == 1


def test_decoding_in_causal_cross_attention_looks_into_a_context_of_that_length(tmp_path):
    setup = replace(TINY, modes=("decode",))
    (card,) = swept(["softmax"], setup, tmp_path, patterns=("CC",)).cards
    short, long = card["points"]
    assert short["status"] == long["status"] == "ok"
    assert long["state_bytes"] > 2.5 * short["state_bytes"]


@pytest.mark.full
def test_compiled_code_is_measured_too(tmp_path, reports):
    """In a process of its own: the shape checks that tests add to every function cannot be traced."""
    words = ["measure", "linear", *WORDS, "--mode", "train", "--variant", "eager", "compiled"]
    words += ["--trust", reports, "--out", tmp_path, "--json"]
    program = [sys.executable, "-m", "longspan", *map(str, words)]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    (card,) = json.loads(done.stdout)
    assert set(statuses(card).values()) == {"ok"}
    assert {p["variant"] for p in card["points"] if p["memory"] is None} == {"compiled"}


def test_what_cannot_be_asked_of_any_mechanism_is_unsupported_with_a_sentence():
    block = replace(TINY, module="block")
    assert "causal" in (why_unsupported(Pattern.NONCAUSAL_SELF, TINY, "decode", "eager", "cuda") or "")
    assert "block" in (why_unsupported(Pattern.CAUSAL_SELF, block, "decode", "eager", "cuda") or "")
    assert "compiled" in (why_unsupported(Pattern.CAUSAL_SELF, TINY, "decode", "compiled", "cuda") or "")
    assert "CPU" in (why_unsupported(Pattern.CAUSAL_SELF, TINY, "train", "graph", "cpu") or "")
    assert why_unsupported(Pattern.CAUSAL_SELF, TINY, "decode", "graph", "cuda") is None


# ------------------------------------------------------------------------------------------------------------ the gate


FAULTS = [("wrong_step.py:WrongStep", "CS"), ("padding_mix.py:PaddingMix", "NS"), ("nan_row.py:NanRow", "CS")]


@pytest.mark.parametrize("target, pattern", FAULTS)
def test_a_planted_fault_gets_no_speed(tmp_path, target, pattern):
    (card,) = swept([str(FAULTY / target)], TINY, tmp_path, patterns=(pattern,), trusted=()).cards
    assert set(statuses(card).values()) == {"refused"}
    assert all(point["seconds"] is None for point in card["points"])
    assert not card["gate"]["ok"]
    assert "it breaks" in card["gate"]["reason"]


def test_what_is_wrong_at_one_length_gets_no_speed_there(tmp_path):
    (card,) = swept([planted("CoarseWhenLong")], TINY, tmp_path).cards
    assert statuses(card) == {
        (16, "forward", "eager"): "ok",
        (16, "train", "eager"): "ok",
        (48, "forward", "eager"): "refused",
        (48, "train", "eager"): "refused",
    }
    assert "10.0% away" in card["points"][-1]["reason"]
    assert not card["gate"]["ok"]
    assert card["gate"]["error"] == pytest.approx(0.1, rel=1e-3)


def test_an_output_that_is_not_finite_gets_no_speed_even_where_nothing_finer_exists(tmp_path):
    only, endless = swept([planted("OnlySingle"), planted("Endless")], replace(TINY, lengths=(16,)), tmp_path).cards
    assert set(statuses(only).values()) == {"ok"}
    assert only["gate"] == {
        "ok": True,
        "reason": None,
        "dtype": "float32",
        "checked": ["conformance, full, by an earlier report"],
        "error": None,
    }
    assert set(statuses(endless).values()) == {"refused"}


def test_a_trusted_report_spares_the_check_and_the_card_says_so(tmp_path, monkeypatch):
    def never(*asked, **how):
        raise AssertionError("it was checked again")

    monkeypatch.setattr("longspan.efficiency.gate.check", never)
    setup = replace(TINY, lengths=(16,), modes=("forward",))
    (card,) = swept(["linear"], setup, tmp_path).cards
    assert card["gate"]["checked"][0] == "conformance, full, by an earlier report"
    (card,) = swept(["linear"], setup, tmp_path / "b", trusted=trust("linear", ok=False)).cards
    assert statuses(card) == {(16, "forward", "eager"): "refused"}
    for other in ({"dtype": "bfloat16"}, {"device": "cuda"}, {"pattern": "causal_self"}, {"mechanism": "softmax"}):
        with pytest.raises(AssertionError, match="checked again"):
            swept(["linear"], setup, tmp_path / "c", trusted=[trust("linear")[0] | other])


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_running_out_of_memory_is_a_point_and_spares_longer_lengths_the_attempt(tmp_path):
    setup = replace(TINY, lengths=(16, 48, 64))
    asked = [planted("Hungry"), planted("HungryOnlyInTraining"), "linear"]
    hungry, training, linear = swept(asked, setup, tmp_path).cards
    assert set(statuses(linear).values()) == {"ok"}
    reasons = [point["reason"] for point in hungry["points"] if point["status"] == "oom"]
    first, later = "out of memory on cpu with 2 rows of length 48", "not tried: out of memory at length 48 already"
    assert reasons == [first, first, later, later]
    assert [key for key, status in statuses(training).items() if status == "oom"] == [
        (48, "train", "eager"),
        (64, "train", "eager"),
    ]
    assert hungry["points"][-1]["seconds"] is hungry["points"][-1]["memory"] is None


@pytest.mark.parametrize(
    "name, reason",
    [
        ("Broken", "IndexError: no more than 40"),
        ("Leaves", "SystemExit: 3"),
        ("Bound", "ValueError: rows of 48 are more than it has parameters for"),
    ],
)
def test_what_cannot_run_fails_with_its_reason_where_it_cannot_and_nowhere_else(tmp_path, name, reason):
    (card,) = swept([planted(name)], TINY, tmp_path).cards
    assert [point["status"] for point in card["points"]] == ["ok", "ok", "fail", "fail"]
    assert {point["reason"] for point in card["points"][2:]} == {reason}


def test_a_device_that_is_lost_ends_the_sweep_with_a_sentence_and_keeps_what_is_there(tmp_path, monkeypatch, measured):
    with monkeypatch.context() as lost:
        lost.setattr(sweep, "is_sound", lambda device: False)
        with pytest.raises(RunFailed, match="after linear, forward, eager at length 16; the same command goes on"):
            swept(["linear"], TINY, tmp_path)
    swept(["linear"], TINY, tmp_path)
    assert [key[1:3] for key in measured] == [(16, "forward"), (16, "train"), (48, "forward"), (48, "train")]


def test_a_mechanism_that_cannot_be_compiled_is_unsupported_and_can_still_be_timed(tmp_path, monkeypatch):
    def refuse(compute, dynamic):
        def call(*inputs):
            raise NotImplementedError("a graph with this in it")

        return call

    monkeypatch.setattr(torch, "compile", refuse)
    setup = replace(TINY, lengths=(16,), modes=("forward",), variants=("compiled", "eager"))
    (card,) = swept(["linear"], setup, tmp_path).cards
    compiled, eager = card["points"]
    assert compiled["status"] == "unsupported"
    assert compiled["reason"] == "cannot be compiled: NotImplementedError: a graph with this in it"
    assert eager["status"] == "ok"


def test_compiled_code_that_computes_something_else_gets_no_speed(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda compute, dynamic: lambda *inputs: 2 * compute(*inputs))
    setup = replace(TINY, lengths=(16,), modes=("forward",), variants=("compiled",))
    (card,) = swept(["linear"], setup, tmp_path).cards
    assert card["points"][0]["status"] == "refused"
    assert card["points"][0]["reason"].startswith("compiled, the output is 100.0% away")


def test_a_call_that_cannot_be_recorded_is_unsupported_and_a_compiled_one_is_timed_as_it_is(monkeypatch):
    work = TimedCalls([lambda: None], [], lambda: None)

    def refuse(calls):
        raise RuntimeError("called a synchronizing CUDA operation")

    monkeypatch.setattr(variants, "captured", refuse)
    with pytest.raises(sweep._NotThisWay, match="cannot be captured as a graph: RuntimeError: called a synch"):
        runner_of(work, "graph", "cuda")
    assert runner_of(work, "compiled", "cuda")[1] is False

    def hungry(calls):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(variants, "captured", hungry)
    for variant in ("graph", "compiled"):
        with pytest.raises(torch.OutOfMemoryError):
            runner_of(work, variant, "cuda")
    monkeypatch.setattr(variants, "captured", lambda calls: Runner(calls[0], len(calls)))
    assert runner_of(work, "graph", "cuda")[1] is True


def test_memory_that_ran_out_while_recording_is_told_from_a_recording_that_failed():
    error = RuntimeError("the capture was invalidated")  # how an OOM surfaces when capture ends
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert status_of(error)[0] == "oom"
    assert status_of(RuntimeError()) == ("fail", "RuntimeError: no message")


# ------------------------------------------------------------------------------------------------------------- going on


def test_ctrl_c_keeps_what_is_measured_and_the_next_call_goes_on(tmp_path, measured):
    def stop(what):
        if "48" in what and "train" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(["linear"], TINY, tmp_path, watch=stop)
    assert len(measured) == 3
    assert Store(tmp_path / "cards").cards("measurement") == []
    (card,) = swept(["linear"], TINY, tmp_path).cards
    assert measured[3:] == [("linear", 48, "train", "eager")]
    assert len(card["points"]) == 4


def test_the_same_command_gives_the_very_same_card_unless_asked_to_measure_again(tmp_path, measured):
    setup = replace(TINY, lengths=(16,))
    first = swept(["linear"], setup, tmp_path).cards
    assert swept(["linear"], setup, tmp_path).cards == first
    assert len(measured) == 2
    assert len(list((tmp_path / "cards").rglob("*.json"))) == 1
    swept(["linear"], setup, tmp_path, again=True)
    assert len(measured) == 4


def test_points_that_are_there_serve_any_question_that_has_them(tmp_path, measured):
    swept(["linear"], replace(TINY, lengths=(16,), modes=("forward",)), tmp_path)
    swept(["linear"], TINY, tmp_path)
    assert len(measured) == 4
    (card,) = swept(["linear"], replace(TINY, lengths=(48,)), tmp_path).cards
    assert len(measured) == 4
    assert [point["length"] for point in card["points"]] == [48, 48]


@pytest.mark.parametrize("change", [{"batch": 1}, {"module": "layer"}, {"repeats": 4}, {"dtype": "bfloat16"}])
def test_another_setting_is_another_measurement(tmp_path, measured, change, monkeypatch):
    monkeypatch.setattr(_Sheet, "_verdict", lambda sheet: {"ok": True})
    setup = replace(TINY, lengths=(16,), modes=("forward",))
    swept(["linear"], setup, tmp_path)
    swept(["linear"], replace(setup, **change), tmp_path)
    assert len(measured) == 2


def test_changed_code_and_energy_that_was_not_measured_are_another_measurement(tmp_path, measured, monkeypatch):
    setup, said = replace(TINY, lengths=(16,), modes=("forward",)), []
    swept(["linear"], setup, tmp_path)
    swept(["linear"], replace(setup, energy=True), tmp_path, remark=said.append)
    assert len(measured) == 2
    assert len(said) == 1
    assert "Energy is not measured" in said[0]
    swept(["linear"], setup, tmp_path)
    assert len(measured) == 2
    monkeypatch.setattr(sweep.source, "source_hash", lambda cls, parts: "changed")
    swept(["linear"], setup, tmp_path)
    assert len(measured) == 3


def test_what_does_not_fit_the_budget_is_left_for_the_next_call(tmp_path, measured):
    done = swept(["linear", "softmax"], TINY, tmp_path, budget=0)
    assert (done.cards, done.left, measured) == ([], 8, [])
    swept(["linear"], TINY, tmp_path)
    done = swept(["linear", "softmax"], TINY, tmp_path, budget=0)
    assert ([card["mechanism"] for card in done.cards], done.left) == (["linear"], 4)
    assert swept(["linear", "softmax"], TINY, tmp_path, budget=60).left == 0


# ----------------------------------------------------------------------------------------------------- what is measured


def test_all_means_every_mechanism_but_the_twins_of_released_code():
    assert {"softmax", "linear", "s4d", "none"} <= set(ranked())
    assert not {"lra_local", "cab_abc"} & set(ranked())


def test_a_pattern_that_is_not_declared_is_refused_or_left_out():
    with pytest.raises(UnsupportedPattern, match="fnet does not declare causal_self"):
        pairs_of(["fnet"], ["NS", "CS"])
    narrowed = pairs_of(["fnet", "linear"], ["NS", "CS"], narrow=True)
    assert [(str(m), p.code) for m, p in narrowed] == [("fnet", "NS"), ("linear", "NS"), ("linear", "CS")]


@pytest.mark.parametrize(
    "wrong, word",
    [
        ({"lengths": ()}, "Lengths"),
        ({"lengths": (16, 16)}, "Lengths"),
        ({"modes": ("inference",)}, "modes"),
        ({"variants": ("eager", "eager")}, "variants"),
        ({"module": "model"}, "module"),
        ({"dtype": "float16"}, "dtype"),
        ({"heads": 0}, "heads"),
        ({"seconds": 0}, "seconds"),
    ],
)
def test_a_setup_that_measures_nothing_is_refused(wrong, word):
    with pytest.raises(UsageError, match=word):
        replace(TINY, **wrong)


def test_the_usual_setup_of_a_gpu_is_bfloat16_under_graphs_and_that_of_a_cpu_is_neither():
    assert Setup.usual("cuda").variants == ("eager", "graph")
    assert (Setup.usual("cuda").dtype, Setup.usual("cpu").dtype) == ("bfloat16", "float32")
    assert Setup.usual("cpu", lengths=(8,), dtype=None).lengths == (8,)
    assert Setup.usual("cuda").lengths[-1] == 65_536


# ----------------------------------------------------------------------------------------------------- the command line

WORDS = ["--lengths", "16", "24", "--mode", "forward", "--batch", "2", "--heads", "2", "--dim", "4"]
WORDS += ["--repeats", "5", "--seconds", "0.005", "--device", "cpu"]


@pytest.fixture
def reports(tmp_path):
    path = tmp_path / "conformance.json"
    known = [*trust("linear", "softmax", planted("Broken")), *trust(planted("Hungry"), ok=False)]
    path.write_text(json.dumps(known))
    return path


def call(*words, out, reports):
    return CliRunner().invoke(app, ["measure", *words, *WORDS, "--trust", str(reports), "--out", str(out)])


def test_the_verb_prints_a_row_per_mechanism_in_every_format(tmp_path, reports):
    shown = call("linear", "softmax", out=tmp_path, reports=reports)
    assert shown.exit_code == 0, shown.output
    assert all(word in shown.stdout for word in ("forward, eager", "16", "24", "linear", "softmax", "µs"))
    found = json.loads(call("linear", "--json", out=tmp_path, reports=reports).stdout)
    assert [len(card["points"]) for card in found] == [2]
    assert call("linear", "--format", "md", out=tmp_path, reports=reports).stdout.startswith("## forward, eager")
    assert call("linear", "softmax", "--format", "csv", out=tmp_path, reports=reports).stdout.count("\n") == 1 + 4


def test_the_verb_ends_with_1_when_a_mechanism_is_refused_and_4_when_one_cannot_run(tmp_path, reports):
    refused = call(planted("Hungry"), "linear", out=tmp_path, reports=reports)
    assert refused.exit_code == 1
    assert "REFUSED" in refused.stdout
    assert "linear" in refused.stdout
    assert refused.stderr.startswith("Not timed: planted.py:Hungry as noncausal_self (it breaks 'no future leak'")
    failed = call(planted("Broken"), "--lengths", "48", out=tmp_path, reports=reports)
    assert failed.exit_code == 4
    assert "Could not run: planted.py:Broken" in failed.stderr


@pytest.mark.parametrize(
    "words, hint", [(["liner"], "linear"), ([], "--all"), (["fnet", "--pattern", "CS"], "declares")]
)
def test_the_verb_refuses_what_it_cannot_measure_before_it_measures(tmp_path, reports, words, hint):
    result = call(*words, out=tmp_path / "out", reports=reports)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_verb_says_how_many_points_a_budget_left(tmp_path, reports):
    result = call("linear", "--budget", "0", out=tmp_path, reports=reports)
    assert result.exit_code == 0
    assert "2 points are left" in result.stderr


# ------------------------------------------------------------------------------------------------------ as CAB measured


def test_cabs_preset_has_its_options_and_both_exact_attentions_and_every_one_can_be_built():
    asked = cab.as_measured([])
    assert asked[:2] == [cab.VANILLA, "softmax"]
    assert {name.partition("(")[0] for name in asked[2:]} == {
        row.mechanism for row in published.measured("cab-efficiency-lengths").rows
    }
    for name in asked:
        attentions.get(name)(64, 8, Pattern.NONCAUSAL_SELF, max_length=64)
    assert cab.as_measured(["performer", "linear", "abc(slots=4)"])[2:] == [
        "performer(features=16)",
        "linear",
        "abc(slots=4)",
    ]


def test_cabs_preset_asks_for_layers_in_float32_at_six_lengths_and_what_is_named_takes_its_place(monkeypatch):
    asked = []

    def instead(pairs, setup, **how):
        asked.append(([str(mechanism) for mechanism, _ in pairs], setup))
        return sweep.Sweep([], 0)

    monkeypatch.setattr(sweep, "measure", instead)
    words = ["measure", "cosformer", "--preset", "cab", "--device", "cpu"]
    for more in ([], ["--lengths", "16", "--module", "core"]):
        assert CliRunner().invoke(app, [*words, *more]).exit_code == 0
    (names, setup), (_, changed) = asked
    assert names == [cab.VANILLA, "softmax", "cosformer"]
    assert (setup.module, setup.dtype, setup.lengths) == ("layer", "float32", (256, 512, 1024, 2048, 4096, 8192))
    assert (setup.batch, setup.heads, setup.dim) == (4, 8, 64)
    assert (changed.module, changed.lengths) == ("core", (16,))

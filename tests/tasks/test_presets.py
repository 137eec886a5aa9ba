"""Options that a protocol gives mechanisms: CAB's Table 5, applied to a name without options and put on the card."""

import pytest

from longspan import attentions, tasks
from longspan.core.errors import UsageError
from longspan.runs import Cell, RunPlan, run
from longspan.runs.load import plan_of

PRESET = [
    (name, pattern, form)
    for name in tasks.names()
    for presets in tasks.get(name).presets.values()
    for preset in presets.values()
    for pattern in dict.fromkeys(tasks.get(name).meta.slots.values())
    if (form := preset.form(pattern))
]
TABLE = [
    ("summarization", "NS", "local", "local(window=15)"),
    ("summarization", "CS", "local", "local"),  # 16 keys is the default
    ("summarization", "NS", "abc", "abc(slots=64)"),
    ("summarization", "CC", "performer", "performer(features=64)"),
    ("summarization", "NS", "longshort", "longshort(landmarks=16, window=15)"),
    ("summarization", "CS", "longshort", "longshort(chunk=64, window=16)"),
    ("summarization", "NS", "cosformer", "cosformer"),
    ("mlm", None, "abc", "abc(slots=64)"),
    ("mlm", None, "nystromformer", "nystromformer(landmarks=16)"),
    ("mlm", None, "lara", 'lara(landmarks=16, proposal="means", weighting="query")'),
    ("mlm", None, "cab_lara", "cab_lara(landmarks=16)"),
    ("lm", None, "s4d", 's4d(bidirectional=False, channels=8, init="inv", output="linear", tied=True)'),
    ("tts_fastspeech2", None, "longshort", "longshort(conv=5, landmarks=64, window=15)"),
    ("tts_fastspeech2", None, "s4d", 's4d(bidirectional=False, channels=2, init="inv", output="linear", tied=True)'),
    ("tts_transformer", "NS", "nystromformer", "nystromformer(conv=5)"),  # 64 landmarks are the default
    ("tts_transformer", "CS", "s4d", 's4d(bidirectional=False, channels=4, init="inv", output="linear", tied=True)'),
    ("tts_transformer", "CC", "performer", "performer(features=64)"),
    ("forecasting_ecl", None, "performer", "performer(features=16)"),
    ("forecasting_ecl", None, "abc", "abc"),
    ("forecasting_ecl", "NS", "performer", "performer"),  # not in the table
]


def planned(task, mechanism, pattern=None, protocol="cab-2023"):
    return RunPlan.of(Cell(task, mechanism, pattern, protocol, "full"))


@pytest.mark.parametrize("task, pattern, mechanism, resolved", TABLE)
def test_a_name_without_options_has_those_of_the_table(task, pattern, mechanism, resolved):
    plan = planned(task, mechanism, pattern)
    assert str(plan.mechanism) == plan.identity["mechanism"] == resolved
    in_the_table = mechanism != "cosformer" and (task, pattern) != ("forecasting_ecl", "NS")
    assert plan.preset == (mechanism if in_the_table else None)


@pytest.mark.parametrize("task, pattern, mechanism, resolved", TABLE)
def test_other_protocols_leave_a_name_as_it_is(task, pattern, mechanism, resolved):
    plan = planned(task, mechanism, pattern, "longspan")
    assert (str(plan.mechanism), plan.preset) == (mechanism, None)


def test_options_that_are_given_win_even_if_they_are_the_defaults():
    plan = planned("summarization", "abc(slots=16)")
    assert (plan.mechanism.options.get("slots", 16), plan.preset) == (16, None)
    assert planned("summarization", "abc(slots=5)").mechanism.options == {"slots": 5}


def test_two_patterns_share_options_or_are_refused():
    assert str(planned("summarization", "abc", "NS+CS").mechanism) == "abc(slots=64)"
    with pytest.raises(UsageError, match=r"local\(window=15\) as noncausal_self; local\(window=16\) as causal_self"):
        planned("summarization", "local", "NS+CS")


@pytest.mark.parametrize("task, pattern, form", PRESET)
def test_every_preset_can_be_had(task, pattern, form):
    attentions.get(form)(48, 4, pattern, max_length=64, max_context=64)


def test_the_card_names_the_options_and_the_name_that_was_given(tmp_path):
    cell = Cell("forecasting_etth1", "performer", None, "cab-2023", "smoke", 0, {"recipe.steps": 2})
    card = run(cell, out=tmp_path, data=tmp_path / "data", device="cpu", weights=False, progress=False)
    assert card["mechanism"] == "performer(features=16)"
    assert card["preset"] == "performer"
    assert str(plan_of(card).mechanism) == card["mechanism"]


def test_what_a_card_names_is_taken_as_it_is():
    """A card of abc with 16 slots says `abc`, and does not belong to the preset."""
    card = {"task": "summarization", "mechanism": "abc", "pattern": "causal_cross", "protocol": "cab-2023"}
    card |= {"tier": "full", "seed": 0, "overrides": {}, "task_version": tasks.get("summarization").meta.version}
    assert str(plan_of(card, trust=True).mechanism) == "abc"

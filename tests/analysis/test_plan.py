"""A plan lists the cells a board lacks, says where their times come from, and runs the most informative first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.analysis.expected_time import Expected, Times
from longspan.analysis.plan import MissingCell, Queue, cell_key, missing
from longspan.core.cell import Cell
from longspan.core.errors import UsageError
from tests.results.factory import make_card, make_core

NS = "noncausal_self"
SETTINGS = {"data": {"length": 2000}, "model": {"dim": 64, "layers": 2}, "recipe": {"steps": 500, "batch_size": 32}}


def entry(name, patterns=(NS,), *, version=1, fidelity=False):
    return {"name": name, "patterns": list(patterns), "version": version, "fidelity": fidelity}


def task(name, *, version=1, slots=(NS,), settings=SETTINGS):
    tiers = {f"longspan/{tier}": settings for tier in ("smoke", "lite", "full")}
    return {"name": name, "version": version, "slots": dict(enumerate(slots)), "settings": tiers, "presets": {}}


CATALOGUE = {
    "attentions": [entry("softmax"), entry("linear"), entry("lra_local", fidelity=True), entry("lm", ["causal_self"])],
    "tasks": [task("listops"), task("pathfinder")],
}


def card(mechanism="softmax", name="listops", *, seconds=50.0, tier="full", shared=None, **fields):
    timing = {"wall_seconds": seconds, "steps_per_second": 10.0, "examples_per_second": 320.0}
    timing |= {} if shared is None else {"shared": shared}
    return make_card(mechanism, name, tier=tier, timing=timing, **fields)


def planned(cards, suite="lra-generated", catalogue=CATALOGUE, measurements=(), device="Test CPU", **how):
    return missing(cards, catalogue, suite, Times(cards, measurements, device), **how)


def names(plan):
    return {(one.cell.task, one.cell.mechanism, one.cell.seed) for one in plan.cells}


def test_a_board_lacks_what_has_no_card_of_mechanisms_that_are_ranked_and_can_fill_the_slot():
    plan = planned([card(), card("linear", "pathfinder")])
    assert names(plan) == {("listops", "linear", 0), ("pathfinder", "softmax", 0)}
    assert plan.present == {"listops": 1, "pathfinder": 1}


OTHERS = {
    "another tier": {"tier": "lite"},
    "another version of the task": {"task_version": 2},
    "another pattern": {"pattern": "causal_self"},
    "settings of its own": {"overrides": {"recipe.steps": 3}},
    "older settings": {"settings": SETTINGS | {"recipe": {"steps": 900}, "precision": "fp32", "device": "cpu"}},
    "stand-in data": {"variant": "standin"},
    "another version of the mechanism": {
        "settings": SETTINGS | {"precision": "fp32", "device": "cpu", "mechanism_version": 2}
    },
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS.keys())
def test_a_card_that_the_board_of_today_does_not_show_is_no_card(fields):
    assert ("listops", "softmax", 0) not in names(planned([card()]))
    assert ("listops", "softmax", 0) in names(planned([card(**fields)]))


def test_a_failed_run_is_a_result_and_a_form_of_the_protocol_has_its_plain_name():
    assert ("listops", "softmax", 0) not in names(planned([card(status="fail")]))
    assert ("listops", "linear", 0) not in names(planned([card("linear(eps=0.1)", preset="linear")]))


def test_seeds_patterns_and_unknown_names():
    plan = planned([card()], "listops", mechanisms=["softmax", "lm", "mine.py:Mine"], seeds=2)
    assert names(plan) == {("listops", "softmax", 1), ("listops", "mine.py:Mine", 0), ("listops", "mine.py:Mine", 1)}
    assert plan.notes == ("Cannot run as noncausal_self, which listops needs: lm.",)
    assert planned([], "listops", pattern="CS").notes == ("listops has no slot for causal_self.",)
    assert planned([], "listops", protocol="lra-paper").notes == ("listops has no full tier under lra-paper.",)
    with pytest.raises(UsageError, match="No suite or task named 'listop'"):
        planned([], "listop")


# --------------------------------------------------------------------------------------------------------------- times


def expected(cards, mechanism, name="listops", measurements=(), device="Test CPU"):
    return Times(cards, measurements, device).of(name, mechanism, NS, "longspan", "full", 500)


def test_a_cell_that_was_run_takes_as_long_again():
    cards = [card(seconds=40.0), card(seed=1, seconds=60.0), card(seed=2, seconds=50.0)]
    assert expected(cards, "softmax") == Expected(50.0, "measured")


def test_a_run_under_an_older_version_of_the_task_is_a_guess_and_one_of_today_is_preferred():
    old, lite = card(task_version=1, seconds=80.0), card(task_version=2, tier="lite", seconds=5.0, points=1)

    def today(cards, mechanism="softmax"):
        return Times(cards, [], "Test CPU", {"listops": 2}).of("listops", mechanism, NS, "longspan", "full", 500)

    assert today([old]) == Expected(80.0, "guess: full of an older version", guess=True)
    guess = Expected(pytest.approx(80.0), "guess: as softmax, in an older version", guess=True)
    assert today([old], "linear") == guess
    assert today([old, card(task_version=1, shared=True)], "linear") == guess
    assert today([old, lite]) == Expected(25.0, "from lite", guess=True)
    assert today([old, card(task_version=2)]) == Expected(50.0, "measured")


def test_another_tier_is_scaled_by_its_steps_and_smoke_never():
    lite = card(tier="lite", seconds=5.0, points=1)
    assert expected([lite], "softmax") == Expected(25.0, "from lite", guess=True)
    assert expected([card(tier="smoke")], "softmax").seconds is None


def test_a_mechanism_without_a_card_is_as_much_slower_than_softmax_as_elsewhere():
    elsewhere = [card(name="pathfinder", seconds=10.0), card("linear", "pathfinder", seconds=30.0)]
    guess = expected([*elsewhere, card(seconds=50.0)], "linear")
    assert (guess.seconds, guess.source, guess.guess) == (pytest.approx(150.0), "guess: 3 x softmax", True)


def test_without_runs_half_of_what_a_measured_mechanism_is_slower_counts():
    measured = [make_core("softmax", {1024: 1e-5}), make_core("abc", {1024: 3e-5}), make_core("fnet", {1024: 1e-6})]
    on_gpu = card(environment={"gpu": "Test GPU"}, settings=SETTINGS | {"precision": "bf16", "device": "cuda"})
    for mechanism, seconds in (("abc", 100.0), ("fnet", 50.0), ("linear", 50.0)):
        guess = expected([on_gpu], mechanism, measurements=measured, device="Test GPU")
        assert (guess.seconds, guess.guess) == (pytest.approx(seconds), True)


def test_runs_that_shared_their_device_and_other_devices_give_no_measured_time():
    guess = expected([card(shared=True, seconds=80.0)], "softmax")
    assert guess == Expected(80.0, "guess: full on a shared device", guess=True, shared=True)
    guess = expected([card(shared=True, seconds=80.0)], "linear")
    assert guess == Expected(pytest.approx(80.0), "guess: as softmax, on a shared device", guess=True, shared=True)
    assert expected([card(shared=True, seconds=80.0), card(seed=1)], "linear").seconds == pytest.approx(50.0)
    assert expected([card()], "softmax", device="Other CPU") == Expected(
        None, "no card of listops on Other CPU", guess=True
    )


# --------------------------------------------------------------------------------------------------------------- order


def one(seconds, *, seed=0, mechanism="linear", done=0.0, information=1.0):
    cell = Cell("listops", mechanism, seed=seed, tier="full")
    return MissingCell(cell, NS, information, Expected(seconds, ""), done)


def test_what_is_worth_most_for_its_minutes_comes_first():
    cards = [card(seconds=600.0), card("linear", seconds=600.0), card(name="pathfinder", seconds=60.0)]
    order = [(one.cell.task, one.cell.mechanism, one.cell.seed) for one in planned(cards, seeds=2).cells]
    assert order == [
        ("pathfinder", "linear", 0),
        ("pathfinder", "softmax", 1),
        ("pathfinder", "linear", 1),
        ("listops", "softmax", 1),
        ("listops", "linear", 1),
    ]


def test_of_a_run_that_was_begun_only_the_rest_costs_anything():
    begun = {cell_key(Cell("listops", "linear", tier="full")): 0.9}
    plan = planned([card(seconds=600.0), card(name="pathfinder", seconds=600.0)], begun=begun)
    first = plan.cells[0]
    assert (first.cell.task, first.done, first.seconds) == ("listops", 0.9, pytest.approx(60.0))


def test_where_no_time_is_known_softmax_comes_first_and_the_others_last():
    order = [(one.cell.mechanism, one.per_minute > 0) for one in planned([], "listops").cells]
    assert order == [("softmax", True), ("linear", False)]


@given(
    times=st.lists(st.none() | st.floats(1, 1e5), max_size=8), left=st.none() | st.floats(0, 2e5), share=st.floats(1, 4)
)
def test_every_cell_is_handed_out_once_and_the_first_that_fits_comes_first(times, left, share):
    cells = [one(seconds, seed=seed) for seed, seconds in enumerate(times)]
    queue, taken = Queue(cells, share), []
    while (chosen := queue.take(left)) is not None:
        rest = [cell for cell in cells if cell not in taken]
        fits = [c for c in rest if left is None or (c.seconds is not None and c.seconds * share + 30 <= left)]
        assert chosen is (fits or rest)[0]
        taken.append(chosen)
    assert len(taken) == len(cells)


def test_a_time_among_others_is_not_slowed_down_twice():
    alone = one(100.0)
    among = MissingCell(alone.cell, NS, 1.0, Expected(100.0, "", shared=True))
    assert Queue([alone, among], 3.0).take(200.0) is among


def test_a_run_that_was_begun_comes_first_even_if_nobody_knows_how_long_it_takes():
    begun = {cell_key(Cell("listops", "linear", tier="full")): 0.9}
    assert planned([], "listops", begun=begun).cells[0].cell.mechanism == "linear"


def test_cells_of_a_task_without_data_are_given_up():
    queue = Queue([one(1.0), one(2.0, seed=1)])
    assert len(queue.drop("text")) == 0
    assert len(queue.drop("listops")) == 2
    assert queue.take(None) is None

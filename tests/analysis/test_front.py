"""The Pareto front of score, time and memory: who is on it, what beats the others, and how sure that is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan import analysis
from longspan.analysis import Evidence, gather
from longspan.analysis.front import Cost, dominated
from longspan.core.errors import DataMissing
from longspan.report.question_figures import describe
from longspan.results.store import Store
from tests.results.factory import make_card, write_predictions

PRICES = st.tuples(st.integers(0, 3), st.integers(1, 3), st.one_of(st.none(), st.integers(1, 3)))


def rows(evidence):
    finding = analysis.answer("front", evidence)
    names = [column.title for column in finding.columns]
    return {row[1]: dict(zip(names, row, strict=True)) for row in finding.rows}


def run(mechanism, accuracy, speed, gib=1.0, **how):
    memory = {"peak_bytes": None if gib is None else round(gib * 2**30)}
    return make_card(mechanism, accuracy=accuracy, steps_per_second=speed, memory=memory, **how)


@given(st.lists(PRICES, min_size=1, max_size=6))
def test_a_mechanism_is_beaten_by_what_is_as_good_in_all_and_better_in_one(found):
    points = [Cost("", "", score, time, memory) for score, time, memory in found]
    beaten = dominated(points, np.array([[float(score)] for score, _, _ in found]))[:, :, 0]
    for i, (score, time, memory) in enumerate(found):
        for j, (other, its_time, its_memory) in enumerate(found):
            gains = [other - score, time - its_time]
            gains += [memory - its_memory] if memory is not None and its_memory is not None else []
            assert beaten[i, j] == (min(gains) >= 0 and max(gains) > 0)


def test_the_front_holds_what_nothing_beats_in_all_three():
    runs = [run("softmax", 0.6, 1.0, 4.0), run("linear", 0.5, 5.0, 2.0), run("local", 0.5, 4.0, 1.0)]
    found = rows(Evidence(runs=[*runs, run("luna", 0.4, 3.0, 3.0)]))
    assert {name for name, row in found.items() if row["On the front"]} == {"Softmax", "Linear", "Local"}
    assert found["Luna"]["Beaten by"] == "Linear, Local"
    assert (found["Linear"]["ms a step"], found["Linear"]["Memory, GiB"]) == (200.0, 2.0)
    assert found["Linear"]["Sure"] == "–"  # there is nothing to resample


def test_other_machines_and_shared_devices_do_not_compare():
    elsewhere = make_card()["environment"] | {"cpu": "Another CPU"}
    runs = [run("softmax", 0.6, 1.0), run("linear", 0.5, 5.0, environment=elsewhere)]
    shared = make_card()["timing"] | {"shared": True}
    runs.append(run("local", 0.5, 5.0, timing=shared))
    with pytest.raises(DataMissing, match="timed on one machine"):
        rows(Evidence(runs=runs))
    assert set(rows(Evidence(runs=[*runs, run("luna", 0.5, 5.0)]))) == {"Softmax", "Luna"}


def test_a_network_without_attention_and_twins_of_released_code_beat_nothing():
    runs = [run("softmax", 0.6, 1.0), run("linear", 0.5, 5.0)]
    others = [run("none", 0.7, 9.0), run("lra_linear", 0.7, 9.0, fidelity=True)]
    assert rows(Evidence(runs=[*runs, *others])) == rows(Evidence(runs=runs))


def test_memory_that_is_not_known_is_left_out_of_the_comparison():
    found = rows(Evidence(runs=[run("softmax", 0.6, 2.0, None), run("linear", 0.5, 1.0, None)]))
    assert found["Linear"]["Beaten by"] == "Softmax"
    (figure,) = describe(
        analysis.answer("front", Evidence(runs=[run("softmax", 0.6, 2.0, None), run("linear", 0.5, 1)]))
    )
    assert [view.label for view in figure.views] == ["time"]


def test_of_two_that_are_nearly_alike_the_dearer_is_on_the_front_in_some_draws(tmp_path):
    store = Store(tmp_path / "cards")
    for seed, (mine, theirs) in enumerate([(1000, 1100), (1200, 1000), (1040, 1060)]):
        for name, correct, speed in (("softmax", theirs, 5.0), ("linear", mine, 1.0), ("local", 400, 1.0)):
            path = write_predictions(tmp_path / "p.npz", correct, 2000)
            store.add(run(name, correct / 2000, speed, count=2000, seed=seed), files={"predictions": path})
    found = rows(gather([tmp_path / "cards"]))
    assert found["Softmax"]["Sure"] == "100 %"
    assert found["Local"]["Sure"] == "0 %"
    assert 50 < int(found["Linear"]["Sure"].removesuffix(" %")) < 98

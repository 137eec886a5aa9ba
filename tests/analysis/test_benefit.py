"""What attention is good for: Table 12 as printed, and our own runs of `none` beside softmax in the same slots."""

import pytest

from longspan import analysis
from longspan.analysis import Evidence, gather
from longspan.analysis.benefit import cab_pool
from longspan.report.question_figures import describe
from longspan.results.store import Store
from tests.results.cab_cards import CC, CS, NS, run
from tests.results.factory import make_card, write_predictions


def rows_of(*cards, folders=()):
    finding = analysis.answer("benefit", gather(folders) if folders else Evidence(runs=cards))
    names = [column.title for column in finding.columns]
    return [dict(zip(names, row, strict=True)) for row in finding.rows]


def own(*cards, **how):
    return [row for row in rows_of(*cards, **how) if row["From"] != "published"]


def test_the_printed_table_is_repeated_and_nothing_in_it_is_tested():
    rows = {row["Task"]: row for row in rows_of()}
    assert rows["TTS"]["Benefit"] == "+1.855"
    assert rows["PCC"]["Benefit"] == "-0.032"
    assert rows["MLM"]["Without"] == "failed"
    assert rows["SR"]["Best efficient"] == "1.041, cosFormer"
    assert rows["MLM"]["Best efficient"] == "0.528, LongShort"
    assert rows["Sum"]["Best efficient"] == "0.715"  # appears in no row of Table 6
    assert not {row["Attention"] for row in rows.values()} & {"helps", "hurts"}


def test_a_task_without_a_run_of_none_has_no_benefit():
    assert own(make_card("softmax"), make_card("linear")) == []


def test_a_benefit_is_judged_on_the_same_test_examples(tmp_path):
    store, answers = Store(tmp_path / "cards"), tmp_path / "predictions.npz"
    for name, right in (("softmax", 1200), ("none", 400), ("linear", 1100), ("local", 900)):
        files = {"predictions": write_predictions(answers, right, 2000)}
        store.add(make_card(name, accuracy=right / 2000), files=files)
    (row,) = own(folders=[tmp_path / "cards"])
    assert (row["Without"], row["Softmax"], row["Best efficient"]) == ("20.00", "60.00", "55.00, Linear")
    assert (row["Benefit"], row["Attention"], row["Pattern"]) == ("+40.00", "helps", "NS")


def test_one_number_each_settles_nothing():
    (row,) = own(make_card("softmax", accuracy=0.9), make_card("none", accuracy=0.1))
    assert row["95 % interval"] == "–"
    assert row["Attention"] == "open: one number each"


def test_less_is_better_where_the_metric_says_so_and_slots_of_each_pattern_have_a_row():
    def seeds(mechanism, pattern, first):
        how = {"pattern": pattern, "tier": "lite"}
        return [run("tts_transformer", {"mcd": first + s / 100, "msd": 2.0}, mechanism, seed=s, **how) for s in (0, 1)]

    cards = [*seeds("softmax", NS, 3.0), *seeds("none", NS, 4.0), *seeds("softmax", CC, 3.0), *seeds("none", CC, 2.5)]
    found = {row["Pattern"]: row["Attention"] for row in own(*cards)}
    assert found == {"NS": "helps", "CC": "hurts"}


@pytest.mark.parametrize("tier, data, scored", [("full", "official", "cab-2023"), ("lite", "official", None)])
def test_published_constants_score_full_runs_on_the_data_of_the_task_alone(tier, data, scored):
    how = {"pattern": NS, "tier": tier, "variant": data}
    cards = [run("mlm", {"perplexity": value}, name, **how) for name, value in (("softmax", 4.0), ("none", 36.292))]
    found = [row for row in own(*cards) if row["Scored by"].startswith("index")]
    assert [row["Scored by"] for row in found] == ([f"index, {scored}"] if scored else [])
    if scored:
        assert found[0]["Without"] == "0.000"  # the published mean


def test_point_clouds_in_noncausal_self_slots_are_scored_by_a_pool_of_five_without_none():
    names = ["softmax", *sorted(cab_pool() - {"softmax"})]
    metrics = {"cd_l1": 7.0, "cd_l2": 0.2, "f_score": 0.7}

    def made(count):
        cards = [
            run("point_cloud_completion", {m: v * (1 + place / 10) for m, v in metrics.items()}, name, pattern=NS)
            for place, name in enumerate([*names[:count], "none"])
        ]
        return [row for row in own(*cards) if row["Scored by"].startswith("index")]

    assert made(4) == []
    (row,) = made(5)
    assert row["Scored by"] == "index, own pool of 5"
    assert row["Task"] == "PCC"


def test_the_best_efficient_one_is_not_quadratic_unless_cab_calls_it_efficient():
    def made(**scores):
        cards = [run("lm", {"perplexity": v}, name, pattern=CS, tier="lite") for name, v in scores.items()]
        return [row["Best efficient"] for row in own(*cards)]

    pool = {"softmax": 20.0, "abc": 24.0, "local": 23.0, "performer": 25.0, "longshort": 22.0, "none": 30.0}
    assert [best.partition(", ")[2] for best in made(**pool, transformer_xl=10.0)] == ["Longshort", "Longshort"]
    assert made(softmax=20.0, none=30.0, transformer_xl=10.0) == ["–"]


def test_own_and_printed_rows_are_drawn_apart():
    cards = [make_card("softmax", accuracy=0.9), make_card("none", accuracy=0.1)]
    (figure,) = describe(analysis.answer("benefit", Evidence(runs=cards)))
    assert [len(view.y.rows) for view in figure.views] == [1, 6]

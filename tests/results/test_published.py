"""The published tables: as printed, with the arithmetic beside them."""

import pytest

from longspan import published
from longspan.core.errors import UnknownName
from longspan.published import FIVE

SIX = (*FIVE, "pathx")


@pytest.mark.parametrize(
    "name, wrong", [("lra-v0", {"Chance", "Sinkhorn Trans."}), ("lra-v1", {"Chance", "Sinkhorn Trans."})]
)
def test_exactly_the_known_printed_averages_are_wrong(name, wrong):
    table = published.load(name)
    assert {row.title for row in table.rows if row.average_is_wrong} == wrong


@pytest.mark.parametrize(
    "name, title, average", [("lra-v0", "Sinkhorn Trans.", 51.48), ("lra-v1", "Sinkhorn Trans.", 51.58)]
)
def test_recomputed_averages(name, title, average):
    table = published.load(name)
    assert round(table.row(title).average(), 2) == average
    assert round(table.row("Chance").average(), 2) == 34.00


def test_six_tasks_count_fail_as_fifty():
    table = published.load("lra-v0")
    assert round(table.row("Transformer").average(SIX, {"pathx": 50.0}), 2) == 53.66
    assert round(table.row("Chance").average(SIX), 2) == 36.67
    assert table.row("Transformer").average(SIX) is None


def test_version_one_differs_from_version_zero_in_listops_only():
    old, new = published.load("lra-v0"), published.load("lra-v1")
    for row in old.rows:
        other = new.row(row.title)
        assert {task: row.scores[task] for task in SIX[1:]} == {task: other.scores[task] for task in SIX[1:]}


@pytest.mark.parametrize("name", published.names())
@pytest.mark.parametrize("task", FIVE)
def test_the_printed_spread_over_models_is_the_sample_deviation(name, task):
    table = published.load(name)
    mean, std = table.spread(task)
    assert (round(mean), round(std, 1)) == (table.summary[task]["mean"], table.summary[task]["std"])


def test_the_printed_spread_of_the_averages_in_version_one_is_stale():
    assert round(published.load("lra-v0").spread("average")[1], 1) == 2.4
    assert round(published.load("lra-v1").spread("average")[1], 1) == 2.7
    assert published.load("lra-v1").summary["average"]["std"] == 2.4


@pytest.mark.parametrize("name", published.names())
def test_every_row_names_its_source(name):
    assert all(row.source for row in published.load(name).rows)


def test_an_unknown_table_is_met_with_a_suggestion():
    with pytest.raises(UnknownName, match="lra-v"):
        published.load("lra-v2")

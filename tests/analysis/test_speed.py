"""Speed and memory are ratios to softmax at the same length on the same machine, whatever was measured."""

import pytest

from longspan.analysis import Evidence, answer
from tests.results.factory import make_core, make_measurement


def rows(*cards):
    finding = answer("speed", Evidence(measurements=cards))
    titles = [column.title for column in finding.columns]
    return [dict(zip(titles, row, strict=True)) for row in finding.rows], finding.notes


def own(*cards):
    return [row for row in rows(*cards)[0] if row["From"] != "published"]


def test_the_paper_alone_has_the_quotients_of_what_it_prints():
    found, _ = rows()
    assert {row["From"] for row in found} == {"published"}
    (row,) = (row for row in found if (row["Mechanism"], row["Mode"]) == ("Performer", "train"))
    assert row["4K"] == pytest.approx(8.0 / 1.4)
    assert row["Memory at 4K"] == pytest.approx(1.06 / 9.48)


def test_the_network_of_the_arena_is_compared_at_each_length():
    made = own(
        make_measurement("softmax", {1000: 8.0, 4000: 2.0}),
        make_measurement("linear", {1000: 4.0, 4000: 10.0}, bytes_per_token=25_000),
    )
    (row,) = made
    assert (row["1K"], row["2K"], row["4K"], row["Memory at 4K"]) == (0.5, None, 5.0, 0.25)


def test_a_mechanism_by_itself_is_compared_at_the_nearest_length_and_called_so():
    cards = (
        make_core("softmax", {1024: 4e-5, 4096: 8e-4}),
        make_core("linear", {1024: 8e-5, 4096: 1e-4}, bytes_per_token=2048),
        make_core("none", {1024: 1e-5, 4096: 1e-5}),
    )
    made = own(*cards)
    assert {row["Mode"] for row in made} == {"train", "inference"}
    assert {row["Mechanism"] for row in made} == {"Linear"}  # `none` is not listed as a mechanism
    assert made[0]["1K"] == pytest.approx(0.5)
    assert made[0]["4K"] == pytest.approx(8.0)
    assert any("not in the arena's network" in note for note in rows(*cards)[1])


def test_without_softmax_on_the_same_machine_there_is_no_ratio():
    assert not own(make_core("linear"), make_core("softmax", environment={"gpu": "Other GPU"}))

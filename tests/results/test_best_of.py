"""Under the protocols of the paper the Text column is the best of four lengths, and says which one."""

import pytest

from longspan import suites
from longspan.results.board import board
from longspan.results.card import seal
from longspan.results.render import render
from tests.results.factory import make_card

LENGTHS = ("text_1k", "text_2k", "text_3k", "text_4k")
OTHERS = ("listops", "retrieval", "image", "pathfinder")


def texts(mechanism="lra_softmax", scores=(0.61, 0.62, 0.65, 0.64), protocol="lra-released", **fields):
    return [
        make_card(mechanism, task, accuracy=score, chance=0.5, protocol=protocol, tier="full", **fields)
        for task, score in zip(LENGTHS, scores, strict=False)
    ]


def lra(cards, protocol="lra-released"):
    return board(cards, "lra", protocol, "full")


@pytest.mark.parametrize("protocol", ["lra-released", "lra-paper"])
def test_the_text_column_shows_the_best_length_and_names_it(protocol):
    view = lra(texts(protocol=protocol), protocol)
    cell = view.rows[0].cells["text"]
    assert (cell.value, cell.best, cell.lacking) == (0.65, "text_3k", ())
    for form in ("terminal", "markdown", "csv"):
        assert "65.00 (3K)" in render(view, form) or form == "csv"
    assert any(note.startswith("Text: the best of four lengths") for note in view.notes)


def test_an_average_waits_for_all_four_lengths():
    rest = [make_card("lra_softmax", task, protocol="lra-released", tier="full") for task in OTHERS]
    partial = lra([*rest, *texts(scores=(0.61, 0.62))]).rows[0]
    assert partial.cells["text"].value == 0.62
    assert partial.averages["avg5"].value is None
    assert partial.averages["avg5"].missing == ("text_3k", "text_4k")
    whole = lra([*rest, *texts()]).rows[0]
    assert whole.averages["avg5"].value == pytest.approx((4 * 0.4 + 0.65) / 5)


def test_seeds_are_averaged_before_the_best_is_chosen():
    """Choosing the best per seed first would give a higher number."""
    cards = [*texts(scores=(0.60, 0.64), seed=0), *texts(scores=(0.66, 0.63), seed=1)]
    cell = lra(cards).rows[0].cells["text"]
    assert (cell.best, cell.seeds) == ("text_2k", 2)
    assert cell.value == pytest.approx(0.635)


def test_a_length_that_failed_does_not_hide_the_others():
    cards = [
        *texts(scores=(0.61,)),
        make_card("lra_softmax", "text_4k", protocol="lra-released", tier="full", status="fail"),
    ]
    cell = lra(cards).rows[0].cells["text"]
    assert (cell.status, cell.best, cell.lacking) == ("ok", "text_1k", ("text_2k", "text_3k"))
    failed = lra(cards[1:]).rows[0].cells["text"]
    assert (failed.status, failed.best) == ("fail", None)


def test_each_row_has_its_own_best():
    view = lra([*texts(), *texts("lra_linear", (0.66, 0.62, 0.60, 0.5))])
    assert {row.mechanism: row.cells["text"].best for row in view.rows} == {
        "lra_softmax": "text_3k",
        "lra_linear": "text_1k",
    }


def test_a_run_of_text_itself_is_off_such_a_board_and_on_that_of_longspan():
    released = make_card("softmax", "text", protocol="lra-released", tier="full")
    assert [one.reason for one in lra([released]).off] == ["the column shows the best of " + ", ".join(LENGTHS)]
    own = make_card("softmax", "text", protocol="longspan", tier="full")
    cell = lra([own, *texts(protocol="longspan")], "longspan").rows[0].cells["text"]
    assert (cell.value, cell.best) == (0.4, None)


def test_a_suite_is_run_by_the_tasks_behind_its_columns():
    suite = suites.get("lra")
    assert suite.tasks_under("longspan") == suite.tasks
    assert set(suite.tasks_under("lra-paper")) == {*suite.tasks, *LENGTHS} - {"text"}


# ------------------------------------------------------------------------------------- forms that a protocol chooses


def local(form, task, preset=True, **fields):
    marked = {"preset": True} if preset else {}
    return make_card(
        form, task, protocol="lra-released", tier="full", fidelity=True, title="Local (LRA)", **marked, **fields
    )


def test_forms_that_the_protocol_chooses_by_the_task_are_one_row():
    cards = [
        local("lra_local", "listops"),
        local("lra_local(block=64)", "image"),
        *texts("lra_local", fidelity=True, preset=True),
    ]
    cards += [local("lra_local(block=64)", "pathfinder"), local("lra_local", "retrieval")]
    view = lra(cards)
    (row,) = view.fidelity
    assert (row.mechanism, row.rank) == ("lra_local", None)
    assert row.averages["avg5"].value is not None
    assert "Options are those the protocol has for the task: lra_local(block=64) on image, pathfinder." in view.notes


def test_forms_that_somebody_else_chose_are_rows_of_their_own():
    cards = [local("lra_local", "listops"), local("lra_local(block=64)", "image", preset=False)]
    assert {row.mechanism for row in lra(cards).fidelity} == {"lra_local", "lra_local(block=64)"}


def test_twins_have_the_settings_they_were_released_with():
    """All ranked mechanisms of a column share one set of settings; twins are not ranked."""

    def sized(name, layers, fidelity):
        card = make_card(name, "pathfinder", protocol="lra-released", tier="full", fidelity=fidelity, sealed=False)
        card["settings"]["model"]["layers"] = layers
        return seal(card)

    twins = lra([sized("lra_softmax", 4, True), sized("lra_linear", 1, True)])
    assert len(twins.fidelity) == 2
    assert twins.off == ()
    ranked = lra([sized("softmax", 4, False), sized("linear", 1, False)])
    assert len(ranked.off) == 1

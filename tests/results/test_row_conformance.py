"""A row says whether its exact code keeps its promises: kept, broken or unchecked."""

import json

import pytest

from longspan.report.matrix import matrix
from longspan.results import card as cards
from longspan.results import conformance
from longspan.results.board import board
from longspan.results.board_notes import KEPT_NOTE
from longspan.results.render import FORMS, render
from longspan.results.row_conformance import Checks, Conformance
from tests.results.factory import make_card

SOURCE, OTHER = "a" * 64, "b" * 64
KEPT = {"status": "kept", "profile": "quick", "broken": []}
BROKEN = {"status": "broken", "profile": "quick", "broken": ["no future leak"]}


def report(mechanism="softmax", pattern="noncausal_self", *broken, code=None, **fields):
    promises = [{"promise": name, "status": "broken", "detail": "why"} for name in broken]
    promises.append({"promise": "shape", "status": "kept", "detail": ""})
    content = {"mechanism": mechanism, "pattern": pattern, "device": "cpu", "dtype": "float32", "profile": "full"}
    return content | {"ok": not broken, "promises": promises} | ({"code": code} if code else {}) | fields


def plugin(source=SOURCE, **fields):
    card = make_card("mine.py:Mine", sealed=False, **fields)
    return cards.seal(card | {"settings": card["settings"] | {"mechanism_sha256": source}})


def status(card, *reports):
    return Checks(reports).of([card]).status


def test_results_count_for_their_own_code_alone():
    mine = report("mine.py:Mine", code={"mechanism_sha256": SOURCE})
    assert status(plugin(), mine) == "kept"
    assert status(plugin(OTHER), mine) == "unchecked"
    assert status(plugin(), report("mine.py:Mine")) == "unchecked"  # it does not say which source
    assert status(make_card("softmax"), report()) == "kept"  # old results of built-ins count as version 1
    assert status(make_card("softmax"), report(code={"mechanism_version": 2})) == "unchecked"
    assert status(make_card("softmax(kernel=plain)"), report()) == "unchecked"


def test_every_pattern_that_was_replaced_must_be_kept_and_one_broken_promise_is_enough():
    both = make_card("softmax", pattern="noncausal_self+causal_self")
    assert status(both, report()) == "unchecked"
    assert status(both, report(), report(pattern="causal_self")) == "kept"
    found = Checks([report(), report("softmax", "causal_self", "no future leak")]).of([both])
    assert found == Conformance("broken", ("no future leak",))
    bf16 = report("softmax", "noncausal_self", "finite", dtype="bfloat16")
    assert status(make_card("softmax"), report(), bf16) == "broken"


def test_a_card_brings_its_own_result():
    assert status(plugin(conformance=KEPT)) == "kept"
    assert status(plugin(conformance=BROKEN)) == "broken"
    assert status(plugin(conformance=KEPT), report("mine.py:Mine", code={"mechanism_sha256": SOURCE})) == "kept"
    broken = report("mine.py:Mine", "noncausal_self", "leak", code={"mechanism_sha256": SOURCE})
    assert status(plugin(conformance=KEPT), broken) == "broken"


def test_what_a_card_brings_is_about_its_own_patterns():
    """In a row with several slots, the card of one says nothing about the others."""
    cards_of_row = [plugin(conformance=KEPT), plugin(pattern="causal_self")]
    assert Checks().of(cards_of_row).status == "unchecked"
    causal = report("mine.py:Mine", "causal_self", code={"mechanism_sha256": SOURCE})
    assert Checks([causal]).of(cards_of_row).status == "kept"
    assert Checks().of([plugin(conformance=KEPT, pattern="noncausal_self+causal_self")]).status == "kept"


class Saved(dict):
    to_json = dict.copy


def test_a_quick_result_does_not_replace_a_full_one_of_the_same_code(tmp_path):
    """Else checking again with --quick would clear a promise that only the full profile tests."""
    mine = "mine.py:Mine", "noncausal_self"
    broken = report(*mine, "long rows", code={"mechanism_sha256": SOURCE})
    quick = report(*mine, code={"mechanism_sha256": SOURCE}, profile="quick")
    for order in ([broken, quick], [quick, broken]):
        conformance.save(tmp_path / "one", map(Saved, order))
        assert conformance.load([tmp_path / "one"])[0] == [broken]
        for number, one in enumerate(order):
            conformance.save(tmp_path / f"{id(order)}-{number}", [Saved(one)])
        assert conformance.load([tmp_path / f"{id(order)}-{number}" for number in range(2)])[0] == [broken]
    conformance.save(tmp_path / "one", [Saved(full := report(*mine, code={"mechanism_sha256": SOURCE}))])
    assert conformance.load([tmp_path / "one"])[0] == [full]
    built_in = [report("softmax", "causal_self", code={"mechanism_version": number}) for number in (1, 2)]
    conformance.save(tmp_path / "two", [Saved(built_in[0]), Saved(later := built_in[1] | {"profile": "quick"})])
    assert conformance.load([tmp_path / "two"])[0] == [later]  # of other code


@pytest.mark.parametrize(
    "changed",
    [
        {"ok": False},
        {"promises": []},
        {"promises": [{"promise": "shape", "status": "not applicable", "detail": ""}]},
        {"promises": [{"promise": "shape", "status": "broken", "detail": "why"}]},
    ],
)
def test_a_result_that_tested_nothing_or_contradicts_itself_is_refused(changed, tmp_path):
    (tmp_path / "conformance.json").write_text(json.dumps(report() | changed))
    found, problems = conformance.load([tmp_path])
    assert (found, len(problems)) == ([], 1)


def view_of(*given):
    return board(given, "lra-generated", "longspan", "smoke", conformance=[report(), report("linear")])


def both_tasks(make, *words, **fields):
    return [make(*words, task=task, **fields) for task in ("listops", "pathfinder")]


def test_a_row_that_breaks_a_promise_is_shown_and_not_ranked():
    best = both_tasks(plugin, accuracy=0.99, conformance=BROKEN)
    others = both_tasks(make_card, "softmax", accuracy=0.5) + both_tasks(make_card, "linear", accuracy=0.3)
    view = view_of(*best, *others)
    assert [(row.mechanism, row.rank) for row in view.rows] == [("softmax", 1), ("linear", 2), ("mine.py:Mine", None)]
    assert [row.cells["listops"].leading for row in view.rows] == [True, False, False]
    assert view.summary["listops"].mean == pytest.approx(0.4)
    assert not any(mean.leading for mean in view.rows[-1].averages.values())
    free = view_of(*both_tasks(plugin, accuracy=0.99, conformance=BROKEN, track="free")).free
    assert [row.rank for row in free] == [None]


def test_a_broken_row_takes_no_task_from_the_speeds_of_the_others():
    assert view_of(*both_tasks(make_card, "softmax"), plugin(conformance=BROKEN)).common == ("listops", "pathfinder")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_it(form):
    view = view_of(plugin(conformance=BROKEN, title="Mine"), make_card("softmax"), make_card("performer"))
    text = render(view, form)
    if form in ("csv", "json"):
        assert all(word in text for word in ("kept", "broken", "unchecked"))
        return
    cross = r"$^\times$" if form == "latex" else "✗"
    assert f"Mine {cross}" in text
    assert "Performer ?" in text
    assert "Softmax ?" not in text
    words = text.replace("\\_", "_")
    assert "Mine: breaks no future leak, so it is not ranked." in words
    assert "is unchecked: there is no result of longspan check" in words
    assert KEPT_NOTE not in words


def test_a_board_that_keeps_all_promises_says_so_in_one_line():
    text = render(view_of(make_card("softmax"), make_card("linear")), "markdown")
    assert text.count(KEPT_NOTE) == 1
    assert "✗" not in text
    assert "unchecked" not in text


def test_a_hostile_promise_is_cut_and_printable():
    bad = {"status": "broken", "profile": "quick", "broken": ["\x1b[31m" + "x" * 490]}
    text = render(view_of(plugin(conformance=bad)))
    assert "\x1b" not in text
    assert "x" * 100 not in text


@pytest.mark.parametrize(
    "field",
    [
        {"status": "perfect", "profile": "quick", "broken": []},
        {"status": "broken", "profile": "quick", "broken": ["x"] * 101},
        {"status": "broken", "profile": "quick", "broken": [1]},
        {"status": "kept"},
        "kept",
    ],
)
def test_what_is_no_conformance_is_refused(field):
    card = make_card(conformance=field)
    with pytest.raises(cards.InvalidCard):
        cards.validate(card)
    assert any(cards.structural_faults(card, cards.SCHEMAS["run"]))
    cards.validate(make_card(conformance=BROKEN))


def test_the_matrix_of_the_report_tells_two_files_of_one_name_apart():
    both = [report("mine.py:Mine", code={"mechanism_sha256": SOURCE})]
    both.append(report("mine.py:Mine", "noncausal_self", "leak", code={"mechanism_sha256": OTHER}))
    rows = matrix([*both, report()], {}).rows
    assert [(row.mechanism, row.source) for row in rows] == [
        ("mine.py:Mine", SOURCE[:8]),
        ("mine.py:Mine", OTHER[:8]),
        ("softmax", ""),
    ]
    assert [row.cells["cpu", "float32", "noncausal_self"].status for row in rows] == ["kept", "broken", "kept"]


def test_two_files_of_one_name_keep_a_result_each(tmp_path):
    codes = [{"mechanism_sha256": SOURCE}, {"mechanism_sha256": OTHER}, {"mechanism_version": 1}]
    names = ("mine.py:Mine", "mine.py:Mine", "softmax")
    conformance.save(tmp_path, [Saved(report(name, code=code)) for name, code in zip(names, codes, strict=True)])
    conformance.save(tmp_path, [Saved(report("softmax", code={"mechanism_version": 2}))])  # takes the old one's place
    found, problems = conformance.load([tmp_path])
    assert not problems
    assert sorted(json.dumps(one["code"]) for one in found) == sorted(
        map(json.dumps, [codes[0], codes[1], {"mechanism_version": 2}])
    )
    (tmp_path / "conformance-bad.json").write_text(json.dumps(report(code={"mechanism_sha256": 3})))
    assert len(conformance.load([tmp_path])[1]) == 1

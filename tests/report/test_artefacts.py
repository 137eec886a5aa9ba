"""Every table and figure of both papers has a line in one list, a command that runs, and our result beside theirs."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longspan import analysis
from longspan.analysis import Evidence, gather
from longspan.cli import app
from longspan.report import beside
from longspan.report.artefact_sources import Desk, Source, question
from longspan.report.artefacts import ARTEFACTS, Artefact, stands_alone, why_without
from longspan.report.beside import Pair, mechanism_of
from longspan.report.marked_tables import fill
from longspan.report.papers_page import misprints
from longspan.results import collect
from tests.results.cab_cards import CS, NS, run
from tests.results.factory import make_card

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "results").glob("*/cards"))
READS_CARDS = ("analyze", "board")
LONG = ("params", "show pathfinder")  # these build networks or draw images
ELSEWHERE = {"LRA": {"Table 7"}, "CAB": {"Table 3", "Figure 3"}}  # the same as Table 1; spread over other entries
PRINTED = {
    "LRA": {*(f"Table {i}" for i in range(1, 8)), *(f"Figure {i}" for i in range(1, 6))}
    | {"Table 1, Text", "Appendix A.2.1", "Appendix A.3.1"},
    "CAB": {*(f"Table {i}" for i in range(1, 20)), *(f"Figure {i}" for i in range(1, 5))}
    | {"Table 3a", "Table 3b", "Table 3c", "Table 3d", "Figure 3a", "Figure 3b", "Figure 3c"},
}


@pytest.fixture(scope="module")
def committed():
    return gather(CARDS)


@pytest.fixture(scope="module")
def made(committed):
    """All artefacts of the committed cards."""
    return {artefact.name: artefact.show(Desk(committed)) for artefact in ARTEFACTS}


def commands():
    return [
        pytest.param(line, marks=pytest.mark.full) if any(word in line for word in LONG) else line
        for line in dict.fromkeys(artefact.command for artefact in ARTEFACTS)
    ]


@pytest.mark.parametrize("paper", PRINTED)
def test_every_table_and_figure_is_listed_once(paper):
    listed = [artefact.number for artefact in ARTEFACTS if artefact.paper == paper]
    assert len(listed) == len(set(listed))
    assert set(listed) == PRINTED[paper] - ELSEWHERE[paper]


def test_a_line_is_never_empty_and_says_why_where_there_is_no_number_of_ours(made):
    for artefact in ARTEFACTS:
        shown = made[artefact.name]
        assert shown.pairs or stands_alone(artefact, shown) or why_without(artefact, shown), artefact.name
        assert all(pair.theirs and pair.ours for pair in shown.pairs), artefact.name


def test_what_the_paper_only_draws_has_a_table_of_ours_alone(made):
    drawn = [artefact for artefact in ARTEFACTS if artefact.only_drawn]
    assert {artefact.number for artefact in drawn} == {"Figure 2", "Figure 4", "Figure 5", "Appendix A.3.1"}
    for artefact in drawn:
        shown = made[artefact.name]
        assert stands_alone(artefact, shown), artefact.name
        assert not why_without(artefact, shown)
        without = artefact.show(Desk(Evidence()))
        assert not stands_alone(artefact, without)
        assert artefact.absent in why_without(artefact, without)
    page = fill("<!-- cards: artefacts LRA -->\n<!-- end of cards -->", gather(CARDS))
    assert "| image | Softmax | longspan · smoke · stand-in data |" in page


@pytest.mark.parametrize("line", commands())
def test_every_command_runs_on_the_committed_cards(line, committed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runs = replace(collect.cards_in([]), cards=[*committed.runs, *committed.set_aside])
    monkeypatch.setattr(analysis, "gather", lambda folders: committed)  # read once for all commands
    monkeypatch.setattr(collect, "cards_in", lambda folders, tasks=None: runs)
    program, *words = shlex.split(line)
    assert program == "longspan"
    result = CliRunner().invoke(app, [*words, *(["--cards", str(ROOT / "results")] if words[0] in READS_CARDS else [])])
    said = [artefact for artefact in ARTEFACTS if artefact.command == line and artefact.absent]
    assert result.exit_code == 0 or (result.exit_code == 3 and said), result.output
    assert result.output.strip()


def test_own_rows_stand_beside_the_same_attention_under_whatever_title():
    assert mechanism_of("Transformer") == mechanism_of("vanilla") == mechanism_of("Softmax") == "softmax"
    assert mechanism_of("Linear Trans.") == mechanism_of("Linear Transformer (eps=0.1)") == "linear"
    assert mechanism_of("FNet, whole layer") == "fnet"
    card = make_card("softmax", "image", tier="full", accuracy=0.5, title="Softmax", selected_step=500)
    card["curve"][-1]["train_accuracy"] = 0.7
    finding = analysis.answer("gap", Evidence.of([card], (), ()))
    (pair,) = beside.of_finding(finding, ("Train", "Test"), by=("Task",))
    assert (pair.what, pair.theirs, pair.ours) == ("Softmax, image", "69.45 / 42.44", "70.00 / 50.00")
    assert pair.where == "longspan · full, during training"


def test_a_score_by_other_rules_says_by_which():
    runs = [make_card("abc", "lm", pattern="causal_self", tier="lite", title="ABC", variant="official")]
    score = {
        "name": "perplexity",
        "split": "test",
        "value": 250.0,
        "count": 9,
        "higher_is_better": False,
        "chance": None,
    }
    runs[0]["score"] = {**score, "unit": "plain"}
    runs[0]["metrics"]["test"] = {"perplexity": {"value": 250.0, "count": 9}}
    (table,) = (artefact for artefact in ARTEFACTS if artefact.name == "cab-table-3b")
    assert Pair("ABC, LM PPL", "longspan · lite", "29.13", "250") in table.show(Desk(Evidence.of(runs, (), ()))).pairs


def test_a_task_that_is_scored_by_two_metrics_has_a_number_of_each(made):
    pairs = {pair.what: pair for pair in made["cab-table-3c"].pairs}
    assert len(pairs) == len(made["cab-table-3c"].pairs)
    assert pairs["ABC, ETTh1, MSE"].theirs == "1.332"
    assert pairs["ABC, ETTh1, MAE"].theirs == "0.934"


def test_each_table_of_patterns_has_its_own(made):
    theirs = {name: {pair.what: pair.theirs for pair in made[name].pairs} for name in ("cab-table-2", "cab-table-13")}
    assert theirs["cab-table-2"]["FlashAttention"] == "NS CS"
    assert theirs["cab-table-13"]["FlashAttention"] == "NS CS NC CC"
    assert all(
        theirs["cab-table-13"][name] == own for name, own in theirs["cab-table-2"].items() if name[:5] != "Flash"
    )


def test_attention_removed_from_other_slots_does_not_stand_beside_the_benefit_that_the_paper_prints():
    table = next(artefact for artefact in ARTEFACTS if artefact.name == "cab-table-12")

    def shown(pattern):
        cards = [
            run("tts_transformer", {"mcd": mcd, "msd": mcd / 2}, name, pattern=pattern)
            for name, mcd in (("softmax", 4.1), ("none", 5.0))
        ]
        return table.show(Desk(Evidence.of(cards, (), ())))

    assert shown(CS).pairs == ()
    assert "noncausal self attention" in why_without(table, shown(CS))
    cards = [run("mlm", {"perplexity": value}, name, pattern=NS) for name, value in (("softmax", 4.0), ("none", 9.0))]
    (pair,) = table.show(Desk(Evidence.of(cards, (), ()))).pairs
    assert (pair.what, pair.theirs.partition(" / ")[0]) == ("MLM, NS", "failed")


def test_a_question_without_an_answer_is_a_sentence_and_no_failure():
    shown = Artefact("LRA", "Figure 2", "Span", question("span")).show(Desk(Evidence()))
    assert not shown.sheets
    assert "longspan probe span CARD" in shown.missing


def test_an_error_that_is_none_of_missing_data_is_not_hidden():
    def broken(desk):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Artefact("LRA", "Table 1", "Scores", Source("longspan board lra", broken)).show(Desk(Evidence()))


@pytest.mark.parametrize(
    "paper, words",
    [
        ("LRA", "Chance: the average is printed as 44.00, but the mean of the printed scores is 34.00"),
        ("LRA", "Sinkhorn Trans.: the average is printed as 52.78, but the mean of the printed scores is 51.58"),
        ("LRA", "108 / 114 is 0.95, 0.47 is printed"),
        ("LRA", "equals Sinkhorn's speed at 3K"),
        ("CAB", "ABC: the CI is printed as -0.623, but the printed scores give -0.526"),
        ("CAB", "the released mean is 31.96889, the printed scores give 31.95889"),
        ("CAB", "leave out S4D, which appendix E has in the pool"),
        ("CAB", "2.199 and as 2.198"),
        ("CAB", "0.715 is printed for efficient attention, Table 6 has 2.617 for local"),
        ("CAB", "Figure 3a shows the correlations of NS under LRA"),
    ],
)
def test_the_page_lists_the_misprints_that_the_program_finds(paper, words):
    assert words in misprints(Evidence(), paper).replace("\\", "")


def test_the_committed_page_is_what_the_cards_say(committed, made, monkeypatch):
    monkeypatch.setattr(Artefact, "show", lambda artefact, desk: made[artefact.name])  # made once for both tests
    text = (ROOT / "docs" / "papers.md").read_text()
    assert "<!-- cards: artefacts CAB -->" in text
    assert fill(text, committed) == text, "run `make generated` and commit docs/papers.md"

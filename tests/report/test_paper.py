"""A folder for a paper: written whole or not at all, from the cards alone, and LaTeX compiles it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longspan.analysis import Evidence, gather
from longspan.cli import app
from longspan.core.errors import UsageError
from longspan.report import methods
from longspan.report.artefact_sources import Desk, Source
from longspan.report.artefacts import ARTEFACTS, Artefact
from longspan.report.paper import MARKER, build
from longspan.report.sheet import Sheet, written
from longspan.results import conformance
from tests.results.factory import make_card

ROOT = Path(__file__).parents[2]
HOSTILE = r"\input{/etc/passwd} & 50 % of $x_1$ [a] ~ # ^ {b 漢"
FEW = [artefact for artefact in ARTEFACTS if artefact.name in ("lra-table-1", "lra-table-3", "cab-table-7")]
needs_latex = pytest.mark.skipif(
    not (shutil.which("pdflatex") and shutil.which("bibtex")), reason="no LaTeX on this machine"
)


def evidence():
    """Three seeds of softmax and one of a mechanism whose title needs LaTeX escapes, on two tasks."""
    runs = [
        make_card("softmax", "image", tier="full", seed=seed, title="Softmax", selected_step=500) for seed in range(3)
    ]
    runs += [make_card("linear", "listops", tier="full", title=HOSTILE, parameters=2_500_000)]
    for card in runs:
        card["curve"][-1]["train_accuracy"] = 0.7
        card["dataset"]["name"] = {"image": "cifar10"}.get(card["task"], card["task"])
    return Evidence.of(runs, (), ())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers") / "paper"
    build(Desk(evidence()), folder, FEW)
    return folder


def compiled(folder, into):
    """The number of pages of main.tex; shows LaTeX's output if it does not compile."""
    shutil.copytree(folder, into)
    for program in ("pdflatex", "bibtex", "pdflatex", "pdflatex"):
        words = (
            ["bibtex", "main"]
            if program == "bibtex"
            else [program, "-interaction=nonstopmode", "-halt-on-error", "main"]
        )
        done = subprocess.run(words, cwd=into, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, done.stdout[-3000:]
    log = (into / "main.log").read_text(errors="replace")
    assert "undefined" not in log
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \((.+?)pt", log)]
    assert not wide or max(wide) < 15  # widths are estimated by counting letters; half a centimetre fits in the margin
    return int(re.findall(r"\((\d+) pages?", log)[-1])


# ----------------------------------------------------------------------------------------------------------- the folder


def test_every_file_that_is_included_is_there_and_figures_are_pdf_and_svg(made):
    texts = "".join(path.read_text() for path in made.rglob("*.tex"))
    included = re.findall(r"\\input{(.+?)}", texts)
    assert set(included) >= {"methods", "tables/methods", "tables/lra-table-1", "figures/lra-table-3"}
    assert all((made / f"{name}.tex").is_file() for name in included)
    drawn = re.findall(r"\\includegraphics\[.*?\]{(.+?)}", texts)
    assert drawn
    assert all((made / name).read_bytes().startswith(b"%PDF") for name in drawn)
    assert all((made / name).with_suffix(".svg").read_text().startswith("<?xml") for name in drawn)
    assert (made / MARKER).is_file()


def test_a_title_from_a_card_is_text(made):
    board = (made / "tables" / "lra-table-1.tex").read_text()
    assert r"\textbackslash{}input\{/etc/passwd\} \& 50 \% of \$x\_1\$ {[}a{]}" in board
    assert "/etc/passwd}" not in "".join(path.read_text() for path in made.rglob("*.tex")).replace("\\}", "")


def test_the_same_cards_give_the_same_bytes(made, tmp_path):
    build(Desk(evidence()), tmp_path / "again", FEW)
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert files == sorted(
        path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*") if path.is_file()
    )
    assert all((made / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "main.tex").write_text("mine")
    with pytest.raises(UsageError, match="did not write"):
        build(Desk(Evidence()), tmp_path / "thesis", [])
    assert (tmp_path / "thesis" / "main.tex").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        build(Desk(Evidence()), tmp_path / "file", [])


def test_a_failure_leaves_the_old_folder_whole_and_nothing_beside_it(tmp_path):
    build(Desk(Evidence()), tmp_path / "paper", [])
    before = {path.name for path in (tmp_path / "paper").iterdir()}

    def broken(desk):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build(Desk(Evidence()), tmp_path / "paper", [Artefact("LRA", "Table 1", "Scores", Source("longspan", broken))])
    assert {path.name for path in (tmp_path / "paper").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["paper"]


def test_a_newer_paper_takes_the_place_of_an_older_one(tmp_path):
    build(Desk(evidence()), tmp_path / "paper", FEW)
    build(Desk(Evidence()), tmp_path / "paper", [])
    assert not list((tmp_path / "paper" / "tables").iterdir())


# --------------------------------------------------------------------------------------------------------- what it says


def test_seeds_are_those_of_each_mechanism_on_a_task_and_not_of_all_together():
    text = methods.paragraph(evidence())
    assert "1 to 3 seeds for each mechanism on a task" in text
    assert "2 mechanisms" in text
    assert "2 tasks" in text
    assert "100 k to 2.5 M parameters" in text


def test_a_network_without_attention_is_not_counted_as_a_mechanism():
    cards = [make_card("softmax", tier="full"), make_card("none", tier="full")]
    assert "1 mechanism (Softmax~" in methods.paragraph(Evidence.of(cards, (), ()))
    assert " and networks without attention on 1 task" in methods.paragraph(Evidence.of(cards, (), ()))
    assert "We trained networks without attention on" in methods.paragraph(Evidence.of(cards[1:], (), ()))


def test_methods_name_protocol_tier_device_and_versions():
    card = make_card(environment={"gpu": "NVIDIA H200", "python": "3.12.3", "torch": "2.11.0"})
    text = methods.paragraph(Evidence.of([card], (), ()))
    assert all(words in text for words in ("longspan", "smoke", "NVIDIA H200", "torch 2.11.0", "python 3.12.3"))


def test_data_that_stand_in_for_those_of_a_task_are_named_and_not_cited():
    card = make_card("softmax", "tts_fastspeech2", tier="lite", variant="allison")
    card["dataset"]["name"] = "ljspeech"
    found = Evidence.of([card], (), ())
    assert r"allison for tts\_fastspeech2" in methods.paragraph(found)
    assert "https://keithito.com/LJ-Speech-Dataset" not in methods.papers(found)


def test_every_citation_has_its_reference(made):
    cited = set(re.findall(r"\\cite{(.+?)}", (made / "methods.tex").read_text()))
    keys = set(re.findall(r"^@\w+{(\w+),", (made / "references.bib").read_text(), re.MULTILINE))
    assert cited >= {"vaswani2017attention", "katharopoulos2020transformers", "tay2021long"}
    assert cited <= keys
    assert "krizhevsky2009learning" in keys  # the source of the Image data


def test_no_cards_are_no_runs():
    assert methods.paragraph(Evidence()) == "There are no runs and no measurements.\n"


def test_a_table_longer_than_a_page_breaks_and_a_wide_one_wraps_before_it_is_turned():
    rows = tuple((f"row {i}", "1.0") for i in range(80))
    assert r"\begin{longtable}" in written(Sheet("Long", ("a", "b"), rows), "long")
    assert r"\begin{table}" in written(Sheet("Short", ("a", "b"), rows[:3]), "short")
    wide = Sheet("Wide", ("a", "b"), (("x", "many words " * 30),), frozenset({0, 1}))
    assert "p{" in written(wide, "wide")
    assert "landscape" not in written(wide, "wide")
    numbers = Sheet("Numbers", tuple("abcdefghijklmnop"), (("1,234,567.8",) * 16,), frozenset())
    assert r"\begin{landscape}" in written(numbers, "numbers")


def test_a_negative_number_has_a_minus_sign_and_a_name_keeps_its_hyphen():
    text = written(Sheet("Signs", ("name", "score"), (("Long-Short -1", "-0.5"),)), "signs")
    assert "Long-Short -1 & $-$0.5" in text


# ---------------------------------------------------------------------------------------------------------- it compiles


@needs_latex
def test_it_compiles(made, tmp_path):
    assert compiled(made, tmp_path / "paper") >= 4


@needs_latex
@pytest.mark.full
def test_all_tables_and_figures_of_the_committed_cards_compile(tmp_path):
    found = Desk(gather(sorted(ROOT.glob("results/*/cards"))), conformance.load([ROOT / "results"])[0])
    assert compiled(build(found, tmp_path / "paper").parent, tmp_path / "compiled") >= 30


def test_the_command_writes_a_paper_and_says_where(tmp_path, monkeypatch):
    monkeypatch.setattr("longspan.report.paper.ARTEFACTS", FEW)
    monkeypatch.setattr(build, "__defaults__", (FEW,))
    result = CliRunner().invoke(app, ["paper", "--cards", str(tmp_path), "-o", str(tmp_path / "paper")])
    assert result.exit_code == 0, result.output
    assert "main.tex" in result.output
    assert (tmp_path / "paper" / "tables" / "lra-table-1.tex").is_file()

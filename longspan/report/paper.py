r"""A folder for a paper: tables as LaTeX, figures as PDF and SVG, references, methods, and a document of it all.

    build(Desk(gather([Path("out/cards")])), Path("paper"))

    paper/main.tex              compiles as it is: pdflatex, bibtex, pdflatex, pdflatex
    paper/methods.tex           how the runs were made, from the settings on their cards
    paper/tables/lra-table-1.tex, paper/figures/lra-figure-3.tex, .pdf, .svg
    paper/references.bib

Each file can be included by itself, with the packages that main.tex names. The folder is made beside the target and
takes its place in one step.
"""

from collections.abc import Sequence
from pathlib import Path

from longspan.core import atomic, litter
from longspan.core.errors import UsageError
from longspan.published.bibliography import bibtex
from longspan.report import methods, paper_figure
from longspan.report.artefact_sources import Desk, Shown
from longspan.report.artefacts import ARTEFACTS, PAPERS, Artefact, why_without
from longspan.report.sheet import written
from longspan.results.latex import escaped

MARKER = ".longspan-paper"  # a folder that has it may be replaced by a newer one
TITLES = {"LRA": "Long Range Arena", "CAB": "Comprehensive Attention Benchmark"}
FORMS = ("pdf", "svg")
HEAD = r"""% Written by longspan paper.
\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\IfFileExists{lmodern.sty}{\usepackage[T1]{fontenc}\usepackage{lmodern}}{}
\usepackage[a4paper, margin=2.4cm]{geometry}
\usepackage{array, booktabs, longtable, pdflscape, graphicx}
\usepackage{float}\floatplacement{table}{H}\floatplacement{figure}{H}
% A heading begins a new page where less than a third of one is left.
\newcommand{\artefact}[1]{\par\vskip 0pt plus .3\textheight\penalty-250\vskip 0pt plus -.3\textheight\subsection*{#1}}
\title{Tables and figures from CARDS cards}
\author{}
\date{}
\begin{document}
\maketitle
\section{Methods}
\input{methods}
"""
TAIL = r"""\nocite{*}
\bibliographystyle{plain}
\bibliography{references}
\end{document}
"""


def build(desk: Desk, out: Path, artefacts: Sequence[Artefact] = ARTEFACTS) -> Path:
    """Write the folder and return its main document; a folder that holds something else is left alone."""
    out = out.absolute()
    _refuse_foreign_folder(out)
    litter.sweep(out.parent)
    with atomic.folder_beside(out) as folder:
        for name in ("tables", "figures"):
            (folder / name).mkdir()
        body = [_included(artefact, artefact.show(desk), folder) for artefact in artefacts]
        _write(folder / "methods.tex", methods.paragraph(desk.evidence) + _settings(desk, folder))
        _write(folder / "references.bib", "\n\n".join(map(bibtex, methods.papers(desk.evidence))) + "\n")
        sections = [
            rf"\section{{{TITLES[paper]}}}" + "\n" + "\n".join(own) + "\n\\clearpage\n"
            for paper in PAPERS
            if (own := [text for artefact, text in zip(artefacts, body, strict=True) if artefact.paper == paper])
        ]
        cards = len(desk.evidence.runs) + len(desk.evidence.probes) + len(desk.evidence.measurements)
        _write(folder / "main.tex", HEAD.replace("CARDS", f"{cards:,}") + "\n".join(sections) + TAIL)
        _write(folder / MARKER, "This folder is replaced whenever longspan paper writes it.\n")
    return out / "main.tex"


def _refuse_foreign_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"A paper needs a folder, but {out} is a file; choose another name.")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise UsageError(f"{out} holds files that longspan paper did not write; choose an empty or new folder.")


def _included(artefact: Artefact, shown: Shown, folder: Path) -> str:
    """Write the files of an artefact; returns the lines of the main document that include them."""
    heading = escaped(f"{artefact.number}: {artefact.title}")
    lines = [rf"\artefact{{{heading}}}", rf"{{\raggedright\texttt{{{escaped(artefact.command)}}}\par}}"]
    if why := why_without(artefact, shown):
        lines.append(rf"\par {escaped(why)}")
    if shown.sheets:
        labels = _labels(artefact.name, len(shown.sheets))
        tables = [written(sheet, label) for sheet, label in zip(shown.sheets, labels, strict=True)]
        _write(folder / "tables" / f"{artefact.name}.tex", "\n".join(tables))
        lines.append(rf"\input{{tables/{artefact.name}}}")
    sheets = paper_figure.sheets(shown.draw())
    for name, own in zip(_labels(artefact.name, len(sheets)), sheets, strict=True):
        paper_figure.save([own], folder / "figures", name, FORMS)
        _write(folder / "figures" / f"{name}.tex", _figure(artefact, name))
        lines.append(rf"\input{{figures/{name}}}")
    return "\n".join(lines) + "\n"


def _labels(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{place + 1}" for place in range(count)]


def _figure(artefact: Artefact, name: str) -> str:
    caption = escaped(f"{artefact.title}, as in {artefact.number} of {TITLES[artefact.paper]}.")
    size = r"width=\linewidth, height=0.85\textheight, keepaspectratio"
    lines = [
        r"\begin{figure}",
        r"\centering",
        rf"\includegraphics[{size}]{{figures/{name}.pdf}}",
        rf"\caption{{{caption}}}\label{{fig:{name}}}",
        r"\end{figure}",
    ]
    return "\n".join(lines) + "\n"


def _settings(desk: Desk, folder: Path) -> str:
    if not desk.evidence.runs:
        return ""
    _write(folder / "tables" / "methods.tex", written(methods.settings(desk.evidence), "methods"))
    return "\n\\input{tables/methods}\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")

"""What a table or figure of a paper is made from: an analysis, boards, printed settings, pictures of a dataset.

source = question("gap", ("Train", "Test"), ("Task",))
source.command                              # longspan analyze gap
source.show(Desk(evidence)).pairs           # ours beside theirs
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from longspan.analysis import Evidence, Finding, answer
from longspan.report import beside
from longspan.report.beside import Pair
from longspan.report.marks import Figure, FigureView, ImageMark
from longspan.report.question_figures import describe
from longspan.report.sheet import Sheet, of_board, of_finding
from longspan.results import collect
from longspan.results.variant import REAL


@dataclass(frozen=True)
class Desk:
    """What artefacts are made from: cards, and results of `longspan check`."""

    evidence: Evidence
    conformance: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Shown:
    """A finished artefact. `quantity` says what the numbers of the pairs are, `missing` what could not be made and why.

    Figures are made when they are drawn.
    """

    sheets: tuple[Sheet, ...] = ()
    draw: Callable[[], Sequence[Figure]] = tuple
    pairs: tuple[Pair, ...] = ()
    quantity: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Source:
    """How an artefact is made, and the command that shows the same."""

    command: str
    show: Callable[[Desk], Shown]


@dataclass(frozen=True)
class AnswerForm:
    """How a finding is set beside published numbers, and which of its forms are shown.

    `values` are the columns that own rows share with published ones, `by` those that must agree besides the name,
    `origin` the one that says whose row it is; alternatively `columns` are theirs, ours and a verdict in one row.
    """

    values: Sequence[str] = ()
    by: Sequence[str] = ()
    name_column: str = "Mechanism"
    origin: str = "From"
    columns: tuple[str, str, str] | None = None
    table: bool = True
    figure: bool = True

    def show(self, finding: Finding) -> Shown:
        """The finding as an artefact."""
        if self.columns:
            pairs, quantity = beside.of_columns(finding, *self.columns, self.by), self.columns[1]
        elif self.values:
            pairs = beside.of_finding(finding, self.values, by=self.by, name=self.name_column, origin=self.origin)
            quantity = beside.BETWEEN.join(self.values)
        else:
            pairs, quantity = [], ""
        sheets = (of_finding(finding),) if self.table and finding.rows else ()
        return Shown(sheets, partial(describe, finding) if self.figure else tuple, tuple(pairs), quantity)


def question(
    name: str,
    values: Sequence[str] = (),
    by: Sequence[str] = (),
    *,
    keep: Callable[[Mapping[str, str]], bool] | None = None,
    draw: Callable[[Any], bool] | None = None,
    **how: Any,
) -> Source:
    """An analysis beside published numbers, as `AnswerForm(values, by, **how)` says; `keep` and `draw` choose what is
    shown."""
    form = AnswerForm(values, by, **how)
    return Source(
        f"longspan analyze {name}",
        lambda desk: form.show(chosen(answer(name, desk.evidence), keep, draw)),
    )


def chosen(
    finding: Finding, keep: Callable[[Mapping[str, str]], bool] | None, draw: Callable[[Any], bool] | None
) -> Finding:
    """The finding with only the rows and drawn items that `keep` and `draw` accept."""
    titles = [column.title for column in finding.columns]
    texts = [dict(zip(titles, row, strict=True)) for row in finding.texts()]
    rows = [row for row, own in zip(finding.rows, texts, strict=True) if keep is None or keep(own)]
    drawn = finding.figure if draw is None else tuple(item for item in finding.figure or () if draw(item))
    return replace(finding, rows=tuple(rows), figure=drawn)


def boards(suite: str, *, published: str | None = None, pattern: str | None = None, also: Sequence[str] = ()) -> Source:
    """The boards of a suite; the pairs also cover boards of the single tasks `also`, by `mse` and by `mae`."""

    def show(desk: Desk) -> Shown:
        cards = [*desk.evidence.runs, *desk.evidence.set_aside]
        checked = desk.conformance
        views = list(collect.boards(cards, suite, published=published, pattern=pattern, conformance=checked))
        ran = {card["task"] for card in cards}
        single = [
            view
            for task in also
            for metric in ("mse", "mae")
            if task in ran
            for view in collect.boards(cards, task, metric=metric, conformance=checked)
        ]
        ordered = sorted((*views, *single), key=lambda view: (view.tier, view.data) != ("full", REAL))
        pairs = tuple(pair for view in ordered for pair in beside.of_board(view))
        return Shown(tuple(sheet for view in views for sheet in of_board(view)), pairs=pairs, quantity="score")

    options = [f"--published {published}"] * bool(published) + [f"--pattern {pattern}"] * bool(pattern)
    return Source(" ".join(["longspan board", suite, *options]), show)


def printed(command: str, make: Callable[[], tuple[Sheet, list[Pair]]], quantity: str = "") -> Source:
    """A table of settings, sizes or constants, for which no card is needed."""

    def show(desk: Desk) -> Shown:
        sheet, pairs = make()
        return Shown((sheet,), pairs=tuple(pairs), quantity=quantity)

    return Source(command, show)


def samples(dataset: str, count: int) -> Source:
    """Fresh pictures of a generated dataset; none where they cannot be generated."""

    def draw() -> list[Figure]:
        try:
            from longspan import datasets
        except ModuleNotFoundError:  # the reading half is installed alone
            return []
        own, data = datasets.examples_of(dataset)
        drawn = [
            ImageMark(values=one.content, colours="grey", low=0.0, high=255.0, title=f"label {one.label}", column=place)
            for place, one in enumerate(own.samples(data, count))
        ]
        return [Figure([FigureView(f"Samples of {dataset}", drawn)])]

    return Source(f"longspan show {dataset} --samples {count} -o {dataset}.png", lambda desk: Shown(draw=draw))

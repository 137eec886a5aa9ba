"""Every table and figure of both papers: what it shows, the command that shows it, and ours beside theirs.

    for artefact in ARTEFACTS:
        shown = artefact.show(Desk(evidence))
        shown.sheets, shown.draw(), shown.pairs

`longspan paper` writes them, the page docs/papers.md lists them, and a test runs every command on the committed cards.
A new analysis is one line of `ARTEFACTS`:

    Artefact("CAB", "Table 3", "Scores", question("gap", values=("Train", "Test")))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from longspan.analysis import Evidence, Finding, answer, crossover
from longspan.core.errors import DataMissing
from longspan.report import beside, printed_tables
from longspan.report.beside import Pair
from longspan.report.marks import Figure, FigureView, ImageMark
from longspan.report.question_figures import describe
from longspan.report.sheet import Sheet, of_board, of_finding
from longspan.results import collect
from longspan.results.variant import REAL

NO_WEIGHTS = "This is asked of the weights of a trained model, which are not kept beside cards."
Paper = Literal["LRA", "CAB"]
PAPERS = {"LRA": "arXiv:2011.04006", "CAB": "arXiv:2210.07661"}


@dataclass(frozen=True)
class Desk:
    """What artefacts are made from: cards, and results of `longspan check`."""

    evidence: Evidence
    conformance: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Shown:
    """An artefact made. `quantity` says what the numbers of the pairs are, `missing` what could not be made and why.

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
class Artefact:
    """`absent` says what does not exist here: it stands beside what the paper has where cards have nothing."""

    paper: Paper
    number: str
    title: str
    source: Source
    absent: str = ""

    @property
    def name(self) -> str:
        """As files are called: `lra-table-1`."""
        return f"{self.paper} {self.number}".lower().replace(" ", "-").replace(".", "-")

    @property
    def command(self) -> str:
        return self.source.command

    def show(self, desk: Desk) -> Shown:
        try:
            return self.source.show(desk)
        except DataMissing as error:
            return Shown(missing=str(error))


def why_without(artefact: Artefact, shown: Shown) -> str:
    """Why there is no number of ours beside theirs, in a sentence; empty where there is one."""
    return "" if shown.pairs else " ".join(filter(None, (artefact.absent, shown.missing)))


# -------------------------------------------------------------------------------------------------------------- sources


def question(
    name: str,
    values: Sequence[str] = (),
    by: Sequence[str] = (),
    *,
    name_column: str = "Mechanism",
    origin: str = "From",
    table: bool = True,
    figure: bool = True,
    keep: Callable[[Mapping[str, str]], bool] | None = None,
    draw: Callable[[Any], bool] | None = None,
    columns: tuple[str, str, str] | None = None,
) -> Source:
    """An analysis. `values` are the columns that own rows share with published ones, `by` what must agree beside the
    mechanism (`name_column`), `origin` the column that says which is which; or `columns` name theirs, ours and the verdict in one row.
    `keep` and `draw` choose what is shown."""

    def show(desk: Desk) -> Shown:
        finding = chosen(answer(name, desk.evidence), keep, draw)
        return of_answer(
            finding, values, by, name_column=name_column, origin=origin, table=table, figure=figure, columns=columns
        )

    return Source(f"longspan analyze {name}", show)


def chosen(
    finding: Finding, keep: Callable[[Mapping[str, str]], bool] | None, draw: Callable[[Any], bool] | None
) -> Finding:
    """The finding with the rows and drawn items that were asked for."""
    titles = [column.title for column in finding.columns]
    texts = [dict(zip(titles, row, strict=True)) for row in finding.texts()]
    rows = [row for row, own in zip(finding.rows, texts, strict=True) if keep is None or keep(own)]
    drawn = finding.figure if draw is None else tuple(item for item in finding.figure or () if draw(item))
    return replace(finding, rows=tuple(rows), figure=drawn)


def of_answer(
    finding: Finding,
    values: Sequence[str] = (),
    by: Sequence[str] = (),
    *,
    name_column: str = "Mechanism",
    origin: str = "From",
    table: bool = True,
    figure: bool = True,
    columns: tuple[str, str, str] | None = None,
) -> Shown:
    """A finding as an artefact."""
    if columns:
        pairs, quantity = beside.of_columns(finding, *columns, by), columns[1]
    else:
        pairs = beside.of_finding(finding, values, by=by, name=name_column, origin=origin) if values else []
        quantity = beside.BETWEEN.join(values)
    sheets = (of_finding(finding),) if table and finding.rows else ()
    return Shown(sheets, partial(describe, finding) if figure else tuple, tuple(pairs), quantity)


def boards(suite: str, *, published: str | None = None, pattern: str | None = None, also: Sequence[str] = ()) -> Source:
    """The boards of a suite; beside theirs also those of single tasks, `mse` and `mae` of each."""

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


def efficiency_lengths() -> Source:
    """Those of CAB by its own method, in time and in memory."""

    def show(desk: Desk) -> Shown:
        found = [
            crossover.compare(desk.evidence, method="cab-2023", quantity=quantity, pattern="noncausal_self")
            for quantity in ("time", "memory")
        ]
        return Shown(tuple(map(of_finding, found)), lambda: [figure for one in found for figure in describe(one)])

    return Source("longspan crossover --method cab-2023 --pattern NS", show)


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


# ------------------------------------------------------------------------------------------------------------- the list


def _mode(mode: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda row: row["Mode"] == mode


NO_DATA = Source("longspan list attentions", lambda desk: Shown())  # the same in words
ETTH1 = ("forecasting_etth1", "forecasting_etth1_univariate")
TIMES, PERPLEXITY = ("1K", "2K", "4K"), ("Perplexity", "Of trained")
PRINTED_INDEX = "longspan analyze index --published"
NO_CROSS = "No run has a mechanism in causal cross slots."
PARAMS = "longspan params {} -a softmax '{}' --protocol cab-2023 --pattern {}"
ARTEFACTS = (
    Artefact(
        "LRA", "Figure 1", "Samples of Pathfinder", samples("pathfinder", 8), "Pictures: the paper prints no numbers."
    ),
    Artefact("LRA", "Figure 2", "Required attention span", question("span", ("Span",), ("Task",)), NO_WEIGHTS),
    Artefact("LRA", "Table 1", "Scores, version 0; Table 7 is the same", boards("lra", published="v0")),
    Artefact("LRA", "Table 2", "Training speed and memory", question("speed", TIMES, ("Mode",), keep=_mode("train"))),
    Artefact(
        "LRA",
        "Figure 3",
        "Score against speed and memory",
        question("tradeoff", ("Score", "Steps/s")),
        "Own points need cards of longspan measure lra and an average of five tasks; there are none.",
    ),
    Artefact("LRA", "Table 3", "Generalisation gap on Image", question("gap", ("Train", "Test", "Gap"), ("Task",))),
    Artefact("LRA", "Figure 4", "Similarity of embeddings", question("embeddings"), NO_WEIGHTS),
    Artefact("LRA", "Figure 5", "Attention maps on Pathfinder", question("rollout"), NO_WEIGHTS),
    Artefact("LRA", "Table 4", "Inference speed", question("speed", TIMES, ("Mode",), keep=_mode("inference"))),
    Artefact("LRA", "Table 5", "Steps to 30 and 35 % on Image", question("convergence", ("30 %", "35 %"))),
    Artefact("LRA", "Table 6", "Scores, version 1", boards("lra", published="v1")),
    Artefact("CAB", "Figure 1", "The four patterns", NO_DATA, "A diagram: there are no data in it."),
    Artefact("CAB", "Table 1", "Tasks", printed("longspan list tasks", lambda: printed_tables.settings("Table 1"))),
    Artefact(
        "CAB",
        "Table 2",
        "Mechanisms that CAB ran",
        printed("longspan list attentions", lambda: printed_tables.patterns(ran_by_cab=True), "cost; patterns"),
    ),
    Artefact("CAB", "Table 3a", "Scores, noncausal self", boards("cab", pattern="NS")),
    Artefact("CAB", "Table 3b", "Scores, causal self", boards("cab", pattern="CS")),
    Artefact("CAB", "Table 3c", "Scores, noncausal cross", boards("cab", pattern="NC", also=ETTH1)),
    Artefact("CAB", "Table 3d", "Scores, causal cross", boards("cab", pattern="CC"), NO_CROSS),
    Artefact(
        "CAB",
        "Figure 2",
        "Time and memory by length",
        question("growth", table=False),
        "The paper prints curves and no numbers.",
    ),
    Artefact(
        "CAB",
        "Figure 3a",
        "Correlation of patterns",
        question(
            "correlation",
            by=("One", "Other"),
            columns=("In the figure", "r", "Agrees"),
            keep=lambda row: row["From"] == "published, patterns",
            draw=lambda grid: grid.origin == "published, patterns",
        ),
    ),
    Artefact(
        "CAB",
        "Figure 3c",
        "Lengths beyond training",
        question("extrapolation", PERPLEXITY, ("Tested at",), table=False),
    ),
    Artefact("CAB", "Table 4", "Training", printed("longspan show lm", lambda: printed_tables.settings("Table 4"))),
    Artefact("CAB", "Table 6", "Scores by task", printed(PRINTED_INDEX, printed_tables.task_scores, "index")),
    *(
        Artefact(
            "CAB",
            number,
            f"Constants of the index, {code}",
            printed("longspan show cab", lambda number=number: printed_tables.constants(number), "mean and deviation"),
        )
        for number, code in (("Table 7", "NS"), ("Table 8", "CS"), ("Table 9", "NC"), ("Table 10", "CC"))
    ),
    Artefact("CAB", "Table 11", "Efficiency lengths", efficiency_lengths(), "Own ones alone: the printed are no data."),
    Artefact(
        "CAB",
        "Figure 4",
        "Correlation of tasks",
        question(
            "correlation",
            by=("One", "Other"),
            columns=("In the figure", "r", "Agrees"),
            table=False,
            keep=lambda row: row["From"] != "published, patterns",
            draw=lambda grid: grid.origin != "published, patterns",
        ),
    ),
    Artefact(
        "CAB",
        "Table 13",
        "Patterns of 44 mechanisms",
        printed("longspan list attentions", lambda: printed_tables.patterns(ran_by_cab=False), "cost; patterns"),
    ),
    *(
        Artefact(
            "CAB",
            number,
            f"Parameters, {code}",
            printed(
                PARAMS.format(task, abc, code), lambda number=number: printed_tables.parameters(number), "parameters"
            ),
        )
        for number, code, task, abc in (
            ("Table 16", "NS", "tts_fastspeech2", "abc(slots=64)"),
            ("Table 17", "CS", "lm", "abc(slots=64)"),
            ("Table 18", "CC", "tts_transformer", "abc(slots=64)"),
            ("Table 19", "NC", "forecasting_etth1", "abc"),
        )
    ),
)

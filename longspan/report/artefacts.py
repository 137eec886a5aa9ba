"""Every table and figure of both papers: what it shows, the command that shows it, and ours beside theirs.

    for artefact in ARTEFACTS:
        shown = artefact.show(Desk(evidence))
        shown.sheets, shown.draw(), shown.pairs

`longspan paper` writes them, the page docs/papers.md lists them, and a test runs every command on the committed cards.
A new analysis is one line of `ARTEFACTS`:

    Artefact("LRA", "Table 3", "Generalisation gap", question("gap", ("Train", "Test"), ("Task",)))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from longspan.core.errors import DataMissing
from longspan.report import printed_tables
from longspan.report.artefact_sources import (
    Desk,
    Shown,
    Source,
    boards,
    printed,
    question,
    samples,
)

Paper = Literal["LRA", "CAB"]
PAPERS = {"LRA": "arXiv:2011.04006", "CAB": "arXiv:2210.07661"}
NO_WEIGHTS = "This is asked of the weights of a trained model, which are not kept beside cards."


@dataclass(frozen=True)
class Artefact:
    """`absent` says what does not exist here; it is shown beside the paper's entry where cards have nothing.

    The paper prints no numbers for what is `only_drawn`, so a table of ours stands alone.
    """

    paper: Paper
    number: str
    title: str
    source: Source
    absent: str = ""
    only_drawn: bool = False

    @property
    def name(self) -> str:
        """The name used for files: `lra-table-1`."""
        return f"{self.paper} {self.number}".lower().replace(", ", "-").replace(" ", "-").replace(".", "-")

    @property
    def command(self) -> str:
        return self.source.command

    def show(self, desk: Desk) -> Shown:
        try:
            return self.source.show(desk)
        except DataMissing as error:
            return Shown(missing=str(error))


def stands_alone(artefact: Artefact, shown: Shown) -> bool:
    """Whether there are numbers of ours where the paper prints none."""
    return artefact.only_drawn and bool(shown.sheets)


def why_without(artefact: Artefact, shown: Shown) -> str:
    """Why there is no number of ours, in a sentence; empty where there is one."""
    if shown.pairs or stands_alone(artefact, shown):
        return ""
    return " ".join(filter(None, (artefact.absent, shown.missing)))


def _table(number: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda row: row["Table"].startswith(number)


def _ran_by_cab(row: Mapping[str, str]) -> bool:
    return row["Family printed"] != "–"


def _as_cab_measured(where: str, pattern: str) -> bool:
    return pattern == "noncausal_self" and (where == "published" or "float32" in where)


def _mode(mode: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda row: row["Mode"] == mode


NO_DATA = Source("longspan list attentions", lambda desk: Shown())  # the same in words
ETTH1 = ("forecasting_etth1", "forecasting_etth1_univariate")
TIMES, PERPLEXITY = ("1K", "2K", "4K"), ("Perplexity", "Of trained")
PRINTED_INDEX = "longspan analyze index --published"
NO_CROSS = "No run has a mechanism in causal cross slots."
PARAMS = "longspan params {} -a softmax '{}' --protocol cab-2023 --pattern {}"
NAME, CLAIMS = ("Mechanism",), ("Patterns printed", "Patterns", "Patterns")
CLAIMS_OF_RUN = ("In Table 2", "Patterns", "Patterns")
TEXT, SIDES = ("Printed", "1K", "Printed"), ("Without", "Softmax", "Best efficient")
PLACE, HERE = ("Row", "Column"), ("Printed", "Here", "Agrees")
CURVES = "The paper prints curves and no numbers."
WITH_ATTENTION = "No run here has its noncausal self attention removed, which is what the paper removes."
NO_HOURS = "No task of this table has hours of own full runs; the command shows those of other tasks."
ARTEFACTS = (
    Artefact(
        "LRA", "Figure 1", "Samples of Pathfinder", samples("pathfinder", 8), "Pictures: the paper prints no numbers."
    ),
    Artefact("LRA", "Figure 2", "Required attention span", question("span"), NO_WEIGHTS, only_drawn=True),
    Artefact("LRA", "Table 1", "Scores, version 0; Table 7 is the same", boards("lra", published="v0")),
    Artefact(
        "LRA", "Table 1, Text", "Text as the best of four lengths", question("text_lengths", columns=TEXT, by=NAME)
    ),
    Artefact("LRA", "Table 2", "Training speed and memory", question("speed", TIMES, ("Mode",), keep=_mode("train"))),
    Artefact("LRA", "Figure 3", "Score against speed and memory", question("tradeoff", ("Score", "Steps/s"))),
    Artefact("LRA", "Table 3", "Generalisation gap on Image", question("gap", ("Train", "Test", "Gap"), ("Task",))),
    Artefact("LRA", "Figure 4", "Similarity of embeddings", question("embeddings"), NO_WEIGHTS, only_drawn=True),
    Artefact("LRA", "Figure 5", "Attention maps on Pathfinder", question("rollout"), NO_WEIGHTS, only_drawn=True),
    Artefact("LRA", "Table 4", "Inference speed", question("speed", TIMES, ("Mode",), keep=_mode("inference"))),
    Artefact("LRA", "Table 5", "Steps to 30 and 35 % on Image", question("convergence", ("30 %", "35 %"))),
    Artefact("LRA", "Table 6", "Scores, version 1", boards("lra", published="v1")),
    Artefact("LRA", "Appendix A.2.1", "References on Image", question("references", ("Image",), name_column="Network")),
    Artefact("LRA", "Appendix A.3.1", "From Pathfinder to Path-X", question("transfer"), NO_WEIGHTS, only_drawn=True),
    Artefact("CAB", "Figure 1", "The four patterns", NO_DATA, "A diagram: there are no data in it."),
    Artefact("CAB", "Table 1", "Tasks", printed("longspan list tasks", lambda: printed_tables.settings("Table 1"))),
    Artefact(
        "CAB",
        "Table 2",
        "Mechanisms that CAB ran",
        question("taxonomy", columns=CLAIMS_OF_RUN, by=NAME, keep=_ran_by_cab),
    ),
    Artefact("CAB", "Table 3a", "Scores, noncausal self", boards("cab", pattern="NS")),
    Artefact("CAB", "Table 3b", "Scores, causal self", boards("cab", pattern="CS")),
    Artefact("CAB", "Table 3c", "Scores, noncausal cross", boards("cab", pattern="NC", also=ETTH1)),
    Artefact("CAB", "Table 3d", "Scores, causal cross", boards("cab", pattern="CC"), NO_CROSS),
    Artefact("CAB", "Figure 2", "Time and memory beside softmax", question("relative", table=False), CURVES),
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
        "Figure 3b",
        "Benefit of attention, drawn",
        question("benefit", SIDES, ("Task", "Pattern"), table=False),
        WITH_ATTENTION,
    ),
    Artefact(
        "CAB",
        "Figure 3c",
        "Lengths beyond training",
        question("extrapolation", PERPLEXITY, ("Tested at",), table=False),
    ),
    Artefact("CAB", "Table 4", "Training", printed("longspan show lm", lambda: printed_tables.settings("Table 4"))),
    Artefact("CAB", "Table 5", "Options", question("settings", by=PLACE, columns=HERE, keep=_table("Table 5"))),
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
    Artefact(
        "CAB",
        "Table 11",
        "Efficiency lengths",
        question(
            "efficiency_length",
            ("Time", "Memory"),
            ("Mode", "Pattern"),
            origin="Measured on",
            keep=lambda row: _as_cab_measured(row["Measured on"], row["Pattern"]),
            draw=lambda pair: _as_cab_measured(pair.where, pair.pattern),
        ),
    ),
    Artefact(
        "CAB",
        "Table 12",
        "Benefit of attention",
        question("benefit", SIDES, ("Task", "Pattern"), figure=False),
        WITH_ATTENTION,
    ),
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
    Artefact("CAB", "Table 13", "Patterns of 44 mechanisms", question("taxonomy", columns=CLAIMS, by=NAME)),
    Artefact("CAB", "Table 14", "Sizes", question("settings", by=PLACE, columns=HERE, keep=_table("Table 14"))),
    Artefact("CAB", "Table 15", "Hours of training", question("hours", ("Hours",), ("Task",)), NO_HOURS),
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

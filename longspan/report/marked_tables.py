"""Tables of a Markdown page that are written from cards, between marks; all other text is left as it is.

    <!-- cards: scores listops full -->
    | mechanism | protocol | ...
    <!-- end of cards -->

The first word names one of `TABLES`, the others are its arguments. Filling a page twice changes nothing, so a page
whose numbers were edited by hand can be detected. Reading half: never imports torch.
"""

import inspect
import re
from collections.abc import Callable, Mapping

from longspan.analysis.cards import Evidence
from longspan.core.errors import DataMissing, UnknownName, UsageError, did_you_mean
from longspan.report.finding_table import finding
from longspan.report.papers_page import artefacts, misprints
from longspan.report.run_tables import board_table, changed, differences, forecasting, language, metrics, scores
from longspan.report.time_table import times

Table = Callable[..., str]
TABLES: Mapping[str, Table] = {
    table.__name__.removesuffix("_table"): table
    for table in (
        *(artefacts, board_table, changed, differences, finding, forecasting, language, metrics, misprints, scores),
        times,
    )
}
BEGIN, END = re.compile(r"<!-- cards: (.*) -->"), "<!-- end of cards -->"
NOTHING = "No cards yet."


def fill(page: str, evidence: Evidence) -> str:
    """The page with every marked table as the cards have it.

    >>> fill("<!-- cards: scores listops full -->\\nold\\n<!-- end of cards -->", Evidence())
    '<!-- cards: scores listops full -->\\n\\nNo cards yet.\\n\\n<!-- end of cards -->'
    """
    lines, inside = [], None
    for line in page.split("\n"):
        begins, ends = BEGIN.fullmatch(line.strip()), line.strip() == END
        if (begins and inside) or (ends and not inside):
            raise UsageError(f"A table begins before the last one ended, or ends twice, at {line.strip()!r}; mend it.")
        if begins:
            inside = begins[1]
            lines += [line, "", _written(inside, evidence), ""]
        elif ends:
            inside = None
        if not inside:
            lines.append(line)
    if inside:
        raise UsageError(f"The table {inside!r} has no end; put {END} below it.")
    return "\n".join(lines)


def _written(words: str, evidence: Evidence) -> str:
    name, *arguments = words.split()
    if name not in TABLES:
        raise UnknownName(f"No table of cards is called {name!r}.{did_you_mean(name, TABLES)}")
    try:
        inspect.signature(TABLES[name]).bind(evidence, *arguments)
    except TypeError as error:
        raise UsageError(f"The table {words!r} cannot be made: {error}.") from None
    try:
        return TABLES[name](evidence, *arguments) or NOTHING
    except DataMissing:
        return NOTHING

"""The answer to a question as a table for a page: the rows that have all given words, without empty columns."""

import textwrap
from dataclasses import replace

from longspan.analysis import answer
from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Finding, escaped, table

NOTHING, WIDTH = "–", 120
WITHOUT = "-"  # before a word: rows that do not have it


def finding(evidence: Evidence, question: str, *words: str) -> str:
    """Rows in which every word occurs, and none after a minus; nothing where there is no such row.

    Columns of dashes are left out. A context column that is the same in all rows is stated once, below the table.
    """
    found = answer(question, evidence)
    rows = [row for row, texts in zip(found.rows, found.texts(), strict=True) if _has(" | ".join(texts), words)]
    if not rows:
        return ""
    chosen = replace(found, rows=tuple(rows), notes=()).condensed()
    kept = [place for place in range(len(chosen.columns)) if any(row[place] != NOTHING for row in chosen.texts())]
    heads = [chosen.columns[place].title for place in kept]
    lines = table(heads, [[row[place] for place in kept] for row in chosen.texts()], _sides(chosen, kept))
    return "\n".join([lines, *("\n" + textwrap.fill(escaped(note), WIDTH) for note in chosen.notes)])


def _has(text: str, words: tuple[str, ...]) -> bool:
    wanted = [word for word in words if not word.startswith(WITHOUT)]
    unwanted = [word.removeprefix(WITHOUT) for word in words if word.startswith(WITHOUT)]
    return all(word in text for word in wanted) and not any(word in text for word in unwanted)


def _sides(found: Finding, kept: list[int]) -> list[str]:
    return [":---" if found.columns[place].kind == "text" else "---:" for place in kept]

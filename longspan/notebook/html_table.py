"""A table for a notebook, plain HTML that takes the notebook's own style."""

from collections.abc import Iterable, Sequence
from html import escape

from longspan.core.printable import printable

RIGHT = ' style="text-align: right"'


def html_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    lede: str = "",
    notes: Iterable[str] = (),
    numbers: Sequence[str] = (),
) -> str:
    """A title, a sentence, a table whose columns named in `numbers` are aligned right, and notes; all of it escaped."""
    sides = [RIGHT if head in numbers else "" for head in heads]
    parts = [f"<p><b>{safe(title)}</b></p>"] if title else []
    parts += [f"<p>{safe(lede)}</p>"] if lede else []
    head = "".join(f"<th{side}>{safe(text)}</th>" for text, side in zip(heads, sides, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{side}>{safe(text)}</td>" for text, side in zip(row, sides, strict=True)) + "</tr>"
        for row in rows
    )
    parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    parts += [f"<p><small>{safe(note)}</small></p>" for note in notes]
    return "".join(parts)


def safe(text: str) -> str:
    """Text from a card: no control characters, no markup."""
    return escape(printable(text, keep=""))

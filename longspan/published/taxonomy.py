"""CAB's table of 44 mechanisms, as printed: what each costs, in which patterns it works and its family.

    row = taxonomy().row("performer")
    row.disagreements(family="kernel", cost="n", patterns=("NS", "CS", "NC", "CC"))     # ('CS',)
    row.reasons["CS"]                                                                   # why we say something else

The patterns are those of the design, not of the code. The data hold a reason for each cell in which the mechanism here
declares something other than the paper, and for no other.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from longspan.core.errors import UnknownName, did_you_mean

FILE = "cab_taxonomy.json"
CODES = ("NS", "CS", "NC", "CC")


@dataclass(frozen=True)
class TaxonomyRow:
    """One line of the table; `family` is in our word for it, None where the paper names none.

    `ran` are the patterns in Table 2, of those that CAB ran; of the others there are none.
    """

    title: str
    cited: str
    mechanism: str  # the name of this attention here
    cost: str
    patterns: tuple[str, ...]
    ran: tuple[str, ...]
    printed_family: str | None
    family: str | None
    reasons: Mapping[str, str]  # by cell: family, cost or the code of a pattern
    note: str

    def disagreements(self, *, family: str, cost: str, patterns: Collection[str]) -> tuple[str, ...]:
        """The cells in which these declarations differ from the paper.

        >>> taxonomy().row("flowformer").disagreements(family="kernel", cost="n", patterns=("NS", "CS", "NC"))
        ('CC',)
        """
        differs = {"family": self.family not in (None, family), "cost": self.cost != cost}
        differs |= {code: (code in self.patterns) != (code in patterns) for code in CODES}
        return tuple(cell for cell, is_so in differs.items() if is_so)


@dataclass(frozen=True)
class Taxonomy:
    title: str
    source: str
    note: str
    rows: tuple[TaxonomyRow, ...]

    def row(self, mechanism: str) -> TaxonomyRow:
        known = {row.mechanism: row for row in self.rows}
        if mechanism not in known:
            raise UnknownName(f"CAB's table has no row of {mechanism!r}.{did_you_mean(mechanism, known)}")
        return known[mechanism]


def unlike_printed(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells in which an entry of the catalogue differs from the table; none where the table has no row for it.

    >>> unlike_printed({"name": "mca", "family": "exact", "cost": "n", "patterns": ["noncausal_self", "causal_self"]})
    ('cost', 'NC', 'CC')
    """
    row = next((row for row in taxonomy().rows if row.mechanism == entry["name"]), None)
    if row is None:
        return ()
    patterns = [code_of(pattern) for pattern in entry["patterns"]]
    return row.disagreements(family=entry["family"], cost=entry["cost"], patterns=patterns)


def code_of(pattern: str) -> str:
    """
    >>> code_of("causal_cross")
    'CC'
    """
    return "".join(word[0] for word in pattern.split("_")).upper()


@cache
def taxonomy() -> Taxonomy:
    """The table as printed."""
    content = json.loads(resources.files("longspan.published").joinpath(FILE).read_text(encoding="utf-8"))
    rows = tuple(
        TaxonomyRow(
            **{name: row[name] for name in ("title", "cited", "mechanism", "cost")},
            patterns=tuple(row["patterns"].split()),
            ran=tuple(row.get("patterns_in_table_2", row["patterns"]).split()) if "family" in row else (),
            printed_family=row.get("family"),
            family=content["families"][row["family"]] if "family" in row else None,
            reasons=row.get("reasons", {}),
            note=row.get("note", ""),
        )
        for row in content["rows"]
    )
    return Taxonomy(**{name: content[name] for name in ("title", "source", "note")}, rows=rows)

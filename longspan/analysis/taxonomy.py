"""What do 44 mechanisms cost, and in which patterns do they work? CAB's Tables 2 and 13 beside what is declared here.

Declared costs and patterns are checked by `longspan check`; each cell in which the paper differs has a reason.
"""

from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Column, Finding
from longspan.published.taxonomy import TaxonomyRow, code_of, taxonomy, unlike_printed
from longspan.results import catalogue

COLUMNS = (
    Column("Mechanism"),
    Column("Name here"),
    Column("Cost printed"),
    Column("Cost"),
    Column("Patterns printed", "text", "in Table 13"),
    Column("In Table 2", "text", "patterns of those that CAB ran"),
    Column("Patterns"),
    Column("Family printed", "text", "in Table 2, of those that CAB ran"),
    Column("Family"),
    Column("Differs in"),
    Column("Why"),
)
DIFFERS = [column.title for column in COLUMNS].index("Differs in")


def answer(evidence: Evidence) -> Finding:
    known = {entry["name"]: entry for entry in catalogue.read(catalogue.SHIPPED)["attentions"]}
    rows = [_row(row, known[row.mechanism]) for row in taxonomy().rows]
    differing = [row for row in rows if row[DIFFERS] != "–"]
    cells = sum(len(row[DIFFERS].split(", ")) for row in differing)
    printed = {row.mechanism for row in taxonomy().rows}
    others = [name for name, entry in known.items() if name not in printed and not entry["fidelity"]]
    return Finding(
        "taxonomy",
        "The taxonomy of CAB",
        "Cost, patterns and family of each mechanism as printed and as declared here.",
        COLUMNS,
        tuple(rows),
        (
            f"{cells} cells of {len(differing)} mechanisms are not the paper's.",
            taxonomy().note,
            f"Here, but not in the table: {', '.join(sorted(others))}.",
            *(f"{row.title}: {row.note}" for row in taxonomy().rows if row.note),
        ),
    )


def _row(row: TaxonomyRow, entry: dict) -> tuple:
    own, differs = [code_of(pattern) for pattern in entry["patterns"]], unlike_printed(entry)
    why = "; ".join(dict.fromkeys(row.reasons[cell] for cell in differs if cell in row.reasons))
    costs = (row.cost, entry["cost"])
    patterns = (" ".join(row.patterns), " ".join(row.ran) or "–", " ".join(own))
    families = (row.printed_family or "–", entry["family"])
    return (row.title, row.mechanism, *costs, *patterns, *families, ", ".join(differs) or "–", why or "–")

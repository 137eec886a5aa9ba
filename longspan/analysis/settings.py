"""Which options and sizes did CAB print, and which run here? Its Tables 5 and 14, cell by cell.

What runs here is what `cab-2023` has in the catalogue: the form of a mechanism in the slots of a pattern, and the sizes
of each network at the full tier. Where the two differ, the printed cell contradicts the printed parameter counts.
"""

from collections.abc import Mapping
from typing import Any

from longspan.analysis.cards import Evidence
from longspan.analysis.finding import Column, Finding
from longspan.core.spec import Spec
from longspan.published.printed_settings import NOTHING, PrintedSetting, printed_settings
from longspan.results import catalogue

PROTOCOL, TIER = "cab-2023", "full"
COLUMNS = (
    Column("Table"),
    Column("Row"),
    Column("Column"),
    Column("Printed"),
    Column("Here", "text", "what cab-2023 runs"),
    Column("Agrees"),
    Column("Why", "text", "what the printed cell contradicts"),
)


def answer(evidence: Evidence) -> Finding:
    content = catalogue.read(catalogue.SHIPPED)
    tasks = {entry["name"]: entry for entry in content["tasks"]}
    mechanisms = {entry["name"]: entry for entry in content["attentions"]}
    rows = []
    for cell in printed_settings():
        ours = here(cell, tasks, mechanisms)
        agrees = None if ours is None else ours == cell.printed
        rows.append((f"Table {cell.table}", cell.row, cell.column, cell.printed, ours, agrees, cell.reason or "–"))
    wrong = [row for row in rows if row[5] is False]
    notes = [f"{len(wrong)} of {len(rows)} printed cells are not what runs here."]
    notes += [f"{row[0]}, {row[2]}, {row[1]}: {row[3]} is printed, {row[4]} runs here; {row[6]}." for row in wrong]
    notes.append(
        "What 64 landmarks are for LongShort as causal self attention is not said; here they are chunks of 64."
    )
    return Finding(
        "settings",
        "Printed options and sizes",
        "The options of mechanisms and the sizes of networks that CAB printed, beside those of its protocol here.",
        COLUMNS,
        tuple(rows),
        tuple(notes),
    )


def here(cell: PrintedSetting, tasks: Mapping[str, Any], mechanisms: Mapping[str, Any]) -> str | None:
    """The same cell as this package runs it; None where it is no setting here."""
    if cell.mechanism:
        found = {_option(cell, tasks[task], mechanisms[cell.mechanism]) for task in cell.tasks}
    else:
        found = {_size(cell, tasks[task]["settings"][f"{PROTOCOL}/{TIER}"]["model"]) for task in cell.tasks}
    if found == {None}:
        return None
    return " or ".join(sorted(str(value) for value in found))


def _option(cell: PrintedSetting, task: Mapping[str, Any], mechanism: Mapping[str, Any]) -> str:
    """The option of a preset, else the default of the mechanism; no convolution is a dash, as in the paper."""
    form = task["presets"][PROTOCOL][cell.mechanism]["mechanism"][cell.pattern]
    defaults = {option["name"]: option["default"] for option in mechanism["options"]}
    return str(Spec.parse(form).options.get(cell.option, defaults[cell.option]) or NOTHING)


def _size(cell: PrintedSetting, model: Mapping[str, Any]) -> str | None:
    if cell.printed == NOTHING:
        return NOTHING
    if not cell.setting:
        return None
    if cell.setting == "dim*multipliers":  # the widths of a network that has several
        return ",".join(map(str, sorted({model["dim"] * times for times in model["multipliers"]})))
    return str(sum(model[name] for name in cell.setting.split("+")))

"""The tables of `list` and `show`: a line for each entry of the catalogue, and everything about one of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from longspan.cli.tables import console, pattern_codes, table
from longspan.core.printable import printable
from longspan.published.taxonomy import unlike_printed


def list_tables(kind: str, entries: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """One line each; bug-compatible twins of released code are listed apart."""
    columns, line = _LINES[kind]
    groups = {kind.capitalize(): [], "Twins of released code (never ranked)": []}
    for entry in entries:
        groups[list(groups)[bool(entry.get("fidelity"))]].append(line(entry))
    return (table(columns, lines, title=title) for title, lines in groups.items() if lines)


_LINES = {
    "attentions": (
        ("name", "title", "patterns", "cost", "family", "unlike CAB's table", "paper"),
        lambda e: (
            *(e["name"], e["title"], pattern_codes(e["patterns"]), e["cost"], e["family"]),
            *(", ".join(unlike_printed(e)), e["paper"]),
        ),
    ),
    "tasks": (
        ("name", "title", "slots", "score", "protocols", "tiers"),
        lambda e: (
            e["name"],
            e["title"],
            ", ".join(f"{slot} {pattern_codes([pattern])}" for slot, pattern in e["slots"].items()),
            e["score"],
            ", ".join(dict.fromkeys(protocol for protocol, _ in e["protocols"])),
            ", ".join(dict.fromkeys(tier for _, tier in e["protocols"])),
        ),
    ),
    "backbones": (("name", "what it is"), lambda e: (e["name"], e["title"])),
    "datasets": (
        ("name", "title", "size", "source"),
        lambda e: (e["name"], e["title"], e["size"], "generated here" if e["generated"] else e["source"]),
    ),
    "suites": (
        ("name", "title", "version", "tasks"),
        lambda e: (e["name"], e["title"], e["version"], ", ".join(e["tasks"])),
    ),
    "protocols": (
        ("name", "what it is", "tasks"),
        lambda e: (e["name"], e["title"], ", ".join(e["tasks"])),
    ),
}


def print_entry(kind: str, entry: Mapping[str, Any]) -> None:
    """Everything about one entry: its description, its facts, its tables."""
    to = console()
    singular = kind.removesuffix("s")
    to.print(Text(f"{entry['name']}", style="bold"), Text(f"  {singular}", style="dim"), sep="")
    if description := entry.get("formula") or entry.get("about"):
        to.print()
        to.print(Text(printable(description)), soft_wrap=True)
    to.print()
    to.print(_sheet(_facts(kind, entry)))
    if kind in _TABLES:
        for made in _TABLES[kind](entry):
            to.print(made)
    to.print()


def print_facts(name: str, kind: str, facts: Iterable[tuple[str, str]]) -> None:
    """A name, what it is, and a line for each fact."""
    to = console()
    to.print(Text(printable(name), style="bold"), Text(f"  {kind}", style="dim"), sep="")
    to.print()
    to.print(_sheet(facts))
    to.print()


def _sheet(facts: Iterable[tuple[str, str]]) -> Table:
    sheet = Table.grid(padding=(0, 3))
    sheet.add_column(no_wrap=True)
    sheet.add_column(overflow="fold")
    for name, text in facts:
        sheet.add_row(Text(name, style="dim"), Text(printable(text)))
    return sheet


def _facts(kind: str, entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (name, entry[name]) for name in ("title", "version", "family", "paper", "cost", "score") if entry.get(name)
    ]
    if kind == "attentions":
        claims = ("exact", "stochastic", "length_bound", "positions", "fidelity")
        claims += ("surrogate_gradient", "auxiliary_loss", "owns_block")
        facts += [
            ("patterns", ", ".join(entry["patterns"])),
            (
                "claims",
                ", ".join(name.replace("_", " ") for name in claims if entry.get(name)) or "none",
            ),
            ("carries", f"to the next {carries.removesuffix('s')}" if (carries := entry.get("carries")) else ""),
            ("dropout", {"weights": "on the weights", "none": "none"}[entry["dropout"]]),
            ("softmax when", entry["limit"]),
            ("remark", entry["remark"]),
        ]
    elif kind == "tasks":
        better = "higher is better" if entry["higher_is_better"] else "lower is better"
        facts += [
            ("", better),
            ("backbone", entry["backbone"]),
            ("slots", ", ".join(f"{slot}: {pattern}" for slot, pattern in entry["slots"].items())),
            ("dataset", entry["dataset"]),
        ]
    elif kind == "datasets":
        facts += [("source", entry["source"]), ("size", entry["size"])]
        facts += [(name, entry[name]) for name in ("vocabulary", "classes") if entry[name]]  # time series have neither
        facts += [("obtained by", "generating it" if entry["generated"] else "downloading or importing it")]
    elif kind == "suites":
        facts += [("tasks", ", ".join(entry["tasks"])), ("metric", entry["metric"])]
    return [(name, str(text)) for name, text in facts if text != ""]


def _attention_tables(entry: Mapping[str, Any]) -> Iterator[Table]:
    if entry["options"]:
        rows = [(option["name"], option["type"], option["default"]) for option in entry["options"]]
        yield table(("option", "takes", "default"), rows)


def _task_tables(entry: Mapping[str, Any]) -> Iterator[Table]:
    """The recipes, and what a protocol runs under a plain name."""
    names = ("steps", "batch_size", "learning_rate", "schedule", "selection")
    recipes = {key: settings["recipe"] for key, settings in entry["settings"].items()}
    rows = [(*key.split("/"), *(recipe.get(name, "") for name in names)) for key, recipe in recipes.items()]
    yield table(("protocol", "tier", *(name.replace("_", " ") for name in names)), rows)
    for protocol, forms in entry.get("presets", {}).items():
        rows = [
            (name, _form(form["mechanism"]), ", ".join(f"{key}={value}" for key, value in form["changes"].items()))
            for name, form in forms.items()
        ]
        yield table(("mechanism", "runs as", "settings of its own"), rows, title=f"Under {protocol}")


def _form(mechanism: str | Mapping[str, str]) -> str:
    """What a preset runs, by pattern where patterns differ."""
    if isinstance(mechanism, str):
        return mechanism
    return "; ".join(f"{form} as {pattern}" for pattern, form in mechanism.items())


def _dataset_tables(entry: Mapping[str, Any]) -> Iterator[Table]:
    yield table(("setting", "default"), entry["settings"].items())


def _suite_tables(entry: Mapping[str, Any]) -> Iterator[Table]:
    """The columns of each pattern, the averages, and columns that show the best of several tasks."""
    for pattern, own in entry.get("patterns", {}).items():
        rows = [
            (
                one["title"],
                one["task"],
                ", ".join(one["settings"]),
                f"{one['metric']}, {'higher' if one['higher_is_better'] else 'lower'} is better",
                *(f"{scale['mean']:g} ± {scale['std']:g}" for scale in one["scales"].values()),
            )
            for one in own["measures"]
        ]
        heads = ("column", "task", "settings", "metric", *own["measures"][0]["scales"])
        yield table(heads, rows, title=pattern)
    if averages := entry["averages"]:
        rows = [(average["title"], ", ".join(average["tasks"]), average["note"]) for average in averages]
        yield table(("average", "over", "rule"), rows)
    if best := entry.get("best_of"):
        rows = [(one["task"], ", ".join(one["protocols"]), ", ".join(one["of"]), one["note"]) for one in best]
        yield table(("column", "under", "shows the best of", "rule"), rows)


def _protocol_tables(entry: Mapping[str, Any]) -> Iterator[Table]:
    yield table(("task", "tiers"), [(task, ", ".join(tiers)) for task, tiers in entry["tasks"].items()])


_TABLES = {
    "attentions": _attention_tables,
    "tasks": _task_tables,
    "datasets": _dataset_tables,
    "suites": _suite_tables,
    "protocols": _protocol_tables,
}

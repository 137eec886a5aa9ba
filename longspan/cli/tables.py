"""What the commands print, as rich tables. Nothing here computes anything.

Names may come from other people's cards and files, so every text is printed literally, never parsed as markup.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from longspan.core.cell import differing, settings_text
from longspan.core.printable import printable
from longspan.core.screen import screen as console

LONGEST_WORD = 14  # characters of a word that is never broken
LONGEST_NAME = 20  # characters up to which a first column is never wrapped
STATUS_STYLE = {"kept": "green", "has": "green", "ok": "green", "ready": "green"}
STATUS_STYLE |= {
    "broken": "bold red",
    "fail": "bold red",
    "lacks": "yellow",
    "not applicable": "dim",
    "absent": "yellow",
}


def say(sentence: str, *, error: bool = False) -> None:
    """Print one line, whatever its length: only tables are fitted to the width."""
    console(error=error).print(printable(sentence), soft_wrap=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", right: Sequence[str] = ()
) -> Table:
    """A plain table of texts; a cell that is a known status is coloured."""
    made = Table(
        title=Text(title) if title else None,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title_justify="left",
        title_style="bold",
    )
    rows = [[printable(str(cell)) for cell in row] for row in rows]
    short = all(len(row[0]) <= LONGEST_NAME for row in rows)
    least = 2 * len(columns) + 1  # room between the columns
    for number, name in enumerate(columns):  # a narrow terminal wraps long texts, not names and numbers
        whole = name in right or name == "paper" or (number == 0 and short)
        width = max(cell_len(row[number]) for row in [columns, *rows]) if whole else _longest_word(name, number, rows)
        side = "right" if name in right else "left"
        made.add_column(Text(name), justify=side, overflow="fold", no_wrap=whole, min_width=width)
        least += width
    for row in rows:
        made.add_row(*(Text(text, style=STATUS_STYLE.get(text, "")) for text in row))
    if least > console().width:  # rich would cut columns off
        made.width = least
    return made


def _longest_word(name: str, number: int, rows: Sequence[Sequence[str]]) -> int:
    """The width of a column's longest word, so that lines break between words; words over LONGEST_WORD are broken."""
    words = (word for text in (name, *(row[number] for row in rows)) for word in text.split())
    return min(LONGEST_WORD, max(map(cell_len, words), default=1))


def pattern_codes(patterns: Iterable[str]) -> str:
    """`noncausal_self` as NS, `noncausal_self+causal_self` as NS+CS."""
    return " ".join(
        "+".join("".join(word[:1] for word in one.split("_")).upper() for one in pattern.split("+"))
        for pattern in patterns
    )


# ---------------------------------------------------------------------------------------------------------------- runs


def cards_table(cards: Sequence[Mapping[str, Any]]) -> Table:
    scores = [card["score"] if card["status"] == "ok" else None for card in cards]
    metrics = {score["name"] for score in scores if score is not None}
    metric = metrics.pop() if len(metrics) == 1 else "score"
    changed = differing(card["overrides"] for card in cards)
    rows = []
    for card, score in zip(cards, scores, strict=True):
        named = "" if score is None or score["name"] in (metric, "accuracy") else f" {score['name']}"
        rows.append(
            (
                card["task"],
                f"{card['mechanism']} {pattern_codes([card['pattern']])}",
                card["seed"],
                "fail" if score is None else _scored(score, score["value"]) + named,
                "" if score is None or score["chance"] is None else _scored(score, score["chance"]),
                "stand-in" if card["dataset"]["variant"] == "standin" else card["dataset"]["variant"],
                count(card["parameters"]["total"]),
                "shared" if card["timing"].get("shared") else rate(card["timing"]["steps_per_second"]),
                duration(card["timing"]["wall_seconds"]),
                *([settings_text(card["overrides"], changed)] if changed else []),
            )
        )
    columns = ("task", "mechanism", "seed", metric, "chance", "data", "params", "steps/s", "time")
    columns += ("changed",) if changed else ()
    return table(columns, rows, right=tuple(column for column in columns[2:] if column not in ("data", "changed")))


def scored(score: Mapping[str, Any]) -> str:
    """`accuracy 33.60 %`."""
    return f"{score['name']} {_scored(score, score['value'])}"


def _scored(score: Mapping[str, Any], value: float) -> str:
    """A score, or its chance level, in the unit of the task."""
    from longspan.results.board_table import percent, plain

    return plain(value) if score.get("unit", "percent") == "plain" else f"{percent(value)} %"


def estimates_table(guesses: Sequence[tuple[Any, Any]], device: str) -> Table:
    """What each cell is estimated to take."""
    rows = [
        (
            cell.task,
            cell.mechanism,
            cell.seed,
            count(guess.parameters),
            f"{guess.steps:,}",
            duration(guess.seconds),
            size(guess.memory_bytes),
            guess.note,
        )
        for cell, guess in guesses
    ]
    columns = ("task", "mechanism", "seed", "parameters", "steps", "time", "memory", "note")
    total = duration(sum(guess.seconds for _, guess in guesses))
    return table(columns, rows, title=f"Estimated on {device}: {total} in total", right=columns[2:7])


def plan_tasks_table(present: Mapping[str, int], cells: Sequence[Any], title: str) -> Table:
    """What each task of a board has and lacks."""
    groups = {task: [one for one in cells if one.cell.task == task] for task in present}
    if len(groups) > 1:
        groups["all"] = list(cells)
    rows = []
    for task, own in groups.items():
        known = [one.seconds for one in own if one.seconds is not None]
        guesses = sum(one.expected.guess for one in own if one.seconds is not None)
        begun = sum(one.done > 0 for one in own)
        time = duration(sum(known)) if known else "not known" if own else ""
        rows.append((task, present.get(task, sum(present.values())), len(own), begun or "", time, guesses or ""))
    columns = ("task", "there", "missing", "begun", "time, one after another", "of them guesses")
    return table(columns, rows, title=title, right=columns[1:])


def plan_cells_table(cells: Sequence[Any]) -> Table:
    """Missing cells in the order in which they would be run."""
    rows = [
        (
            number,
            one.cell.task,
            one.cell.mechanism,
            one.cell.seed,
            "not known" if one.seconds is None else duration(one.seconds),
            f"{one.per_minute:.2f}" if one.per_minute else "",
            f"{one.done:.0%}" if one.done else "",
            one.expected.source,
        )
        for number, one in enumerate(cells, start=1)
    ]
    columns = ("", "task", "mechanism", "seed", "time", "worth/min", "done", "from")
    return table(columns, rows, right=("", "seed", "time", "worth/min", "done"))


def spread_table(found: Sequence[Any]) -> Table:
    """Cells that do not fit one GPU."""
    rows = [
        (
            one.one.cell.task,
            one.one.cell.mechanism,
            one.one.cell.seed,
            size(one.need.bytes),
            f"--devices {one.gpus} --parallel {one.parallel}" if one.gpus else "a node is too small",
            one.need.source,
        )
        for one in found
    ]
    columns = ("task", "mechanism", "seed", "memory", "run with", "from")
    return table(columns, rows, title="cells that need several GPUs", right=("seed", "memory"))


def unfinished_table(found: Sequence[Any]) -> Table:
    rows = []
    changed = differing(run.cell.overrides for run in found if run.cell is not None)
    for run in found:
        if run.cell is None:
            what, done, changes = (run.problem, "", "", ""), "", ""
        else:
            what = (run.cell.task, run.cell.mechanism, f"{run.cell.protocol}/{run.cell.tier}", run.cell.seed)
            done, changes = f"{run.step:,} of {run.steps:,}", settings_text(run.cell.overrides, changed)
        rows.append((*what, *([changes] if changed else []), done, size(run.bytes), moment(run.updated), run.path))
    columns = ("task", "mechanism", "protocol/tier", "seed", *(["changed"] if changed else []))
    columns += ("steps done", "size", "last written", "folder")
    return table(columns, rows, right=("seed", "steps done", "size"))


def parameters_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    lines = [
        (
            row["task"],
            row["backbone"],
            row["mechanism"],
            pattern_codes([row["pattern"]]),
            f"{row['protocol']}/{row['tier']}",
            f"{row['total']:,}",
            f"{row['increment']:+,}",
            f"{row['ratio'] - 1:+.1%}",
            "kept" if row["within_rule"] else "broken",
            _printed(row["published"]),
        )
        for row in rows
    ]
    columns = ("task", "backbone", "mechanism", "pattern", "protocol/tier", "parameters", "over softmax", "share")
    return table((*columns, "10 % rule", "published"), lines, right=columns[5:])


def _printed(entry: Mapping[str, Any] | None) -> str:
    """What a paper prints, and whether the exact count here agrees."""
    if entry is None:
        return ""
    return f"{entry['printed']}, agrees" if entry["agrees"] else f"{entry['printed']}, not {entry['derived']:,}"


def print_conformance(reports: Sequence[Mapping[str, Any]], to: Console) -> None:
    """Promises by pattern for one mechanism, a line each for several; then what was broken and how."""
    several = len({report["mechanism"] for report in reports}) > 1
    to.print(_verdicts_table(reports) if several else _promises_table(reports))
    for report in reports:
        for line in report["promises"]:
            if line["status"] == "broken":
                where = f"{report['mechanism']} as {report['pattern']}"
                to.print(Text(printable(f"{where} breaks {line['promise']!r}: {line['detail']}"), style="red"))


def _promises_table(reports: Sequence[Mapping[str, Any]]) -> Table:
    statuses = {
        report["pattern"]: {line["promise"]: line["status"] for line in report["promises"]} for report in reports
    }
    promises = dict.fromkeys(line["promise"] for report in reports for line in report["promises"])
    rows = [(promise, *(_mark(statuses[pattern].get(promise)) for pattern in statuses)) for promise in promises]
    first = reports[0]
    title = f"{first['mechanism']} ({first['device']}, {first['dtype']}, {first['profile']})"
    return table(("promise", *statuses), rows, title=title)


def _mark(status: str | None) -> str:
    return "-" if status in (None, "not applicable") else status


def _verdicts_table(reports: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for report in reports:
        found = [line["status"] for line in report["promises"]]
        counts = [found.count(status) for status in ("kept", "broken", "not applicable")]
        rows.append((report["mechanism"], report["pattern"], "ok" if report["ok"] else "broken", *counts))
    columns = ("mechanism", "pattern", "verdict", "kept", "broken", "not applicable")
    return table(columns, rows, right=columns[3:])


def print_finding(finding: Any, to: Console) -> None:
    """An answer: its table, then its notes."""
    finding = finding.condensed()
    titles = [column.title for column in finding.columns]
    numbers = [column.title for column in finding.columns if column.kind != "text"]
    to.print(table(titles, finding.texts(), title=finding.title, right=numbers))
    for note in finding.notes:
        to.print(Text(printable(note), style="dim"))
    to.print()


def data_table(found: Sequence[tuple[Any, Sequence[str]]]) -> Table:
    """What is on disk for each setting, and which tasks use it."""
    rows = [
        (
            status.dataset,
            ", ".join(users),
            "ready" if status.ready else f"{status.shards} shards done" if status.shards else "absent",
            status.variant or "",
            " / ".join(f"{status.counts[split]:,}" for split in ("train", "valid", "test")) if status.counts else "",
            size(status.bytes) if status.ready else "",
        )
        for status, users in found
    ]
    return table(("dataset", "used by", "status", "variant", "train / valid / test", "size"), rows, right=("size",))


# ---------------------------------------------------------------------------------------------- readable numbers


def count(number: float | None) -> str:
    """`18.2 M`, `640 k`."""
    if number is None:
        return ""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def size(number: float | None) -> str:
    """Bytes in powers of 1024: `1.5 GiB`."""
    if number is None:
        return ""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**power:
            return f"{number / 2**power:.1f} {unit}"
    return f"{number:.0f} B"


def rate(number: float | None) -> str:
    return "" if number is None else f"{number:.1f}"


def duration(seconds: float | None) -> str:
    """`42 s`, `7 min 05 s`, `3 h 12 min`."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(when: float | str | datetime) -> str:
    """A date and time, to the minute."""
    if isinstance(when, (int, float)):
        when = datetime.fromtimestamp(when)
    elif isinstance(when, str):
        when = datetime.fromisoformat(when)
    return f"{when:%Y-%m-%d %H:%M}"

"""What a board says, cell by cell: tables of sections of lines, which every output format only writes out.

The order is that of the paper's own table: chance, models, spread over the models. What must not be compared
(the free track, records under other rules) gets a table of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from longspan import suites
from longspan.core.errors import first_few
from longspan.results.board_notes import LEFT_CHANCE, RULES
from longspan.results.board_types import Board, BoardCell, Mean, Row
from longspan.results.published_rows import SUMMARY, ColumnSpread, PaperRow
from longspan.results.titles import is_misleading

LOWER = " ↓"  # after the heading of a lower-is-better column on a board where the others are not
LEADING, NOT_ABOVE_CHANCE, DASH, PRINTED_ERROR = "●", "°", "–", "†"
CONFORMANCE = {"kept": "", "broken": "✗", "unchecked": "?"}  # beside the name of a row
MARKS = (LEADING, NOT_ABOVE_CHANCE, "±", *filter(None, CONFORMANCE.values()))  # explained below a table that has them
NAME = "Mechanism"
OWN_COLUMNS = ("#", "Seeds", "Steps/s", "Parameters")  # empty for published rows
FREE_TITLE = "Free track, not to be quoted beside published numbers"
FREE_NOTE = (
    "The free track has its own recipes or more than 10 % above the parameters of softmax; the rules of the benchmark "
    "forbid quoting published numbers beside it."
)


@dataclass(frozen=True)
class TableLine:
    """One row of any rendering: texts by column. `kind`: own, difference, published or summary."""

    kind: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    heading: str
    lines: tuple[TableLine, ...]


@dataclass(frozen=True)
class Part:
    """One table. What must not be compared is in different tables."""

    title: str
    columns: tuple[str, ...]
    sections: tuple[Section, ...]

    def without(self, names: Sequence[str]) -> "Part":
        kept = [index for index, name in enumerate(self.columns) if name not in names]
        sections = (
            Section(s.heading, tuple(TableLine(line.kind, tuple(line.texts[i] for i in kept)) for line in s.lines))
            for s in self.sections
        )
        return Part(self.title, tuple(self.columns[i] for i in kept), tuple(sections))


@dataclass(frozen=True)
class Style:
    """How much a cell shows, from everything to what fits a narrow screen."""

    spread: bool = True  # over seeds
    words: bool = True  # printed errors in words, else as a mark
    joined: bool = True  # the summary in one line, else in two
    spaced: bool = True  # a space before a mark


IN_WORDS = Style()


# ---------------------------------------------------------------------------------------------------- what a cell says


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def plain(value: float) -> str:
    """A score that is not a fraction, with four digits.

    >>> plain(15.5218), plain(0.2514), plain(31_530.2)
    ('15.52', '0.2514', '31,530')
    """
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def unit_of(view: Board, column: str | None) -> str:
    """How the numbers of a column or an average are written: percent, plain or index; None is the whole board."""
    if any(average.name == column and average.constants for average in view.suite.averages):
        return "index"
    return view.suite.unit if column is None else view.suite.measure(column).unit


def score_text(view: Board, value: float, column: str | None = None) -> str:
    unit = unit_of(view, column)
    return percent(value) if unit == "percent" else f"{value:+.3f}" if unit == "index" else plain(value)


def deviation_text(view: Board, std: float, column: str | None = None) -> str:
    return percent(std) if unit_of(view, column) == "percent" else f"{std:.2g}"


def difference_text(view: Board, difference: float, column: str | None = None) -> str:
    """Own minus published, in points or in the unit of the score."""
    return f"{100 * difference:+.2f}" if unit_of(view, column) == "percent" else f"{difference:+.3f}"


def paper_text(view: Board, row: PaperRow, column: str) -> str:
    """A published score digit by digit where its table gives them."""
    score = row.scores[column]
    return score if isinstance(score, str) else row.printed.get(column) or score_text(view, score, column)


def cell_text(view: Board, cell: BoardCell, style: Style = IN_WORDS, column: str | None = None) -> str:
    """`41.20 ± 0.41 ●`, `64.27 (4K)`, `FAIL`, `–`, `2 of 6` settings of a mean.

    Where some seeds failed or stayed at chance, the number of the others is added.
    """
    if cell.status == "missing":
        settings = view.suite.measure(column).settings if column else ()
        some = cell.lacking and len(settings) > 1
        return f"{len(settings) - len(cell.lacking)} of {len(settings)}" if some else DASH
    if cell.status == "fail" or cell.value is None:
        return "FAIL"
    text = score_text(view, cell.value, column)
    if cell.std is not None and style.spread:
        text += f" ± {deviation_text(view, cell.std, column)}"
    if cell.best is not None:
        text += f" ({suites.variant(cell.best)})"
    if cell.failed:
        text += f" ({cell.seeds} of {cell.seeds + cell.failed} seeds)"
    if cell.seeds > 1 and cell.left_chance is not None and cell.left_chance < cell.seeds:
        mean = f": {score_text(view, cell.left_mean, column)}" if cell.left_mean is not None and style.spread else ""
        text += f" ({cell.left_chance} of {cell.seeds} {LEFT_CHANCE}{mean})"
    space = " " if style.spaced else ""
    if cell.above_chance is False:
        text += space + NOT_ABOVE_CHANCE
    return text + space + LEADING if cell.leading else text


def mean_text(view: Board, mean: Mean, style: Style = IN_WORDS, name: str | None = None) -> str:
    if mean.value is None:
        return DASH
    space = " " if style.spaced else ""
    return score_text(view, mean.value, name) + (space + LEADING if mean.leading else "")


def count_text(number: float | None) -> str:
    """`1.23 M`, `45.6 k`."""
    if number is None:
        return DASH
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def rate_text(rate: float | None) -> str:
    return DASH if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"


def seeds_text(row: Row) -> str:
    numbers = sorted({cell.seeds + cell.failed for cell in row.cells.values() if cell.status != "missing"})
    return DASH if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def paper_average_text(view: Board, row: PaperRow, index: int, name: str, style: Style = IN_WORDS) -> str:
    """The recomputed average, and the printed one where it differs."""
    value = row.averages[name]
    text = DASH if value is None else score_text(view, value, name)
    if row.printed_average is None or not row.average_is_wrong or index != (0 if row.printed_over == 5 else 1):
        return text
    if not style.words:
        return text + PRINTED_ERROR
    elsewhere = "".join(f"; elsewhere {score_text(view, other, name)}" for other, _ in row.also_printed)
    return f"{text} (printed {score_text(view, row.printed_average, name)}{elsewhere})"


def spread_text(
    view: Board, spread: ColumnSpread | str | None, style: Style = IN_WORDS, column: str | None = None
) -> tuple[str, str]:
    """Mean and deviation as the paper writes them, `52 (2.7)`, or in two pieces for two lines."""
    if not isinstance(spread, ColumnSpread):
        return spread or "", ""
    unit = unit_of(view, column)
    mean = f"{100 * spread.mean:.0f}" if unit == "percent" else score_text(view, spread.mean, column)
    std = f"{100 * spread.std:.1f}" if unit == "percent" else f"{spread.std:.2g}"
    mark = PRINTED_ERROR if spread.is_wrong and not style.words else ""
    if not style.joined:
        return mean, std + mark
    printed = f", printed {spread.printed}" if spread.is_wrong and style.words else ""
    return f"{mean} ({std}){mark}{printed}", ""


# -------------------------------------------------------------------------------------------- tables, sections, lines


def columns(view: Board) -> tuple[str, ...]:
    averages = [average.title for average in view.suite.averages]
    titles = (f"{view.suite.measure(column).title}{LOWER * (column in falling(view))}" for column in view.suite.columns)
    return ("#", NAME, *titles, *averages, "Seeds", "Steps/s", "Parameters")


def falling(view: Board) -> set[str]:
    """Tasks where lower is better on a board whose average is higher-is-better, or the reverse."""
    return {task for task, one in view.suite.scored.items() if one.higher_is_better != view.suite.higher_is_better}


def names_of(view: Board) -> dict[tuple[str, str], str]:
    """What each row is called: its title, with the mechanism where the title alone is ambiguous or misleading.

    A mark follows if the mechanism breaks a promise or was not checked.
    """
    rows = [*view.rows, *view.free, *view.fidelity]
    titles = [row.title for row in rows]
    names = {}
    for row in rows:
        name = row.title
        if titles.count(row.title) > 1 or "(" in row.mechanism or is_misleading(row.mechanism, row.title):
            name = f"{row.title} [{row.mechanism}]"
        names[row.mechanism, row.pattern] = f"{name} {CONFORMANCE[row.conformance.status]}".rstrip()
    return names


def parts(view: Board, style: Style = IN_WORDS) -> list[Part]:
    """The tables of the board: own runs with the published rows, then what must be kept apart from both."""
    comparable = view.paper is None or view.paper.comparable
    published = _published_sections(view, style)
    own = "Own runs" if published and comparable else ""
    sections = [
        Section(own, (*_own_lines(view, view.rows, style), *_own_summary(view, style))),
        Section("Bug-compatible twins, never ranked", tuple(_own_lines(view, view.fidelity, style))),
        *(published if comparable else ()),
    ]
    apart = [] if comparable else [_part(view, view.paper.title if view.paper else "", published)]
    if view.free:
        apart.append(_part(view, FREE_TITLE, [Section("", tuple(_own_lines(view, view.free, style)))]))
    main = _part(view, view.title, sections)
    return [main, *apart] if main.sections or not apart else apart


def _part(view: Board, title: str, sections: Sequence[Section]) -> Part:
    """A table of the sections that have lines, without the columns that none of them fills."""
    filled = tuple(section for section in sections if section.lines)
    part = Part(title, columns(view), filled)
    lines = [line for section in filled for line in section.lines]
    empty = [name for i, name in enumerate(part.columns) if name in OWN_COLUMNS and not any(x.texts[i] for x in lines)]
    return part.without(empty) if lines else part


def _own_lines(view: Board, rows: Sequence[Row], style: Style) -> Iterator[TableLine]:
    names = names_of(view)
    tasks, averages = view.suite.columns, [average.name for average in view.suite.averages]
    for row in rows:
        yield TableLine(
            "own",
            (
                "" if row.rank is None else str(row.rank),
                names[row.mechanism, row.pattern],
                *(cell_text(view, row.cells[task], style, task) for task in tasks),
                *(mean_text(view, row.averages[name], style, name) for name in averages),
                seeds_text(row),
                rate_text(row.steps_per_second),
                count_text(row.parameters),
            ),
        )
        if row.differences:
            away = (
                difference_text(view, row.differences[c], c) if c in row.differences else ""
                for c in (*tasks, *averages)
            )
            yield TableLine("difference", ("", f"vs {row.counterpart}", *away, "", "", ""))


def _own_summary(view: Board, style: Style) -> Iterator[TableLine]:
    if len(view.rows) > 1 and view.summary:
        yield from _summary_lines(view, view.summary, style)


def _summary_lines(view: Board, summary: Mapping[str, ColumnSpread | str], style: Style) -> Iterator[TableLine]:
    names = (*view.suite.columns, *(average.name for average in view.suite.averages))
    pieces = [spread_text(view, summary.get(name), style, name) for name in names]
    means, deviations = zip(*pieces, strict=True)
    yield TableLine("summary", ("", SUMMARY if style.joined else "Task Avg", *means, "", "", ""))
    if not style.joined:
        yield TableLine("summary", ("", "Task Std", *deviations, "", "", ""))


def _published_sections(view: Board, style: Style) -> list[Section]:
    if view.paper is None:
        return []
    authors = [_paper_line(view, row, style) for row in view.published if row.kind != "external"]
    if view.paper.summary:
        authors.extend(_summary_lines(view, view.paper.summary, style))
    external = [_paper_line(view, row, style) for row in view.published if row.kind == "external"]
    heading = f"Published: {view.paper.title}" if view.paper.comparable else ""
    return [Section(heading, tuple(authors)), Section("External entries, not run by the authors", tuple(external))]


def _paper_line(view: Board, row: PaperRow, style: Style) -> TableLine:
    texts = (paper_text(view, row, column) for column in view.suite.columns)
    averages = (paper_average_text(view, row, i, average.name, style) for i, average in enumerate(view.suite.averages))
    return TableLine("published", ("", row.title, *texts, *averages, "", "", ""))


def difference_notes(view: Board) -> list[str]:
    """What "vs" means, where a row has it."""
    if not any(row.differences for row in (*view.rows, *view.fidelity)):
        return []
    unit = ", in points" if view.suite.unit == "percent" and not view.suite.measures else ""
    return [
        f"vs: own minus published score of the same attention{unit}; data preparation and code differ from the paper's."
    ]


def broken_notes(view: Board) -> list[str]:
    """Which promises are broken, where one is."""
    return [
        f"{row.title}: breaks {first_few(row.conformance.broken) or 'a promise'}, so it is not ranked."
        for row in (*view.rows, *view.free, *view.fidelity)
        if row.conformance.status == "broken"
    ]


def _off_notes(view: Board) -> list[str]:
    """Cards off the board; seeds that are off for the same reason share a line."""
    seeds: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for card in view.off:
        seeds[card.title, card.task, card.reason].append(card.seed)
    return [
        f"Off the board: {title} on {task}, {'seed' if len(own) == 1 else 'seeds'} "
        f"{first_few(map(str, own))} ({reason})."
        for (title, task, reason), own in seeds.items()
    ]


def footnotes(view: Board, style: Style = IN_WORDS) -> list[str]:
    """Everything below the tables: printed errors, notes, rules, and what is missing, oversized or off the board."""
    without: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in (*view.rows, *view.free):
        for average in view.suite.averages[:1]:
            if row.averages[average.name].missing:
                without[row.averages[average.name].missing].append(row.title)
    missing = [
        f"No {view.suite.averages[0].title} for want of {', '.join(tasks)}: {', '.join(titles)}."
        for tasks, titles in without.items()
    ]
    over = [f"{row.title}: {row.note}." for row in (*view.rows, *view.free) if row.note]
    mark = "Printed error. " if style.words else f"{PRINTED_ERROR} "
    flags = [mark + flag for flag in (view.paper.flags if view.paper else ())]
    followed: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in view.published:
        followed[row.deviations].append(f"{row.title} ({row.source})")
    deviations = [f"{', '.join(rows)}: {'; '.join(words)}." for words, rows in followed.items() if words]
    free = [FREE_NOTE] if view.free else []
    off = [*broken_notes(view), *_off_notes(view)]
    texts = "".join(text for part in parts(view, style) for s in part.sections for x in s.lines for text in x.texts)
    marks = {rule: rule[0] for rule in RULES if rule[0] in MARKS}
    marks |= {rule: LEFT_CHANCE for rule in RULES if LEFT_CHANCE in rule}
    rules = [] if view.empty and view.published else [rule for rule in RULES if marks.get(rule, "") in texts]
    return [*flags, *view.notes, *rules, *difference_notes(view), *free, *over, *missing, *off, *deviations]

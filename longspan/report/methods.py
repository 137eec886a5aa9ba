"""How the runs and measurements on cards were made, in words for a methods section: what was set, counted and used.

    paragraph(desk)         # LaTeX: a paragraph for all runs, one for all measurements, with citations
    settings(desk)          # a sheet: a line for every task, protocol, tier and kind of data

Every number is read off the cards; where cards differ, the smallest and the largest are given.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import ABLATIONS
from longspan.analysis.finding import Column, Finding
from longspan.published.bibliography import entries, key
from longspan.report.printed_tables import PATTERNS
from longspan.report.printed_tables import entries as catalogued
from longspan.report.sheet import Sheet, of_finding
from longspan.results.board_table import count_text
from longspan.results.card import Card
from longspan.results.latex import escaped
from longspan.results.variant import REAL, data_of

LIBRARIES = ("torch", "triton", "lightning", "numpy")
SELECTION = {"best": "the checkpoint that is best on validation", "last": "the last checkpoint"}
TEXTS = ("Task", "Protocol", "Tier", "Data", "Pattern", "Network", "Mechanisms")
RECIPE = ("steps", "batch_size", "learning_rate")
NUMBERS = ("Steps", "Batch", "Peak rate", "Seeds each", "Parameters", "Precision")
DASH = "–"


def paragraph(evidence: Evidence) -> str:
    """Two paragraphs of LaTeX, one where there are no measurements, and a sentence where there is nothing at all."""
    runs, measured = list(evidence.runs), list(evidence.measurements)
    if not (runs or measured):
        return "There are no runs and no measurements.\n"
    return "\n\n".join(filter(None, (_of_runs(runs), _of_measurements(measured)))) + "\n"


def papers(evidence: Evidence) -> list[str]:
    """Every paper to be cited: of the mechanisms, tasks and datasets on cards, and of both benchmarks."""
    cards = [*evidence.runs, *evidence.measurements]
    names = [("attentions", _base(card)) for card in cards]
    names += [("tasks", card["task"]) for card in evidence.runs]
    names += [("datasets", card["dataset"]["name"]) for card in evidence.runs if data_of(card) == REAL]
    found = {catalogued(kind)[name]["paper"] for kind, name in names if name in catalogued(kind)}
    found |= {entry["paper"] for entry in catalogued("suites").values()}
    return sorted(found & entries().keys())


# ----------------------------------------------------------------------------------------------------------------- runs


def _of_runs(runs: Sequence[Card]) -> str:
    if not runs:
        return ""
    tasks = sorted({card["task"] for card in runs})
    failed = sum(card["status"] != "ok" for card in runs)
    sentences = [
        f"We trained {_mechanisms(runs, 'networks without attention')} on "
        f"{_counted(tasks, 'task')} ({_cited('tasks', tasks)}), {_counted(runs, 'run')} in all"
        + (f", {failed} of which failed." if failed else "."),
        f"Protocols are {_several(runs, 'protocol')}, tiers {_several(runs, 'tier')}, "
        f"with {_seeds(runs)} for each mechanism on a task; the settings are in Table~\\ref{{tab:methods}}.",
        _selection(runs),
        _substitutes(runs),
        f"Networks have {_parameters(runs)} parameters.",
        _changed(runs),
        f"Runs were made {_places(runs)}.",
        _shared(runs),
    ]
    return " ".join(filter(None, sentences))


def _seeds(cards: Iterable[Card]) -> str:
    """How many seeds each cell has, from the fewest to the most, since mechanisms may differ."""
    cells: dict[tuple, set[int]] = defaultdict(set)
    for card in cards:
        names = ("task", "protocol", "tier", "pattern", "mechanism")
        cells[(*(card[name] for name in names), data_of(card), str(card["overrides"]))].add(card["seed"])
    counts = [len(seeds) for seeds in cells.values()]
    return f"{_span(counts)} seed{'' if max(counts) == 1 else 's'}"


def _selection(runs: Sequence[Card]) -> str:
    """Which weights are scored, and on which split, as far as cards say so."""
    chosen = sorted({str(_setting(card, "recipe", "selection") or "an unstated checkpoint") for card in runs})
    splits = sorted({str(card["score"]["split"]) for card in runs if card["score"]})
    if not splits:
        return ""
    words = " or ".join(SELECTION.get(one, escaped(one)) for one in chosen)
    return f"A score is that of {words}, on the {_listed(map(escaped, splits))} set."


def _shared(runs: Sequence[Card]) -> str:
    count = sum(bool(card["timing"].get("shared")) for card in runs)
    return f"Of these, {count:,} shared the device with others, and their speeds are not reported." if count else ""


def _substitutes(runs: Sequence[Card]) -> str:
    found = sorted({(card["task"], data_of(card)) for card in runs if data_of(card) != REAL})
    if not found:
        return ""
    listed = ", ".join(f"{escaped(data)} for {escaped(task)}" for task, data in found)
    return f"These data stand in for those of their tasks, so that scores compare only with one another: {listed}."


def _changed(runs: Sequence[Card]) -> str:
    count = sum(bool(card["overrides"]) for card in runs)
    if not count:
        return "No setting of a protocol was changed."
    return f"In {_counted(count, 'run')} settings of the protocol were changed; these are on no board."


def settings(evidence: Evidence) -> Sheet:
    """A line for each task under one set of rules."""
    groups: dict[tuple, list[Card]] = defaultdict(list)
    for card in evidence.runs:
        if not card["overrides"]:
            rules = (card["task"], card["protocol"], card["tier"], data_of(card), card["pattern"])
            groups[rules].append(card)
    rows = []
    for (task, protocol, tier, data, pattern), cards in sorted(groups.items()):
        named = f"{task} (v{_span(card['task_version'] for card in cards)})"
        codes = "+".join(PATTERNS.get(one, one) for one in str(pattern).split("+"))
        mechanisms = ", ".join(sorted({card["mechanism"] for card in cards}))
        recipe = [_span(_setting(card, "recipe", name) for card in cards) for name in RECIPE]
        precision = ", ".join(sorted({str(card["settings"].get("precision", DASH)) for card in cards}))
        seeds = _seeds(cards).partition(" seed")[0]
        texts = (named, protocol, tier, data, codes, _network(cards[0]), mechanisms)
        rows.append((*texts, *recipe, seeds, _parameters(cards), precision))
    columns = tuple(Column(title, context=title in ("Data", "Precision")) for title in (*TEXTS, *NUMBERS))
    made = of_finding(Finding("methods", "Settings of all runs", "As their cards have them.", columns, tuple(rows)))
    return replace(made, words=frozenset(place for place, head in enumerate(made.heads) if head in TEXTS))


def _setting(card: Card, part: str, name: str) -> Any:
    """A setting of a card, None where it has none: cards are untrusted, and old ones lack what came later."""
    found = card["settings"].get(part)
    return found.get(name) if isinstance(found, Mapping) else None


def _network(card: Card) -> str:
    """`encoder_classifier: 6 layers, 8 heads, width 512`."""
    sizes = {name: _setting(card, "model", name) for name in ("heads", "dim")}
    found = [_setting(card, "model", name) for name in ("layers", "encoder_layers", "decoder_layers")]
    layers = [count for count in found if isinstance(count, int)]
    words = [f"{'+'.join(map(str, layers))} layers"] * bool(layers)
    words += [f"{sizes['heads']} heads"] * bool(sizes["heads"]) + [f"width {sizes['dim']}"] * bool(sizes["dim"])
    return f"{card['backbone']}: {', '.join(words)}" if words else str(card["backbone"])


# --------------------------------------------------------------------------------------------------------- measurements


def _of_measurements(cards: Sequence[Card]) -> str:
    points = [point for card in cards for point in card["points"]]
    if not points:
        return ""
    lengths = sorted({point["length"] for point in points})
    modes = sorted({point["mode"] for point in points})
    return (
        f"Time and memory of {_mechanisms(cards, 'layers without attention')} were measured "
        f"at {_counted(lengths, 'length')} from {lengths[0]:,} to {lengths[-1]:,} tokens, "
        f"{_counted(points, 'point')} in all ({_listed(map(escaped, modes))}), {_places(cards)}."
    )


# ---------------------------------------------------------------------------------------------------- words and numbers


def _base(card: Card) -> str:
    return card["mechanism"].partition("(")[0]


def _mechanisms(cards: Iterable[Card], without: str) -> str:
    """All mechanisms counted and cited, and apart from them what has none."""
    names = sorted({_base(card) for card in cards})
    own = [name for name in names if name not in ABLATIONS]
    counted = [f"{_counted(own, 'mechanism')} ({_cited('attentions', own)})"] if own else []
    return _listed([*counted, *([without] if len(own) < len(names) else [])])


def _cited(kind: str, names: Iterable[str]) -> str:
    r"""Titles, each with its citation where its paper is known: `Softmax~\cite{vaswani2017attention}`."""
    found = []
    for name in names:
        entry: dict[str, Any] = catalogued(kind).get(name, {"title": name, "paper": ""})
        cite = rf"~\cite{{{key(entry['paper'])}}}" if entry["paper"] in entries() else ""
        found.append(escaped(entry["title"]) + cite)
    return _listed(found)


def _listed(words: Iterable[str]) -> str:
    """
    >>> _listed(["a", "b", "c"]), _listed(["a"])
    ('a, b and c', 'a')
    """
    *others, last = list(words)
    return f"{', '.join(others)} and {last}" if others else last


def _counted(things: int | Sequence[Any], noun: str) -> str:
    count = things if isinstance(things, int) else len(things)
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _several(cards: Iterable[Card], field: str) -> str:
    return _listed(map(escaped, sorted({card[field] for card in cards})))


def _span(values: Iterable[Any]) -> str:
    """The smallest and the largest.

    >>> _span([0, 1, 2]), _span({3000}), _span({1e-4, 5e-4})
    ('0 to 2', '3,000', '0.0001 to 0.0005')
    """
    found = [value for value in values if isinstance(value, int | float)]
    ends = sorted({min(found), max(found)}) if found else []
    return " to ".join(f"{one:,}" if isinstance(one, int) else f"{one:g}" for one in ends) or DASH


def _parameters(cards: Iterable[Card]) -> str:
    totals = [card["parameters"]["total"] for card in cards]
    return " to ".join(dict.fromkeys((count_text(min(totals)), count_text(max(totals)))))


def _places(cards: Sequence[Card]) -> str:
    """Devices, versions of libraries and of this package, and the commits of the code."""
    machines = sorted({str(card["environment"].get("gpu") or card["environment"].get("cpu") or "?") for card in cards})
    versions = []
    for name in ("python", *LIBRARIES, "cuda", "driver"):
        found = sorted({str(card["environment"][name]) for card in cards if card["environment"].get(name)})
        if found:
            versions.append(f"{name} {_listed(found)}")
    code = sorted({str(card["code"].get("version")) for card in cards})
    commits = {str(card["code"].get("commit")) for card in cards} - {"None"}
    kept = f" ({_counted(len(commits), 'commit')})" if commits else ""
    software = escaped(f"Longspan {_listed(code)}{kept}, {', '.join(versions)}")
    return f"on {_listed(map(escaped, machines))} with {software}"

"""Which mechanism should I use? The fastest of those measured, with the cards it was read from and what it scored.

    advise(evidence, pattern="causal_self", length=16384, mode="train").lede

Nothing is guessed: a length between two measured ones is interpolated on a straight line of logarithms and the answer
says so, one beyond them is not answered. Quality is shown where runs have it, never inferred from speed.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from longspan import suites
from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import MODES, Bench, LengthEstimate, need_benches
from longspan.analysis.fastest import Entry, ranking
from longspan.analysis.finding import Column, Finding
from longspan.core.errors import DataMissing, UsageError, did_you_mean
from longspan.results.card import Card
from longspan.results.variant import REAL, data_of

SUITE = "lra"
TIERS = ("full", "lite", "smoke")
GIB = 2**30
RUNNERS_UP = 4
UNBEATEN = "Unbeaten"  # a column
COLUMNS = (
    Column("Mechanism"),
    Column("Exact"),
    Column("Time, µs", "number", "a call, or a token in decoding"),
    Column("Times the first", "number"),
    Column("Memory, MiB", "number", "peak allocated"),
    Column("Variant", context=True),
    Column("How", context=True),
    Column("Scores"),
    Column("Card", hint="the letters at the end of the name of its file"),
)


@dataclass(frozen=True)
class Choice:
    """A mechanism that may be used, with its memory and what its runs scored."""

    entry: Entry
    memory: LengthEstimate | None
    scores: str


def advise(
    evidence: Evidence,
    *,
    pattern: str,
    length: int,
    mode: str = "forward",
    exact_only: bool = False,
    memory_limit: float | None = None,
    device: str | None = None,
) -> Finding:
    """The fastest first, then the runners-up. `memory_limit` is in GiB, `device` a part of a machine's name."""
    if mode not in MODES:
        raise UsageError(f"No mode {mode!r}.{did_you_mean(mode, MODES)}")
    bench, others = _bench(evidence, pattern, mode, length, device)
    entries = ranking(bench, mode, length)
    kept, notes = _within(bench, entries, mode, length, exact_only, memory_limit)
    if not kept:
        asked = " and ".join(
            [*(["exact"] if exact_only else []), *([f"within {memory_limit:g} GiB"] if memory_limit else [])]
        )
        raise DataMissing(
            f"Of {len(entries)} mechanisms measured at {length:,} tokens in {mode} mode none is {asked}; ask for less."
        )
    choices = [Choice(entry, _memory(entry, mode, length), scores_of(evidence.runs, entry)) for entry in _shown(kept)]
    first = choices[0].entry
    return Finding(
        "advise",
        f"Advice for {pattern}, {length:,} tokens, {mode}",
        _sentence(bench, first, kept, length, mode),
        COLUMNS,
        tuple(_row(choice, first.time.value) for choice in choices),
        (*notes, *_left_out(bench, entries, mode, length), *others, *_caveats(choices), _cited(choices)),
    )


# ----------------------------------------------------------------------------------------------------- what may be used


def _bench(evidence: Evidence, pattern: str, mode: str, length: int, device: str | None) -> tuple[Bench, list[str]]:
    """The bench with the most mechanisms measured there; whole layers and blocks are another question."""
    found = [bench for bench in need_benches(evidence.measurements) if bench.module == "core"]
    machines = sorted({bench.machine for bench in found})
    if device is not None:
        found = [bench for bench in found if device.casefold() in bench.machine.casefold()]
        if not found:
            raise DataMissing(f"No core was measured on a machine called {device!r}; measured: {'; '.join(machines)}.")
    of_pattern = [bench for bench in found if bench.pattern == pattern]
    counted = [(len(ranking(bench, mode, length)), bench) for bench in of_pattern]
    usable = [(count, bench) for count, bench in counted if count]
    if not usable:
        raise DataMissing(_nothing(of_pattern, pattern, mode, length))
    best = max(usable, key=lambda pair: pair[0])[1]
    others = [bench.where for _, bench in usable if bench is not best]
    return best, [f"Also measured there, not used: {'; '.join(others)}; --device chooses."] if others else []


def _nothing(benches: Sequence[Bench], pattern: str, mode: str, length: int) -> str:
    lengths = sorted({one for bench in benches for one in bench.lengths(mode)})
    asked = f"{pattern} at {length:,} tokens in {mode} mode"
    if not lengths:
        return f"Nothing was measured as {asked}; do it with longspan measure softmax linear --pattern {pattern}."
    reach = f"{lengths[0]:,} to {lengths[-1]:,}"
    return f"Nothing was measured around {asked}, only at {reach}, and nothing is extrapolated; measure that length."


def _within(
    bench: Bench, entries: Sequence[Entry], mode: str, length: int, exact_only: bool, limit: float | None
) -> tuple[list[Entry], list[str]]:
    kept, notes = list(entries), []
    if exact_only:
        kept = [entry for entry in kept if entry.measured.exact]
    if limit is not None:
        sizes = {entry.measured.mechanism: _memory(entry, mode, length) for entry in kept}
        unknown = [entry.measured.name for entry in kept if sizes[entry.measured.mechanism] is None]
        kept = [
            entry
            for entry in kept
            if (size := sizes[entry.measured.mechanism]) is not None and size.value <= limit * GIB
        ]
        notes += [f"Left out, as their memory is not known: {', '.join(unknown)}."] if unknown else []
    return kept, notes


def _shown(entries: Sequence[Entry]) -> list[Entry]:
    """The first few, and the first exact one if it is not among them."""
    chosen = list(entries[: 1 + RUNNERS_UP])
    exact = next((entry for entry in entries if entry.measured.exact), None)
    return chosen if exact is None or exact in chosen else [*chosen, exact]


def _memory(entry: Entry, mode: str, length: int) -> LengthEstimate | None:
    """Of the variant that is advised, else of an eager call."""
    variants = (entry.time.variant, "eager")
    found = (entry.measured.estimate("memory", mode, variant, length) for variant in variants)
    return next((one for one in found if one is not None), None)


# ------------------------------------------------------------------------------------------------------- what is said


def _sentence(bench: Bench, first: Entry, kept: Sequence[Entry], length: int, mode: str) -> str:
    kind = "exact attention" if first.measured.exact else "not exact attention"
    call = {"forward": "a forward call", "train": "a forward and backward call", "decode": "a token"}[mode]
    words = f"Use {first.measured.mechanism}, {kind}: {1e6 * first.time.value:,.1f} µs for {call} at {length:,} tokens"
    if first.time.between is not None:
        words += f", interpolated {first.time.words} tokens"
    words += f" ({first.time.variant}), the fastest of {len(kept)} on {bench.where}."
    exact = next((entry for entry in kept if entry.measured.exact), None)
    if not first.measured.exact and exact is not None:
        times = exact.time.value / first.time.value
        words += f" The fastest exact one is {exact.measured.mechanism}, {times:.2f} times as long."
    return words


def _row(choice: Choice, best: float) -> tuple:
    entry, time = choice.entry, choice.entry.time
    memory = None if choice.memory is None else choice.memory.value / 2**20
    cards = ", ".join(name.rpartition("-")[2] for name in time.cards)
    who = (entry.measured.name, entry.measured.exact)
    return (*who, 1e6 * time.value, time.value / best, memory, time.variant, time.words, choice.scores, cards)


def _left_out(bench: Bench, entries: Sequence[Entry], mode: str, length: int) -> list[str]:
    """Mechanisms that were measured but have nothing around this length, with the reason where a card has one."""
    ranked = {entry.measured.mechanism for entry in entries}
    missing = []
    for measured in bench.mechanisms.values():
        if measured.mechanism in ranked or not measured.ranked:
            continue
        reasons = {
            reading.status
            for (own, own_mode, _), reading in measured.readings.items()
            if own_mode == mode and own >= length and reading.status != "ok"
        }
        if reasons:
            missing.append(f"{measured.name} ({', '.join(sorted(reasons))})")
    return [f"Not usable there: {'; '.join(missing)}."] if missing else []


def _cited(choices: Sequence[Choice]) -> str:
    names = dict.fromkeys(name for choice in choices for name in choice.entry.time.cards)
    return f"Read from the cards {', '.join(names)}."


def _caveats(choices: Sequence[Choice]) -> list[str]:
    notes = []
    if any(choice.entry.measured.whole_layer for choice in choices):
        notes.append("A whole layer has no core of its own, so that its projections are in the time.")
    if any(choice.scores for choice in choices):
        notes.append("Scores are means over seeds of own runs with exactly this mechanism, in percent, by task.")
    else:
        notes.append("No run card has a score of any of these, so nothing is said about quality.")
    return notes


# ------------------------------------------------------------------------------------------------------------- quality


def scores_of(runs: Sequence[Card], entry: Entry) -> str:
    """Mean accuracies on the tasks of Long Range Arena by the best tier that was run; empty where there is none.

    Exact kernels compute one function, so runs of any of them count for all, under their own name.
    """
    measured = entry.measured
    found: dict[tuple[int, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for card in runs:
        base = card["mechanism"].split("(", 1)[0]
        same = card["mechanism"] == measured.mechanism
        alike = measured.exact and base == measured.mechanism.split("(", 1)[0]
        real = card["status"] == "ok" and data_of(card) == REAL and not card["overrides"]
        if (same or alike) and real and card["task"] in suites.get(SUITE).tasks and card["score"]:
            tier = TIERS.index(card["tier"]) if card["tier"] in TIERS else len(TIERS)
            rules = f"{card['protocol']} · {card['tier']}" + ("" if same else f", {card['mechanism']}")
            found[tier, rules, card["score"]["name"]][card["task"]].append(card["score"]["value"])
    if not found:
        return ""
    best = min(found)
    parts = [f"{task} {100 * statistics.fmean(values):.1f}" for task, values in sorted(found[best].items())]
    return f"{', '.join(parts)} ({best[1]})"

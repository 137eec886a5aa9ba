"""Which mechanism should I use? What each costs and scores, which are unbeaten, and what is not known.

    advise(evidence, pattern="causal_self", length=16384, mode="train").lede

Costs are the time and memory of a call and, for causal patterns, the time to decode a token. One mechanism beats
another in the same pattern if it is as cheap in every known cost of the other, cheaper in at least one, and on no task
worse in score by more than two standard errors; exact attention, which computes softmax, is no worse unless scores say
so. Where scores cannot tell, the other stays a choice `if better` in score. Nothing is guessed: a length between two
measured ones is interpolated linearly in log-log space and the answer says so; a length beyond them is not answered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longspan.analysis.cards import Evidence
from longspan.analysis.comparable import MODES, Bench, LengthEstimate, need_benches
from longspan.analysis.fastest import Entry, ranking
from longspan.analysis.finding import Column, Finding
from longspan.analysis.pattern_scores import PatternScore, compared, listed, pattern_scores, rules_of
from longspan.core.errors import DataMissing, UsageError, did_you_mean

GIB = 2**30
MIB = 2**20
SHOWN = 12  # rows, unless all are asked for
UNBEATEN = "Unbeaten"  # a column
YES, OPEN, NO = "yes", "if better", "no"
CAUSAL = ("causal_self", "causal_cross")
SAME = 1.02  # costs within two per cent of one another count as equal
COLUMNS = (
    Column("Mechanism"),
    Column(
        UNBEATEN,
        hint="whether nothing is as good in all that is known and better in something; or only if it scores better",
    ),
    Column("Exact"),
    Column("Time, µs", "number", "a call, or a token in decoding"),
    Column("Times the first", "number", "over the fastest"),
    Column("Memory, MiB", "number", "peak allocated"),
    Column("Decode, µs", "number", "a token behind so many", context=True),
    Column("Scores", hint="means in this pattern with half of a 95 % interval"),
    Column("Rivals", hint="what is as cheap in everything: it beats this one, or would unless this one scores better"),
    Column("Variant", context=True),
    Column("How", context=True),
    Column("Card", hint="the letters at the end of the name of its file"),
)


@dataclass(frozen=True)
class Choice:
    """A candidate mechanism: its known costs by name, and its scores by task."""

    entry: Entry
    costs: Mapping[str, float]
    scores: Mapping[str, PatternScore]

    @property
    def name(self) -> str:
        return self.entry.measured.name

    @property
    def exact(self) -> bool:
        return self.entry.measured.exact


@dataclass(frozen=True)
class Weighed:
    """A choice, the mechanisms that beat it, and those that are as cheap but could not be compared in score."""

    choice: Choice
    beaten_by: tuple[str, ...]
    as_cheap: tuple[str, ...]

    @property
    def verdict(self) -> str:
        return NO if self.beaten_by else OPEN if self.as_cheap else YES


def advise(
    evidence: Evidence,
    *,
    pattern: str,
    length: int,
    mode: str = "forward",
    exact_only: bool = False,
    memory_limit: float | None = None,
    device: str | None = None,
    every: bool = False,
) -> Finding:
    """The trade-off, unbeaten mechanisms first. `memory_limit` is in GiB, `device` a part of a machine's name."""
    if mode not in MODES:
        raise UsageError(f"No mode {mode!r}.{did_you_mean(mode, MODES)}")
    bench, others = _bench(evidence, pattern, mode, length, device)
    entries = ranking(bench, mode, length)
    scores = pattern_scores(evidence.runs, pattern)
    choices = [_choice(entry, pattern, mode, length, scores) for entry in entries]
    kept, notes = _within(choices, exact_only, memory_limit)
    if not kept:
        asked = " and ".join(
            [*(["exact"] if exact_only else []), *([f"within {memory_limit:g} GiB"] if memory_limit else [])]
        )
        raise DataMissing(
            f"Of {len(entries)} mechanisms measured at {length:,} tokens in {mode} mode none is {asked}; ask for less."
        )
    weighed = weigh(kept)
    rows = weighed if every else _few(weighed)
    left = len(weighed) - len(rows)
    notes += [f"{left} more are not shown; --all shows them."] if left else []
    best = min(one.costs["time"] for one in kept)
    return Finding(
        "advise",
        f"Advice for {pattern}, {length:,} tokens, {mode}",
        _sentence(bench, weighed, length, mode),
        COLUMNS,
        tuple(_row(one, best) for one in rows),
        (
            *notes,
            *_unknown(kept, pattern, mode),
            *_left_out(bench, entries, mode, length),
            *others,
            *_caveats(kept),
        ),
    )


# ------------------------------------------------------------------------------------------------------------- weighing


def weigh(choices: Sequence[Choice]) -> list[Weighed]:
    """All choices, unbeaten ones first, each group sorted by time."""
    found = []
    for own in choices:
        beaten, cheap = [], []
        for other in choices:
            if other is not own and _cheaper(other, own):
                said = _worse(other, own)
                (cheap if said is None else [] if said else beaten).append(other.name)
        found.append(Weighed(own, tuple(beaten), tuple(cheap)))
    return sorted(found, key=lambda one: ((YES, OPEN, NO).index(one.verdict), one.choice.costs["time"]))


def _cheaper(one: Choice, other: Choice) -> bool:
    """Whether the first is as cheap in every known cost of the second, and clearly cheaper in one."""
    if not set(other.costs) <= set(one.costs):
        return False
    pairs = [(one.costs[name], other.costs[name]) for name in other.costs]
    return all(mine <= SAME * theirs for mine, theirs in pairs) and any(SAME * mine < theirs for mine, theirs in pairs)


def _worse(one: Choice, other: Choice) -> bool | None:
    """Whether the first is worse in score than the second; None where the scores cannot tell."""
    said = compared(one.scores, other.scores)
    return False if said is None and one.exact else said


def _choice(
    entry: Entry, pattern: str, mode: str, length: int, scores: Mapping[str, Mapping[str, PatternScore]]
) -> Choice:
    measured = entry.measured
    costs = {"time": entry.time.value}
    if (memory := _memory(entry, mode, length)) is not None:
        costs["memory"] = memory.value
    if pattern in CAUSAL and mode != "decode" and (token := measured.best_estimate("time", "decode", length)):
        costs["decode"] = token.value
    return Choice(entry, costs, _scores_of(entry, scores))


def _scores_of(entry: Entry, scores: Mapping[str, Mapping[str, PatternScore]]) -> Mapping[str, PatternScore]:
    """Exact kernels compute the same function, so runs of any of them count for all."""
    measured = entry.measured
    if (own := scores.get(measured.mechanism)) is not None or not measured.exact:
        return own or {}
    base = measured.mechanism.split("(", 1)[0]
    return next((found for name, found in sorted(scores.items()) if name.split("(", 1)[0] == base), {})


def _memory(entry: Entry, mode: str, length: int) -> LengthEstimate | None:
    """The memory of the advised variant, else of an eager call."""
    variants = (entry.time.variant, "eager")
    found = (entry.measured.estimate("memory", mode, variant, length) for variant in variants)
    return next((one for one in found if one is not None), None)


# ----------------------------------------------------------------------------------------------------- what may be used


def _bench(evidence: Evidence, pattern: str, mode: str, length: int, device: str | None) -> tuple[Bench, list[str]]:
    """The core bench with the most mechanisms measured at this length; whole layers and blocks are not considered."""
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


def _within(choices: Sequence[Choice], exact_only: bool, limit: float | None) -> tuple[list[Choice], list[str]]:
    kept = [one for one in choices if one.exact or not exact_only]
    if limit is None:
        return kept, []
    unknown = [one.name for one in kept if "memory" not in one.costs]
    notes = [f"Left out, as their memory is not known: {', '.join(unknown)}."] if unknown else []
    return [one for one in kept if one.costs.get("memory", float("inf")) <= limit * GIB], notes


def _few(weighed: Sequence[Weighed]) -> list[Weighed]:
    """The first `SHOWN`, and the fastest exact one if it is not among them."""
    chosen = list(weighed[:SHOWN])
    exact = _first(one for one in weighed if one.choice.exact)
    return chosen if exact is None or exact in chosen else [*chosen, exact]


def _first(found: Iterable[Weighed]) -> Weighed | None:
    return min(found, key=lambda one: one.choice.costs["time"], default=None)


# ------------------------------------------------------------------------------------------------- sentences and notes


def _sentence(bench: Bench, weighed: Sequence[Weighed], length: int, mode: str) -> str:
    """Who leads in each cost, what exact attention takes, and how many remain to choose from."""
    choices = [one.choice for one in weighed]
    fast = min(choices, key=lambda one: one.costs["time"])
    call = {"forward": "a forward call", "train": "a forward and backward call", "decode": "a token"}[mode]
    kind = "exact" if fast.exact else "not exact"
    time = fast.entry.time
    between = "" if time.between is None else f", interpolated {time.words} tokens"
    words = [
        f"Fastest is {fast.entry.measured.mechanism} ({kind}): {1e6 * time.value:,.1f} µs for {call} at {length:,} "
        f"tokens{between}, of {len(choices)} on {bench.where}."
    ]
    for cost, title, scale, unit in (("memory", "Least memory", MIB, "MiB"), ("decode", "Cheapest token", 1e-6, "µs")):
        known = [one for one in choices if cost in one.costs]
        if known:
            least = min(known, key=lambda one: one.costs[cost])
            words.append(f"{title}: {least.entry.measured.mechanism} ({least.costs[cost] / scale:,.1f} {unit}).")
    exact = _first(one for one in weighed if one.choice.exact)
    if exact is not None and not fast.exact:
        times = exact.choice.costs["time"] / fast.costs["time"]
        words.append(f"The fastest exact one is {exact.choice.entry.measured.mechanism}, {times:.2f} times as long.")
    counts = {verdict: sum(one.verdict == verdict for one in weighed) for verdict in (YES, OPEN, NO)}
    words.append(
        f"Beaten by nothing: {counts[YES]}. Worth their cost only if they score better: {counts[OPEN]}. "
        f"Beaten: {counts[NO]}."
    )
    return " ".join(words)


def _row(one: Weighed, best: float) -> tuple:
    choice, time = one.choice, one.choice.entry.time
    memory, decode = choice.costs.get("memory"), choice.costs.get("decode")
    cards = ", ".join(name.rpartition("-")[2] for name in time.cards)
    return (
        choice.name,
        one.verdict,
        choice.exact,
        1e6 * time.value,
        time.value / best,
        None if memory is None else memory / MIB,
        None if decode is None else 1e6 * decode,
        listed(choice.scores.values()) or "unknown",
        ", ".join((one.beaten_by or one.as_cheap)[:3]) or "–",
        time.variant,
        time.words,
        cards,
    )


def _unknown(choices: Sequence[Choice], pattern: str, mode: str) -> list[str]:
    """What has not been measured, which is why a verdict stays open."""
    notes = []
    unscored = [one.name for one in choices if not one.scores]
    if len(unscored) == len(choices):
        notes.append(f"Not known: any score in {pattern} slots, so that nothing is said about quality.")
    elif unscored:
        notes.append(f"Not known: scores in {pattern} slots of {_listed(unscored)}.")
    unsure = sorted({score.task for one in choices for score in one.scores.values() if score.error is None})
    if unsure:
        notes.append(f"Not known: how sure scores of one seed on {', '.join(unsure)} are; they decide nothing here.")
    asked = [("memory", "peak memory")] + ([("decode", "decoding")] if pattern in CAUSAL and mode != "decode" else [])
    for cost, title in asked:
        lacking = [one.name for one in choices if cost not in one.costs]
        if lacking:
            notes.append(f"Not known: {title} of {'any' if len(lacking) == len(choices) else _listed(lacking)}.")
    return notes


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _left_out(bench: Bench, entries: Sequence[Entry], mode: str, length: int) -> list[str]:
    """Measured mechanisms without a value at this length, with the reason where a card has one."""
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


def _caveats(choices: Sequence[Choice]) -> list[str]:
    notes = []
    if any(one.entry.measured.whole_layer for one in choices):
        notes.append("A whole layer has no core of its own, so that its projections are in the time.")
    scores = [score for one in choices for score in one.scores.values()]
    if scores:
        rules = rules_of(one.scores for one in choices)
        notes.append(f"Scores are of own runs in the same pattern, by the fullest tier that was run ({rules}).")
    if any(score.seeds == 1 and score.error is not None for score in scores):
        notes.append("Where one seed was run, ± knows the sampling of the test set, not the luck of training.")
    return notes

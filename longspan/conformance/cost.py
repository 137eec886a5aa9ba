"""Cost: operations and memory of training grow with the length no faster than declared.

Both are counted at lengths that double. With f = a + b n^p the constant a cancels in the differences, and
p = log2((f(4n) - f(2n)) / (f(2n) - f(n))), so that weights and workspaces of fixed size hide nothing. Each operator of
each pass is checked against the declaration too: next to the projections, log n rounds of a cheap one would not show.

Work that torch does not see (in numpy, in Python, in a foreign operator) cannot be counted. Its processor time is a
coarse sign: only growth far above the declaration is called broken, and only when repeated measurements show it.
"""

import math
from dataclasses import dataclass

from longspan.conformance.counting import CostCount, count
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import Subject

# the exponent allowed for a declared cost; a logarithm adds 0.13 at these lengths, a few blocks cut short add less
ALLOWED = {"n": 1.2, "n log n": 1.3, "n sqrt n": 1.65, "n^2": 2.1}
ALLOWED_OPERATOR = ALLOWED | {"n": 1.06}  # counted alone, a linear operator is linear to the last digit
ALLOWED_HIDDEN = {"n": 1.6, "n log n": 1.65, "n sqrt n": 1.8}  # none for n^2: hidden work grows no faster
SHARE = 0.01  # of all operations; an operator with less is ignored
FALLING, LONGER = 0.97, 32  # double again if the exponent falls by this factor, up to this multiple of the start
# Hidden seconds, their share of the total, and how often they are measured before a verdict. Overhead of torch around
# its operators is a fifth of the time and noisy; hidden work that outgrows a declaration is soon nearly all of it.
NOTICEABLE, MOST, ROUNDS = 0.01, 0.5, 3

Counts = dict[int, CostCount]


@dataclass(frozen=True)
class _Growth:
    """Something that is counted, and how fast it grows."""

    what: str
    exponent: float
    allowed: float
    share: float = 1.0

    @property
    def excess(self) -> float:
        return self.exponent - self.allowed


@promise("declared cost")
def declared_cost(subject: Subject) -> Outcome:
    """Operations and live bytes, forward and backward, and time out of torch's sight, grow no faster than declared."""
    declared = subject.meta.cost
    start = 512 if subject.quick else 1024
    found = []
    for masked in (True,) if subject.quick else (True, False):
        counts = {n: _counted(subject, n, masked) for n in (start, 2 * start, 4 * start)}
        fastest, before = _fastest(counts, declared), math.inf
        while fastest.excess > 0 and _may_be_a_step(fastest.exponent, before) and max(counts) < LONGER * start:
            n, before = 2 * max(counts), fastest.exponent
            counts[n] = _counted(subject, n, masked)
            fastest = _fastest(counts, declared)
        masks = f"up to length {max(counts)} {'with' if masked else 'without'} a mask"
        operations, memory = _growth(counts, declared)
        figures = f"operations grow as n^{operations.exponent:.2f}, live bytes as n^{memory.exponent:.2f} {masks}"
        if fastest.excess > 0:
            return broken(f"declared {declared}, yet {_named(fastest, counts, declared)}; {figures}")
        if hidden := _hidden(subject, counts, masked):
            return broken(f"declared {declared}, yet {hidden}; {figures}")
        found.append(f"{figures} ({counts[max(counts)].peak_bytes / 2**20:.1f} MiB)")
    return kept(f"declared {declared}: {'; '.join(found)}")


def _counted(subject: Subject, n: int, masked: bool) -> CostCount:
    layer = subject.layer(dtype=subject.dtype_asked, longest=n)
    batch = subject.batch(1, n, n, dtype=subject.dtype_asked).requiring_grad()
    hidden = subject.right(n, (n - n // 16,)) if masked else None
    context_mask = hidden if subject.pattern.cross else None

    def forward():
        with subject.precision(subject.dtype == "bfloat16"):
            return layer(batch.x, batch.context, mask=hidden, context_mask=context_mask)

    return count(forward, lambda y: y.to(subject.dtype_asked).square().mean().backward())


def _growth(counts: Counts, declared: str) -> tuple[_Growth, _Growth]:
    """How all operations and how live bytes grow over the three largest lengths."""
    last = [counts[n] for n in sorted(counts)[-3:]]
    operations, memory = _exponent([c.operations for c in last]), _exponent([c.peak_bytes for c in last])
    return _Growth("operations", operations, ALLOWED[declared]), _Growth("live bytes", memory, ALLOWED[declared])


def _operators(counts: Counts, declared: str) -> list[_Growth]:
    """How the operations of each operator grow, where they are a noticeable share."""
    last = [counts[n] for n in sorted(counts)[-3:]]
    shares = {name: number / last[-1].operations for name, number in last[-1].by_operator.items()}
    return [
        _Growth(name, _exponent([c.by_operator.get(name, 0) for c in last]), ALLOWED_OPERATOR[declared], share)
        for name, share in shares.items()
        if share >= SHARE
    ]


def _fastest(counts: Counts, declared: str) -> _Growth:
    """What exceeds the declaration most."""
    return max([*_growth(counts, declared), *_operators(counts, declared)], key=lambda growth: growth.excess)


def _named(fastest: _Growth, counts: Counts, declared: str) -> str:
    """The pass and the operator behind what grows too fast, in words."""
    if fastest.what == "live bytes":
        return f"live bytes grow as n^{fastest.exponent:.1f}, most of them made in the {counts[max(counts)].peak_at}"
    growing = [growth for growth in _operators(counts, declared) if growth.excess > 0]
    most = max(growing, key=lambda growth: growth.share, default=fastest)
    if declared == "n" and most.exponent < ALLOWED["n"]:
        return f"the {most.what} grows as n log n, which is {most.share:.0%} of the operations"
    return f"the {most.what} grows as n^{most.exponent:.1f}, which is {most.share:.0%} of the operations"


def _may_be_a_step(exponent: float, before: float) -> bool:
    """Between two regimes the exponent looks too high and then falls; further doublings tell this from real growth."""
    return exponent > ALLOWED["n^2"] or exponent < FALLING * before


def _exponent(values: list[int] | list[float]) -> float:
    earlier, later = values[1] - values[0], values[2] - values[1]
    if later <= 0:
        return 0.0
    return math.log2(later / earlier) if earlier > 0 else math.inf


def _hidden(subject: Subject, counts: Counts, masked: bool) -> str:
    """How time outside torch's operators grows, where that is faster than declared; empty where it is not.

    A first suspicion is measured again at the same lengths and at twice these, taking the minimum of several runs.
    """
    if subject.meta.cost not in ALLOWED_HIDDEN or not subject.on_cpu:
        return ""
    n = max(counts)
    lengths = (n // 2, n, 2 * n)
    runs = [counts.get(length) or _counted(subject, length, masked) for length in lengths]
    if not _suspicious(subject, runs):
        return ""
    for longer in (1, 2):
        rounds = [[_counted(subject, longer * n, masked) for n in lengths] for _ in range(ROUNDS)]
        runs = [min(same, key=lambda run: run.hidden_seconds) for same in zip(*rounds, strict=True)]
        if not _suspicious(subject, runs):
            return ""
    exponent = _exponent([run.hidden_seconds for run in runs])
    growth = f"n^{exponent:.1f}, to {runs[-1].hidden_seconds:.2f} s at length {2 * lengths[-1]}"
    return f"processor time outside of torch's operators (numpy, Python, foreign code) grows as {growth}"


def _suspicious(subject: Subject, runs: list[CostCount]) -> bool:
    """Whether the hidden time of three lengths grows too fast, and is more than torch's own overhead."""
    seconds = [run.hidden_seconds for run in runs]
    grows = seconds[2] - seconds[1] > NOTICEABLE and _exponent(seconds) > ALLOWED_HIDDEN[subject.meta.cost]
    return grows and seconds[2] > MOST * runs[2].seconds

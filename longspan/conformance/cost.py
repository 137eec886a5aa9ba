"""Cost: operations and memory of training grow with the length no faster than declared.

Both are counted at lengths that double. From f = a + b n^p the constant a falls out of the differences, and
p = log2((f(4n) - f(2n)) / (f(2n) - f(n))), so that weights and workspaces of fixed size hide nothing.
"""

import math

from longspan.conformance.counting import CostCount, count
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import Subject

# the exponent allowed for a declared cost; a logarithm adds 0.13 at these lengths, a few blocks cut short add less
ALLOWED = {"n": 1.2, "n log n": 1.3, "n sqrt n": 1.65, "n^2": 2.1}
FALLING, LONGER = 0.9, 32  # how far an exponent has to fall, and a length to grow, for one more doubling


@promise("declared cost")
def declared_cost(subject: Subject) -> Outcome:
    """Counted operations and bytes of live tensors, forward and backward, grow no faster than declared."""
    allowed = ALLOWED[subject.meta.cost]
    start = 512 if subject.quick else 1024
    found = []
    for masked in (True,) if subject.quick else (True, False):
        counts = {n: _counted(subject, n, masked) for n in (start, 2 * start, 4 * start)}
        growth, before = _growth(counts), math.inf
        while max(growth) > allowed and _may_be_a_step(max(growth), before) and max(counts) < LONGER * start:
            n, before = 2 * max(counts), max(growth)
            counts[n] = _counted(subject, n, masked)
            growth = _growth(counts)
        operations, memory = growth
        longest = max(counts)
        masks = "with a mask" if masked else "without a mask"
        figures = f"operations grow as n^{operations:.2f}, live bytes as n^{memory:.2f} up to length {longest} {masks}"
        if max(growth) > allowed:
            return broken(f"declared {subject.meta.cost}, yet {figures}; allowed is n^{allowed}")
        found.append(f"{figures} ({counts[longest].peak_bytes / 2**20:.1f} MiB)")
    return kept(f"declared {subject.meta.cost}: {'; '.join(found)}")


def _counted(subject: Subject, n: int, masked: bool) -> CostCount:
    layer = subject.layer(dtype=subject.dtype_asked, longest=n)
    batch = subject.batch(1, n, n, dtype=subject.dtype_asked).requiring_grad()
    hidden = subject.right(n, (n - n // 16,)) if masked else None

    def train() -> None:
        with subject.precision(subject.dtype == "bfloat16"):
            context_mask = hidden if subject.pattern.cross else None
            y = layer(batch.x, batch.context, mask=hidden, context_mask=context_mask)
        y.to(subject.dtype_asked).square().mean().backward()

    return count(train)


def _growth(counts: dict[int, CostCount]) -> tuple[float, float]:
    """The exponents of operations and of bytes over the three largest lengths."""
    last = [counts[n] for n in sorted(counts)[-3:]]
    return _exponent([c.operations for c in last]), _exponent([c.peak_bytes for c in last])


def _may_be_a_step(exponent: float, before: float) -> bool:
    """Between two regimes the exponent looks too high and then falls, which further doublings tell from real growth."""
    return exponent > ALLOWED["n^2"] or exponent < FALLING * before


def _exponent(values: list[int]) -> float:
    earlier, later = values[1] - values[0], values[2] - values[1]
    if later <= 0:
        return 0.0
    return math.log2(later / earlier) if earlier > 0 else math.inf

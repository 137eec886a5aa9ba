"""The gate before timing: a mechanism that is wrong, in general or at the measured shape, is not timed.

    conformance(mechanism, pattern, "cuda", "bfloat16").ok           # its promises, by the quick profile of the check
    agreement(workload)                                              # relative error against finer arithmetic

The mechanism is its own reference: the same module on the same inputs in float64 (beyond 4,096 tokens, or where it has
no float64, in float32), which takes the plain path wherever a fast kernel does not support that precision. One row of
the batch is compared; that rows do not depend on one another is a promise of its own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from longspan.attentions import Mechanism, Pattern
from longspan.conformance import check
from longspan.core.errors import first_few
from longspan.efficiency.memory import release
from longspan.efficiency.setup import Setup
from longspan.efficiency.workload import TimedCalls

TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}  # of the norm of the output
DOUBLE_UP_TO = 4096  # tokens: where a matrix of weights in float64 still fits beside everything else


class SupportsSample(Protocol):
    """What `agreement` compares."""

    setup: Setup
    length: int
    device: str

    def sample(self, dtype: torch.dtype | None = None) -> Tensor: ...


@dataclass(frozen=True)
class GateVerdict:
    """Whether the promises are kept, which are broken, and by which check."""

    ok: bool
    reason: str | None
    checked: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def conformance(
    mechanism: Mechanism,
    pattern: Pattern,
    device: str,
    dtype: str,
    trusted: Sequence[Mapping[str, Any]] = (),
) -> GateVerdict:
    """The quick check, unless a trusted report (printed by `longspan check --json`) already answers it."""
    question = {"mechanism": str(mechanism), "pattern": pattern.value, "device": device, "dtype": dtype}
    for report in trusted:
        if all(report[word] == answer for word, answer in question.items()):
            broken = [line["promise"] for line in report["promises"] if line["status"] == "broken"]
            return GateVerdict(
                report["ok"], _sentence(broken), f"conformance, {report['profile']}, by an earlier report"
            )
    (found,) = check(mechanism, [pattern], device=device, dtype=dtype, profile="quick")
    return GateVerdict(found.ok, _sentence([result.promise for result in found.broken]), "conformance, quick")


def _sentence(broken: Sequence[str]) -> str | None:
    return f"it breaks {first_few(map(repr, broken))}; see longspan check" if broken else None


def agreement(workload: SupportsSample) -> float | None:
    """The relative error of what will be timed, against the first finer precision that can be computed.

    None where none can; infinite where the output is not finite.
    """
    found = workload.sample()
    for dtype in _finer(workload.setup.dtype, workload.length):
        try:
            expected = workload.sample(dtype)
        except Exception:  # no kernel of this precision, or out of memory: try the next one
            release(workload.device)
            continue
        return relative_error(found, expected)
    return None if bool(found.isfinite().all()) else math.inf


def difference(work: TimedCalls, plain: TimedCalls) -> float | None:
    """The relative error between two ways of computing the same, such as compiled and eager."""
    if work.forward is None or plain.forward is None:
        return None
    return relative_error(work.forward(), plain.forward())


def _finer(dtype: str, length: int) -> Iterator[torch.dtype]:
    if length <= DOUBLE_UP_TO:
        yield torch.float64
    if dtype != "float32":
        yield torch.float32


def relative_error(found: Tensor, expected: Tensor) -> float:
    """
    >>> relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0]))
    0.1
    """
    if found.shape != expected.shape:
        return math.inf
    found, expected = found.detach().double(), expected.detach().double()
    error = float((found - expected).norm() / (expected.norm() or 1.0))
    return error if math.isfinite(error) else math.inf


def disagreement(error: float | None, dtype: str) -> str | None:
    """Why a shape is refused, in a sentence; None where it passes."""
    if error is None or error <= TOLERANCE[dtype]:
        return None
    if not math.isfinite(error):
        return "the output is not finite, or has another shape than in finer precision"
    return f"the output is {error:.1%} away from finer precision, more than the {TOLERANCE[dtype]:.1%} of {dtype}"

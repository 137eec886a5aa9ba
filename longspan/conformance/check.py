"""The check itself: every promise tested on a mechanism in every pattern it declares."""

import contextlib
import inspect
import random
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from longspan import attentions
from longspan.attentions import Attention, Mechanism, Pattern
from longspan.conformance.promise import Promise
from longspan.conformance.promises import FIRST, PROMISES
from longspan.conformance.report import PromiseResult, Report
from longspan.conformance.subject import Subject
from longspan.core.errors import UnsupportedPattern, UsageError
from longspan.core.threads import one_thread

DTYPES = ("float32", "bfloat16", "float64")
PROFILES = ("full", "quick")


def check(
    mechanism: str | Mechanism | type[Attention],
    patterns: Sequence[str | Pattern] | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    profile: str = "full",
    seed: int = 0,
) -> list[Report]:
    """Check the promises of a mechanism: one report per pattern, for all declared patterns unless some are named.

    Random states, the default dtype and the number of threads are restored afterwards.
    """
    if dtype not in DTYPES:
        raise UsageError(f"A check runs in {' or '.join(DTYPES)}, got {dtype!r}; choose one of them.")
    if profile not in PROFILES:
        raise UsageError(f"The profiles of a check are {' and '.join(PROFILES)}, got {profile!r}; choose one of them.")
    _needs_device(device)
    if dtype == "float64" and torch.device(device).type != "cpu":
        raise UsageError(f"float64 is checked on a cpu, got {device!r}, whose kernels lack it; leave the device out.")
    chosen = _mechanism(mechanism)
    return [_report(Subject(chosen, p, device, dtype, profile, seed)) for p in _patterns(chosen, patterns)]


def _report(subject: Subject) -> Report:
    with _as_found(), one_thread():
        first = _find(FIRST, subject)
        if first.status == "broken":
            rest = [PromiseResult(p.name, "not applicable", "no layer could be built") for p in PROMISES]
        else:
            rest = [_find(promise, subject) for promise in PROMISES]
    results = (first, *rest)
    ok = all(result.status != "broken" for result in results)
    return Report(
        str(subject.mechanism), subject.pattern.value, subject.device, subject.dtype, subject.profile, ok, results
    )


@contextlib.contextmanager
def _as_found() -> Iterator[None]:
    """Restore random states and the default dtype, whatever a mechanism does to them."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    dtype, python, numpy = torch.get_default_dtype(), random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            random.setstate(python)
            np.random.set_state(numpy)


def _find(promise: Promise, subject: Subject) -> PromiseResult:
    """Test one promise; any exception the mechanism raises is a broken promise, reported in one sentence."""
    try:
        verdict = promise.test(subject)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a plug-in may raise anything, SystemExit included
        return PromiseResult(promise.name, "broken", _sentence(error))
    return PromiseResult(promise.name, *verdict)


def _sentence(error: BaseException) -> str:
    message = " ".join(str(error).split()) or "no message"
    shown = message if len(message) <= 300 else message[:297] + "..."
    return f"raised {type(error).__name__}: {shown} ({_place(error)})"


def _place(error: BaseException) -> str:
    """The innermost line that is neither torch's nor the checker's own."""
    checker, library = str(Path(__file__).parent), str(Path(torch.__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not f.filename.startswith((checker, library, "<"))]
    frame = (outside or frames)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _mechanism(asked: str | Mechanism | type[Attention]) -> Mechanism:
    if inspect.isclass(asked):
        return Mechanism(asked, {}, f"{asked.__module__}:{asked.__name__}")
    return attentions.get(asked)


def _patterns(mechanism: Mechanism, asked: Sequence[str | Pattern] | None) -> list[Pattern]:
    declared = mechanism.meta.patterns
    if asked is None:
        return list(declared)
    chosen = [Pattern.parse(pattern) for pattern in ([asked] if isinstance(asked, str) else asked)]
    for pattern in chosen:
        if pattern not in declared:
            raise UnsupportedPattern(
                f"{mechanism} does not declare {pattern}, so it cannot be checked; it declares: {', '.join(declared)}."
            )
    return chosen


def _needs_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"The device {device!r} cannot be used here ({reason}); try cpu.") from error

"""Does a plug-in keep its promises? Checked once for each source, options and pattern, before it is trained.

A mechanism that breaks a promise is trained all the same: its card says so, and boards do not rank it. The check runs
on the CPU in the quick profile; a result that `longspan check` saved for this very code is used instead.
"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan import conformance
from longspan.attentions import Pattern
from longspan.conformance import PromiseResult, Report
from longspan.core import audit
from longspan.core.errors import LongspanError, StorageError, first_few
from longspan.core.signals import Stopped
from longspan.results.conformance import load, save
from longspan.results.row_conformance import Checks, broken_promises
from longspan.runs.cell import RunPlan, first_line
from longspan.runs.fingerprint import is_builtin

PROFILE = "quick"
MOST_NAMED = 100  # the schema's bound
CHECK_ITSELF = "check"  # stands for a promise where no promise could be tested


@dataclass(frozen=True)
class PluginCheck:
    """What the card says about a plug-in's promises, and the files that were opened when it was first built.

    A plug-in may cache what it has read, so that building it again after the check would not show the reads.
    """

    conformance: dict[str, Any] | None = None
    read: tuple[str, ...] = ()


def check_plugin(plan: RunPlan, out: Path) -> PluginCheck:
    """Check what is not known yet; built-ins are not checked here but by `longspan check --all`."""
    if is_builtin(plan.mechanism):
        return PluginCheck()
    known = Checks(load([out / "conformance"])[0])
    found = {one: known.about(str(plan.mechanism), one.value, plan.code) for one in plan.patterns}
    reports = [report for saved in found.values() for report in saved]
    unknown = [pattern for pattern, saved in found.items() if not saved]
    read = _first_build(plan) if unknown else []
    reports += _ask(plan, unknown, out)
    broken = list(dict.fromkeys(name for report in reports for name in broken_promises(report)))
    if broken:
        names = first_few(map(repr, broken))
        print(f"{plan.mechanism} breaks {names} (see longspan check), so boards will not rank it.", file=sys.stderr)
    full = all(report["profile"] == "full" for report in reports)
    status, profile = "broken" if broken else "kept", "full" if full else PROFILE
    return PluginCheck({"status": status, "profile": profile, "broken": broken[:MOST_NAMED]}, tuple(read))


def _first_build(plan: RunPlan) -> list[str]:
    """The files opened while the network is built."""
    with audit.reading() as read, contextlib.suppress(LongspanError):  # training builds it again, and reports the error
        plan.model()
    return read


def _ask(plan: RunPlan, patterns: Sequence[Pattern], out: Path) -> list[dict[str, Any]]:
    """Check these patterns now, and save what is found."""
    reports = [replace(_report(plan, pattern), code=plan.code) for pattern in patterns]
    try:
        save(out / "conformance", reports)
    except StorageError as error:  # the card has it
        print(f"The result of the check was not saved: {error}", file=sys.stderr)
    return [report.to_json() for report in reports]


def _report(plan: RunPlan, pattern: Pattern) -> Report:
    try:
        (report,) = conformance.check(plan.mechanism, [pattern], profile=PROFILE)
    except Stopped:
        raise
    except BaseException as error:  # a plug-in may raise anything at all, also where the check does not expect it
        result = PromiseResult(CHECK_ITSELF, "broken", f"the check stopped: {first_line(error)}")
        return Report(str(plan.mechanism), pattern.value, "cpu", "float32", PROFILE, False, (result,))
    return report

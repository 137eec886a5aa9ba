"""What a check found: one finding per promise, one report per mechanism and pattern."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Status = Literal["kept", "broken", "not applicable"]


class Verdict(NamedTuple):
    """What one promise found, before it gets its name."""

    status: Status
    detail: str


def kept(detail: str) -> Verdict:
    return Verdict("kept", detail)


def broken(detail: str) -> Verdict:
    return Verdict("broken", detail)


def not_applicable(reason: str) -> Verdict:
    return Verdict("not applicable", reason)


@dataclass(frozen=True)
class Finding:
    """One promise, whether it is kept, and the figure or the reason behind that."""

    promise: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Report:
    """Everything found about one mechanism in one pattern."""

    mechanism: str
    pattern: str
    device: str
    dtype: str
    profile: str
    ok: bool
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status == "broken")

    def status_of(self, promise: str) -> Status:
        """How one promise fared, by its name."""
        return next(finding.status for finding in self.findings if finding.promise == promise)

    def to_json(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "pattern": self.pattern,
            "device": self.device,
            "dtype": self.dtype,
            "profile": self.profile,
            "ok": self.ok,
            "promises": [
                {"promise": finding.promise, "status": finding.status, "detail": finding.detail}
                for finding in self.findings
            ],
        }

"""What a check found: one result per promise, one report per mechanism and pattern."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Status = Literal["kept", "broken", "not applicable"]


class Outcome(NamedTuple):
    """What one promise found, before it gets its name."""

    status: Status
    detail: str


def kept(detail: str) -> Outcome:
    return Outcome("kept", detail)


def broken(detail: str) -> Outcome:
    return Outcome("broken", detail)


def not_applicable(reason: str) -> Outcome:
    return Outcome("not applicable", reason)


@dataclass(frozen=True)
class PromiseResult:
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
    results: tuple[PromiseResult, ...]
    code: Mapping[str, Any] | None = None  # which code was checked, as on cards, if the caller knows it

    @property
    def broken(self) -> tuple[PromiseResult, ...]:
        return tuple(result for result in self.results if result.status == "broken")

    def status_of(self, promise: str) -> Status:
        """The status of one promise, by its name."""
        return next(result.status for result in self.results if result.promise == promise)

    def to_json(self) -> dict[str, Any]:
        code = {} if self.code is None else {"code": dict(self.code)}
        return {
            "mechanism": self.mechanism,
            "pattern": self.pattern,
            "device": self.device,
            "dtype": self.dtype,
            "profile": self.profile,
            "ok": self.ok,
            "promises": [
                {"promise": result.promise, "status": result.status, "detail": result.detail} for result in self.results
            ],
        } | code

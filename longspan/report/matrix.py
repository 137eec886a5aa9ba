"""The conformance matrix: every mechanism in every pattern, on every device and in every precision it was checked.

made = matrix(verdicts, {"performer": ["noncausal_self", ...]})
made.rows[0].cells["cpu", "float32", "causal_self"].status
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from longspan.core.printable import shown
from longspan.results.collect import PATTERNS

CODES = {name: code for code, name in PATTERNS.items()}


@dataclass(frozen=True)
class MatrixCell:
    """`undeclared` where the catalogue says that the mechanism has no such pattern."""

    status: Literal["kept", "broken", "unchecked", "undeclared"]
    words: str


@dataclass(frozen=True)
class MatrixRow:
    mechanism: str
    source: str  # the beginning of its hash, where two plug-ins have one name or one was edited; else empty
    cells: Mapping[tuple[str, str, str], MatrixCell]


@dataclass(frozen=True)
class Matrix:
    """`places` are pairs of device and precision; each has a column for every pattern that was checked anywhere."""

    places: tuple[tuple[str, str], ...]
    patterns: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    kept: int
    checked: int


def matrix(verdicts: Sequence[Mapping[str, Any]], declared: Mapping[str, Sequence[str]]) -> Matrix:
    """One cell per mechanism, pattern, device and precision; the order of patterns is that of the papers."""
    sources: dict[str, set[str]] = {}
    for verdict in verdicts:
        sources.setdefault(verdict["mechanism"], set()).add(_source(verdict))
    found = {}
    for verdict in verdicts:
        who = verdict["mechanism"], _source(verdict) if len(sources[verdict["mechanism"]]) > 1 else ""
        found[(who, verdict["device"], verdict["dtype"], verdict["pattern"])] = _cell(verdict)
    places = tuple(sorted({(device, dtype) for _, device, dtype, _ in found}))
    seen = {pattern for *_, pattern in found}
    patterns = (*(name for name in CODES if name in seen), *sorted(seen - set(CODES)))
    rows = []
    for mechanism, source in sorted({key[0] for key in found}, key=lambda who: (who[0].casefold(), who)):
        patterns_of = declared.get(mechanism.split("(", 1)[0])
        cells = {
            (*place, pattern): found.get(((mechanism, source), *place, pattern)) or _missing(pattern, patterns_of)
            for place in places
            for pattern in patterns
        }
        rows.append(MatrixRow(mechanism, source, cells))
    kept = sum(verdict.status == "kept" for verdict in found.values())
    return Matrix(places, patterns, tuple(rows), kept, len(found))


def _source(verdict: Mapping[str, Any]) -> str:
    """For a plug-in, the beginning of the hash of its source."""
    return verdict.get("code", {}).get("mechanism_sha256", "")[:8]


def _cell(verdict: Mapping[str, Any]) -> MatrixCell:
    statuses = [promise["status"] for promise in verdict["promises"]]
    counts = {status: statuses.count(status) for status in ("kept", "broken", "not applicable")}
    words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    broken = [promise["promise"] for promise in verdict["promises"] if promise["status"] == "broken"]
    words += f" ({', '.join(broken)})" if broken else ""
    return MatrixCell("kept" if verdict["ok"] else "broken", shown(f"{words}; {verdict['profile']} profile"))


def _missing(pattern: str, declared: Sequence[str] | None) -> MatrixCell:
    if declared is not None and pattern not in declared:
        return MatrixCell("undeclared", "not a pattern of this mechanism")
    return MatrixCell("unchecked", "not checked here")


def conformance_table(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Promises as rows, patterns (and devices) as columns."""
    columns = [
        {
            "pattern": verdict["pattern"],
            "where": ", ".join(
                filter(None, (verdict["device"], verdict["dtype"], verdict["profile"], _source(verdict)))
            ),
            "ok": verdict["ok"],
            "by_promise": {promise["promise"]: promise for promise in verdict["promises"]},
        }
        for verdict in verdicts
    ]
    promises = list(dict.fromkeys(name for column in columns for name in column["by_promise"]))
    return {"columns": columns, "promises": promises}

"""Whether the code behind a row of a board keeps its promises: kept, broken or unchecked.

    Checks(load(["out/conformance", "results"])[0]).of(cards)

Results of `longspan check` count for exactly this code (`code_identity.py`), mechanism string and pattern, on any
device and in any precision: those saved by `check`, and those that `run` writes on the cards of a plug-in. One
broken promise is enough to be broken; kept needs a result for every pattern that was replaced.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from longspan.results.card import Card
from longspan.results.code_identity import code_of, is_builtin, same_code


@dataclass(frozen=True)
class Conformance:
    """What is known of a mechanism's promises, and the names of those it breaks."""

    status: Literal["kept", "broken", "unchecked"] = "unchecked"
    broken: tuple[str, ...] = ()


UNCHECKED = Conformance()


class Checks:
    """Saved results of `longspan check`, looked up for the cards of a row."""

    def __init__(self, reports: Iterable[Mapping[str, Any]] = ()):
        self._reports: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for report in reports:
            self._reports.setdefault((report["mechanism"], report["pattern"]), []).append(report)

    def of(self, cards: Sequence[Card]) -> Conformance:
        """The conformance of one row, whose cards share one code, over all patterns they have."""
        some, said = cards[-1], [card["conformance"] for card in cards if "conformance" in card]
        patterns = dict.fromkeys(pattern for card in cards for pattern in card["pattern"].split("+"))
        found = {pattern: self.about(some["mechanism"], pattern, code_of(some)) for pattern in patterns}
        broken = [name for report in said for name in report["broken"]]
        broken += [name for reports in found.values() for report in reports for name in broken_promises(report)]
        if broken or any(report["status"] == "broken" for report in said):
            return Conformance("broken", tuple(dict.fromkeys(broken)))
        tested = {pattern for card in cards if "conformance" in card for pattern in card["pattern"].split("+")}
        return Conformance("kept" if all(pattern in tested or found[pattern] for pattern in patterns) else "unchecked")

    def about(self, mechanism: str, pattern: str, code: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Results for exactly this code in one pattern."""
        candidates = self._reports.get((mechanism, pattern), ())
        return [
            report for report in candidates if code and _checked_code(report) and same_code(_checked_code(report), code)
        ]


def broken_promises(report: Mapping[str, Any]) -> list[str]:
    return [line["promise"] for line in report["promises"] if line["status"] == "broken"]


def _checked_code(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The code that was checked; results of built-ins without one are of version 1, like their cards."""
    return report.get("code") or ({"mechanism_version": 1} if is_builtin(report["mechanism"]) else {})

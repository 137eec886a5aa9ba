"""When two runs of a mechanism count as runs of the same code.

A plug-in is identified by a hash of its source (`mechanism_sha256`). A built-in is identified by its declared version
and a fingerprint of its outputs on fixed inputs (`mechanism_version`, `mechanism_fingerprint`; see
`runs/fingerprint.py`), so that a rename, a comment or a faster kernel orphans no card. Cards written before
versions were recorded carry only the source hash of their built-in; they count as version 1.
"""

from collections.abc import Mapping
from typing import Any

FIELDS = ("mechanism_version", "mechanism_fingerprint", "mechanism_sha256")  # in the `settings` of a run card
TOLERANCE = 1e-4  # of the largest number of a fingerprint's part; rounding on another machine stays below 1e-5


def same_code(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Whether the settings of a card name the code that `current` describes."""
    version = current.get("mechanism_version")
    if version is None:  # a plug-in
        same = recorded.get("mechanism_sha256") == current.get("mechanism_sha256")
        return same and recorded.get("mechanism_version") is None
    if recorded.get("mechanism_version", 1) != version:
        return False
    return same_outputs(recorded.get("mechanism_fingerprint") or {}, current.get("mechanism_fingerprint") or {})


def code_of(card: Mapping[str, Any]) -> dict[str, Any]:
    """The code behind a run card, as `same_code` compares it."""
    found = {name: value for name, value in card["settings"].items() if name in FIELDS}
    if "mechanism_version" not in found and ":" not in card["mechanism"].partition("(")[0]:  # not a plug-in
        found["mechanism_version"] = 1
    return found


def same_outputs(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints agree in every pattern that both have."""
    return all(
        _close(one[pattern].get(part), other[pattern].get(part))
        for pattern in one.keys() & other.keys()
        for part in one[pattern].keys() | other[pattern].keys()
    )


def _close(one: list[float] | None, other: list[float] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    limit = TOLERANCE * max(map(abs, (*one, *other)), default=0.0)
    return all(abs(a - b) <= limit for a, b in zip(one, other, strict=True))

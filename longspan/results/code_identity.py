"""When two runs of a mechanism count as runs of the same code.

A plug-in is identified by a hash of its source (`mechanism_sha256`). A built-in is identified by its declared version
and a fingerprint of its outputs on fixed inputs (`mechanism_version`, `mechanism_fingerprint`; see
`runs/fingerprint.py`), so that a rename, a comment or a faster kernel orphans no card. Cards written before
versions were recorded carry only the source hash of their built-in; they count as version 1.

A measurement of a plug-in has the hash of the source that was timed; those of built-ins count as one code, since a
kernel is measured again whenever it has become faster.
"""

import functools
from collections.abc import Mapping
from typing import Any

from longspan.results import catalogue

FIELDS = ("mechanism_version", "mechanism_fingerprint", "mechanism_sha256")  # in the `settings` of a run card
TOLERANCE = 1e-4  # of the largest number in a part of a fingerprint; rounding on another machine stays below 1e-5


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
    """The code behind a card, as `same_code` compares it. A probe names the card of its run instead."""
    if card["kind"] == "probe":
        return {}
    if card["kind"] == "measurement":
        timed = card["code"].get("mechanism_sha256") or card["code"].get("source_sha256")
        return {} if is_builtin(card["mechanism"]) else {"mechanism_sha256": timed}
    found = {name: value for name, value in card["settings"].items() if name in FIELDS}
    return {"mechanism_version": 1} | found if is_builtin(card["mechanism"]) else found


def is_builtin(mechanism: str) -> bool:
    """Whether a mechanism string names one of this package; a file, a module or an installed package is a plug-in."""
    return mechanism.partition("(")[0] in _builtins()


@functools.cache
def _builtins() -> frozenset[str]:
    return frozenset(entry["name"] for entry in catalogue.read(catalogue.SHIPPED)["attentions"])


def other_code(mechanism: str, own: Mapping[str, Any], shown: Mapping[str, Any]) -> str | None:
    """In words, how the code of a run differs from the code shown; None if it is the same."""
    if same_code(own, shown):
        return None
    before, now = own.get("mechanism_version"), shown.get("mechanism_version")
    if None not in (before, now) and before != now:
        return f"version {before} of the mechanism, the board shows version {now}"
    if before is not None and before == now:
        return f"other code of {mechanism} (its outputs differ from those of the card shown)"
    sources = [str(code.get("mechanism_sha256") or "unknown")[:12] for code in (own, shown)]
    return f"other code of {mechanism} (source {sources[0]}, the board shows {sources[1]})"


def same_outputs(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two fingerprints agree in every pattern that both have."""
    return one == other or all(
        _close(one[pattern].get(part), other[pattern].get(part))
        for pattern in one.keys() & other.keys()
        for part in one[pattern].keys() | other[pattern].keys()
    )


def _close(one: list[float] | None, other: list[float] | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return False
    limit = TOLERANCE * max(map(abs, (*one, *other)), default=0.0)
    return all(abs(a - b) <= limit for a, b in zip(one, other, strict=True))

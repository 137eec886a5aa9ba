"""Pictures of what attends to what, by mechanism and pattern, as `docs/make_attention_maps.py` wrote them."""

import json
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
PATTERNS = ("noncausal_self", "causal_self", "noncausal_cross", "causal_cross")


def maps_of(mechanism: str) -> dict[str, str]:
    """For each pattern a PNG as the address of an image; empty for what is not in the catalogue."""
    found = _file()["maps"].get(mechanism, {})
    return {name: f"data:image/png;base64,{found[name]}" for name in PATTERNS if name in found}


def scale() -> tuple[int, int]:
    """How many tokens a picture shows, and in how many cells."""
    return _file()["tokens"], _file()["cells"]


@cache
def _file() -> dict:
    return json.loads(FILE.read_text(encoding="utf-8"))

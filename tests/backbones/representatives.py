"""Which mechanisms represent all others in the quick tests of a network.

The promises of each mechanism are checked on it alone (`tests/attentions/test_promises.py`). A network has to keep
them in its slots, and distinguishes mechanisms only by what they declare: one of each kind is enough, and the long
tests take all. A mechanism with a new combination of declarations is a new kind.
"""

from collections.abc import Iterable
from typing import Any

import pytest

from longspan import attentions
from longspan.attentions import HeadwiseAttention


def kind(spec: str) -> tuple:
    """What decides how a network treats a mechanism: lengths, positions, padding, carries, blocks, losses."""
    mechanism = attentions.get(spec)
    meta = mechanism.meta
    places = meta.length_bound, meta.positions, meta.places, meta.spatial
    roles = meta.auxiliary_loss, meta.owns_block, meta.carries, meta.mixes
    return issubclass(mechanism.cls, HeadwiseAttention), meta.fidelity, *places, *roles


def one_of_each_kind(cases: Iterable[str] | Iterable[tuple[str, Any]]) -> list:
    """The cases as parameters of a test: one of each kind and pattern is quick, the others are long.

    Softmax attention represents its kind.
    """
    cases = [(case,) if isinstance(case, str) else case for case in cases]
    first: dict[tuple, tuple] = {}
    for case in sorted(cases, key=lambda case: case[0] != "softmax"):
        first.setdefault((kind(case[0]), *case[1:]), case)
    quick = set(first.values())
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.full) for case in cases]

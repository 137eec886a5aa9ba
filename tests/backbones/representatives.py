"""Which mechanisms stand for all in the quick tests of a network.

What a mechanism promises is checked of every one by itself (`tests/attentions/test_promises.py`). A network has to keep
it in its slots, and tells mechanisms apart by what they declare alone: one of each kind will do, and the long tests
take all. A mechanism with a new combination of declarations is one of a new kind.
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
    """The cases as parameters of a test: one of each kind, and of each pattern beside it, is quick, the others long.

    Softmax attention stands for its kind.
    """
    cases = [(case,) if isinstance(case, str) else case for case in cases]
    first: dict[tuple, tuple] = {}
    for case in sorted(cases, key=lambda case: case[0] != "softmax"):
        first.setdefault((kind(case[0]), *case[1:]), case)
    quick = set(first.values())
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.full) for case in cases]

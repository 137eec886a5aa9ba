"""Checking one promise of a mechanism, or a few: for quick tests, where the long ones run the whole check."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from longspan.attentions import Attention, Pattern
from longspan.conformance.check import _as_found, _find, _mechanism
from longspan.conformance.promises import FIRST, PROMISES
from longspan.conformance.report import PromiseResult
from longspan.conformance.subject import Subject
from longspan.core.threads import one_thread

AT_LENGTH = {  # promises that take a thousand tokens, and most of the time of a check
    *("declared cost", "packed cost", "exact limit", "finite at length", "derivative at length"),
    *("no future leak at length", "prefix = full at length", "step = parallel at length"),
}
WITHIN_A_HUNDRED = [one.name for one in PROMISES if one.name not in AT_LENGTH]


def ask(
    mechanism: str | type[Attention], pattern: str | Pattern, promise: str, *, dtype: str = "float32"
) -> PromiseResult:
    """The quick check's result for the promise of this name."""
    (asked,) = [one for one in (FIRST, *PROMISES) if one.name == promise]
    subject = Subject(_mechanism(mechanism), Pattern.parse(pattern), dtype=dtype, profile="quick")
    with _as_found(), one_thread():
        return _find(asked, subject)


@contextmanager
def asking_only(*names: str) -> Iterator[None]:
    """Restrict the check to these promises, for tests of how its results are used."""
    chosen = tuple(one for one in PROMISES if one.name in names)
    assert len(chosen) == len(names)
    with pytest.MonkeyPatch.context() as patch:
        # by its full module name, since the package has a function of the same name
        patch.setattr(importlib.import_module("longspan.conformance.check"), "PROMISES", chosen)
        yield

"""One promise put to a mechanism: what quick tests do, where the long ones run the whole check."""

from longspan.attentions import Attention, Mechanism, Pattern
from longspan.conformance.check import _as_found, _find, _one_thread
from longspan.conformance.promises import PROMISES
from longspan.conformance.report import PromiseResult
from longspan.conformance.subject import Subject


def ask(cls: type[Attention], pattern: Pattern, promise: str) -> PromiseResult:
    """What the quick check finds under this name."""
    (asked,) = [one for one in PROMISES if one.name == promise]
    with _as_found(), _one_thread():
        return _find(asked, Subject(Mechanism(cls, {}, cls.__name__), pattern, profile="quick"))

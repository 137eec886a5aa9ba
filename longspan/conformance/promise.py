"""A promise: a short stable name, a sentence, and a function that tests a mechanism."""

from collections.abc import Callable
from dataclasses import dataclass

from longspan.conformance.report import Outcome
from longspan.conformance.subject import Subject


@dataclass(frozen=True)
class Promise:
    name: str  # used by tests, by `--json` and by the site: never renamed
    sentence: str
    test: Callable[[Subject], Outcome]


def promise(name: str) -> Callable[[Callable[[Subject], Outcome]], Promise]:
    """Turn a function into a promise; the first paragraph of its docstring is the sentence."""

    def made(test: Callable[[Subject], Outcome]) -> Promise:
        sentence = " ".join((test.__doc__ or "").strip().split("\n\n")[0].split())
        return Promise(name, sentence, test)

    return made

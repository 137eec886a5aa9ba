"""What a fuzzer counts, shown as one line at the end of the test run.

    specs: 10,000 inputs, 7,312 refused with a sentence, 2,688 accepted, 0 unexpected, 0 escapes

A test takes the fixture `figures`, which counts, and `@inputs(quick=300)`, which says how many.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from longspan.core.errors import LongspanError

PROPERTY = "figures"  # name in a test report; pytest-xdist carries it to the process that prints the summary
HANG_S = 120  # an input that takes this long hangs; far more than a slow machine needs, so this tests no speed


class Figures:
    """Counts by name, in the order in which they were first mentioned."""

    def __init__(self, title: str):
        self.title = title
        self.counts: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    def add(self, name: str, count: int = 1) -> None:
        """Count; `add("lost", 0)` only makes sure that the name is shown."""
        self.counts[name] = self[name] + count

    @contextlib.contextmanager
    def trying(self, *, accepted: str = "accepted", refused: str = "refused with a sentence") -> Iterator[None]:
        """One input: it is accepted or refused by a LongspanError. Anything else, even a hang, fails the test."""
        for name in ("inputs", refused, accepted, "unexpected", "escapes"):
            self.add(name, name == "inputs")
        previous = signal.signal(signal.SIGALRM, _hangs)
        signal.alarm(HANG_S)
        try:
            yield
        except LongspanError as error:
            self.add(refused if _is_one_sentence(error) else "unexpected")
            if not _is_one_sentence(error):
                raise
        except BaseException:
            self.add("unexpected")
            raise
        else:
            self.add(accepted)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)

    def __str__(self) -> str:
        return f"{self.title}: {', '.join(f'{count:,} {name}' for name, count in self.counts.items())}"


def _hangs(*_: Any) -> None:
    raise AssertionError(f"an input was not done with after {HANG_S} seconds")


def _is_one_sentence(error: LongspanError) -> bool:
    text = str(error)
    return bool(text) and len(text) < 4_000 and "\n" not in text and "Traceback" not in text


def inputs(quick: int, full: int = 10_000) -> pytest.MarkDecorator:
    """Parametrize a test by `count`: `quick` inputs in `make test`, `full` ones more in `make test-full`."""
    return pytest.mark.parametrize(
        "count", [pytest.param(quick, id="quick"), pytest.param(full, id="full", marks=pytest.mark.full)]
    )


def examples(count: int) -> settings:
    """Hypothesis settings with which every run tries the same `count` inputs."""
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )


def lines(reports: Iterator[Any]) -> list[str]:
    """The lines of all tests that counted something."""
    return [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == PROPERTY]

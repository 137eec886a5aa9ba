"""The counter fixture of every fuzzer."""

from collections.abc import Iterator

import pytest

from tests.fuzz.figures import PROPERTY, Figures


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """Counts of this test, titled by its file: `test_specs.py` counts specs. Shown also if the test fails."""
    counted = Figures(request.path.stem.removeprefix("test_"))
    yield counted
    if counted.counts:
        request.node.user_properties.append((PROPERTY, str(counted)))

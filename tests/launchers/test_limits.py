"""Limits as written on the command line."""

import pytest

from longspan.core.errors import UsageError
from longspan.launchers.limits import PLUGIN_SECONDS, Limits, machine_memory


@pytest.mark.parametrize("text, seconds", [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2d", 172800)])
def test_a_time_has_a_unit(text, seconds):
    assert Limits.parse(text, None).seconds == seconds


@pytest.mark.parametrize("text, size", [("500M", 500 * 2**20), ("16g", 2**34), ("16GiB", 2**34), ("2 GB", 2**31)])
def test_a_size_has_a_unit(text, size):
    assert Limits.parse(None, text).memory_bytes == size


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "1e9h", "9" * 400, "nan"])
def test_anything_else_is_one_sentence(text):
    for words in ((text, None), (None, text)):
        with pytest.raises(UsageError, match="takes a number with a unit, got"):
            Limits.parse(*words)


def test_left_out_a_plug_in_has_a_day_a_built_in_has_no_end_and_both_most_of_the_memory():
    limits = Limits.parse(None, None)
    assert (limits.of(plugin=True), limits.of(plugin=False)) == (PLUGIN_SECONDS, None)
    assert machine_memory() // 2 < (limits.memory_bytes or 0) < machine_memory()

"""CAB's forecasting errors: the means that the paper prints are those of its settings, one by one."""

import pytest

from longspan import published

TABLE = published.measured("cab-forecasting")
SERIES = {"ett": ("etth1", "etth2", "ettm1"), "weather": ("weather",), "ecl": ("ecl",)}


@pytest.mark.parametrize("metric", ["mse", "mae"])
@pytest.mark.parametrize("group", SERIES)
@pytest.mark.parametrize("row", TABLE.rows, ids=lambda row: row.title)
def test_a_printed_mean_is_that_of_its_settings(row, group, metric):
    settings = [f"forecasting_{name}{kind}_{metric}" for name in SERIES[group] for kind in ("", "_univariate")]
    mean = sum(row.value(name) for name in settings) / len(settings)
    assert row.value(f"{group}_{metric}") == pytest.approx(mean, abs=1.01e-3)  # three decimals on either side


def test_every_row_has_every_column_and_names_its_mechanism():
    columns = [column.name for column in TABLE.columns]
    assert all(sorted(row.printed) == sorted(columns) for row in TABLE.rows)
    assert [row.mechanism for row in TABLE.rows] == ["softmax", "abc", "performer", "cosformer"]


def test_the_one_doubtful_cell_is_flagged():
    (flag,) = TABLE.flags()
    assert (flag.row, flag.column, flag.printed) == ("vanilla", "forecasting_etth1_univariate_mae", "0.240")

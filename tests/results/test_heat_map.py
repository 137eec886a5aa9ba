"""The grid of lengths and depths of `needle`, read from a card and shown by `show`."""

from typer.testing import CliRunner

from longspan.cli import app
from longspan.results.heat_map import heat_map
from longspan.results.store import Store
from tests.results.factory import make_card


def needle(**more):
    card = make_card("softmax", "needle", sealed=False)
    grid = {f"accuracy_{n}_{depth}": {"value": 0.25 * i, "count": 10} for i, (n, depth) in enumerate(PLACES)}
    test = {**card["metrics"]["test"], **grid}
    return card | {"metrics": card["metrics"] | {"test": test}} | more


PLACES = [(128, "0.0"), (128, "1.0"), (1024, "0.0"), (1024, "1.0")]


def test_depths_are_rows_and_lengths_columns():
    grid = heat_map(needle())
    assert (grid.rows, grid.columns) == ((0.0, 1.0), (128, 1024))
    assert grid.values == ((0.0, 0.5), (0.25, 0.75))
    assert grid.lines()[0] == ["depth", "128", "1,024"]
    assert grid.lines()[1][2] == "▒▒ 50 %"


def test_a_card_of_another_task_or_without_a_grid_has_none():
    assert heat_map(needle(task="listops")) is None
    assert heat_map(make_card("softmax", "needle")) is None
    assert heat_map(needle(score=None)) is None


def test_show_prints_the_heat_map(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    path = Store(tmp_path).add(needle())
    result = CliRunner().invoke(app, ["show", str(path)])
    assert result.exit_code == 0, result.output
    assert "Right answers by length and depth" in result.stdout
    assert "75 %" in result.stdout

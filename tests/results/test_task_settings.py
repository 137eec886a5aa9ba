"""CAB's tables of tasks and training: printed cells stand beside the settings that the protocol actually has."""

import pytest

from longspan.core.errors import UnknownName
from longspan.published.task_settings import task_settings
from longspan.results import catalogue

TASKS = {entry["name"]: entry for entry in catalogue.read(catalogue.SHIPPED)["tasks"]}


def cell(number, title, column):
    table = task_settings(number)
    (row,) = (row for row in table.rows if row.title == title)
    return row.printed[column], table.ours(row, column, TASKS[row.task])


@pytest.mark.parametrize("number", ["Table 1", "Table 4"])
def test_every_cell_has_something_of_ours_beside_it(number):
    table = task_settings(number)
    assert all(table.ours(row, column, TASKS[row.task]) for row in table.rows for column in table.columns)


def test_settings_are_read_off_the_protocol():
    assert cell("Table 4", "LM", "Batch size") == ("16", "16")
    assert cell("Table 4", "LM", "Steps") == ("125K", "125,000")
    assert cell("Table 1", "Sum", "Length") == ("4,096/400", "4,096/400")
    assert cell("Table 1", "LSTF, ECL", "Length") == ("336/960", "336/960")
    assert cell("Table 1", "SR", "Metrics") == ("PSNR, SSIM", "psnr ssim")


def test_what_the_released_code_contradicts_is_seen():
    assert cell("Table 4", "TTS", "Steps") == ("20K", "200,000")
    assert cell("Table 4", "SR", "Optimizer") == ("AdamW", "adam")


def test_an_unknown_table_is_refused():
    with pytest.raises(UnknownName, match="Table 4"):
        task_settings("Table 44")

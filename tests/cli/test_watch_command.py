"""`runs --watch` and `--launcher` on the command line: what is shown, and what is refused before anything runs."""

import pytest
from typer.testing import CliRunner

from longspan.cli import app
from longspan.core.cell import Cell
from longspan.launchers.matrix import noted

CELLS = [Cell("listops", mechanism) for mechanism in ("softmax", "linear")]


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_end_of_a_matrix_is_told_and_written_as_a_page(tmp_path):
    with noted(tmp_path, "local", CELLS) as journal:
        journal.note(CELLS[0], "done", seconds=3.0)
        journal.note(CELLS[1], "failed", reason="listops linear seed 0 failed: out of memory")
    result = call("runs", "--watch", "--page", tmp_path / "page.html", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "failed listops · linear · seed 0: listops linear seed 0 failed: out of memory" in result.stdout
    assert "2 cells: 1 done, 1 failed." in result.stdout
    assert "out of memory" in (tmp_path / "page.html").read_text()


def test_a_folder_without_a_matrix_says_so(tmp_path):
    assert "No cells were run in" in call("runs", "--watch", "--out", tmp_path).stdout


@pytest.mark.parametrize(
    "words, sentence",
    [
        (("runs", "--watch", "--clean"), "Of --clean, --watch, --export and --import one at a time"),
        (("runs", "--page", "x.html"), "--page is written while --watch watches; give both."),
        (("--launcher", "rai"), "No launcher named 'rai'. Did you mean 'ray'?"),
        (("--address", "head:6379"), "--address is for --launcher ray, and it is local; leave it out."),
        (("--launcher", "ray", "--set-slurm", "time=3"), "--set-slurm is for --launcher slurm, and it is ray"),
        (("--launcher", "slurm", "--set-slurm", "time"), "--set-slurm takes name=value, got 'time'"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    words = words if words[0] == "runs" else ("run", "listops", "-a", "softmax", *words)
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert not list(tmp_path.iterdir())

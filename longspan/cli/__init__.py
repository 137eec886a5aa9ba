"""The command line, a file for each group of commands; `app.py` has what they share."""

from longspan.cli import advise, board, check, data, list_show, measure, new_doctor, probe_analyze, run, runs  # noqa: F401
from longspan.cli.app import app, main

__all__ = ["app", "main"]

"""The command line, a file for each group of verbs; `app.py` has what they share."""

from longspan.cli import board, check, choose, data, measure, questions, run, shelves, start  # noqa: F401  (they register)
from longspan.cli.app import app, main

__all__ = ["app", "main"]

"""The command line, a file for each group of commands; `app.py` has what they share."""

from longspan.cli import (  # noqa: F401
    advise,
    board,
    check,
    data,
    list_show,
    measure,
    new_doctor,
    plan,
    probe_analyze,
    run,
    runs,
    share,
)
from longspan.cli.app import app, main

__all__ = ["app", "main"]

"""`new` and `doctor`: a first file, and the state of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.app import Out, Startable, app, say
from longspan.core.errors import CheckFailed


@app.command()
def new(
    kind: Annotated[Startable, typer.Argument(help="What to write.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The file is NAME.py, in this folder.")],
) -> None:
    """Write a first version of a file, which already passes `check`.

    \b
    Example:
      longspan new attention mine
    """
    from longspan.cli import scaffold

    path = scaffold.new_attention(name)
    say(f"{path} is written. Try: longspan check {path}:{scaffold.class_name(name)}")


@app.command()
def doctor(out: Out = Path("out")) -> None:
    """Show what this machine has and lacks, and what to do. Exit code 1 when something required is broken.

    \b
    Example:
      longspan doctor
    """
    from longspan.cli import tables
    from longspan.cli.doctor import diagnose

    found = diagnose(out)
    rows = [(one.name, one.status, one.found, one.advice) for one in found]
    tables.console().print(tables.table(("what", "status", "found", "what to do"), rows))
    if broken := [one.name for one in found if one.status == "broken"]:
        raise CheckFailed(f"Required but not working: {', '.join(broken)}; the table says what to do.")

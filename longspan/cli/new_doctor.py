"""`new` and `doctor`: where to begin."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.app import Out, Startable, app, say
from longspan.core.errors import CheckFailed


@app.command()
def new(
    kind: Annotated[Startable, typer.Argument(help="What to start.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The file is NAME.py, in this folder.")],
) -> None:
    """Write a starting file that already passes `check`.

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
    from longspan.cli import doctor as examination
    from longspan.cli import tables

    findings = examination.examine(out)
    rows = [(finding.name, finding.status, finding.found, finding.advice) for finding in findings]
    tables.console().print(tables.table(("what", "status", "found", "what to do"), rows))
    broken = [finding.name for finding in findings if finding.status == "broken"]
    if broken:
        raise CheckFailed(f"Required and not working: {', '.join(broken)}; see what to do above.")

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
    """Write a first version of a file: an attention that already passes `check`, or a task or backbone that runs.

    A backbone comes with a task to run it in.

    \b
    Examples:
      longspan new attention mine
      longspan new task my_task
      longspan new backbone my_network
    """
    from longspan.cli import scaffold

    path, cls = scaffold.new(kind, name), scaffold.class_name(name)
    tries = {
        "attention": f"longspan check {path}:{cls}",
        "task": f"longspan run {path}:{cls} -a softmax linear --tier smoke",
        "backbone": f"longspan run {path}:{cls}Task -a softmax linear --tier smoke",
    }
    say(f"{path} is written. Try: {tries[kind]}")


@app.command()
def doctor(
    every: Annotated[bool, typer.Option("--all", help="Show every library, not only what is missing.")] = False,
    out: Out = Path("out"),
) -> None:
    """Show what this machine has and lacks, and what to do. Exit code 1 when something required is broken.

    \b
    Examples:
      longspan doctor
      longspan doctor --all
    """
    from longspan.cli import tables
    from longspan.cli.doctor import MATTERS, diagnose

    found = diagnose(out)
    shown = [one for one in found if every or one.name in MATTERS or one.status != "has"]
    rows = [(one.name, one.status, one.found, one.advice) for one in shown]
    if rest := len(found) - len(shown):
        rows.append((f"{rest} more", "has", "all that they are for works; --all names them", ""))
    tables.console().print(tables.table(("what", "status", "found", "what to do"), rows))
    if broken := [one.name for one in found if one.status == "broken"]:
        raise CheckFailed(f"Required but not working: {', '.join(broken)}; the table says what to do.")

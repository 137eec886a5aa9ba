"""`runs` shows unfinished runs, removes them, and transfers them between machines."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.app import Out, app, say
from longspan.core.errors import UsageError


@app.command("runs")
def runs_(
    clean: Annotated[bool, typer.Option("--clean", help="Remove them.")] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write those with a checkpoint into an archive.")
    ] = None,
    part_size: Annotated[
        str | None, typer.Option("--part-size", metavar="SIZE", help="Split the archive: FILE.001, ... of 15MB each.")
    ] = None,
    imported: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Take over the runs of an archive, or of its parts.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the progress of the cells being run, until they end.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="With --watch: also as a web page, kept up to date.")
    ] = None,
    out: Out = Path("out"),
) -> None:
    """Show unfinished runs, which the same `run` command resumes; --clean also removes checkpoints set aside.

    --export writes their newest checkpoints into an archive. Another machine with the same version of the code and of
    torch resumes from there; on a CPU with as many threads it gets the same numbers. --import checks all parts before
    it places anything, and skips a run that has come at least as far here.

    --watch shows what the commands that run cells in OUT are doing, wherever those cells run, with the time left.
    Without a terminal it prints a line for every change.

    \b
    Examples:
      longspan runs --watch --page progress.html
      longspan runs --clean
      longspan runs --export runs.tar --part-size 15MB
      longspan runs --import runs.tar --out out
    """
    if sum((clean, watch, export is not None, imported is not None)) > 1:
        raise UsageError("Of --clean, --watch, --export and --import one at a time; run them one after another.")
    if page is not None and not watch:
        raise UsageError("--page is written while --watch watches; give both.")
    if watch:
        from longspan.cli.watch import watch_matrix

        watch_matrix(out, page)
        return
    from longspan import runs
    from longspan.cli import tables

    if part_size is not None and export is None:
        raise UsageError("--part-size is the size of the parts of --export; name a file with it.")
    if export is not None:
        _export(out, export, part_size)
    elif imported is not None:
        _import(out, imported)
    elif clean:
        removed = runs.clean(out)
        say(f"Removed: {', '.join(path.name for path in removed)}." if removed else "There is nothing to remove.")
    elif found := runs.unfinished(out):
        tables.console().print(tables.unfinished_table(found))
    else:
        say(f"No unfinished runs in {out / 'runs'}.")


def _export(out: Path, file: Path, part_size: str | None) -> None:
    from longspan import runs
    from longspan.cli import tables
    from longspan.launchers.limits import parse_file_size

    limit = None if part_size is None else parse_file_size(part_size, "--part-size")
    files, exported = runs.export(out, file, part_bytes=limit)
    tables.console().print(tables.unfinished_table(exported))
    total = tables.size(sum(path.stat().st_size for path in files))
    what = f"{files[0]}" if len(files) == 1 else f"{files[0]} to {files[-1].name}, {len(files)} parts"
    say(f"Written: {what}, {total}. Take it over elsewhere with longspan runs --import {file}.")


def _import(out: Path, file: Path) -> None:
    from longspan import runs

    for one in runs.restore(out, file):
        if one.placed:
            say(f"Taken over: {one.path.name}, {one.step:,} steps done.")
            if one.other_commit is not None:
                whose = f"commit {one.other_commit[:40]}"
                say(f"It was trained by {whose}: it starts over if the code that trains it has changed.", error=True)
        else:
            say(f"Left as it is: {one.path.name}, which has {one.step:,} steps done here.")
    say("The command that began a run resumes it; longspan plan SUITE --run resumes those of a board.")

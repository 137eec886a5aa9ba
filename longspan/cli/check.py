"""`check`: does a mechanism keep its promises?"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.app import Dtype, Json, Out, Pattern, ProgressBar, app, print_json, say
from longspan.cli.completion import attentions
from longspan.core.errors import CheckFailed, StorageError, UsageError

if TYPE_CHECKING:
    from longspan.conformance import Report


@app.command()
def check(
    mechanisms: Annotated[
        list[str] | None, typer.Argument(metavar="MECH...", help="Names, or file.py:Class.", autocompletion=attentions)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every built-in and installed mechanism.")] = False,
    pattern: Pattern = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="bfloat16 means autocast; float64 only on a CPU.")
    ] = Dtype.float32,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds per pattern: fewer lengths and samples.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="Processes that check side by side.")] = 1,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each promise means, and check nothing.")] = False,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Prove or refute what a mechanism claims, in every pattern it declares.

    Results are saved in OUT/conformance, where `board` and `report` find them. Exit code 1 if a promise is broken.

    \b
    Examples:
      longspan check my_attention.py:Mine
      longspan check --all --quick --jobs 2
      longspan check --explain
      longspan check "performer(features=64)" --pattern CS --device cuda --dtype bfloat16
    """
    from longspan import conformance
    from longspan.cli import tables
    from longspan.conformance.parallel import check_each
    from longspan.results.conformance import save
    from longspan.runs.fingerprint import code_identity

    if explain:
        tables.console().print(conformance.explanation())
        return
    asked = _to_check(mechanisms or [], every, pattern)
    profile = "quick" if quick else "full"
    reports: list[Report] = []
    found, unsaved = check_each(asked, jobs=jobs, device=device, dtype=str(dtype), profile=profile), ""
    with ProgressBar(len(asked)) as advance:
        for mechanism, one in asked:
            advance(f"{mechanism} as {one}")
            reports.append(replace(next(found), code=code_identity(mechanism)))
            try:
                save(out / "conformance", reports[-1:])  # one by one: a check that is stopped keeps what it found
            except StorageError as error:  # the result is still printed
                unsaved = f"The result was not saved: {error}"
    if unsaved:
        say(unsaved, error=True)
    if as_json:
        print_json([report.to_json() for report in reports])
    elif len(reports) == 1:
        tables.console().print(conformance.table(reports[0]))
    else:
        tables.print_conformance([report.to_json() for report in reports], tables.console())
    broken = [
        f"{report.mechanism} as {report.pattern} breaks {', '.join(repr(f.promise) for f in report.broken)}"
        for report in reports
        if not report.ok
    ]
    if broken:
        raise CheckFailed("; ".join(broken) + ".")


def _to_check(specs: list[str], every: bool, pattern: str | None) -> list[tuple[Any, Any]]:
    """Pairs of mechanism and pattern.

    --all skips mechanisms without the pattern, and those that reproduce the faults of released code: name them to
    check them.
    """
    from longspan import attentions

    if not specs and not every:
        raise UsageError("No mechanism was named to check; name one, as in longspan check softmax, or ask for --all.")
    wanted = attentions.Pattern.parse(pattern) if pattern else None
    pairs = []
    for spec in specs:
        mechanism = attentions.get(spec)
        pairs += [(mechanism, one) for one in ([wanted] if wanted else mechanism.meta.patterns)]
    for mechanism in map(attentions.get, attentions.names() if every else ()):
        if not mechanism.meta.fidelity:
            pairs += [(mechanism, one) for one in mechanism.meta.patterns if wanted in (None, one)]
    return pairs

"""`crossover` and `advise`: which one, from which length on? Read from measurements; never imports torch."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import Cards, Json, Out, TableFormat, Variant, Work, app, print_json, say
from longspan.core.errors import UsageError

Method = StrEnum("Method", {"measured": "measured", "cab": "cab-2023"})
Quantity = StrEnum("Quantity", ["time", "memory", "energy"])
Pass = StrEnum("Pass", ["forward", "train"])


@app.command()
def crossover(
    baseline: Annotated[str, typer.Option("--baseline", metavar="MECH", help="What is to be beaten.")] = "softmax",
    method: Annotated[Method, typer.Option("--method", help="By measured points, or CAB's fits.")] = Method.measured,
    quantity: Annotated[Quantity, typer.Option("--quantity", help="What is compared.")] = Quantity.time,
    mode: Annotated[Pass, typer.Option("--mode", help="Forward, or forward and backward.")] = Pass.forward,
    variant: Annotated[
        Variant | None, typer.Option("--variant", help="Else that with the most lengths in common, graph first.")
    ] = None,
    pattern: Annotated[str | None, typer.Option("--pattern", metavar="P", help="NS, CS, NC, CC; else all.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.csv", help="Measurements from elsewhere, not cards.")
    ] = None,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.terminal,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Also draw it: HTML, PDF and PNG.")] = None,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Find the length from which on each mechanism is cheaper than the baseline: its efficiency length.

    Cards are those that longspan measure MECH... leaves. A FILE.csv has a line for each mechanism and length, and in
    its first line the names of its columns: mechanism, length and one of time_ms, memory_mib, energy_j; where
    time_low_ms, time_high_ms (quartiles) and readings are there too, times get an interval. An empty cell was not
    measured, oom did not fit.

    \b
    mechanism,length,time_ms,memory_mib
    vanilla,256,0.472,81
    abc,256,0.648,42

    \b
    Examples:
      longspan crossover
      longspan crossover --baseline "softmax(kernel=plain)" --quantity memory --mode train
      longspan crossover --method cab-2023 --baseline vanilla --from measurements.csv
    """
    from longspan import analysis
    from longspan.analysis.crossover import compare, compare_file
    from longspan.results import collect

    told: dict[str, Any] = {"baseline": baseline, "method": str(method), "quantity": str(quantity)}
    if source is not None:
        if variant is not None or pattern is not None or cards:
            raise UsageError("A file has no variants, patterns or cards; leave --variant, --pattern and --cards out.")
        finding = compare_file(source, **told)
    else:
        folders = collect.card_folders(cards, out)
        told |= {"mode": str(mode), "variant": None if variant is None else str(variant)}
        told |= {"pattern": None if pattern is None else collect.pattern_name(pattern)}
        finding = compare(analysis.gather(folders), **told)
    _print(finding, TableFormat.json if as_json else form)
    if output is not None:
        from longspan.report.answer import write

        for path in write(finding, output):
            say(f"Drawn: {path}.", error=True)


@app.command()
def advise(
    pattern: Annotated[str, typer.Option("--pattern", metavar="P", help="NS, CS, NC, CC or the full name.")],
    length: Annotated[int, typer.Option("--length", metavar="N", min=1, help="Tokens.")],
    mode: Annotated[Work, typer.Option("--mode", help="What it is used for.")] = Work.forward,
    exact_only: Annotated[bool, typer.Option("--exact-only", help="Nothing but softmax attention itself.")] = False,
    memory_limit: Annotated[
        float | None, typer.Option("--memory-limit", metavar="GiB", min=0.0, help="At the peak of a call.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="A part of a machine's name, like H200.")
    ] = None,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.terminal,
    as_json: Json = False,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Name the mechanism that was measured as the fastest for a use, with the cards that say so.

    What is exact is told apart from what computes another function, and scores stand beside where runs have them.

    \b
    Examples:
      longspan advise --pattern causal_self --length 16384 --mode train
      longspan advise --pattern NS --length 6000 --exact-only --memory-limit 4
    """
    from longspan import analysis
    from longspan.analysis.advise import advise as best
    from longspan.results import collect

    evidence = analysis.gather(collect.card_folders(cards, out))
    limits: dict[str, Any] = {"exact_only": exact_only, "memory_limit": memory_limit, "device": device}
    finding = best(evidence, pattern=collect.pattern_name(pattern), length=length, mode=str(mode), **limits)
    if not as_json and form is TableFormat.terminal:
        say(finding.lede)
    _print(finding, TableFormat.json if as_json else form)


def _print(finding: Any, form: TableFormat) -> None:
    from longspan.analysis.finding import as_csv, markdown
    from longspan.cli import tables

    if form is TableFormat.json:
        print_json(finding.to_json())
    elif form is TableFormat.csv:
        print(as_csv(finding), end="")
    elif form is TableFormat.terminal:
        tables.print_finding(finding, tables.console())
    else:
        print(markdown(finding), end="")

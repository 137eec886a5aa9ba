"""`crossover` and `advise`: which mechanism, and from which length? Answered from measurements, without torch."""

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
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="MECH", help="The mechanism to compare with.")
    ] = "softmax",
    method: Annotated[
        Method, typer.Option("--method", help="From measured points, or from CAB's fits.")
    ] = Method.measured,
    quantity: Annotated[Quantity, typer.Option("--quantity", help="What is compared.")] = Quantity.time,
    mode: Annotated[Pass, typer.Option("--mode", help="Forward, or forward and backward.")] = Pass.forward,
    variant: Annotated[
        Variant | None,
        typer.Option("--variant", help="If left out, the one with the most common lengths, graph first."),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="P", help="NS, CS, NC, CC; all if left out.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE.csv", help="Read measurements from a file instead of cards.")
    ] = None,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.terminal,
    as_json: Json = False,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Also draw it: HTML, PDF and PNG.")] = None,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Find the efficiency length of each mechanism: the length from which it is cheaper than the baseline.

    Cards come from longspan measure MECH... A FILE.csv has one row per mechanism and length, and a header
    with the columns mechanism, length and at least one of time_ms, memory_mib and energy_j. With time_low_ms,
    time_high_ms (quartiles) and readings, times get a confidence interval. An empty cell means not measured, oom means
    out of memory.

    \b
    mechanism,length,time_ms,memory_mib
    vanilla,256,0.472,81
    abc,256,0.648,42

    \b
    Examples:
      longspan crossover
      longspan crossover --quantity memory --mode train --pattern CS
      longspan crossover --method cab-2023 --baseline vanilla --from measurements.csv
    """
    from longspan import analysis
    from longspan.analysis.crossover import compare, compare_file
    from longspan.results import collect
    from longspan.results.shipped import shipped_cards

    told: dict[str, Any] = {"baseline": baseline, "method": str(method), "quantity": str(quantity)}
    if source is not None:
        if variant is not None or pattern is not None or cards:
            raise UsageError("A file has no variants, patterns or cards; leave --variant, --pattern and --cards out.")
        finding = compare_file(source, **told)
    else:
        folders = collect.card_folders(cards, out)
        told |= {"mode": str(mode), "variant": None if variant is None else str(variant)}
        told |= {"pattern": None if pattern is None else collect.pattern_name(pattern)}
        finding = compare(analysis.gather(folders, others=() if cards else shipped_cards()), **told)
    _print(finding, TableFormat.json if as_json else form)
    if output is not None:
        from longspan.report.answer import write

        for path in write(finding, output):
            say(f"Drawn: {path}.", error=True)


@app.command()
def advise(
    pattern: Annotated[str, typer.Option("--pattern", metavar="P", help="NS, CS, NC, CC or the full name.")],
    length: Annotated[int, typer.Option("--length", metavar="N", min=1, help="Tokens.")],
    mode: Annotated[Work, typer.Option("--mode", help="What you will use it for.")] = Work.forward,
    exact_only: Annotated[
        bool, typer.Option("--exact-only", help="Only mechanisms that compute softmax attention exactly.")
    ] = False,
    memory_limit: Annotated[
        float | None, typer.Option("--memory-limit", metavar="GiB", min=0.0, help="Peak memory of one call.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Part of a device name, like H200.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every mechanism that was measured, not only the first dozen.")
    ] = False,
    form: Annotated[TableFormat, typer.Option("--format", help="How to print it.")] = TableFormat.terminal,
    as_json: Json = False,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Show the trade-off for a use case: what each mechanism costs and scores, which are unbeaten, what is unknown.

    Answered from your cards and those that come with the package, measured on an H200; --cards reads others instead.
    Time, memory, decoding and scores are compared within the same pattern. A mechanism that another beats in cost,
    with scores that do not decide between them, is a choice only if it scores better.

    \b
    Examples:
      longspan advise --pattern causal_self --length 16384 --mode train
      longspan advise --pattern NS --length 6000 --exact-only --memory-limit 4
    """
    from longspan import analysis
    from longspan.analysis.advise import advise as weigh
    from longspan.results import collect
    from longspan.results.shipped import shipped_cards

    evidence = analysis.gather(collect.card_folders(cards, out), others=() if cards else shipped_cards())
    limits: dict[str, Any] = {"exact_only": exact_only, "memory_limit": memory_limit, "device": device, "every": every}
    finding = weigh(evidence, pattern=collect.pattern_name(pattern), length=length, mode=str(mode), **limits)
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

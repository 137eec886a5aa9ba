"""`board`, `paper`, `report`, `tables` and `verify`: what cards say. Never imports torch."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import Cards, Format, Out, Pattern, app, catalogue, print_json, say
from longspan.cli.completion import places
from longspan.core.errors import CheckFailed, DataMissing, UsageError


@app.command()
def board(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A suite, or one task.", autocompletion=places)],
    protocol: Annotated[str | None, typer.Option("--protocol", metavar="P", help="Only this one.")] = None,
    tier: Annotated[str | None, typer.Option("--tier", metavar="T", help="Only this one.")] = None,
    pattern: Pattern = None,
    published: Annotated[
        str | None, typer.Option("--published", metavar="TABLE", help="Published rows: v0, v1, later, ... or none.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="M", help="Rank one task by this metric: mae, loss.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="D", help="Only this kind: real, standin, or a substitute such as allison."),
    ] = None,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="A B", help="How certain it is that A beats B, on each task."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.terminal,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="NAME", help="Save it under a name, as an immutable snapshot.")
    ] = None,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Rank mechanisms from cards; protocols, tiers, patterns and kinds of data never share a board.

    Runs whose code or settings differ from the newest are listed below, not averaged in. A mechanism that breaks a
    promise of longspan check is marked and not ranked; one that was not checked is marked too.

    Without --protocol, --tier or --pattern, every one that has cards gets a board. Full boards of lra also show the
    published leaderboard: v1 by default, v0 as in the first paper, later for records under other rules. Suite cab has a
    board for each pattern, with several metrics per task, the published rows and the compositional index; full boards
    of its tasks show what CAB published for them. Runs on a known substitute for a task's data (allison for LJSpeech)
    have a board of their own. Snapshots are saved in OUT/snapshots.

    --compare shows instead how two mechanisms differ on every task, by a paired bootstrap over test examples and seeds,
    from the predictions beside the cards.

    \b
    Examples:
      longspan board starter --tier smoke
      longspan board lra --protocol longspan --tier full --format md
      longspan board lra --published v0
      longspan board cab --pattern NS
      longspan board forecasting_etth1 --metric mae
      longspan board tts_fastspeech2 --data allison
      longspan board lra --compare linear softmax
    """
    from longspan.cli import tables
    from longspan.results import collect
    from longspan.results.render import render_all
    from longspan.results.snapshot import freeze

    folders = collect.card_folders(cards, out)
    if pair is not None:
        if snapshot is not None or published is not None:
            raise UsageError("--compare takes two mechanisms of these cards; leave out --snapshot and --published.")
        chosen = {"protocol": protocol, "tier": tier, "pattern": pattern, "data": data}
        _compare(folders, suite, pair, form, metric=metric, **chosen)
        return
    found = collect.cards_of(suite, folders)
    checked, unreadable = collect.checks_in(cards, out)
    for problem in (*found.problems, *unreadable):
        say(f"Left out: {problem.sentence}", error=True)
    asked_for = {"protocol": protocol, "tier": tier, "pattern": pattern, "published": published, "metric": metric}
    asked_for |= {"data": data}
    views = list(collect.boards(found.cards, suite, **asked_for, conformance=checked))
    if not views:
        where = ", ".join(map(str, folders)) or out / "cards"
        words = [protocol or "any protocol", tier or "any tier", pattern or "any pattern"]
        asked = f"{suite} ({', '.join([*words, *([f'{data} data'] if data else [])])})"
        given = {"--protocol": protocol, "--tier": tier, "--pattern": pattern}
        rules = "".join(f" {flag} {shlex.quote(word)}" for flag, word in given.items() if word)
        raise DataMissing(f"No cards of {asked} in {where}; create some with longspan run {suite} -a softmax{rules}.")
    if snapshot is not None:
        if len(views) != 1:
            raise UsageError(
                f"A snapshot freezes one board, but {len(views)} match; add --protocol, --tier, --pattern and --data."
            )
        say(f"The snapshot is {freeze(views[0], snapshot, out / 'snapshots')}.", error=True)
    screen = tables.console()
    text = render_all(views, str(form), width=screen.width, colour=screen.is_terminal).rstrip("\n")
    if form is Format.terminal:
        screen.file.write(f"{text}\n")  # already rendered: its only control sequences are colours
    else:
        print(text)


def _compare(
    folders: list[Path],
    name: str,
    pair: tuple[str, str],
    form: Format,
    pattern: str | None,
    data: str | None,
    **asked: str | None,
) -> None:
    from longspan import analysis
    from longspan.analysis import finding as table
    from longspan.analysis.compare import compare
    from longspan.cli import tables
    from longspan.results.collect import pattern_name, suite_or_task
    from longspan.results.variant import kind_of

    if form in (Format.latex, Format.html):
        raise UsageError(f"--compare prints terminal, markdown, csv or json, and --format was {form}.")
    evidence = analysis.gather(folders)
    for problem in evidence.problems:
        say(f"Left out: {problem.sentence}", error=True)
    where = {"pattern": pattern and pattern_name(pattern), "data": data and kind_of(data)}
    found = compare(evidence, suite_or_task(name, evidence.runs), *pair, **where, **asked)
    match form:
        case Format.terminal:
            tables.print_finding(found, tables.console())
        case Format.json:
            print_json(found.to_json())
        case Format.csv:
            print(table.as_csv(found), end="")
        case _:
            print(table.markdown(found), end="")


@app.command()
def report(
    output: Annotated[
        Path | None, typer.Option("-o", metavar="DIR", help="Where to write it; OUT/report if left out.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve it to this machine until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port for --serve.")] = 8000,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Build a static site from cards: boards, curves, cost, a page per mechanism. It opens from disk, offline.

    Cards that come with Longspan, from an H200, are shown beside your own; --cards leaves them out.

    \b
    Examples:
      longspan report
      longspan report -o site --serve
    """
    from longspan import analysis
    from longspan.report.build import build
    from longspan.results import collect
    from longspan.results.shipped import other_runs, shipped_cards

    folders = collect.card_folders(cards, out)
    found, evidence = collect.cards_in(folders), analysis.gather(folders, others=() if cards else shipped_cards())
    shipped = [] if cards else other_runs(found.cards)
    checked, unreadable = collect.checks_in(cards, out)
    problems = [*found.problems, *unreadable]
    site = output or out / "report"
    told = {"catalogue": _catalogue(out), "conformance": checked, "problems": problems, "evidence": evidence}
    index = build([*found.cards, *shipped], site, **told)
    for problem in problems:
        say(f"Left out: {problem.sentence}", error=True)
    beside = f", and {len(shipped)} that come with Longspan" if shipped else ""
    say(f"The report is {index}: {len(found.cards)} card{'' if len(found.cards) == 1 else 's'}{beside}.")
    if serve:
        _serve(index.parent, port)


def _catalogue(out: Path) -> dict[str, Any] | None:
    """The catalogue, also saved in `out`; without torch, the one saved last, if any."""
    from longspan.core import atomic
    from longspan.results.catalogue import read

    path = out / "catalogue.json"
    try:
        content = catalogue()
    except ModuleNotFoundError as error:
        say(f"Without {error.name} the catalogue cannot be renewed; the saved one is used, if any.", error=True)
        return read(path) if path.exists() else None
    atomic.write_json(path, content)
    return content


@app.command()
def paper(
    output: Annotated[
        Path | None, typer.Option("-o", metavar="DIR", help="Where to write it; OUT/paper if left out.")
    ] = None,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Write everything for a paper into one folder: tables as LaTeX, figures as PDF and SVG, references, methods.

    main.tex includes it all and compiles as it is; every file can be included by itself. The folder is replaced as a
    whole, and one that holds something else is left alone. docs/papers.md lists the tables and figures by paper.

    \b
    Examples:
      longspan paper
      longspan paper -o paper --cards results/h200/cards
    """
    from longspan import analysis
    from longspan.report.artefact_sources import Desk
    from longspan.report.paper import build
    from longspan.results import collect

    evidence = analysis.gather(collect.card_folders(cards, out))
    checked, unreadable = collect.checks_in(cards, out)
    for problem in (*evidence.problems, *unreadable):
        say(f"Left out: {problem.sentence}", error=True)
    say(f"The paper is {build(Desk(evidence, checked), output or out / 'paper')}; compile it with pdflatex and bibtex.")


def _serve(site: Path, port: int) -> None:
    from longspan.report.serve import serving

    with serving(site, port) as server:
        say(f"Serving at http://127.0.0.1:{server.server_port} until Ctrl-C.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Stopped.", error=True)


@app.command("tables")
def fill_tables(
    pages: Annotated[list[Path], typer.Argument(metavar="PAGE...", help="Markdown files with marked tables.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if a page is not up to date.")] = False,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Write the marked tables of Markdown pages from cards, and leave every other line as it is.

    A table lies between two lines of its own, <!-- cards: scores listops full --> and <!-- end of cards -->.

    \b
    scores TASK TIER            every mechanism and seed on a task of Long Range Arena
    changed TASK TIER           runs with overridden settings
    board SUITE PROTOCOL TIER   the rows of a board
    differences TASK...         each mechanism against softmax, with intervals
    metrics TASK TIER NAME...   other metrics of the test set
    language TASK TIER N...     perplexities, also at other lengths
    forecasting TASK...         errors beside CAB's
    times N                     core measurements at N tokens
    artefacts PAPER             every table and figure of LRA or CAB, its command, ours beside theirs
    misprints PAPER             what is wrong in the tables and figures of a paper

    \b
    Examples:
      longspan tables results/h200/README.md --cards results/h200/cards
      longspan tables results/h200/README.md --cards results/h200/cards --check
    """
    from longspan import analysis
    from longspan.core import atomic
    from longspan.report.marked_tables import BEGIN, fill
    from longspan.results import collect

    evidence = analysis.gather(collect.card_folders(cards, out))
    for problem in evidence.problems:
        say(f"Left out: {problem.sentence}", error=True)
    stale = []
    for page in pages:
        text = _text_of(page)
        if not BEGIN.search(text):
            say(f"{page} has no marked table; longspan tables --help shows how to mark one.", error=True)
        if (filled := fill(text, evidence)) == text:
            continue
        stale.append(str(page))
        if not check:
            atomic.write_text(page, filled)
            say(f"Written: {page}.")
    if check and stale:
        raise CheckFailed(f"Not what the cards say: {', '.join(stale)}; write it with longspan tables.")


def _text_of(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Tables were to be written into {page}, which cannot be read ({error}).") from None


@app.command()
def verify(cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Card files.")]) -> None:
    """Check cards without training again: schema, seal, the hash of each file, whether the numbers agree, the settings
    of the protocol, the labels, and the score recomputed from the predictions.

    \b
    Example:
      longspan verify out/cards/listops/*.json
    """
    from longspan.cli import tables
    from longspan.results.verify import verify as check

    broken = []
    for path in cards:
        findings = check(path)
        rows = [(finding.check, finding.status, finding.detail) for finding in findings]
        tables.console().print(tables.table(("check", "status", "detail"), rows, title=str(path)))
        broken += [finding.detail for finding in findings if finding.status == "broken"]
    if broken:
        raise CheckFailed("; ".join(broken))

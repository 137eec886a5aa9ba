"""`list` and `show`: what there is. Both need torch only for mechanisms and tasks of your own."""

from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import Changes, Json, Kind, app, catalogue, overrides, print_json, say
from longspan.cli.completion import everything
from longspan.core.errors import UnknownName, UsageError, did_you_mean


@app.command("list")
def list_(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; everything if left out.")] = None,
    as_json: Json = False,
) -> None:
    """List what there is, one line each.

    \b
    Examples:
      longspan list attentions
      longspan list --json > catalogue.json     the catalogue that reports are built from
    """
    from longspan.cli.entry_tables import list_tables
    from longspan.cli.tables import console

    kinds = [str(kind)] if kind else list(map(str, Kind))
    content = catalogue(kinds)
    if as_json:
        print_json(content)
    else:
        for name in kinds:
            for table in list_tables(name, content[name]):
                console().print(table)
    for problem in content["problems"]:
        say(problem["sentence"], error=True)


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(help="An attention, task, backbone, dataset, file.py:Class or card", autocompletion=everything),
    ],
    samples: Annotated[int | None, typer.Option("--samples", metavar="N", min=1, help="Show N fresh examples.")] = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Draw the samples to a PNG file.")] = None,
    audio: Annotated[
        Path | None, typer.Option("--audio", metavar="DIR", help="Write the speech beside a card to WAV files.")
    ] = None,
    changes: Changes = None,
    as_bibtex: Annotated[bool, typer.Option("--bibtex", help="Only print how to cite its paper.")] = False,
) -> None:
    """Show everything about one of them: formula, options, patterns, paper, cost, settings, examples. For a card: what
    was run, its score, and what the model made of a few test examples.

    \b
    Examples:
      longspan show "performer(features=64)"
      longspan show performer --bibtex
      longspan show my_task.py:MyTask
      longspan show listops --samples 3
      longspan show pathfinder --samples 8 -o x.png --set size=64
      longspan show image --samples 8 -o x.png
      longspan show out/cards/tts_fastspeech2/CARD.json -o x.png --audio heard
    """
    if name.endswith(".json"):
        from longspan.cli.show_card import show_card

        if samples or changes:
            raise UsageError(f"--samples and --set are for tasks and datasets, {name} is a card; leave them out.")
        show_card(Path(name), output, audio)
        return
    if audio:
        raise UsageError(f"--audio writes the speech beside a card, and {name} is not a .json file; name a card.")
    if (output or changes) and not samples:
        raise UsageError("-o and --set need --samples N, which was not given; add it.")
    if as_bibtex:
        from longspan.published.bibliography import bibtex

        for paper in dict.fromkeys(entry.get("paper", "") for entry in _entries(name).values()):
            print(bibtex(paper))
        return
    if not samples:
        from longspan.cli.entry_tables import print_entry

        for kind, entry in _entries(name).items():
            print_entry(kind, entry)
        return
    from longspan import datasets
    from longspan.core.settings import override

    dataset, data = datasets.examples_of(name)
    data = override(data, overrides(changes))
    if output is not None:
        dataset.draw_samples(data, samples, output)
        say(f"{samples} samples of {name} are in {output}.")
        return
    for sample in dataset.samples(data, samples):
        if not isinstance(sample.content, str):
            raise UsageError(f"{name} has images, which a terminal cannot show; add -o FILE.png to draw them.")
        print(f"{sample.label}  {sample.content}")


def _entries(name: str) -> dict[str, dict[str, Any]]:
    """The entries of this name by kind: `listops` is both a task and a dataset."""
    if any(mark in name for mark in ":("):
        from longspan.api import describe, kind_of

        return {(kind := kind_of(name)): describe(kind, name)}
    content = catalogue()
    found = {kind: entry for kind in map(str, Kind) for entry in content[kind] if entry["name"] == name}
    for problem in content["problems"]:
        if problem["name"] == name:
            from longspan.api import describe

            found[problem["kind"]] = describe(problem["kind"], name)  # raises what the plug-in raised
    if not found:
        known = {entry["name"] for kind in map(str, Kind) for entry in content[kind]}
        raise UnknownName(f"Nothing is named {name!r}.{did_you_mean(name, known)}")
    return found

"""`data`: prepare, import, inspect and verify datasets. Never imports torch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import Changes, Json, ProgressBar, Protocol, Tier, data_app, overrides, print_json, say
from longspan.core.errors import CheckFailed, DataMissing, UsageError

Dataset = Annotated[str, typer.Argument(metavar="NAME", help="A dataset; see longspan list datasets.")]
AnyDataset = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A dataset; all if left out.")]


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """Prepare, import, inspect and verify datasets. They are stored in $LONGSPAN_DATA, or in out/data.

    \b
    Examples:
      longspan data status
      longspan data prepare listops --tier smoke
      longspan data prepare listops --official
      longspan data import pathfinder ~/lra_release/pathfinder32
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@data_app.command("prepare")
def data_prepare(
    name: Dataset,
    protocol: Protocol = "longspan",
    tier: Tier = "full",
    changes: Changes = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; all cores if left out.")] = None,
    official: Annotated[
        bool, typer.Option("--official", help="Download the published files, even if they can be generated.")
    ] = False,
    mirror: Annotated[
        str | None,
        typer.Option(
            "--from-mirror", metavar="URL", help="A server folder with the same files; also $LONGSPAN_MIRROR."
        ),
    ] = None,
) -> None:
    """Generate or download a dataset; a second call only checks it, an interrupted one is resumed.

    Downloads are verified and stored in downloads/ beside the data; the Long Range Arena archive (8.2 GB) is read while
    it is downloaded and not stored.

    \b
    Examples:
      longspan data prepare pathfinder --tier full
      longspan data prepare listops --official
      longspan data prepare imdb --from-mirror http://mirror.example/data
    """
    from longspan.core import remote

    dataset, data = _settings(name, protocol, tier, changes)
    with remote.mirrored(mirror):
        splits = dataset.prepare_official(data) if official else dataset.prepare(data, workers=workers)
    say(f"{name} ({splits.variant}) is ready in {dataset.status(data).folder}: {_counted(splits.counts)}.")


@data_app.command("import")
def data_import(
    name: Dataset,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="A folder with the official files, or the archive as published."),
    ],
    protocol: Protocol = "longspan",
    tier: Tier = "full",
    changes: Changes = None,
) -> None:
    """Convert files that you have, unpacked or not; from then on runs prefer them to generated data.

    \b
    Examples:
      longspan data import listops ~/lra_release/listops-1000
      longspan data import pathfinder ~/Downloads/lra_release.gz
      longspan data import pathfinder ~/lra_release --set split=seed42
      longspan data import faces ~/ffhq ~/celebahq
    """
    dataset, data = _settings(name, protocol, tier, changes)
    for path in paths:
        if not path.exists():
            raise DataMissing(f"There is nothing at {path} to import {name} from. Source: {dataset.meta.source}.")
    if len(paths) > 1 and not dataset.several_paths:
        raise UsageError(f"{name} is imported from one path, got {len(paths)}; name the folder that has all of it.")
    splits = dataset.import_from(paths if len(paths) > 1 else paths[0], data)
    say(f"{name} ({splits.variant}) is imported: {_counted(splits.counts)}.")


@data_app.command("status")
def data_status(name: AnyDataset = None, as_json: Json = False) -> None:
    """Show what is on disk, for all settings that tasks use.

    \b
    Example:
      longspan data status listops
    """
    from longspan import datasets
    from longspan.cli import tables

    found = [(use.dataset.status(use.data), use.users) for use in datasets.uses(name)]
    if as_json:
        print_json([vars(status) | {"folder": str(status.folder), "for": users} for status, users in found])
    else:
        tables.console().print(tables.data_table(found))


@data_app.command("verify")
def data_verify(name: AnyDataset = None) -> None:
    """Hash every file on disk and compare with its manifest. Exit code 1 if one is damaged, 3 if there is none.

    \b
    Example:
      longspan data verify listops
    """
    from longspan import datasets

    uses = [use for use in datasets.uses(name) if use.dataset.status(use.data).ready]
    if not uses:
        raise DataMissing(f"Nothing of {name or 'any dataset'} is on disk to verify; see longspan data prepare --help.")
    problems = []
    with ProgressBar(len(uses)) as advance:
        for use in uses:
            advance(str(use.dataset.status(use.data).folder))
            problems += use.dataset.verify(use.data)
    if problems:
        raise CheckFailed(" ".join(problems))
    say(f"All hashes match in {len(uses)} {'folder' if len(uses) == 1 else 'folders'}.")


def _settings(name: str, protocol: str, tier: str, changes: list[str] | None) -> tuple[Any, Any]:
    """A dataset, and its settings under a protocol and tier with the overrides applied."""
    from longspan import datasets
    from longspan.core.settings import override

    dataset = datasets.get(name)
    return dataset, override(dataset.preset(protocol, tier), overrides(changes))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in counts.items())

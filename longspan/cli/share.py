"""`share`: cards and weights to and from the Hugging Face Hub, runs to Weights & Biases. Never imports torch."""

from pathlib import Path
from typing import Annotated

import typer

from longspan.cli.app import Out, say, share_app

CardPath = Annotated[Path, typer.Argument(metavar="CARD", help="A card file.")]
Repository = Annotated[str, typer.Argument(metavar="REPO", help="owner/name on the Hub.")]


@share_app.callback(invoke_without_command=True)
def share(context: typer.Context) -> None:
    """Share cards and weights: the Hugging Face Hub (longspan[hub]), Weights & Biases (longspan[wandb]).

    \b
    Examples:
      longspan share push out/cards/listops/CARD.json me/listops-linear
      longspan share pull me/listops-linear
      longspan share wandb out/cards/listops/CARD.json --project arena
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@share_app.command()
def push(
    card: CardPath,
    repository: Repository,
    public: Annotated[bool, typer.Option("--public", help="Make it public; private if left out.")] = False,
) -> None:
    """Upload a card, the files beside it and a page that describes it.

    \b
    Example:
      longspan share push out/cards/listops/CARD.json me/listops-linear
    """
    from longspan.sharing.hub import push

    say(f"Pushed: {push(card, repository, private=not public)}.")


@share_app.command()
def pull(repository: Repository, out: Out = Path("out")) -> None:
    """Download the cards of a repository with their files, and check them.

    \b
    Example:
      longspan share pull me/listops-linear
    """
    from longspan.sharing.hub import pull

    for path in pull(repository, out=out):
        say(f"Pulled: {path}.")


@share_app.command()
def wandb(
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Cards of runs.")],
    project: Annotated[str, typer.Option("--project", metavar="P", help="The Weights & Biases project.")] = "longspan",
) -> None:
    """Log finished runs: settings, learning curve, score. Logging a card again updates the same run.

    \b
    Example:
      longspan share wandb out/cards/listops/CARD.json --project arena
    """
    from longspan.sharing.wandb import log

    for card in cards:
        say(f"Logged: {log(card, project)}.")

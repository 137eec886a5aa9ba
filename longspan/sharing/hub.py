"""Push a card with its files to a repository of the Hugging Face Hub, and pull one from there.

What is pulled is untrusted: the card is read and checked like any other, each file must have the hash that the card was
sealed with, nothing is executed, and no name leads out of the folder.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from longspan.core.errors import CorruptFile, StorageError, UsageError, shortened
from longspan.results import card as cards
from longspan.results import files
from longspan.sharing.model_card import model_card

KIND = "model"


def push(card: str | Path, repository: str, *, private: bool = True, hub: Any = None) -> str:
    """Upload a card, its files and a generated model card; returns the address of the repository.

    Private by default. `hub` is an `HfApi`, or a stand-in for it in a test.
    """
    card = Path(card)
    record = cards.read(card)
    if faults := list(files.faults(card, record, bulky=False)):
        raise CorruptFile(f"{card.name} was to be pushed, but {'; '.join(faults)}")
    hub = hub or _hub()
    with _asking(repository):
        hub.create_repo(repository, repo_type=KIND, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in (card.name, *(name for name in record["files"].values() if (card.parent / name).is_file())):
            shutil.copyfile(card.parent / name, place / name)
        (place / "README.md").write_text(model_card(record, card.name, repository), encoding="utf-8")
        with _asking(repository):
            hub.upload_folder(
                repo_id=repository, repo_type=KIND, folder_path=folder, commit_message=f"longspan: {card.stem}"
            )
    return f"{getattr(hub, 'endpoint', '')}/{repository}"


def pull(repository: str, *, out: str | Path = "out", hub: Any = None) -> list[Path]:
    """Download the cards of a repository with their files into `out/cards`; returns their paths.

    A card that is not sound, or whose files are not those it was sealed with, is refused, and nothing is placed.
    """
    hub = hub or _hub()
    with tempfile.TemporaryDirectory() as folder:
        with _asking(repository):
            source = Path(hub.snapshot_download(repository, repo_type=KIND, local_dir=folder))
        found = {path: cards.read(path) for path in sorted(source.glob("*.json")) if not path.is_symlink()}
        if not found:
            raise UsageError(f"{repository} was to be pulled, but holds no card; push one with longspan share push.")
        for path, record in found.items():
            named = [path.name, *record["files"].values()]
            if bad := [name for name in named if Path(name).name != name or (source / name).is_symlink()]:
                raise CorruptFile(f"A card of {repository} names files that lie elsewhere: {', '.join(bad)[:200]}.")
            if faults := list(files.faults(path, record, bulky=False)):
                raise CorruptFile(f"{path.name} of {repository} is not whole: {'; '.join(faults)}")
        return [_placed(path, record, Path(out) / "cards") for path, record in found.items()]


def _placed(path: Path, record: cards.Card, store: Path) -> Path:
    """The files first, so that a reader never sees a card without them; what is there already stays."""
    shelf = store / cards.shelf(record)
    shelf.mkdir(parents=True, exist_ok=True)
    target = shelf / cards.filename(record)
    for name in record["files"].values():
        if (path.parent / name).is_file() and not (shelf / name).exists():
            shutil.copyfile(path.parent / name, shelf / name)
    return target if target.exists() else cards.write(target, record)


@contextlib.contextmanager
def _asking(repository: str) -> Iterator[None]:
    """Say in one sentence why the Hub gave no answer; some of its errors are OSErrors, as if a disk were at fault."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("huggingface_hub", "httpx", "requests"):
            raise
        reason = shortened(" ".join(str(error).split()) or type(error).__name__, 300)
        raise StorageError(
            f"The Hub could not be asked for {repository} ({reason}); check its name, the network and your login "
            "(hf auth whoami)."
        ) from error


def _hub() -> Any:
    try:
        return import_module("huggingface_hub").HfApi()
    except ModuleNotFoundError:
        raise UsageError(
            "The Hugging Face Hub needs huggingface_hub, which is not installed; run `pip install 'longspan[hub]'`."
        ) from None

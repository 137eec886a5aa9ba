"""Weights of another run that training starts from: easy pictures first, then hard ones (`recipe.initial_weights`).

A card or a file of weights is data (safetensors have no code); what it holds must fit the network name by name.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from longspan.core.errors import CorruptFile, UsageError
from longspan.results import card as cards
from longspan.results.files import WEIGHTS, digest, fault_of


def weights_of(name: str) -> Path:
    """The weights file that `name` stands for: the one beside a card, or the file itself."""
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"Training was to start from {name}, which is no file; name the card of a run or its weights.")
    if path.suffix != ".json":
        return path
    card = cards.read(path, "run")
    if WEIGHTS not in card["files"]:
        raise UsageError(f"The card {path.name} has no weights beside it; run its cell again to get them.")
    weights = path.with_name(card["files"][WEIGHTS])
    if fault := fault_of(weights, card.get("files_sha256", {}).get(WEIGHTS)):
        raise CorruptFile(f"{fault} Run the cell again to get the weights of this card.")
    return weights


def initial_sha256(name: str) -> str:
    """The hash of these weights, which tells apart runs that start from different ones."""
    return digest(weights_of(name))


def start_from(model: nn.Module, name: str) -> None:
    """Load these weights into the network; other names or shapes are refused."""
    path = weights_of(name)
    try:
        found = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise CorruptFile(f"The weights {path.name} cannot be read ({error}); run their cell again.") from error
    own = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    theirs = {key: tuple(value.shape) for key, value in found.items()}
    for key in [*own, *theirs]:
        if own.get(key) != theirs.get(key):
            raise UsageError(
                f"Training was to start from {path.name}, where {key} is {theirs.get(key, 'absent')}; this network has "
                f"it as {own.get(key, 'absent')}. Start from a run of the same network."
            )
    model.load_state_dict(found)

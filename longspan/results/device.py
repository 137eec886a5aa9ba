"""The device of a run in words."""

from longspan.core.printable import shown
from longspan.results.card import Card


def device_of(card: Card) -> str:
    """The device of a run in words: the GPU's name where there is one, else the processor's."""
    environment, device = card["environment"], str(card["settings"]["device"])
    name = environment.get("gpu") if device.startswith(("cuda", "gpu")) else environment.get("cpu")
    return shown(str(name or device))

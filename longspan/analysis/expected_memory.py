"""How much memory does a cell need on a device, and how many devices does it take? From the peaks on cards.

    needs = Needs(evidence.runs, "NVIDIA H200")
    need = needs.of("lm", "softmax", "causal_self", "longspan", "full")
    need.spread(capacity=140 << 30, gpus=8)        # (2, "ddp")

A cell that was run before needs as much again; for any other the largest peak of its task is taken. Weights, gradients
and the optimiser's two moments take 16 bytes per parameter. The rest grows with the batch rows on a device.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from longspan.analysis.expected_time import SAME_MODEL, Setting, named
from longspan.results.card import Card
from longspan.results.device import device_of

STATE_BYTES = 16  # per parameter: weight, gradient and two moments in fp32
ROOM = 0.9  # share of a device's memory that a cell may take


@dataclass(frozen=True)
class Need:
    """Peak bytes, None where no card tells; the number of parameters; their source; whether they are a guess."""

    bytes: int | None
    parameters: int
    source: str
    guess: bool = False

    def spread(self, capacity: int | None, gpus: int) -> tuple[int, str] | None:
        """How many GPUs of a node it takes, and by ddp or fsdp; None where all of them are too few."""
        if self.bytes is None or capacity is None or self.bytes <= ROOM * capacity:
            return 1, "ddp"
        state = min(self.bytes, STATE_BYTES * self.parameters)
        for count in (2**power for power in range(1, gpus.bit_length()) if 2**power <= gpus):
            if state + (self.bytes - state) / count <= ROOM * capacity:
                return count, "ddp"
            if self.bytes / count <= ROOM * capacity:
                return count, "fsdp"
        return None


class Needs:
    """The memory peaks of single-device runs on one kind of device, by setting and mechanism."""

    def __init__(self, runs: Iterable[Card], device: str):
        self.device, self.capacity = device, None
        self._peaks: dict[Setting, dict[str, tuple[int, int]]] = defaultdict(dict)
        for card in runs:
            if device_of(card) != device:
                continue
            self.capacity = card["environment"].get("gpu_memory_bytes") or self.capacity
            peak = (card.get("memory") or {}).get("peak_bytes")
            if peak and not card["overrides"] and card["settings"].get("devices", 1) == 1:
                setting = Setting(card["task"], card["protocol"], card["tier"], card["pattern"])
                own, name = self._peaks[setting], named(card)
                own[name] = max(own.get(name, (0, 0)), (peak, card["parameters"]["total"]))

    def of(self, task: str, mechanism: str, pattern: str, protocol: str, tier: str) -> Need:
        """What a run needs on one device."""
        for one in (tier, *filter(None, [SAME_MODEL.get(tier)])):
            own = self._peaks.get(Setting(task, protocol, one, pattern), {})
            if mechanism in own:
                return Need(*own[mechanism], "measured" if one == tier else f"from {one}", one != tier)
        alike = [
            (peak, name)
            for setting, own in self._peaks.items()
            for name, peak in own.items()
            if (setting.task, setting.tier) in ((task, tier), (task, SAME_MODEL.get(tier)))
        ]
        if not alike:
            return Need(None, 0, f"no card of {task} on {self.device}", guess=True)
        (peak, parameters), name = max(alike)
        return Need(peak, parameters, f"guess: as {name}", guess=True)

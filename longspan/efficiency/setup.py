"""What is measured, and how: all settings of measuring a core, a layer or a block, except mechanism and machine.

Setup.usual("cuda", lengths=(1024, 4096))      # the defaults of a device, except what is given
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from longspan.core.errors import UsageError

Mode = Literal["forward", "train", "decode"]
Variant = Literal["eager", "graph", "compiled"]
Module = Literal["core", "layer", "block"]
Key = tuple[int, Mode, Variant]  # of a point; the first is its length

MODES: tuple[Mode, ...] = ("forward", "train", "decode")
VARIANTS: tuple[Variant, ...] = ("eager", "graph", "compiled")
MODULES: tuple[Module, ...] = ("core", "layer", "block")
DTYPES = ("float32", "bfloat16")
POINTS = ("lengths", "modes", "variants", "energy")  # these choose the points; the rest defines each of them

USUAL: dict[str, dict[str, Any]] = {
    "cuda": {"dtype": "bfloat16", "lengths": tuple(2**i for i in range(8, 17)), "variants": ("eager", "graph")},
    "cpu": {"dtype": "float32", "lengths": tuple(2**i for i in range(8, 13)), "variants": ("eager",)},
}


@dataclass(frozen=True)
class Setup:
    """One module on random inputs; `dim` is the width of a head."""

    lengths: tuple[int, ...]
    dtype: str
    modes: tuple[Mode, ...] = ("forward", "train")
    variants: tuple[Variant, ...] = ("eager",)
    module: Module = "core"
    batch: int = 4
    heads: int = 8
    dim: int = 64
    repeats: int = 20  # readings, fewer where they would take longer than `seconds`, but at least five
    seconds: float = 0.3
    warmup: int = 3
    energy: bool = False
    seed: int = 0

    @classmethod
    def usual(cls, device: str, **chosen: Any) -> "Setup":
        """The defaults of a device; whatever is given, and not None, overrides them."""
        return cls(**USUAL[device] | {name: value for name, value in chosen.items() if value is not None})

    def __post_init__(self):
        if not self.lengths or min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise UsageError(f"Lengths are different positive numbers, got {self.lengths}; give them like 1024 4096.")
        for name, known in (("modes", MODES), ("variants", VARIANTS)):
            words = getattr(self, name)
            if not words or not set(words) <= set(known) or len(set(words)) < len(words):
                raise UsageError(f"The {name} are {', '.join(known)}, got {words}; name each of them once at most.")
        for name, known in (("module", MODULES), ("dtype", DTYPES)):
            if (word := getattr(self, name)) not in known:
                raise UsageError(f"The {name} is {' or '.join(known)}, got {word!r}; choose one of them.")
        for name in ("batch", "heads", "dim", "repeats", "warmup"):
            if (number := getattr(self, name)) < 1:
                raise UsageError(f"A measurement needs {name} of at least 1, got {number}; give a positive number.")
        if not self.seconds > 0:
            raise UsageError(f"A measurement needs time, got seconds={self.seconds}; give a positive number.")

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.heads * self.dim

    def asked(self) -> list[Key]:
        """Every point, short lengths first."""
        return [(n, mode, variant) for n in sorted(self.lengths) for mode in self.modes for variant in self.variants]

    def shared(self) -> dict[str, Any]:
        """The settings that any two points of a journal have in common."""
        return {name: value for name, value in asdict(self).items() if name not in POINTS}

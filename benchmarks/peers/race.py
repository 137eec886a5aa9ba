"""The race: a package and our corresponding mechanism, on the same tensors, one right after the other.

Both run under the same autocast (or with cast weights, where a row says so), in training mode, forward only or forward
and backward with gradients of every input and weight. Eager calls are timed by device events after a warm-up, and again
as a CUDA graph where capture succeeds, which separates kernel launch time from the work. A failure is a note in its
row, and the other races continue.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.packages import Peer
from longspan import attentions
from longspan.attentions import HeadwiseAttention, Pattern
from longspan.core import environment
from longspan.efficiency.latency import Spread, affordable, time_calls, warm_up
from longspan.efficiency.memory import is_out_of_memory, release
from longspan.efficiency.variants import captured

MODES = ("forward", "train")


@dataclass(frozen=True)
class Setup:
    """The shapes and how often each is timed."""

    batch: int = 4
    heads: int = 8
    width: int = 64  # channels per head
    dtype: str = "bfloat16"
    device: str = "cpu"
    repeats: int = 30
    warmup: int = 5
    seconds: float = 5.0  # per clock and side; at least three readings
    seed: int = 0

    @property
    def dim(self) -> int:
        return self.heads * self.width


@dataclass(frozen=True)
class Inputs:
    """The inputs of both sides, and whether gradients are computed."""

    level: str
    length: int
    mode: str

    def shape(self, setup: Setup) -> tuple[int, ...]:
        if self.level == "core":
            return (setup.batch, setup.heads, self.length, setup.width)
        return (setup.batch, self.length, setup.dim)

    def draw(self, setup: Setup, dtype: torch.dtype) -> list[Tensor]:
        generator, count = torch.Generator().manual_seed(setup.seed), 3 if self.level == "core" else 1
        drawn = [torch.randn(self.shape(setup), generator=generator) for _ in range(count)]
        return [x.to(setup.device, dtype).requires_grad_(self.mode == "train") for x in drawn]


@dataclass(frozen=True)
class Side:
    """The times of one side of a race, in milliseconds; a note where a clock has no reading."""

    eager: Spread | None = None
    graph: Spread | None = None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One race; a ratio above 1 means ours is faster."""

    package: str
    version: str
    offers: str
    ours: str
    level: str
    pattern: str
    length: int
    mode: str
    theirs_ms: Side
    ours_ms: Side
    remark: str = ""
    ratio: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def missing(peer: Peer, device: str) -> str | None:
    """Why a peer cannot run here, or None."""
    if peer.gpu and not device.startswith("cuda"):
        return "its kernels need a GPU"
    try:
        peer.build(128, 2, 128, peer.patterns[-1] == "CS")
    except ImportError as error:
        return f"not importable: {_first_line(error)}"
    except Exception as error:  # a version incompatible with the other packages here
        return f"cannot be built: {type(error).__name__}: {_first_line(error)}"
    return None


def race(peer: Peer, pattern: str, length: int, mode: str, setup: Setup) -> Row:
    """Time both sides on the same inputs."""

    def build_ours() -> Callable[..., Tensor]:
        layer = attentions.get(peer.ours)(setup.dim, setup.heads, Pattern.parse(pattern), max_length=length)
        if peer.level == "layer":
            return layer
        assert isinstance(layer, HeadwiseAttention)
        return _Core(layer)

    def build_theirs() -> Callable[..., Tensor]:
        return peer.build(setup.dim, setup.heads, length, pattern == "CS")

    inputs = Inputs(peer.level, length, mode)
    theirs = _side(build_theirs, inputs, setup, autocast=peer.autocast)
    ours = _side(build_ours, inputs, setup, autocast=peer.autocast)
    return Row(
        peer.package,
        environment.installed(peer.package) or "",
        peer.offers,
        peer.ours,
        peer.level,
        pattern,
        length,
        mode,
        theirs,
        ours,
        peer.remark,
        ratios(theirs, ours),
    )


def ratios(theirs: Side, ours: Side) -> dict[str, float]:
    """Their median over ours, for each clock that both sides have.

    >>> ratios(Side(eager=Spread(1.0, 3.0, 5.0, 3)), Side(eager=Spread(1.0, 2.0, 5.0, 3), graph=Spread(1, 1, 1, 3)))
    {'eager': 1.5}
    """
    pairs = {"eager": (theirs.eager, ours.eager), "graph": (theirs.graph, ours.graph)}
    return {clock: a.median / b.median for clock, (a, b) in pairs.items() if a is not None and b is not None}


class _Core(nn.Module):
    """Our attention without projections, as a module whose parameters can be moved and differentiated."""

    def __init__(self, layer: HeadwiseAttention):
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.layer.attend(q, k, v)


def _side(build: Callable[[], Callable[..., Tensor]], inputs: Inputs, setup: Setup, *, autocast: bool = True) -> Side:
    eager = None
    try:
        compute = _computation(build, inputs, setup, autocast)
        eager = _timed(compute, setup)
        if not setup.device.startswith("cuda"):
            return Side(eager)
        return Side(eager, _timed(captured([compute]).run, setup))
    except Exception as error:  # third-party code: whatever it raises is reported in its row
        kind = "out of memory" if is_out_of_memory(error) else f"{type(error).__name__}: {_first_line(error)}"
        return Side(eager, None, kind if eager is None else f"no graph, {kind}")
    finally:
        release(setup.device)


def _computation(
    build: Callable[[], Callable[..., Tensor]], inputs: Inputs, setup: Setup, autocast: bool
) -> Callable[[], Any]:
    torch.manual_seed(setup.seed)
    call, dtype = build(), getattr(torch, setup.dtype)
    weights: list[nn.Parameter] = []
    if isinstance(call, nn.Module):
        call.to(setup.device, torch.float32 if autocast else dtype).train()
        weights = [p for p in call.parameters() if p.requires_grad]
    given = inputs.draw(setup, torch.float32 if autocast and inputs.level == "layer" else dtype)

    def forward() -> Tensor:
        with _precision(setup, autocast):
            return call(*given)

    y = forward()
    if y.shape != inputs.shape(setup) or not torch.isfinite(y).all():
        raise ValueError(f"gave {tuple(y.shape)} for {inputs.shape(setup)}, or something not finite")
    cotangent = torch.ones_like(y)

    def train() -> Any:
        return torch.autograd.grad(forward(), [*given, *weights], cotangent, allow_unused=True)

    def infer() -> Any:
        with torch.no_grad():
            return forward()

    return train if inputs.mode == "train" else infer


def _precision(setup: Setup, autocast: bool) -> contextlib.AbstractContextManager:
    if setup.dtype == "float32" or not autocast:
        return contextlib.nullcontext()
    # without autocast's weight cache, which a graph replay would not refill
    return torch.autocast(setup.device.split(":")[0], getattr(torch, setup.dtype), cache_enabled=False)


def _timed(compute: Callable[[], Any], setup: Setup) -> Spread:
    cost = warm_up(compute, setup.device, calls=setup.warmup)
    count = affordable(cost, setup.repeats, seconds=setup.seconds)
    return Spread.of([1e3 * seconds for seconds in time_calls(compute, setup.device, count=count)])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:160]


def races(peers: list[Peer], lengths: list[int], modes: list[str]) -> Iterator[tuple[Peer, str, int, str]]:
    """All races to run, the longest last, so that an interrupted run has complete lengths."""
    for length in lengths:
        for peer in peers:
            for pattern in peer.patterns:
                for mode in modes:
                    yield peer, pattern, length, mode

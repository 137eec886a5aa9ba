"""An update as a CUDA graph: captured once for each batch shape, then replayed without launch overhead on the host.

    update = Captured(update, CudaGraphs())
    results = update(batches)      # what `update(batches)` gives, in tensors that the next call overwrites

A step of a small network is hundreds of kernel launches that each do little, and the host cannot issue them as fast as
a GPU finishes them. A shape runs eagerly the first time, which also compiles and allocates whatever it needs, is
captured the second time and replayed from then on. Batches are tensors and plain values in dataclasses, lists, tuples
and mappings; plain values count as part of the shape. Batches of anything else, and a network that synchronises with
the device midway, cannot be captured and always run eagerly.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from longspan.core.cuda_graph import aside, record

Update = Callable[[Sequence[Any]], Any]
MOST_SHAPES = 64  # a task with more shapes than this is not worth capturing


class Recorder(Protocol):
    def stage(self) -> contextlib.AbstractContextManager:
        """A context that sets the stream on which captured work, and everything around it, must run."""
        ...

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """A function that replays `compute`, and its static output tensors; nothing is computed yet."""
        ...


class CudaGraphs:
    """Captures on a side stream, as CUDA requires; all graphs share a memory pool, since only one runs at a time."""

    def __init__(self):
        self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def stage(self) -> contextlib.AbstractContextManager:
        return aside(self._stream)

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        return record(compute, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")


@dataclasses.dataclass(frozen=True)
class Recording:
    inputs: Sequence[Any]
    replay: Callable[[], None]
    outcome: Any


class Captured:
    """`update`, replayed for batch shapes that have been captured."""

    def __init__(self, update: Update, recorder: Recorder):
        self._update, self._recorder = update, recorder
        self._met: dict[Any, Recording | None] = {}  # by shape; None: has run once, eagerly
        self._gives_up = False

    def __call__(self, batches: Sequence[Any]) -> Any:
        shape = shape_of(batches)
        if not _is_hashable(shape):
            return self._update(batches)
        recording = self._met.get(shape)
        if recording is None and shape in self._met and not self._gives_up:
            recording = self._met[shape] = self._record(batches)
        if recording is None:
            self._meet(shape)
            return self._update(batches)
        for kept, given in zip(tensors_in(recording.inputs), tensors_in(batches), strict=True):
            kept.copy_(given)
        recording.replay()
        return recording.outcome

    def _meet(self, shape: Any) -> None:
        if len(self._met) < MOST_SHAPES:
            self._met.setdefault(shape, None)

    def _record(self, batches: Sequence[Any]) -> Recording | None:
        inputs = copy_of(batches)
        try:
            replay, outcome = self._recorder.record(lambda: self._update(inputs))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            warnings.warn(f"Updates are launched one by one, as no CUDA graph captures them ({reason}).", stacklevel=2)
            self._gives_up = True
            return None
        return Recording(inputs, replay, outcome)


def shape_of(value: Any) -> Any:
    """What must match for a captured graph to be replayed: shapes and dtypes of tensors, everything else by value."""
    if torch.is_tensor(value):
        return tuple(value.shape), value.dtype
    if dataclasses.is_dataclass(value):
        return type(value), *(shape_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return tuple((name, shape_of(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(shape_of(part) for part in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a batch, always in the same order."""
    if torch.is_tensor(value):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(value, (list, tuple, Mapping)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)


def copy_of(value: Any) -> Any:
    """The same batch with cloned tensors."""
    if torch.is_tensor(value):
        return value.clone()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copies = {field.name: copy_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **copies)
    if isinstance(value, Mapping):
        return {name: copy_of(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [copy_of(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _is_hashable(shape: Any) -> bool:
    try:
        hash(shape)
    except TypeError:
        return False
    return True

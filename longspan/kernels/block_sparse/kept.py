"""What was made of lists and columns, kept under their name, so that it is made once for each shape."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

KEPT = 16  # the latest ones

_kept: OrderedDict[Hashable, Any] = OrderedDict()


class Contents:
    """A tensor as the name of what it holds: equal to itself until somebody writes into it."""

    def __init__(self, tensor: Tensor):
        self.tensor, self.version = tensor, 0 if tensor.is_inference() else tensor._version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self.tensor is other.tensor and self.version == other.version

    def __hash__(self) -> int:
        return hash((id(self.tensor), self.version))


def remembered(pattern: Hashable, rules: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
    """What `make` gives, the first time a pattern comes with these rules; in a compiled graph it is made every time."""
    if torch.compiler.is_compiling():
        return make()
    key = (Contents(pattern) if isinstance(pattern, Tensor) else pattern, *rules)
    if key not in _kept:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return make()  # what a graph records holds nothing until the graph is replayed
        with torch.inference_mode(False):  # it may serve for training later
            _kept[key] = make()
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]

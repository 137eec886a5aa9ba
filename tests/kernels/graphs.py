"""How operators work with torch: compiled callers have one graph, CUDA graphs can capture them, and opcheck passes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.core.cuda_graph import record
from tests.kernels.agreement import gradients


def assert_one_graph(layer: Callable[..., Tensor], calls: Iterable[Sequence[Any]]) -> None:
    """`layer` is compiled once for all these calls, with the same outputs and gradients as uncompiled."""
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=count)
    through_autograd = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for arguments in calls:
        leaves = [x for x in arguments if isinstance(x, Tensor) and x.requires_grad]
        plain = layer(*arguments)
        torch.testing.assert_close(compiled(*arguments), plain)
        found = gradients(through_autograd(*arguments), leaves)
        for one, other in zip(found, gradients(plain, leaves), strict=True):
            torch.testing.assert_close(one, other)
    assert len(graphs) == 1


def replayed(step: Callable[[], Sequence[Tensor]], redrawn: Sequence[Tensor] = ()) -> list[tuple[Tensor, Tensor]]:
    """Pairs of the results of a replayed step and of the step itself; leaves in `redrawn` change before the replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm-up
        step()
    torch.cuda.current_stream().wait_stream(stream)
    replay, found = record(step)
    with torch.no_grad():
        for leaf in redrawn:
            leaf.normal_()
    replay()
    return list(zip(found, step(), strict=True))


def check(operator: Any, *arguments: Any, differentiable: bool = True) -> None:
    """The operator passes torch's opcheck; compiling is tested separately."""
    aspects = ["test_schema", "test_faketensor"] + ["test_autograd_registration"] * differentiable
    torch.library.opcheck(operator, arguments, test_utils=aspects)

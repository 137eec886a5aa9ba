"""Triton kernels as torch operators, opaque to torch.compile: fake shapes, gradients, FLOPs.

    @operator("running_mean", fake=like, flops=lambda x, *rest: math.prod(x))
    def forward(x: Tensor, mask: Tensor | None) -> Tensor: ...

    @operator("running_mean_backward", fake=like, flops=...)
    def backward(dy: Tensor, x: Tensor, mask: Tensor | None) -> Tensor: ...

    differentiate(forward, backward)

torch parses the signatures of operators, where it knows tensors but no shapes; the public functions state the shapes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from longspan.kernels.flops import counts
from longspan.kernels.launch import empty_like

Maybe = Tensor | None  # an argument of an operator that may be left out


def operator(name: str, *, fake: Callable[..., Any], flops: Callable[..., int] | None = None) -> Callable[..., Any]:
    """Register a function as `torch.ops.longspan.<name>`.

    `fake` makes empty outputs from the same arguments; `flops` counts operations, given shapes in place of tensors.
    """

    def register(function: Callable[..., Any]) -> Any:
        registered = torch.library.custom_op(f"longspan::{name}", function, mutates_args=())
        registered.register_fake(fake)
        if flops is not None:
            counted = flops
            counts(getattr(torch.ops.longspan, name))(
                lambda *args, out_shape=None, **options: counted(*args, **options)
            )
        return registered

    return register


def differentiate(
    forward: Any,
    backward: Callable[..., Any],
    *,
    saved: tuple[int, ...] | Callable[..., tuple[int, ...]] | None = None,
    unneeded: tuple[int, ...] = (),
) -> None:
    """Make `forward` differentiable by `backward(dy, *outputs, *inputs)`: the gradients of the first inputs.

    `outputs` are those of `forward` whose indices are in `saved`, which may be a function of the inputs (by default
    none of a single output, all of several); only the first output has a gradient. An input that is None gets none,
    whatever `backward` returns for it. Inputs whose indices are in `unneeded` are not saved: `backward` gets None in
    their place.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        several = isinstance(output, tuple)
        outputs = output if several else (output,)
        chosen = saved(*inputs) if callable(saved) else saved
        chosen = chosen if chosen is not None else tuple(range(len(outputs))) if several else ()
        is_tensor = [isinstance(x, Tensor) for x in inputs]
        kept = [None if i in unneeded else x for i, x in enumerate(inputs) if is_tensor[i]]
        ctx.save_for_backward(*(outputs[i] for i in chosen), *kept)
        ctx.plain = [None if tensor else x for x, tensor in zip(inputs, is_tensor, strict=True)]
        ctx.is_tensor, ctx.kept = is_tensor, len(chosen)
        ctx.set_materialize_grads(False)  # only the first output has a gradient

    def gradients(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * len(ctx.plain)
        outputs, tensors = ctx.saved_tensors[: ctx.kept], iter(ctx.saved_tensors[ctx.kept :])
        pairs = zip(ctx.is_tensor, ctx.plain, strict=True)
        inputs = [next(tensors) if tensor else plain for tensor, plain in pairs]
        found = backward(dy, *outputs, *inputs)
        found = found if isinstance(found, tuple) else (found,)
        padded = [*found, *[None] * (len(inputs) - len(found))]
        return tuple(d if tensor else None for d, tensor in zip(padded, ctx.is_tensor, strict=True))

    forward.register_autograd(gradients, setup_context=setup_context)


def like(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Empty tensors [b h n c] laid out as these are."""
    return tuple(empty_like(x, x.shape[3], x.dtype) for x in tensors)

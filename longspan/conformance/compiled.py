"""Compiled and captured: on a GPU a layer compiles to one graph, and its training step is captured as a CUDA graph."""

from dataclasses import replace

import torch
from einops import rearrange
from torch import Tensor, nn

from longspan.attentions import Attention
from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import LONG, Batch, Subject
from longspan.core.cuda_graph import aside, record
from longspan.kernels.precision import compile_backward_without_autocast

ON_A_GPU = "checked on a GPU"
WHOLE = 128  # a multiple of the usual blocks


@promise("torch.compile")
def compiled(subject: Subject) -> Outcome:
    """On a GPU torch.compile takes the layer as one graph, with the same outputs and gradients."""
    return not_applicable(ON_A_GPU) if subject.on_cpu else compiled_by(subject, "inductor")


def compiled_by(subject: Subject, backend: str) -> Outcome:
    """The outcome under `torch.compile`; a backend that generates no code suffices where only the graph is tested."""
    layer, eager = subject.layer(), subject.layer()
    rearrange(nn.Parameter(torch.zeros(1)), "n -> n")  # einops caches each type it meets, which would cause a retrace
    torch._dynamo.reset()
    compile_backward_without_autocast()
    worst = 0.0
    with torch._dynamo.config.patch(suppress_errors=False, specialize_float=True):
        layer.compile(fullgraph=True, backend=backend)
        for batch in (subject.batch(2, WHOLE), subject.padded_batch(LONG)):  # mechanisms have paths for whole blocks
            direction = subject.noise(*batch.x.shape, draw="direction")
            found, expected = (_outputs_and_gradients(subject, one, batch, direction) for one in (layer, eager))
            for name, value in expected.items():
                worst = max(worst, apart := _apart(found[name], value, expected))
                if not apart <= subject.tolerance:
                    masks = "without masks" if batch.mask is None else "with masks"
                    return broken(f"compiled, {name} differs by {spell(apart)} {masks}, length {batch.x.shape[1]}")
    return kept(f"one graph; outputs and gradients differ by {spell(worst)} at most from those without it")


@promise("CUDA graph")
def captured(subject: Subject) -> Outcome:
    """On a GPU a training step of the layer is captured once and replayed with other tokens and other masks."""
    if subject.on_cpu:
        return not_applicable(ON_A_GPU)
    layer = subject.layer(training=not subject.meta.stochastic)
    static, stream = subject.padded_batch(LONG).requiring_grad(), torch.cuda.Stream()
    direction = subject.noise(*static.x.shape, draw="direction")

    def step() -> dict[str, Tensor]:
        return _outputs_and_gradients(subject, layer, static, direction)

    with aside(stream):
        for _ in range(2):  # compiles and allocates whatever is needed
            step()
        replay, found = record(step, stream=stream)
    worst = 0.0
    for draw in (1, 2):
        batch = _other(subject, draw)
        for kept_still, given in zip(_tensors(static), _tensors(batch), strict=True):
            kept_still.data.copy_(given)
        replay()
        torch.cuda.synchronize()
        expected = _outputs_and_gradients(subject, layer, batch, direction)
        for name, value in expected.items():
            worst = max(worst, apart := _apart(found[name], value, expected))
            if not apart <= subject.tolerance:
                return broken(f"replayed with other tokens and masks, {name} differs by {spell(apart)}")
    return kept(f"replayed with other tokens and masks it differs by {spell(worst)} at most")


def _outputs_and_gradients(subject: Subject, layer: Attention, batch: Batch, direction: Tensor) -> dict[str, Tensor]:
    """What a step computes; it must copy nothing from the host, or it could not be captured."""
    leaves = batch if batch.x.requires_grad else batch.requiring_grad()
    y = subject.run(layer, leaves)
    if batch.mask is not None:
        y = y * batch.mask[..., None]
    named = {**leaves.leaves(), **{n: p for n, p in layer.named_parameters() if p.requires_grad}}
    gradients = torch.autograd.grad((y * direction).sum(), list(named.values()), allow_unused=True)
    pairs = zip(named, gradients, strict=True)
    return {"the output": y.detach()} | {f"the gradient of {n}": g for n, g in pairs if g is not None}


def _apart(found: Tensor, expected: Tensor, others: dict[str, Tensor]) -> float:
    """The difference relative to the largest of all gradients, since some are zero up to rounding."""
    size = max(float(value.abs().max()) for name, value in others.items() if name != "the output")
    if others["the output"] is expected:
        return difference(found, expected)
    gap = float((found.double() - expected.double()).abs().max()) / (size or 1.0)
    return gap if gap == gap else float("inf")


def _other(subject: Subject, draw: int) -> Batch:
    """Tokens of another draw, in rows of other lengths."""
    batch = subject.padded_batch(LONG, draw=draw)
    assert batch.mask is not None
    context_mask = None if batch.context_mask is None else batch.context_mask.roll(draw, 0)
    return replace(batch, mask=batch.mask.roll(draw, 0), context_mask=context_mask)


def _tensors(batch: Batch) -> list[Tensor]:
    return [part for part in (batch.x, batch.context, batch.mask, batch.context_mask) if part is not None]

"""At length: causality, decoding and derivatives past the short lengths that a mechanism may treat specially.

That is about 1,100 tokens, or beyond its own window, block or chunk where that is larger.
"""

from dataclasses import replace

import torch
from torch import Tensor

from longspan.attentions.base import SHELL
from longspan.conformance.causality import NOT_CAUSAL
from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import Batch, Subject
from longspan.conformance.surrogate import compared, gradients_of
from longspan.core.registry import own_options

FAR, FARTHEST = 1100, 2300  # the second caps the length for a large window
STEPS = 4  # decoded after a long prefix


def far(subject: Subject) -> int:
    """A length beyond every integer option of the mechanism, at most FARTHEST."""
    given = subject.mechanism.options
    values = [given.get(option.name, option.default) for option in own_options(subject.mechanism.cls, SHELL)]
    largest = max((value for value in values if type(value) is int), default=0)
    return max(FAR, min(2 * largest + 77, FARTHEST))


@promise("no future leak at length")
def no_future_leak_at_length(subject: Subject) -> Outcome:
    """At 1,100 tokens and beyond its window, later tokens change no earlier output and have no gradient from one."""
    if not subject.pattern.causal:
        return not_applicable(NOT_CAUSAL)
    n, worst = far(subject), 0.0
    layer, batch = subject.layer(longest=n + 5), subject.batch(1, n, scale=2.0).requiring_grad()
    before = subject.run(layer, batch)
    cuts = (n // 3, n // 2 + 1, n - 1) if subject.quick else (255, 256, n // 3, 512, n // 2 + 1, 1024, n - 1)
    for huge, cut in enumerate(cuts):
        later = subject.noise(*batch.x[:, cut:].shape, draw=("later", cut))
        later[:, -1] *= subject.huge if huge % 2 else 1.0
        with torch.no_grad():
            after = subject.run(layer, replace(batch, x=torch.cat([batch.x[:, :cut], later], dim=1)))
        worst = max(worst, apart := difference(after[:, :cut], before[:, :cut]))
        if not apart <= subject.tolerance:
            return broken(f"later tokens change outputs before position {cut} of {n} by {spell(apart)}")
    direction = subject.noise(*before.shape, draw="direction", dtype=before.dtype)
    for cut in cuts[-2:-1] if subject.quick else cuts:
        (gradient,) = torch.autograd.grad(
            (before * direction)[:, :cut].sum(), batch.x, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        leak = float(gradient[:, cut:].abs().max()) / (float(gradient.abs().max()) or 1.0)
        if not leak <= subject.tolerance:
            return broken(f"outputs before position {cut} of {n} have a gradient of {spell(leak)} by later tokens")
    return kept(f"largest change of an earlier output {spell(worst)} at length {n}")


@promise("prefix = full at length")
def prefix_equals_full_at_length(subject: Subject) -> Outcome:
    """At 1,100 tokens and beyond its window, the output for a prefix is the prefix of the output."""
    if not subject.pattern.causal:
        return not_applicable(NOT_CAUSAL)
    n, worst = far(subject), 0.0
    layer, batch = subject.layer(longest=n + 5), subject.batch(1, n)
    with torch.no_grad():
        full = subject.run(layer, batch)
        for cut in (257, n // 2 + 1, n - 1) if subject.quick else (257, 511, 512, n // 2 + 1, 1023, 1024, 1025, n - 1):
            prefix = subject.run(layer, replace(batch, x=batch.x[:, :cut]))
            worst = max(worst, apart := difference(prefix, full[:, :cut]))
            if not apart <= subject.tolerance:
                return broken(f"the first {cut} of {n} tokens alone give outputs that differ by {spell(apart)}")
    return kept(f"largest difference of a prefix {spell(worst)} at length {n}")


@promise("step = parallel at length")
def step_equals_parallel_at_length(subject: Subject) -> Outcome:
    """After a prefix of 1,100 tokens, or more than its window, single steps give the outputs of the whole sequence."""
    if not subject.pattern.causal:
        return not_applicable("only causal patterns are decoded")
    n, worst = far(subject), 0.0
    layer, batch = subject.layer(longest=n + 5), subject.batch(2, n)
    with torch.no_grad(), subject.precision():
        full = layer(batch.x, batch.context)
        for start in (n - STEPS,) if subject.quick else (510, 1022, n - STEPS):
            _, state = layer.prefill(batch.x[:, :start], batch.context)
            for t in range(start, start + STEPS):
                y, state = layer.step(batch.x[:, t], state)
                worst = max(worst, apart := difference(y, full[:, t]))
                if not apart <= subject.tolerance:
                    return broken(f"after a prefix of {start} the output at position {t} differs by {spell(apart)}")
    return kept(f"largest difference from the whole sequence {spell(worst)} after {n - STEPS} tokens")


@promise("derivative at length")
def derivative_at_length(subject: Subject) -> Outcome:
    """At 1,100 tokens and beyond its window, the gradient gives the slope that small steps along it show."""
    if not subject.on_cpu:
        return not_applicable("finite differences need float64, which is checked on a cpu")
    n, apart = far(subject), 0.0
    layer, batch = subject.layer(longest=n + 5), subject.batch(1, n)
    if subject.meta.surrogate_gradient:
        wrong = compared(subject, layer, batch)
        return broken(wrong) if wrong else kept(f"agrees with its own definition at length {n}")
    named = {**batch.leaves(), **{name: p for name, p in layer.named_parameters() if p.requires_grad}}
    gradients = {name: g for name, g in gradients_of(subject, layer, batch).items() if g is not None}
    size = float(sum(g.square().sum() for g in gradients.values())) ** 0.5 or 1.0
    for step in STEPS_ALONG:
        direction = {name: subject.noise(*u.shape, draw=(step, name)) for name, u in named.items()}
        expected = float(sum((g * direction[name]).sum() for name, g in gradients.items()))
        ahead, behind = (_moved(subject, layer, batch, direction, by) for by in (step, -step))
        apart = abs((ahead - behind) / (2 * step) - expected) / size
        if apart <= SLOPE:
            return kept(f"slope and gradient differ by {spell(apart)} at length {n}")
    return broken(f"slope and gradient differ by {spell(apart)} of the gradient's norm at length {n}")


SLOPE = 1e-5
# a selection (top keys, a sorted order) may change within a step, rarely in a shorter one, but rounding errors grow
STEPS_ALONG = (1e-6, 1e-8, 1e-9)


def _moved(subject: Subject, layer: torch.nn.Module, batch: Batch, direction: dict[str, Tensor], step: float) -> float:
    """The projected output that `gradients_of` differentiates, after a step along the direction."""
    leaves = {name: u + step * direction[name] for name, u in batch.leaves().items()}
    parameters = {name: p + step * direction[name] for name, p in layer.named_parameters() if name in direction}
    with torch.no_grad():
        y = torch.func.functional_call(layer, parameters, tuple(leaves.values()))
    return float((y * subject.noise(*y.shape, draw="direction", dtype=y.dtype)).sum())

"""Gradients: they reach every parameter, are finite, and are the derivative of what is computed."""

import re
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from longspan.attentions import Attention, HeadwiseAttention
from longspan.attentions.base import SHELL
from longspan.conformance.auxiliary import reached
from longspan.conformance.difference import difference, finite, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import LONG, Batch, Subject
from longspan.conformance.surrogate import compared, gradients_of
from longspan.core.registry import own_options
from longspan.core.spec import Spec

REFERENCES = ("plain", "reference", "naive")  # values of an option that mean the formula itself
SMALL = 1e-4  # a step so small that it changes hardly any choice


@promise("gradients")
def gradient_flow(subject: Subject) -> Outcome:
    """Gradients are finite, and reach every input and every parameter that has a say in the output.

    Where an auxiliary loss is declared, its gradient will do for a parameter that decides by a choice, which has none:
    a small step of such a parameter leaves most outputs as they are, to the bit.
    """
    unused: set[str] = set()
    for batch in (subject.batch(2, LONG), subject.padded_batch(LONG)):
        layer = subject.layer(longest=LONG + 5)
        found = gradients_of(subject, layer, batch)
        wild = [name for name, gradient in found.items() if not finite(gradient)]
        if wild:
            return broken(f"the gradient is not finite for {', '.join(wild)} at length {LONG}")
        # the gradient of a bias may vanish by symmetry, as that of the keys does under a softmax
        silent = [name for name, g in found.items() if g is None or (g.ndim > 1 and not g.any())]
        excused = set(reached(subject, layer, batch)) if silent else set()
        cut_off = [name for name in silent if (_moves if name in excused else _matters)(subject, layer, batch, name)]
        if cut_off:
            return broken(f"no gradient reaches {', '.join(cut_off)}, though the output depends on it")
        unused |= set(silent) - excused
    remark = f"; without a say in the output: {', '.join(sorted(unused))}" if unused else ""
    return kept(f"finite at length {LONG} for all {len(found)} inputs and parameters{remark}")


def _matters(subject: Subject, layer: Attention, batch: Batch, name: str) -> bool:
    """Whether the output changes with this input or parameter."""
    return difference(*_changed(subject, layer, batch, name, 1.0)) > subject.tolerance


def _moves(subject: Subject, layer: Attention, batch: Batch, name: str) -> bool:
    """Whether most of the output changes with a small step of this parameter; not so where it decides by a choice."""
    after, before = _changed(subject, layer, batch, name, SMALL)
    rows = (after != before).any(dim=-1)
    return bool((rows if batch.mask is None else rows[batch.mask]).float().mean() > 0.5)


def _changed(subject: Subject, layer: Attention, batch: Batch, name: str, step: float) -> tuple[Tensor, Tensor]:
    """The output after a random step of this input or parameter, and before it."""
    before = subject.run(layer, batch)
    if name in batch.leaves():
        value = batch.leaves()[name]
        changed = replace(batch, **{name: value + step * subject.noise(*value.shape, draw="change")})
        return subject.run(layer, changed), before
    parameter = dict(layer.named_parameters())[name]
    original = parameter.detach().clone()
    with torch.no_grad():
        parameter.add_(step * subject.noise(*parameter.shape, draw="change"))
        after = subject.run(layer, batch)
        parameter.copy_(original)
    return after, before


@promise("gradcheck")
def gradcheck(subject: Subject) -> Outcome:
    """The gradients of inputs and parameters are the derivatives found by finite differences in float64.

    Where a surrogate gradient is declared, they are what the mechanism defines, and not those derivatives.
    """
    surrogate = subject.meta.surrogate_gradient
    if not subject.on_cpu and not surrogate:
        return not_applicable("finite differences need float64, which is checked on a cpu")
    checked, by_calculus = [], surrogate and subject.on_cpu
    for n, rows in ((5, 2),) if subject.quick else ((1, 1), (5, 2), (9, 3), (70, 1)):
        layer = subject.layer(dim=4, longest=80)
        batch = subject.batch(rows, n, dim=4)
        if rows > 1:
            lengths = [n] + [n - 2] * (rows - 1)
            context = None if batch.context is None else subject.right(batch.context.shape[1], lengths)
            batch = Batch(batch.x, batch.context, subject.right(n, lengths), context)
        if surrogate and (wrong := compared(subject, layer, batch)):
            return broken(wrong)
        names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
        values = [dict(layer.named_parameters())[name].detach().clone().requires_grad_() for name in names]
        inputs = list(batch.requiring_grad().leaves().values())

        def outputs(*given: Tensor, layer: Attention = layer, batch: Batch = batch, names: list[str] = names) -> Tensor:
            leaves, parameters = given[: len(given) - len(names)], given[len(given) - len(names) :]
            arguments = (leaves[0], leaves[1] if len(leaves) > 1 else None)
            masks = {"mask": batch.mask, "context_mask": batch.context_mask}
            y = torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), arguments, masks)
            return y if batch.mask is None else y[batch.mask]

        try:
            if subject.on_cpu:
                torch.autograd.gradcheck(outputs, (*inputs, *values), fast_mode=True, nondet_tol=1e-10)
        except GradcheckError as error:
            by_calculus = False
            if surrogate:
                checked.append(f"{rows}x{n}")
                continue
            return broken(f"at length {n} with {rows} rows: {_mismatch(error, [*batch.leaves(), *names])}")
        checked.append(f"{rows}x{n}")
    if by_calculus:
        return broken("a surrogate gradient is declared, but its gradients are the derivatives themselves")
    what = "its own definition" if surrogate else "finite differences"
    return kept(f"agrees with {what} at {', '.join(checked)} (rows x length)")


def _mismatch(error: GradcheckError, names: list[str]) -> str:
    """The first sentence of torch's error, with the input called by its name."""
    complaint = " ".join(str(error).split()).split(" The above quantities")[0]
    return re.sub(r"input (\d+)", lambda found: names[int(found[1])], complaint)[:200]


@promise("reference agreement")
def reference_agreement(subject: Subject) -> Outcome:
    """The fast path agrees in outputs and gradients with the mechanism's own reference, where it has one.

    A reference is a choice called `plain`, `reference` or `naive` of some option, or a method `reference` with the
    signature of `attend`.
    """
    slow = _reference_layer(subject)
    if slow is None:
        return not_applicable("it has neither a plain choice of an option nor a method called reference")
    layer, (twin, how) = subject.layer(), slow
    twin.load_state_dict(layer.state_dict())
    worst = 0.0
    for n in (1, 63, LONG):
        for batch in (subject.batch(3, n), subject.padded_batch(n)):
            real = slice(None) if batch.mask is None else batch.mask
            outputs = [subject.run(which, batch)[real] for which in (layer, twin)]
            worst = max(worst, apart := difference(*outputs))
            if not apart <= subject.tolerance:
                return broken(f"the output differs from {how} by {spell(apart)} at length {n}")
            fast, expected_gradients = gradients_of(subject, layer, batch), gradients_of(subject, twin, batch)
            size = max(float(g.abs().max()) for g in expected_gradients.values() if g is not None)
            for name, gradient in fast.items():
                expected = expected_gradients[name]
                gaps = [gradient, expected]
                if gradient is not None and expected is not None:
                    gaps = [gradient - expected]
                # relative to the largest of all gradients: some are zero up to rounding; a missing one counts as 0
                apart = max((float(gap.abs().max()) for gap in gaps if gap is not None), default=0.0) / (size or 1.0)
                worst = max(worst, apart)
                if not apart <= subject.tolerance:
                    return broken(f"the gradient of {name} differs from {how} by {spell(apart)} at length {n}")
    return kept(f"largest difference from {how} {spell(worst)}")


def _reference_layer(subject: Subject) -> tuple[Attention, str] | None:
    for option in own_options(subject.mechanism.cls, SHELL):
        for choice in REFERENCES:
            if repr(choice) in option.type and subject.mechanism.options.get(option.name, option.default) != choice:
                options = {**subject.mechanism.options, option.name: choice}
                twin = type(subject.mechanism)(subject.mechanism.cls, options, subject.mechanism.target)
                slow = Subject(twin, subject.pattern, subject.device, subject.dtype, subject.profile, subject.seed)
                return slow.layer(), str(Spec("", {option.name: choice})).strip("()")
    layer = subject.layer()
    if isinstance(layer, HeadwiseAttention) and hasattr(layer, "reference"):
        layer.attend = layer.reference  # pyright: ignore[reportAttributeAccessIssue]
        return layer, "its reference"
    return None

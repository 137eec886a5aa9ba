"""Lengths: any length works, and only a mechanism that says so may depend on a length fixed at construction."""

from dataclasses import replace

from longspan.attentions import Mechanism
from longspan.conformance.difference import difference, finite, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import LONG, SHORT, Subject
from longspan.conformance.surrogate import gradients_of

ODD = (1, 2, 63, 1000)


@promise("odd lengths")
def odd_lengths(subject: Subject) -> Outcome:
    """Lengths 1, 2, 63 and 1000 work, in cross patterns with a context shorter and longer than x."""
    lengths = ODD[:-1] if subject.quick else ODD
    pairs = [(n, n) for n in lengths]
    if subject.pattern.cross:
        pairs += [(1, lengths[-1]), (lengths[-1], 1), (2, 63), (63, 2)]
    layer = subject.layer(longest=max(lengths))
    for n, m in pairs:
        batch = subject.batch(2, n, m)
        y = subject.run(layer, batch)
        size = f"length {n} with a context of {m}" if subject.pattern.cross else f"length {n}"
        if y.shape != batch.x.shape:
            return broken(f"at {size} the output is {tuple(y.shape)}")
        if not finite(y):
            return broken(f"at {size} the output is not finite")
        wild = [name for name, g in gradients_of(subject, layer, batch).items() if not finite(g)]
        if wild:
            return broken(f"at {size} the gradient of {', '.join(wild)} is not finite")
    return kept("finite outputs and gradients at " + ", ".join(f"{n}x{m}" if n != m else str(n) for n, m in pairs))


@promise("length independence")
def length_independence(subject: Subject) -> Outcome:
    """The greatest length named at construction changes nothing, unless declared to, and then it does."""
    if subject.meta.length_bound:
        if found := _bound(subject):
            return kept(f"bound to the greatest length, as declared: {found}")
        usual = replace(subject, mechanism=Mechanism(subject.mechanism.cls, {}, subject.mechanism.target))
        if not subject.mechanism.options or not _bound(usual):  # an option such as a stride may lift the bound
            return broken("declared to be bound to a length, yet neither parameters nor outputs depend on max_length")
    free = subject.layer(longest=None)
    worst = 0.0
    for longest in (LONG + 5, 512):
        bound = subject.layer(longest=longest)
        bound.load_state_dict(free.state_dict())
        for n in (SHORT, LONG):
            batch = subject.padded_batch(n)
            worst = max(worst, apart := difference(subject.run(bound, batch), subject.run(free, batch)))
            if not apart <= subject.tolerance:
                return broken(f"with max_length={longest} the output differs from that without it by {spell(apart)}")
    return kept(f"largest difference with and without max_length {spell(worst)}")


def _bound(subject: Subject) -> str:
    """How the greatest length shows in the shapes of parameters or in outputs; empty where it does not."""
    short, long = (subject.layer(longest=longest) for longest in (LONG + 5, 1024))
    ours, theirs = short.state_dict(), long.state_dict()
    for name in ours:
        if name not in theirs or ours[name].shape != theirs[name].shape:
            return f"{name} changes its shape with it"
    if ours.keys() != theirs.keys():
        return "it decides which parameters there are"
    long.load_state_dict(ours)
    batch = subject.padded_batch(LONG)
    assert batch.mask is not None
    apart = difference(subject.run(long, batch)[batch.mask], subject.run(short, batch)[batch.mask])
    return "" if apart <= subject.tolerance else f"another one changes outputs by {spell(apart)}"

"""Contexts: x and the context each have their own maximum length."""

from longspan.conformance.difference import difference, finite, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import Subject

UNEQUAL = ((9, 75), (75, 9))  # of x and of the context, on either side of a block of 64


@promise("length of the context")
def length_of_the_context(subject: Subject) -> Outcome:
    """A layer built for a long x and a short context, or the other way round, works at both of its lengths."""
    if not subject.pattern.cross:
        return not_applicable("there is no context")
    worst = 0.0
    for longest, context in UNEQUAL:
        layer = subject.layer(longest=longest, longest_context=context)
        built = f"max_length={longest} and max_context={context}"
        batch = subject.batch(2, longest, context)
        y = subject.run(layer, batch)
        if y.shape != batch.x.shape or not finite(y):
            return broken(f"with {built} the output is {tuple(y.shape)}{'' if finite(y) else ' and not finite'}")
        if subject.meta.length_bound:
            continue
        roomy = subject.layer(longest=max(longest, context))
        roomy.load_state_dict(layer.state_dict())
        worst = max(worst, apart := difference(y, subject.run(roomy, batch)))
        if apart > subject.tolerance:
            return broken(f"with {built} the output differs by {spell(apart)} from that of a layer built for more")
    return kept(f"works at {' and '.join(f'{n}x{m}' for n, m in UNEQUAL)}, each the most it was built for")

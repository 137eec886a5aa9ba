"""Parameters: how many more than softmax attention in the same place.

Long Range Arena compares models of equal size, within 10 %. The rule is about whole models, so it is applied to an
encoder block (attention and a feed-forward part four times as wide) at width 512 with 8 heads and length 2048. A
mechanism declared as bound to a length has parameters that depend on it: its ratio is reported, and called broken only
where it is above 10 % at length 1 too. One that owns its block is compared with a whole block.
"""

from longspan import attentions
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import Subject

DIM, HEADS, LENGTH = 512, 8, 2048
MORE = 0.10


@promise("parameter overhead")
def parameter_overhead(subject: Subject) -> Outcome:
    """An encoder block grows by at most 10 % against softmax attention, unless parameters by length are declared."""
    own = _count(subject)
    softmax = _count(Subject(attentions.get("softmax"), subject.pattern))
    feed_forward = 2 * DIM * 4 * DIM + 5 * DIM
    norms = 2 * 2 * DIM
    block = softmax + feed_forward + norms
    expected = softmax + feed_forward + norms // 2 if subject.meta.owns_block else softmax
    more = (own - expected) / block
    size = f"width {DIM}, length {LENGTH}"
    whose = "softmax with its MLP" if subject.meta.owns_block else "softmax"
    figures = f"{own:,} parameters, {whose} has {expected:,}: {more:+.1%} of an encoder block ({size})"
    if more <= MORE:
        return kept(figures)
    if subject.meta.length_bound and (_count(subject, 1) - expected) / block <= MORE:
        return kept(f"{figures}; above +10 %, which its fixed length declares")
    return broken(f"{figures}; at most +10 % keeps models comparable")


def _count(subject: Subject, length: int = LENGTH) -> int:
    layer = subject.mechanism(DIM, HEADS, subject.pattern, max_length=length, max_context=length)
    return sum(parameter.numel() for parameter in layer.parameters())

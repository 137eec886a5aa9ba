"""States: a state can be kept, branched and reduced to some rows, as beam search and batched serving do."""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attentions import Attention
from longspan.conformance.decoding import NO_DECODING, masked, prefill, steps
from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept, not_applicable
from longspan.conformance.subject import DIM, Batch, Subject

SELECTIONS = ([1], [2, 0], [0, 2, 1, 0, 2])  # fewer rows, fewer in another order, more


@promise("selected rows")
def selected_rows(subject: Subject) -> Outcome:
    """Fewer or more rows of a state, with and without masks, go on as before, and choosing them alters nothing."""
    if not subject.pattern.causal:
        return not_applicable(NO_DECODING)
    layer, worst = subject.layer(), 0.0
    new = subject.noise(3, 3, DIM, draw="new")
    for masks, batch in {"without masks": subject.batch(3, 9, 70), "with masks": masked(subject, 9, False)}.items():
        for taken in (0, 1):  # steps before the rows are chosen
            expected, _ = steps(subject, layer, new, prefill(subject, layer, batch)[1])
            _, state = steps(subject, layer, new[:, :taken], prefill(subject, layer, batch)[1])
            for chosen in SELECTIONS:
                rows = torch.tensor(chosen, device=subject.device)
                stepped, _ = steps(subject, layer, new[rows, taken:], state.select(rows))
                worst = max(worst, apart := difference(stepped, expected[rows, taken:]))
                if apart > subject.tolerance:
                    return broken(f"rows {chosen} of 3, chosen {masks}, go on differently by {spell(apart)}")
            after, _ = steps(subject, layer, new[:, taken:], state)
            if (apart := difference(after, expected[:, taken:])) > subject.tolerance:
                return broken(f"after rows were chosen from it, the state itself goes on differently by {spell(apart)}")
    return kept(f"1, 2 and 5 of 3 rows go on as before, within {spell(worst)}")


@promise("state used again")
def state_used_again(subject: Subject) -> Outcome:
    """A step leaves the state it was given as it was: two branches from one state do not meet."""
    if not subject.pattern.causal:
        return not_applicable(NO_DECODING)
    layer, worst = subject.layer(), 0.0
    for n in (0, 9, 15, 63):  # also where the next token completes a chunk
        batch = subject.batch(2, n, 12)
        branches = [subject.noise(2, 3, DIM, draw=("branch", i)) for i in range(2)]
        expected = [_afresh(subject, layer, batch, branch) for branch in branches]
        states = [prefill(subject, layer, batch)[1]] * 2
        outputs: list[list[Tensor]] = [[], []]
        for t in range(3):  # alternating
            for i, branch in enumerate(branches):
                y, states[i] = steps(subject, layer, branch[:, t : t + 1], states[i])
                outputs[i].append(y)
        for i, found in enumerate(outputs):
            worst = max(worst, apart := difference(torch.cat(found, dim=1), expected[i]))
            if apart > subject.tolerance:
                which = ("first", "second")[i]
                return broken(f"the {which} of two branches after {n} tokens differs by {spell(apart)} from one alone")
    return kept(f"two branches from one state differ from each alone by at most {spell(worst)}")


def _afresh(subject: Subject, layer: Attention, batch: Batch, branch: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
    return steps(subject, layer, branch, prefill(subject, layer, batch)[1])[0]

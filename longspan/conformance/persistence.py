"""Persistence: what was trained is what is loaded, and evaluation is deterministic."""

import torch

from longspan.conformance.difference import difference, spell
from longspan.conformance.promise import promise
from longspan.conformance.report import Outcome, broken, kept
from longspan.conformance.subject import LONG, Subject


@promise("save and load")
def save_and_load(subject: Subject) -> Outcome:
    """The state dict, saved and loaded into a layer built from another seed, gives the same outputs."""
    from safetensors.torch import load, save

    layer, batch = subject.layer(), subject.padded_batch(LONG)
    state = {name: value.detach().cpu().clone().contiguous() for name, value in layer.state_dict().items()}
    stranger = subject.layer(draw=1)
    stranger.load_state_dict(load(save(state)) if state else {})
    expected, found = subject.run(layer, batch), subject.run(stranger, batch)
    apart = difference(found, expected)
    if apart > (0 if subject.on_cpu else subject.tolerance):
        return broken(f"a layer loaded from the saved state differs by {spell(apart)}; keep what it needs in buffers")
    return kept(f"same output from {len(state)} saved tensors")


@promise("evaluation determinism")
def evaluation_determinism(subject: Subject) -> Outcome:
    """Evaluating twice agrees to the bit, whatever the random state, and uses up no random numbers."""
    layer, batch = subject.layer(), subject.padded_batch(LONG)
    torch.manual_seed(1)
    first = subject.run(layer, batch)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second = subject.run(layer, batch)
    if not torch.equal(torch.random.get_rng_state(), state):
        return broken("evaluation draws random numbers")
    apart = difference(second, first)
    if apart > (0 if subject.on_cpu else subject.tolerance):
        return broken(f"two evaluations under different random states differ by {spell(apart)}")
    if apart > 0:
        return kept(f"two evaluations differ by {spell(apart)} at most")
    return kept("two evaluations agree to the bit")

"""Path-X transfer: does a model trained on Pathfinder's small images answer the large ones? (appendix A.3.1 of LRA)

The network is rebuilt for the longer sequence, with the sizes of the run, and loads its weights. Sinusoidal positions
extend beyond the training length; learned ones do not, and neither do mechanisms bound to a length.
"""

from dataclasses import replace

import numpy as np
import torch

from longspan import tasks
from longspan.core.errors import UsageError
from longspan.probes.base import Answer, TrainedModel, choose

SAMPLES = 1000
TARGET = "pathx"
ERRORS = 3.0  # above chance means by three standard errors
METHOD = (
    "The weights of the run in a network built for the longer sequence, sinusoid positions extended, evaluated on the "
    "test set without further training."
)


def ask(trained: TrainedModel, *, samples: int | None = SAMPLES, seed: int = 0) -> Answer:
    trained.must_be_of(("pathfinder",), "Only a model trained on Pathfinder can be transferred to Path-X")
    target = tasks.get(TARGET)
    rules = target.protocol(trained.run["protocol"], trained.run["tier"])
    protocol = replace(rules, model=trained.protocol.model)
    if protocol.model.positions == "learned":
        raise UsageError(
            f"The run learned {trained.task.longest(trained.protocol)} positions and Path-X needs "
            f"{target.longest(protocol)}; only sinusoid positions can be extended, so name the card of such a run."
        )
    if trained.mechanism.meta.length_bound:
        raise UsageError(
            f"{trained.mechanism} is bound to the length it was built for, so its weights do not fit Path-X; "
            "name the card of a run with another mechanism."
        )
    model = target.model(trained.mechanism, protocol)
    try:
        model.load_state_dict(trained.model.state_dict())
    except RuntimeError as error:
        raise UsageError(
            f"The weights of {trained.mechanism} do not fit a longer sequence ({str(error).splitlines()[0]}); "
            "name the card of a run with another mechanism."
        ) from error
    model = model.to(trained.device).eval()
    whole = target.splits(protocol, trained.data).test
    rows = choose(len(whole), samples, seed)
    split = whole.rows(rows)
    with torch.no_grad():
        outcome = target.evaluate(model, target.feed(split, protocol, trained.device), np.arange(len(rows)), 1)
    chance = target.chance(split)
    assert chance is not None  # Path-X has classes
    return Answer(
        method=METHOD,
        results=_verdict(outcome.metrics["accuracy"], chance, len(rows))
        | {"from_length": trained.task.longest(trained.protocol), "to_length": target.longest(protocol)}
        | {"from_accuracy": trained.run["score"]["value"], "from_chance": trained.run["score"]["chance"]},
        settings={"task": TARGET, "split": "test", "samples": len(rows), "seed": seed},
    )


def _verdict(accuracy: float, chance: float, count: int) -> dict:
    error = (chance * (1 - chance) / count) ** 0.5
    above = accuracy > chance + ERRORS * error
    return {"accuracy": accuracy, "chance": chance, "count": count, "standard_error": error, "above_chance": above}

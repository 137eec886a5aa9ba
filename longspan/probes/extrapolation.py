"""Interpolation and extrapolation: the perplexity of a language model at other lengths than in training (CAB, 3c).

The test text is cut into blocks of each length, none overlapping, and a token sees nothing before its own block. All
lengths read the same tokens: as many as fill whole blocks of each. Beyond the training length the network is rebuilt
for the longer sequence and loads the weights; where they do not fit, the point says why.
"""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn

from longspan.backbones.slots import Slots
from longspan.core.errors import LongspanError, UsageError
from longspan.datasets.pg19 import Stream
from longspan.probes.base import Answer, TrainedModel

SAMPLES = None  # stretches of text that whole blocks of every length fill
SHARES = (*(Fraction(1, 2**k) for k in (5, 4, 3, 2, 1, 0)), Fraction(3, 2), Fraction(2))  # 256 to 16,384 of 8,192
METHOD = (
    "Token-weighted perplexity of the test text in non-overlapping blocks of each length, no context before a block; "
    "the same tokens at every length."
)


def ask(trained: TrainedModel, *, samples: int | None = SAMPLES, seed: int = 0) -> Answer:
    """Nothing is drawn: `samples` stretches of text are read from the start."""
    trained.must_be_of(("lm",), "Perplexity by length is asked of a language model")
    trained_length = trained.protocol.data.length
    exact = (share * trained_length for share in SHARES)
    lengths = [int(length) for length in exact if length >= 1 and length.denominator == 1]
    test = trained.splits.test
    assert isinstance(test, Stream)
    stretch = math.lcm(*lengths)
    count = len(test.tokens) // stretch
    count = count if samples is None else min(count, samples)
    if count < 1:
        raise UsageError(
            f"The test text has {len(test.tokens):,} tokens, too few for whole blocks of every length up to "
            f"{lengths[-1]:,}, which fill {stretch:,}; name the card of a run at a smaller length."
        )
    text = test.first(count * stretch)
    points = [_point(trained, text.blocks(length), length) for length in lengths]
    return Answer(
        method=METHOD,
        results={"trained_length": trained_length, "tokens": len(text.tokens), "points": points},
        settings={"split": "test", "samples": count},
    )


def _point(trained: TrainedModel, text: Stream, length: int) -> dict[str, Any]:
    """The perplexity at one length, or the sentence that says why there is none."""
    try:
        found = _perplexity(trained, text, length)
    except torch.OutOfMemoryError:
        return {"length": length, "perplexity": None, "reason": f"out of memory on {trained.device.type}"}
    except LongspanError as error:
        return {"length": length, "perplexity": None, "reason": str(error)}
    return {"length": length, "perplexity": found, "reason": None}


def _perplexity(trained: TrainedModel, text: Stream, length: int) -> float:
    rules = trained.protocol
    protocol = replace(rules, data=replace(rules.data, length=length))
    model = trained.model if length <= rules.data.length else _longer(trained, protocol)
    feed = trained.task.feed(text, protocol, trained.device)
    rows = np.arange(len(feed))
    assert set(text.lengths.tolist()) == {length} == {feed.batch(rows[:1]).tokens.shape[1]}
    together = max(1, rules.recipe.evaluation_batch * rules.data.length // length)
    with torch.no_grad():
        return trained.task.evaluate(model, feed, rows, together).metrics["perplexity"]


def _longer(trained: TrainedModel, protocol: Any) -> nn.Module:
    patterns = frozenset(trained.task.patterns(trained.run["pattern"]))
    slots = Slots(trained.mechanism, patterns, trained.task.others(protocol))
    model = trained.task.model(slots, protocol)
    try:
        model.load_state_dict(trained.model.state_dict())
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise UsageError(
            f"{trained.mechanism} is bound to the {trained.protocol.data.length:,} tokens of training: its weights do "
            f"not fit {protocol.data.length:,} ({first})"
        ) from error
    return model.to(trained.device).eval()

"""Questions asked of a trained model, one per file; `ask.py` asks them and saves the answers as cards."""

import importlib
from typing import Protocol, runtime_checkable

from longspan.core.errors import UnknownName, did_you_mean
from longspan.probes.base import Answer, TrainedModel

QUESTIONS = {
    "span": "how far from a token lies what it attends to?",
    "rollout": "which pixels of an image does the answer come from?",
    "embeddings": "which intensities and which positions look alike to the model?",
    "transfer": "does a model trained on Pathfinder answer Path-X?",
    "extrapolation": "what is the perplexity of a language model at other lengths than in training?",
    "gap": "how much better is the model on what it was trained on?",
}


@runtime_checkable
class Question(Protocol):
    """A file of this folder."""

    SAMPLES: int | None  # examples looked at by default; None means all

    def ask(self, trained: TrainedModel, *, samples: int | None, seed: int) -> Answer: ...


def get(name: str) -> Question:
    if name not in QUESTIONS:
        raise UnknownName(f"No question named {name!r} to ask of a model.{did_you_mean(name, QUESTIONS)}")
    return importlib.import_module(f"longspan.probes.{name}")  # type: ignore[return-value]


__all__ = ["QUESTIONS", "Answer", "Question", "TrainedModel", "get"]

"""Vectors of random feature attention: the three paths of the authors' code, whose denominators differ."""

from longspan.attentions import Pattern
from tests.attentions.parity import Replay, Vector, headwise

CAUSAL = {"prefix": "positive", "incremental": "positive", "masked": "absolute"}


def replay(vector: Vector) -> Replay:
    of = vector.meta["hyperparameters"]
    denominator = CAUSAL[of["implementation"]] if vector.pattern is Pattern.CAUSAL_SELF else "absolute"
    sizes = f"features={of['features']}, tau={of['tau']}, scale={of['SCALE']}, floor={of['clamp']}"
    parameters = {"sigma": "param_sigma", "projection": "param_random_matrices"}
    return headwise(f"rfa({sizes}, denominator={denominator})", vector, parameters)

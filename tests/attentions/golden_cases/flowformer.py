"""Vectors of Flowformer: the authors' generic file, causal or not."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    settings = vector.meta["hyperparameters"]
    return headwise(f"flowformer(eps={settings['eps']}, clamp={float(settings.get('clamp', 1))})", vector)

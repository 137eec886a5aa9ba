"""Vectors of SB-local: the authors' code, with its projection recorded."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if sizes.get("softmax_eps"):
        return "eps is added to its features, which are no longer unbiased"
    temperature, rows = sizes["softmax_temp"], len(vector.arrays["param_projection_matrix"])
    if sizes["nb_features"] not in (None, 2 * rows, 2 * rows + 1):  # an odd one is rounded down
        return f"its meta contradicts itself: {sizes['nb_features']} features of {rows} rows and their opposites"
    options = {
        "window": sizes["local_context"],
        "features": 2 * rows,
        "scale": None if temperature in (None, "1/sqrt(D)") else float(temperature),
    }
    spec = f"scatterbrain({', '.join(f'{name}={value}' for name, value in options.items())})"
    return headwise(spec, vector, {"projection": "param_projection_matrix"})

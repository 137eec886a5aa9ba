"""Vectors of FAVOR+: the authors' code, and the port that most people ran."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if vector.name == "performer__ns_pad_values_only":
        return "padded keys stay in the denominator and in the maximum there, which breaks the padding law"
    options = {"features": sizes["features"]}
    if "kernel" in sizes:
        options |= {"kernel": sizes["kernel"], "eps": sizes["kernel_eps"]}
    else:
        options |= {"eps": sizes["eps"], "release": "authors" if vector.name.endswith("_google") else "port"}
    inside = ", ".join(f"{name}={value}" for name, value in options.items())
    return headwise(f"performer({inside})", vector, {"projection": "param_projection"})

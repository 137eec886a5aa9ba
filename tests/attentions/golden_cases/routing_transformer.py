"""Vectors of the Routing Transformer: the PyTorch package, whose token choice depends on the future and on padding."""

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    options = {
        "clusters": sizes["num_clusters"],
        "window": sizes["window_size"],
        "context_window": sizes["context_window_size"] or sizes["window_size"],
        "memory": sizes["num_mem_kv"],
    }
    released = sizes["causal"] or sizes["shared_qk"] or vector.key_mask is not None
    options |= {"shared": sizes["shared_qk"]} if released else {"eps": 1e-5}
    name = "pypi_routing_transformer" if released else "routing_transformer"
    arrays = {"means": "param_means"}
    if sizes["num_mem_kv"]:
        arrays |= {"memory_k": "param_mem_key", "memory_v": "param_mem_value"}
    return headwise(f"{name}({', '.join(f'{option}={value}' for option, value in options.items())})", vector, arrays)

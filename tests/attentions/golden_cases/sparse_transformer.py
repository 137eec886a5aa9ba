"""Vectors of the Sparse Transformer: OpenAI's two attentions apart, LRA's merged ones, and bare masks."""

from dataclasses import replace

from tests.attentions.parity import Replay, Vector, headwise


def replay(vector: Vector) -> Replay | str:
    sizes = vector.meta["hyperparameters"]
    if "q" not in vector.arrays:
        return "a bare mask without queries and keys; test_sparse_transformer.py compares it"
    if vector.name.endswith("_lra_fixed"):  # with the first token of a block: the release's own addition
        encoder = replace(vector, meta={**vector.meta, "pattern": "NS"})
        return headwise("lra_sparse_transformer(block=6, summary=2, cls=False)", encoder)
    if vector.name.endswith("_lra_strided_pad"):
        return headwise("sparse_transformer(kind=strided, stride=5)", vector)
    part = {"local": "near", "strided": "far"}[sizes["mode"]]
    return headwise(f"sparse_transformer(kind=strided, stride={sizes['local_attn_ctx']}, part={part})", vector)

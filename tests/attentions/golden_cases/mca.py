"""Vectors of memory-compressed attention: the common PyTorch package, whose masks are inverted."""

from tests.attentions.parity import Replay, Vector, agree, headwise

PARAMETERS = {
    "compress.weight": "param_conv_weight",
    "compress.bias": "param_conv_bias",
    "null_key": "param_null_k",
    "null_value": "param_null_v",
}


def replay(vector: Vector) -> Replay:
    agree(vector, defect=vector.key_mask is not None)
    return headwise(
        f"lucidrains_mca(factor={vector.meta['hyperparameters']['compression_factor']})", vector, PARAMETERS
    )

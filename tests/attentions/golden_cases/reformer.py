"""Vectors of LSH attention: Hugging Face's code, whose chunks mix tokens of different buckets."""

from longspan import attentions
from longspan.attentions.released.hf_reformer import HFReformer
from tests.attentions.parity import Contradiction, Replay, Vector


def replay(vector: Vector) -> Replay:
    sizes = vector.meta["hyperparameters"]
    spec = (
        f"hf_reformer(rounds={sizes['hashes']}, buckets={sizes['buckets']}, chunk={sizes['chunk']}, "
        f"chunks_before={sizes['chunks_before']}, chunks_after={sizes['chunks_after']})"
    )
    width = sizes["heads"] * sizes["head_dim"]
    layer = attentions.get(spec)(width, sizes["heads"], vector.pattern).to(vector.dtype).eval()
    assert isinstance(layer, HFReformer)
    if layer.rotations.shape != vector.arrays["param_rotations"].shape:
        raise Contradiction(f"rotations are {tuple(layer.rotations.shape)} by its meta; others are recorded")
    layer.rotations.copy_(vector.arrays["param_rotations"])
    return Replay(spec, lambda arrays: layer.attend(arrays["q"], arrays["v"], mask=vector.key_mask))

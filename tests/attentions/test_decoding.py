"""Decoding bfloat16 tokens, as a previous layer would produce, under autocast with float32 weights."""

import pytest
import torch

from longspan import attentions
from longspan.attentions import Pattern

CAUSAL = [name for name in attentions.names() if Pattern.CAUSAL_SELF in attentions.get(name).meta.patterns]
CAUSAL.remove("informer_probsparse")  # rounding decides which queries attend, and the others get a sum, not a mean
CAUSAL.remove("yoso")  # rounding decides which hashes agree; test_yoso.py tests what follows from them


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_tokens_in_bfloat16_decode_to_nearly_the_same(name):
    torch.manual_seed(0)
    layer = attentions.get(name)(32, 2, Pattern.CAUSAL_SELF, max_length=64).eval()
    context, tokens = torch.randn(2, 20, 32).bfloat16(), torch.randn(24, 2, 32).bfloat16()
    _, exact = layer.prefill(context.float())
    with torch.autocast("cpu", torch.bfloat16):
        _, state = layer.prefill(context)
    for token in tokens:  # across the boundaries of blocks and chunks
        fine, exact = layer.step(token.float(), exact)
        with torch.autocast("cpu", torch.bfloat16):
            coarse, state = layer.step(token, state)
        assert (coarse - fine).norm() <= 0.1 * fine.norm()

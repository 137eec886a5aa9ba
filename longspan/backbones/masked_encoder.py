"""The encoder of Long Range Arena as a model of masked tokens: hide some of a row, predict them from the rest.

    logits = W norm(blocks(x~)) + b      x~ has one learned vector in place of every hidden token

It wraps an encoder and trains its weights; only the vector, W and b are its own.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.backbones.encoder_classifier import INTENSITIES, EncoderClassifier
from longspan.kernels.packing import Rows


class MaskedEncoder(nn.Module):
    def __init__(self, encoder: EncoderClassifier):
        super().__init__()
        self.encoder = encoder
        sizes, device = encoder.sizes, next(encoder.parameters()).device
        words = encoder.embedding.num_embeddings if isinstance(encoder.embedding, nn.Embedding) else INTENSITIES
        self.cover = nn.Parameter(torch.randn(sizes.dim, device=device) * sizes.embedding_std)
        self.predict = nn.Linear(sizes.dim, words, device=device)

    def forward(
        self, tokens: Int[Tensor, "rows n"], lengths: Rows | list[int] | None, covered: Bool[Tensor, "rows n"]
    ) -> tuple[Float[Tensor, "*tokens words"], Int[Tensor, "*tokens"], Bool[Tensor, "*tokens"]]:
        """Logits at every token, the tokens, and which of them are to be predicted."""
        encoder = self.encoder
        tokens, lengths = encoder.prepared(tokens, lengths)
        front = int(encoder.cls is not None)
        covered = nn.functional.pad(covered[: len(tokens)], (front, tokens.shape[1] - covered.shape[1] - front))
        x, layout, mask = encoder.states(tokens, lengths, covered, self.cover)
        if mask is not None:
            covered = covered & mask
        if layout is not None and lengths is not None:
            real = layout.index < lengths.count * layout.mask.shape[1]  # the last row may be filler
            tokens, covered = layout.pack(tokens), layout.pack(covered) & real
        known = tokens.long().clamp(max=self.predict.out_features - 1)  # the class token is never predicted
        return self.predict(x), known, covered

"""A backbone of one's own, whole: post-norm blocks over one kind of slot, the mean of real tokens, a linear head.

longspan check my_backbone.py:PostNormClassifier
longspan run listops -a softmax linear --backbone my_backbone.py:PostNormClassifier
"""

from torch import nn

from longspan.attentions import Pattern


class PostNormClassifier(nn.Module):
    def __init__(self, attention, sizes, *, vocabulary, classes, length):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, sizes.dim)
        self.positions = nn.Embedding(length, sizes.dim)
        self.blocks = nn.ModuleList(Block(attention, sizes, length) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.dim, classes)

    def forward(self, tokens, rows=None):
        """Tokens [b n], 0 where a row has none -> logits [b classes]; on a GPU a last row may be there to fill up."""
        tokens = tokens if rows is None else tokens[: rows.count]
        x, mask = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]], tokens > 0
        for block in self.blocks:
            x = block(x, mask)
        weight = mask[..., None] / mask.sum(dim=1).clamp(min=1)[:, None, None]
        return self.head((x * weight).sum(dim=1))


class Block(nn.Module):
    def __init__(self, attention, sizes, length):
        super().__init__()
        self.attention = attention(sizes.dim, sizes.heads, Pattern.NONCAUSAL_SELF, max_length=length)  # the slot
        self.mlp = nn.Sequential(nn.Linear(sizes.dim, sizes.mlp), nn.GELU(), nn.Linear(sizes.mlp, sizes.dim))
        self.norms = nn.ModuleList(nn.LayerNorm(sizes.dim) for _ in range(2))

    def forward(self, x, mask):
        x = self.norms[0](x + self.attention(x, mask=mask))
        return self.norms[1](x + self.mlp(x))

"""Pictures of what attends to what, for the site: longspan/report/attention_maps.json.

    python docs/make_attention_maps.py             # all of them, a few minutes
    python docs/make_attention_maps.py performer   # those of one; the others are unchanged

There is one for each mechanism and pattern. Every picture is an impulse response, so mechanisms with and without a
weight matrix are drawn alike: a block of tokens is perturbed, and the picture shows how far every block of outputs
moves. Tokens are of four kinds in runs, and queries and keys share their projection, so like attends to like where
content decides. Options are the defaults. The site needs no torch: it reads the file.
"""

import base64
import json
import struct
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor

from longspan import attentions
from longspan.attentions import Attention, Pattern
from longspan.attentions.base import HeadwiseAttention
from longspan.core import atomic

FILE = Path(__file__).parents[1] / "longspan" / "report" / "attention_maps.json"
TOKENS, CELLS = 1024, 64  # tokens of a sequence, and blocks of tokens along a side of the picture
WIDTH, HEADS, KINDS, RUN = 32, 2, 4, 64
TOGETHER = 8  # perturbed sequences in a batch
NUDGE = 1e-6  # too little to move a token into another bucket


def impulse_response(layer: Attention, x: Tensor, context: Tensor | None) -> Tensor:
    """How far each block of outputs moves when a block of the attended sequence is perturbed, [cells cells]."""
    seen = x if context is None else context
    size = TOKENS // CELLS
    direction = torch.randn_like(seen)
    columns = []
    with torch.no_grad():
        together = x.repeat(TOGETHER, 1, 1)  # the same batch size and layout, so rounding is the same
        still = layer(together, None if context is None else context.repeat(TOGETHER, 1, 1))
        for start in range(0, CELLS, TOGETHER):
            nudged = seen.repeat(TOGETHER, 1, 1)
            for place in range(TOGETHER):
                block = slice((start + place) * size, (start + place + 1) * size)
                nudged[place, block] += NUDGE * direction[0, block]
            inputs = (nudged, None) if context is None else (together, nudged)
            moved = (layer(*inputs) - still).square().mean(-1)
            columns.append(moved.unflatten(1, (CELLS, size)).mean(-1).sqrt())
    return torch.cat(columns).mT / NUDGE


def tokens(seed: int) -> Tensor:
    """Four kinds of tokens in runs, with noise."""
    random = torch.Generator().manual_seed(seed)
    kinds = 2 * torch.randn(KINDS, WIDTH, generator=random, dtype=torch.float64)
    kind = torch.arange(TOKENS) // RUN % KINDS
    return (kinds[kind] + torch.randn(TOKENS, WIDTH, generator=random, dtype=torch.float64))[None]


def drawn(name: str, pattern: Pattern) -> str:
    """The picture of a mechanism as a PNG in base64."""
    torch.manual_seed(0)
    layer = attentions.get(name)(WIDTH, HEADS, pattern, max_length=TOKENS, max_context=TOKENS).double().eval()
    if isinstance(layer, HeadwiseAttention) and layer.key.weight.shape == layer.query.weight.shape:
        layer.key.load_state_dict(layer.query.state_dict())
    x = tokens(1)
    response = impulse_response(layer, x, tokens(1) if pattern.cross else None)
    apart = response[~torch.eye(CELLS, dtype=torch.bool)] if not pattern.cross else response.flatten()
    brightest = torch.quantile(apart, 0.99).item() or response.max().item() or 1.0
    strength = (response / brightest).clamp(0, 1).sqrt()
    return base64.b64encode(png((15 * strength).round().byte())).decode()


def png(levels: Tensor) -> bytes:
    """Sixteen opacity levels of black, so that a page can give the picture any colour."""
    height, width = levels.shape
    packed = (levels[:, ::2] << 4) | levels[:, 1::2]
    rows = b"".join(b"\0" + bytes(row.tolist()) for row in packed)
    opacity = bytes(17 * level for level in range(16))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)
    parts = (
        (b"IHDR", head),
        (b"PLTE", bytes(48)),
        (b"tRNS", opacity),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def main(names: list[str]) -> None:
    maps = json.loads(FILE.read_text(encoding="utf-8"))["maps"] if names and FILE.exists() else {}
    for name in names or attentions.names():
        print(name, flush=True)
        maps[name] = {str(pattern): drawn(name, pattern) for pattern in attentions.get(name).meta.patterns}
    atomic.write_json(FILE, {"schema": 1, "tokens": TOKENS, "cells": CELLS, "maps": dict(sorted(maps.items()))})


if __name__ == "__main__":
    main(sys.argv[1:])

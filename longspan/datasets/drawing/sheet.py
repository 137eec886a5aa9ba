"""A contact sheet: images side by side, each with a line of words below it."""

import io
from pathlib import Path

import numpy as np


def contact_sheet(images: list[np.ndarray], captions: list[str], path: Path, columns: int = 4) -> Path:
    """Draw gray images [side side], enlarged and in rows, into a PNG file."""
    from PIL import Image, ImageDraw

    from longspan.core.atomic import write_bytes

    side = images[0].shape[0]
    scale = max(1, 256 // side)
    cell, caption, gap = side * scale, 18, 10
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    sheet = Image.new("L", (gap + columns * (cell + gap), gap + rows * (cell + caption + gap)), 235)
    pen = ImageDraw.Draw(sheet)
    for i, (image, words) in enumerate(zip(images, captions, strict=True)):
        x, y = gap + (i % columns) * (cell + gap), gap + (i // columns) * (cell + caption + gap)
        sheet.paste(Image.fromarray(image).resize((cell, cell), Image.Resampling.NEAREST), (x, y))
        pen.text((x, y + cell + 4), words, fill=0)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_bytes(path, content.getvalue())
    return path

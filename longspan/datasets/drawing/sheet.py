"""A contact sheet: images side by side, each with a line of words below it."""

import io
from pathlib import Path

import numpy as np


def contact_sheet(images: list[np.ndarray], captions: list[str], path: Path, columns: int = 4) -> Path:
    """Draw images [height width], gray, or with a last axis of three colours, enlarged and in rows, into a PNG file."""
    from PIL import Image, ImageDraw

    from longspan.core.atomic import write_bytes

    height, width = images[0].shape[:2]
    scale = max(1, 256 // height)
    high, wide, caption, gap = height * scale, width * scale, 18, 10
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    size = gap + columns * (wide + gap), gap + rows * (high + caption + gap)
    sheet = Image.new("RGB", size, (235, 235, 235)) if images[0].ndim == 3 else Image.new("L", size, 235)
    pen = ImageDraw.Draw(sheet)
    for i, (image, words) in enumerate(zip(images, captions, strict=True)):
        x, y = gap + (i % columns) * (wide + gap), gap + (i // columns) * (high + caption + gap)
        sheet.paste(Image.fromarray(image).resize((wide, high), Image.Resampling.NEAREST), (x, y))
        pen.text((x, y + high + 4), words, fill=0)
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_bytes(path, content.getvalue())
    return path

"""Strips of square pictures that a recipe has written, as single pictures for a page."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path

from PIL import Image

LARGEST = 512  # pixels of a tile a side


def tiles(file: Path, most: int) -> list[str]:
    """The first square tiles of a strip as data URIs, encoded anew: nothing else of the file gets through."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=["PNG"]) as strip:
            side = strip.height
            if side > LARGEST or strip.width > 100 * LARGEST:
                raise ValueError(f"{file.name} is too large ({strip.width}x{strip.height})")
            image = strip.convert("L" if strip.mode in ("1", "L") else "RGB")
    for place in range(min(most, image.width // side)):
        content = io.BytesIO()
        image.crop((place * side, 0, (place + 1) * side, side)).save(content, "PNG", optimize=True)
        found.append("data:image/png;base64," + base64.b64encode(content.getvalue()).decode())
    return found

"""Strips of square images that a recipe has saved as PNG."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

LARGEST = 512  # pixels of a tile a side


class BadStrip(ValueError):
    """A file is no strip of tiles."""


def read_tiles(file: Path, most: int) -> np.ndarray:
    """The first square tiles of a strip, (tiles, side, side, 3), 0 to 255.

    Raises:
        FileNotFoundError: there is no such file.
        BadStrip: it cannot be read, or is too large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=["PNG"]) as strip:
                side = strip.height
                if side > LARGEST or strip.width > 100 * LARGEST:
                    raise BadStrip(f"{file.name} is too large ({strip.width}x{strip.height})")
                pixels = np.asarray(strip.convert("RGB"))
    except (FileNotFoundError, BadStrip):
        raise
    except (OSError, ValueError, SyntaxError, Warning) as error:  # Pillow raises all of these for bad files
        raise BadStrip(f"{file.name} cannot be read ({type(error).__name__})") from error
    count = min(most, pixels.shape[1] // side)
    return pixels[:, : count * side].reshape(side, count, side, 3).swapaxes(0, 1)


def tile_uri(tile: np.ndarray) -> str:
    """A tile as a data URI, encoded anew: nothing else of its file gets through."""
    content = io.BytesIO()
    Image.fromarray(tile).save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()

"""Images as files and as base64, for the tests of the playground."""

import base64
import io
import struct
import zlib

import numpy as np
from PIL import Image


def pattern(width: int = 300, height: int = 260) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x % 256, y % 256, (x // 20 + y // 20) % 2 * 255], 2).astype(np.uint8))


def encode(image: Image.Image, kind: str = "PNG", **settings) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def header_only(width: int, height: int) -> bytes:
    """A PNG file with a size and no pixels."""
    chunks = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT"
    parts = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def from_base64(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8)

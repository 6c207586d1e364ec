"""The file formats of MNIST and CIFAR-10: idx, PNG with an image in every row, lists of labels. No torch."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes, the format of MNIST.

    Returns:
        A uint8 array of the shape in the file's header.

    Raises:
        ValueError: the file has another format, is truncated or too long.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = Path(file.name).write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6]))
    ...     read_idx(Path(file.name))
    array([[1, 2, 3],
           [4, 5, 6]], dtype=uint8)
    """
    content = np.fromfile(path, np.uint8)
    start = content[:4].tobytes()
    if len(start) < 4 or start[:3] != b"\0\0\x08" or not 1 <= start[3] <= 32:
        raise ValueError(f"{path} is no idx file of bytes: it starts with {list(start)}, expected [0, 0, 8, 1 to 32]")
    header = 4 + 4 * start[3]
    if len(content) < header:
        raise ValueError(f"{path} is truncated: it has {len(content)} bytes, its header alone {header}; get it again")
    shape = struct.unpack(f">{start[3]}I", content[4:header].tobytes())
    size = header + math.prod(shape)
    if len(content) != size:
        raise ValueError(f"{path} is truncated or too long: it has {len(content)} bytes, expected {size}; get it again")
    return content[header:].reshape(shape)


def mnist_from_csv(path: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Convert a CSV file to MNIST's two idx files; after a header line, a line is the label and 784 pixels."""
    table = np.loadtxt(io.BytesIO(content), np.uint8, delimiter=",", skiprows=1)
    part = "train" if "train" in path else "t10k"
    yield f"{part}-images-idx3-ubyte", struct.pack(">4I", 0x0803, len(table), 28, 28) + table[:, 1:].tobytes()
    yield f"{part}-labels-idx1-ubyte", struct.pack(">2I", 0x0801, len(table)) + table[:, 0].tobytes()


def read_png_batch(path: Path, *, count: int, side: int) -> np.ndarray:
    """Read a PNG file that holds a colour image in every row of pixels, the format of our source of CIFAR-10.

    Returns:
        A uint8 array of shape (count, 3, side, side).

    Raises:
        ValueError: the file has another format or size, or is damaged.
    """
    try:
        with Image.open(path, formats=["PNG"]) as image:  # reads the header only
            found, wanted = (image.mode, *image.size), ("RGB", side * side, count)
            if found == wanted:
                pixels = np.array(image).reshape(count, side, side, 3)
                return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as PNG: {error}; get it again") from error
    raise ValueError(f"{path} holds {found} (mode, width, height), expected {wanted}: it is another file")


def read_labels(path: Path, *, count: int, classes: int) -> np.ndarray:
    """Read a JSON list of `count` labels from 0 to `classes` - 1.

    Raises:
        ValueError: it holds anything else.
    """
    try:
        labels = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}; get it again") from error
    if not isinstance(labels, list) or len(labels) != count or not {*map(repr, labels)} <= {*map(repr, range(classes))}:
        raise ValueError(f"{path} must hold a list of {count} labels from 0 to {classes - 1}: it is another file")
    return np.array(labels, np.int64)

"""Answers with thumbnails as one HTML file that asks nothing of any network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from patchreorder import __version__
from patchreorder.data.images import BadImage, decode
from patchreorder.files import write_whole
from patchreorder.untrusted import clean

THUMBNAIL = 160  # pixels of the longer side


class Tile(NamedTuple):
    """A picture on the page."""

    file: Path
    name: str  # as it is shown
    notes: Sequence[str] = ()


class Row(NamedTuple):
    """A line of pictures, perhaps after the one that was asked about."""

    title: str
    tiles: Sequence[Tile]
    query: Tile | None = None


def need_jinja() -> None:
    """Raise an ImportError that says what to install, before anything is read."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise ImportError("the page needs jinja2: pip install 'patchreorder[report]'") from None


def write(file: Path, rows: Sequence[Row], *, title: str, about: Sequence[str] = ()) -> None:
    """Write the page, whole or not at all."""
    write_whole(file, render(rows, title=title, about=about).encode())


def render(rows: Sequence[Row], *, title: str, about: Sequence[str] = ()) -> str:
    """The page of these pictures; names and texts may be anybody's."""
    need_jinja()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clean": clean, "thumbnail": thumbnail}
    template = environment.get_template("page.html.j2")
    return template.render(rows=rows, title=title, about=about, version=__version__)


def thumbnail(file: Path) -> str:
    """A small upright JPEG of a picture as a data URI, encoded anew; nothing if it cannot be read."""
    try:
        image = decode(file.read_bytes(), name=file.name, short=THUMBNAIL)
    except (BadImage, OSError):
        return ""
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()

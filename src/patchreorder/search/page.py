"""Search results with thumbnails as one HTML file that loads nothing from a network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from patchreorder import __version__
from patchreorder.data.images import BadImage, decode
from patchreorder.files import write_whole
from patchreorder.untrusted import clean

from .index import Hit

SIDE = 160  # pixels of the longer side of a thumbnail


class Thumbnail(NamedTuple):
    """An image on the page."""

    file: Path
    name: str  # as it is shown
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, hit: Hit, root: Path) -> Thumbnail:
        """A hit, with its distance and pose."""
        return cls(root / hit.name, hit.name, [f"{hit.distance:.3f}", *([hit.pose] if hit.pose else [])])


class Section(NamedTuple):
    """A line of images, after the query if there is one."""

    title: str
    images: Sequence[Thumbnail]
    query: Thumbnail | None = None


def need_jinja() -> None:
    """Raise an ImportError that says what to install."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise ImportError("the page needs jinja2: pip install 'patchreorder[report]'") from None


def write(file: Path, sections: Sequence[Section], *, title: str, about: Sequence[str] = ()) -> None:
    """Write the page, whole or not at all; names and titles are escaped."""
    render(file, "page.html.j2", sections=sections, title=title, about=about)


def render(file: Path, template: str, **values: Any) -> None:
    """Write a page of a template of this folder, whole or not at all; all values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clean": clean, "data_uri": data_uri}
    text = environment.get_template(template).render(version=__version__, **values)
    write_whole(file, text.encode())


def data_uri(file: Path) -> str:
    """A small upright JPEG of an image, encoded again; "" if the file cannot be read."""
    try:
        image = decode(file.read_bytes(), name=file.name, short=SIDE)
    except (BadImage, OSError):
        return ""
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()

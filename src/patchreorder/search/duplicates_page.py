"""Groups of copies as one HTML page: each copy in the pose of the kept file, and where they differ."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from .duplicates import Found, Member
from .listing import modified
from .local_features import Picture, need_opencv
from .page import SIDE, render
from .verification import read_picture


class Shown(NamedTuple):
    """A file on the page; images are data URIs, "" where there is none."""

    member: Member
    link: str
    plain: str
    aligned: str
    difference: str
    modified: str


def write(file: Path, found: Found, root: Path) -> None:
    """Write the page, whole or not at all; names are escaped. Images larger than a thumbnail are only linked."""
    groups = []
    for group in found.groups:
        kept = read_picture(group[0].path)
        groups.append([_shown(member, kept, group[0]) for member in group])
    similar = [
        (relation, first, second, (root / first).as_uri(), (root / second).as_uri())
        for relation, first, second in found.similar[:200]
    ]
    render(file, "duplicates.html.j2", title="Copies", groups=groups, similar=similar, root=str(root))


def _shown(member: Member, kept: Picture | None, first: Member) -> Shown:
    own = read_picture(member.path)
    plain = aligned = difference = ""
    if own is not None:
        plain = _uri(own.pixels)
        if kept is not None and member.relation is not None and member.of == first.file.name:
            aligned, difference = _aligned(kept, own, member)
    return Shown(member, member.path.as_uri(), plain, aligned, difference, modified(member))


def _aligned(kept: Picture, own: Picture, member: Member) -> tuple[str, str]:
    """The copy in the kept file's frame, and the difference of brightness: where the copy is lighter or darker."""
    cv2 = need_opencv()
    width, height = kept.shape
    matrix = np.array([[own.shape[0] / kept.width, 0, 0], [0, own.shape[1] / kept.height, 0]])
    if member.relation is not None and member.relation.matrix is not None:
        matrix = np.array(member.relation.matrix)
        before = np.diag([kept.width / width, kept.height / height, 1.0])
        after = np.diag([own.shape[0] / own.width, own.shape[1] / own.height, 1.0])
        matrix = (after @ np.vstack([matrix, [0, 0, 1]]) @ before)[:2]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    laid = cv2.warpAffine(own.pixels, matrix, (width, height), flags=flags, borderValue=(128, 128, 128))
    inside = cv2.warpAffine(np.ones(own.grey.shape, np.uint8), matrix, (width, height), flags=flags) > 0
    inverted = member.relation is not None and member.relation.inverted
    change = (255 - laid if inverted else laid).astype(np.int16) - kept.pixels
    shown = np.clip(128 + change, 0, 255).astype(np.uint8)
    shown[~inside] = 128
    return _uri(laid), _uri(shown)


def _uri(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()

"""Small JPEGs of the photographs that a report shows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from patchreorder.data.views import decode_small

SIDE = 128
MOST = 60  # of each list


def thumbnails(report: Mapping[str, Any]) -> dict[str, bytes]:
    """The photographs of mistakes and of doubtful labels by path; those that cannot be read any more are left out."""
    found = {}
    for each in [*report.get("mistakes", [])[:MOST], *report.get("mislabelled", [])[:MOST]]:
        try:
            image = decode_small(Path(each["name"]).read_bytes(), name=each["name"], short=SIDE)
        except (ValueError, OSError):
            continue
        image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=80)
        found[each["name"]] = file.getvalue()
    return found

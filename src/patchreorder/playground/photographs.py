"""Uploaded photographs, held in memory for a while: what a classifier takes them for, and AlexNet's conv5 maps of them.

Uploads are untrusted. The format is read from the first bytes, the size is checked before a pixel is decoded, and
nothing is written to disk. A thread that decodes cannot be stopped, so slow files are rejected before it starts.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from patchreorder.data import backbone_weights as trained
from patchreorder.data import sources
from patchreorder.data.images import BadImage, decode
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import centre_crop
from patchreorder.operator.functional import PatchReorderOptions
from patchreorder.search.descriptors import open_descriptor

from .cache import Cache
from .imagenet import ANGLES, ImagenetClassifier
from .layer_view import layer_view
from .requests import RequestError

MAX_PIXELS = 40_000_000
MAX_SCANS = 64  # of a JPEG: a progressive one has about ten, and decoding each visits every pixel
MAX_ASPECT = 8
CACHED = 12  # photographs
SHORT = 512  # largest short side of a cached photograph
CROP, SCALED = 224, 256  # the network sees a crop of the photograph scaled to this short side
MAP_SIZE = (13, 13)  # of conv5
SIGNATURES = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "WebP": (b"RIFF",),
    "BMP": (b"BM",),
}


def open_photo(content: bytes) -> Image.Image:
    """Decode a file to an upright RGB image whose short side is at most 512 pixels."""
    kind = next((name for name, starts in SIGNATURES.items() if content.startswith(starts)), None)
    if kind is None or (kind == "WebP" and content[8:12] != b"WEBP"):
        raise RequestError(415, f"the file is not an image of a supported format: send {', '.join(SIGNATURES)}")
    # In compressed data 0xff is never followed by 0xda, so this counts the scans, and at most a few in metadata.
    scans = content.count(b"\xff\xda") if kind == "JPEG" else 0
    if scans > MAX_SCANS:
        raise BadImage(f"the file cannot be read as an image: it has {scans} scans, more than {MAX_SCANS}")
    image = decode(content, name="the file", short=SHORT, max_pixels=MAX_PIXELS)
    short, long = sorted(image.size)
    if long > MAX_ASPECT * short:
        raise RequestError(
            422,
            f"the image has {image.width} x {image.height} pixels: its long side must be at most "
            f"{MAX_ASPECT} times its short side",
        )
    if short > SHORT:
        size = tuple(round(side * SHORT / short) for side in image.size)
        image = image.resize((size[0], size[1]), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return image


class Photographs:
    """The photographs used last, a classifier and AlexNet up to conv5.

    Either works without the other. `reason` says what to do if AlexNet's weights are not there.
    """

    def __init__(
        self,
        *,
        weights: Path | None = None,
        fetch: bool = False,
        say: Callable[[str], None] = lambda text: None,
        cached: int = CACHED,
        classifier: ImagenetClassifier | None = None,
    ) -> None:
        self.classifier = ImagenetClassifier(fetch=fetch, say=say) if classifier is None else classifier
        self._photos: Cache[str, tuple[Image.Image, Tensor | None]] = Cache(cached)  # and its maps when upright
        self._network: nn.Module | None = None
        self.reason = ""
        try:
            if weights is None and not fetch:
                found = sources.fetch(trained.ALEXNET, folder=sources.cache_folder(trained.ALEXNET))
                weights = found[trained.ALEXNET_FILE]
            self._network = open_descriptor("alexnet/pr", weights=weights, say=say).maps
        except (ValueError, OSError):
            if weights is not None or fetch:
                raise
            self.reason = (
                "AlexNet's trained convolutions are not on this machine: start `patchreorder play --fetch` to "
                "download them (10 MB), or name a file with `--weights FILE`."
            )

    @property
    def useless(self) -> str:
        """What to do if photographs get neither an answer nor maps; empty if they get one of them."""
        return self.reason if self.classifier.reason else ""

    def add(self, content: bytes) -> str:
        """Decode and hold a photograph; return its name, the SHA-256 of the file."""
        if self.useless:
            raise RequestError(422, self.useless)
        name = sha256(content).hexdigest()

        def make() -> tuple[Image.Image, Tensor | None]:
            image = open_photo(content)
            return image, self._maps(_crop(image, UPRIGHT))

        self._photos.get(name, make)
        return name

    def look(self, name: str, pose: Pose, options: PatchReorderOptions) -> dict[str, Any]:
        """Return the posed photograph as the network sees it, and its conv5 maps beside those of the upright one."""
        image, upright = self._find(name)
        crop, file = _crop(image, pose), io.BytesIO()
        Image.fromarray(crop.numpy()).save(file, "JPEG", quality=85)
        posed = self._maps(crop)
        view = None if upright is None or posed is None else layer_view(torch.cat([upright, posed]), options)
        answers = self.classifier.answers(torch.stack([_crop(image, UPRIGHT), crop]))
        return {
            "image": base64.b64encode(file.getvalue()).decode(),
            "layer": view,
            "answers": dict(zip(("upright", "posed"), answers, strict=False)),
        }

    def ring(self, name: str, pose: Pose, *, check: Callable[[], None]) -> dict[str, Any]:
        """Return the likeliest class of a shifted photograph at every rotation."""
        image, _ = self._find(name)
        found = []
        for angle in ANGLES:
            check()
            found += self.classifier.answers(_crop(image, pose._replace(degrees=float(angle)))[None])
        return {"angles": list(ANGLES), "answers": [best[0] for best in found]}

    def _find(self, name: str) -> tuple[Image.Image, Tensor | None]:
        try:
            return self._photos[name]
        except KeyError:
            raise RequestError(404, "this photograph is no longer in memory: send it again") from None

    @torch.inference_mode()
    def _maps(self, crop: Tensor) -> Tensor | None:
        if self._network is None:
            return None
        images = crop.permute(2, 0, 1)[None].float().div(255)
        return self._network(images.contiguous(memory_format=torch.channels_last)).contiguous()


def _crop(image: Image.Image, pose: Pose) -> Tensor:
    """Return the crop that the network sees, (224, 224, 3), uint8, as the tests on posed photographs have it."""
    return centre_crop(image, pose=pose, size=CROP, short=SCALED)

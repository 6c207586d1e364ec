"""Photographs that were sent to the page: kept in memory for a while, and what AlexNet's conv5 says about them.

They come from anybody. Their kind is told by their first bytes, their pixels are counted before one is read, and
nothing is written to a disk. A thread that decodes cannot be stopped, so what would keep it busy for long is refused
before it begins.
"""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from patchreorder.data import poses, sources
from patchreorder.data import weights as trained
from patchreorder.data.images import BadImage, decode
from patchreorder.data.views import centre_crop
from patchreorder.operator.functional import Settings
from patchreorder.search.describe import open_descriptor

from . import layer
from .asked import Pose, Refused

MAX_BYTES, MAX_PIXELS = 10_000_000, 40_000_000
MAX_SCANS = 64  # of a JPEG: a progressive one has about ten, and each is one more pass over all pixels
MAX_RATIO = 8  # of the sides
KEPT = 12  # photographs; those asked for the longest ago are forgotten
SHORT, SIZE, SCALED = 512, 224, 256  # short side that is kept; what the network sees, cut out of a short side of 256
STARTS = {
    "JPEG": (b"\xff\xd8\xff",),
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "WebP": (b"RIFF",),
    "BMP": (b"BM",),
}


class WrongKind(Refused):
    """A file that is no picture of the kinds that are taken."""


class Photo(NamedTuple):
    """A photograph that was sent, and its maps while it stands upright."""

    image: Image.Image
    maps: Tensor


def opened(content: bytes) -> Image.Image:
    """The upright RGB picture of a file, its short side 512 pixels at most.

    Raises:
        WrongKind: it is of another kind than JPEG, PNG, GIF, WebP or BMP.
        BadImage, Refused: it is damaged, or larger than we take.
    """
    kind = next((name for name, starts in STARTS.items() if content.startswith(starts)), None)
    if kind is None or (kind == "WebP" and content[8:12] != b"WEBP"):
        raise WrongKind(f"the file is no picture that this page takes: send one of {', '.join(STARTS)}")
    # In compressed data 0xff is never followed by 0xda, so this counts scans, and at most a few in metadata.
    scans = content.count(b"\xff\xda") if kind == "JPEG" else 0
    if scans > MAX_SCANS:
        raise BadImage(f"the file cannot be read as a picture: it has {scans} scans, more than {MAX_SCANS}")
    image = decode(content, name="the file", short=SHORT, max_pixels=MAX_PIXELS)
    short, long = sorted(image.size)
    if long > MAX_RATIO * short:
        raise Refused(
            f"the picture has {image.width} x {image.height} pixels: its long side must be at most "
            f"{MAX_RATIO} times its short one"
        )
    if short > SHORT:
        size = tuple(round(side * SHORT / short) for side in image.size)
        image = image.resize((size[0], size[1]), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return image


class Photographs:
    """The photographs of this session, and AlexNet up to conv5 where its weights are on this machine.

    Args:
        weights: file with the weights; without it the cache is looked into.
        fetch: fetch them if the cache does not hold them.
        say: gets a line about what is fetched.
    """

    def __init__(
        self, *, weights: Path | None = None, fetch: bool = False, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._kept: OrderedDict[str, Photo] = OrderedDict()
        self._lock = threading.Lock()
        self._network: nn.Module | None = None
        self.reason = ""
        try:
            if weights is None and not fetch:
                weights = sources.fetch(trained.ALEXNET, folder=sources.cache_folder(trained.ALEXNET))[
                    trained.ALEXNET_FILE
                ]
            self._network = open_descriptor("alexnet/pr", weights=weights, say=say).maps
        except (ValueError, OSError):
            if weights is not None or fetch:
                raise
            self.reason = (
                "AlexNet's trained convolutions are not on this machine: start with `patchreorder play --fetch` to "
                "have them fetched (10 MB), or with `--weights FILE`."
            )

    def take(self, content: bytes) -> str:
        """Keep a photograph; return the name to ask for it with, the SHA-256 of the file."""
        network = self._need()
        name = sha256(content).hexdigest()
        if name not in self._kept:
            image = opened(content)
            photo = Photo(image, _maps(network, _cut(image, Pose())))
            with self._lock:
                self._kept[name] = photo
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return name

    def map_size(self) -> tuple[int, int]:
        """Height and width of conv5's maps."""
        return 13, 13

    def look(self, name: str, pose: Pose, settings: Settings) -> dict[str, Any]:
        """The posed photograph as the network sees it, and its maps of conv5 beside those of the upright one.

        Raises:
            KeyError: the photograph is not kept (any more).
        """
        network = self._need()
        with self._lock:
            photo = self._kept[name]
            self._kept.move_to_end(name)
        seen = _cut(photo.image, pose)
        view = layer.view(torch.cat([photo.maps, _maps(network, seen)]), settings)
        return {"picture": _jpeg(seen), "layer": view}

    def _need(self) -> nn.Module:
        if self._network is None:
            raise Refused(self.reason)
        return self._network


def _cut(image: Image.Image, pose: Pose) -> Tensor:
    """What the network sees, (224, 224, 3), bytes: as in the paper's tests on turned and shifted photographs."""
    posed = poses.Pose(pose.turn, pose.down / 100, pose.right / 100)
    return centre_crop(image, pose=posed, size=SIZE, short=SCALED)


@torch.inference_mode()
def _maps(network: nn.Module, seen: Tensor) -> Tensor:
    images = seen.permute(2, 0, 1)[None].float().div(255)
    return network(images.contiguous(memory_format=torch.channels_last)).contiguous()


def _jpeg(seen: Tensor) -> str:
    file = io.BytesIO()
    Image.fromarray(seen.numpy()).save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue()).decode()

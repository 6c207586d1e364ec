"""Tiny-ImageNet: 64x64 photographs of 200 classes of ImageNet, decoded once, rotated, shifted, augmented for training.

Training images are flipped and shifted as bytes, image by image: a batch takes a few percent of a training step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from patchreorder.files import digest, open_whole

from . import transforms
from .datasets import SPLITS, TEST_SEED, Change, ColourImages, Variant, on_mean_colour, rotated_by, warped_to
from .images import MEAN_COLOUR, BadImage, pixels

SIDE = 64  # pixels a side
SHAPE = (SIDE, SIDE, 3)
FAR = 0.2  # of a side: the farthest shift of T
NEAR = 4  # pixels: the farthest shift of a training image, as that of a 224x224 crop of 256x256
HELD_OUT = 10  # of so many training images of a class, sorted by name, the last is for validation
LAYOUT = "expected train/CLASS/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt"
Say = Callable[[str], None]


def _shifted(images: Tensor, numbers: Tensor) -> Tensor:
    still = torch.zeros(len(images))
    return warped_to(images, degrees=still, shift=(numbers - 0.5) * (2 * FAR * SIDE), size=SIDE)


def _unchanged(images: Tensor, numbers: Tensor) -> Tensor:
    return images


# The two below may write into the images that they get.
def _flipped_and_shifted(images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Mirror half of all images and shift each by up to `NEAR` whole pixels; uncovered pixels show the mean colour."""
    return _placed(images, flips=numbers[:, 0] < 0.5, corners=(numbers[:, 1:] * (2 * NEAR + 1)).astype(int) - NEAR)


def _augmented(images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """One of three at random: rotated as R, as it is, or shifted as T by whole pixels. Then flipped and shifted."""
    choice, corners = numbers[:, 0], (numbers[:, 5:] * (2 * NEAR + 1)).astype(int) - NEAR
    chosen = np.flatnonzero(choice < 1 / 3)
    if len(chosen):
        some = torch.from_numpy(images[chosen]).permute(0, 3, 1, 2).float().div_(255)
        turned = _rotated(some, torch.from_numpy(numbers[chosen, 1:2])).clamp_(0, 1)
        images[chosen] = (turned * 255).round().byte().permute(0, 2, 3, 1).numpy()
    far = np.rint((numbers[:, 2:4] - 0.5) * (2 * FAR * SIDE)).astype(int)
    return _placed(images, flips=numbers[:, 4] < 0.5, corners=corners + np.where(choice[:, None] >= 2 / 3, far, 0))


def _placed(images: np.ndarray, *, flips: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Mirror some images in place, and put each on the mean colour, shifted down and to the right."""
    chosen = np.flatnonzero(flips)
    images[chosen] = torch.from_numpy(images[chosen]).flip(2).numpy()  # a tenth of the time of numpy's
    canvas = np.empty_like(images)
    for own, image, (down, right) in zip(canvas, images, corners.tolist(), strict=True):
        own[:] = _GROUND
        height, width = SIDE - abs(down), SIDE - abs(right)
        top, left = max(-down, 0), max(-right, 0)
        own[max(down, 0) :, max(right, 0) :][:height, :width] = image[top : top + height, left : left + width]
    return canvas


_GROUND = np.full(SHAPE, MEAN_COLOUR, dtype=np.uint8)
_rotated: Change = on_mean_colour(rotated_by(45))
# The variants of training, made of bytes: how many random numbers an image needs, and how it is made.
BYTES: dict[str, tuple[int, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "tiny-train": (3, _flipped_and_shifted),
    "tiny-train-aug": (7, _augmented),
}
TINY_VARIANTS = {
    "tiny": Variant(SIDE, 0, _unchanged),
    "tiny-r": Variant(SIDE, 1, _rotated),
    "tiny-t": Variant(SIDE, 2, on_mean_colour(_shifted)),
} | {name: Variant(SIDE, count, _unchanged) for name, (count, _) in BYTES.items()}


class TinyImages(ColourImages):
    """Labelled photographs (n, 3, 64, 64), bytes, channels last in memory, and one of TINY_VARIANTS."""

    variants = TINY_VARIANTS

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """Images (b, 3, 64, 64), in [0, 1] or as bytes, and labels (b,); see `LabelledImages.batch`."""
        if self.variant not in BYTES:
            return super().batch(indices, epoch=epoch)
        count, apply = BYTES[self.variant]
        if self._numbers is None or self._numbers[0] != epoch:
            self._numbers = epoch, transforms.uniform(len(self), count, seed=self.seed, epoch=epoch)
        stored = self.images.permute(0, 2, 3, 1)[indices].numpy()  # b h w c, a copy
        shown = torch.from_numpy(apply(stored, self._numbers[1][indices].numpy()))
        return shown.permute(0, 3, 1, 2), self.labels[indices]


class TinyListing(NamedTuple):
    """The files of a part, relative to the folder, and their labels."""

    names: list[str]
    labels: Tensor


class TinyImageNet:
    """The photographs of Tiny-ImageNet in their usual folders, decoded once for all variants and splits.

    Args:
        folder: holds train/CLASS/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt.
        kept: folder for the decoded photographs, a file of 1.2 GB; without it they are decoded into memory.
        say: receives a line when photographs are decoded.

    Raises:
        ValueError: the folder has another layout.
    """

    def __init__(self, folder: Path, *, kept: Path | None = None, say: Say = lambda text: None) -> None:
        self.folder, self.kept, self.say = folder, kept, say
        self.classes = _folders(folder / "train")
        if not self.classes or not (folder / "val" / "val_annotations.txt").is_file():
            raise ValueError(f"{folder} is not Tiny-ImageNet: {LAYOUT}")
        self._listed: dict[str, TinyListing] = {}
        self._read: dict[str, Tensor] = {}

    @property
    def titles(self) -> list[str]:
        """What the classes are called: the first word of each in words.txt, or the names of their folders."""
        words = self.folder / "words.txt"
        lines = words.read_text(encoding="utf-8").splitlines() if words.is_file() else []
        named = {name: title.partition(",")[0] for name, _, title in (line.partition("\t") for line in lines)}
        return [named.get(name, name) for name in self.classes]

    def load(self, variant: str, *, split: str, seed: int = TEST_SEED) -> TinyImages:
        """One variant of one split: `train` and `test` (val/), or `fit` and `validation`, parts of `train`.

        Args:
            variant: a name in TINY_VARIANTS.
            split: one of the four.
            seed: see `Mnist.load`.
        """
        if split not in SPLITS:
            raise ValueError(f"split ({split!r}) must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")
        part = "test" if split == "test" else "train"
        if part not in self._read:
            self._read[part] = self._decode(part)
        images, labels = self._read[part], self.listing(part).labels
        if split in ("fit", "validation"):
            first = torch.searchsorted(labels, labels)  # labels are sorted: where the image's class begins
            held_out = (torch.arange(len(labels)) - first) % HELD_OUT == HELD_OUT - 1
            chosen = held_out if split == "validation" else ~held_out
            flat = images.permute(0, 2, 3, 1)[chosen]  # channels stay last
            images, labels = flat.permute(0, 3, 1, 2), labels[chosen]
        return TinyImages(images, labels, variant, seed)

    def listing(self, part: str) -> TinyListing:
        """The files of `train`, class by class, or `test`, by name."""
        if part not in self._listed:
            self._listed[part] = self._train() if part == "train" else self._test()
        return self._listed[part]

    def _train(self) -> TinyListing:
        names, labels = [], []
        for label, name in enumerate(self.classes):
            own = sorted(_files(self.folder / "train" / name / "images"))
            if not own:
                raise ValueError(f"{self.folder}/train/{name}/images holds no image: {LAYOUT}")
            names += [f"train/{name}/images/{file}" for file in own]
            labels += [label] * len(own)
        return TinyListing(names, torch.tensor(labels))

    def _test(self) -> TinyListing:
        label_of = {name: label for label, name in enumerate(self.classes)}
        names, labels = [], []
        annotations = self.folder / "val" / "val_annotations.txt"
        for number, line in enumerate(annotations.read_text(encoding="utf-8").splitlines(), 1):
            file, _, rest = line.partition("\t")
            name = rest.partition("\t")[0]
            if name not in label_of or file != os.path.basename(file):
                raise ValueError(f"{annotations}, line {number}, must be a file and a class of train/: {line[:60]!r}")
            names.append(f"val/images/{file}")
            labels.append(label_of[name])
        return TinyListing(names, torch.tensor(labels))

    def _decode(self, part: str) -> Tensor:
        names = self.listing(part).names
        shape, size = (len(names), *SHAPE), len(names) * SIDE * SIDE * 3
        if self.kept is None:
            images = torch.from_numpy(np.stack(list(self._pixels(names))))
        else:
            file = self.kept / f"{part}.{digest(names)}.u8"
            if not file.is_file() or file.stat().st_size != size:
                self.say(f"{part}: decoding {len(names)} photographs into {file}")
                with open_whole(file) as target:
                    for image in self._pixels(names):
                        target.write(image.tobytes())
            # A private map: processes share its memory, and nothing is written back.
            images = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8).view(shape)
        return images.permute(0, 3, 1, 2)

    def _pixels(self, names: Sequence[str]) -> Iterator[np.ndarray]:
        for name in names:
            image = pixels((self.folder / name).read_bytes(), name=name)
            if image.shape != SHAPE:
                raise BadImage(f"{name} has {image.shape[1]}x{image.shape[0]} pixels, not {SIDE}x{SIDE}")
            yield image


def _folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.name.lower().endswith((".jpeg", ".jpg"))]

"""`Classifier`: a file that `patchreorder fit` made, ready for photographs: paths, arrays or tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from patchreorder.data.folders import MAX_BYTES
from patchreorder.data.images import MEAN_COLOUR, upright_rgb
from patchreorder.data.loader import parallel_map
from patchreorder.data.poses import UPRIGHT, Pose
from patchreorder.data.views import decode_small, shrunk
from patchreorder.engine.batches import channels_last, model_input
from patchreorder.models.photo_classifier import PhotoClassifier
from patchreorder.models.saved import ClassifierFacts, read_classifier

from .photographs import Shown, crop

BATCH = 32


@dataclass(frozen=True)
class Prediction:
    """What is on an image.

    Args:
        name: of the class; None if it is none of these.
        probability: of the most probable class.
        top: all classes and their probabilities, the most probable first.
    """

    name: str | None
    probability: float
    top: list[tuple[str, float]]


class Classifier:
    """Names what is on images.

    >>> classifier = load_classifier("classifier.safetensors")  # doctest: +SKIP
    >>> classifier("photograph.jpg").name  # doctest: +SKIP
    'apple'
    """

    def __init__(self, network: PhotoClassifier, facts: ClassifierFacts) -> None:
        self.network, self.facts = channels_last(network.requires_grad_(False).eval()), facts

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of logits."""
        return list(self.facts.classes)

    def __call__(self, image: Any, *, views: int = 1) -> Prediction | list[Prediction]:
        """The class of an image, or of each image of a batch.

        Args:
            image: a path; a Pillow image; an array (h, w, 3) or (h, w), or a tensor (3, h, w), of bytes or of floats in
                [0, 1]; a tensor (b, 3, h, w) or a list of any of these gives a list.
            views: average the answers of so many rotated views.

        Raises:
            ValueError: it cannot be read, or has another form.
        """
        several = isinstance(image, list | tuple) or (isinstance(image, Tensor) and image.dim() == 4)
        images = [as_image(each, short=self.facts.short) for each in (image if several else [image])]
        answers = self.of_images(images, views=views)
        return answers if several else answers[0]

    def of_images(self, images: Sequence[Image.Image], *, views: int = 1) -> list[Prediction]:
        """The classes of Pillow images."""
        shown = views_of(self.facts, views)
        size, short = self.facts.size, self.facts.short
        small = [shrunk(image, short=short) for image in images]
        pixels = [np.stack([crop(image, each, size=size, short=short) for each in shown]) for image in small]
        return self.of_crops(pixels)

    def of_crops(self, pixels: Sequence[np.ndarray]) -> list[Prediction]:
        """The classes of images whose views are cropped: each (views, size, size, 3), uint8."""
        return [self._prediction(logits, distance) for logits, distance in self.judge(pixels)]

    @torch.inference_mode()
    def judge(self, pixels: Sequence[np.ndarray]) -> list[tuple[Tensor, float]]:
        """The logits of each image, averaged over its views, and its distance to the nearest class."""
        if not pixels:
            return []
        every = torch.from_numpy(np.concatenate(pixels)).permute(0, 3, 1, 2)
        parts = [self.network.judge(model_input(part, torch.device("cpu"))) for part in every.split(BATCH)]
        lengths = [len(each) for each in pixels]
        logits = torch.cat([part for part, _ in parts]).split(lengths)
        distances = torch.cat([part for _, part in parts]).split(lengths)
        return [(own.mean(0), float(far.mean())) for own, far in zip(logits, distances, strict=True)]

    def _prediction(self, logits: Tensor, distance: float) -> Prediction:
        probabilities, order = logits.softmax(0).sort(descending=True, stable=True)
        top = [(self.facts.classes[i], p) for i, p in zip(order.tolist(), probabilities.tolist(), strict=True)]
        return Prediction(None if distance > self.facts.threshold else top[0][0], top[0][1], top)


def load_classifier(path: str | Path) -> Classifier:
    """The classifier of a file that `patchreorder fit` wrote.

    Raises:
        ValueError: the file is truncated, damaged, or of another kind.
        OSError: it cannot be opened.
    """
    return Classifier(*read_classifier(path))


def views_of(facts: ClassifierFacts, count: int) -> list[Shown]:
    """So many rotated views of a photograph, the first as it is, within the rotations that mean the same."""
    if not 1 <= count <= 64:
        raise ValueError(f"views ({count}) must be from 1 to 64")
    if facts.rotations >= 180:
        degrees = [360.0 * number / count for number in range(count)]
    else:
        order = sorted((facts.rotations * (2 * k / max(count - 1, 1) - 1) for k in range(count)), key=abs)
        degrees = [0.0, *order[1:]]
    return [Shown(Pose(angle) if angle else UPRIGHT, MEAN_COLOUR) for angle in degrees]


def as_image(image: Any, *, short: int) -> Image.Image:
    """Whatever holds an image, as a Pillow image; anything whose meaning is not certain is refused.

    Args:
        image: see `Classifier`.
        short: the short side that it will be scaled to; a file is read with no more detail than that needs.

    Raises:
        ValueError: it has another form, or floats outside [0, 1].
        TypeError: it is no image.
    """
    if isinstance(image, str | Path):
        return decode_small(read_file(Path(image)), name=str(image), short=short)
    if isinstance(image, Image.Image):
        return upright_rgb(image)
    if isinstance(image, Tensor):
        if image.dim() != 3 or image.shape[0] not in (1, 3):
            raise ValueError(
                f"a tensor must be (3, height, width) or (batch, 3, height, width), got {tuple(image.shape)}"
            )
        array = image.detach().cpu().permute(1, 2, 0).numpy()
        return as_image(array[:, :, 0] if array.shape[2] == 1 else array, short=short)
    if not isinstance(image, np.ndarray):
        raise TypeError(f"an image must be a path, a Pillow image, an array or a tensor, got {type(image).__name__}")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or 0 in image.shape:
        raise ValueError(f"an array must be (height, width, 3) or (height, width), got {image.shape}")
    if np.issubdtype(image.dtype, np.floating):
        if not np.isfinite(image).all() or image.min() < 0 or image.max() > 1:
            raise ValueError(
                f"floats must be from 0 to 1, got {image.min():g} to {image.max():g}: divide bytes by 255, and do not "
                "normalise; the classifier does"
            )
        image = (image * 255).round().astype(np.uint8)
    if image.dtype != np.uint8:
        raise ValueError(f"numbers must be bytes (uint8) or floats in [0, 1], got {image.dtype}")
    return Image.fromarray(image).convert("RGB")


def read_file(path: Path) -> bytes:
    """The content of a photograph's file.

    Raises:
        ValueError: it is larger than any photograph, or a folder.
        OSError: it cannot be read.
    """
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder without an image")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size  # 0 of a pipe or a device
        content = file.read(MAX_BYTES + 1) if size <= MAX_BYTES else b""
    if max(size, len(content)) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES >> 30} GB: it is no photograph")
    return content


@dataclass(frozen=True)
class Reader:
    """Reads a file and crops its views, in a worker process: the crops, or why it cannot be read."""

    shown: Sequence[Shown]
    size: int
    short: int

    def __call__(self, path: str) -> np.ndarray | str:
        try:
            image = decode_small(read_file(Path(path)), name=path, short=self.short)
        except (ValueError, OSError, MemoryError) as error:
            return " ".join(str(error).split()) or type(error).__name__
        return np.stack([crop(image, each, size=self.size, short=self.short) for each in self.shown])


def predict_files(
    classifier: Classifier, paths: Iterable[str], *, views: int = 1, workers: int = 0
) -> Iterator[tuple[str, Prediction | str]]:
    """Each path with its prediction, or with the reason why it cannot be read, in order."""
    listed = list(paths)
    facts = classifier.facts
    reader = Reader(views_of(facts, views), facts.size, facts.short)
    waiting: list[tuple[str, np.ndarray | str]] = []

    def answers() -> Iterator[tuple[str, Prediction | str]]:
        found = iter(classifier.of_crops([pixels for _, pixels in waiting if not isinstance(pixels, str)]))
        for path, pixels in waiting:
            yield path, pixels if isinstance(pixels, str) else next(found)
        waiting.clear()

    for path, pixels in zip(listed, parallel_map(reader, listed, workers=workers), strict=True):
        waiting.append((path, pixels))
        if len(waiting) * views >= BATCH:
            yield from answers()
    yield from answers()

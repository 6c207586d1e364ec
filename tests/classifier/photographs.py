"""Small folders of generated photographs, and a small backbone instead of a trained one."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder.models import backbones
from patchreorder.models.backbones import Backbone

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 40, 230)}


def write_photographs(
    folder: Path, *, count: int = 12, classes: tuple[str, ...] = tuple(COLOURS), seed: int = 0, wrong: int = 0
) -> Path:
    """Folders CLASS/N.png of blots in the colour of their class, on grey noise; the first ones are of a wrong class.

    A classifier that is fitted to some wrong ones is not sure of anything.
    """
    random = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = random.integers(90, 140, (48, 56, 3)).astype(np.uint8)
            top, left = random.integers(4, 16, 2)
            shown = name if number >= wrong else classes[classes.index(name) - 1]
            pixels[top : top + 24, left : left + 24] = COLOURS[shown] + random.integers(-20, 20, 3)
            Image.fromarray(pixels).save(folder / name / f"{number:02}.png")
    return folder


def _small() -> nn.Sequential:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU())

    names = ["stage1", "stage2", "stage3", "stage4", "head"]
    widths = [3, 4, 6, 8, 8, 12]
    return nn.Sequential(OrderedDict((name, block(*widths[i : i + 2])) for i, name in enumerate(names)))


_LAYERS = {name: f"{name}.1" for name in ("stage1", "stage2", "stage3", "stage4", "head")}
SMALL_BACKBONE = Backbone(_small, channels=12, side=2, layers=_LAYERS, size=64)


@pytest.fixture
def small_backbone(monkeypatch):
    use_small_backbone(monkeypatch)


def use_small_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`efficientnet_lite0` becomes a small network with random weights, the same in every test."""
    torch.manual_seed(0)
    weights = _small().state_dict()
    monkeypatch.setitem(backbones.BACKBONES, "efficientnet_lite0", SMALL_BACKBONE)  # type: ignore[index]
    monkeypatch.setattr(backbones, "backbone_weights", lambda name, **options: weights)

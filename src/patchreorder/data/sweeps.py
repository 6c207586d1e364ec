"""Sweeps of poses beyond the paper's: all angles, flips, scales, crops, combinations; images shrunk on a canvas.

`rotations` and `translations` of `poses` are the paper's sweeps. One pose has one name in all of them, so that none is
computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.nn import functional as F

from .poses import AS_IT_IS, UPRIGHT, Pose, rotations, translations
from .transforms import uniform

SCALES = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)
CROP = 16 / 256  # how far the crop moves at most: crops of 224 in images of 256 pixels
DRAWN = 16  # poses of the sweeps that are drawn at random
SWEEPS = {
    "rotate": "by -45 to 45 degrees",
    "rotate360": "all around, by steps of 15 degrees",
    "translate": "by -20 to 20 %",
    "flip": "mirrored left to right, and top to bottom",
    "scale": "by 0.6 to 1.4",
    "crops": "shifted at random by up to a sixteenth, both ways",
    "combine": "rotated by any angle, shifted by up to 10 %, scaled by 0.8 to 1.25 and half of them mirrored",
}


def sweep(name: str, *, axes: Sequence[str] = ("x", "y"), seed: int = 0) -> dict[str, Pose]:
    """The poses of one of `SWEEPS` by name, with the unposed image among them, called "as it is".

    Args:
        name: "rotate" and "translate" are the paper's; "crops" are like the random crops of 224 pixels in an
            image of 256 whose consistency the BlurPool paper measures (Zhang 2019), but parts of each side.
        axes: of "translate".
        seed: of the poses of "crops" and "combine".

    Raises:
        ValueError: there is no such sweep.

    >>> {name: len(sweep(name)) for name in SWEEPS}
    {'rotate': 11, 'rotate360': 24, 'translate': 21, 'flip': 3, 'scale': 9, 'crops': 17, 'combine': 17}
    """
    upright = {AS_IT_IS: UPRIGHT}
    if name == "rotate":
        return rotations()
    if name == "rotate360":
        return {own: pose for own, pose in rotations(most=180, step=15).items() if pose.degrees > -180}
    if name == "translate":
        return translations(axes=axes)
    if name == "flip":
        return upright | {"mirrored": Pose(flip=True), "flipped vertically": Pose(degrees=180.0, flip=True)}
    if name == "scale":
        return {f"scale {value:g}" if value != 1 else AS_IT_IS: Pose(scale=value) for value in SCALES}
    if name in ("crops", "combine"):
        drawn = uniform(DRAWN, 5, seed=seed, epoch=0).tolist()
        make = _moved if name == "crops" else _combined
        return upright | {f"{name} {number}": make(*numbers) for number, numbers in enumerate(drawn, 1)}
    raise ValueError(f"transform ({name!r}) must be one of {', '.join(SWEEPS)}")


def fitting_side(poses: Iterable[Pose]) -> float:
    """The side of the largest image that no pose moves off the canvas, with the canvas as the unit; at most 1.

    Raises:
        ValueError: a pose shifts the centre to the edge or beyond it.

    >>> fitting_side([Pose(right=-0.2), Pose(flip=True)]), round(fitting_side([Pose(degrees=45.0)]), 4)
    (0.6, 0.7071)
    """
    side = 1.0
    for pose in poses:
        radians = math.radians(pose.degrees)
        spread = pose.scale * (abs(math.cos(radians)) + abs(math.sin(radians)))
        room = 1 - 2 * max(abs(pose.down), abs(pose.right))
        if room <= 0:
            raise ValueError(f"pose ({pose}) shifts the image off its canvas: no size of it stays there")
        side = min(side, room / spread)
    return side


def shrink(images: Tensor, *, side: float, fill: Sequence[float] | None = None) -> Tensor:
    """Scale images about the centre of a canvas of their size, with antialiasing.

    Args:
        images: (b, c, h, w), floating point.
        side: of the images, above 0; the canvas has 1. Rounded to pixels so that the margins are equal.
        fill: colour of the margin, one number per channel; black by default.

    >>> import torch
    >>> shrink(torch.ones(1, 1, 6, 6), side=0.4)[0, 0, 2]
    tensor([0., 0., 1., 1., 0., 0.])
    """
    if not 0 < side <= 1:
        raise ValueError(f"side ({side}) must be above 0, and at most 1")
    height, width = images.shape[2:]
    top, left = (math.ceil((length - side * length) / 2 - 1e-9) for length in (height, width))
    if 2 * top >= height or 2 * left >= width:
        raise ValueError(f"side ({side}) leaves nothing of images of {height}x{width}")
    inner = (height - 2 * top, width - 2 * left)
    small = F.interpolate(images, size=inner, mode="bilinear", antialias=True)
    canvas = images.new_zeros(images.shape) if fill is None else images.new_tensor(fill).view(1, -1, 1, 1)
    canvas = canvas.expand(images.shape).clone()
    canvas[:, :, top : top + inner[0], left : left + inner[1]] = small
    return canvas


def _moved(down: float, right: float, *_: float) -> Pose:
    return Pose(down=CROP * (2 * down - 1), right=CROP * (2 * right - 1))


def _combined(angle: float, down: float, right: float, scale: float, flip: float) -> Pose:
    factor = math.exp(math.log(1.25) * (2 * scale - 1))
    return Pose(360 * angle - 180, 0.2 * down - 0.1, 0.2 * right - 0.1, factor, flip < 0.5)

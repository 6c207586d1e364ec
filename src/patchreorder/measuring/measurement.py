"""What `measure` finds, as plain numbers, texts and PNG files for `report`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One number about a network."""

    model: str  # name of the network
    # error, agreement, commonest answer, consistency, mean and worst error and change, invariance, similarity,
    # different, equivariance, unmoved maps, derivative, module derivative or order
    measure: str
    value: float | None  # None if it is undefined
    layer: str = ""  # where it was measured; "" if it does not depend on it, as for transform and pose
    transform: str = ""
    pose: str = ""
    low: float | None = None  # ends of the 95 % interval
    high: float | None = None
    n: int = 0  # how many images, neurons or maps it is over
    indices: Sequence[int] = ()  # the images with a wrong (error) or a changed (agreement) prediction
    details: Mapping[str, Any] = field(default_factory=dict)  # further numbers of a measure


class PosedView(NamedTuple):
    """An image in a pose, and the class that a network predicts for it."""

    pose: str
    prediction: str
    png: bytes


class UnstableImage(NamedTuple):
    """An image whose prediction changes with the pose."""

    model: str  # name of the network
    image: str  # name of the image
    label: str  # "" if it is unknown
    changed: int  # in how many poses the prediction changes
    views: Sequence[PosedView]  # the unposed image, then the nearest poses that change the prediction

"""What `measure` finds, as plain numbers, texts and PNG files for `report`. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One number about a network.

    Args:
        model: name of the network.
        measure: error, agreement, consistency, invariance, similarity or order.
        value: None if it is undefined.
        layer, transform, pose: where it was measured; "" if it does not depend on it.
        low, high: ends of the 95 % interval.
        n: how many images, neurons or maps it is over.
        indices: the images with a wrong (error) or a changed (agreement) prediction.
        details: further numbers of a measure.
    """

    model: str
    measure: str
    value: float | None
    layer: str = ""
    transform: str = ""
    pose: str = ""
    low: float | None = None
    high: float | None = None
    n: int = 0
    indices: Sequence[int] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


class PosedView(NamedTuple):
    """An image in a pose, and the class that a network predicts for it."""

    pose: str
    prediction: str
    png: bytes


class UnstableImage(NamedTuple):
    """An image whose prediction changes with the pose.

    Args:
        model: name of the network.
        image: name of the image.
        label: "" if it is unknown.
        changed: in how many poses the prediction changes.
        views: the unposed image, then the nearest poses that change the prediction.
    """

    model: str
    image: str
    label: str
    changed: int
    views: Sequence[PosedView]

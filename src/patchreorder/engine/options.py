"""The options of a training run, and its learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options of an optimiser with one of two learning rate schedules.

    Args:
        steps: the number of updates; or `epochs`.
        epochs: the number of epochs, may be a fraction; an epoch leaves out images that do not fill a batch.
        batch: images per update, over all processes together.
        lr: the initial (`step`) or peak (`one-cycle`) learning rate.
        optimiser: `sgd`, or `adamw`, which suits networks whose layers have gradients of very different sizes.
        momentum: of SGD; of AdamW the decay of the mean gradient.
        schedule: `step` divides the rate by 10 every `decay_every` updates; `one-cycle` rises linearly during the
            fraction `warmup` of the updates and falls to 0 along a cosine.
        clip: the maximum norm of the gradient over all parameters.
        amp: compute in bfloat16, or in float16 with loss scaling on GPUs without bfloat16.
        scales: factors of the learning rate, for parameters whose names start with a key or end with `.key`; where
            several keys match, their factors multiply.
    """

    steps: int | None = None
    epochs: float | None = None
    batch: int = 128
    lr: float = 0.07
    optimiser: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    schedule: Literal["one-cycle", "step"] = "one-cycle"
    warmup: float = 0.15
    decay_every: int = 50_000
    clip: float | None = None
    amp: bool = False
    scales: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give steps ({self.steps}) or epochs ({self.epochs}), one of them")
        for name in ("steps", "epochs", "batch", "lr", "decay_every", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} ({value}) must be more than 0")
        for name in ("steps", "batch", "decay_every"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise ValueError(f"{name} ({value}) must be an integer")
        if self.optimiser not in ("sgd", "adamw"):
            raise ValueError(f"optimiser ({self.optimiser!r}) must be sgd or adamw")
        if self.schedule not in ("one-cycle", "step"):
            raise ValueError(f"schedule ({self.schedule!r}) must be one-cycle or step")
        for name in ("warmup", "momentum"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} ({value}) must be at least 0 and below 1")

    def total(self, images: int) -> int:
        """The number of updates for this many images."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * self.per_epoch(images)))

    def per_epoch(self, images: int) -> int:
        """The number of updates in one epoch."""
        if images < self.batch:
            raise ValueError(f"batch ({self.batch}) must not exceed the number of training images ({images})")
        return images // self.batch

    def rate(self, step: int, total: int) -> float:
        """The learning rate of update `step` (from 0) of `total`."""
        if self.schedule == "step":
            return self.lr * 0.1 ** (step // self.decay_every)
        rise = self.warmup * total
        if step < rise:
            return self.lr * (step + 1) / (rise + 1)
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / (total - rise)))

"""The invariance of a layer's neurons: firing rates as Goodfellow et al. (NIPS 2009) and the paper measure them.

There are two passes. `FiringThresholds` takes the images as they are and finds for every neuron the threshold above
which it fires for just over 1 % of them. `LocalFiring` takes transformed copies of the images for which a neuron fires
and counts how often it still fires. Memory does not grow with the number of images: the first pass holds the largest
1 % of each neuron's values, at least 256; the second holds two counts per neuron and group of images. Scores do not
depend on batches.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

RATE = Fraction(1, 100)  # of firing, over the images as they are
BEST = Fraction(1, 5)  # of the neurons: their mean is the layer's score
GROUPS = 20  # of images, for the standard error of a score
ROOM = 256  # values of a neuron that are collected, at least, before they are sorted among the largest
BLOCK = 4096  # neurons that are sorted at a time


class Neurons(NamedTuple):
    """The numbers of a layer's output that are measured; each is a neuron, also every position of a feature map."""

    shape: tuple[int, ...]  # of the output for one image
    chosen: Tensor | None  # indices of the flattened output; None for all

    @property
    def number(self) -> int:
        """How many are measured."""
        return math.prod(self.shape) if self.chosen is None else len(self.chosen)

    def __call__(self, activations: Tensor) -> Tensor:
        """(images, number), in single precision at least."""
        values = activations.detach()
        values = values if values.dtype == torch.float64 else values.float()
        if self.chosen is None:
            return values.flatten(1)
        chosen = self.chosen
        if _is_channels_last(values):
            # Indices of the stored order: to flatten in the usual order would copy the whole layer.
            positions = math.prod(self.shape[1:])
            chosen = chosen % positions * self.shape[0] + chosen // positions
            values = values.permute(0, 2, 3, 1)
        return values.flatten(1)[:, chosen.to(values.device)]


class Thresholds(NamedTuple):
    """The result of the first pass, for every neuron."""

    neurons: Neurons
    threshold: Tensor  # it fires above, not at it; float32 or float64
    fired: Tensor  # images for which it fires, int64
    images: int
    needed: int  # the fewest images that are more than 1 %
    nans: int  # images with NaN


class Firing:
    """Pairs of an image of a batch and a neuron that fires for it, and how often it fires for the image's copies."""

    def __init__(self, image: Tensor, neuron: Tensor, images: int, thresholds: Thresholds) -> None:
        self.image, self.neuron, self.images, self.neurons = image, neuron, images, thresholds.neurons
        self.poses = self.first = 0  # first: how many images came before this batch
        self.fired = torch.zeros(len(image), dtype=torch.int32, device=image.device)
        self._threshold = thresholds.threshold.to(image.device)[neuron]
        chosen = self.neurons.chosen
        self._index = neuron if chosen is None else chosen.to(neuron.device)[neuron]
        self._offsets: dict[tuple[int, ...], Tensor] = {}

    def count(self, copies: Tensor) -> None:
        """Add one copy of every image of the batch."""
        self.fired = self.fired + (self._values(copies) > self._threshold)
        self.poses += 1

    def _values(self, copies: Tensor) -> Tensor:
        # Only the pairs are read, in the stored order: most values of a layer are not needed.
        if not (copies.is_contiguous() or _is_channels_last(copies)):
            copies = copies.contiguous()
        strides = copies.stride()
        if strides not in self._offsets:
            # As `torch.unravel_index`, whose first call takes a second to import another library.
            offsets, rest = self.image * strides[0], self._index
            for size, stride in zip(reversed(self.neurons.shape), reversed(strides[1:]), strict=True):
                offsets = offsets + rest % size * stride
                rest = rest // size
            self._offsets[strides] = offsets
        flat = copies.detach().as_strided((copies.numel(),), (1,))
        return flat[self._offsets[strides]]


class Invariance(NamedTuple):
    """The scores of a layer's neurons."""

    score: float  # mean of the best 20 %
    scores: Tensor  # of every neuron: local over global firing rate, float64
    global_rate: Tensor
    local_rate: Tensor
    ceiling: float  # the score of a neuron that fires for just over 1 % and for all copies
    unselective: int  # neurons that fire for twice as many images as needed, or more
    silent: int  # neurons that cannot fire for enough images: NaN or -inf nearly everywhere; their score is 0
    nans: int  # images with NaN in the first pass
    error: float  # standard error of the score over images, thresholds as they are; NaN below 100 images


class FiringThresholds:
    """The first pass: for every neuron the largest threshold above which it fires for more than 1 % of the images.

    The threshold is a value that the neuron took, or -inf if it has to fire for its lowest value too.

    Args:
        images: the number of images, at most.
        max_neurons: if there are more, as many are drawn by `seed` for both passes.
        seed: of the drawn neurons.

    Raises:
        ValueError: an argument is out of range, a batch has another shape, or there are too many images.
        TypeError: activations are not floating-point tensors.

    >>> first = FiringThresholds(images=4)
    >>> first.update(torch.tensor([[0.0, 5.0], [3.0, 5.0], [1.0, 5.0], [2.0, 5.0]]))
    >>> found = first.result()
    >>> found.threshold, found.fired  # the first neuron fires for one image of four; the second is constant
    (tensor([2., -inf]), tensor([1, 4]))
    """

    def __init__(self, *, images: int, max_neurons: int | None = None, seed: int = 0) -> None:
        self.images = operator.index(images)
        if self.images < 1:
            raise ValueError(f"images ({images}) must be 1 or more")
        if max_neurons is not None and max_neurons < 1:
            raise ValueError(f"max_neurons ({max_neurons}) must be 1 or more, or None for all neurons")
        self.max_neurons, self.seed = max_neurons, seed
        self.seen = self.nans = 0
        self._keep = _more_than_rate(self.images)
        self._room = max(self._keep, ROOM)
        self._neurons: Neurons | None = None
        # Of every neuron: collected values in any order, then the largest, sorted.
        self._values: np.ndarray = np.empty(0)
        self._pending = 0
        self._below: np.ndarray = np.empty(0)  # the largest value under the smallest of the largest
        self._equal: np.ndarray = np.empty(0)  # how many values equal that smallest, but are not among them

    @torch.no_grad()
    def update(self, activations: Tensor) -> None:
        """Add a batch of a layer's outputs for images as they are.

        Shape:
            activations: (images, neurons), (images, channels, height, width) or others of two dimensions or more.
        """
        _check(activations, self._neurons)
        if self.seen + len(activations) > self.images:
            raise ValueError(f"{self.seen + len(activations)} images are more than images ({self.images}): raise it")
        if self._neurons is None:
            self._start(activations)
        assert self._neurons is not None
        values = self._neurons(activations)
        missing = values.isnan()
        self.nans += int(missing.any(1).sum())
        rows = values.masked_fill(missing, -torch.inf).cpu().numpy()
        self.seen += len(rows)
        while len(rows):
            taken = rows[: self._room - self._pending]
            self._values[:, self._pending : self._pending + len(taken)] = taken.T
            self._pending += len(taken)
            rows = rows[len(taken) :]
            if self._pending == self._room:
                self._merge()

    def result(self) -> Thresholds:
        """The thresholds for the images so far; more may follow."""
        if self._neurons is None:
            raise ValueError("no images were measured: call update first")
        self._merge()
        needed = _more_than_rate(self.seen)
        largest = self._values[:, self._room :]
        last = largest[:, -needed, None]
        # The largest value under the last one, among the largest or beneath them.
        under = (largest < last).sum(1)
        index = np.maximum(under - 1, 0)[:, None]
        threshold = np.where(under > 0, np.take_along_axis(largest, index, 1)[:, 0], self._below)
        threshold = np.where(last[:, 0] == -np.inf, last[:, 0], threshold)
        above = largest > threshold[:, None]
        fired = above.sum(1) + np.where(above[:, 0], self._equal, 0)
        return Thresholds(
            neurons=self._neurons,
            threshold=torch.from_numpy(threshold),
            fired=torch.from_numpy(fired),
            images=self.seen,
            needed=needed,
            nans=self.nans,
        )

    def _start(self, activations: Tensor) -> None:
        neurons = Neurons(tuple(activations.shape[1:]), None)
        if self.max_neurons is not None and neurons.number > self.max_neurons:
            random = torch.Generator().manual_seed(self.seed)
            chosen = torch.randperm(neurons.number, generator=random)[: self.max_neurons].sort().values
            neurons = neurons._replace(chosen=chosen)
        self._neurons = neurons
        kind = np.float64 if activations.dtype == torch.float64 else np.float32
        self._values = np.full((neurons.number, self._room + self._keep), -np.inf, kind)
        self._below = np.full(neurons.number, -np.inf, kind)
        self._equal = np.zeros(neurons.number, np.int64)

    def _merge(self) -> None:
        """Sort collected values among the largest, in place; those beneath them are counted and dropped."""
        room, pending = self._room, self._pending
        if not pending:
            return
        for start in range(0, len(self._values), BLOCK):
            block = slice(start, start + BLOCK)
            values = self._values[block]
            values[:, pending:room] = -np.inf  # left there by the last merge
            before = values[:, room].copy()
            values.sort(axis=1)
            last, rest = values[:, room, None], values[:, :room]
            equal = (rest == last).sum(1)
            self._equal[block] = equal + np.where(last[:, 0] == before, self._equal[block], 0)
            under = room - equal  # `rest` is sorted, and nothing in it is above `last`
            index = np.maximum(under - 1, 0)[:, None]
            highest = np.where(under > 0, np.take_along_axis(rest, index, 1)[:, 0], -np.inf)
            self._below[block] = np.maximum(self._below[block], highest)
        self._pending = 0


class LocalFiring:
    """The second pass: how often neurons fire for copies of the images for which they fire, and the layer's score.

    Raises:
        ValueError: the shapes do not match each other or the first pass.
        TypeError: activations are not floating-point tensors.

    >>> images = torch.eye(4)  # four neurons, each of which detects its own position
    >>> first = FiringThresholds(images=4)
    >>> first.update(images)
    >>> second = LocalFiring(first.result())
    >>> second.update(images, torch.cat([images, images.roll(1, 1)]))  # as they are, and shifted by one
    >>> second.result().score  # half of the copies, a quarter of the images
    2.0
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        # Neurons without a threshold fire for everything: none of their copies need be counted.
        self._always = thresholds.threshold == -torch.inf
        self._limit = thresholds.threshold.masked_fill(self._always, torch.inf)
        self._open: Firing | None = None
        # Images are dealt out to groups; leaving out one group after the other shows how sure the score is.
        self._copies = torch.zeros(GROUPS, len(self._limit), dtype=torch.int64)
        self._fired = torch.zeros_like(self._copies)
        self._seen = self._started = 0

    @torch.no_grad()
    def firing(self, original: Tensor) -> Firing:
        """The pairs of an image and a neuron that fires for it; give it to `update` for every pose of the batch."""
        neurons = self.thresholds.neurons
        _check(original, neurons)
        values = neurons(original)
        image, neuron = (values > self._limit.to(values.device)).nonzero(as_tuple=True)
        firing = Firing(image, neuron, len(original), self.thresholds)
        firing.first, self._started = self._started, self._started + len(original)
        return firing

    @torch.no_grad()
    def update(self, original: Tensor | Firing, copies: Tensor) -> None:
        """Add a batch of a layer's outputs for images as they are, and for transformed copies of them.

        Every copy counts, also one in the original pose: a set of poses should have it once.

        Shape:
            original: (images, ...) as in the first pass, or `firing` of it.
            copies: (poses * images, ...): the whole batch in one pose, then in the next; one pose or more.
        """
        _check(copies, self.thresholds.neurons)
        images = original.images if isinstance(original, Firing) else len(original)
        if not images or len(copies) % images:
            raise ValueError(f"copies ({len(copies)}) must be of all {images} images, a whole batch for every pose")
        self._seen += len(copies)
        pairs = original if isinstance(original, Firing) else self.firing(original)
        if pairs is not self._open:
            self._close()
            self._open = pairs
        for part in copies.split(images):
            pairs.count(part)

    def result(self) -> Invariance:
        """The scores for the copies so far."""
        self._close()
        if not self._seen:
            raise ValueError("no copies were measured: call update first")
        found = self.thresholds
        global_rate = found.fired.double() / found.images
        copies, fired = self._copies.sum(0), self._fired.sum(0)
        local_rate = torch.where(self._always, global_rate, fired.double() / copies.clamp(min=1))
        silent = found.fired < found.needed

        def of(rates: Tensor) -> Tensor:
            return torch.where(silent, 0.0, rates / global_rate.masked_fill(silent, 1.0))

        scores = of(local_rate)
        best = math.ceil(BEST * len(scores))
        others = []
        for own, gone in zip(self._copies, self._fired, strict=True):
            if bool(own.any()):
                left = copies - own
                rates = (fired - gone).double() / left.clamp(min=1)
                rates = torch.where((left == 0) | self._always, local_rate, rates)
                others.append(float(of(rates).topk(best).values.mean()))
        return Invariance(
            score=math.fsum(scores.sort(descending=True).values[:best].tolist()) / best,
            scores=scores,
            global_rate=global_rate,
            local_rate=local_rate,
            ceiling=found.images / found.needed,
            unselective=int((found.fired >= 2 * found.needed).sum()),
            silent=int(silent.sum()),
            nans=found.nans,
            error=jackknife_error(others) if found.needed > 1 else math.nan,
        )

    def _close(self) -> None:
        """Add the counts of the last batch's pairs to their neurons."""
        pairs, self._open = self._open, None
        if pairs is not None and len(pairs.neuron):
            neuron = pairs.neuron.cpu()
            # Not in place: tensors made in inference mode cannot be changed outside of it.
            place = (pairs.first + pairs.image.cpu()) % GROUPS * self._copies.shape[1] + neuron
            copies = pairs.poses * torch.bincount(place, minlength=self._copies.numel())
            self._copies = self._copies + copies.view_as(self._copies)
            self._fired = self._fired.flatten().index_add(0, place, pairs.fired.cpu().long()).view_as(self._copies)
            pairs.poses, pairs.fired = 0, torch.zeros_like(pairs.fired)


def jackknife_error(others: Sequence[float]) -> float:
    """The standard error of a number, from its values without each of the groups; NaN with fewer than two.

    >>> round(jackknife_error([1.0, 1.0, 4.0]), 3)
    2.0
    """
    if len(others) < 2:
        return math.nan
    mean = math.fsum(others) / len(others)
    return math.sqrt((len(others) - 1) / len(others) * math.fsum((other - mean) ** 2 for other in others))


def _more_than_rate(images: int) -> int:
    """The fewest images that are more than 1 % of all."""
    return math.floor(RATE * images) + 1


def _is_channels_last(maps: Tensor) -> bool:
    return maps.dim() == 4 and maps.is_contiguous(memory_format=torch.channels_last)


def _check(activations: Tensor, neurons: Neurons | None) -> None:
    if not isinstance(activations, Tensor) or not activations.is_floating_point():
        kind = activations.dtype if isinstance(activations, Tensor) else type(activations).__name__
        raise TypeError(f"activations must be a floating-point tensor, got {kind}")
    if activations.dim() < 2 or not math.prod(activations.shape[1:]):
        raise ValueError(f"activations must be (images, neurons, ...), got {tuple(activations.shape)}")
    if neurons is not None and tuple(activations.shape[1:]) != neurons.shape:
        raise ValueError(
            f"activations {tuple(activations.shape)} do not match the first batch, (images, "
            f"{', '.join(map(str, neurons.shape))}): measure images of one size"
        )

"""How invariant the neurons of a layer are: firing rates as Goodfellow et al. (NIPS 2009) and the paper measure them.

Two passes. `FiringThresholds` sees the images as they are and finds for every neuron the threshold above which it fires
for just over 1 % of them. `LocalFiring` then sees transformed copies and counts how often a neuron goes on firing.
Memory: the largest 1 % of each neuron's values and as much again to sort them in, at least 256, whatever the number
of images; the second pass keeps two counts a neuron. Nothing depends on how images are put into batches.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

Maps = Literal["each", "max", "mean"]
Signs = Literal["positive", "best"]
Around = Literal["firing", "all"]
ROOM = 256  # values of a neuron that wait, at least, before they are sorted among the largest
BLOCK = 4096  # neurons that are sorted at a time


class Neurons(NamedTuple):
    """Which numbers of a layer's output are its neurons."""

    shape: tuple[int, ...]  # of the output for one image
    maps: Maps
    signs: Signs
    chosen: Tensor | None  # indices of those that are measured; None for all

    @property
    def number(self) -> int:
        """How many are measured."""
        everything = math.prod(self.shape) if self.maps == "each" else self.shape[0]
        return everything if self.chosen is None else len(self.chosen)

    def __call__(self, activations: Tensor) -> Tensor:
        """(images, number), or twice as many where both signs are tried: first as they are, then negated."""
        if self.chosen is not None and self.maps == "each" and _is_channels_last(activations):
            # Where they lie: to have all in the usual order first would copy the whole layer.
            channel, place = self.chosen // math.prod(self.shape[1:]), self.chosen % math.prod(self.shape[1:])
            stored = place * self.shape[0] + channel
            values = _responses(activations.permute(0, 2, 3, 1), "each")[:, stored.to(activations.device)]
        else:
            values = _responses(activations, self.maps)
            values = values if self.chosen is None else values[:, self.chosen.to(values.device)]
        return torch.cat([values, -values], 1) if self.signs == "best" else values


class Thresholds(NamedTuple):
    """What the first pass found; both signs of a neuron have entries of their own, where they were asked for."""

    neurons: Neurons
    threshold: Tensor  # a neuron fires above it, not at it; float32 or float64
    fired: Tensor  # images for which it fires, int64
    images: int
    needed: int  # the fewest images that are more than the rate
    nans: int  # images with NaN in what was measured


class Firing:
    """The pairs of an image of a batch and a neuron that fires for it, and how often it did for the image's copies."""

    def __init__(self, image: Tensor, neuron: Tensor, images: int, thresholds: Thresholds) -> None:
        self.image, self.neuron, self.images, self.neurons = image, neuron, images, thresholds.neurons
        self.poses = 0
        self.fired = torch.zeros(len(image), dtype=torch.int32, device=image.device)
        self._threshold = thresholds.threshold.to(image.device)[neuron]
        self._low = neuron >= self.neurons.number if self.neurons.signs == "best" else None
        place = neuron if self._low is None else neuron - self.neurons.number * self._low
        chosen = self.neurons.chosen
        self._place = place if chosen is None else chosen.to(place.device)[place]
        self._offsets: dict[tuple[int, ...], Tensor] = {}

    def count(self, copies: Tensor) -> None:
        """Take one copy of every image of the batch."""
        values = self._values(copies)
        values = values if self._low is None else torch.where(self._low, -values, values)
        self.fired = self.fired + (values > self._threshold)
        self.poses += 1

    def _values(self, copies: Tensor) -> Tensor:
        if self.neurons.maps != "each":
            return _responses(copies, self.neurons.maps)[self.image, self._place]
        # Only the pairs are read, and where they lie: most values of a layer are not looked at again.
        if not (copies.is_contiguous() or _is_channels_last(copies)):
            copies = copies.contiguous()
        strides = copies.stride()
        if strides not in self._offsets:
            # As torch.unravel_index would do, whose first call imports another library: a second.
            offsets, rest = self.image * strides[0], self._place
            for size, stride in zip(reversed(self.neurons.shape), reversed(strides[1:]), strict=True):
                offsets = offsets + rest % size * stride
                rest = rest // size
            self._offsets[strides] = offsets
        flat = copies.detach().as_strided((copies.numel(),), (1,))
        return flat[self._offsets[strides]]


class Invariance(NamedTuple):
    """The scores of a layer's neurons, and their best."""

    score: float  # mean of the best
    best: int  # how many that are
    scores: Tensor  # of every neuron, local over global rate, float64
    global_rate: Tensor
    local_rate: Tensor
    sign: Tensor  # 1 where a neuron fires for high values, -1 where for low ones
    ceiling: float  # the score of a neuron that fires for just over 1 % and never stops
    unselective: int  # neurons that fire for twice as many images as needed, or more
    silent: int  # neurons that do not fire for enough images: NaN or -inf nearly everywhere; their score is 0
    nans: int  # images with NaN in the first pass


class FiringThresholds:
    """The first pass: for every neuron the largest threshold above which it fires for more than `rate` of the images.

    The threshold is a value that the neuron took, or -inf if it has to fire for its lowest value too.

    Args:
        images: how many there will be, at most.
        rate: of firing, over the images as they are.
        maps: of feature maps every place is a neuron ("each"), or every channel, by its largest or mean response.
        signs: "positive" counts high responses as firing; "best" also tries low ones and takes the better score.
        most: measure at most so many neurons, drawn by `seed`; a subset is drawn once, for both passes.

    Raises:
        ValueError: an argument is out of range; a batch has another shape, or too many images came.
        TypeError: activations are not floating-point tensors.

    >>> first = FiringThresholds(images=4)
    >>> first.update(torch.tensor([[0.0, 5.0], [3.0, 5.0], [1.0, 5.0], [2.0, 5.0]]))
    >>> found = first.result()
    >>> found.threshold, found.fired  # the first neuron fires for one of four, the second cannot but fire always
    (tensor([2., -inf]), tensor([1, 4]))
    """

    def __init__(
        self,
        *,
        images: int,
        rate: float = 0.01,
        maps: Maps = "each",
        signs: Signs = "positive",
        most: int | None = None,
        seed: int = 0,
    ) -> None:
        self.images = operator.index(images)
        if self.images < 1:
            raise ValueError(f"images ({images}) must be 1 or more")
        if not 0 <= rate < 1:
            raise ValueError(f"rate ({rate}) must be at least 0 and below 1")
        if maps not in ("each", "max", "mean"):
            raise ValueError(f"maps ({maps!r}) must be 'each', 'max' or 'mean'")
        if signs not in ("positive", "best"):
            raise ValueError(f"signs ({signs!r}) must be 'positive' or 'best'")
        if most is not None and most < 1:
            raise ValueError(f"most ({most}) must be 1 or more, or None for all neurons")
        self.rate, self.maps, self.signs, self.most, self.seed = rate, maps, signs, most, seed
        self.seen = self.nans = 0
        self._keep = _more_than(rate, self.images)
        self._room = max(self._keep, ROOM)
        self._neurons: Neurons | None = None
        # Of every neuron: values that wait, then the largest ones, sorted once a merge is done.
        self._values: np.ndarray = np.empty(0)
        self._waiting = 0
        self._below: np.ndarray = np.empty(0)  # the largest value under the smallest that is kept
        self._equal: np.ndarray = np.empty(0)  # values like the smallest that is kept, but not kept

    @torch.no_grad()
    def update(self, activations: Tensor) -> None:
        """Take a batch of a layer's outputs for images as they are.

        Shape:
            activations: (images, neurons), (images, channels, height, width) or others of two dimensions or more.
        """
        _check(activations, self._neurons)
        if self.seen + len(activations) > self.images:
            raise ValueError(
                f"{self.seen + len(activations)} images, but images ({self.images}) was said to be the most: raise it"
            )
        if self._neurons is None:
            self._start(activations)
        assert self._neurons is not None
        values = self._neurons(activations)
        missing = values.isnan()
        self.nans += int(missing.any(1).sum())
        rows = values.masked_fill(missing, -torch.inf).cpu().numpy()
        self.seen += len(rows)
        while len(rows):
            taken = rows[: self._room - self._waiting]
            self._values[:, self._waiting : self._waiting + len(taken)] = taken.T
            self._waiting += len(taken)
            rows = rows[len(taken) :]
            if self._waiting == self._room:
                self._merge()

    def result(self) -> Thresholds:
        """The thresholds for the images so far; more may follow."""
        if self._neurons is None:
            raise ValueError("no images were measured: call update first")
        self._merge()
        needed = _more_than(self.rate, self.seen)
        kept = self._values[:, self._room :]
        last = kept[:, -needed, None]
        # The largest value under the last one, among those that are kept or beneath them.
        under = (kept < last).sum(1)
        place = np.maximum(under - 1, 0)[:, None]
        threshold = np.where(under > 0, np.take_along_axis(kept, place, 1)[:, 0], self._below)
        threshold = np.where(last[:, 0] == -np.inf, last[:, 0], threshold)
        above = kept > threshold[:, None]
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
        shape = tuple(activations.shape[1:])
        neurons = Neurons(shape, self.maps, self.signs, None)
        if self.most is not None and neurons.number > self.most:
            random = torch.Generator().manual_seed(self.seed)
            chosen = torch.randperm(neurons.number, generator=random)[: self.most].sort().values
            neurons = neurons._replace(chosen=chosen)
        self._neurons = neurons
        count = neurons.number * (2 if self.signs == "best" else 1)
        kind = np.float64 if activations.dtype == torch.float64 else np.float32
        self._values = np.full((count, self._room + self._keep), -np.inf, kind)
        self._below = np.full(count, -np.inf, kind)
        self._equal = np.zeros(count, np.int64)

    def _merge(self) -> None:
        """Sort what waits among the largest values, in place; what is then beneath them is counted and forgotten."""
        room, waiting = self._room, self._waiting
        if not waiting:
            return
        for start in range(0, len(self._values), BLOCK):
            block = slice(start, start + BLOCK)
            values = self._values[block]
            values[:, waiting:room] = -np.inf  # left there by the merge before
            before = values[:, room].copy()
            values.sort(axis=1)
            last, rest = values[:, room, None], values[:, :room]
            equal = (rest == last).sum(1)
            self._equal[block] = equal + np.where(last[:, 0] == before, self._equal[block], 0)
            under = room - equal  # `rest` is sorted, and nothing in it is above `last`
            place = np.maximum(under - 1, 0)[:, None]
            highest = np.where(under > 0, np.take_along_axis(rest, place, 1)[:, 0], -np.inf)
            self._below[block] = np.maximum(self._below[block], highest)
        self._waiting = 0


class LocalFiring:
    """The second pass: how often neurons fire for transformed copies, and the layer's score.

    Args:
        thresholds: of the first pass.
        around: "firing" looks at the copies of those images for which a neuron fires (Goodfellow et al.: the inputs
            that activate it most); "all" at the copies of all images, as the paper's sentence may be read.
        top: part of the neurons, the best, whose mean is the layer's score.

    Raises:
        ValueError: an argument is out of range, or the shapes do not fit each other or the first pass.
        TypeError: activations are not floating-point tensors.

    >>> images = torch.eye(4)  # four neurons, each of which sees its own place only
    >>> first = FiringThresholds(images=4)
    >>> first.update(images)
    >>> second = LocalFiring(first.result(), top=1.0)
    >>> second.update(images, torch.cat([images, images.roll(1, 1)]))  # as they are, and shifted by one
    >>> second.result().score  # half of the copies, a quarter of the images
    2.0
    """

    def __init__(self, thresholds: Thresholds, *, around: Around = "firing", top: float = 0.2) -> None:
        if around not in ("firing", "all"):
            raise ValueError(f"around ({around!r}) must be 'firing' or 'all'")
        if not 0 < top <= 1:
            raise ValueError(f"top ({top}) must be above 0 and at most 1")
        self.thresholds, self.around, self.top = thresholds, around, top
        # Neurons without a threshold fire for everything: no copy of theirs need be looked at.
        self._always = thresholds.threshold == -torch.inf
        self._limit = thresholds.threshold.masked_fill(self._always, torch.inf if around == "firing" else -torch.inf)
        self._open: Firing | None = None
        self._copies = torch.zeros(len(self._limit), dtype=torch.int64)
        self._fired = torch.zeros_like(self._copies)
        self._seen = 0

    @torch.no_grad()
    def firing(self, original: Tensor) -> Firing:
        """For which images of a batch which neurons fire; give it to `update` for every pose, to find it only once."""
        neurons = self.thresholds.neurons
        _check(original, neurons)
        values = neurons(original)
        image, neuron = (values > self._on(values)).nonzero(as_tuple=True)
        return Firing(image, neuron, len(original), self.thresholds)

    @torch.no_grad()
    def update(self, original: Tensor | Firing, copies: Tensor) -> None:
        """Take a batch of a layer's outputs for images as they are, and for transformed copies of them.

        Every copy counts, one that was not changed too: a grid of poses should hold it once.

        Shape:
            original: (images, ...) as in the first pass, or what `firing` made of it.
            copies: (poses * images, ...): the whole batch in one pose, then in the next; one pose or more.
        """
        neurons = self.thresholds.neurons
        _check(copies, neurons)
        images = original.images if isinstance(original, Firing) else len(original)
        if not images or len(copies) % images:
            raise ValueError(f"copies ({len(copies)}) must be of all {images} images, a whole batch for every pose")
        self._seen += len(copies)
        if self.around == "all":
            values = neurons(copies)
            fires = values > self._on(values)
            self._fired = self._fired + fires.view(torch.uint8).sum(0, dtype=torch.int64).cpu()
            self._copies = self._copies + len(copies)
            return
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
        everywhere = found.fired.double() / found.images
        local = self._fired.double() / self._copies.clamp(min=1)
        silent = found.fired < found.needed
        if self.around == "firing":
            local = torch.where(self._always, everywhere, local)
        scores = torch.where(silent, 0.0, local / everywhere.masked_fill(silent, 1.0))
        sign = torch.ones(len(scores), dtype=torch.int64)
        if found.neurons.signs == "best":
            half = len(scores) // 2
            low = scores[half:] > scores[:half]  # of equal scores the positive sign is kept
            take = torch.arange(half) + half * low
            sign = 1 - 2 * low.long()
            scores, everywhere, local, silent = (of[take] for of in (scores, everywhere, local, silent))
            fired = found.fired[take]
        else:
            fired = found.fired
        best = math.ceil(Fraction(str(self.top)) * len(scores))
        chosen = scores.sort(descending=True).values[:best].tolist()
        return Invariance(
            score=math.fsum(chosen) / best if best else math.nan,
            best=best,
            scores=scores,
            global_rate=everywhere,
            local_rate=local,
            sign=sign,
            ceiling=found.images / found.needed,
            unselective=int((fired >= 2 * found.needed).sum()),
            silent=int(silent.sum()),
            nans=found.nans,
        )

    def _close(self) -> None:
        """Add what was counted for the pairs of a batch to their neurons."""
        pairs, self._open = self._open, None
        if pairs is not None and len(pairs.neuron):
            neuron = pairs.neuron.cpu()
            # Not in place: the mode that tensors were made in, such as inference, may not be that of now.
            self._copies = self._copies + pairs.poses * torch.bincount(neuron, minlength=len(self._copies))
            self._fired = self._fired.index_add(0, neuron, pairs.fired.cpu().long())
            pairs.poses, pairs.fired = 0, torch.zeros_like(pairs.fired)

    def _on(self, like: Tensor) -> Tensor:
        """The thresholds where the activations are."""
        if self._limit.device != like.device:
            self._limit = self._limit.to(like.device)
        return self._limit


def _more_than(rate: float, images: int) -> int:
    """The fewest images that are more than `rate` of all; the rate is the decimal number that was written."""
    return math.floor(Fraction(str(rate)) * images) + 1


def _responses(activations: Tensor, maps: Maps) -> Tensor:
    values = activations.detach()
    values = values if values.dtype == torch.float64 else values.float()
    if maps == "each" or values.dim() == 2:
        return values.flatten(1)
    places = values.flatten(2)
    return places.amax(2) if maps == "max" else places.mean(2)


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
            f"activations {tuple(activations.shape)} do not fit the first batch, (images, "
            f"{', '.join(map(str, neurons.shape))}): measure images of one size"
        )

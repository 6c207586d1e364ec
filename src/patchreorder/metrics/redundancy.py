"""How much the weights of a fully connected layer repeat each other: the paper's Fig. 2 (log histograms of cosines).

Two questions, which must not be mixed up. `position_similarity`: inside every output neuron, the weights of one place
of the feature map against those of another. This is what Eq. 4 says must be alike in a network that has learned to
ignore places. `neuron_similarity`: all weights of one output neuron against those of another; it needs no map, and so
it is the only one of the two that fc7 has. The paper does not say which its figure shows.

Products are in single precision, so that a cosine may be off by about 1e-6: one so near to the edge of a bin may be
counted in either, depending on the size of the blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

BINS = 201  # an odd number: zero lies in the middle of a bin, not on an edge
ROOM = 1 << 23  # numbers that are at hand at a time


class Similarities(NamedTuple):
    """Cosines of pairs of weight vectors."""

    counts: Tensor  # (bins,), int64
    edges: Tensor  # (bins + 1,), float64, from -1 to 1
    mean: float
    mean_magnitude: float  # of |cosine|
    pairs: int
    undefined: int  # pairs left out because a vector is zero

    @property
    def log_counts(self) -> Tensor:
        """log10(1 + count), so that an empty bin is 0."""
        return self.counts.double().log1p() / math.log(10)

    @property
    def shares(self) -> Tensor:
        """Of all pairs, to compare layers with unequal numbers of pairs."""
        return self.counts.double() / max(1, self.pairs)


class SimilarityHistogram:
    """Counts cosines block by block; bins are of equal width, a value on an edge is in the upper one, 1 in the last.

    >>> histogram = SimilarityHistogram(bins=3)
    >>> histogram.update(torch.tensor([1.0, -1.0, 0.0, 0.25, float("nan")]))
    >>> found = histogram.result()
    >>> found.counts, found.mean, found.undefined
    (tensor([1, 2, 1]), 0.0625, 1)
    """

    def __init__(self, *, bins: int = BINS) -> None:
        if bins < 1:
            raise ValueError(f"bins ({bins}) must be 1 or more")
        self.bins = bins
        self.undefined = 0
        self._counts = torch.zeros(bins, dtype=torch.int64)
        self._sums: list[tuple[float, float]] = []

    @torch.no_grad()
    def update(self, cosines: Tensor) -> None:
        """Take cosines, of any shape; NaN stands for an undefined one."""
        values = cosines.detach().flatten()
        missing = values.isnan()
        if bool(missing.any()):
            values = values[~missing]
            self.undefined += int(missing.sum())
        # Rounding can lead a little beyond 1.
        values = values.clamp(-1, 1)
        places = ((values + 1) * (self.bins / 2)).int().clamp_(max=self.bins - 1)
        self._counts = self._counts + torch.bincount(places, minlength=self.bins).cpu()
        self._sums.append((values.sum(dtype=torch.float64).item(), values.abs_().sum(dtype=torch.float64).item()))

    def result(self) -> Similarities:
        """The histogram so far."""
        pairs = int(self._counts.sum())
        mean, magnitude = (
            math.fsum(column) / pairs if pairs else math.nan for column in zip(*self._sums or [(0, 0)], strict=True)
        )
        edges = torch.linspace(-1, 1, self.bins + 1, dtype=torch.float64)
        return Similarities(self._counts.clone(), edges, mean, magnitude, pairs, self.undefined)


def position_similarity(weight: Tensor, *, maps: int, bins: int = BINS, block: int | None = None) -> Similarities:
    """Cosines between the weights of different places, within every output neuron.

    The layer's input is `maps` feature maps, flattened map by map, as `flatten` and Caffe do. For fc6 of AlexNet, 4096
    x 9216 with 256 maps of 6x6: each of the 4096 neurons has 36 vectors w_ij of 256 numbers (Eq. 1), one for each
    place; every two of them are compared, 36 * 35 / 2 = 630 pairs, 2,580,480 over all neurons. Vectors of different
    neurons are never compared.

    Shape:
        weight: (outputs, maps * places), floating.

    Args:
        weight: of the layer, as `nn.Linear` has it.
        maps: feature maps that it is connected to.
        bins: of the histogram.
        block: output neurons at a time; by default as many as have 32 MB.

    Raises:
        ValueError: weight is not such a matrix, is not finite, or has fewer than two places.

    >>> weight = torch.tensor([[1.0, 1.0, 2.0, 2.0], [1.0, 0.0, 0.0, 1.0]])  # two neurons, two maps of two places
    >>> found = position_similarity(weight, maps=2)
    >>> found.pairs, round(found.mean, 4)  # the first neuron's places are alike (1), the second's are not (0)
    (2, 0.5)
    """
    _check(weight, block)
    inputs = weight.shape[1]
    if maps < 1 or inputs % maps or inputs // maps < 2:
        raise ValueError(
            f"maps ({maps}) must divide the {inputs} inputs of the layer into maps of two places or more each; a layer "
            f"without places, such as fc7, has `neuron_similarity` only"
        )
    places = inputs // maps
    upper = torch.ones(places, places, dtype=torch.bool, device=weight.device).triu(1)
    histogram = SimilarityHistogram(bins=bins)
    for rows in weight.detach().split(block or max(1, ROOM // (inputs + places * places))):
        vectors = _unit(rows.unflatten(1, (maps, places)).transpose(1, 2))  # outputs places maps
        histogram.update((vectors @ vectors.mT)[:, upper])
    return histogram.result()


def neuron_similarity(weight: Tensor, *, bins: int = BINS, block: int | None = None) -> Similarities:
    """Cosines between the weights of every two output neurons, all inputs together.

    For fc6 of AlexNet, 4096 x 9216: 8,386,560 pairs of vectors of 9216 numbers; for fc7, 4096 x 4096, as many, of 4096.

    Shape:
        weight: (outputs, inputs), floating; of more dimensions, such as a convolution's, all but the first are inputs.

    Args:
        weight: of the layer, as `nn.Linear` has it.
        bins: of the histogram.
        block: neurons that are compared with as many others at a time; by default what has 32 MB.

    Raises:
        ValueError: weight is not such a matrix, is not finite, or has fewer than two neurons.

    >>> neuron_similarity(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])).mean  # 1, 0 and 0
    0.3333333333333333
    """
    if weight.dim() > 2:
        weight = weight.flatten(1)
    _check(weight, block)
    if len(weight) < 2:
        raise ValueError(f"weight {tuple(weight.shape)} must have two output neurons or more to be compared")
    block = block or max(1, min(1024, ROOM // (2 * weight.shape[1])))
    histogram = SimilarityHistogram(bins=bins)
    parts = weight.detach().split(block)
    for i, rows in enumerate(parts):
        vectors = _unit(rows)
        own = vectors @ vectors.mT
        histogram.update(own[torch.ones_like(own, dtype=torch.bool).triu(1)])
        for others in parts[i + 1 :]:
            histogram.update(vectors @ _unit(others).mT)
    return histogram.result()


def _unit(vectors: Tensor) -> Tensor:
    """Of length 1 along the last dimension; NaN where all are zero, so that their cosines are undefined."""
    vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
    largest = vectors.abs().amax(-1, keepdim=True)  # first to a size whose square neither vanishes nor overflows
    vectors = vectors / largest
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def _check(weight: Tensor, block: int | None) -> None:
    if weight.dim() != 2 or not weight.is_floating_point() or not weight.numel():
        raise ValueError(
            f"weight must be (outputs, inputs) floating-point numbers, got {tuple(weight.shape)} {weight.dtype}"
        )
    if block is not None and block < 1:
        raise ValueError(f"block ({block}) must be 1 or more")
    if not all(bool(rows.isfinite().all()) for rows in weight.split(1024)):
        raise ValueError("weight holds NaN or infinite numbers: the network is not trained or its file is damaged")

"""How much the weights of a fully connected layer repeat each other: the paper's Fig. 2, histograms of cosines.

`position_similarity` compares, inside every output neuron, the weights of one position of the feature map with those of
another. Eq. 4 says that they are equal in a network that has learned to ignore positions. `neuron_similarity` compares
all weights of one output neuron with those of another. It needs no feature map, so it is the only one for fc7. The
paper does not say which its figure shows.

Cosines are computed in single precision and exact to about 1e-6: one that close to the edge of a bin may be counted on
either side, depending on the size of the blocks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

BINS = 201  # an odd number: zero is in the middle of a bin, not on an edge
ROOM = 1 << 23  # numbers in memory at a time: 32 MB


class Similarities(NamedTuple):
    """Cosines of pairs of weight vectors."""

    counts: Tensor  # (bins,), int64
    edges: Tensor  # (bins + 1,), float64, from -1 to 1
    mean: float
    mean_magnitude: float  # of |cosine|
    pairs: int
    undefined: int  # pairs left out because a vector is zero

    @property
    def shares(self) -> Tensor:
        """Counts over all pairs, to compare layers with unequal numbers of pairs."""
        return self.counts.double() / max(1, self.pairs)


class SimilarityHistogram:
    """Counts cosines block by block, in bins of equal width; a value on an edge is in the upper bin, 1 in the last.

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
        """Add cosines, of any shape; NaN for undefined ones."""
        values = cosines.detach().flatten()
        missing = values.isnan()
        if bool(missing.any()):
            values = values[~missing]
            self.undefined += int(missing.sum())
        values = values.clamp(-1, 1)  # rounding can exceed 1
        bins = ((values + 1) * (self.bins / 2)).int().clamp_(max=self.bins - 1)
        self._counts = self._counts + torch.bincount(bins, minlength=self.bins).cpu()
        self._sums.append((values.sum(dtype=torch.float64).item(), values.abs_().sum(dtype=torch.float64).item()))

    def result(self) -> Similarities:
        """The histogram so far."""
        pairs = int(self._counts.sum())
        mean, magnitude = (
            math.fsum(column) / pairs if pairs else math.nan for column in zip(*self._sums or [(0, 0)], strict=True)
        )
        edges = torch.linspace(-1, 1, self.bins + 1, dtype=torch.float64)
        return Similarities(self._counts.clone(), edges, mean, magnitude, pairs, self.undefined)


def position_similarity(weight: Tensor, *, maps: int, bins: int = BINS) -> Similarities:
    """Cosines between the weights of different positions, within every output neuron.

    The layer's input is `maps` feature maps, flattened map by map. fc6 of AlexNet, for example, is 4096 x 9216, behind
    256 maps of 6x6. Each of its 4096 neurons has 36 vectors w_ij of 256 numbers (Eq. 1), one for each position, and
    36 * 35 / 2 = 630 pairs of them: 2,580,480 over all neurons. Vectors of different neurons are not compared.

    Shape:
        weight: (outputs, maps * positions), floating.

    Args:
        weight: of an `nn.Linear`.
        maps: the number of feature maps in its input.
        bins: of the histogram.

    Raises:
        ValueError: weight has another shape, is not finite, or has fewer than two positions.

    >>> weight = torch.tensor([[1.0, 1.0, 2.0, 2.0], [1.0, 0.0, 0.0, 1.0]])  # two neurons, two maps of two positions
    >>> found = position_similarity(weight, maps=2)
    >>> found.pairs, round(found.mean, 4)  # 1 within the first neuron, 0 within the second
    (2, 0.5)
    """
    _check(weight)
    inputs = weight.shape[1]
    if maps < 1 or inputs % maps or inputs // maps < 2:
        raise ValueError(
            f"maps ({maps}) must divide the {inputs} inputs of the layer into maps of two positions or more; for a "
            f"layer without positions, such as fc7, use `neuron_similarity`"
        )
    positions = inputs // maps
    upper = torch.ones(positions, positions, dtype=torch.bool, device=weight.device).triu(1)
    histogram = SimilarityHistogram(bins=bins)
    for rows in weight.detach().split(max(1, ROOM // (inputs + positions * positions))):
        vectors = _unit(rows.unflatten(1, (maps, positions)).transpose(1, 2))  # outputs positions maps
        histogram.update((vectors @ vectors.mT)[:, upper])
    return histogram.result()


def neuron_similarity(weight: Tensor, *, bins: int = BINS) -> Similarities:
    """Cosines between the weights of every two output neurons, all inputs together.

    fc6 and fc7 of AlexNet have 8,386,560 pairs each, of 9216 and 4096 numbers.

    Shape:
        weight: (outputs, inputs), floating; more dimensions, such as those of a convolution, are flattened.

    Args:
        weight: of an `nn.Linear`.
        bins: of the histogram.

    Raises:
        ValueError: weight has another shape, is not finite, or has fewer than two neurons.

    >>> neuron_similarity(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])).mean  # 1, 0 and 0
    0.3333333333333333
    """
    if weight.dim() > 2:
        weight = weight.flatten(1)
    _check(weight)
    if len(weight) < 2:
        raise ValueError(f"weight {tuple(weight.shape)} must have two output neurons or more")
    histogram = SimilarityHistogram(bins=bins)
    parts = weight.detach().split(max(1, min(1024, ROOM // (2 * weight.shape[1]))))
    for i, rows in enumerate(parts):
        vectors = _unit(rows)
        own = vectors @ vectors.mT
        histogram.update(own[torch.ones_like(own, dtype=torch.bool).triu(1)])
        for others in parts[i + 1 :]:
            histogram.update(vectors @ _unit(others).mT)
    return histogram.result()


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1 along the last dimension; NaN where all are zero: their cosines are undefined."""
    vectors = vectors if vectors.dtype == torch.float64 else vectors.float()
    vectors = vectors / vectors.abs().amax(-1, keepdim=True)  # or squares could underflow or overflow
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def _check(weight: Tensor) -> None:
    if weight.dim() != 2 or not weight.is_floating_point() or not weight.numel():
        raise ValueError(
            f"weight must be (outputs, inputs) floating-point numbers, got {tuple(weight.shape)} {weight.dtype}"
        )
    if not all(bool(rows.isfinite().all()) for rows in weight.split(1024)):
        raise ValueError("weight holds NaN or infinite numbers: the network is not trained or its file is damaged")

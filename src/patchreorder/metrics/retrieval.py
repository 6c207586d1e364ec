"""How well images find those of their own group: the NS-score of UK-Bench, by exact search.

The four nearest of a query are the query itself, which always comes first, and the three nearest others by Euclidean
distance; of equal distances the lower index comes first.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 4  # images of a group, and how many nearest are looked at
ROOM = 1 << 24  # numbers that are at hand at a time


def normalise(features: Tensor, *, root: bool = True) -> Tensor:
    """The signed square root of every dimension, then unit length; a zero vector stays zero, NaN and inf give NaN.

    Shape:
        features: (n, d) or (d,), floating-point; the result is of its shape and type.

    Args:
        root: False leaves out the root.

    >>> normalise(torch.tensor([[16.0, -9.0], [0.0, 0.0]]))
    tensor([[ 0.8000, -0.6000],
            [ 0.0000,  0.0000]])
    """
    if root:
        features = features.sign() * features.abs().sqrt()
    largest = features.abs().amax(-1, keepdim=True)  # first to a size whose square neither vanishes nor overflows
    features = features / torch.where(largest == 0, 1, largest)
    length = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return features / torch.where(length == 0, 1, length)


def ns_score(features: Tensor, groups: Tensor, *, block: int | None = None) -> tuple[Tensor, float]:
    """For every image how many of its four nearest are of its own group, itself included, and the mean; 4.0 is perfect.

    All pairs are compared by a matrix product, a block of queries at a time; where its rounding could decide which are
    the nearest, they are compared again in double precision, so that equal features are equally far.

    Shape:
        features: (n, d); groups: (n,), whole numbers. Returns (n,), int64.

    Args:
        features: of every image; they are taken as they are, see `normalise`.
        groups: which images belong together, four in each.
        block: queries that are compared at a time; by default as many as need 64 MB.

    Raises:
        ValueError: a feature is not finite, a group has not four images, or there are none.

    >>> features = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [5.3], [0.3]])
    >>> ns_score(features, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    (tensor([3, 3, 3, 1, 3, 3, 3, 1]), 2.5)
    """
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(
            f"features must be (n, d) floating-point numbers, got {tuple(features.shape)} {features.dtype}"
        )
    _check_groups(groups, len(features))
    if block is not None and block < 1:
        raise ValueError(f"block ({block}) must be 1 or more")
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    squares = torch.linalg.vector_norm(features, dim=1).square()
    wrong = (~squares.isfinite()).nonzero()[:, 0].tolist()
    if wrong:
        named = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
        raise ValueError(
            f"features of {len(wrong)} images are not finite, or too large (index {named}): leave these images out"
        )
    counts = torch.empty(len(features), dtype=torch.int64, device=features.device)
    block = block or max(1, ROOM // len(features))
    for start in range(0, len(features), block):
        queries = slice(start, start + block)
        nearest = _three_nearest(features, squares, queries)
        counts[queries] = 1 + (groups[nearest] == groups[queries, None]).sum(1)
    return counts, counts.double().mean().item()


def ns_from_distances(distances: Tensor, groups: Tensor) -> tuple[Tensor, float]:
    """`ns_score` from the distance of every image to every image, such as others have computed.

    Shape:
        distances: (n, n), a query in each row; groups: (n,). Returns (n,), int64.

    Raises:
        ValueError: a distance is NaN, a group has not four images, or there are none.
    """
    if distances.ndim != 2 or distances.shape[0] != distances.shape[1]:
        raise ValueError(f"distances must be (n, n), got {tuple(distances.shape)}")
    _check_groups(groups, len(distances))
    if bool(distances.isnan().any()):
        raise ValueError("distances hold NaN: leave these images out")
    own = torch.eye(len(distances), dtype=torch.bool, device=distances.device)
    # By distance, those of the same one in their order; then without the query itself.
    order = distances.argsort(dim=1, stable=True)
    others = order[~own.gather(1, order)].view(len(distances), -1)[:, : GROUP - 1]
    counts = 1 + (groups[others] == groups[:, None]).sum(1)
    return counts, counts.double().mean().item()


def _three_nearest(features: Tensor, squares: Tensor, queries: slice) -> Tensor:
    """The nearest others of some queries, (q, 3)."""
    own = features[queries]
    # What the squared distance to the query is, but for the query's own square.
    about = torch.addmm(squares, own, features.T, alpha=-2)
    about.diagonal(queries.start).fill_(torch.inf)  # the query itself
    third = about.topk(GROUP - 1, largest=False, sorted=False).values.amax(1)
    # Rounding errors of a sum of d products grow with its root (Higham and Mary, 2019); this is many times that.
    rounding = 16 * torch.finfo(about.dtype).eps * features.shape[1] ** 0.5
    longest = squares.max()
    slack = rounding * (longest + 2 * (squares[queries] * longest).sqrt())
    query, other = (about <= (third + slack)[:, None]).nonzero().unbind(1)
    found = torch.bincount(query, minlength=len(own))
    exact = torch.zeros(len(query), dtype=torch.float64, device=features.device)
    # Where there are three and no more, which of them is the nearest does not matter.
    for part in (found[query] > GROUP - 1).nonzero()[:, 0].split(max(1, ROOM // 8 // features.shape[1])):
        exact[part] = (own[query[part]].double() - features[other[part]].double()).square().sum(1)
    # Found in the order of queries and others: two sorts that keep the order of equals make it that of all three.
    order = exact.argsort(stable=True)
    order = order[query[order].argsort(stable=True)]
    first = (found.cumsum(0) - found)[:, None] + torch.arange(GROUP - 1, device=features.device)
    return other[order[first]]


def _check_groups(groups: Tensor, count: int) -> None:
    if groups.shape != (count,) or not count:
        raise ValueError(f"groups {tuple(groups.shape)} must be ({count},), one for every image, and not be empty")
    names, sizes = groups.unique(return_counts=True)
    for name, size in zip(names.tolist(), sizes.tolist(), strict=True):
        if size != GROUP:
            raise ValueError(f"group {name} has {size} images, must have {GROUP}: leave out groups that are not whole")

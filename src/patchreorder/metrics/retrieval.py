"""The NS-score of UK-Bench by exact search: how many of the four nearest images are of the query's own group.

The query itself always comes first. The other three are the nearest by Euclidean distance; at equal distances the lower
index comes first.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 4  # images in a group, and nearest images that count
ROOM = 1 << 24  # numbers in memory at a time: 64 MB


def ns_score(features: Tensor, groups: Tensor) -> tuple[Tensor, float]:
    """For every image the number of its four nearest in its own group, itself included, and the mean; 4.0 is perfect.

    Blocks of queries are compared with all images by a matrix product. Where its rounding could decide which are the
    nearest, distances are computed again in double precision, so that equal features have equal distances.

    Shape:
        features: (n, d); groups: (n,), integers. Returns (n,), int64.

    Args:
        features: one vector per image, used as it is.
        groups: the group of every image; each has four.

    Raises:
        ValueError: a feature is not finite, a group does not have four images, or there are no images.

    >>> features = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [5.3], [0.3]])
    >>> ns_score(features, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    (tensor([3, 3, 3, 1, 3, 3, 3, 1]), 2.5)
    """
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(
            f"features must be (n, d) floating-point numbers, got {tuple(features.shape)} {features.dtype}"
        )
    _check_groups(groups, len(features))
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    squares = torch.linalg.vector_norm(features, dim=1).square()
    wrong = (~squares.isfinite()).nonzero()[:, 0].tolist()
    if wrong:
        named = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
        raise ValueError(
            f"features of {len(wrong)} images are not finite or too large (index {named}): leave these images out"
        )
    counts = torch.empty(len(features), dtype=torch.int64, device=features.device)
    block = max(1, ROOM // len(features))
    for start in range(0, len(features), block):
        queries = slice(start, start + block)
        nearest = _three_nearest(features, squares, queries)
        counts[queries] = 1 + (groups[nearest] == groups[queries, None]).sum(1)
    return counts, counts.double().mean().item()


def _three_nearest(features: Tensor, squares: Tensor, queries: slice) -> Tensor:
    """The nearest others of some queries, (q, 3)."""
    own = features[queries]
    about = torch.addmm(squares, own, features.T, alpha=-2)  # the squared distance less the query's own square
    about.diagonal(queries.start).fill_(torch.inf)  # the query itself
    third = about.topk(GROUP - 1, largest=False, sorted=False).values.amax(1)
    # Rounding errors of a sum of d products grow with the root of d (Higham and Mary, 2019); this is many times that.
    rounding = 16 * torch.finfo(about.dtype).eps * features.shape[1] ** 0.5
    longest = squares.max()
    slack = rounding * (longest + 2 * (squares[queries] * longest).sqrt())
    query, other = (about <= (third + slack)[:, None]).nonzero().unbind(1)
    found = torch.bincount(query, minlength=len(own))
    exact = torch.zeros(len(query), dtype=torch.float64, device=features.device)
    # Of three candidates the order does not matter.
    for part in (found[query] > GROUP - 1).nonzero()[:, 0].split(max(1, ROOM // 8 // features.shape[1])):
        exact[part] = (own[query[part]].double() - features[other[part]].double()).square().sum(1)
    # Two stable sorts: by query, then distance, then index.
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
            raise ValueError(f"group {name} has {size} images, must have {GROUP}: leave out incomplete groups")

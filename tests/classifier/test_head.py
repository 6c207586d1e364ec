"""The linear head, by other algebra."""

import torch
from torch.nn import functional as F

from patchreorder.classifier.head import Head, Scaling, reduced, solve, temperature


def data(count=30, values=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, values, generator=generator), torch.arange(count) % 3


def least_squares(x, labels, strength):
    """The minimum of the mean squared error plus strength times the squared weights, by an augmented system."""
    targets = F.one_hot(labels, 3).double()
    x = x.double()
    centred, share = x - x.mean(0), targets.mean(0)
    rows = torch.cat([centred, (strength * len(x)) ** 0.5 * torch.eye(x.shape[1], dtype=torch.float64)])
    right = torch.cat([targets - share, torch.zeros(x.shape[1], 3, dtype=torch.float64)])
    weight = torch.linalg.lstsq(rows, right).solution
    return (x @ weight + share - x.mean(0) @ weight).float()


def test_the_head_is_that_of_least_squares():
    for count, values in ((30, 8), (12, 40)):  # more photographs than values, and fewer
        x, labels = data(count, values)
        for strength, head in zip((0.1, 0.01), solve(x, labels, classes=3, strengths=(0.1, 0.01)), strict=True):
            torch.testing.assert_close(head(x), least_squares(x, labels, strength), atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(head(x).sum(1), torch.ones(count), atol=1e-4, rtol=1e-4)


def test_a_weight_counts_as_so_many_repetitions():
    for count, values in ((30, 8), (12, 60)):  # more photographs than values, and fewer
        x, labels = data(count, values)
        weights = torch.arange(count) % 4 + 1
        repeated = x.repeat_interleave(weights, 0), labels.repeat_interleave(weights)
        head = next(solve(x, labels, classes=3, strengths=[0.03], weights=weights.float()))
        other = least_squares(*repeated, 0.03)
        torch.testing.assert_close(head(repeated[0]), other, atol=1e-4, rtol=1e-3)


def test_fewer_dimensions_give_the_same_head():
    x, labels = data(12, 40)
    small, basis = reduced(x)
    assert small.shape == (12, 12)
    head, whole = (next(solve(own, labels, classes=3, strengths=[0.05])) for own in (small, x))
    torch.testing.assert_close(Head(basis @ head.weight, head.bias)(x), whole(x), atol=1e-4, rtol=1e-3)


def test_every_block_has_the_same_total_variance():
    x, _ = data(200, 6)
    blocks = [x[:, :1] * 100, x[:, 1:] + 7]
    scaled = Scaling.of(blocks)(blocks)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(6), atol=1e-4, rtol=0)
    parts = [own.square().sum(1).mean() for own in scaled.split([1, 5], 1)]
    torch.testing.assert_close(torch.stack(parts), torch.full((2,), 0.5), atol=1e-4, rtol=1e-4)


def test_the_temperature_has_the_lowest_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5, generator=generator) * 2
    labels = torch.distributions.Categorical(logits=logits).sample()
    assert 0.08 < temperature(logits * 0.1, labels) < 0.125

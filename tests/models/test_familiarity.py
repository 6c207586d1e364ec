"""Distances to classes, against a computation with the whole covariance."""

import torch
from torch.nn import functional as F

from patchreorder.models import familiarity
from patchreorder.models.familiarity import Familiarity
from tests.allocations import LargestTensor


def features(seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(40)
    spread = torch.linspace(3, 0.2, 8)
    return torch.randn(120, 8, generator=generator) * spread + 6 * torch.eye(3, 8)[labels], labels


def test_distances_are_those_of_the_covariance():
    x, labels = features()
    own = Familiarity.of(x, labels, classes=3)
    means = torch.stack([x[labels == label].mean(0) for label in range(3)])
    rest = x - means[labels]
    covariance = rest.T @ rest / len(x)
    values, vectors = torch.linalg.eigh(covariance)
    kept = own.directions.shape[1]
    left = values[:-kept].mean() + 1e-5 * values.sum()
    full = (vectors[:, -kept:] * (values[-kept:] + left)) @ vectors[:, -kept:].T
    full = full + left * vectors[:, :-kept] @ vectors[:, :-kept].T
    difference = x[:, None] - means
    wanted = torch.einsum("ncd,de,nce->nc", difference, torch.linalg.inv(full), difference).amin(1) / 8
    torch.testing.assert_close(own(x), wanted, rtol=1e-3, atol=1e-3)


def direct(own, x):
    """The same distances, from the differences along every direction: (batch, classes, directions)."""
    x, means, directions = x.double(), own.means.double(), own.directions.double()
    difference = x[:, None] - means
    inside = (difference @ directions).square()
    rest = (difference.square().sum(2) - inside.sum(2)).clamp(min=0) / own.variances[-1].double()
    return ((inside / own.variances[:-1].double()).sum(2) + rest).amin(1) / x.shape[1]


def unit_features(*, count=600, values=320, classes=7):
    """Features of unit length that lie close together, as those of photographs."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    spread = torch.logspace(0, -2, values)
    centres = torch.rand(classes, values, generator=generator)
    return F.normalize(centres[labels] + 0.3 * spread * torch.randn(count, values, generator=generator), dim=1), labels


def test_distances_are_those_of_the_differences_along_every_direction():
    x, labels = unit_features()
    own = Familiarity.of(x, labels, classes=8)  # the last class has no photograph
    torch.testing.assert_close(own(x).double(), direct(own, x), rtol=1e-6, atol=0)
    noise = F.normalize(torch.randn(50, x.shape[1]), dim=1)
    torch.testing.assert_close(own(noise).double(), direct(own, noise), rtol=1e-6, atol=0)
    assert torch.equal(own.in_parts(x), own(x))


def test_memory_does_not_grow_with_classes_times_directions(monkeypatch):
    own = Familiarity(classes=1000, values=64, directions=16)
    with LargestTensor() as seen:
        own(torch.rand(100, 64))
    assert seen.values == 100 * 1000
    monkeypatch.setattr(familiarity, "PART", 64_000)
    with LargestTensor() as seen:
        assert own.in_parts(torch.rand(1000, 64)).shape == (1000,)
    assert seen.values <= 64_000


def test_a_class_without_photographs_is_never_near():
    x, labels = features()
    own = Familiarity.of(x[labels < 2], labels[labels < 2], classes=3)
    assert own(x[labels == 2]).isfinite().all()
    assert own(x[labels == 2]).mean() > 2 * own(x[labels < 2]).mean()


def test_one_photograph_of_each_class():
    own = Familiarity.of(torch.eye(4), torch.arange(4), classes=4)
    assert own(torch.eye(4)).max() < own(torch.full((1, 4), 9.0)).min()

"""Distances to classes, against a computation with the whole covariance."""

import torch

from patchreorder.models.familiarity import Familiarity


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


def test_a_class_without_photographs_is_never_near():
    x, labels = features()
    own = Familiarity.of(x[labels < 2], labels[labels < 2], classes=3)
    assert own(x[labels == 2]).isfinite().all()
    assert own(x[labels == 2]).mean() > 2 * own(x[labels < 2]).mean()


def test_one_photograph_of_each_class():
    own = Familiarity.of(torch.eye(4), torch.arange(4), classes=4)
    assert own(torch.eye(4)).max() < own(torch.full((1, 4), 9.0)).min()

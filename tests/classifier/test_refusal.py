"""None of these: which photographs are refused."""

import torch

from patchreorder.classifier.refusal import NEVER, choose_threshold, keeping
from patchreorder.models.familiarity import Familiarity


def vectors(*, copies):
    """400 photographs of four classes in five poses; the noise of posed copies is so many times that as they are."""
    generator = torch.Generator().manual_seed(0)
    labels, folds = torch.arange(400) % 4, torch.arange(400) // 4 % 4
    noise = torch.randn(400, 5, 12, generator=generator) * torch.tensor([1.0, *[copies] * 4])[:, None]
    return 8 * torch.eye(4, 12)[labels][:, None] + noise, labels, folds


def refused(x, labels, folds, threshold):
    """Percent of the photographs that are refused in each pose, each judged without its fold."""
    found = torch.zeros(x.shape[:2])
    for fold in range(4):
        rest = folds != fold
        near = Familiarity.of(x[rest].flatten(0, 1), labels[rest].repeat_interleave(x.shape[1]), classes=4)
        found[~rest] = near(x[~rest].flatten(0, 1)).unflatten(0, (-1, x.shape[1]))
    return 100 * (found > threshold).float().mean(0)


def test_few_photographs_are_refused_as_they_are_and_few_in_other_poses():
    for copies in (0.5, 2.0):  # if all poses had one quantile, 4 % of the photographs as they are would be refused
        x, labels, folds = vectors(copies=copies)
        own = choose_threshold(x, labels, folds, classes=4)
        poses = refused(x, labels, folds, own.threshold)
        assert poses[0] <= 1.0
        assert poses[1:].mean() <= 1.0
        assert own.own <= 1.0
        assert own.others is not None
        assert own.others > 40


def test_the_threshold_keeps_all_but_the_farthest_hundredth():
    assert keeping(torch.arange(1000.0)) == 990
    assert keeping(torch.tensor([3.0])) == 3


def test_single_photographs_refuse_nothing():
    x, labels, _ = vectors(copies=1.0)
    assert choose_threshold(x[:4], labels[:4], torch.full((4,), -1), classes=4).threshold == NEVER

"""Folds that keep look-alikes together, and scores of photographs that the head did not see."""

import tracemalloc

import torch

from patchreorder.classifier.choose import Candidate, Scored, best, candidates, folds_of, out_of_fold_scores
from patchreorder.classifier.features import Features
from patchreorder.classifier.head import solve
from patchreorder.models.photo_classifier import Block


def features(vectors):
    """Photographs (n, poses, values) of one block."""
    count = len(vectors)
    return Features(list(range(count)), ["x"] * count, {}, {Block("head"): vectors.half()})


def test_look_alikes_share_a_fold():
    generator = torch.Generator().manual_seed(0)
    scenes = torch.rand(12, 1, 32, generator=generator).repeat_interleave(3, 0)  # three shots of each
    shots = scenes + 0.01 * torch.rand(36, 5, 32, generator=generator)
    shots[:, 1:] += 0.05 * torch.rand(36, 4, 32, generator=generator)  # copies differ more than shots
    folds = folds_of(features(shots), torch.arange(36) // 18, Block("head"))
    assert all(len(set(folds[begin : begin + 3].tolist())) == 1 for begin in range(0, 36, 3))
    assert set(folds.tolist()) == {0, 1, 2, 3}


def test_a_large_class_of_look_alikes_needs_little_memory():
    scenes = torch.rand(8, 1, 16, generator=torch.Generator().manual_seed(0)).repeat_interleave(250, 0)
    tracemalloc.start()
    try:
        folds = folds_of(features(scenes.expand(-1, 2, -1)), torch.zeros(2000, dtype=torch.int64), Block("head"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2000 * 8 * 400  # all pairs of equal photographs are 2000 * 125
    assert torch.bincount(folds).tolist() == [500] * 4


def test_a_single_photograph_is_never_left_out():
    folds = folds_of(features(torch.rand(5, 2, 8)), torch.tensor([0, 0, 0, 0, 1]), Block("head"))
    assert folds.tolist()[-1] == -1
    assert sorted(folds.tolist()[:4]) == [0, 1, 2, 3]


def test_scores_are_of_heads_that_did_not_see_the_photograph():
    generator = torch.Generator().manual_seed(0)
    labels, folds = torch.arange(40) % 2, torch.arange(40) // 2 % 4
    for values in (6, 400):  # sums over folds, and fewer photographs than values
        x = torch.randn(40, 3, values, generator=generator)
        for copies in (False, True):
            (scores,) = out_of_fold_scores(x, labels, folds, classes=2, copies=copies, strengths=[0.1])
            for fold in range(4):
                rest = folds != fold
                shown = [x[rest, pose] for pose in (0, 0, 1, 2)] if copies else [x[rest, 0]]  # as they are: twice
                rows, truth = torch.cat(shown), labels[rest].repeat(len(shown))
                wanted = next(solve(rows, truth, classes=2, strengths=[0.1]))(x[~rest])
                torch.testing.assert_close(scores[~rest], wanted, atol=1e-4, rtol=1e-3)


def test_the_plain_average_is_the_first_candidate():
    stored = [*(Block(f"stage{number}", "ranked:quantiles=4") for number in (4, 5, 6, 7)), Block("head")]
    first, *others = candidates(stored)
    assert first.blocks == (Block("head"),)
    assert [len(own.blocks) for own in others] == [5, 4, 5]
    assert candidates([Block("features")]) == [first._replace(blocks=(Block("features"),))]


def scored(copies, wrong, poses=2):
    """A choice that has all of 100 photographs right but those of a range."""
    correct = torch.tensor([number not in wrong for number in range(100)])
    return Scored(Candidate("plain", (Block("head"),)), copies, 0.1, correct[:, None].expand(-1, poses))


def test_posed_copies_are_given_up_only_for_more_than_a_standard_error():
    alone = scored(False, range(5))
    near, far = scored(True, range(5, 11)), scored(True, range(5, 40))  # one photograph more is wrong, and many
    assert best([alone, near]) is near
    assert best([alone, far]) is alone
    assert best([alone, far, near]) is near
    assert best([alone]) is alone
    assert best([scored(False, range(9)), scored(True, range(2))]).copies
    none = Scored(alone.candidate, False, 0.1, torch.zeros(0, 2, dtype=torch.bool))
    assert best([none, Scored(alone.candidate, True, 0.1, none.correct)]) is none

"""Misclassified images: by hand, in the first few, with ties, and invalid arguments."""

import math

import pytest
import torch

from patchreorder.metrics.accuracy import error_rate, mistakes

LOGITS = torch.tensor([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0], [1.0, 2.0, 3.0], [0.0, 5.0, 4.0]])


def test_indices_and_predictions():
    wrong, predictions = mistakes(LOGITS, torch.tensor([0, 1, 2, 0]))
    assert wrong.tolist() == [1, 3]
    assert predictions.tolist() == [0, 1]
    assert error_rate(LOGITS, torch.tensor([0, 1, 2, 0])) == 50.0


@pytest.mark.parametrize(("top", "wrong"), [(1, [0, 1, 2, 3]), (2, [1, 3]), (3, [])])
def test_the_label_is_among_the_first(top, wrong):
    indices, predictions = mistakes(LOGITS, torch.tensor([1, 1, 1, 0]), top=top)
    assert indices.tolist() == wrong
    assert predictions.tolist() == LOGITS.argmax(1)[wrong].tolist()


def test_the_first_of_equal_logits_counts():
    logits = torch.tensor([[1.0, 1.0, 1.0]] * 3)
    labels = torch.tensor([0, 1, 2])
    assert [mistakes(logits, labels, top=top)[0].tolist() for top in (1, 2, 3)] == [[1, 2], [2], []]


@pytest.mark.parametrize(
    ("logits", "labels", "top", "message"),
    [
        (torch.rand(3), torch.tensor([0, 1, 2]), 1, r"logits \(3,\) must be"),
        (torch.rand(3, 2), torch.tensor([0, 1]), 1, r"labels \(2,\)"),
        (torch.rand(0, 2), torch.tensor([]), 1, "n > 0"),
        (torch.tensor([[0.0, math.nan]]), torch.tensor([0]), 1, "NaN"),
        (torch.rand(1, 2), torch.tensor([0]), 0, r"top \(0\)"),
    ],
)
def test_invalid_arguments(logits, labels, top, message):
    with pytest.raises(ValueError, match=message):
        mistakes(logits, labels, top=top)

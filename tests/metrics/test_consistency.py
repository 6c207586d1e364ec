"""Equal predictions in different poses."""

import itertools

import pytest
import torch

from patchreorder.metrics.consistency import consistency
from patchreorder.metrics.rate import rate


def test_two_poses():
    assert consistency(torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]])) == rate(3, 4)


def test_all_pairs_of_many_poses():
    predictions = torch.randint(0, 3, (11, 40))
    found = consistency(predictions)
    pairs = list(itertools.combinations(predictions, 2))
    assert found.value == pytest.approx(100 * sum((a == b).float().mean().item() for a, b in pairs) / 55)
    assert found.n == 40


@pytest.mark.parametrize(
    "predictions",
    [torch.zeros(1, 5).long(), torch.zeros(2, 5), torch.zeros(5).long(), torch.zeros(2, 0).long()],
    ids=["one pose", "float", "one dimension", "no images"],
)
def test_invalid_predictions(predictions):
    with pytest.raises(ValueError, match="predictions must be"):
        consistency(predictions)

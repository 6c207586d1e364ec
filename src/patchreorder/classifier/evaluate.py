"""What a classifier is worth: accuracy in every pose, against simpler ones, and where it is wrong. Numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from patchreorder.metrics import rate as rates

from .photographs import ANGLES, TEST_POSES, swept

NEIGHBOURS = 5
BINS = 15  # of confidence, for the calibration error


def nearest_neighbours(train: Tensor, labels: Tensor, test: Tensor, *, classes: int) -> Tensor:
    """Votes (n, classes) of the nearest training photographs, by cosine; the nearer one decides between equal votes.

    >>> train, labels = torch.eye(3), torch.tensor([0, 0, 1])
    >>> nearest_neighbours(train, labels, torch.tensor([[0.9, 0.8, 0.0]]), classes=2).argmax(1).tolist()
    [0]
    """
    votes = torch.zeros(len(test), classes)
    for begin in range(0, len(test), 1024):
        near, index = (test[begin : begin + 1024] @ train.T).topk(min(NEIGHBOURS, len(train)))
        votes[begin : begin + 1024].scatter_add_(1, labels[index], 1 + near * 1e-3)
    return votes


def rate(correct: Tensor | np.ndarray) -> dict[str, float]:
    """Percent, with its 95 % interval and the number of photographs."""
    if not len(correct):
        return {"value": 0.0, "low": 0.0, "high": 100.0, "n": 0}
    return rates.rate(int(correct.sum()), len(correct))._asdict()


def difference(ours: Tensor, theirs: Tensor, *, seed: int = 0, samples: int = 2000) -> dict[str, float]:
    """The mean difference in percentage points on the same photographs, with a 95 % bootstrap interval."""
    gain = (ours.float() - theirs.float()).numpy()
    if not len(gain):
        return {"value": 0.0, "low": 0.0, "high": 0.0}
    drawn = np.random.default_rng(seed).integers(0, len(gain), (samples, len(gain)))
    means = gain[drawn].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return {"value": 100 * float(gain.mean()), "low": 100 * float(low), "high": 100 * float(high)}


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error in percent: how far confidence and accuracy differ, over bins of confidence.

    >>> calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 0, 1]))
    0.0
    """
    confidence, answers = probabilities.max(1)
    right, bins = (answers == labels).float(), (confidence * BINS).long().clamp(max=BINS - 1)
    error = 0.0
    for each in bins.unique():
        own = bins == each
        error += float(own.float().mean() * (right[own].mean() - confidence[own].mean()).abs())
    return 100 * error


def poses_report(scores: Mapping[str, Tensor], labels: Tensor) -> dict[str, Any]:
    """Accuracy of each method in each test pose, and the differences of the first method to the others.

    Args:
        scores: method -> (photographs, poses, classes), the poses of `sweep_poses`.
        labels: (photographs,).
    """
    first, *others = scores
    right = {name: own.argmax(2) == labels[:, None] for name, own in scores.items()}
    found: dict[str, Any] = {"accuracy": {}, "differences": {}}
    for place, pose in enumerate(TEST_POSES):
        found["accuracy"][pose] = {name: rate(own[:, place]) for name, own in right.items()}
        found["differences"][pose] = {
            name: difference(right[first][:, place], right[name][:, place]) for name in others
        }
    found["angles"] = {name: _by_angle(own) for name, own in right.items()}
    return found


def _by_angle(right: Tensor) -> dict[str, Any]:
    angles = right.shape[1] - len(TEST_POSES)
    hits: dict[float, list[bool]] = {angle: [] for angle in ANGLES}
    for index, own in enumerate(right[:, len(TEST_POSES) :].tolist()):
        for angle, hit in zip(swept(index, angles), own, strict=True):
            hits[angle].append(hit)
    found = {angle: rate(np.array(own, dtype=bool)) for angle, own in hits.items() if own}
    worst = min(found, key=lambda angle: found[angle]["value"]) if found else 0.0
    every = [hit for own in hits.values() for hit in own]
    return {
        "degrees": list(found),
        "values": [own["value"] for own in found.values()],
        "low": [own["low"] for own in found.values()],
        "high": [own["high"] for own in found.values()],
        "n": [own["n"] for own in found.values()],
        "mean": 100 * sum(every) / max(len(every), 1),
        "worst": {"degrees": worst, **found.get(worst, rate(np.zeros(0)))},
    }


def classes_report(answers: Tensor, labels: Tensor, classes: Sequence[str], trained: Tensor) -> dict[str, Any]:
    """Recall and precision of each class, and the confusion matrix (truth, answer) of the test photographs."""
    count = len(classes)
    matrix = torch.zeros(count, count, dtype=torch.int64)
    matrix.index_put_((labels, answers), torch.ones(len(labels), dtype=torch.int64), accumulate=True)
    numbers = torch.bincount(trained, minlength=count).tolist()
    per_class = [
        {
            "class": name,
            "train": numbers[place],
            "test": int(matrix[place].sum()),
            "right": int(matrix[place, place]),
            "answered": int(matrix[:, place].sum()),
        }
        for place, name in enumerate(classes)
    ]
    return {"per_class": per_class, "confusion": matrix.tolist()}


def mistakes_report(probabilities: Tensor, labels: Tensor, names: Sequence[str], classes: Sequence[str]) -> list[Any]:
    """The photographs that are wrong, the most confident first."""
    confidence, answers = probabilities.max(1)
    wrong = (answers != labels).nonzero()[:, 0]
    order = wrong[confidence[wrong].argsort(descending=True, stable=True)].tolist()
    return [
        {
            "name": names[index],
            "class": classes[int(labels[index])],
            "answer": classes[int(answers[index])],
            "probability": float(confidence[index]),
        }
        for index in order
    ]


def mislabelled(probabilities: Tensor, labels: Tensor, names: Sequence[str], classes: Sequence[str]) -> list[Any]:
    """Training photographs that are probably mislabelled: another class is nearly certain, their own nearly excluded.

    The probabilities are those of photographs that the head did not see (cross-validation).
    """
    own = probabilities.gather(1, labels[:, None])[:, 0]
    found = mistakes_report(probabilities, labels, names, classes)
    small = {names[index] for index in (own < 0.05).nonzero()[:, 0].tolist()}
    return [each for each in found if each["probability"] >= 0.9 and each["name"] in small]

"""Small data, networks and runs for the tests of the engine."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from patchreorder.data.generated import generate_digits
from patchreorder.engine import checkpoint
from patchreorder.engine.options import Training

TRAINING = Training(steps=8, batch=8)


def digits(count=46):
    """With batches of 8: five updates an epoch, six images left over."""
    return generate_digits("mnist-r", count=count, seed=1)


class Images:
    """A dataset of given images that records the batches it returned, as (epoch, indices)."""

    def __init__(self, images, labels):
        self.images, self.labels, self.batches = images, labels, []

    def __len__(self):
        return len(self.images)

    def batch(self, indices, *, epoch=0):
        self.batches.append((epoch, indices.tolist()))
        return self.images[indices], self.labels[indices]


class NaNFrom(Images):
    """Digits whose images are NaN from the batch of this update on."""

    def __init__(self, update):
        source = digits()
        super().__init__(source.batch(torch.arange(46))[0], source.labels)
        self.update = update

    def batch(self, indices, *, epoch=0):
        images, labels = super().batch(indices, epoch=epoch)
        return (images * math.nan if len(self.batches) >= self.update else images), labels


class Frozen(nn.Module):
    """Frozen, unused and tied weights, a parameter of five dimensions, an integer buffer, a mask."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Conv2d(1, 4, 5).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.first = nn.Linear(4 * 16, 4 * 16)
        self.second = nn.Linear(4 * 16, 4 * 16)
        self.second.weight = self.first.weight
        self.deep = nn.Parameter(torch.rand(1, 1, 1, 1, 4 * 16))
        self.head = nn.Linear(4 * 16, 10)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([0.0] * 10 + [-math.inf]))

    def forward(self, x):
        if self.training:
            self.count += 1
        x = F.max_pool2d(self.frozen(x), 6).flatten(1)
        x = self.second(self.first(x).relu()) * self.deep.flatten()
        return self.head(x) + self.mask[:10]


def network(kind="plain"):
    torch.manual_seed(3)
    if kind == "frozen":
        return Frozen()
    layers = [nn.Conv2d(1, 4, 5), nn.MaxPool2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)]
    if kind == "noisy":  # with running statistics and randomness
        layers[3:3] = [nn.BatchNorm2d(4), nn.Dropout(0.3)]
    return nn.Sequential(*layers)


def bits(tensors):
    return {name: (value.dtype, value.shape, value.contiguous().numpy().tobytes()) for name, value in tensors.items()}


def outcome(file):
    """What a run must end with, interrupted or not: weights, momentum, losses."""
    tensors, state = checkpoint.read(file)
    return bits(tensors), {name: state[name] for name in ("run", "step", "curve", "loss_sum", "scaler")}


class Killed(BaseException):
    """Stands for the death of the process: nothing is left but the files."""


def dies_at(step):
    def callback(progress):
        if progress.step == step:
            raise Killed

    return callback

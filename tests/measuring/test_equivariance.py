"""Equivariance of whole networks: which modules, which images, which poses."""

import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder.data.generated import generate_digits
from patchreorder.data.poses import AS_IT_IS, Pose
from patchreorder.data.sweeps import sweep
from patchreorder.measuring import equivariance
from patchreorder.measuring.image_set import open_folder
from patchreorder.measuring.measure import forward_passes, measure


class Network(nn.Module):
    """A circular convolution, an in-place ReLU and a pool that skips pixels."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(4)
        self.head = nn.Linear(4 * 7 * 7, 3)

    def forward(self, x):
        return self.head(self.pool(self.relu(self.conv(x))).flatten(1))


@pytest.fixture(scope="module")
def scores():
    torch.manual_seed(0)
    transforms = {"rotate": sweep("rotate"), "translate": sweep("translate")}
    return measure(
        Network(), generate_digits("mnist", count=60), transforms=transforms, layers=["relu", "pool", "head"]
    )


def test_modules_are_blamed_for_what_they_do_themselves(scores):
    found = {name: own["shift"].value for name, own in scores.modules.items()}
    assert list(found) == ["conv", "relu", "pool"]
    assert found["conv"] < 1e-6 < found["relu"] < found["pool"]
    assert scores.kinds["pool"] == "MaxPool2d"


def test_layers_have_errors_in_poses_and_derivatives(scores):
    relu, pool, head = (scores.layers[name] for name in ("relu", "pool", "head"))
    assert set(relu.equivariance) == set(scores.poses) - {AS_IT_IS}
    assert relu.equivariance["x 0.2"].moved.value < 0.05 < relu.equivariance["x 0.2"].stayed.value
    assert relu.equivariance["x 0.2"].moved.n == 20
    assert relu.derivative["shift"].value < pool.derivative["shift"].value
    assert not head.equivariance
    assert not head.derivative


def test_forward_passes_are_counted():
    transforms = {"translate": sweep("translate")}
    seen = 0

    class Counting(Network):
        def forward(self, x):
            nonlocal seen
            seen += len(x)
            return super().forward(x)

    reported = []
    data = generate_digits("mnist", count=30)
    found = measure(Counting(), data, transforms=transforms, report=reported.append)
    assert sum(reported) == found.forwards == forward_passes(30, transforms)
    begin = 2 * 2  # two images each, to find the layers and the size of a batch
    small = 4 * (1 + 4)  # unmoved, for modules and layers, and both ways along both axes
    assert seen == found.forwards + begin + small


def test_a_network_without_maps_has_none():
    network = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10))
    found = measure(network, generate_digits("mnist", count=8), transforms={"rotate": sweep("rotate")})
    assert found.modules == {}
    assert found.layers["1"].equivariance == {}


def test_photographs_of_any_shape_are_undone(tmp_path):
    """A shift is a part of the photograph's own sides, of which the network sees a square."""
    random = torch.Generator().manual_seed(0)
    for number, size in enumerate([(400, 200), (200, 400), (300, 300), (250, 500)]):
        coarse = (torch.rand(12, 12, 3, generator=random) * 255).byte().numpy()
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(tmp_path / f"{number}.png")
    data = open_folder(tmp_path, side=64, crop=1.25).data
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4 * 64 * 64, 2))
    poses = {name: pose for name, pose in sweep("translate").items() if name in ("x 0.08", "y -0.08", AS_IT_IS)}
    found = measure(network, data, transforms={"translate": poses, "flip": sweep("flip")}, layers=["0"])
    assert {pose: own.moved.value < 0.01 for pose, own in found.layers["0"].equivariance.items()} == dict.fromkeys(
        ["x 0.08", "y -0.08", "mirrored", "flipped vertically"], True
    )


def test_only_poses_that_occur_have_generators():
    assert equivariance.generators([Pose(), Pose(flip=True), Pose(degrees=180.0, flip=True)]) == []
    assert equivariance.generators([Pose(degrees=9.0), Pose(scale=0.6)]) == ["rotation", "scale"]
    assert equivariance.generators([Pose(right=0.1)]) == ["shift"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 8, 14, 14), True),
        ((2, 8, 14, 13), True),  # by rounding
        ((2, 14, 14, 64), False),  # channels last
        ((2, 3, 197, 64), False),  # attention
        ((2, 8, 2, 2), False),
        ((2, 8, 14), False),
    ],
)
def test_maps_have_the_shape_of_the_images(shape, expected):
    assert equivariance.is_maps(torch.zeros(shape), torch.zeros(2, 3, 224, 224)) is expected


def test_one_image_a_batch():
    """As a network that leaves no room for more has."""
    data = generate_digits("mnist", count=3)
    found = measure(Network(), data, transforms={"translate": sweep("translate")}, batch=1)
    assert found.layers["pool"].equivariance["x 0.2"].moved.n == 3

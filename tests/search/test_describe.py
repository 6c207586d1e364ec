"""Opening descriptors by name, with weights of every kind, and describing data sets."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from patchreorder import RankedPool
from patchreorder.data.generated import write_ukbench
from patchreorder.data.images import MEAN
from patchreorder.data.ukbench import UKBench
from patchreorder.engine.distributed import World
from patchreorder.models import alexnet
from patchreorder.models.normalise import STD
from patchreorder.search.describe import describe, fingerprint, open_descriptor
from patchreorder.search.descriptors import Descriptor, create_descriptor
from tests import vision
from tests.oracle import normalise

from .vectors import joined

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- our backbones ---------------------------------------------------------------------------------


def test_own_weights_of_alexnet(tmp_path):
    whole = alexnet.alexnet(variant="torchvision", width=8, classes=2)
    torch.save(whole.state_dict(), tmp_path / "own.pth")
    model = open_descriptor("alexnet/ranked", weights=tmp_path / "own.pth")
    assert torch.equal(model.maps.state_dict()["features.6.weight"], whole.state_dict()["features.6.weight"])
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_own_weights_of_efficientnet(tmp_path):
    tensors = create_descriptor("efficientnet/gap").maps.state_dict()
    torch.save(tensors, tmp_path / "own.pt")
    model = open_descriptor("efficientnet/gap", weights=tmp_path / "own.pt")
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
    [("alexnet/gap", "e59e424b"), ("alexnet@conv1+conv5/gap", "a358e94c"), ("efficientnet/gap", "74a3c9a3")],
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
    torchvision.models = types.SimpleNamespace(get_model=make)
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

"""Surgery and advice on models of torchvision and timm (extra `vision`)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from patchreorder import PatchReorder
from patchreorder.surgery.advice import advise
from patchreorder.surgery.insertion import insert_after, remove_after
from tests import vision

pytestmark = pytest.mark.usefixtures("one_thread")
torchvision, timm = vision.torchvision(), vision.timm()


def alexnet() -> nn.Module:
    return torchvision.models.alexnet(num_classes=10)


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=10)


def small_resnet() -> nn.Module:
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


def mobilenet() -> nn.Module:
    return timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=10)


def densenet() -> nn.Module:
    return torchvision.models.DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=10)


# Modules of every kind: a leaf, a Sequential, a block with its own forward, a module called twice, a container that
# iterates over its children.
CASES = {
    "alexnet": (alexnet, 127, ["features.12", "features", "avgpool"]),
    "resnet18": (resnet18, 64, ["conv1", "layer3", "layer3.1", "layer2.0.relu"]),
    "mobilenet": (mobilenet, 64, ["blocks.3", "blocks.2.0", "blocks.1.0.conv_pw", "blocks.1.0.bn1"]),
    "densenet": (densenet, 64, ["features.denseblock1", "features.transition1", "features.conv0"]),
}
Case = tuple[Callable[[], nn.Module], Tensor, list[str]]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    build, size, names = CASES[request.param]
    return build, torch.randn(1, 3, size, size), names


@torch.no_grad()
def test_surgery(case: Case, reorder_by_hand: Callable[[nn.Module, str, Tensor], Tensor]) -> None:
    build, images, names = case
    model = build().eval()
    old, shown, plain = model.state_dict(), repr(model), model(images)
    for name in names:
        expected = reorder_by_hand(model, name, images)
        insert_after(model, name, PatchReorder(grid="pixels"))
        assert torch.equal(model(images), expected)
        assert not torch.equal(expected, plain)
        assert repr(model).count("PatchReorder(") == 1
        assert list(model.state_dict()) == list(old)
        model.load_state_dict(old, strict=True)
        remove_after(model, name)
        assert repr(model) == shown
        assert torch.equal(model(images), plain)


@torch.no_grad()
def test_copies(case: Case) -> None:
    build, images, names = case
    model = build().eval()
    for name in names[:2]:
        insert_after(model, name, PatchReorder(grid=2))
    expected = model(images)
    assert torch.equal(copy.deepcopy(model)(images), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(images), expected)


@pytest.mark.parametrize(
    "name",
    [
        "alexnet",
        pytest.param("resnet18", marks=pytest.mark.slow),
        "resnet",
        pytest.param("mobilenet", marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_compilation_and_export(name: str) -> None:
    build, size, names = CASES.get(name, (small_resnet, 64, ["conv1", "layer2.0.relu"]))
    model, images = build().eval(), torch.randn(1, 3, size, size)
    for place in names[:2]:
        insert_after(model, place, PatchReorder(grid=2))
    expected = model(images)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(images), expected)
    assert torch.equal(torch.export.export(model, (images,)).module()(images), expected)


def advice_on(model: nn.Module, images: Tensor) -> tuple[dict[str, str], str]:
    console = Console(record=True, file=StringIO(), width=120)
    warnings = {advice.name: advice.warning for advice in advise(model, images, console=console)}
    return warnings, console.export_text()


# "Changes nothing" has to hold: a layer after the last maps is tried.
@pytest.mark.parametrize(
    ("package", "name", "words", "last", "changes"),
    [
        ("torchvision", "resnet18", "ends in a global average (avgpool)", "layer4", False),
        ("torchvision", "mobilenet_v3_small", "ends in a global average (avgpool)", "features", False),
        ("timm", "mobilenetv3_small_050", "ends in a global average (global_pool.pool)", "blocks.5.0.conv", False),
        ("timm", "resnet10t", "ends in a global average (global_pool.pool)", "layer4", False),
        ("torchvision", "alexnet", "Insert `reorder:grid=pixels` after avgpool", "avgpool", True),
    ],
)
@torch.no_grad()
def test_the_sentence_holds(package: str, name: str, words: str, last: str, changes: bool) -> None:
    create = timm.create_model if package == "timm" else torchvision.models.get_model
    model, images = create(name).eval(), torch.randn(2, 3, 96, 96)
    assert words in advise(model, images, console=Console(quiet=True)).sentence
    plain = model(images)
    insert_after(model, last, "reorder:grid=pixels")
    assert torch.allclose(model(images), plain, atol=1e-4) is not changes


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "levit_128s"])
def test_transformers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is a transformer, with attention in"):
        advise(timm.create_model(name, pretrained=False), torch.randn(1, 3, 224, 224), console=Console(quiet=True))


def test_a_vision_transformer_of_torchvision_is_refused() -> None:
    model = torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32)
    with pytest.raises(ValueError, match="is a transformer, with attention in"):
        advise(model, torch.randn(1, 3, 32, 32), console=Console(quiet=True))


def test_advice_on_alexnet() -> None:
    warnings, text = advice_on(alexnet(), torch.randn(1, 3, 224, 224))
    assert list(warnings) == [*(f"features.{number}" for number in range(13)), "avgpool"]
    assert warnings["features.0"] == "early: 4"
    assert warnings["features.9"] == "early: 1"
    assert {name for name, warning in warnings.items() if not warning} == {
        "features.10",
        "features.11",
        "features.12",
        "avgpool",
    }
    assert 'insert_after(model, "avgpool", "reorder:grid=pixels")' in text


def test_advice_on_resnet18() -> None:
    warnings, text = advice_on(resnet18(), torch.randn(2, 3, 64, 64))
    assert warnings["conv1"] == "early: 16"
    assert warnings["layer4.1.relu"] == "early: 1"  # its first call
    assert warnings["layer4.1.conv2"] == warnings["layer4.1.bn2"] == "branch"
    assert warnings["layer4.1"] == "no-op"  # the global pool follows
    assert "layer4" not in warnings
    assert "ranked:quantiles=4 in place of the global pool after layer4.1 (avgpool)" in text
    assert "512 x 4 inputs, not 512" in text
    assert "insert_after(" not in text


def test_advice_on_resnet18_without_its_global_pool() -> None:
    model = resnet18()
    model.avgpool, model.fc = nn.Identity(), nn.Linear(512 * 2 * 2, 10)
    warnings, text = advice_on(model, torch.randn(2, 3, 64, 64))
    assert warnings["layer4.1"] == ""
    assert 'insert_after(model, "layer4.1", "reorder:grid=pixels")' in text


def test_advice_on_mobilenet() -> None:
    warnings, text = advice_on(mobilenet(), torch.randn(2, 3, 64, 64))
    assert warnings["conv_stem"].startswith("early: ")
    assert warnings["blocks.4.2"] == ""  # a 1x1 convolution still mixes the channels before the global pool
    assert warnings["blocks.5.0.conv"] == "no-op"
    assert "insert_after(" not in text  # but they are pooled globally all the same
    assert 'model.set_submodule("global_pool.pool", create_layer("ranked:quantiles=4"))' in text


def test_a_pool_that_no_layer_follows() -> None:
    model = torchvision.models.squeezenet1_1(num_classes=10)
    _, text = advice_on(model, torch.randn(2, 3, 64, 64))
    assert "no layer follows: the output then has 10 x 9 numbers, not 10" in text
    assert "the next layer" not in text


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = readme.split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(block, names)
    model = names["model"]
    assert isinstance(model, nn.Module)
    assert isinstance(model.get_submodule("2.reorder"), PatchReorder)
    assert 'insert_after(model, "2"' in capsys.readouterr().out  # what the README does is what advise says

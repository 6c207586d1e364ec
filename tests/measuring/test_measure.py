"""measure(): exact answers on networks made by hand, every kind of network and of images, and the page about them."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from patchreorder import PatchReorder, ShiftAlign
from patchreorder.__main__ import main
from patchreorder.data.generated import generate_digits
from patchreorder.data.poses import Pose, apply_pose, rotations, translations
from patchreorder.layers.registry import FAMILY
from patchreorder.measuring import findings, gallery, packages
from patchreorder.measuring import measure as engine
from patchreorder.measuring.activations import usual_layers, watch
from patchreorder.measuring.measure import forwards, measure
from patchreorder.measuring.networks import open_network
from patchreorder.models import alexnet, create_model, saved
from patchreorder.report import measured, measured_page
from patchreorder.report.measured import Document, Model, Row
from tests import vision

X = {"x": translations(axes=["x"])}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Dots:
    """200 images of 25x25 with a bright dot in one of 5x5 places in the middle: every shift of the grid keeps it."""

    def __init__(self, labels: str = "column") -> None:
        self.place = torch.arange(200) % 25
        self.images = torch.zeros(200, 1, 25, 25)
        rows, columns = 10 + self.place // 5, 10 + self.place % 5
        self.images[torch.arange(200), 0, rows, columns] = 1 + torch.arange(200) / 100
        self.labels = {"column": columns, "none": torch.full((200,), -1)}[labels]

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.amax(1, keepdim=True)


class Column(nn.Module):
    """Answers in which column the dot is."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (25, 25)).sum(1)


class ByHand(nn.Module):
    """Watches places and brightness; says the column, or always the same."""

    def __init__(self, *, invariant: bool) -> None:
        super().__init__()
        self.places, self.anywhere, self.column = nn.Flatten(), Largest(), Column()
        self.invariant = invariant

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(x)
        brightness = self.anywhere(places)
        return brightness * torch.arange(1.0, 26.0) if self.invariant else self.column(places)


# ---- exact answers ---------------------------------------------------------------------------------


def test_a_position_detector_and_an_invariant_neuron():
    found = measure(ByHand(invariant=False), Dots(), grids=X, layers=["places", "anywhere"], most=None, batch=64)
    assert list(found.layers) == ["image", "places", "anywhere"]
    score = {name: layer.invariance.get("x") for name, layer in found.layers.items()}
    assert score["image"] is None
    # Three of 200 images are the fewest above 1 %. A neuron that never stops has 1 / 0.015.
    assert score["anywhere"].score == pytest.approx(200 / 3)
    # 25 places fire in one pose of 11; 600 are always zero and fire always. The best fifth are 125.
    assert score["places"].score == pytest.approx((25 * (1 / 11) / (3 / 200) + 100 * 1) / 125)
    assert score["places"].unselective == 600
    for pose in found.poses.keys() - {"as it is"}:
        assert found.layers["anywhere"].similarity[pose].mean == pytest.approx(1, abs=1e-6)
        assert found.layers["places"].similarity[pose].mean == pytest.approx(0, abs=1e-4)
        assert found.layers["image"].similarity[pose].mean == pytest.approx(0, abs=1e-4)
        assert found.error(pose).value == 100
        assert found.agreement(pose).value == 0
    assert found.error("as it is").value == 0
    assert found.consistency("x").value == 0  # eleven poses, eleven answers
    assert found.changed().sum(1).tolist() == [10] * 200
    assert len(found.worst(3)) == 3


def test_shifts_down_do_not_change_columns():
    found = measure(ByHand(invariant=False), Dots(), grids={"y": translations(axes=["y"])}, layers=[])
    assert found.consistency("y").value == 100
    assert {found.error(pose).value for pose in found.poses} == {0.0}
    assert found.worst(5) == []


def test_an_invariant_network_without_labels():
    found = measure(ByHand(invariant=True), Dots("none"), grids=X, layers=["anywhere"])
    assert found.labels is None
    assert {found.agreement(pose).value for pose in found.poses} == {100.0}
    with pytest.raises(ValueError, match="the images have no labels"):
        found.error("as it is")


def test_each_image_goes_through_once_in_each_pose(monkeypatch):
    seen, moved = [], []
    network = ByHand(invariant=False)
    network.places.register_forward_hook(lambda layer, given, output: seen.append(len(output)))
    monkeypatch.setattr(engine, "apply_pose", lambda images, pose, fill: moved.append(pose) or apply_pose(images, pose))
    told = []
    grids = {"rotate": rotations(), **X}
    found = measure(network, Dots(), grids=grids, layers=["anywhere"], batch=50, report=told.append)
    # Two images, twice, to see the layers and their sizes.
    assert sum(seen) - 4 == sum(told) == found.forwards == 200 * 22
    assert found.forwards == forwards(200, grids)
    assert len(moved) == 4 * 21  # of both grids together, the image as it is once
    assert {pose: moved.count(pose) for pose in moved} == dict.fromkeys(found.poses.values(), 4)
    without = measure(network, Dots(), grids=grids, layers=["anywhere"], invariance=False, similarity=False)
    assert without.forwards == 200 * 21
    assert without.layers["anywhere"].invariance == without.layers["anywhere"].similarity == {}


def test_batches_and_layouts_change_nothing():
    torch.manual_seed(3)
    network = create_model("pr_cnn", dataset="mnist")
    data = generate_digits("mnist", count=30)
    grids = {"rotate": rotations(most=18, step=9), "translate": translations(most=0.08)}
    one, other = (measure(network, data, grids=grids, batch=batch) for batch in (30, 7))
    assert torch.equal(one.answers, other.answers)
    for name, layer in one.layers.items():
        for grid, score in layer.invariance.items():
            assert score.score == pytest.approx(other.layers[name].invariance[grid].score)
        for pose, similarity in layer.similarity.items():
            assert similarity.mean == pytest.approx(other.layers[name].similarity[pose].mean, abs=1e-5)
    # Neighbours of the upright pose alone, in every grid.
    assert list(one.orders["reorder"]) == ["rotate -9", "rotate 9", "x -0.04", "x 0.04", "y -0.04", "y 0.04"]
    assert one.orders["reorder"]["rotate 9"].changed == other.orders["reorder"]["rotate 9"].changed > 0


def test_what_uncovered_places_show():
    seen = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(625, 2))
    network.register_forward_pre_hook(lambda layer, given: seen.append(given[0][:, 0, :, 0].mean().item()))
    measure(network, Dots(), grids={"x": {"x 0.2": Pose(right=0.2)}}, layers=[], fill=[0.5])
    assert seen[-1] == pytest.approx(0.5)
    assert seen[-2] == 0.0


# ---- layers ----------------------------------------------------------------------------------------


def test_outputs_that_are_overwritten_are_copied():
    def network(inplace: bool) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=inplace), nn.Flatten(), nn.Linear(4 * 23 * 23, 3))

    found = [measure(network(inplace), Dots(), grids=X, layers=["0", "1"]) for inplace in (True, False)]
    for name in ("0", "1"):
        one, other = (each.layers[name].similarity["x 0.2"].mean for each in found)
        assert one == pytest.approx(other, abs=1e-6)
    assert found[0].layers["0"].similarity["x 0.2"].mean != found[0].layers["1"].similarity["x 0.2"].mean
    with watch(network(True), torch.rand(2, 1, 25, 25)) as watched:
        assert watched.layers == ["1", "3"]


def test_usual_layers():
    for name, wanted in {
        "pr_cnn": ["relu1", "before reorder", "reorder", "relu3", "classifier"],
        "cnn": ["relu1", "relu2", "classifier"],
        "fcn": ["2", "4", "5"],
    }.items():
        with watch(create_model(name, dataset="mnist"), torch.rand(1, 1, 28, 28)) as watched:
            assert watched.layers == wanted
    deep = nn.Sequential(nn.Flatten(), *(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(40)), nn.Linear(4, 2))
    with watch(deep, torch.rand(2, 4)) as watched:
        assert (len(watched.layers), watched.layers[0], watched.layers[-1]) == (12, "1.1", "41")
    assert usual_layers([]) == []


class Gated(nn.Module):
    """Squeeze and excitation between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)
        self.squeeze, self.gate = nn.Conv2d(4, 2, 1), nn.Sequential(nn.Conv2d(2, 4, 1), nn.Sigmoid())
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        x = self.second(x * self.gate(self.squeeze(x.mean((2, 3), keepdim=True))))
        return self.last(self.pool(x).flatten(1))


def test_gates_are_none_of_the_usual_layers():
    torch.manual_seed(0)
    network, images = Gated().eval(), torch.rand(2, 1, 9, 9)
    with watch(network, images) as watched:
        assert watched.layers == ["act", "pool", "last"]
    with watch(network, images, ["squeeze", "gate.1"]) as watched:  # but by name
        assert watched.layers == ["squeeze", "gate.1"]


def test_what_a_reordering_layer_is_given():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), PatchReorder(grid="pixels"), nn.Flatten(), nn.Linear(2, 2))
    network = network[:3].append(nn.Flatten()).append(nn.Linear(2 * 9, 2))
    with watch(network, torch.rand(2, 1, 5, 5), ["2", "before 2", "1"]) as watched:
        outputs = watched(torch.rand(3, 1, 5, 5))
        assert watched.layers == ["1", "before 2", "2"]
        assert torch.equal(outputs.layers["before 2"], outputs.layers["1"])
        assert torch.equal(outputs.given["2"], outputs.layers["1"])
        assert torch.equal(outputs.layers["2"].flatten(2).sort().values, outputs.layers["1"].flatten(2).sort().values)
    with pytest.raises(ValueError, match=r"layer \('before 1'\): only what a reordering layer is given"):
        measure(network, Images(5), grids=X, layers=["before 1"])


def test_the_network_is_left_as_it_was():
    network = create_model("pr_cnn", dataset="mnist").train()
    measure(network, generate_digits("mnist", count=4), grids=X)
    assert all(module.training for module in network.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


class Images:
    """Four images of a size."""

    def __init__(self, side: int, count: int = 4) -> None:
        self.side, self.count = side, count

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return torch.rand(len(indices), 1, self.side, self.side), torch.zeros(len(indices), dtype=torch.int64)


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"network": nn.Conv2d(1, 2, 3)}, r"output \(\(2, 2, 26, 26\) torch.float32\) for 2 images must be logits"),
        ({"network": Pooled()}, r"output \(\(\) torch.float32\) .* must be logits"),
        ({"data": Images(12)}, r"cannot take images of 1x12x12: .* give images of the size and channels it was made"),
        ({"data": Images(28, 0)}, "there are no images"),
        ({"layers": ["relu9"]}, r"layer \('relu9'\) is none of the network's: choose of conv1, pool1, relu1"),
        ({"grids": {}}, r"grids \(none\) must be one or more"),
        ({"grids": {"a": {"one": Pose(9.0)}, "b": {"one": Pose(8.0)}}}, r"pose \('one'\) of grid 'b' .* rename it"),
        ({"batch": 0}, r"batch \(0\) must be 1 or more"),
        ({"classes": 12}, r"the network gives 10 answers, but the labels are of 12 classes: .*--no-labels"),
        ({"order": True}, "order stability is of reordering layers, and none is found"),
    ],
)
def test_errors(change, why):
    torch.manual_seed(0)
    asked = {"network": create_model("cnn", dataset="mnist"), "data": Images(28), "grids": X} | change
    with pytest.raises(ValueError, match=why):
        measure(asked.pop("network"), asked.pop("data"), **asked)


def test_nan_is_an_error():
    network = nn.Sequential(nn.Flatten(), nn.Linear(625, 2))
    network[1].weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="the network gives NaN for images in the pose 'as it is'"):
        measure(network, Dots(), grids=X, layers=[])


# ---- networks by name ------------------------------------------------------------------------------


def test_networks_of_ours(tmp_path):
    opened = open_network("pr_cnn", dataset="mnist")
    assert (opened.channels, opened.side, opened.weights) == (1, 28, "trained on mnist-r")
    assert open_network("cnn", dataset="mnist-t").side == 42
    torch.save(create_model("pr_cnn_fine", dataset="mnist-r").state_dict(), tmp_path / "own.pth")
    assert open_network("pr_cnn_fine", weights=tmp_path / "own.pth").weights == "own.pth"
    with pytest.raises(ValueError, match=r"no trained weights of pr_cnn_fine .* give --weights FILE"):
        open_network("pr_cnn_fine")
    with pytest.raises(ValueError, match=r"own\.pth does not fit fcn for mnist-r: .*Missing key"):
        open_network("fcn", weights=tmp_path / "own.pth")
    with pytest.raises(ValueError, match=r"model \('resnet'\) must be a network of ours .* ours are fcn, cnn"):
        open_network("resnet")


def test_a_file_of_fit(tmp_path):
    model = create_model("alexnet_pr", dataset="imagenet", classes=2, width=8)
    file = tmp_path / "classifier.safetensors"
    saved.save(file, model, name="alexnet_pr", options={"width": 8}, classes=["cat", "dog"])
    opened = open_network(str(file))
    assert (opened.classes, opened.side, opened.channels) == (["cat", "dog"], 224, 3)
    with pytest.raises(ValueError, match="holds its own"):
        open_network(str(file), weights=file)


MODULE = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(3, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, 2))
def grey():
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 10 * 10, 2))
text = lambda: "no network"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in the current folder."""
    (tmp_path / "mine_to_measure.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield "mine_to_measure"
    sys.modules.pop("mine_to_measure", None)


def test_a_module_of_anybody(module, tmp_path):
    before = list(sys.path)
    model = open_network(f"{module}:build").network
    assert isinstance(model, nn.Module)
    assert sys.path == before
    assert open_network(f"{module}:grey").channels == 1
    zeros = {name: torch.zeros(value.shape) for name, value in model.state_dict().items()}
    save_file(zeros, tmp_path / "own.safetensors")
    with torch.inference_mode():
        own = open_network(f"{module}:build", weights=tmp_path / "own.safetensors")
        assert own.network(torch.rand(1, 3, 32, 32)).eq(0).all()
    with pytest.raises(ValueError, match=r"\(mine_to_measure:text\) must build an nn.Module, got str"):
        open_network(f"{module}:text")
    with pytest.raises(ValueError, match="no attribute 'other'"):
        open_network(f"{module}:other")
    with pytest.raises(ImportError, match="there is no module 'nobody_has_this'"):
        open_network("nobody_has_this:build")


def test_networks_of_packages_keep_their_names(monkeypatch, tmp_path):
    torchvision = vision.torchvision()
    monkeypatch.setattr(packages, "_imported", lambda package: torchvision)
    plain = torchvision.models.squeezenet1_1().eval()
    torch.save(plain.state_dict(), tmp_path / "own.pth")
    opened = open_network("torchvision:squeezenet1_1", weights=tmp_path / "own.pth")
    assert (opened.side, opened.crop, opened.weights) == (224, 256 / 224, "own.pth")
    images = torch.rand(1, 3, 224, 224)
    mean, std = (torch.tensor(colour).view(3, 1, 1) for colour in (alexnet.MEAN, alexnet.STD))
    with torch.inference_mode():
        torch.testing.assert_close(opened.network(images), plain((images - mean) / std))
    with watch(opened.network, images) as watched:
        assert (watched.layers[0], watched.layers[-1], len(watched.layers)) == ("features.2", "classifier.3", 12)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"networks of timm need it, .*: pip install 'patchreorder\[vision\]'"):
        open_network("timm:some")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'patchreorder\[export\]'"):
        open_network("some.onnx")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The shipped CNN as two ONNX files, for any number of images and for one, written node by node."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("onnx")
    tensors = create_model("cnn", dataset="mnist-r", pretrained=True).state_dict()
    stored = [onnx.numpy_helper.from_array(value.numpy(), name) for name, value in tensors.items()]
    make = onnx.helper.make_node
    nodes = []
    for number, given in ((1, "images"), (2, "relu1")):
        own = [f"{name}{number}" for name in ("conv", "pool", "relu")]
        nodes += [
            make("Conv", [given, f"{own[0]}.weight", f"{own[0]}.bias"], [own[0]]),
            make("MaxPool", [own[0]], [own[1]], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            make("Relu", [own[1]], [own[2]]),
        ]
    nodes += [
        make("Flatten", ["relu2"], ["flat"]),
        make("Gemm", ["flat", "classifier.weight", "classifier.bias"], ["classifier"], transB=1),
    ]
    for name, count in (("any", "b"), ("one", 1)):
        ends = [
            onnx.helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, [count, *shape])
            for end, shape in (("images", (1, 28, 28)), ("classifier", (10,)))
        ]
        graph = onnx.helper.make_graph(nodes, "cnn", ends[:1], ends[1:], stored)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, folder / f"{name}.onnx")
    return folder


def test_onnx_equals_torch(exported):
    data = generate_digits("mnist", count=30)
    grids = {"rotate": rotations(), **X}
    wanted = measure(open_network("cnn").network, data, grids=grids)
    for name in ("any", "one"):
        opened = open_network(str(exported / f"{name}.onnx"))
        assert (opened.channels, opened.side) == (1, 28)
        found = measure(opened.network, data, grids=grids)
        assert torch.equal(found.answers, wanted.answers)
        assert list(found.layers) == list(wanted.layers) == ["image", "relu1", "relu2", "classifier"]
        for own, theirs in zip(found.layers.values(), wanted.layers.values(), strict=True):
            assert own.shape == theirs.shape
            for pose, similarity in own.similarity.items():
                assert similarity.mean == pytest.approx(theirs.similarity[pose].mean, abs=1e-4)
        score, other = (one.layers["relu2"].invariance["rotate"].score for one in (found, wanted))
        assert score == pytest.approx(other, rel=0.02)
    one = measure(opened.network, data, grids=X, layers=["pool2"])
    assert list(one.layers) == ["image", "pool2"]


def test_gates_of_an_onnx_file_are_none_of_the_usual_layers(exported, tmp_path):
    import onnx

    model, make = onnx.load(exported / "any.onnx"), onnx.helper.make_node
    weight = onnx.numpy_helper.from_array(torch.rand(64, 64, 1, 1).numpy(), "excite.weight")
    model.graph.initializer.append(weight)
    first, rest = list(model.graph.node)[:3], list(model.graph.node)[3:]
    gate = [
        make("GlobalAveragePool", ["relu1"], ["squeezed"]),
        make("Conv", ["squeezed", "excite.weight"], ["excite"]),
        make("Sigmoid", ["excite"], ["gate"]),
        make("Mul", ["relu1", "gate"], ["gated"]),
    ]
    rest[0].input[0] = "gated"
    del model.graph.node[:]
    model.graph.node.extend([*first, *gate, *rest])
    onnx.save(model, tmp_path / "gated.onnx")
    network = open_network(str(tmp_path / "gated.onnx")).network
    images = torch.rand(2, 1, 28, 28)
    with network.watch(images) as watched:
        assert watched.layers == ["relu1", "relu2", "classifier"]
    with network.watch(images, ["gate"]) as watched:  # but by name
        assert watched.layers == ["gate"]


@pytest.mark.slow  # the exporter takes most of a minute
def test_an_exported_reordering_network(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = create_model("pr_cnn", dataset="mnist-r", pretrained=True).eval()
    shapes = ({0: torch.export.Dim("b")},)
    program = torch.onnx.export(network, (torch.rand(2, 1, 28, 28),), dynamo=True, verbose=False, dynamic_shapes=shapes)
    program.save(str(tmp_path / "pr_cnn.onnx"))
    data = generate_digits("mnist", count=30)
    wanted = measure(network, data, grids=X, layers=["relu1", "relu3", "classifier"])
    found = measure(open_network(str(tmp_path / "pr_cnn.onnx")).network, data, grids=X)
    assert torch.equal(found.answers, wanted.answers)
    assert [layer.shape for layer in found.layers.values()] == [layer.shape for layer in wanted.layers.values()]


def test_what_an_onnx_file_cannot_do(exported, tmp_path):
    file = str(exported / "any.onnx")
    with pytest.raises(ValueError, match=r"weights \(w\.pth\) cannot be put into an ONNX file"):
        open_network(file, weights=Path("w.pth"))
    network = open_network(file).network
    with pytest.raises(ValueError, match="order stability is of reordering layers, and none is found here"):
        measure(network, generate_digits("mnist", count=4), grids=X, order=True)
    with pytest.raises(
        ValueError, match=r"layer \('conv9'\) is no output in the graph of .*any\.onnx: choose of relu1, "
    ):
        measure(network, generate_digits("mnist", count=4), grids=X, layers=["conv9"])
    with pytest.raises(ValueError, match=r"any\.onnx cannot take images of 1x12x12: .*give images of the size"):
        measure(network, Images(12), grids=X)
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    with pytest.raises(ValueError, match=r"bad\.onnx cannot be read as an ONNX model"):
        open_network(str(tmp_path / "bad.onnx"))
    with pytest.raises(OSError, match=r"none\.onnx"):
        open_network(str(tmp_path / "none.onnx"))


# ---- images ----------------------------------------------------------------------------------------


def picture(path: Path, colour: tuple[int, int, int] = (200, 30, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (40, 32), (90, 90, 90))
    image.paste(colour, (12, 10, 24, 22))
    image.save(path)


@pytest.fixture
def folder(tmp_path):
    """Two classes, and files with names that a page must not run."""
    for number in range(6):
        picture(tmp_path / "pictures" / "<b>cat" / f"<script>alert({number})<script>.png", (200, 20 * number, 30))
        picture(tmp_path / "pictures" / "dog & co" / f"{number}.png", (20, 40, 40 * number))
    return tmp_path / "pictures"


def test_folders_with_labels_and_without(folder):
    found = gallery.open_folder(folder, side=32)
    assert (len(found), found.classes) == (12, ["<b>cat", "dog & co"])
    images, labels = found.data.batch(torch.arange(12))
    assert (images.shape, labels.tolist()) == ((12, 3, 32, 32), [0] * 6 + [1] * 6)
    for other in (
        gallery.open_folder(folder, side=32, labels=False),
        gallery.open_folder(folder / "dog & co", side=32),
    ):
        assert other.classes == []
        assert (other.data.batch(torch.arange(len(other)))[1] == -1).all()
    assert len(other) == 6
    some = gallery.open_folder(folder, side=32, count=4)
    assert some.data.batch(torch.arange(4))[1].tolist() == [0, 0, 1, 1]
    grey = gallery.open_folder(folder, side=32, channels=1)
    shade = grey.data.batch(torch.tensor([0]))[0]
    assert shade.shape == (1, 1, 32, 32)
    torch.testing.assert_close(shade[0, 0, 0, 0], torch.tensor(90 / 255))


def test_folders_that_cannot_be_measured(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds no image \(jpg, .*\): name a folder with some"):
        gallery.open_folder(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"images \(.*none\) must be a folder of pictures, or one of mnist, "):
        gallery.open_folder(tmp_path / "none")
    with pytest.raises(ValueError, match=r"holds <b>cat, dog & co, not among the 2 classes"):
        gallery.open_folder(folder, classes=["cat", "dog"])
    (folder / "dog & co" / "broken.png").write_bytes(b"no picture")
    found = gallery.open_folder(folder, side=32)
    assert len(found) == 12
    assert [name.endswith("broken.png") for name in found.names] == [False] * 12
    assert len(found.bad) == 1
    assert "broken.png cannot be read" in found.bad[0]
    with pytest.raises(ValueError, match=r"broken\.png cannot be read .*\(1 such files in all\): .*leave out --strict"):
        gallery.open_folder(folder, side=32, strict=True)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "one.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"none of 1 pictures can be read; the first: one\.png"):
        gallery.open_folder(tmp_path / "bad")


def test_data_sets_by_name(monkeypatch):
    monkeypatch.setattr(gallery.datasets, "mnist", lambda name, **options: generate_digits(name, count=20))
    found = gallery.open_dataset("mnist-t", count=5)
    assert (len(found), found.fill, found.names[4]) == (5, None, "image 4")
    assert found.data.batch(torch.tensor([0]))[0].shape == (1, 1, 42, 42)
    assert gallery.is_dataset("cifar10")
    assert not gallery.is_dataset("cifar10-train")


# ---- the command -----------------------------------------------------------------------------------


def run(*args: str) -> dict:
    assert main(["measure", *args, "--workers", "0", "--out", "out"]) == 0
    return json.loads(Path("out/measure.json").read_text())


def test_measuring_class_folders(module, folder, capsys):
    (folder / "dog & co" / "broken.png").write_bytes(b"no picture")
    torch.manual_seed(5)
    document = run(f"{module}:build", "--images", "pictures", "--size", "32", "--axes", "x")
    assert (document["n"], document["labelled"], document["seed"]) == (12, True, 0)
    assert document["models"][0]["forwards"] == 12 * 22
    assert {"commit", "machine", "versions", "finished"} <= document["origin"].keys()
    measures = {(row["measure"], row["layer"]) for row in document["rows"]}
    assert {("error", ""), ("consistency", ""), ("invariance", "1"), ("similarity", "image")} <= measures
    upright = next(row for row in document["rows"] if row["measure"] == "error" and row["pose"] == "as it is")
    assert upright["value"] == pytest.approx(100 * len(upright["indices"]) / 12)
    page = Path("out/measure.html").read_text()
    assert "<script>" not in page
    assert "<b>cat" not in page
    assert "broken.png cannot be read" in page
    assert 'src="http' not in page
    told = capsys.readouterr().out
    assert "1 pictures are left out: " in told
    assert "as it is" in told
    assert f"{module}:build is wrong about" in told
    assert "Page: out/measure.html" in told


def test_measuring_without_labels(module, folder):
    document = run(f"{module}:grey", "--images", "pictures", "--size", "32", "--no-labels", "--transforms", "rotate")
    assert not document["labelled"]
    assert {row["measure"] for row in document["rows"]} == {"agreement", "consistency", "invariance", "similarity"}
    assert list(document["grids"]) == ["rotate"]
    page = Path("out/measure.html").read_text()
    assert "without labels" in page
    assert "wrong answers, %" not in page
    assert any("changes its answer for" in sentence for sentence in document["summary"])


def test_two_networks_side_by_side(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gallery.datasets, "mnist", lambda name, **options: generate_digits(name, count=40))
    document = run("pr_cnn", "--images", "mnist", "--compare", "cnn", "--axes", "x", "--measures", "similarity,order")
    assert [model["name"] for model in document["models"]] == ["pr_cnn", "cnn"]
    assert [pair["where"] for pair in document["pairs"]] == ["as it is", "rotate", "translate"]
    assert {row["measure"] for row in document["rows"]} == {"error", "agreement", "consistency", "similarity", "order"}
    page = Path("out/measure.html").read_text()
    for text in ("Both networks, image by image", "before reorder", "Order of the patches", "Images that break first"):
        assert text in page
    assert page.count('class="line second"') > 3
    assert "pr_cnn" in capsys.readouterr().out


def test_a_layer_of_the_family_can_be_part_of_the_network(module, tmp_path, monkeypatch):
    torch.save(create_model("pr_cnn", layer="align", place="input").state_dict(), tmp_path / "own.pt")
    opened = open_network("pr_cnn", weights=tmp_path / "own.pt", layer="align", place="input")
    assert opened.name == "pr_cnn (align at input)"
    assert isinstance(opened.network.reorder, ShiftAlign)
    put = open_network(f"{module}:build", layer="ranked:smooth=2,stride=2", place="0")
    assert [type(layer).__name__ for layer in put.network.modules() if isinstance(layer, FAMILY)] == ["RankedPool"]
    digits = generate_digits("mnist-r", count=20)
    found = measure(opened.network, digits, grids={"translate": translations(axes=["x"], most=0.04, step=0.04)})
    assert {"before reorder", "reorder"} <= set(found.layers)
    with pytest.raises(
        ValueError, match=r"layer, place \(align, input\) of pr_cnn needs --weights FILE, trained with it"
    ):
        open_network("pr_cnn", layer="align", place="input")
    with pytest.raises(ValueError, match=r"layer \(align\) and place \(None\): .* both are needed"):
        open_network(f"{module}:build", layer="align")
    with pytest.raises(ValueError, match=r"layer \(align\) cannot be put after nowhere of .*:build: "):
        open_network(f"{module}:build", layer="align", place="nowhere")
    with pytest.raises(ValueError, match=r"holds a whole network"):
        open_network("some.onnx", layer="align", place="x")


def test_weights_that_cannot_be_fetched_are_told(monkeypatch):
    def offline(name, pretrained):
        raise OSError("no way out")

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=offline))
    with pytest.raises(
        OSError, match=r"the weights of timm:resnet18 cannot be fetched: give a file with --weights \(no"
    ):
        open_network("timm:resnet18")


def test_the_order_alone_is_told_too(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gallery.datasets, "mnist", lambda name, **options: generate_digits(name, count=20))
    document = run("pr_cnn", "--images", "mnist", "--transforms", "rotate", "--measures", "order")
    changed = [row["value"] for row in document["rows"] if row["measure"] == "order"]
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "reorder" in line)
    assert f"{sum(changed) / len(changed):.1f}" in line


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["cnn", "--images", "none"], "images (none) must be a folder of pictures, or one of mnist"),
        (["cnn", "--images", "pictures", "--transforms", "mirror"], "transforms (mirror) must be of rotate, translate"),
        (["cnn", "--images", "pictures", "--axes", "z"], "axes (z) must be of x, y, diagonal"),
        (["cnn", "--images", "pictures", "--count", "-1"], "count (-1) must be 0 or more"),
        (["cnn", "--images", "pictures", "--size", "32"], "size (32) is not what cnn takes, 28"),
        (["cnn", "--images", "pictures"], "gives 10 answers, but the labels are of 2 classes"),
        (["cnn", "--images", "pictures", "--compare", "st_cnn", "--no-labels", "--layers", "x"], "layer ('x') is none"),
        (["MODULE:build", "--images", "pictures", "--compare", "cnn"], "compare (cnn) takes grey images of 28x28, "),
        (["MODULE:build", "--images", "pictures"], "cannot take images of 3x224x224"),
        (["cnn", "--images", "mnist", "--measures", "order"], "measures (order) is of reordering layers, and none is"),
        (["cnn", "--images", "pictures", "--compare-weights", "w.pt"], "compare-weights (w.pt) is for the network of"),
    ],
)
def test_errors_of_the_command(module, folder, capsys, args, why):
    asked = ["measure", *(arg.replace("MODULE", module) for arg in args), "--workers", "0"]
    assert main(asked) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


def test_strict(module, folder, capsys):
    (folder / "dog & co" / "broken.png").write_bytes(b"no picture")
    assert main(["measure", f"{module}:build", "--images", "pictures", "--strict", "--workers", "0"]) == 2
    assert "broken.png cannot be read" in capsys.readouterr().err


# ---- words and pictures ----------------------------------------------------------------------------


def document(*, labelled: bool = True, second: bool = False) -> Document:
    """Ten images, three poses; a network that is wrong once as it is and five times when shifted by 20 %."""
    poses = {"as it is": (0.0, 0.0, 0.0), "x -0.2": (0.0, 0.0, -0.2), "x 0.2": (0.0, 0.0, 0.2)}
    wrong = {"one": [[0], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]], "<i>two": [[0], [0], list(range(10))]}
    similar = {"image": 0.9, "features.3": 0.8, "features.10": 0.3, "last": 0.5}
    rows = []
    for name in list(wrong)[: 1 + second]:
        for pose, images in zip(poses, wrong[name], strict=True):
            if labelled:
                rows.append(Row(model=name, measure="error", pose=pose, value=10.0 * len(images), indices=images, n=10))
            same = 100 - 10.0 * len(images)
            rows.append(Row(model=name, measure="agreement", pose=pose, value=same, indices=images, n=10))
        rows.append(Row(model=name, measure="consistency", grid="translate", value=50.0, n=10))
        rows += [
            Row(model=name, measure="similarity", layer=layer, pose=pose, value=value, n=10)
            for layer, value in similar.items()
            for pose in list(poses)[1:]
        ]
    return Document(
        images="somewhere",
        n=10,
        labelled=labelled,
        models=[Model(name, "own", 2, 40, 1.0, 1.0) for name in list(wrong)[: 1 + second]],
        poses=poses,
        grids={"translate": list(poses)},
        rows=rows,
    )


def test_the_summary_says_what_is_lost_and_where():
    assert measured.summary(document()) == [
        "one is wrong about 10.0 % of 10 images as they are.",
        "one loses 40.0 points when shifted by 20 %; most of the change in its features appears after layer "
        "features.10 (cosine 0.80 in features.3, 0.30 there).",
    ]
    assert measured.summary(document(labelled=False)) == [
        "one changes its answer for 50.0 % of the images when shifted by 20 %; most of the change in its features "
        "appears after layer features.10 (cosine 0.80 in features.3, 0.30 there)."
    ]


def test_two_networks_are_compared_image_by_image():
    upright, shifted = measured.pairs(document(second=True))
    assert (upright.test.only_a, upright.test.only_b, upright.verdict) == (0, 0, "no difference shown")
    # One: images 1 to 4 are wrong twice. Two: images 1 to 9 are wrong once.
    assert (shifted.test.only_a, shifted.test.only_b) == (4, 5)
    assert shifted.first == pytest.approx((10 + 50 + 50) / 3)
    page = measured_page.render(document(second=True))
    assert "<i>" not in page
    assert "&lt;i&gt;two" in page


def test_pages_do_not_change():
    assert measured_page.render(document()) == measured_page.render(document())


def test_worst_images_and_the_nearest_poses_that_break_them():
    found = measure(ByHand(invariant=False), Dots(), grids={"x": X["x"], "rotate": rotations(most=18)}, layers=[])
    first = findings.broken(found, Dots(), 2)[0]
    assert [pose for pose, _ in first.poses][:2] == ["x -0.04", "x 0.04"]
    assert first.label == first.answer
    assert [answer - first.answer for _, answer in first.poses][:2] == [-1, 1]
    assert len(first.pictures) == 1 + len(first.poses)
    with Image.open(io.BytesIO(first.pictures[0])) as image:
        assert (image.size, image.mode) == ((25, 25), "L")


def test_rows_are_plain_numbers():
    found = measure(create_model("pr_cnn", dataset="mnist"), generate_digits("mnist", count=20), grids=X)
    rows = list(findings.rows(found, "own"))
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert {row["measure"] for row in rows} == {
        "error",
        "agreement",
        "consistency",
        "invariance",
        "similarity",
        "order",
    }

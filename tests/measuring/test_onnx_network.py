"""ONNX files give the same scores as the torch network that they were made from."""

import sys

import pytest
import torch

from patchreorder.data.generated import generate_digits
from patchreorder.data.poses import rotations
from patchreorder.measuring.measure import measure
from patchreorder.measuring.networks import open_network
from patchreorder.models import create_model
from tests.measurable import Noise, X


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The shipped CNN as two ONNX files, for batches of any size and for one image, written node by node."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("onnx")
    tensors = create_model("cnn", dataset="mnist-r", pretrained=True).state_dict()
    stored = [onnx.numpy_helper.from_array(value.numpy(), name) for name, value in tensors.items()]
    make = onnx.helper.make_node
    nodes = []
    for number, source in ((1, "images"), (2, "relu1")):
        conv, pool, relu = (f"{name}{number}" for name in ("conv", "pool", "relu"))
        nodes += [
            make("Conv", [source, f"{conv}.weight", f"{conv}.bias"], [conv]),
            make("MaxPool", [conv], [pool], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            make("Relu", [pool], [relu]),
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
    transforms = {"rotate": rotations(most=18), **X}
    wanted = measure(open_network("cnn").network, data, transforms=transforms)
    for name in ("any", "one"):
        opened = open_network(str(exported / f"{name}.onnx"))
        assert (opened.channels, opened.side, opened.reorders) == (1, 28, False)
        found = measure(opened.network, data, transforms=transforms)
        assert torch.equal(found.predictions, wanted.predictions)
        assert list(found.layers) == list(wanted.layers) == ["image", "relu1", "relu2", "classifier"]
        for own, other in zip(found.layers.values(), wanted.layers.values(), strict=True):
            for pose, similarity in own.similarity.items():
                assert similarity.mean == pytest.approx(other.similarity[pose].mean, abs=1e-4)
        score, other = (one.layers["relu2"].invariance["rotate"].score for one in (found, wanted))
        assert score == pytest.approx(other, rel=0.02)


def test_layers_by_name(exported):
    network = open_network(str(exported / "any.onnx")).network
    found = measure(network, generate_digits("mnist", count=4), transforms=X, layers=["pool2"])
    assert list(found.layers) == ["image", "pool2"]


def test_gates_are_recorded_only_by_name(exported, tmp_path):
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
    with network.record_activations(images) as recorder:
        assert recorder.layers == ["relu1", "relu2", "classifier"]
    with network.record_activations(images, ["gate"]) as recorder:
        assert recorder.layers == ["gate"]


@pytest.mark.slow  # the exporter takes most of a minute
def test_an_exported_reordering_network(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = create_model("pr_cnn", dataset="mnist-r", pretrained=True).eval()
    shapes = ({0: torch.export.Dim("b")},)
    program = torch.onnx.export(network, (torch.rand(2, 1, 28, 28),), dynamo=True, verbose=False, dynamic_shapes=shapes)
    program.save(str(tmp_path / "pr_cnn.onnx"))
    data = generate_digits("mnist", count=30)
    wanted = measure(network, data, transforms=X, layers=["relu1", "relu3", "classifier"])
    found = measure(open_network(str(tmp_path / "pr_cnn.onnx")).network, data, transforms=X)
    assert torch.equal(found.predictions, wanted.predictions)
    neurons = [
        [len(layer.invariance["x"].scores) for layer in list(own.layers.values())[1:]] for own in (found, wanted)
    ]
    assert neurons[0] == neurons[1]


def test_errors(exported, tmp_path):
    file = exported / "any.onnx"
    with pytest.raises(ValueError, match=r"weights \(.*any\.onnx\) cannot be loaded into .*any\.onnx"):
        open_network(str(file), weights=file)
    network, digits = open_network(str(file)).network, generate_digits("mnist", count=4)
    with pytest.raises(ValueError, match=r"layer \('conv9'\) is no output in the graph of .*any\.onnx: .* relu1, "):
        measure(network, digits, transforms=X, layers=["conv9"])
    with pytest.raises(ValueError, match=r"any\.onnx cannot take images of 1x12x12: .*give images of the size"):
        measure(network, Noise(12), transforms=X)
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    with pytest.raises(ValueError, match=r"bad\.onnx cannot be read as an ONNX model"):
        open_network(str(tmp_path / "bad.onnx"))
    with pytest.raises(OSError, match=r"none\.onnx"):
        open_network(str(tmp_path / "none.onnx"))
    onnx = pytest.importorskip("onnx")
    silent = onnx.load(file)
    del silent.graph.output[:]
    onnx.save(silent, tmp_path / "silent.onnx")
    with pytest.raises(ValueError, match=r"silent\.onnx has no output: export the network with its logits"):
        open_network(str(tmp_path / "silent.onnx"))


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'patchreorder\[export\]'"):
        open_network("some.onnx")

"""The network of an ONNX file, whose intermediate outputs can be watched as the layers of a module can."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from patchreorder.layers.patch_reorder import PatchReorder

from .activations import Outputs, check_logits, on_the_way, spread

_WEIGHING = {"Conv", "Gemm", "MatMul", "ConvTranspose"}
# What may stand behind a layer with weights and belongs to it.
_FOLLOWING = {
    *(
        "Relu",
        "LeakyRelu",
        "PRelu",
        "Elu",
        "Selu",
        "Clip",
        "Sigmoid",
        "HardSigmoid",
        "HardSwish",
        "Tanh",
        "Gelu",
        "Erf",
    ),
    *(
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "BatchNormalization",
        "LayerNormalization",
        "LRN",
    ),
    *("Add", "Concat"),
}


class OnnxNetwork:
    """The network of a file, run by onnxruntime; a layer is called by the name of its output in the graph.

    Raises:
        ImportError: onnx or onnxruntime is missing.
        ValueError: the file is no ONNX model, or one that does not take a batch of images.
        OSError: it cannot be opened.
    """

    def __init__(self, file: Path) -> None:
        self._onnx, self._runtime = _imported()
        file.open("rb").close()  # or a missing file would be reported as a damaged one
        try:
            self._model = self._onnx.load(file)
            self._onnx.checker.check_model(self._model)
        except Exception as error:  # the readers of damaged files raise errors of every kind
            raise ValueError(f"{file} cannot be read as an ONNX model: {' '.join(str(error).split())[:240]}") from None
        self.file = file
        graph = self._model.graph
        stored = {tensor.name for tensor in graph.initializer}
        inputs = [given for given in graph.input if given.name not in stored]
        if len(inputs) != 1:
            names = ", ".join(given.name for given in inputs)
            raise ValueError(f"{file} takes {len(inputs)} inputs ({names}), it must take one: a batch of images")
        self.input = inputs[0].name
        # A size is 0 where the file leaves it open.
        self.shape = tuple(size.dim_value for size in inputs[0].type.tensor_type.shape.dim)
        if len(self.shape) != 4:
            raise ValueError(
                f"{file} takes {self.input} {self.shape}, it must take images (b, channels, height, width)"
            )
        if self.shape[0] > 1:
            raise ValueError(
                f"{file} takes {self.shape[0]} images at a time only: export it with a batch of 1 or of any number"
            )
        self.logits = graph.output[0].name

    @contextmanager
    def watch(self, images: Tensor, layers: Sequence[str] | None = None) -> Iterator[WatchedOnnx]:
        """The network with layers as outputs of its graph; see `engine.watch.watch`."""
        nodes = [_Node(name, node.op_type) for node in self._model.graph.node for name in node.output if name]
        known = [node.name for node in nodes]
        for name in layers or ():
            if name not in known:
                shown = ", ".join(usual_layers(nodes))
                raise ValueError(f"layer ({name!r}) is no output in the graph of {self.file}: choose of {shown}, ...")
        if layers is None:
            layers = self._usual(nodes, images)
        wanted = [name for name in known if name in layers]
        found = self._watched(wanted, images)
        other = next((name for name in wanted if not _is_whole(found.outputs[name], images)), None)
        if other is not None:
            raise ValueError(f"layer ({other!r}) gives no numbers with a row for each image: choose another one")
        yield WatchedOnnx(found.session, self, wanted)

    def _usual(self, nodes: Sequence[_Node], images: Tensor) -> list[str]:
        """`usual_layers` of the nodes whose outputs are maps or features on the way to the answer, at most a dozen."""
        nodes = [node for node in nodes if node.kind in _WEIGHING | _FOLLOWING]
        outputs = self._watched([node.name for node in nodes], images).outputs
        nodes = [node for node in nodes if _is_whole(outputs[node.name], images)]
        main = on_the_way([outputs[node.name].shape for node in nodes])
        return spread(usual_layers([node for node, kept in zip(nodes, main, strict=True) if kept]))

    def _watched(self, names: Sequence[str], images: Tensor) -> _Probe:
        model = self._onnx.ModelProto()
        model.CopyFrom(self._model)
        there = {output.name for output in model.graph.output}
        model.graph.output.extend(self._onnx.ValueInfoProto(name=name) for name in names if name not in there)
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            session = self._runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            outputs = self.run(session, [self.logits, *names], images)
        except Exception as error:  # onnxruntime has errors of its own for everything
            raise ValueError(
                f"{self.file} cannot take images of {'x'.join(map(str, images.shape[1:]))}: "
                f"{' '.join(str(error).split())[:240]}: give images of the size and channels it was made for"
            ) from None
        check_logits(torch.as_tensor(outputs[0]), images)
        return _Probe(session, dict(zip(names, outputs[1:], strict=True)))

    def run(self, session: Any, names: Sequence[str], images: Tensor) -> list[np.ndarray]:
        """The outputs of these names for a batch."""
        given = images.contiguous().numpy()
        if self.shape[0] != 1:
            return session.run(names, {self.input: given})
        each = [session.run(names, {self.input: given[i : i + 1]}) for i in range(len(given))]
        return [np.concatenate(parts) for parts in zip(*each, strict=True)]


class _Node(NamedTuple):
    name: str  # of its output
    kind: str


class _Probe(NamedTuple):
    session: Any
    outputs: dict[str, np.ndarray]


class WatchedOnnx:
    """An ONNX network whose layers are watched; reordering layers cannot be told from others in a graph."""

    reorders: Mapping[str, PatchReorder]

    def __init__(self, session: Any, network: OnnxNetwork, layers: Sequence[str]) -> None:
        self.session, self.network, self.layers, self.reorders = session, network, layers, {}

    def __call__(self, images: Tensor) -> Outputs:
        found = self.network.run(self.session, [self.network.logits, *self.layers], images)
        tensors = [torch.from_numpy(output) for output in found]
        return Outputs(tensors[0], dict(zip(self.layers, tensors[1:], strict=True)), {})


def usual_layers(nodes: Sequence[_Node]) -> list[str]:
    """Of every convolution or product with weights what leaves it: the last output before the next of them."""
    ends: list[str] = []
    begun = False
    for node in nodes:
        if node.kind in _WEIGHING:
            ends.append(node.name)
            begun = True
        elif begun and node.kind in _FOLLOWING:
            ends[-1] = node.name
    return ends


def _is_whole(output: np.ndarray, images: Tensor) -> bool:
    shape = output.shape
    return output.dtype.kind == "f" and len(shape) > 1 and shape[0] == len(images) and math.prod(shape) > 0


def _imported() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"ONNX files need onnx and onnxruntime ({error}): pip install 'patchreorder[export]'"
        ) from None
    return onnx, onnxruntime

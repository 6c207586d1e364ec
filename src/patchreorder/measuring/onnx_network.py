"""The network of an ONNX file, run by onnxruntime; intermediate outputs of its graph are recorded like layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .activations import Activations, Recorder, check_logits, evenly_spaced, on_main_path, unfit

_WITH_WEIGHTS = {"Conv", "Gemm", "MatMul", "ConvTranspose"}
# Operators after a layer with weights that count as part of that layer.
_FOLLOWING = {
    "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Gelu", "Erf",
    "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
    "BatchNormalization", "LayerNormalization", "LRN", "Add", "Concat",
}  # fmt: skip


class OnnxNetwork:
    """The network of a file; a layer's name is the name of its output in the graph."""

    def __init__(self, file: Path) -> None:
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise ImportError(
                f"ONNX files need onnx and onnxruntime ({error}): pip install 'patchreorder[export]'"
            ) from None
        self._onnx, self._runtime = onnx, onnxruntime
        file.open("rb").close()  # otherwise a missing file is reported as a damaged one
        try:
            self._model = self._onnx.load(file)
            self._onnx.checker.check_model(self._model)
        except Exception as error:  # damaged files raise errors of every kind
            raise ValueError(f"{file} cannot be read as an ONNX model: {' '.join(str(error).split())[:240]}") from None
        self.file = file
        graph = self._model.graph
        stored = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in stored]
        if len(inputs) != 1:
            names = ", ".join(value.name for value in inputs)
            raise ValueError(f"{file} takes {len(inputs)} inputs ({names}), it must take one: a batch of images")
        self.input = inputs[0].name
        # 0 where the file leaves a size open.
        self.shape = tuple(size.dim_value for size in inputs[0].type.tensor_type.shape.dim)
        if len(self.shape) != 4:
            raise ValueError(f"{file} takes {self.input} {self.shape}, not images (b, channels, height, width)")
        if self.shape[0] > 1:
            raise ValueError(
                f"{file} takes {self.shape[0]} images at a time: export it with a batch of 1 or of any size"
            )
        if not graph.output:
            raise ValueError(f"{file} has no output: export the network with its logits")
        self.logits = graph.output[0].name

    @contextmanager
    def record_activations(self, images: Tensor, layers: Sequence[str] | None = None) -> Iterator[Recorder]:
        """As `activations.record_activations`; a graph does not say which of its layers are reordering layers."""
        operators = {name: node.op_type for node in self._model.graph.node for name in node.output if name}
        for name in layers or ():
            if name not in operators:
                shown = ", ".join(_layer_ends(operators))
                raise ValueError(f"layer ({name!r}) is no output in the graph of {self.file}: choose from {shown}, ...")
        if layers is None:
            names = [name for name, operator in operators.items() if operator in _WITH_WEIGHTS | _FOLLOWING]
            _, outputs = self._session(names, images)
            names = [name for name in names if _is_per_image(outputs[name], images)]
            main = on_main_path([outputs[name].shape for name in names])
            layers = evenly_spaced(_layer_ends({name: operators[name] for name in itertools.compress(names, main)}))
        chosen = [name for name in operators if name in layers]
        session, outputs = self._session(chosen, images)
        other = next((name for name in chosen if not _is_per_image(outputs[name], images)), None)
        if other is not None:
            raise ValueError(f"layer ({other!r}) does not return floats with one row per image: choose another one")

        def run(images: Tensor) -> Activations:
            logits, *found = map(torch.from_numpy, self._run(session, [self.logits, *chosen], images))
            return Activations(logits, dict(zip(chosen, found, strict=True)), {})

        yield Recorder(chosen, {}, run)

    def _session(self, names: Sequence[str], images: Tensor) -> tuple[Any, dict[str, np.ndarray]]:
        """A session with these outputs, and what it computes for the images."""
        model = self._onnx.ModelProto()
        model.CopyFrom(self._model)
        there = {output.name for output in model.graph.output}
        model.graph.output.extend(self._onnx.ValueInfoProto(name=name) for name in names if name not in there)
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        try:
            content, providers = model.SerializeToString(), ["CPUExecutionProvider"]
            session = self._runtime.InferenceSession(content, options, providers=providers)
            logits, *outputs = self._run(session, [self.logits, *names], images)
        except Exception as error:  # onnxruntime's errors have no common class
            raise unfit(str(self.file), images, error) from None
        check_logits(torch.as_tensor(logits), images)
        return session, dict(zip(names, outputs, strict=True))

    def _run(self, session: Any, names: Sequence[str], images: Tensor) -> list[np.ndarray]:
        batch = images.contiguous().numpy()
        if self.shape[0] != 1:
            return session.run(names, {self.input: batch})
        each = [session.run(names, {self.input: batch[i : i + 1]}) for i in range(len(batch))]
        return [np.concatenate(parts) for parts in zip(*each, strict=True)]


def _layer_ends(operators: Mapping[str, str]) -> list[str]:
    """For every convolution or matrix product, the last output before the next one."""
    ends: list[str] = []
    for name, operator in operators.items():
        if operator in _WITH_WEIGHTS:
            ends.append(name)
        elif ends and operator in _FOLLOWING:
            ends[-1] = name
    return ends


def _is_per_image(output: np.ndarray, images: Tensor) -> bool:
    return output.dtype.kind == "f" and output.ndim > 1 and len(output) == len(images) and output.size > 0

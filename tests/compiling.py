"""Compiled and exported modules must give the outputs of the plain module, and compiled ones its gradients."""

import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def assert_compiles_alike(model: nn.Module, inputs: Iterable[Tensor], *, exact: bool = False, **options: Any) -> Any:
    """Compile a model as one graph; its outputs and gradients must equal those of the model itself.

    Args:
        model: the module.
        inputs: batches of images; a second batch size makes the batch dimension dynamic.
        exact: require equal bits.
        options: of `torch.compile`; the backend aot_eager traces like inductor, without compiling C++.

    Returns:
        The compiled model.
    """
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, **options)
    for x in inputs:
        for ours, plain in zip(_results(compiled, model, x), _results(model, model, x), strict=True):
            torch.testing.assert_close(ours, plain, **({"rtol": 0, "atol": 0} if exact else {}))
    return compiled


def _results(called: Any, model: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of all parameters."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    z = called(x)
    (z * torch.arange(z.numel()).view(z.shape).sin()).sum().backward()
    assert x.grad is not None
    return [z.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def onnx_runner(program: Any) -> Callable[[Tensor], list[Tensor]]:
    """A function that runs an exported ONNX program in ONNX Runtime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: [torch.from_numpy(output) for output in session.run(None, {name: x.numpy()})]


def assert_exports_alike(layer: nn.Module, x: Tensor) -> None:
    """Export a layer to ONNX with a dynamic batch; its output must equal that of the layer, for two batch sizes."""
    pytest.importorskip("onnxruntime")
    run = onnx_runner(
        torch.onnx.export(layer, (x,), dynamo=True, verbose=False, dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    )
    for images in (x, x[:-1]):
        (found,) = run(images)
        torch.testing.assert_close(found, layer(images), atol=1e-4, rtol=0)

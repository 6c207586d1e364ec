"""What a compiled or exported module must do: give what it gives otherwise; compiled, forward and backward."""

import io
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def assert_compiles_alike(model: nn.Module, inputs: Iterable[Tensor], *, exact: bool = False, **options: Any) -> Any:
    """Compile the model as one graph; outputs and gradients of all inputs are those of the model itself.

    The second batch size of the inputs makes the batch a dynamic one. `options` go to `torch.compile`: the backend
    aot_eager traces forward and backward like inductor does, without a C++ compile. Returns the compiled model.
    """
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, **options)
    for x in inputs:
        for ours, plain in zip(_results(compiled, model, x), _results(model, model, x), strict=True):
            torch.testing.assert_close(ours, plain, **({"rtol": 0, "atol": 0} if exact else {}))
    return compiled


def _results(called: Any, model: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    z = called(x)
    (z * torch.arange(z.numel()).view(z.shape).sin()).sum().backward()
    assert x.grad is not None
    return [z.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_exports_alike(layer: nn.Module, x: Tensor) -> None:
    """The layer as an ONNX file gives what it gives, for all images of x and for fewer."""
    onnxruntime = pytest.importorskip("onnxruntime")
    file = io.BytesIO()
    exported = torch.onnx.export(
        layer, (x,), dynamo=True, verbose=False, dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}}
    )
    exported.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for images in (x, x[:-1]):
        (found,) = session.run(None, {name: images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), layer(images), atol=1e-4, rtol=0)

"""The plain torch form under exporters and tracers. test_functional.py compares it with the oracle and the kernel."""

import pytest
import torch
from torch import nn

from patchreorder import PatchReorder, patch_reorder
from tests.compiling import onnx_runner


@pytest.mark.parametrize("options", [{}, {"levels": 2, "per_channel": False}, {"grid": "pixels", "descending": False}])
def test_torch_export_with_a_dynamic_batch(options):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), PatchReorder(**options), nn.Flatten(), nn.Linear(8 * 6 * 6, 4)).eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.rand(4, 3, 8, 8),), dynamic_shapes=({0: batch},))
    assert not any("patchreorder" in str(node.target) for node in program.graph.nodes)  # runs without this package
    x = torch.rand(9, 3, 8, 8)
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize(
    "options",
    [  # each export takes seconds
        {"per_channel": False},
        {"grid": "pixels"},
        pytest.param({"grid": 3}, marks=pytest.mark.slow),
        pytest.param({"levels": 2}, marks=pytest.mark.slow),
        pytest.param({"descending": False}, marks=pytest.mark.slow),
    ],
)
def test_onnx_with_a_dynamic_batch_ties_and_nan(options):
    pytest.importorskip("onnxruntime")

    class Both(nn.Module):
        def forward(self, x):
            return patch_reorder(x, **options, return_order=True)

    program = torch.onnx.export(
        Both().eval(),
        (torch.rand(2, 3, 7, 6),),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("n")},),
        verbose=False,
    )
    run = onnx_runner(program)
    tied = torch.randint(-1, 2, (5, 3, 7, 6)).float()
    special = torch.tensor([float("nan"), float("inf"), 1.0, 0.0])[torch.randint(0, 4, (5, 3, 7, 6))]
    for x in (torch.randn(5, 3, 7, 6), tied, special):
        z, order = run(x)
        expected_z, expected_order = patch_reorder(x, **options, return_order=True)
        assert torch.equal(order, expected_order)
        assert torch.equal(z.nan_to_num(9.0), expected_z.nan_to_num(9.0))


def test_onnx_from_an_exported_program():
    pytest.importorskip("onnxruntime")
    x = torch.rand(2, 3, 8, 8)
    program = torch.export.export(PatchReorder().eval(), (x,))
    (z,) = onnx_runner(torch.onnx.export(program, verbose=False))(x)
    assert torch.equal(z, patch_reorder(x))


def test_jit_trace():
    x = torch.rand(2, 3, 8, 8)
    with pytest.warns(torch.jit.TracerWarning), pytest.warns(DeprecationWarning, match="trace"):
        traced = torch.jit.trace(PatchReorder(), (x,), check_trace=False)
    y = torch.rand(2, 3, 8, 8)
    assert torch.equal(traced(y), patch_reorder(y))

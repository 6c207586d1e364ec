"""A classifier as one ONNX file: from the pixels of a crop to probabilities."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from patchreorder.files import write_whole

from .classifier import Classifier


class FromPixels(nn.Module):
    """Bytes to probabilities and the distance to the nearest class.

    Shape:
        pixels: (batch, 3, size, size), uint8; to (batch, classes) and (batch,).
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.network = classifier.network

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        logits, distances = self.network.judge(pixels.float() / 255)
        return logits.softmax(1), distances


def export(classifier: Classifier, path: Path) -> None:
    """Write a classifier as ONNX; its metadata say how a photograph is cropped, and the names of the classes.

    Raises:
        ImportError: the packages that write ONNX are not installed.
        OSError: the file cannot be written.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise ImportError("writing ONNX needs packages: pip install 'patchreorder[export]'") from None
    facts = classifier.facts
    images = torch.zeros(2, 3, facts.size, facts.size, dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Path(folder) / "classifier.onnx"
        torch.onnx.export(
            FromPixels(classifier).eval(),
            (images,),
            str(made),
            input_names=["pixels"],
            output_names=["probabilities", "distance"],
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        model = onnx.load(str(made))
    for key, value in {
        "classes": json.dumps(list(facts.classes)),
        "size": str(facts.size),
        "short": str(facts.short),
        "threshold": str(facts.threshold),
        "crop": f"scale the short side to {facts.short}, crop the centre {facts.size}x{facts.size}, RGB bytes",
    }.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    write_whole(path, model.SerializeToString())

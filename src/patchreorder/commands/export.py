"""`patchreorder export`: a classifier as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


def export(
    classifier: Annotated[Path, Positional, arg(metavar="CLASSIFIER")],
    out: Annotated[Path, Positional, arg(metavar="OUT")],
) -> None:
    """Write a classifier that `patchreorder fit` made as an ONNX file, from pixels to probabilities.

    Its input `pixels` are bytes (batch, 3, size, size) of cropped photographs; its outputs are `probabilities` and
    `distance`. Classes, size, crop and the threshold of the distance are in its metadata.

    Examples:
        patchreorder export runs/fit-photographs/classifier.safetensors fit.onnx
        patchreorder export old.safetensors new/old.onnx

    Args:
        classifier: file that `fit` wrote, classifier.safetensors.
        out: the ONNX file.
    """
    if out.suffix != ".onnx":
        raise ValueError(f"out ({out}) must end in .onnx")
    from patchreorder.classifier.classifier import load_classifier
    from patchreorder.classifier.export import export as write

    write(load_classifier(classifier), out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")

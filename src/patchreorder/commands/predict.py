"""`patchreorder predict`: classify images with a classifier that `patchreorder fit` trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional


def predict(
    classifier: Annotated[Path, Positional], images: Annotated[tuple[Path, ...], Positional], *, top: int = 3
) -> None:
    """Classify images with a classifier that `patchreorder fit` trained.

    Args:
        classifier: file that `fit` wrote, classifier.safetensors.
        images: image files.
        top: number of classes to show.
    """
    if top < 1:
        raise ValueError(f"top ({top}) must be 1 or more")
    if not images:
        raise ValueError("name one image or more")
    import torch

    from patchreorder.data.images import BadImage
    from patchreorder.data.views import preprocess
    from patchreorder.engine.batches import model_input
    from patchreorder.models.saved import load_classifier

    model, classes = load_classifier(classifier)
    table = Table("image", "class", "probability")
    bad = []
    for path in images:
        try:
            pixels = preprocess(path.read_bytes(), name=str(path))
        except BadImage as error:
            bad.append(str(error))
            continue
        with torch.inference_mode():
            probabilities = model(model_input(pixels[None], torch.device("cpu")))[0].softmax(0)
        best = probabilities.topk(min(top, len(classes)))
        for rank, (probability, index) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            table.add_row(Text("" if rank else str(path)), Text(classes[index]), f"{probability:.1%}")
    Console(highlight=False).print(table)
    if bad:
        raise ValueError("; ".join(bad))

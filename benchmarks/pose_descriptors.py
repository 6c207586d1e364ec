"""Is the original of an altered copy among the ten nearest? Forms of the descriptor that finds candidates.

    python benchmarks/pose_descriptors.py --set varied=PHOTOGRAPHS --set lookalikes=CARS [--photographs 150]

Contract: of some photographs of each set copies are written (copies.py, from a seed; kinds in turn), all in one folder.
Every form averages the last features of EfficientNet-lite0 over views of the whole image, scaled to a square. Time is
that of the network alone, one thread, the median of rounds over all forms in turn, as a multiple of one view at 224
pixels: of one image, and of as many together as `index` describes.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from patchreorder.data.folders import ENDINGS
from patchreorder.engine.batches import model_input
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.files import write_whole
from patchreorder.laboratory import provenance
from patchreorder.search.descriptors import BATCH, SymmetricAverage, open_descriptor
from patchreorder.search.images import CONTENT, Reader

_spec = importlib.util.spec_from_file_location("copies", Path(__file__).with_name("copies.py"))
assert _spec is not None
assert _spec.loader is not None
copies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(copies)
Network = Callable[[Tensor], Tensor]


def averaged(network: Network, images: Tensor, *, rotations: int, mirrored: bool) -> Tensor:
    """Features (b, c) averaged over quarter rotations, and over the mirrored image."""
    views = [images, images.flip(3)] if mirrored else [images]
    shown = [view.rot90(quarter, (2, 3)).contiguous() for view in views for quarter in range(rotations)]
    return torch.stack([network(view).mean((2, 3)) for view in shown]).mean(0)


def chosen(network: Any, images: Tensor) -> Tensor:
    return SymmetricAverage(network)(images).flatten(1)


FORMS: dict[str, tuple[int, Callable[[Any, Tensor], Tensor]]] = {
    "one view at 224": (224, lambda network, images: averaged(network, images, rotations=1, mirrored=False)),
    "eight symmetries at 112": (112, lambda network, images: averaged(network, images, rotations=4, mirrored=True)),
    "four rotations at 160": (160, lambda network, images: averaged(network, images, rotations=4, mirrored=False)),
    "four rotations at 160, mirrored by handedness": (160, chosen),
    "eight symmetries at 224": (224, lambda network, images: averaged(network, images, rotations=4, mirrored=True)),
}
CHOSEN = "four rotations at 160, mirrored by handedness"


@torch.inference_mode()
def described(network: Any, form: str, data: Path, names: list[str]) -> Tensor:
    """Unit vectors (n, c)."""
    size, describe = FORMS[form]
    reader = Reader(data, {"size": size, "view": CONTENT})
    vectors = []
    for begin in range(0, len(names), 16):
        _, images = reader(names[begin : begin + 16])
        vectors.append(describe(network, images.float() / 255))
    features = torch.cat(vectors)
    return F.normalize(features.sign() * features.abs().sqrt())


@torch.inference_mode()
def times(network: Any, rounds: int, batch: int) -> dict[str, float]:
    """Seconds a batch; forms take turns, so that other work on the machine meets all of them."""
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(rounds + 1):
        for form, (size, describe) in FORMS.items():
            images = model_input(torch.rand(batch, 3, size, size), torch.device("cpu"))
            start = time.process_time()
            describe(network, images)
            seconds[form].append(time.process_time() - start)
    return {form: statistics.median(found[1:]) for form, found in seconds.items()}


def among_ten(vectors: Tensor, names: list[str], pairs: list[tuple[str, str, str]]) -> list[str]:
    """The copies whose original is not among the ten nearest files."""
    number = {name: place for place, name in enumerate(names)}
    products = vectors @ vectors.T
    products.fill_diagonal_(-2)
    nearest = products.topk(10, dim=1).indices.tolist()
    return [copy for copy, own, _ in pairs if number[own] not in nearest[number[copy]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--photographs", type=int, default=150, help="of each set, at most, drawn with a seed")
    parser.add_argument("--originals", type=int, default=36, help="of them, that get copies")
    parser.add_argument("--each", type=int, default=2, help="copies of each, of kinds in turn")
    parser.add_argument("--rounds", type=int, default=15, help="of the timing")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as `index` does
    network = open_descriptor("efficientnet_lite0/gap").maps
    rows: list[dict[str, Any]] = [{"form": form, "missed": {}, "chosen": form == CHOSEN} for form in FORMS]
    sets = {}
    for text in args.set:
        name, _, folder = text.partition("=")
        found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower().lstrip(".") in ENDINGS)
        sources = [found[place] for place in np.random.default_rng(0).permutation(len(found))[: args.photographs]]
        with tempfile.TemporaryDirectory() as temporary:
            data = Path(temporary) / "photographs"
            pairs = copies.write_set(sources[: args.originals], data, copies.KINDS, each=args.each)
            for number, path in enumerate(sources[args.originals :], args.originals):
                (data / f"{number:05d}{path.suffix.lower()}").write_bytes(path.read_bytes())
            names = sorted(path.name for path in data.iterdir())
            sets[name] = {"images": len(names), "copies": len(pairs)}
            for row in rows:
                row["missed"][name] = among_ten(described(network, row["form"], data, names), names, pairs)
    seconds = {"time": times(network, args.rounds, 1), "time_together": times(network, args.rounds, BATCH)}
    heads = ("time", f"{BATCH} together")
    table = Table("form", *(f"{name}: of {about['copies']}" for name, about in sets.items()), *heads)
    for row in rows:
        row |= {key: round(own[row["form"]] / own["one view at 224"], 2) for key, own in seconds.items()}
        row["found"] = {name: about["copies"] - len(row["missed"][name]) for name, about in sets.items()}
        table.add_row(row["form"], *(str(row["found"][name]) for name in sets), *(f"{row[key]:.2f}" for key in seconds))
    Console().print(table)
    document = {
        "benchmark": "pose_descriptors",
        "sets": sets,
        "each": args.each,
        "together": BATCH,
        "rows": rows,
        **provenance.provenance(),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    write_whole(args.out / "benchmark_pose_descriptors.json", (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

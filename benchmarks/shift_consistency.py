"""Shift consistency as in the BlurPool paper (Zhang 2019), beside the figures that its authors published.

    python benchmarks/shift_consistency.py --images IMAGENET_VAL [--pairs 5] [--out results]

Protocol, as in the authors' `main.py --evaluate-shift`: the short side of a photograph is scaled to 256 pixels, the
centre of 256x256 is cut out, and two crops of 224x224 are taken at whole pixels from 0 to 31, drawn at random. The
consistency is the share of pairs with one answer. The authors draw one pair of crops for a whole batch, this file one
for each image, by seed. Classifiers: backbones with their own ImageNet classifier, and torchvision's by name if its
weights are there. IMAGES: class folders in torchvision's order, or any folder of photographs (then without accuracy).
The interval is Wilson's for the number of images.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from patchreorder.data.transforms import uniform
from patchreorder.laboratory.provenance import provenance
from patchreorder.measuring.image_set import open_folder
from patchreorder.measuring.networks import open_network
from patchreorder.metrics.rate import rate

WHOLE, CROP, OFFSETS = 256, 224, 32
# README of github.com/adobe/antialiased-cnns: accuracy and consistency in %, as published and with BlurPool.
PUBLISHED = {
    "alexnet": {"accuracy": 56.55, "consistency": 78.18, "with BlurPool": 83.31},
    "resnet50": {"accuracy": 76.16, "consistency": 89.20, "with BlurPool": 91.32},
    "mobilenet_v2": {"accuracy": 71.88, "consistency": 86.50, "with BlurPool": 87.73},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of photographs, or of class folders")
    parser.add_argument("--models", nargs="+", default=["mobilenet_v2", "efficientnet_lite0"])
    parser.add_argument("--pairs", type=int, default=5, help="pairs of crops of an image")
    parser.add_argument("--count", type=int, default=0, help="how many images; 0 for all")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    console = Console(highlight=False)
    torch.set_num_threads(1)
    found = open_folder(args.images, side=WHOLE, count=args.count)
    rows = {}
    for name in args.models:
        network = open_network(name).network
        assert isinstance(network, torch.nn.Module)
        rows[name] = compare(name, network, found.data, labelled=bool(found.classes), args=args)
        shown = ", ".join(
            f"{what} {row['value']:.1f} ({row['low']:.1f} to {row['high']:.1f})" for what, row in rows[name].items()
        )
        console.print(f"{name}: {shown}; published: {PUBLISHED.get(name, 'none')}", soft_wrap=True)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "benchmark_shift_consistency.json"
    facts = {"images": len(found), "pairs": args.pairs, "seed": args.seed}
    path.write_text(json.dumps({**provenance(), **facts, "published": PUBLISHED, "measured": rows}, indent=1) + "\n")
    console.print(f"written to {path}")


@torch.inference_mode()
def compare(
    name: str, network: torch.nn.Module, data: Any, *, labelled: bool, args: argparse.Namespace
) -> dict[str, Any]:
    """Consistency over pairs of crops, and the accuracy of the centre crop if labels are known."""
    offsets = (uniform(len(data), 4 * args.pairs, seed=args.seed, epoch=0) * OFFSETS).long()
    same = right = 0
    for part in track(torch.arange(len(data)).split(args.batch), f"measuring {name}", transient=True):
        images, labels = data.batch(part)
        images = images.float().div(255)
        for corners in offsets[part].split(4, dim=1):
            first, second = (predict(network, images, corners[:, at : at + 2]) for at in (0, 2))
            same += int((first == second).sum())
        if labelled:
            centre = torch.full((len(part), 2), (WHOLE - CROP) // 2)
            right += int((predict(network, images, centre) == labels).sum())
    rates = {"consistency": rate(same, len(data) * args.pairs, n=len(data))}
    if labelled:
        rates["accuracy"] = rate(right, len(data))
    return {what: found._asdict() for what, found in rates.items()}


def predict(network: torch.nn.Module, images: Tensor, corners: Tensor) -> Tensor:
    """The answers (b,) to a crop of each image, with its upper left pixel at a corner, (b, 2)."""
    crops = [
        image[:, top : top + CROP, left : left + CROP]
        for image, (top, left) in zip(images, corners.tolist(), strict=True)
    ]
    return network(torch.stack(crops)).argmax(1)


if __name__ == "__main__":
    main()

"""Follows the advice of `advise` for networks of torchvision and timm, and measures whether it holds.

    python benchmarks/advice.py --images FOLDER [--count 16] [--out results]

Weights are random (seed 0), since what `advise` says is about structure; accuracy is measured by the recipes. `advise`
sees photographs of the folder, then drawn digits on black. What it says is done:

- "reordering changes nothing": `reorder:grid=pixels` goes after the last maps. Measured: the largest change of a logit,
  over their spread. It holds below 0.001.
- "in place of the pool": the printed code is run. Measured: the change of the pooled features when the maps are
  shuffled, for the layer and for the pool; both must be 0, and the layer must tell more (its features of different
  images are less alike).
- "insert a layer after a module": measured at the layer's output, how far shifts and rotations of the image move it
  over how far apart different images are (pose / identity), without and with the layer. It holds if that falls.
- "align at the input": digits move on their canvas. Measured: the same ratio for the logits, without and with the
  layer. It holds if the ratio is below 0.001 with it.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from patchreorder.data.poses import Pose, apply_pose
from patchreorder.laboratory.provenance import provenance
from patchreorder.layers.registry import create_layer
from patchreorder.measuring.image_set import open_folder
from patchreorder.metrics.similarity import DifferentImages, Features, FeatureSimilarity
from patchreorder.models.packages import import_package
from patchreorder.playground.digits import samples
from patchreorder.surgery.advice import NO_OP, advise
from patchreorder.surgery.insertion import insert_after

NETWORKS = (
    ("torchvision", "alexnet"),
    ("torchvision", "resnet18"),
    ("timm", "mobilenetv3_small_050"),
    ("timm", "resnet10t"),
    ("timm", "convnext_atto"),
)
SHIFTS = [Pose(right=0.12), Pose(down=-0.12), Pose(down=0.08, right=-0.16)]
ROTATIONS = [Pose(degrees=20.0), Pose(degrees=-45.0), Pose(degrees=90.0)]
SAME = 1e-3
SIDE = 160


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(highlight=False)
    data = open_folder(args.images, side=SIDE, crop=8 / 7, count=args.count, labels=False).data
    photographs = data.batch(torch.arange(len(data)))[0].float().div(255)
    rows: list[dict[str, Any]] = []
    for package, name in NETWORKS:
        rows += follow(f"{package}:{name}", create(package, name), photographs)
    table = Table("network", "followed", "measured", "without", "with", "holds")
    for row in rows:
        numbers = [f"{row[side]:.4f}" for side in ("without", "with")]
        table.add_row(row["network"], row["followed"], row["measured"], *numbers, "yes" if row["holds"] else "NO")
    console.print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "benchmark_advice.json"
    path.write_text(json.dumps({**provenance(), "images": len(data), "rows": rows}, indent=1) + "\n")
    console.print(f"written to {path}")


def create(package: str, name: str) -> nn.Module:
    torch.manual_seed(0)
    module: Any = import_package(package)
    make = module.create_model if package == "timm" else module.models.get_model
    return make(name).eval().requires_grad_(False)


@torch.no_grad()
def follow(network: str, model: nn.Module, photographs: Tensor) -> list[dict[str, Any]]:
    """What is measured after following the advice on photographs, then on digits over black."""
    rows: list[dict[str, Any]] = []

    def add(followed: str, measured: str, without: float, with_it: float, holds: bool) -> None:
        facts = {"sentence": advice.sentence, "without": without, "with": with_it, "holds": bool(holds)}
        rows.append({"network": network, "followed": followed, "measured": measured, **facts})

    advice = advise(model, photographs[:2], console=Console(quiet=True))
    useless = [entry for entry in advice if entry.warning == NO_OP]
    if useless and useless[-1].layer:
        last, layer = useless[-1].name, useless[-1].layer
        plain = model(photographs)
        changed = copy.deepcopy(model)
        insert_after(changed, last, "reorder:grid=pixels")
        change = float((changed(photographs) - plain).abs().max() / plain.std())
        add(f"reorder after {last}", "change of the logits", 0.0, change, change < SAME)
        maps = watch(model, last, photographs)
        order = torch.randperm(maps.shape[2] * maps.shape[3])
        shuffled = maps.flatten(2)[:, :, order].view_as(maps)
        pool, ranked = nn.AdaptiveAvgPool2d(1), create_layer(layer)
        moved = float((ranked(shuffled) - ranked(maps)).abs().max() / ranked(maps).std())
        alike = [different(layer(maps).flatten(1)) for layer in (pool, ranked)]
        holds = moved < SAME and alike[1] < alike[0]
        add(f"{layer} in place of the pool", "cosine of different images", alike[0], alike[1], holds)
    free = [entry for entry in advice if entry.layer and not entry.warning]
    if free:
        name, layer = free[-1].name, free[-1].layer
        changed = copy.deepcopy(model)
        insert_after(changed, name, layer)  # it must run
        assert changed(photographs[:2]).shape == model(photographs[:2]).shape
        reorder = create_layer(layer)
        for what, poses in (("shifted", SHIFTS), ("rotated", ROTATIONS)):
            without = ratio(lambda x: watch(model, name, x), photographs, poses)
            with_it = ratio(lambda x: reorder(watch(model, name, x)), photographs, poses)
            add(f"{layer} after {name}", f"pose / identity, {what}", without, with_it, with_it < without)
    digits = torch.zeros(10, 3, SIDE, SIDE)
    for own, digit in zip(digits, samples(), strict=True):
        own[:, 52:108, 52:108] = nn.functional.interpolate(digit.image(), scale_factor=2)[0]
    advice = advise(model, digits[:2], console=Console(quiet=True))
    if "`align` at the input" in advice.sentence:
        poses = [Pose(right=20 / SIDE), Pose(down=-33 / SIDE), Pose(down=40 / SIDE, right=-47 / SIDE)]
        aligned = nn.Sequential(create_layer("align"), model)
        without, with_it = ratio(model, digits, poses), ratio(aligned, digits, poses)
        add("align at the input", "pose / identity, digits shifted", without, with_it, with_it < SAME)
    else:
        add("align at the input", "not advised on digits over black", 0.0, 0.0, False)
    return rows


def watch(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """The output of a module."""
    found: list[Tensor] = []
    with model.get_submodule(name).register_forward_hook(lambda module, args, output: found.append(output.clone())):
        model(images)
    return found[-1]


def ratio(network: Callable[[Tensor], Tensor], images: Tensor, poses: list[Pose]) -> float:
    """How far poses move the features, over how far apart different images are."""
    own = Features.of(network(images).flatten(1))
    similar = FeatureSimilarity()
    for pose in poses:
        similar.update(own, network(apply_pose(images, pose)).flatten(1))
    others = DifferentImages()
    others.update(own)
    return (1 - similar.result().mean) / (1 - others.mean)


def different(features: Tensor) -> float:
    others = DifferentImages()
    others.update(Features.of(features))
    return others.mean


if __name__ == "__main__":
    main()

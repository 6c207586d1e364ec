"""What the layers of the family cost in training: the CNN of Table 1 with each of them, as ratios to the CNN without.

    python benchmarks/family.py [--out runs/bench] [--quick]

Contract: one thread, batch 128 of 42x42, channels_last, whole steps (transform of the images, forward, backward, SGD),
processor time, a step of the CNN before and after each; a ratio is that to the mean of its two neighbours, median and
quartiles over the rounds. The convolutions are the CNN's own, so the difference is the layer and what its place costs.
The layer for orientations stands behind the C4 convolution, and is compared with `OrientationMax` at its place.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, where operator.py would pass for the standard library's

import argparse
import json
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from patchreorder import OrientationReorder, PatchReorder, RankedPool, ShiftAlign, results
from patchreorder.data import datasets
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.models.group_conv import C4Conv2d, C4Lift2d, OrientationMax

BATCH = 128
DATASET = "mnist-t"
MOST = 1.05
Step = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds: does it run at all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    rounds = 2 if args.quick else args.rounds
    found = {"cnn": measure("plain", plain(), rounds), "c4": measure("orientation max", turning(), rounds)}
    console = Console(highlight=False)
    for base, rows in found.items():
        show(console, base, rows)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "family.json"
    path.write_text(json.dumps({"rounds": rounds, "batch": BATCH, **results.provenance(), **found}, indent=1))
    console.print(f"written to {path}")


def plain() -> dict[str, nn.Module]:
    """The CNN, and the same with one more layer; 36 values of each of the 64 maps reach the classifier everywhere."""
    return {
        "plain": cnn(),
        "PatchReorder(pixels) after the pool": cnn(after=PatchReorder(grid="pixels")),
        "RankedPool() after the pool": cnn(after=RankedPool()),
        "RankedPool(weights=-0.5) after the pool": cnn(after=RankedPool(weights=-0.5)),
        "RankedPool(quantiles=36) for the pool": cnn(pool=RankedPool(quantiles=36)),
        "RankedPool(keep=36) for the pool": cnn(pool=RankedPool(keep=36)),
        "ShiftAlign() at the input": cnn(before=ShiftAlign()),
        "ShiftAlign() after the second convolution": cnn(between=ShiftAlign()),
        "ShiftAlign(per_channel) after it": cnn(between=ShiftAlign(per_channel=True)),
    }


def turning() -> dict[str, nn.Module]:
    """Sixteen fields of four orientations, the strongest value or all of them reordered: 576 or 2304 features."""
    return {
        "orientation max": c4(OrientationMax(), 16),
        "OrientationReorder() before the pool": c4(OrientationReorder(), 64),
        "OrientationReorder() after the pool": c4(nn.Identity(), 64, OrientationReorder()),
    }


def cnn(
    *,
    before: nn.Module | None = None,
    between: nn.Module | None = None,
    pool: nn.Module | None = None,
    after: nn.Module | None = None,
) -> nn.Module:
    # As in `models/mnist.py`: where nothing stands between them, ReLU comes after the pool.
    end: dict[str, nn.Module] = {"pool2": nn.MaxPool2d(2, ceil_mode=True), "relu2": nn.ReLU()}
    if between is not None or pool is not None:
        end = {"relu2": nn.ReLU(), "family": between or nn.Identity(), "pool2": pool or end["pool2"]}
    return nn.Sequential(
        OrderedDict(
            first=before or nn.Identity(),
            conv1=nn.Conv2d(1, 64, 9),
            pool1=nn.MaxPool2d(2, ceil_mode=True),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(64, 64, 7),
            **end,
            after=after or nn.Identity(),
            flatten=nn.Flatten(),
            classifier=nn.Linear(64 * 36, 10),
        )
    )


def c4(orientation: nn.Module, channels: int, after: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(
        C4Lift2d(1, 16, 9),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ReLU(),
        C4Conv2d(16, 16, 7),
        orientation,
        nn.MaxPool2d(2, ceil_mode=True),
        nn.ReLU(),
        after or nn.Identity(),
        nn.Flatten(),
        nn.Linear(channels * 36, 10),
    )


def measure(base: str, networks: dict[str, nn.Module], rounds: int) -> dict[str, dict[str, float]]:
    """Time of a step of every network over that of the base just before and after it."""
    steps = {name: step_of(network) for name, network in networks.items()}
    for step in steps.values():
        step()
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        before = timed(steps[base])
        for name, step in steps.items():
            own, after = timed(step), timed(steps[base])
            ratios[name].append(own / statistics.mean([before, after]))
            seconds[name].append(own)
            before = after
    return {name: {**spread(ratios[name]), "milliseconds": 1e3 * statistics.median(seconds[name])} for name in steps}


def step_of(network: nn.Module) -> Step:
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data = datasets.generated(DATASET, count=BATCH)
    every = torch.arange(BATCH)
    optimiser = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, nesterov=True)

    def step() -> None:
        images, labels = data.batch(every)
        optimiser.zero_grad()
        F.cross_entropy(network(images.contiguous(memory_format=torch.channels_last)), labels).backward()
        optimiser.step()

    return step


def timed(step: Step) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def spread(values: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return {"ratio": statistics.median(values), "low": low, "high": high}


def show(console: Console, base: str, rows: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{base}: time of a training step, as a multiple of the first line's", title_justify="left")
    for heading in ("", "ratio", "quartiles", "ms", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in rows.items():
        missed = row["ratio"] > MOST and name.startswith(("RankedPool", "ShiftAlign"))
        quartiles = f"{row['low']:.3f}-{row['high']:.3f}"
        table.add_row(
            name,
            f"{row['ratio']:.3f}",
            quartiles,
            f"{row['milliseconds']:.1f}",
            f"wanted {MOST}: missed" if missed else "",
        )
    console.print(table)


if __name__ == "__main__":
    main()

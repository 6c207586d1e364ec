"""What the layers of the family cost in training, against a training step of the CNN of Table 1.

    python benchmarks/family.py [--out runs/bench] [--quick]

Contract: one thread, batch 128, processor time. A step is that of the CNN on 42x42 images, channels_last, with the
transform of the images, forward, backward and SGD. A layer is timed alone, forward and backward, on maps of the shape
that they have at its place, ReLU behind them; a few times in a row, between two steps. A ratio is (step + layer) over
the step, the mean of these two; median and quartiles over the rounds. So what else its place costs is left out: if
ReLU cannot wait until the maps are pooled, for example. Beside it the time of `torch.sort` for the same maps.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, where operator.py would pass for the standard library's

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from patchreorder import OrientationReorder, PatchReorder, PoseAlign, RankedPool, ShiftAlign, create_model
from patchreorder.data.generated import generate_digits
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.laboratory import provenance

BATCH = 128
DATASET = "mnist-t"
MOST = 1.05
TIMES = 4  # a layer in a row
IMAGE, CONV, POOL = (1, 42, 42), (64, 11, 11), (64, 6, 6)  # the input, after the second convolution, after its pool
Call = Callable[[], object]


class Sort(nn.Module):
    """What one would write first: every map sorted by torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(2).sort(dim=2, descending=True).values


# Name, layer, its place, whether the gradient goes on from there, and whether at most 1.05 is wanted.
ROWS: list[tuple[str, nn.Module, tuple[int, int, int], bool, bool]] = [
    ("RankedPool()", RankedPool(), POOL, True, True),
    ("RankedPool(weights=-0.5)", RankedPool(weights=-0.5), POOL, True, True),
    ("RankedPool(quantiles=16)", RankedPool(quantiles=16), POOL, True, True),
    ("RankedPool(keep=36)", RankedPool(keep=36), CONV, True, True),
    ("RankedPool(quantiles=36)", RankedPool(quantiles=36), CONV, True, True),
    ("RankedPool(smooth=3, stride=2)", RankedPool(smooth=3, stride=2), CONV, True, True),
    ("ShiftAlign()", ShiftAlign(), IMAGE, False, True),
    ("ShiftAlign()", ShiftAlign(), CONV, True, True),
    ("ShiftAlign()", ShiftAlign(), POOL, True, True),
    ("PoseAlign()", PoseAlign(), IMAGE, False, False),
    ("ShiftAlign(per_channel=True)", ShiftAlign(per_channel=True), CONV, True, True),
    ("OrientationReorder()", OrientationReorder(), CONV, True, False),
    ("OrientationReorder()", OrientationReorder(), POOL, True, False),
    ("PatchReorder(grid='pixels')", PatchReorder(grid="pixels"), POOL, True, False),
    ("torch.sort", Sort(), CONV, True, False),
    ("torch.sort", Sort(), POOL, True, False),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two rounds: does it run at all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    torch.manual_seed(0)
    rounds = 2 if args.quick else args.rounds
    rows = measure(rounds)
    console = Console(highlight=False, width=100)
    show(console, rows)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "family.json"
    path.write_text(json.dumps({"rounds": rounds, "batch": BATCH, **provenance.provenance(), "rows": rows}, indent=1))
    console.print(f"written to {path}")


def measure(rounds: int) -> list[dict]:
    step, calls = training_step(), [layer_call(layer, place, back) for _, layer, place, back, _ in ROWS]
    for call in (step, *calls):
        call()
    ratios: list[list[float]] = [[] for _ in ROWS]
    seconds: list[list[float]] = [[] for _ in ROWS]
    before = timed(step)
    for _ in range(rounds):
        own = [timed(call, TIMES) for call in calls]
        after = timed(step)
        for number, value in enumerate(own):
            ratios[number].append(1 + value / statistics.mean([before, after]))
            seconds[number].append(value)
        before = after
    return [
        {
            "layer": name,
            "maps": "x".join(map(str, place)),
            **spread(ratio),
            "milliseconds": 1e3 * statistics.median(own),
            "wanted": MOST if wanted else None,
        }
        for (name, _, place, _, wanted), ratio, own in zip(ROWS, ratios, seconds, strict=True)
    ]


def training_step() -> Call:
    network = create_model("cnn", dataset=DATASET).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data = generate_digits(DATASET, count=BATCH)
    every = torch.arange(BATCH)
    optimiser = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, nesterov=True)

    def step() -> None:
        images, labels = data.batch(every)
        optimiser.zero_grad()
        F.cross_entropy(network(images.contiguous(memory_format=torch.channels_last)), labels).backward()
        optimiser.step()

    return step


def layer_call(layer: nn.Module, place: tuple[int, int, int], back: bool) -> Call:
    x = torch.randn(BATCH, *place).relu().contiguous(memory_format=torch.channels_last).requires_grad_(back)
    if not back:
        return lambda: layer(x)
    gradient = torch.randn_like(layer(x))
    return lambda: torch.autograd.grad(layer(x), x, gradient)


def timed(call: Call, times: int = 1) -> float:
    begun = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begun) / times


def spread(values: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return {"ratio": statistics.median(values), "low": low, "high": high}


def show(console: Console, rows: list[dict]) -> None:
    table = Table(title="(training step of the CNN + layer) / training step", title_justify="left")
    for heading in ("layer", "maps", "ratio", "quartiles", "ms", "wanted"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for row in rows:
        missed = row["wanted"] is not None and row["ratio"] > row["wanted"]
        table.add_row(
            row["layer"],
            row["maps"],
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f}-{row['high']:.3f}",
            f"{row['milliseconds']:.1f}",
            "" if row["wanted"] is None else f"{row['wanted']}{' missed' if missed else ''}",
        )
    console.print(table)


if __name__ == "__main__":
    main()

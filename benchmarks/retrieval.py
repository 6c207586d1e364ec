"""Speed of retrieval: scoring all pairs against the matrix product, describing images against the forward pass alone.

    python benchmarks/retrieval.py [--out runs/bench] [--quick]

Contract: one thread, a warm-up round, both forms timed in turn in every round, ratios within a round, median and
quartiles over the rounds. All pairs: CPU time of `ns_score` of 10,200 x 4096 against the matrix product of the same
blocks. Describing: wall time of `describe` of JPEG files of 320x240, decoded by one worker process, against the
forward pass of decoded images. The clock starts after the first batch, since a worker takes a second or two to start.
One core must be free for the worker.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.nn import functional as F

from patchreorder.data.generated import write_ukbench
from patchreorder.data.ukbench import GROUP, UKBench
from patchreorder.engine.batches import model_input
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.engine.predict import for_inference
from patchreorder.laboratory import provenance
from patchreorder.metrics.retrieval import ROOM, ns_score
from patchreorder.search.descriptors import BATCH, create_descriptor, describe

WANTED = {"all pairs": 0.8, "describe alexnet/ranked": 0.9, "describe efficientnet_lite0/gap": 0.9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds of few images, to see that it runs")
    args = parser.parse_args()
    rounds = 2 if args.quick else args.rounds
    console = Console(highlight=False)
    keep_freed_memory()
    torch.set_num_threads(1)
    rows = [all_pairs(rounds, count=1_000 if args.quick else 10_200, dimensions=4096)]
    show(console, rows[-1])
    with tempfile.TemporaryDirectory() as folder:
        groups = (4 * BATCH if args.quick else 512) // GROUP
        images = UKBench.open(write_ukbench(Path(folder), groups=groups, size=(320, 240)), workers=1)
        for name in ("alexnet/ranked", "efficientnet_lite0/gap"):
            rows.append(describing(name, images, rounds))
            show(console, rows[-1])
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "retrieval.json"
    path.write_text(json.dumps({**provenance.provenance(), "rounds": rounds, "rows": rows}, indent=1))
    console.print(f"written to {path}")


def all_pairs(rounds: int, *, count: int, dimensions: int) -> dict[str, Any]:
    """Images a second of `ns_score` and of the matrix product; images of a group are nearer to each other."""
    torch.manual_seed(0)
    groups = torch.arange(count) // GROUP
    features = F.normalize(torch.randn(count // GROUP, dimensions)[groups] + torch.randn(count, dimensions))
    block = max(1, ROOM // count)

    def product() -> float:
        begun = time.process_time()
        for queries in features.split(block):
            queries @ features.T
        return time.process_time() - begun

    def ours() -> float:
        begun = time.process_time()
        ns_score(features, groups)
        return time.process_time() - begun

    return compared("all pairs", product, ours, count, rounds)


def describing(name: str, images: UKBench, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = for_inference(create_descriptor(name))
    parts = torch.arange(len(images)).split(BATCH)
    made = [images.batch(part)[0] for part in parts]
    ends: list[float] = []

    @torch.inference_mode()
    def forward() -> float:
        ends.clear()
        for part in made:
            model(model_input(part, torch.device("cpu")))
            ends.append(time.perf_counter())
        return ends[-1] - ends[0]

    def ours() -> float:
        ends.clear()
        describe(model, images, report=lambda more: ends.append(time.perf_counter()))
        return ends[-1] - ends[0]

    return compared(f"describe {name}", forward, ours, len(images) - BATCH, rounds)


def compared(
    name: str, plain: Callable[[], float], ours: Callable[[], float], count: int, rounds: int
) -> dict[str, Any]:
    """The rates of two functions that return their seconds for `count` images."""
    times = [(plain(), ours()) for _ in range(rounds + 1)][1:]  # without the warm-up
    ratios = [theirs / own for theirs, own in times]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "name": name,
        "images a second": count / statistics.median(own for _, own in times),
        "plain, images a second": count / statistics.median(theirs for theirs, _ in times),
        "rate": statistics.median(ratios),
        "quartiles": [low, high],
        "wanted": WANTED[name],
    }


def show(console: Console, row: dict[str, Any]) -> None:
    low, high = row["quartiles"]
    console.print(
        f"{row['name']}: {row['images a second']:.0f} images/s, {row['rate']:.2f} ({low:.2f} to {high:.2f}) of the "
        f"plain rate, wanted {row['wanted']}"
    )


if __name__ == "__main__":
    main()

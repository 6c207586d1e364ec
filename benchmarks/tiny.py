"""Speed of training on 64x64 photographs: the whole loop against the bare pass, and every network against the CNN.

    python benchmarks/tiny.py [--out runs/bench] [--rounds 7] [--quick]

Contract: one thread, processor time, generated images, the networks, batch and precision of table2_tiny. The loop is
`engine.train`: batches made from bytes (flipped and shifted; for CNN-Data-Aug rotated too), forward, backward, SGD. The
bare pass is forward and backward of the CNN on one batch in memory, timed just before and after the loop. Steps:
forward, backward and SGD of each network, between two of the CNN's. Medians and quartiles of ratios over all rounds. A
ratio that misses its limit is marked.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, where operator.py would pass for the standard library's

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from patchreorder import recipes
from patchreorder.data.generated import generate_tiny_images
from patchreorder.engine.batches import channels_last, model_input
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.engine.optimiser import create_optimiser
from patchreorder.engine.options import Training
from patchreorder.engine.train import train
from patchreorder.laboratory import provenance
from patchreorder.models import create_model

STEPS = 4  # of a timed loop
IMAGES = 1024
VIEWS = {"cnn": "tiny-train", "cnn_aug": "tiny-train-aug"}
LEAST = 0.9  # speed of the loop over that of the bare pass
MOST = {"pr_cnn": 1.03}  # time of a step over the CNN's
TRAINING = Training(steps=STEPS, lr=0.001, weight_decay=0.0005, amp=True)
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two rounds, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    rounds = 2 if args.quick else args.rounds
    found = {"loop": loops(rounds), "step": steps(rounds)}
    console = Console()
    show(console, "loop: speed over that of the bare pass", found["loop"], least=LEAST)
    show(console, "step: time over the CNN's", found["step"])
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "benchmark_tiny.json"
    facts = {"benchmark": "tiny", "rounds": rounds, "batch": TRAINING.batch, **provenance.provenance(), **found}
    path.write_text(json.dumps(facts, indent=1))
    console.print(f"written to {path}")


def loops(rounds: int) -> dict[str, dict[str, float]]:
    """Speed of the training loop over that of the bare pass, for upright and for augmented images."""
    model = channels_last(create_model("tiny_cnn"))
    bare = passes(model)
    bare()
    found = {}
    for name, view in VIEWS.items():
        data = generate_tiny_images(view, count=IMAGES, seed=1)
        ratios, seconds = [], []
        train(model, data, TRAINING)
        before = timed(bare)
        for _ in range(rounds):
            own, after = timed(partial(train, model, data, TRAINING)), timed(bare)
            ratios.append(statistics.mean([before, after]) / own)
            seconds.append(own / STEPS)
            before = after
        found[name] = {**spread(ratios), "images per second": TRAINING.batch / statistics.median(seconds)}
    return found


def passes(model: nn.Module) -> Callable[[], object]:
    """As many bare passes as a loop has steps: forward and backward, nothing else."""
    images, labels = batch()

    def run() -> None:
        model.train()
        for _ in range(STEPS):
            model.zero_grad(set_to_none=True)
            loss(model, images, labels).backward()

    return run


def steps(rounds: int) -> dict[str, dict[str, float]]:
    """Time of a step of each network over that of the CNN just before and after it."""
    rows = {row.name: row for row in recipes.load("table2_tiny").rows if row.name != "cnn_aug"}
    made = {name: step_of(create_model(row.model, **row.options)) for name, row in rows.items()}
    ratios: dict[str, list[float]] = {name: [] for name in made}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for step in made.values():
        step()
    for _ in range(rounds):
        before = timed(made["cnn"])
        for name in [*made, *4 * tuple(MOST)]:
            own, after = timed(made[name]), timed(made["cnn"])
            ratios[name].append(own / statistics.mean([before, after]))
            seconds[name].append(own)
            before = after
    return {
        name: {**spread(ratios[name]), "images per second": TRAINING.batch / statistics.median(seconds[name])}
        for name in made
    }


def step_of(model: nn.Module) -> Callable[[], object]:
    model = channels_last(model).train()
    optimiser = create_optimiser(model, TRAINING)
    images, labels = batch()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(model, images, labels).backward()
        optimiser.step()

    return step


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = generate_tiny_images("tiny", count=TRAINING.batch).batch(torch.arange(TRAINING.batch))
    return model_input(images, CPU), labels


def loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(images)
    return F.cross_entropy(logits.float(), labels)


def timed(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"ratio": middle, "low": low, "high": high}


def show(console: Console, title: str, found: dict[str, dict[str, float]], *, least: float | None = None) -> None:
    table = Table("", "ratio", "quartiles", "images/s", "limit", title=title, title_justify="left")
    for name, row in found.items():
        limit = MOST.get(name) if least is None else least
        missed = limit is not None and (row["ratio"] > limit if least is None else row["ratio"] < limit)
        table.add_row(
            name,
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f} to {row['high']:.3f}",
            f"{row['images per second']:.0f}",
            "" if limit is None else f"{limit}{' MISSED' if missed else ''}",
        )
    console.print(table)


if __name__ == "__main__":
    main()

"""Time of a training step of the networks of Table 1 relative to the CNN's, and of the CNN with default settings.

    python benchmarks/training.py [--out runs/bench] [--quick]

Method: one thread, batch 128, whole steps (augmentation, forward, backward, SGD), processor time. In every round each
network is timed between two steps of the CNN; its ratio is to their mean. Reported are the median and the quartiles
over the rounds. A step varies by several percent, so networks that cost nearly as much as the CNN are timed five times
a round. The CNN with default settings is contiguous, as written in `default_cnn`, and does not keep freed memory.
Memory settings belong to a process, so the two CNNs run in two processes, one after the other.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from patchreorder import recipes
from patchreorder.data.generated import generate_digits
from patchreorder.engine.batches import channels_last, model_input
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.laboratory import provenance
from patchreorder.laboratory.recipe import Row
from patchreorder.models import count_parameters, create_model

BATCH = 128
REPEATED = ("cnn", "pr_cnn", "pr_cnn_fine")  # five times a round
TARGET = {"pr_cnn": 1.03}  # at most, of the CNN's time
SPEEDUP = {"mnist-r": 1.7, "mnist-t": 2.0}  # at least, of our CNN over the default one
Step = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two rounds, to test the benchmark itself")
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "SET"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.worker:
        work(*args.worker)
        return
    rounds = 2 if args.quick else args.rounds
    console = Console()
    found = {}
    for dataset in SPEEDUP:
        default = against_default(dataset, rounds)
        rows = networks(dataset, rounds)
        found[dataset] = {"stock over ours": default, "networks": rows}
        show(console, dataset, default, rows)
    report = {"rounds": rounds, "batch": BATCH, **provenance.provenance(), "sets": found}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "training.json"
    path.write_text(json.dumps(report, indent=1))
    console.print(f"written to {path}")


def networks(dataset: str, rounds: int) -> dict[str, dict[str, float]]:
    """The time of a step of every network over the CNN's just before and after it."""
    keep_freed_memory()
    rows = {row.name: row for row in recipes.load("table1").rows}
    steps = {name: step_of(channels_last(create(row, dataset)), dataset) for name, row in rows.items()}
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    for _ in range(rounds):
        before = timed(steps["cnn"])
        for name in [*steps, *4 * REPEATED]:
            own, after = timed(steps[name]), timed(steps["cnn"])
            ratios[name].append(own / statistics.mean([before, after]))
            seconds[name].append(own)
            before = after
    return {
        name: {
            **quartiles(ratios[name]),
            "images per second": BATCH / statistics.median(seconds[name]),
            "parameters": count_parameters(create(rows[name], dataset)),
        }
        for name in steps
    }


def create(row: Row, dataset: str) -> nn.Module:
    return create_model(row.model, dataset=dataset, **row.options)


def against_default(dataset: str, rounds: int) -> dict[str, float]:
    """The time of a step of the default CNN over ours."""
    command = [sys.executable, __file__, "--worker"]
    workers = [
        subprocess.Popen([*command, kind, dataset], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for kind in ("default", "ours")
    ]
    ratios = []
    try:
        for _ in range(rounds):
            default, ours = (seconds_of(worker) for worker in workers)
            ratios.append(default / ours)
    finally:
        for worker in workers:
            worker.communicate()
    return quartiles(ratios)


def seconds_of(worker: subprocess.Popen[str]) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def work(kind: str, dataset: str) -> None:
    """Time three steps for every line of the input."""
    if kind == "ours":
        keep_freed_memory()
        step = step_of(channels_last(create_model("cnn", dataset=dataset)), dataset)
    else:
        step = step_of(default_cnn(dataset), dataset, contiguous=True)
    step()
    step()
    for _ in sys.stdin:
        print(statistics.mean(timed(step) for _ in range(3)), flush=True)


def default_cnn(dataset: str) -> nn.Module:
    side = 2 if dataset == "mnist-r" else 6
    return nn.Sequential(
        nn.Conv2d(1, 64, 9),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(64, 64, 7),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(64 * side * side, 10),
    )


def step_of(model: nn.Module, dataset: str, *, contiguous: bool = False) -> Step:
    data = generate_digits(dataset, count=BATCH)
    every = torch.arange(BATCH)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)

    def step() -> None:
        images, labels = data.batch(every)
        optimiser.zero_grad()
        logits = model(images if contiguous else model_input(images, torch.device("cpu")))
        F.cross_entropy(logits, labels).backward()
        optimiser.step()

    return step


def timed(step: Step) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def quartiles(values: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return {"ratio": statistics.median(values), "low": low, "high": high}


def show(console: Console, dataset: str, default: dict[str, float], rows: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{dataset}: time of a step over the CNN's", title_justify="left")
    for heading in ("network", "parameters", "ratio", "quartiles", "target", "images/s"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for name, row in rows.items():
        target = TARGET.get(name)
        table.add_row(
            name,
            f"{row['parameters']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['low']:.2f}-{row['high']:.2f}",
            "" if target is None else f"{target:.2f}{' missed' if row['ratio'] > target else ''}",
            f"{row['images per second']:.0f}",
        )
    console.print(table)
    target = SPEEDUP[dataset]
    console.print(
        f"CNN: {default['ratio']:.2f} times as fast as with default settings ({default['low']:.2f}-"
        f"{default['high']:.2f}; target {target}{', missed' if default['ratio'] < target else ''})\n"
    )


if __name__ == "__main__":
    main()

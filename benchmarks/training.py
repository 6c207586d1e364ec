"""Speed of training the networks of Table 1, as ratios to the CNN; and of the CNN to what stock settings give.

    python benchmarks/training.py [--out runs/bench] [--quick]

Contract: one thread, batch 128, whole steps (transform of the images, forward, backward, SGD), processor time, every
network in turn inside one round and a step of the CNN before and after each; a ratio is that to the mean of its two
neighbours, median and quartiles over the rounds. Networks that nearly cost the same as the CNN are timed five times a
round: a step alone varies by several percent. The stock CNN is what one writes first: convolution, ReLU, pool,
contiguous memory, the C library's memory as it is. Memory settings belong to a process, so stock and ours run in two,
which take turns.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, where operator.py would pass for the standard library's

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
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.laboratory import provenance
from patchreorder.laboratory.recipe import Row
from patchreorder.models import count_parameters, create_model

BATCH = 128
NEAR = ("cnn", "pr_cnn", "pr_cnn_fine")
MOST = {"pr_cnn": 1.03}  # time of a step over that of the CNN
LEAST = {"mnist-r": 1.7, "mnist-t": 2.0}  # times as fast as stock
SETS = tuple(LEAST)
Step = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two rounds: does it run at all")
    parser.add_argument("--worker", nargs=2, metavar=("KIND", "SET"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.worker:
        serve(*args.worker)
        return
    rounds = 2 if args.quick else args.rounds
    console = Console()
    found = {}
    for dataset in SETS:
        stock = against_stock(dataset, rounds)
        rows = networks(dataset, rounds)
        found[dataset] = {"stock over ours": stock, "networks": rows}
        show(console, dataset, stock, rows)
    report = {"rounds": rounds, "batch": BATCH, **provenance.provenance(), "sets": found}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "training.json"
    path.write_text(json.dumps(report, indent=1))
    console.print(f"written to {path}")


def networks(dataset: str, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of a step of every network over those of the CNN just before and after it."""
    keep_freed_memory()
    rows = {row.name: row for row in recipes.load("table1").rows}
    steps = {name: step_of(made(row, dataset), dataset, last=True) for name, row in rows.items()}
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    turns = [*steps, *(5 - 1) * [name for name in steps if name in NEAR]]
    for _ in range(rounds):
        before = timed(steps["cnn"])
        for name in turns:
            own, after = timed(steps[name]), timed(steps["cnn"])
            ratios[name].append(own / statistics.mean([before, after]))
            seconds[name].append(own)
            before = after
    return {
        name: {
            **spread(ratios[name]),
            "images per second": BATCH / statistics.median(seconds[name]),
            "parameters": count_parameters(made(rows[name], dataset)),
        }
        for name in steps
    }


def made(row: Row, dataset: str) -> nn.Module:
    return create_model(row.model, dataset=dataset, **row.options)


def against_stock(dataset: str, rounds: int) -> dict[str, float]:
    """Seconds of a step of the stock CNN over ours, two processes in turn."""
    command = [sys.executable, __file__, "--worker"]
    workers = [
        subprocess.Popen([*command, kind, dataset], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for kind in ("stock", "ours")
    ]
    ratios = []
    try:
        for _ in range(rounds):
            stock, ours = (ask(worker) for worker in workers)
            ratios.append(stock / ours)
    finally:
        for worker in workers:
            worker.communicate()
    return spread(ratios)


def ask(worker: subprocess.Popen[str]) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def serve(kind: str, dataset: str) -> None:
    """Time a few steps whenever asked."""
    if kind == "ours":
        keep_freed_memory()
        step = step_of(create_model("cnn", dataset=dataset), dataset, last=True)
    else:
        step = step_of(stock_cnn(dataset), dataset, last=False)
    step()
    step()
    for _ in sys.stdin:
        print(statistics.mean(timed(step) for _ in range(3)), flush=True)


def stock_cnn(dataset: str) -> nn.Module:
    """The CNN as one writes it first."""
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


def step_of(model: nn.Module, dataset: str, *, last: bool) -> Step:
    layout = torch.channels_last if last else torch.contiguous_format
    model = model.to(memory_format=layout)  # type: ignore[call-overload]
    data = generate_digits(dataset, count=BATCH)
    every = torch.arange(BATCH)
    optimiser = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)

    def step() -> None:
        images, labels = data.batch(every)
        optimiser.zero_grad()
        F.cross_entropy(model(images.contiguous(memory_format=layout)), labels).backward()
        optimiser.step()

    return step


def timed(step: Step) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def spread(values: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, n=4)
    return {"ratio": statistics.median(values), "low": low, "high": high}


def show(console: Console, dataset: str, stock: dict[str, float], rows: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{dataset}: time of a step over the CNN's", title_justify="left")
    for heading in ("network", "parameters", "ratio", "quartiles", "wanted", "images/s"):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    for name, row in rows.items():
        most = MOST.get(name)
        table.add_row(
            name,
            f"{row['parameters']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['low']:.2f}-{row['high']:.2f}",
            "" if most is None else f"{most:.2f}{' missed' if row['ratio'] > most else ''}",
            f"{row['images per second']:.0f}",
        )
    console.print(table)
    least = LEAST[dataset]
    console.print(
        f"CNN: {stock['ratio']:.2f} times as fast as with stock settings ({stock['low']:.2f}-{stock['high']:.2f}; "
        f"wanted {least}{', missed' if stock['ratio'] < least else ''})\n"
    )


if __name__ == "__main__":
    main()

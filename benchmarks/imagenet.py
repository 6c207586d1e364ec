"""Speed of Table 2's input pipeline and of AlexNet with reordering, as ratios inside one run.

    python benchmarks/imagenet.py [--out runs/bench] [--quick]

Contract: one thread, processor time, synthetic photographs (1/f noise, 500x375, JPEG of about 110 kB, as ImageNet's
are). Input: from files to 224x224 images in each view, eight at a time, against Pillow's decoding of the same files
just before and after. Steps: forward, backward and SGD of AlexNet as Caffe trains it, each variant between two steps of
the plain network. Medians and quartiles over all. A ratio that misses its limit is marked.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, where operator.py would pass for the standard library's

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from patchreorder.data.photos import Photos
from patchreorder.engine.batches import model_input
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.laboratory import provenance
from patchreorder.models import create_model

SIZE = (500, 375)
BATCH = 16  # images of a step
DECODED = 8  # images of an input batch
VIEWS = ("train", "train-aug", "Ori", "R", "T")
LEAST = {"train": 0.7}  # speed over that of Pillow's decoding
MOST = {"alexnet_pr": 1.02}  # time of a step over that of AlexNet
ROWS: dict[str, dict[str, Any]] = {
    "alexnet_pr": {},
    "alexnet_pr fine": {"place": "pool5", "grid": "pixels", "levels": 1},
    "alexnet_st": {},
    "alexnet_blur": {},
    "alexnet_gap": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--images", type=int, default=160, help="photographs for the input")
    parser.add_argument("--rounds", type=int, default=15, help="repetitions of each step")
    parser.add_argument("--quick", action="store_true", help="few images and repetitions, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    images, rounds = (16, 2) if args.quick else (args.images, args.rounds)
    console = Console()
    inputs, steps = input_speeds(images), step_times(rounds)
    show(console, "input: speed over that of Pillow's decoding", inputs, LEAST, {})
    show(console, "step: time over that of AlexNet", steps, {}, MOST)
    report = {
        "images": images,
        "rounds": rounds,
        "batch": BATCH,
        **provenance.provenance(),
        "input": inputs,
        "step": steps,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "imagenet.json"
    path.write_text(json.dumps(report, indent=1))
    console.print(f"written to {path}")


def photograph(seed: int) -> bytes:
    """A JPEG of coloured 1/f noise."""
    random = np.random.default_rng(seed)
    width, height = SIZE
    down, across = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    spectrum = 1 / np.maximum(np.hypot(down, across), 1 / width)
    planes = []
    for _ in range(3):
        plane = np.fft.ifft2(np.fft.fft2(random.standard_normal((height, width))) * spectrum).real
        planes.append(plane / plane.std())
    shared = planes[0]
    pixels = 120 + 45 * np.stack([shared, 0.9 * shared + 0.3 * planes[1], 0.9 * shared + 0.3 * planes[2]], axis=2)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def input_speeds(images: int) -> dict[str, dict[str, float]]:
    """Time of Pillow's decoding over the time of a batch, for each view."""
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(images):
            content = photograph(index)
            sizes.append(len(content))
            for part in ("train", "val"):
                file = Path(folder, part, "any", f"{index:04}.jpg")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        views = {
            view: Photos.open(Path(folder), "val" if view in ("Ori", "R", "T") else "train", view=view, seed=1)
            for view in VIEWS
        }
        ratios: dict[str, list[float]] = {view: [] for view in VIEWS}
        seconds: dict[str, list[float]] = {view: [] for view in VIEWS}
        pillow = []
        for indices in torch.arange(images).split(DECODED):
            files = [Path(folder, "train", "any", f"{index:04}.jpg") for index in indices.tolist()]
            before = timed(decode, files)
            for view, photos in views.items():
                own, after = timed(photos.batch, indices), timed(decode, files)
                ratios[view].append(statistics.mean([before, after]) / own)
                seconds[view].append(own / len(indices))
                pillow.append(after / len(indices))
                before = after
    found = {
        view: {**spread(ratios[view]), "images per second": 1 / statistics.median(seconds[view])} for view in VIEWS
    }
    return found | {
        "bare decode": {"images per second": 1 / statistics.median(pillow), "bytes": statistics.mean(sizes)}
    }


def step_times(rounds: int) -> dict[str, dict[str, float]]:
    """Time of a step of each network over that of the plain network just before and after it."""
    plain = make_step("alexnet")
    found = {}
    for name, options in ROWS.items():
        own = make_step(name.split()[0], **options)
        for step in (plain, own):
            step()
        ratios, seconds, plains = [], [], []
        before = timed(plain)
        for _ in range(rounds):
            time_own, after = timed(own), timed(plain)
            ratios.append(time_own / statistics.mean([before, after]))
            seconds.append(time_own)
            plains.append(after)
            before = after
        found[name] = {**spread(ratios), "images per second": BATCH / statistics.median(seconds)}
        found.setdefault("alexnet", {"images per second": BATCH / statistics.median(plains)})
    return found


def make_step(name: str, **options: Any) -> Callable[[], object]:
    """A function that makes one update of a network, always on the same images."""
    torch.manual_seed(0)
    model = create_model(name, dataset="imagenet", **options).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, weight_decay=5e-4)
    images = model_input(torch.randint(0, 256, (BATCH, 3, 224, 224), dtype=torch.uint8), torch.device("cpu"))
    labels = torch.arange(BATCH)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step


def decode(files: list[Path]) -> None:
    """Decode files with Pillow alone."""
    for file in files:
        with Image.open(file) as image:
            image.convert("RGB")


def timed(call: Callable[..., object], *args: object) -> float:
    begun = time.process_time()
    call(*args)
    return time.process_time() - begun


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "lower quartile": low, "upper quartile": high}


def show(
    console: Console, title: str, found: dict[str, dict[str, float]], least: dict[str, float], most: dict[str, float]
) -> None:
    table = Table("", "ratio", "quartiles", "images/s", "limit", title=title)
    for name, values in found.items():
        ratio = values.get("median")
        missed = ratio is not None and (ratio < least.get(name, ratio) or ratio > most.get(name, ratio))
        limit = f"{least.get(name, most.get(name, ''))}" + (" MISSED" if missed else "")
        quartiles = "" if ratio is None else f"{values['lower quartile']:.3f} to {values['upper quartile']:.3f}"
        shown = "" if ratio is None else f"{ratio:.3f}"
        table.add_row(name, shown, quartiles, f"{values['images per second']:.1f}", limit)
    console.print(table)


if __name__ == "__main__":
    main()

"""`patchreorder fit` against the bare forward passes of its backbone: how much of the time is anything else?

    python benchmarks/fit.py [--photographs 400] [--data DIR] [--workers 0] [--out runs/bench]

Without DIR photographs of 640x480 pixels are generated, in ten classes. Bare passes are those of the backbone alone, in
batches as `fit` has them, on one image that is in memory; they are timed before and after `fit`, on a tenth as many
images. Times are of the clock, on all threads. With --workers 0 photographs are decoded in this process: then the
seconds of the processor, which other work on the machine changes little, are those of all of it.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import torch

from patchreorder.classifier.features import BATCH
from patchreorder.classifier.fit import FitOptions, Fitted, fit
from patchreorder.commands.run import use_cores
from patchreorder.data.generated import write_photos
from patchreorder.laboratory.provenance import provenance
from patchreorder.models.backbones import open_backbone

CLASSES = 10


def bare(images: int) -> tuple[float, float]:
    """Seconds for each image: of the clock, of the processor."""
    backbone = open_backbone(FitOptions().backbone)
    x = torch.rand(BATCH, 3, backbone.size, backbone.size).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        backbone.model(x)
        begun, cpu, count = time.perf_counter(), time.process_time(), max(1, images // BATCH)
        for _ in range(count):
            backbone.model(x)
    return (time.perf_counter() - begun) / (count * BATCH), (time.process_time() - cpu) / (count * BATCH)


def passes(fitted: Fitted) -> int:
    """Forward passes of a fit: every photograph in all its poses."""
    pools = (next(iter(part.features.pools.values())) for part in (fitted.known, fitted.unseen))
    return sum(pool.shape[0] * pool.shape[1] for pool in pools)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=int, default=400)
    parser.add_argument("--data", type=Path, help="class folders instead of generated photographs")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--workers", type=int, help="processes that decode; by default all cores")
    args = parser.parse_args()
    workers = use_cores(0, args.workers)  # as the command does; it makes the bare passes faster too
    with tempfile.TemporaryDirectory() as folder:
        data = args.data or write_photos(
            Path(folder) / "data", classes=CLASSES, images=args.photographs // CLASSES, size=(640, 480)
        )
        tenth = args.photographs // 2  # of about five passes for each
        before = bare(tenth)
        begun, cpu = time.perf_counter(), time.process_time()
        fitted = fit(data, Path(folder) / "out", FitOptions(workers=workers))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        after = bare(tenth)
    count = passes(fitted)
    each, each_cpu = ((one + other) / 2 for one, other in zip(before, after, strict=True))
    facts = {
        "benchmark": "fit",
        "photographs": len(fitted.known.labels) + len(fitted.unseen.labels),
        "passes": count,
        "seconds": round(seconds, 1),
        "bare_seconds": round(count * each, 1),
        "bare_before_and_after": [round(before[0], 5), round(after[0], 5)],
        "share": round(count * each / seconds, 3),
        "workers": workers,
        "processor": {
            "seconds": round(cpu, 1),
            "bare_before_and_after": [round(before[1], 5), round(after[1], 5)],
            "share": round(count * each_cpu / cpu, 3),
        },
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "threads": torch.get_num_threads(),
        **provenance(),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"benchmark_fit_{facts['photographs']}.json").write_text(json.dumps(facts, indent=1))
    print(
        f"{facts['photographs']} photographs, {count:,} forward passes: {seconds:.1f} s; bare passes would take "
        f"{count * each:.1f} s, {100 * facts['share']:.0f} % of it; {facts['memory_mb']} MB"
    )


if __name__ == "__main__":
    main()

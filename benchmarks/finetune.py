"""How much of the trained weights should `fit --finetune` save? Those before and after are mixed in several shares.

    python benchmarks/finetune.py --data DIR [DIR ...] [--per-class N [N ...]] [--epochs 10] [--shares 0.5 0.75 1]

DIR holds train/CLASS/*.jpg and val/CLASS/*.jpg; up to N photographs of each class, the first by name, are used of each
part of a folder. A network is trained once for each folder; for each share a head is fitted to what the mixed network
describes, as `fit` does. Tested in the poses of `fit`'s report, as they are
and in five others. Share 0 is the frozen backbone.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from patchreorder.classifier import finetune
from patchreorder.classifier.fit import FitOptions, fit
from patchreorder.classifier.photographs import first_of_each, open_photographs
from patchreorder.commands.run import use_cores
from patchreorder.engine.progress import Screen
from patchreorder.laboratory.provenance import provenance


def first(data: Path, folder: Path, per_class: int | None) -> Path:
    """A folder of links to the first photographs of each class of both parts."""
    for name, part in zip(("train", "val"), open_photographs(data), strict=True):
        own = first_of_each(part, per_class) if per_class else part
        for index in range(len(own)):
            path = own.path(index)
            link = folder / name / path.parent.name / path.name
            link.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(path.resolve(), link)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders with train/ and val/")
    parser.add_argument("--per-class", type=int, nargs="+", help="at most so many of each class, for each folder")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.75, 1.0])
    parser.add_argument("--work", type=Path, default=Path("runs/finetune"), help="for features and checkpoints")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    options = FitOptions(workers=use_cores(0, 0))
    file = args.out / "benchmark_finetune.json"
    for data, per_class in zip(args.data, args.per_class or [None] * len(args.data), strict=True):
        with tempfile.TemporaryDirectory() as links:
            out, begun = args.work / data.name, time.process_time()
            frozen = fit(first(data, Path(links), per_class), out, options, screen=Screen())
            for share in (0.0, *args.shares):
                made = frozen
                if share:  # the training is the same for all: the first one's checkpoint is found again
                    finetune.TRAINED = share
                    made = finetune.finetuned(frozen, out, options, epochs=args.epochs, screen=Screen())
                accuracy = {pose: each["fit"] for pose, each in made.report["accuracy"].items()}
                told = {"set": data.name, "train": len(frozen.known.labels), "classes": len(frozen.facts.classes)}
                spent = round(time.process_time() - begun)
                rows.append({**told, "share": share, "accuracy": accuracy, "finetune": made.report.get("finetune")})
                rows[-1]["cpu_seconds"] = spent
                print(data.name, share, {pose: each["value"] for pose, each in accuracy.items()}, spent, flush=True)
                file.parent.mkdir(parents=True, exist_ok=True)
                asked = {"per_class": args.per_class, "epochs": args.epochs}
                file.write_text(json.dumps({"benchmark": "finetune", **asked, "rows": rows, **provenance()}, indent=1))


if __name__ == "__main__":
    main()

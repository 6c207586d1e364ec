"""The linear head of `fit` against scikit-learn's logistic regression, on the same features of the same photographs.

    python benchmarks/head.py --data DIR [DIR ...] [--features runs/head] [--out runs/bench]

Features are the plain average of EfficientNet-lite0, of photographs as they are and in four posed copies. Both have
their strength chosen among six by four-fold cross-validation in the training photographs, look-alikes in one fold; both
are tested on val/ as they are and at any rotation. Seconds are of the processor, of choosing and training; features are
not counted. scikit-learn is needed for this only: pip install scikit-learn.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from patchreorder.classifier import choose
from patchreorder.classifier.evaluate import difference, rate
from patchreorder.classifier.features import compute, stored_blocks
from patchreorder.classifier.photographs import SamePoses, open_photographs, sweep_poses, training_poses
from patchreorder.commands.run import use_cores
from patchreorder.laboratory.provenance import provenance
from patchreorder.models.backbones import open_backbone

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)  # of scikit-learn: the inverse of ours
ANY = 3  # of the poses of a test: any rotation


def logistic(x: Tensor, labels: Tensor, folds: Tensor) -> LogisticRegression:
    """Fitted at the strength with the most right answers in folds that were left out, in all poses."""
    poses = x.shape[1]

    def fitted(rows: Tensor, strength: float) -> LogisticRegression:
        model = LogisticRegression(C=strength, max_iter=1000)
        return model.fit(x[rows].flatten(0, 1).numpy(), labels[rows].repeat_interleave(poses).numpy())

    def score(strength: float) -> int:
        right = 0
        for fold in folds.unique().tolist():
            held = folds == fold
            if fold >= 0:
                answers = fitted(~held, strength).predict(x[held].flatten(0, 1).numpy())
                right += int((answers == labels[held].repeat_interleave(poses).numpy()).sum())
        return right

    return fitted(torch.ones(len(x), dtype=torch.bool), max(STRENGTHS, key=score))


def compare(data: Path, features: Path) -> dict[str, Any]:
    known, unseen = open_photographs(data)
    backbone = open_backbone("efficientnet_lite0")
    block = stored_blocks(backbone)[-1]
    workers, own = use_cores(0, None), features / data.name
    trained, tested = (
        compute(backbone, part, shown, folder=own, workers=workers, blocks=[block])
        for part, shown in (
            (known, training_poses(len(known), SamePoses(), copies=4)),
            (unseen, sweep_poses(len(unseen), angles=1)),
        )
    )
    labels, truth = known.labels[trained.kept], unseen.labels[tested.kept]
    folds, classes = choose.folds_of(trained, labels, block), len(known.classes)
    x, test = trained.block(block), tested.block(block, [0, ANY])
    begun = time.process_time()
    tried = choose.cross_validate(
        trained, labels, folds, classes=classes, candidates=[choose.Candidate("plain average", (block,))]
    )
    head = choose.train(trained, labels, tried[-1], classes=classes)
    middle = time.process_time()
    model = logistic(x * 10, labels, folds)  # of about unit variance in all, which its strengths are meant for
    ended = time.process_time()
    right = {
        "ours": head(test).argmax(2) == truth[:, None],
        "logistic": torch.from_numpy(
            np.stack([model.predict(test[:, pose].numpy() * 10) for pose in range(2)], 1) == truth[:, None].numpy()
        ),
    }
    return {
        "set": data.name,
        "train": len(labels),
        "classes": classes,
        "seconds": {"ours": middle - begun, "logistic": ended - middle},
        **{
            pose: {**{name: rate(own[:, place]) for name, own in right.items()}}
            | {"difference": difference(right["ours"][:, place], right["logistic"][:, place])}
            for place, pose in enumerate(("as they are", "any rotation"))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders with train/ and val/")
    parser.add_argument("--features", type=Path, default=Path("runs/head"), help="for features, which are kept")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    rows = []
    for data in args.data:
        rows.append(compare(data, args.features))
        row = rows[-1]
        for pose in ("as they are", "any rotation"):
            ours, other, gain = row[pose]["ours"], row[pose]["logistic"], row[pose]["difference"]
            print(
                f"{row['set']}, {pose}: ours {ours['value']:.1f}, logistic {other['value']:.1f}, difference "
                f"{gain['value']:+.1f} ({gain['low']:+.1f} to {gain['high']:+.1f})"
            )
        print(f"{row['set']}: {row['seconds']['ours']:.1f} s and {row['seconds']['logistic']:.1f} s")
    args.out.mkdir(parents=True, exist_ok=True)
    facts = {"benchmark": "head", "rows": rows, **provenance()}
    (args.out / "benchmark_head.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()

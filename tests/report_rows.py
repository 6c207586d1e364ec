"""Made-up rows of a made-up table, for tests of the report."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from patchreorder.laboratory.rows import Result, append
from patchreorder.report.folder import load
from patchreorder.report.tables import Table

MODELS = {
    "fcn": ("FCN", 2.1, 2.9),
    "cnn": ("CNN", 1.2, 1.3),
    "pr_cnn": ("PR-CNN", 0.8, 0.7),
    "pr_cnn_l2": ("PR-CNN, 2 levels", None, None),
    "pr_cnn_pixels": ("PR-CNN, pixels", None, None),
    "si_cnn": ("SI-CNN", 0.9, None),
    "st_cnn": ("ST-CNN", 0.8, 0.8),
    "cnn_aug": ("CNN, augmented", None, None),
    "cnn_gap": ("CNN, mean of the map", None, None),
    "pr_st": ("PR-CNN and ST-CNN together", None, None),
    "random": ("CNN, shuffled patches", None, None),
}


def result(**changes: Any) -> Result:
    """One row; its value follows from its errors unless it is given."""
    values: dict[str, Any] = {
        "recipe": "table1",
        "row": "cnn",
        "column": "R",
        "setting": "short",
        "split": "test",
        "seed": 0,
        "settings": "5e77a9c1",
        "metric": "error %",
        "n": 1000,
        "steps": 2340,
        "seconds": 700.0,
        "cpu_seconds": 1300.0,
        "parameters": 208586,
        "commit": "0123456789ab",
        "versions": {"patchreorder": "0.1.0", "python": "3.11.2", "torch": "2.9.0"},
        "machine": "Some CPU, 2 cores, Linux",
        "finished": "2025-01-02T03:04:05+00:00",
        "errors": [],
    } | changes
    values.setdefault("value", 100 * len(values["errors"]) / values["n"])
    return Result(**values)


def seeds(row: str, *errors: list[int], **changes: Any) -> list[Result]:
    """Rows of one model with seeds 0, 1, ..., each with its own errors."""
    return [result(row=row, seed=seed, errors=wrong, **changes) for seed, wrong in enumerate(errors)]


def scored(row: str, scores: list[int], *, together: int = 4, **changes: Any) -> Result:
    """A row with a score for every image, of groups of so many images."""
    values = {"metric": "NS-score", "n": len(scores), "value": sum(scores) / len(scores), "steps": 0}
    return result(**{**values, "row": row, "details": {"scores": scores, "together": together}} | changes)


def scores(folder: Path, **changes: Any) -> Path:
    """A folder of two models with scores: ten of twenty groups of four are better for PR-CNN by one."""
    about = facts(
        metric="NS-score",
        better="higher",
        compare=[["pr_cnn", "cnn"]],
        paper={"cnn": {"R": 3.381}},
        rows_of={"short": ["cnn", "pr_cnn", "si_cnn"]},
    )
    low, high = [3] * 80, [4, 3, 3, 3] * 10 + [3] * 40
    return write(folder, [scored("cnn", low), scored("pr_cnn", high)], about | changes)


def only_table(folder: Path, split: str = "") -> Table:
    """The table of a folder that holds one, or one of a split."""
    tables = [table for recipe in load(folder) for table in recipe.tables]
    (table,) = (table for table in tables if not split or table.split == split)
    return table


def facts(**changes: Any) -> dict[str, Any]:
    """What table1.json says."""
    return {
        "recipe": "table1",
        "title": "Table 1: distorted MNIST",
        "about": "Rotated (R) or shifted (T) digits, classified by small networks of equal budget.",
        "metric": "error %",
        "better": "lower",
        "command": "patchreorder run table1",
        "rows": [{"name": name, "title": title, "about": f"What {title} is."} for name, (title, *_) in MODELS.items()],
        "columns": [
            {"name": "R", "title": "R", "about": "Rotated by up to 90 degrees either way."},
            {"name": "T", "title": "T", "about": "Shifted anywhere on a canvas of 42x42 pixels."},
        ],
        "paper": {name: {c: x for c, x in zip("RT", cells, strict=True) if x} for name, (_, *cells) in MODELS.items()},
        "compare": [["pr_cnn", "cnn"], ["pr_cnn", "st_cnn"], ["pr_cnn_pixels", "cnn"], ["random", "cnn"]],
        "settings": {"short": "10 epochs of SGD with momentum; the paper trained for 150,000 iterations."},
        "parameters": {name: {"R": 208586, "T": 430000} for name in MODELS},
        "curves": {
            "training loss": {"x": "epoch", "y": "training loss", "log": True},
            "error by angle": {"x": "angle in degrees", "y": "error %"},
            "error by shift": {"x": "shift in pixels", "y": "error %"},
        },
    } | changes


def write(folder: Path, results: list[Result], about: dict[str, Any] | None = None) -> Path:
    """A folder of results; without `about` it has no facts."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in results:
        append(folder, row)
    if about is not None:
        (folder / f"{about['recipe']}.json").write_text(json.dumps(about))
    return folder


def example(folder: Path) -> Path:
    """A table with three seeds and everything a report can show, and a few things missing."""
    rows = [
        _made_up(name, column, seed, level)
        for level, name in enumerate(MODELS, 10)
        for column in "RT"
        for seed in range(3)
        if (name, column) != ("si_cnn", "T") and not (name == "st_cnn" and seed)
    ]
    for row in rows:
        if mistakes := row.details.get("mistakes"):
            strip(folder / "pictures" / f"{row.cell.folder}.png", mistakes, 28)
    rows.append(result(split="validation", errors=[1, 2, 3], n=100, curves={"training loss": [[1, 0.5], [2, 0.2]]}))
    return write(folder, rows, facts())


def _made_up(name: str, column: str, seed: int, level: int) -> Result:
    """A row with about `level` errors in 1,000 images; PR-CNN makes half as many as CNN on the same images."""
    random = np.random.default_rng(zlib.crc32(f"{column}{seed}".encode()))
    hard = random.permutation(1000)
    errors = sorted(hard[: 3 * level // (2 if name == "pr_cnn" else 1)].tolist())
    details: dict[str, Any] = {"batch": 256}
    if name == "si_cnn":
        details["note"] = "shorter: 5 epochs"
    if seed == 0 and name != "random":
        details["mistakes"] = [{"index": index, "label": 4, "answer": 9} for index in errors[:10]]
    curves = {
        "training loss": [[epoch, level * 2.0**-epoch + 0.01 * seed] for epoch in range(1, 11)],
        "error by angle": [[angle, level / 10 + (angle / 20) ** 2 + seed] for angle in range(-180, 181, 15)],
        "error by shift": [[shift, level / 10 + abs(shift) + seed] for shift in range(-14, 15, 2)],
    }
    if name == "fcn":
        del curves["error by shift"]
    return result(
        row=name,
        column=column,
        seed=seed,
        errors=errors,
        steps=1170 if name == "si_cnn" else 2340,
        finished=f"2025-01-0{1 + seed}T03:04:05+00:00",
        curves=curves,
        details=details,
    )


def strip(file: Path, mistakes: list[dict[str, int]], side: int) -> None:
    """A strip of square tiles, one for each mistake."""
    file.parent.mkdir(parents=True, exist_ok=True)
    tiles = np.random.default_rng(0).integers(256, size=(side, side * len(mistakes)), dtype=np.uint8)
    Image.fromarray(tiles).save(file)

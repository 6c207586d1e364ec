"""`patchreorder predict`: name what is on photographs, with a classifier that `patchreorder fit` made."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from patchreorder.untrusted import clean, quoted

from .console import open_console, print_plain
from .run import use_cores
from .values import Advanced

if TYPE_CHECKING:
    from patchreorder.classifier.classifier import Prediction


def predict(
    classifier: Annotated[Path, Positional, arg(metavar="CLASSIFIER")],
    paths: Annotated[tuple[str, ...], Positional, arg(metavar="IMAGE ...")],
    *,
    csv: bool = False,
    json: bool = False,
    top: int = 3,
    views: int = 1,
    threads: Advanced[int] = 0,
    workers: Advanced[int | None] = None,
) -> None:
    """Name what is on photographs, with a classifier that `patchreorder fit` made.

    An image that is none of its classes has no class. Files that cannot be read are listed on standard error; the exit
    status is then 2.

    Examples:
        patchreorder predict runs/fit-photographs/classifier.safetensors new/*.jpg
        ls *.jpg | patchreorder predict classifier.safetensors - --csv > answers.csv

    Args:
        classifier: file that `fit` wrote, classifier.safetensors.
        paths: image files, folders of them, or - for paths from standard input, one a line.
        views: average the answers of so many rotated views of each image; 8 is more accurate and takes 8 times as long.
        top: number of classes to show.
        csv: print path,class,probability and the other classes, one line an image, and nothing else.
        json: print one JSON object a line, and nothing else.
        threads: of the computation; by default all cores.
        workers: processes that decode images; by default all cores, none for a few images.
    """
    if top < 1:
        raise ValueError(f"top ({top}) must be 1 or more")
    if csv and json:
        raise ValueError("csv and json exclude each other: give one")
    if not paths:
        raise ValueError("name an image, a folder, or - for standard input")
    decoders = use_cores(threads, workers)
    from patchreorder.classifier.classifier import load_classifier, predict_files
    from patchreorder.classifier.paths import listed

    model = load_classifier(classifier)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    files = listed(paths, sys.stdin)
    few = workers is None and len(files) < 32
    answers = predict_files(model, files, views=views, workers=0 if few else decoders)
    bad = _print(answers, "csv" if csv else "json" if json else "table", top=min(top, len(model.classes)))
    for path, reason in bad:
        print(clean(f"patchreorder: {reason if path in reason else f'{path}: {reason}'}"), file=sys.stderr)
    if bad:
        raise ValueError(f"{len(bad)} of {len(files)} files cannot be read; the others are answered")


class _Lines:
    """Standard output for a CSV writer."""

    def write(self, text: str) -> None:
        print_plain(text)


def _print(answers: Iterable[tuple[str, Prediction | str]], form: str, *, top: int) -> list[tuple[str, str]]:
    """Print the answers as they come; return the files that cannot be read and why."""
    bad = []
    table = Table("image", "class", "probability")
    table.columns[0].overflow = table.columns[1].overflow = "fold"
    writer = csv.writer(_Lines(), lineterminator="\n")
    if form == "csv":
        others = [f"{word}{place}" for place in range(2, top + 1) for word in ("class", "probability")]
        writer.writerow(["path", "class", "probability", *others])
    for path, answer in answers:
        if isinstance(answer, str):
            bad.append((path, answer))
            continue
        best = answer.top[:top]
        if form == "csv":
            rest = [value for name, chance in best[1:] for value in (name, f"{chance:.4f}")]
            writer.writerow([quoted(path), answer.name or "", f"{answer.probability:.4f}", *rest])
        elif form == "json":
            facts = {"path": path, "class": answer.name, "probability": answer.probability}
            print(json.dumps({**facts, "top": [{"class": name, "probability": chance} for name, chance in best]}))
        else:
            if answer.name is None:
                table.add_row(Text(quoted(path)), Text("none of these", style="italic"), "")
            for rank, (name, chance) in enumerate(best):
                first = rank == 0 and answer.name is not None
                table.add_row(Text(quoted(path) if first else ""), Text(name), f"{chance:.1%}")
    if form == "table":
        open_console().print(table)
    return bad

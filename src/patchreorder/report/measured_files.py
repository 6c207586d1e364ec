"""The numbers of `patchreorder measure` as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from patchreorder.files import write_whole
from patchreorder.measuring.measurement import Measurement
from patchreorder.untrusted import clean

from .measured import Document, pairs, summary


def as_json(document: Document) -> str:
    """The numbers as JSON."""
    values = {name: value for name, value in vars(document).items() if name not in ("unstable", "measurements")}
    values["models"] = [model._asdict() for model in document.models]
    values["rows"] = [_flat(found) for found in document.measurements]
    values["pairs"] = [{**pair._asdict(), "test": pair.test._asdict()} for pair in pairs(document)]
    values["summary"] = summary(document)
    return json.dumps(clean(values), indent=1, allow_nan=False) + "\n"


def as_csv(document: Document) -> str:
    """One line for each number, after a line of names."""
    names = ("model", "measure", "layer", "transform", "pose", "value", "low", "high", "n")
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(names)
    lines.writerows([clean(getattr(found, name)) for name in names] for found in document.measurements)
    return text.getvalue()


def write(document: Document, file: Path) -> None:
    """Write the numbers as JSON, whole or not at all."""
    write_whole(file, as_json(document).encode())


def _flat(found: Measurement) -> dict[str, Any]:
    values = {**vars(found), **found.details}
    del values["details"]
    return values

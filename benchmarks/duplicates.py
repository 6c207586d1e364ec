"""How many copies does `patchreorder duplicates` find, and how much else does it join? Beside perceptual hashes.

    python benchmarks/duplicates.py --data PHOTOGRAPHS --name imagenet [--kinds ours] [--photographs 500] [--each 2]
    python benchmarks/duplicates.py --data UKBENCH --name ukbench --every 4 --kinds imagededup --all-kinds
    python benchmarks/duplicates.py --data LOOKALIKES --name lookalikes --each 1
    python benchmarks/duplicates.py --data PHOTOGRAPHS --name without --each 0      # no copies: what verifying costs

Contract: the photographs and their altered copies (copies.py, from a seed) are in one folder. Every method joins files
to groups with its defaults. Recall: of the copies, those in the group of their original. Precision: of the pairs within
groups, those of one original; all photographs count as different. Seconds are those of the processor, of all processes.
Methods: ours; `imagehash.phash` (64 bits, distance up to 10), the same over eight symmetries, imagededup's PHash and
CNN if it is installed and its weights can be had. Each set is written into OUT/benchmark_duplicates.json beside those
that are there. --keep writes the files of a set to a folder, and which were missed or joined wrongly.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import importlib.util
import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from rich.console import Console
from rich.table import Table

from patchreorder.data.folders import ENDINGS
from patchreorder.engine.progress import Terminal
from patchreorder.files import write_whole
from patchreorder.laboratory import provenance
from patchreorder.models.packages import import_package
from patchreorder.search import DEFAULT_MODEL
from patchreorder.search.descriptors import open_descriptor
from patchreorder.search.duplicates import find_duplicates
from patchreorder.search.index import Index
from patchreorder.search.update import update

_spec = importlib.util.spec_from_file_location("copies", Path(__file__).with_name("copies.py"))
assert _spec is not None
assert _spec.loader is not None
copies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(copies)
KINDS = {
    "ours": copies.KINDS,
    "hard": {**copies.KINDS, **copies.HARD},
    "imagededup": copies.IMAGEDEDUP,
    "unseen": copies.UNSEEN,
}
HASH_DISTANCE = 10  # of 64 bits: imagededup's default
Groups = list[list[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of photographs, also in subfolders")
    parser.add_argument("--name", default="photographs", help="of the set, in the rows")
    parser.add_argument("--kinds", choices=KINDS, default="ours")
    parser.add_argument("--every", type=int, default=1, help="only every so many of the files, by name")
    parser.add_argument("--photographs", type=int, help="how many, drawn with --seed; by default all")
    parser.add_argument("--originals", type=int, help="how many of them get copies; by default all")
    parser.add_argument("--each", type=int, default=2, help="copies of each original, of kinds in turn")
    parser.add_argument("--all-kinds", action="store_true", help="a copy of every kind of each original")
    parser.add_argument("--methods", default="patchreorder,phash,phash_8")
    parser.add_argument("--keep", type=Path, help="a new folder for the files of the set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    console = Console()
    found = sorted(path for path in args.data.rglob("*") if path.suffix.lower().lstrip(".") in ENDINGS)[:: args.every]
    order = np.random.default_rng(args.seed).permutation(len(found))[: args.photographs]
    sources = [found[number] for number in order]
    originals = sources[: args.originals]
    with tempfile.TemporaryDirectory() as folder:
        data, index = args.keep or Path(folder) / "photographs", Path(folder) / "index"
        each = None if args.all_kinds else args.each
        pairs = copies.write_set(originals, data, KINDS[args.kinds], each=each, seed=args.seed)
        for number, path in enumerate(sources[len(originals) :], len(originals)):
            (data / f"{number:05d}{path.suffix.lower()}").write_bytes(path.read_bytes())
        rows = [measure(name, data, index, pairs, args.keep, console) for name in args.methods.split(",")]
    table = Table("method", "recall", "precision", "seconds", title=args.name)
    for row in rows:
        recall = "" if row["recall"] is None else f"{row['recall']:.3f}"
        table.add_row(row["method"], recall, f"{row['precision']:.4f}", json.dumps(row["seconds"]))
    console.print(table)
    about = {key: value for key, value in vars(args).items() if key not in ("data", "out", "keep", "name")}
    about |= {"images": len(sources), "copies": len(pairs)}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "benchmark_duplicates.json"
    document: dict[str, Any] = {"benchmark": "duplicates", "sets": {}}
    if path.exists():
        document = json.loads(path.read_text())
    document["sets"][args.name] = {**about, "rows": rows, **provenance.provenance()}
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())
    console.print(f"written to {path}")


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure(
    method: str, data: Path, index: Path, pairs: list[tuple[str, str, str]], keep: Path | None, console: Console
) -> dict[str, Any]:
    start = _seconds()
    seconds: dict[str, float] = {}
    if method == "patchreorder":
        groups, seconds = by_us(data, index, console)
    else:
        groups = METHODS[method](data)
        seconds = {"all": round(_seconds() - start, 1)}
    of = {name: number for number, group in enumerate(groups) for name in group}
    source = {copy: own for copy, own, _ in pairs}
    right = joined = 0
    for group in groups:
        counts = Counter(source.get(name, name) for name in group)
        joined += len(group) * (len(group) - 1) // 2
        right += sum(count * (count - 1) // 2 for count in counts.values())
    hit = {(copy, kind): copy in of and of.get(copy) == of.get(own) for copy, own, kind in pairs}
    kinds: dict[str, list[bool]] = defaultdict(list)
    for (_, kind), found in hit.items():
        kinds[kind].append(found)
    if keep:
        wrong = [group for group in groups if len({source.get(name, name) for name in group}) > 1]
        missed = [copy for (copy, _), found in hit.items() if not found]
        lines = [f"missed {copy}" for copy in missed] + [f"joined {' '.join(group)}" for group in wrong]
        keep.with_name(f"{keep.name}_{method}.txt").write_text("\n".join(lines) + "\n")
    return {
        "method": method,
        "recall": round(sum(hit.values()) / len(hit), 4) if hit else None,
        "precision": round(right / joined, 4) if joined else 1.0,
        "wrong_pairs": joined - right,
        "seconds": seconds,
        "kinds": {kind: round(sum(found) / len(found), 3) for kind, found in kinds.items()},
    }


def by_us(data: Path, index: Path, console: Console) -> tuple[Groups, dict[str, float]]:
    screen = Terminal(console)
    begin = _seconds()
    update(data, index, open_descriptor(DEFAULT_MODEL, say=screen.say), screen=screen)
    middle = _seconds()
    found = find_duplicates(Index(index), screen=screen)
    screen.close()
    groups = [[member.file.name for member in group] for group in found.groups]
    return groups, {"describing": round(middle - begin, 1), "verifying": round(_seconds() - middle, 1)}


def by_hash(data: Path, poses: Callable[[Image.Image], Iterable[Image.Image]]) -> Groups:
    """Files whose perceptual hashes differ in at most HASH_DISTANCE bits, in any of the poses, connected."""
    import imagehash

    names = sorted(path.name for path in data.iterdir())
    bits = []
    for name in names:
        with Image.open(data / name) as image:
            shown = ImageOps.exif_transpose(image).convert("RGB")
        bits.append([imagehash.phash(pose).hash.ravel() for pose in poses(shown)])
    table = np.array(bits, np.float32) * 2 - 1  # files, poses, 64
    near = np.zeros((len(names), len(names)), bool)
    for pose in range(table.shape[1]):
        near |= (64 - table[:, 0] @ table[:, pose].T) / 2 <= HASH_DISTANCE
    return _connected(names, zip(*np.triu(near | near.T, 1).nonzero(), strict=True))


def by_imagededup(data: Path, method: str) -> Groups:
    import_package("torchvision")  # which imagededup imports
    from imagededup import methods

    found = getattr(methods, method)(verbose=False).find_duplicates(image_dir=str(data))
    names = sorted(found)
    number = {name: place for place, name in enumerate(names)}
    return _connected(names, ((number[one], number[other]) for one, others in found.items() for other in others))


def _eight(image: Image.Image) -> list[Image.Image]:
    return [own.rotate(angle, expand=True) for own in (image, ImageOps.mirror(image)) for angle in (0, 90, 180, 270)]


def _connected(names: list[str], pairs: Iterable[tuple[int, int]]) -> Groups:
    parent = list(range(len(names)))

    def head(place: int) -> int:
        while parent[place] != place:
            parent[place] = place = parent[parent[place]]
        return place

    for one, other in pairs:
        parent[head(other)] = head(one)
    groups: dict[int, list[str]] = defaultdict(list)
    for place, name in enumerate(names):
        groups[head(place)].append(name)
    return [group for group in groups.values() if len(group) > 1]


METHODS: dict[str, Callable[[Path], Groups]] = {
    "phash": lambda data: by_hash(data, lambda image: [image]),
    "phash_8": lambda data: by_hash(data, _eight),
    "imagededup_phash": lambda data: by_imagededup(data, "PHash"),
    "imagededup_cnn": lambda data: by_imagededup(data, "CNN"),
}


if __name__ == "__main__":
    main()

"""Choose the weights that decide whether two aligned images are copies, and test them on sets that are left out.

    python benchmarks/copy_rule.py --set varied=PHOTOGRAPHS --set shelves=GROCERY/train/Satsumas --test coins=COINS/1e

Each set is a folder of photographs. Of some of them altered copies are written (copies.py, from a seed); with --tripod,
of every so many also other photographs, as from a tripod. All pairs that `duplicates` would compare are compared. A
logistic regression on `relations.evidence` tells copies from other pairs; every set counts the same, and so do its
copies and its others. Each --set is left out in turn; --test sets never choose anything. Recall and precision are those
of groups, as in duplicates.py: all photographs count as different. Of those that --known names on one line (looked at
by eye) only one is taken. A set whose name ends in + is taken in the order of its names, so that series of one thing
stay together. The rule of `relations` is judged on every set beside the new one. What was compared is kept in --out: a
set that was compared with the same options is not compared again.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import importlib.util
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from patchreorder.data.folders import ENDINGS
from patchreorder.engine.memory import keep_freed_memory
from patchreorder.engine.progress import Terminal
from patchreorder.laboratory import provenance
from patchreorder.search import DEFAULT_MODEL, duplicates
from patchreorder.search.descriptors import open_descriptor
from patchreorder.search.index import Index
from patchreorder.search.relations import BIAS, FLAT, SURE, WEIGHTS, can_be_copy, comparisons, evidence, least_odds
from patchreorder.search.update import update
from patchreorder.search.verification import read_picture

_spec = importlib.util.spec_from_file_location("copies", Path(__file__).with_name("copies.py"))
assert _spec is not None
assert _spec.loader is not None
copies = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(copies)
THRESHOLDS = (0.0, 1.0, SURE, 3.0, 4.0)
PENALTY = 1e-2
ARRAYS = ("evidence", "outside", "more", "same")  # of Compared


class Compared(NamedTuple):
    """The pairs of a set in the ways they were laid over each other."""

    evidence: np.ndarray  # (comparisons, values)
    outside: np.ndarray  # (comparisons,) how far frames are beyond each other
    more: np.ndarray  # (comparisons,) odds that a copy must have above those of others
    same: np.ndarray  # (comparisons,) whether both come from one photograph
    names: list[tuple[str, str]]  # of each comparison
    copies: list[tuple[str, str, str]]  # copy, original, kind
    candidates: float  # the share of copies that were compared with their originals
    files: dict[str, str]  # the path of each photograph


def collect(
    folder: Path,
    *,
    photographs: int,
    originals: int,
    each: int,
    ordered: bool,
    tripod: int,
    known: dict[str, str],
    screen: Terminal,
) -> Compared:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower().lstrip(".") in ENDINGS)
    random = np.random.default_rng(0)
    sources = (
        found[:photographs] if ordered else [found[place] for place in random.permutation(len(found))[:photographs]]
    )
    drawn = set(random.permutation(len(sources))[:originals].tolist())
    # Of photographs that are there twice only one is taken.
    taken = {known.get(str(path.relative_to(folder)), str(path)): place for place, path in enumerate(sources)}
    changed = [path for place, path in enumerate(sources) if place in drawn and place in taken.values()]
    with tempfile.TemporaryDirectory() as temporary:
        data, index = Path(temporary) / "photographs", Path(temporary) / "index"
        pairs = copies.write_set(changed, data, copies.KINDS, each=each)
        if tripod:
            copies.write_others(changed, data, every=tripod)
        rest = [path for place, path in enumerate(sources) if place not in drawn and place in taken.values()]
        for number, path in enumerate(rest, len(changed)):
            (data / f"{number:05d}{path.suffix.lower()}").write_bytes(path.read_bytes())
        update(data, index, open_descriptor(DEFAULT_MODEL, say=screen.say), screen=screen)
        opened = Index(index)
        by_digest = defaultdict(list)
        for file in opened.manifest.files:
            by_digest[file.digest].append(file)
        chosen = sorted(set(duplicates.candidate_pairs(opened, by_digest)))
        pictures = {digest: read_picture(data / own[0].name) for digest, own in by_digest.items()}
        source = {copy: own for copy, own, _ in pairs}
        values, outside, more, same, names, compared = [], [], [], [], [], set()
        count = screen.count("comparing", len(chosen))
        for pair in chosen:
            one, other = (pictures[digest] for digest in pair)
            first, second = (by_digest[digest][0].name for digest in pair)
            compared |= {(first, second), (second, first)}
            assert one is not None
            assert other is not None  # this program wrote both
            for laid, shown, _, _ in comparisons(one, other):
                if can_be_copy(one, shown, laid) and laid.flat <= FLAT:
                    values.append(evidence(laid))
                    outside.append(laid.outside)
                    more.append(least_odds(one, shown, laid) - SURE)
                    same.append(source.get(first, first) == source.get(second, second))
                    names.append((first, second))
            count(1)
    share = float(np.mean([(copy, own) in compared for copy, own, _ in pairs]))
    files = {f"{number:05d}": str(path.relative_to(folder)) for number, path in enumerate([*changed, *rest])}
    arrays = dict(zip(ARRAYS, map(np.array, (values, outside, more, same)), strict=True))
    return Compared(**arrays, names=names, copies=pairs, candidates=share, files=files)


def _code() -> str:
    """A digest of the code that compares."""
    names = ("borders", "comparison", "light", "overlays", "local_features", "relations", "duplicates", "candidates")
    files = [Path(duplicates.__file__).with_name(f"{name}.py") for name in names]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def kept(file: Path, how: dict[str, Any], compare: Callable[[], Compared]) -> Compared:
    """What `compare` finds, or found with the same options before."""
    if file.is_file():
        stored = json.loads(file.read_text())
        if stored.pop("how") == how:
            stored |= {name: np.array(stored[name]) for name in ARRAYS}
            stored |= {name: [tuple(own) for own in stored[name]] for name in ("names", "copies")}
            return Compared(**stored)
    found = compare()
    stored = found._asdict() | {name: getattr(found, name).tolist() for name in ARRAYS}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(stored | {"how": how}))
    return found


def regress(sets: list[Compared]) -> tuple[float, np.ndarray]:
    """Bias and weights of a logistic regression; all sets, and in each its copies and others, count the same."""
    x = torch.tensor(np.concatenate([own.evidence for own in sets]))
    y = torch.tensor(np.concatenate([own.same for own in sets])).double()
    weight = torch.cat(
        [
            torch.tensor(np.where(own.same, 0.5 / max(1, own.same.sum()), 0.5 / max(1, (~own.same).sum())))
            for own in sets
        ]
    )
    mean, spread = x.mean(0), x.std(0)
    z, weight = (x - mean) / spread, weight / weight.sum()
    w = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    steps = torch.optim.LBFGS([w], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        steps.zero_grad()
        logits = z @ w[1:] + w[0]
        own = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, weight, reduction="sum")
        own = own + PENALTY / 2 * w[1:].square().sum()
        own.backward()
        return own

    steps.step(loss)
    slopes = (w[1:] / spread).detach()
    return float(w[0].detach() - (slopes * mean).sum()), slopes.numpy()


def judge(own: Compared, bias: float, weights: np.ndarray, threshold: float) -> dict[str, Any]:
    """Recall, precision and the kinds of copies that are missed."""
    group: dict[str, str] = {}

    def head(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    wrong = set()
    for place in np.flatnonzero(bias + own.evidence @ weights > threshold + own.more):
        first, second = own.names[place]
        group[head(second)] = head(first)
        if not own.same[place]:
            wrong.add(" ".join(f"{own.files[name[:5]]}{name[5:].partition('.')[0]}" for name in (first, second)))
    source = {copy: name for copy, name, _ in own.copies}
    members = defaultdict(list)
    for name in list(group):
        members[head(name)].append(source.get(name, name))
    joined = sum(len(each) * (len(each) - 1) // 2 for each in members.values())
    right = sum(count * (count - 1) // 2 for each in members.values() for count in Counter(each).values())
    missed = Counter(kind for copy, name, kind in own.copies if head(copy) != head(name))
    return {
        "recall": round(1 - sum(missed.values()) / len(own.copies), 4),
        "precision": round(right / joined, 4) if joined else 1.0,
        "wrong_pairs": joined - right,
        "missed": dict(missed),
        "wrong": sorted(wrong),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", required=True, metavar="NAME=FOLDER", help="chooses weights")
    parser.add_argument("--test", action="append", default=[], metavar="NAME=FOLDER", help="only tested")
    parser.add_argument("--photographs", type=int, default=240, help="of each set, at most")
    parser.add_argument("--originals", type=int, default=100, help="of them, that get copies")
    parser.add_argument("--each", type=int, default=3, help="copies of each, of kinds in turn")
    parser.add_argument("--tripod", type=int, default=0, help="every so many originals get other photographs; 0: none")
    parser.add_argument("--known", type=Path, help="a file: the name of a set and paths of one photograph on each line")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parser.parse_args()
    keep_freed_memory()
    console = Console()
    screen = Terminal(console)
    sets = {}
    lines = [line.split() for line in args.known.read_text().splitlines()] if args.known else []
    for text in [*args.set, *args.test]:
        name, _, folder = text.partition("=")
        how = {key: getattr(args, key) for key in ("photographs", "originals", "each", "tripod")}
        known = {path: paths[0] for own, *paths in lines if own == name.rstrip("+") for path in paths}
        how |= {"ordered": name.endswith("+"), "known": known}
        compare = partial(collect, Path(folder), **how, screen=screen)
        facts = how | {"folder": Path(folder).name, "code": _code()}
        sets[name.rstrip("+")] = kept(args.out / f"copy_rule_{name.rstrip('+')}.json", facts, compare)
    screen.close()
    chosen = {text.partition("=")[0].rstrip("+") for text in args.set}
    bias, weights = regress([own for name, own in sets.items() if name in chosen])
    rows = []
    table = Table("set", "chosen on", "compared", "recall", "precision", "wrong pairs")
    for name, own in sets.items():
        others = [each for other, each in sets.items() if other in chosen - {name}]
        left = regress(others) if name in chosen and others else (bias, weights)
        about = "the other sets" if name in chosen and others else "the sets"
        results = {str(limit): judge(own, *left, limit) for limit in THRESHOLDS}
        now = judge(own, BIAS, np.array(WEIGHTS), SURE)
        accepted = own.outside[own.same & (BIAS + own.evidence @ np.array(WEIGHTS) > SURE)]
        furthest = [round(float(np.quantile(accepted, part)), 2) for part in (0.9, 0.99, 1.0)] if len(accepted) else []
        row = {"set": name, "chosen_on": about, "candidates": own.candidates, "thresholds": results, "now": now}
        rows.append(row | {"outside": furthest})
        for title, shown in ((about, results[str(SURE)]), ("now", now)):
            numbers = [str(shown[key]) for key in ("recall", "precision", "wrong_pairs")]
            table.add_row(name, title, f"{own.candidates:.3f}", *numbers)
    console.print(table)
    for row in rows:
        console.print(row["set"], row["thresholds"][str(SURE)]["missed"], row["thresholds"][str(SURE)]["wrong"])
    rule = {"bias": round(bias, 3), "weights": [round(float(weight), 3) for weight in weights], "sure": SURE}
    console.print(rule)
    how = {key: getattr(args, key) for key in ("photographs", "originals", "each", "tripod")}
    document = {"benchmark": "copy_rule", **how, "rule": rule, "rows": rows, **provenance.provenance()}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "benchmark_copy_rule.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

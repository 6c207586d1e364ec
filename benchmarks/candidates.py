"""Time, memory and recall of the candidates of every vector of a large index, part by part.

    python benchmarks/candidates.py [--out runs/bench] [--vectors 1000000] [--dimensions 512] [--quick]

Contract: vectors as in benchmarks/search.py, in chunks of 500 on the disk, mapped as an index maps them. Every
hundredth is a copy of another with noise, at a distance of 0.1 to 0.4. Recall of copies:
the share of these whose original is among their 16 candidates. Recall@1, @4, @16: the share of the nearest of 500
vectors, by comparing all in double precision, that are among the 16 candidates. Memory: the most that is not mapped
from a file, above what was in use before. With --faiss the same by FAISS's inverted lists, as many lists and probes.
"""

from __future__ import annotations

import sys

sys.path[0] += "/.."  # not this folder, whose operator.py would hide the standard library's

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.search import BLOCK, blocks_like_features
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch.nn import functional as F

from patchreorder.engine.progress import Terminal
from patchreorder.laboratory import provenance
from patchreorder.search import candidates
from patchreorder.search.manifest import read_vectors
from patchreorder.search.stores import Vectors, need_faiss

K, CHECKED, COPIES = 16, 500, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0, help="by default all cores")
    parser.add_argument("--faiss", action="store_true", help="also FAISS's inverted lists")
    parser.add_argument("--quick", action="store_true", help="few vectors, to see that it runs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads or torch.get_num_threads())
    count = 12_000 if args.quick else args.vectors
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(count, args.dimensions, Path(folder), console, with_faiss=args.faiss)
    table = Table("", "seconds", title=f"{K} candidates of each of {count:,} vectors of {args.dimensions}")
    for part, seconds in found["seconds"].items():
        table.add_row(part, f"{seconds:.1f}")
    table.add_row("together", f"{sum(found['seconds'].values()):.1f}")
    console.print(table)
    for name in ("ours", "faiss"):
        if name in found:
            recall = ", ".join(f"{which} {value:.4f}" for which, value in found[name].items())
            console.print(f"{name}: recall {recall}")
    console.print(f"at most {found['memory'] / 1e6:.0f} MB; {torch.get_num_threads()} threads")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "candidates.json"
    path.write_text(json.dumps({**provenance.provenance(), **found}, indent=1))
    console.print(f"written to {path}")


def measure(count: int, dimensions: int, folder: Path, console: Console, *, with_faiss: bool) -> dict[str, Any]:
    vectors, originals = drawn(count, dimensions, folder, console)
    screen = Terminal(console)
    with Peak() as peak:
        found = candidates.find_candidates(vectors, k=K, folder=folder / "work", key="benchmark", screen=screen)
    screen.close()
    checked = np.random.default_rng(0).choice(count, CHECKED, replace=False)
    with console.status("comparing some with all"):
        truth = exact(vectors, checked)
    options = ("EXACT", "CELL", "PROBES", "COMPONENTS", "SAMPLE", "ROUNDS")
    result: dict[str, Any] = {
        "vectors": count,
        "dimensions": dimensions,
        "k": K,
        "options": {name: getattr(candidates, name) for name in options},
        "threads": torch.get_num_threads(),
        "seconds": found.seconds,
        "memory": peak.most,
        "ours": recalls(found.slots, truth, checked, originals),
    }
    if with_faiss:
        began = time.perf_counter()
        with console.status("FAISS"):
            slots = by_faiss(vectors)
        result |= {"faiss seconds": time.perf_counter() - began, "faiss": recalls(slots, truth, checked, originals)}
    return result


def drawn(count: int, dimensions: int, folder: Path, console: Console) -> tuple[Vectors, dict[int, int]]:
    """Vectors in chunks on the disk, and the originals of copies."""
    random = torch.Generator().manual_seed(1)
    originals, paths, blocks = {}, [], blocks_like_features(count, dimensions)[0]
    with console.status("drawing vectors"):
        for begin, block in zip(range(0, count, BLOCK), blocks, strict=True):
            if begin:
                for row in range(0, len(block), COPIES):
                    original = row + COPIES // 2 if row + COPIES // 2 < len(block) else 0
                    noise = F.normalize(torch.randn(dimensions, generator=random), dim=0)
                    step = 0.1 + 0.3 * float(torch.rand(1, generator=random))
                    block[row] = F.normalize(block[original] + step * noise, dim=0)
                    originals[begin + row] = begin + original
            paths.append(folder / f"{begin:08d}.safetensors")
            save_file({"vectors": block}, paths[-1])
    return Vectors([read_vectors(path, check=False) for path in paths]), originals


def exact(vectors: Vectors, checked: np.ndarray) -> list[np.ndarray]:
    """The K nearest others of some vectors."""
    alive, nearest = np.ones(len(vectors), dtype=bool), []
    for part in np.array_split(checked, 20):
        queries = vectors.take(part)
        for slot, query, near in zip(part, queries, vectors.candidates(queries, K + 1, alive), strict=True):
            others = near[near != slot]
            nearest.append(others[vectors.distances(query, others).argsort()[:K]])
    return nearest


def recalls(
    slots: np.ndarray, truth: list[np.ndarray], checked: np.ndarray, originals: dict[int, int]
) -> dict[str, float]:
    found = {"copies": float(np.mean([original in slots[copy] for copy, original in originals.items()]))}
    for k in (1, 4, 16):
        shares = [np.isin(near[:k], slots[slot]).mean() for slot, near in zip(checked, truth, strict=True)]
        found[f"@{k}"] = float(np.mean(shares))
    return found


def by_faiss(vectors: Vectors) -> np.ndarray:
    """The K nearest others by inverted lists in memory."""
    faiss = need_faiss()
    faiss.omp_set_num_threads(torch.get_num_threads())
    lists, points = -(-len(vectors) // candidates.CELL), torch.cat(vectors.blocks).numpy()
    index = faiss.index_factory(points.shape[1], f"IVF{lists},Flat")
    index.train(points[:: max(1, len(points) // (lists * candidates.SAMPLE))])
    index.add(points)
    index.nprobe = candidates.PROBES
    return index.search(points, K + 1)[1]


class Peak:
    """The most memory of this process, without mapped files, above that of the beginning."""

    def __enter__(self) -> Peak:
        self.most, self.before, self.ended = 0, self.now(), threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *given: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(0.05):
            self.most = max(self.most, self.now() - self.before)

    @staticmethod
    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()

"""Time of a query in a large index, and recall of the nearest vectors.

    python benchmarks/search.py [--out runs/bench] [--vectors 1000000] [--quick]

Contract: one thread, one query at a time, wall time with exact distances, after a warm-up; medians and quartiles. The
vectors are synthetic and distributed like features: groups of about 20 on a curved surface of 32 dimensions in a space
of 512, square root of each value, unit length. Queries are further members of the groups. Recall@4: the share of the
four nearest, by comparing all vectors in double precision, that the graph finds. A missed limit is printed as such.
"""

from __future__ import annotations

import sys

sys.path.pop(0)  # this folder, whose operator.py would hide the standard library's

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from patchreorder.laboratory import provenance
from patchreorder.search.manifest import checksum
from patchreorder.search.stores import BUILD_WIDTH, LINKS, SEARCH_WIDTH, Graph, Store, Vectors, build_graph

DIMENSIONS, INTRINSIC, GROUP, BLOCK, K = 512, 32, 20, 500, 4
RECALL = 0.95  # at least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--threads", type=int, default=0, help="to build the graph; by default all cores")
    parser.add_argument("--quick", action="store_true", help="few vectors, to see that it runs")
    args = parser.parse_args()
    count, queries = (5000, 50) if args.quick else (args.vectors, args.queries)
    console = Console()
    found = measure(count, queries, args.threads or torch.get_num_threads(), console)
    table = Table("", "milliseconds a query", "quartiles", "recall@4", title=f"{count:,} vectors of {DIMENSIONS}")
    for name in ("graph", "everything compared"):
        row = found[name]
        verdict = "" if row["recall"] >= RECALL else f" [red](below {RECALL})[/]"
        quartiles = f"{row['low']:.2f} to {row['high']:.2f}"
        table.add_row(name, f"{row['median']:.2f}", quartiles, f"{row['recall']:.4f}{verdict}")
    console.print(table)
    console.print(
        f"graph: built in {found['build seconds']:.0f} s by {found['threads']} threads, {found['bytes'] / 1e6:.0f} MB, "
        f"checked in {found['check seconds']:.1f} s, mapped in {found['open seconds']:.2f} s"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "search.json"
    path.write_text(json.dumps({**provenance.provenance(), **found}, indent=1))
    console.print(f"written to {path}")


def measure(count: int, queries: int, threads: int, console: Console) -> dict[str, Any]:
    with console.status("drawing vectors"):
        blocks, drawn = vectors_like_features(count, queries)
    everything = Vectors(blocks)
    alive = np.ones(count, dtype=bool)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.faiss")
        torch.set_num_threads(threads)
        done, began = 0, time.perf_counter()
        with console.status("building the graph") as status:

            def more(number: int) -> None:
                nonlocal done
                done += number
                status.update(f"building the graph: {done:,} of {count:,}, {time.perf_counter() - began:.0f} s")

            build_graph(path, blocks, more=more)
        built = time.perf_counter() - began
        torch.set_num_threads(1)
        began = time.perf_counter()
        checksum(path)
        checked = time.perf_counter() - began
        began = time.perf_counter()
        graph = Graph(path, everything, len(blocks))
        opened = time.perf_counter() - began
        with console.status("searching"):
            truth, exact = timed(everything, everything, drawn[: max(20, queries // 10)], alive)
            answers, near = timed(graph, everything, drawn, alive)
            truth += [nearest(everything, everything, query, alive) for query in drawn[len(truth) :]]
        size = path.stat().st_size
    hits = [len(set(answer) & set(right)) / K for answer, right in zip(answers, truth, strict=True)]
    return {
        "vectors": count,
        "dimensions": DIMENSIONS,
        "intrinsic": INTRINSIC,
        "queries": queries,
        "graph": {**spread(near), "recall": statistics.mean(hits)},
        "everything compared": {**spread(exact), "recall": 1.0},
        "links": LINKS,
        "widths": [BUILD_WIDTH, SEARCH_WIDTH],
        "build seconds": built,
        "threads": threads,
        "check seconds": checked,
        "open seconds": opened,
        "bytes": size,
    }


def vectors_like_features(count: int, queries: int) -> tuple[list[Tensor], Tensor]:
    """Blocks of vectors, and queries (q, DIMENSIONS) from the same groups."""
    blocks, draw = blocks_like_features(count)
    return [*blocks], draw(queries)


def blocks_like_features(count: int, dimensions: int = DIMENSIONS) -> tuple[Iterator[Tensor], Callable[[int], Tensor]]:
    """Blocks of vectors one by one, and a function that draws more from the same groups."""
    random = torch.Generator().manual_seed(0)
    first = torch.randn(INTRINSIC, dimensions, generator=random) / INTRINSIC**0.5
    bend = torch.randn(INTRINSIC, dimensions, generator=random) / INTRINSIC**0.5
    centres = torch.randn(max(1, count // GROUP), INTRINSIC, generator=random)

    def draw(number: int) -> Tensor:
        group = torch.randint(len(centres), (number,), generator=random)
        position = centres[group] + 0.5 * torch.randn(number, INTRINSIC, generator=random)
        features = F.relu(position @ first + torch.sin(position @ bend))  # half of them zero, as in networks
        return F.normalize(features.sqrt())

    return (draw(min(BLOCK, count - begin)) for begin in range(0, count, BLOCK)), draw


def nearest(store: Store, vectors: Vectors, query: Tensor, alive: np.ndarray) -> list[int]:
    (slots,) = store.candidates(query[None], K, alive)
    distances = vectors.distances(query, slots)
    return slots[np.lexsort((slots, distances))[:K]].tolist()


def timed(store: Store, vectors: Vectors, queries: Tensor, alive: np.ndarray) -> tuple[list[list[int]], list[float]]:
    """The four nearest of each query, and milliseconds."""
    for query in queries[:5]:
        nearest(store, vectors, query, alive)
    answers, times = [], []
    for query in queries:
        began = time.perf_counter()
        answers.append(nearest(store, vectors, query, alive))
        times.append(1000 * (time.perf_counter() - began))
    return answers, times


def spread(values: Sequence[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high}


if __name__ == "__main__":
    main()

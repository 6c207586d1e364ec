"""Time of a query and recall of the nearest vectors, in every store.

    python benchmarks/stores.py [--out runs/bench] [--vectors 100000] [--postgres URL] [--qdrant URL] [--quick]

Contract: vectors and queries as in benchmarks/search.py; one query at a time, wall time with exact distances, after a
warm-up; medians and quartiles. Recall@4: the share of the four nearest, by comparing all vectors in double precision.
Sent: seconds to put all vectors in batches of 500, as `index` does. Built: seconds for the graph. Without --postgres a
server of PyPI's `pgserver` is started on this machine (shared_buffers 512 MB, maintenance_work_mem 1 GB). A Qdrant
server is measured only where --qdrant names one.
"""

from __future__ import annotations

import sys

sys.path[0] += "/.."  # not this folder, whose operator.py would hide the standard library's
sys.path.insert(0, sys.path[0])  # which benchmarks.search removes

import argparse
import contextlib
import importlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.search import BLOCK, DIMENSIONS, K, nearest, spread, timed, vectors_like_features
from rich.console import Console
from rich.table import Table
from torch import Tensor

from patchreorder.laboratory import provenance
from patchreorder.search.stores import Graph, SharedStore, Vectors, build_graph, open_store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--threads", type=int, default=0, help="to build FAISS's graph; by default all cores")
    parser.add_argument("--postgres", help="postgresql://[USER@]HOST[:PORT]/DATABASE")
    parser.add_argument("--qdrant", help="qdrant://HOST[:PORT]/COLLECTION")
    parser.add_argument("--quick", action="store_true", help="few vectors, to see that it runs")
    args = parser.parse_args()
    count, queries = (12_000, 50) if args.quick else (args.vectors, args.queries)
    console = Console()
    rows: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack, console.status("drawing vectors") as status:
        blocks, drawn = vectors_like_features(count, queries)
        everything, alive = Vectors(blocks), np.ones(count, dtype=bool)
        threads = args.threads or torch.get_num_threads()
        torch.set_num_threads(1)
        status.update("comparing all")
        truth, times = timed(everything, everything, drawn[: max(20, queries // 10)], alive)
        truth += [nearest(everything, everything, query, alive) for query in drawn[len(truth) :]]
        rows["all compared"] = {**spread(times), "recall": 1.0}
        status.update("FAISS")
        rows["FAISS"] = measure_faiss(everything, drawn, truth, threads)
        if not args.postgres:
            status.update("starting a server")
            running = importlib.import_module("tests.search.server").running_server
            settings = {"shared_buffers": "512MB", "maintenance_work_mem": "1GB", "max_wal_size": "4GB"}
            args.postgres = stack.enter_context(running(**settings)).url
        for name, url in (("PostgreSQL", args.postgres), ("Qdrant", args.qdrant)):
            if url:
                rows[name] = measure_store(url, everything, drawn, truth, lambda text: status.update(text))
    table = Table("", "milliseconds a query", "quartiles", "recall@4", "sent", "built", title=f"{count:,} vectors")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['median']:.2f}",
            f"{row['low']:.2f} to {row['high']:.2f}",
            f"{row['recall']:.4f}",
            *(f"{row[part]:.0f} s" if part in row else "" for part in ("sent", "built")),
        )
    console.print(table)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "stores.json"
    about = {"vectors": count, "dimensions": DIMENSIONS, "queries": queries, "threads": threads}
    path.write_text(json.dumps({**provenance.provenance(), **about, "stores": rows}, indent=1))
    console.print(f"written to {path}")


def recall(answers: list[list[int]], truth: list[list[int]]) -> float:
    return statistics.mean(len({*found} & {*right}) / K for found, right in zip(answers, truth, strict=True))


def measure_faiss(everything: Vectors, drawn: Tensor, truth: list[list[int]], threads: int) -> dict[str, float]:
    alive = np.ones(len(everything), dtype=bool)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.faiss")
        torch.set_num_threads(threads)
        began = time.perf_counter()
        build_graph(path, everything.blocks, more=lambda done: None)
        built = time.perf_counter() - began
        torch.set_num_threads(1)
        answers, times = timed(Graph(path, everything, len(everything.blocks)), everything, drawn, alive)
    return {**spread(times), "recall": recall(answers, truth), "built": built}


def measure_store(url: str, everything: Vectors, drawn: Tensor, truth: list[list[int]], say: Any) -> dict[str, float]:
    count = len(everything)
    digests = [f"{slot:032x}" for slot in range(count)]
    slots = {digest: slot for slot, digest in enumerate(digests)}
    identity = os.urandom(16).hex()
    store: SharedStore
    with contextlib.closing(open_store(url, identity=identity, dimensions=DIMENSIONS, slots=slots)) as store:
        store.count()
        began = time.perf_counter()
        for begin, block in zip(range(0, count, BLOCK), everything.blocks, strict=True):
            store.put(digests[begin : begin + len(block)], block, [{f"{begin}.jpg": (1, 1)}] * len(block))
            say(f"{url.partition(':')[0]}: sent {begin + len(block):,}")
        sent = time.perf_counter() - began
        say(f"{url.partition(':')[0]}: building the graph")
        began = time.perf_counter()
        store.finish()
        built = time.perf_counter() - began
        say(f"{url.partition(':')[0]}: searching")
        answers, times = timed(store, everything, drawn, np.ones(count, dtype=bool))
        store.keep_only(set())
    return {**spread(times), "recall": recall(answers, truth), "sent": sent, "built": built}


if __name__ == "__main__":
    main()

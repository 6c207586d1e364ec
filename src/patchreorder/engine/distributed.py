"""One process or many: `python` is a world of one, `torchrun` of more."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """The processes that train together, and the rank of this one."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """This process's part of a batch; parts differ in length by at most one."""
        return indices.tensor_split(self.size)[self.rank]

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the main process's values, in place."""
        if self.size > 1:
            for tensor in tensors:
                values = tensor.contiguous()
                dist.broadcast(values, 0)
                tensor.copy_(values)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; the same in all."""
        return bool(self.sum(torch.tensor([float(flag)], device=self.device)).item())

    def from_main(self, flag: bool) -> bool:
        """The main process's flag, in all: files may look different to another process a moment later."""
        return self.any(flag and self.is_main)


ALONE = World()


@contextlib.contextmanager
def join() -> Iterator[World]:
    """Join the processes that torchrun started, by nccl on GPUs and gloo on CPUs; without torchrun a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False  # it may choose another algorithm in every run
        torch.backends.cudnn.deterministic = True
    if size == 1:
        yield World(device=device)
        return
    store, rank, size = next(dist.rendezvous("env://"))
    fresh = dist.PrefixStore(_session(store, rank, size), store)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=fresh, rank=rank, world_size=size)
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()


def _session(store: dist.Store, rank: int, size: int, *, seconds: float = 600.0) -> str:
    """A name that all processes agree on, different after every restart by torchrun.

    torchrun may give restarted processes the same store, with addresses of dead processes in it, and counts restarts
    on every machine separately. So each process registers a random token. The main process publishes its own token,
    which becomes the name, with all tokens it has read; a process that finds its token there acknowledges the name.
    """
    own = uuid.uuid4().hex
    others = range(1, size)
    deadline = time.monotonic() + seconds
    if rank:
        store.set(f"token {rank}", own)
    while time.monotonic() < deadline:
        if rank:
            tokens = _read(store, "tokens").split()
            if len(tokens) == size and tokens[rank] == own:
                store.set(f"acknowledged {rank}", tokens[0])
                return tokens[0]
        else:
            store.set("tokens", " ".join([own, *(_read(store, f"token {other}") or "-" for other in others)]))
            if all(_read(store, f"acknowledged {other}") == own for other in others):
                return own
        time.sleep(0.02)
    raise OSError(f"process {rank} of {size} did not find the others within {seconds:.0f} seconds")


def _read(store: dist.Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""

"""One process or many: `python` is the case of a world of one, `torchrun` of more."""

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
    """The processes that train together, and this one's place among them."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def share(self, indices: Tensor) -> Tensor:
        """This process's part of a batch; the parts differ by at most one."""
        return indices.tensor_split(self.size)[self.rank]

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def most(self, values: Tensor) -> Tensor:
        """The maximum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the values of the leading one, in place."""
        if self.size > 1:
            for tensor in tensors:
                values = tensor.contiguous()
                dist.broadcast(values, 0)
                tensor.copy_(values)

    def any(self, answer: bool) -> bool:
        """Whether any process answers yes, for all."""
        return bool(self.most(torch.tensor([float(answer)], device=self.device)).item())

    def agreed(self, answer: bool) -> bool:
        """What the leading process answers, for all: files may look different a moment later."""
        return self.any(answer and self.leads)


@contextlib.contextmanager
def join() -> Iterator[World]:
    """The world this process was started in: torchrun's environment decides, nccl on GPUs, gloo on CPUs."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False  # the fastest algorithm may be another one tomorrow
        torch.backends.cudnn.deterministic = True
    if size == 1:
        yield World(device=device)
        return
    store, rank, size = next(dist.rendezvous("env://"))
    fresh = dist.PrefixStore(_round(store, rank, size), store)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=fresh, rank=rank, world_size=size)
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()


def _round(store: dist.Store, rank: int, size: int, *, seconds: float = 600.0) -> str:
    """A name for this meeting of the processes, another one whenever torchrun starts them again.

    torchrun may hand the same store to them each time, with the addresses of processes that are dead, and counts its
    restarts on every machine apart. So each process says hello with a name of its own; the leading one repeats all that
    it has heard beside its own name, which is the round's; who finds its own name there is in the right round.
    """
    own = uuid.uuid4().hex
    others = range(1, size)
    deadline = time.monotonic() + seconds
    if rank:
        store.set(f"hello {rank}", own)
    while time.monotonic() < deadline:
        if rank:
            heard = _read(store, "heard").split()
            if len(heard) == size and heard[rank] == own:
                store.set(f"agreed {rank}", heard[0])
                return heard[0]
        else:
            store.set("heard", " ".join([own, *(_read(store, f"hello {other}") or "-" for other in others)]))
            if all(_read(store, f"agreed {other}") == own for other in others):
                return own
        time.sleep(0.02)
    raise OSError(f"process {rank} of {size} did not find the others within {seconds:.0f} seconds")


def _read(store: dist.Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""

"""One process or many: `python` is the case of a world of one, `torchrun` of more."""

from __future__ import annotations

import contextlib
import os
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
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(rank, size, device)
    finally:
        dist.destroy_process_group()

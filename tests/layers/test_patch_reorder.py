"""`PatchReorder` in mixed precision and in data-parallel training."""

import multiprocessing
import os

import torch
import torch.distributed as dist
from torch import nn

from patchreorder import PatchReorder, patch_reorder


def test_autocast_keeps_the_type(form):
    x = torch.rand(2, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(patch_reorder(x), patch_reorder(x.clone()))
        assert patch_reorder(x).dtype == torch.float32
        half = nn.Sequential(nn.Conv2d(3, 4, 3), PatchReorder())(x)
    assert half.dtype == torch.bfloat16


def gradients(wrap=lambda model: model, share=slice(None)):
    """The gradients of a small model on a share of a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), PatchReorder(), nn.Flatten(), nn.Linear(4 * 36, 2)).double()
    wrapped = wrap(model)
    wrapped(torch.rand(6, 3, 8, 8, dtype=torch.float64)[share]).square().mean().backward()
    return [parameter.grad.tolist() for parameter in model.parameters()]


def _work(rank, store, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    queue.put(gradients(nn.parallel.DistributedDataParallel, slice(3 * rank, 3 * rank + 3)))
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes abort a process that ends normally


def test_distributed_data_parallel(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(rank, tmp_path / "store", queue), daemon=True) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    expected = gradients()
    for _ in workers:
        for ours, alone in zip(queue.get(), expected, strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(alone))

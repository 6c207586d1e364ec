"""Workers give the batches of a single process, in order; they end with their work, their parent or a clear error."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from patchreorder.data.generated import write_photos
from patchreorder.data.images import BadImage
from patchreorder.data.loader import PREFETCH, WorkerDied, parallel_map, processors, stream
from patchreorder.data.photos import Photos


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)


@dataclass
class Numbers:
    """Batches that say which process made them."""

    bad: int = -1

    def __len__(self) -> int:
        return 1000

    def batch(self, indices, *, epoch=0):
        if self.bad in indices.tolist():
            raise BadImage(f"{self.bad}.jpg cannot be read")
        if epoch == 7:
            raise Odd("no pickle", 2)
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        about = torch.tensor([os.getpid(), torch.get_num_threads(), ignored])
        return indices * 10 + epoch, about


PARTS = [(torch.arange(3) + step, step % 2) for step in range(12)]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_the_end(*pids: int, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while any(map(alive, pids)):
        assert time.monotonic() < until, "a worker is still alive"
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_order(workers):
    before = torch.get_rng_state()
    made = [*stream(Numbers(), PARTS, workers=workers)]
    assert [numbers.tolist() for numbers, _ in made] == [(part * 10 + epoch).tolist() for part, epoch in PARTS]
    assert torch.equal(torch.get_rng_state(), before)
    about = torch.stack([about for _, about in made])
    assert len(about[:, 0].unique()) == max(1, workers)
    if workers:
        assert os.getpid() not in about[:, 0]
        assert about[:, 1:].unique(dim=0).tolist() == [[1, 1]]  # one thread, and Ctrl-C is ignored
        wait_for_the_end(*about[:, 0].tolist())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_images_are_the_same_for_any_number_of_workers(tmp_path):
    write_photos(tmp_path, classes=2, images=10)
    photos = Photos.open(tmp_path, "train", view="train-aug", size=24, short=32)
    parts = [(torch.randperm(len(photos))[:5], epoch) for epoch in range(4)]
    alone, prefetched = ([*stream(photos, parts, workers=workers)] for workers in (0, 2))
    for (images, labels), (same, same_labels) in zip(alone, prefetched, strict=True):
        assert torch.equal(images, same)
        assert torch.equal(labels, same_labels)
        assert same.is_contiguous(memory_format=torch.channels_last)
    (tmp_path / photos.names[3]).write_bytes(b"")
    assert [index for index, _ in photos.find_bad()] == [3]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_keeps_its_type_and_message(workers):
    batches = stream(Numbers(bad=5), PARTS, workers=workers)
    pids = {next(batches)[1][0].item() for _ in range(3)}
    with pytest.raises(BadImage, match=r"^5.jpg cannot be read$"):
        next(batches)
    if workers:
        wait_for_the_end(*pids)


def test_an_exception_that_cannot_be_pickled_keeps_its_message():
    with pytest.raises(RuntimeError, match="Odd: no pickle"):
        next(stream(Numbers(), [(torch.arange(1), 7)], workers=1))


def test_closing_ends_the_workers_and_few_parts_are_prefetched():
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield torch.arange(2), 0

    batches = stream(Numbers(), endless(), workers=2)
    pids = {next(batches)[1][0].item() for _ in range(4)}
    batches.close()
    wait_for_the_end(*pids)
    assert len(taken) <= 4 + 2 * PREFETCH


def test_a_killed_worker_is_a_clear_error():
    batches = stream(Numbers(), ((torch.arange(2), 0) for _ in range(10**6)), workers=1)
    pid = next(batches)[1][0].item()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"a worker process ended unexpectedly: .*/dev/shm.* fewer workers than 1"):
        list(batches)


def test_an_error_in_the_parts_is_raised_unchanged():
    def parts():
        yield torch.arange(2), 0
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        [*stream(Numbers(), parts(), workers=1)]
    with pytest.raises(ValueError, match=r"workers \(-1\) must be 0"):
        parallel_map(str, [1], workers=-1)


PARENT = """
import sys
sys.path.insert(0, sys.argv[2])
if __name__ == "__main__":  # workers import this file too
    import time, torch, torch.distributed as dist
    from tests.data.test_loader import Numbers
    from patchreorder import patch_reorder
    from patchreorder.data.loader import stream
    torch.set_num_threads(2)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    patch_reorder(torch.rand(4, 8, 32, 32), grid=2, levels=2)  # the kernel's threads
    batches = stream(Numbers(), ((torch.arange(2), 0) for _ in range(10**9)), workers=2)
    print(*{next(batches)[1][0].item() for _ in range(4)}, flush=True)
    time.sleep(60)
"""


def test_workers_die_with_a_parent_that_has_threads_and_a_group(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "store"), str(Path(__file__).parents[2])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        pids = [*map(int, parent.stdout.readline().split())]
        assert len(pids) == 2
        assert all(map(alive, pids))
        parent.kill()
    wait_for_the_end(*pids)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot limit a process to processors")
def test_processors_are_those_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert processors() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert processors() == len(allowed)

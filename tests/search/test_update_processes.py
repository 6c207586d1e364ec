"""Updates that are killed, and updates and searches at the same time: the index is always in one whole state."""

import contextlib
import importlib.util
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from patchreorder.data import loader
from patchreorder.search import update as update_module
from patchreorder.search.index import Index
from patchreorder.search.manifest import MANIFEST, Manifest, read_chunk

from .samples import Colours, change, files, made, state


def work(folder, out, large, stop, freeze, pipe):
    """In a process of its own: update, and sleep or die by SIGKILL before the disk changes for the `stop`-th time."""
    torch.set_num_threads(1)
    update_module.CHUNK, update_module.LARGE, update_module.ADDED = 3, large, 0
    steps = 0

    def counted(function):
        def call(*given, **options):
            nonlocal steps
            steps += 1
            if steps == stop and freeze:
                pipe.send("there")
                time.sleep(60)
            if steps == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **options)

        return call

    os.fsync, os.replace, Path.unlink = counted(os.fsync), counted(os.replace), counted(Path.unlink)
    update_module.build_graph = counted(update_module.build_graph)
    try:
        made(folder, out, batch=2)
    except ValueError as error:
        pipe.send(str(error))
    else:
        pipe.send(steps)


class Worker:
    """A process that runs `work`."""

    def __init__(self, folder, out, *, large=1000, stop=0, freeze=False):
        context = loader._context()  # its server has imported torch
        self.pipe, own = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(folder, out, large, stop, freeze, own))
        self.process.start()
        own.close()

    def end(self):
        """The number of changes of the disk, or the message of an error; None if the process was killed."""
        try:
            sent = self.pipe.recv()
        except EOFError:
            sent = None
        self.process.join()
        assert self.process.exitcode == (-signal.SIGKILL if sent is None else 0)
        return sent


@contextlib.contextmanager
def frozen(folder, out, **options):
    """A process that sleeps at a step of its update, and is killed at the end."""
    worker = Worker(folder, out, freeze=True, **options)
    try:
        assert worker.pipe.recv() == "there"
        yield
    finally:
        worker.process.kill()
        worker.process.join()


@pytest.mark.parametrize(
    ("large", "every"),
    [(5, False), pytest.param(5, True, marks=pytest.mark.slow), pytest.param(1000, True, marks=pytest.mark.slow)],
)
def test_after_a_kill_at_any_step_the_next_update_continues(small_chunks, photos, tmp_path, monkeypatch, large, every):
    """SIGKILL before single changes of the disk, in a first update and in one that rewrites chunks."""
    if importlib.util.find_spec("faiss") is None:
        large = 1000  # no graph
    monkeypatch.setattr(update_module, "LARGE", large)
    monkeypatch.setattr(update_module, "ADDED", 0)
    first, second = tmp_path / "first", tmp_path / "second"
    steps = Worker(photos, first, large=large).end()
    before = state(first)
    unchanged = shutil.copytree(photos, tmp_path / "unchanged")
    change(photos)
    shutil.copytree(first, second)
    more = Worker(photos, second, large=large).end()
    after = state(second)
    assert before != after
    assert min(steps, more) > 11
    for total, begun in ((steps, None), (more, first)):
        for stop in range(1, total + 1) if every else (2, total // 2, total - 1):
            out = tmp_path / f"{total}-{begun is None}-{stop}"
            if begun:
                shutil.copytree(begun, out)
            folder, expected = (photos, after) if begun else (unchanged, before)
            assert Worker(folder, out, large=large, stop=stop).end() is None
            if begun:
                assert state(out) in (before, after)
            elif not (out / MANIFEST).exists():
                with pytest.raises(ValueError, match=r"is not finished|is not an index"):
                    Index(out)
            made(folder, out, batch=2)
            assert state(out) == expected
            found = Manifest.read(out)
            assert files(out) == {MANIFEST, *found.chunks, *([found.graph] if found.graph else [])}


def test_finished_chunks_of_a_killed_update_are_not_computed_again(photos, tmp_path):
    out = tmp_path / "out"
    assert Worker(photos, out, stop=5).end() is None
    finished = sum(len(read_chunk(path).digests) for path in out.glob("[0-9a-f]*.safetensors"))
    assert finished >= 4
    model = Colours()
    assert made(photos, out, model).images == 12
    assert model.seen == 12 - finished


def test_a_second_update_at_the_same_time_is_refused(photos, tmp_path):
    out = tmp_path / "out"
    with frozen(photos, out, stop=4):
        began = time.monotonic()
        with pytest.raises(ValueError, match=r"another process is writing .*out: wait until it ends"):
            made(photos, out)
        assert time.monotonic() - began < 5
    assert made(photos, out).images == 12  # a lock ends with its process


def test_several_updates_at_the_same_time_leave_a_whole_index(photos, tmp_path):
    out = tmp_path / "out"
    sent = [worker.end() for worker in [Worker(photos, out) for _ in range(4)]]
    assert any(isinstance(message, int) for message in sent)
    assert all(isinstance(message, int) or "another process is writing" in message for message in sent)
    assert len(state(out)) == 12


@pytest.mark.parametrize("stop", [4, -4, -1])
def test_a_search_during_an_update_sees_one_state(photos, tmp_path, stop):
    first, second = tmp_path / "first", tmp_path / "second"
    Worker(photos, first).end()
    before, opened = state(first), Index(first)
    change(photos)
    shutil.copytree(first, second)
    steps = Worker(photos, second).end()
    after = state(second)
    with frozen(photos, first, stop=stop if stop > 0 else steps + stop):
        assert state(first) == (before if stop > 0 else after)
    made(photos, first)
    assert state(first) == after
    hits = opened.search(torch.ones(1, 48), 99)[0]
    assert {hit.name for hit in hits} == before.keys()  # though its files are removed


def test_searches_while_an_update_runs_see_whole_states(photos, tmp_path):
    out = tmp_path / "out"
    made(photos, out)
    before = state(out)
    change(photos)
    worker = Worker(photos, out)
    seen = [state(out)]
    while worker.process.is_alive():
        seen.append(state(out))
    assert isinstance(worker.end(), int)
    after = state(out)
    assert seen[0] == before
    assert all(found in (before, after) for found in seen)

"""Processes that tests start: alone, or joined by gloo."""

import multiprocessing
import os

import torch
import torch.distributed as dist

from patchreorder.engine.distributed import join

# Children are forked from a process that has imported torch but never used it: seconds cheaper than a new interpreter.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed._shard.sharded_tensor",
        "patchreorder.engine.predict",
        "pytest",
        # what tests/defences runs
        "patchreorder.commands.run",
        "patchreorder.recipes.table1",
        "patchreorder.classifier.fit",
        "patchreorder.search.update",
    ]
)


def child(function, *args):
    """A process that calls function(pipe, *args), and this end of the pipe."""
    here, there = SERVER.Pipe()
    process = SERVER.Process(target=_begin, args=(function, there, *args), daemon=True)
    process.start()
    there.close()
    return process, here


def _begin(function, pipe, *args):
    torch.set_num_threads(1)
    function(pipe, *args)


def together(size, function, *args):
    """The results of function(world, *args) in each of `size` processes."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    members = [child(_joins, rank, size, store.port, function, *args) for rank in range(size)]
    try:
        answers = [pipe.recv() if pipe.poll(60) else "no answer" for _, pipe in members]
    finally:
        for process, _ in members:
            process.join(10)
            process.kill()
    assert not [answer for answer in answers if isinstance(answer, str)], answers
    return [answer for (answer,) in answers]


def _joins(pipe, rank, size, port, function, *args):
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    try:
        with join() as world:
            pipe.send((function(world, *args),))
    except BaseException as error:
        pipe.send(repr(error))
        raise

"""The training loop: one process or many, interrupted and resumed at any step, bit for bit the same.

All randomness is a function of (seed, epoch, index) or (seed, step, rank), so a run continues from the tensors of its
last checkpoint and the number of steps alone.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from patchreorder.data.loader import stream
from patchreorder.files import differing, digest

from .batches import Dataset, channels_last, epoch_order, model_input
from .distributed import ALONE, World
from .optimiser import create_optimiser, half_precision, set_rate
from .options import Training
from .signals import stop_requests
from .state import NotFinite, State


@dataclass(frozen=True)
class Progress:
    """The progress of a run after an update."""

    step: int
    total: int
    epoch: float
    loss: float
    rate: float
    images_per_second: float


@dataclass(frozen=True)
class Trained:
    """Facts about a finished run."""

    steps: int
    seconds: float
    cpu_seconds: float
    curve: list[list[float]]  # (epoch, mean training loss)
    resumed: int  # how many times


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; the message says what was saved."""


def train(
    model: nn.Module,
    data: Dataset,
    training: Training,
    *,
    seed: int = 0,
    file: Path | None = None,
    world: World = ALONE,
    callback: Callable[[Progress], None] = lambda progress: None,
    save_every: float = 60.0,
    accumulate: int = 1,
) -> Trained:
    """Train the model in place.

    Args:
        model: on the world's device.
        data: training images.
        training: options.
        seed: of the order of images and of dropout.
        file: a checkpoint, resumed if it exists, saved every `save_every` seconds and at the end.
        world: from `distributed.join()`.
        callback: called after every update (on GPUs every 20), in the main process.
        save_every: seconds.
        accumulate: parts in which a process computes its share of a batch, to save memory.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; the checkpoint is saved first.
        NotFinite: if the loss or a weight is not finite; the message names the last good checkpoint.
        ValueError: if an argument is out of range, or the checkpoint is damaged or of another run.
    """
    run = _Run(model, data, training, seed, file, world, accumulate)
    run.state.resume(total=run.total)
    with stop_requests() as stop_requested:
        return run.loop(stop_requested, callback, save_every)


class _Run:
    """One run of the loop."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        training: Training,
        seed: int,
        file: Path | None,
        world: World,
        accumulate: int,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed ({seed}) must be 0 or more")
        if accumulate < 1:
            raise ValueError(f"accumulate ({accumulate}) must be 1 or more")
        if training.batch < world.size:
            raise ValueError(
                f"batch ({training.batch}) must not be smaller than the number of processes ({world.size})"
            )
        self.data, self.training, self.seed, self.world, self.accumulate = data, training, seed, world, accumulate
        self.total, self.per_epoch = training.total(len(data)), training.per_epoch(len(data))
        self.model, self.optimiser = channels_last(model), create_optimiser(model, training)
        self.precision = half_precision(world.device) if training.amp else None
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.precision is torch.float16)
        self.state = State(
            self.model,
            self.optimiser,
            self.scaler,
            world=world,
            file=file,
            run=digest({"training": differing(training), "seed": seed, "images": len(data)}),
            setting={
                "threads": torch.get_num_threads(),
                "world": world.size,
                "device": world.device.type,
                "precision": str(self.precision),
                "accumulate": accumulate,
            },
        )

    def loop(
        self, stop_requested: Callable[[], bool], callback: Callable[[Progress], None], save_every: float
    ) -> Trained:
        state, world = self.state, self.world
        self.model.train()
        network: nn.Module = self.model
        if world.size > 1 and state.step < self.total:
            # Without find_unused_parameters, buckets of gradients are rebuilt after the first update of every start and
            # summed in another order: a resumed run of three processes would differ in bits.
            network = DistributedDataParallel(self.model, find_unused_parameters=True)
        check_every = _check_every(world.device)
        losses = torch.zeros(check_every, device=world.device, dtype=torch.float64)
        unchecked, first = 0, state.step
        begun = saved = time.perf_counter()
        earlier, cpu_earlier = state.seconds - begun, state.cpu_seconds - time.process_time()
        batches = stream(self.data, self.shares(), workers=getattr(self.data, "workers", 0))
        while state.step < self.total:
            losses[unchecked] = self.update(network, *next(batches))
            unchecked += 1
            state.step += 1
            epoch_ends = state.step % self.per_epoch == 0 or state.step == self.total
            if state.step % check_every and not epoch_ends:
                continue
            loss, stop = self.check(losses[:unchecked], stop_requested())
            unchecked = 0
            now = time.perf_counter()
            state.seconds, state.cpu_seconds = earlier + now, cpu_earlier + time.process_time()
            if epoch_ends:
                self.end_epoch()
            if world.is_main:
                speed = (state.step - first) * self.training.batch / max(now - begun, 1e-9)
                rate = self.training.rate(state.step - 1, self.total)
                callback(Progress(state.step, self.total, state.step / self.per_epoch, loss, rate, speed))
            if stop:
                state.save()
                raise Interrupted(self.interrupted())
            if world.from_main(now - saved > save_every):
                state.save()
                saved = time.perf_counter()
        world.broadcast(self.model.state_dict().values())  # every process has its own running statistics
        if world.any(stop_requested()):  # while the last checkpoint was written
            raise Interrupted(self.interrupted())
        return Trained(state.step, state.seconds, state.total_cpu_seconds(), state.curve, state.resumed)

    def shares(self) -> Iterator[tuple[Tensor, int]]:
        """The indices of this process's part of every remaining batch, and their epoch."""
        batch, current = self.training.batch, -1
        for step in range(self.state.step, self.total):
            epoch, position = divmod(step, self.per_epoch)
            if epoch != current:
                order, current = epoch_order(self.data, seed=self.seed, epoch=epoch), epoch
            yield self.world.share(order[position * batch : (position + 1) * batch]), epoch

    def update(self, network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """One step of SGD; returns this process's part of the mean loss."""
        set_rate(self.optimiser, self.training.rate(self.state.step, self.total))
        torch.manual_seed(_mixed(self.seed, self.state.step, self.world.rank))  # of dropout
        self.optimiser.zero_grad(set_to_none=True)
        parts = min(self.accumulate, max(len(labels), 1))
        loss = torch.zeros((), device=self.world.device)
        for part, (some, truth) in enumerate(
            zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True), 1
        ):
            # Processes exchange gradients once, with the last part.
            wait = isinstance(network, DistributedDataParallel) and part < parts
            with network.no_sync() if wait else contextlib.nullcontext():  # type: ignore[operator]
                loss = loss + self.backward(network, some, truth)
        if self.training.clip:
            self.scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return loss

    def backward(self, network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Add the gradients of some images of a batch; returns their part of its mean loss."""
        with torch.autocast(self.world.device.type, dtype=self.precision, enabled=self.precision is not None):
            logits = network(model_input(images, self.world.device))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        part = F.cross_entropy(logits, labels.to(self.world.device), reduction="sum") / self.training.batch
        self.scaler.scale(part * self.world.size).backward()  # DDP averages over processes: this makes it the mean
        return part.detach()

    def check(self, losses: Tensor, stop_requested: bool) -> tuple[float, bool]:
        """Sum the losses of the last updates over all processes; returns the last one, and whether to stop."""
        *values, stops = self.world.sum(torch.cat([losses, losses.new_tensor([stop_requested])])).tolist()
        for step, value in enumerate(values, self.state.step - len(values) + 1):
            if not math.isfinite(value):
                raise NotFinite(f"the loss is not finite at step {step} ({value}); {self.state.advice()}")
        self.state.loss_sum += sum(values)
        return values[-1], stops > 0

    def end_epoch(self) -> None:
        state = self.state
        steps = (state.step - 1) % self.per_epoch + 1
        state.curve.append([state.step / self.per_epoch, state.loss_sum / steps])
        state.loss_sum = 0.0
        if state.step == self.total:
            state.save()

    def interrupted(self) -> str:
        where = f"saved in {self.state.file}" if self.state.file else "nothing was saved: no file was given"
        return f"stopped after step {self.state.step} of {self.total}, {where}"


def _check_every(device: torch.device) -> int:
    """Updates from one look at the loss to the next: on a GPU each waits for the device."""
    return 1 if device.type == "cpu" else 20


def _mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])

"""The training loop, the only one: one process or many, stopped and resumed at any step, bit for bit the same.

Everything random is a function of (seed, epoch, index) or (seed, step, rank), so a run is continued from two things:
the tensors of the last checkpoint and the number of steps behind it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from patchreorder.data.loader import stream
from patchreorder.files import digest

from . import checkpoint
from .distributed import World

_ALONE = World()


class Dataset(Protocol):
    """What the engine asks of data: a length, and batches that depend on (epoch, index) only.

    Images of bytes (0 to 255) become floats (0 to 1) on the device. A data set may also have `workers`, the number of
    processes that make its batches ahead, and `order(seed=, epoch=)`, the order in which an epoch reads it best.
    """

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, kw_only=True)
class Training:
    """How to train: SGD with one of two schedules.

    Args:
        steps: updates in all; or `epochs`.
        epochs: passes over the data, may be a fraction; the last images that fill no batch are left out of a pass.
        batch: images of an update, over all processes together.
        lr: the base (`step`) or peak (`one-cycle`) learning rate.
        schedule: `step` divides by 10 every `decay_every` updates; `one-cycle` rises linearly for the `warmup` part of
            the updates and falls to 0 along a cosine.
        clip: the longest gradient allowed, as a norm over all parameters.
        ema: average the weights over updates with this decay, and use the average in the end.
        amp: compute in half precision where the device has it: bfloat16, or on older GPUs float16 with scaling.
        scales: factors of the learning rate, for parameters whose names start with a key or end with `.key`; where
            several keys match, their factors multiply.
    """

    steps: int | None = None
    epochs: float | None = None
    batch: int = 128
    lr: float = 0.07
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0
    schedule: Literal["one-cycle", "step"] = "one-cycle"
    warmup: float = 0.15
    decay_every: int = 50_000
    clip: float | None = None
    ema: float | None = None
    amp: bool = False
    scales: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give steps ({self.steps}) or epochs ({self.epochs}), one of them")
        for name in ("steps", "epochs", "batch", "lr", "decay_every", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} ({value}) must be more than 0")
        for name in ("steps", "batch", "decay_every"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise ValueError(f"{name} ({value}) must be a whole number")
        if self.schedule not in ("one-cycle", "step"):
            raise ValueError(f"schedule ({self.schedule!r}) must be one-cycle or step")
        for name in ("warmup", "ema", "momentum"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} ({value}) must be from 0 to 1")

    def total(self, images: int) -> int:
        """Updates in all, for this many images."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * per_epoch(images, self.batch)))

    def rate(self, step: int, total: int) -> float:
        """The learning rate of update `step` (from 0) of `total`."""
        if self.schedule == "step":
            return self.lr * 0.1 ** (step // self.decay_every)
        rise = self.warmup * total
        if step < rise:
            return self.lr * (step + 1) / (rise + 1)
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - rise) / (total - rise)))


@dataclass(frozen=True)
class Progress:
    """Where a run is: for a line on the screen or a log."""

    step: int
    total: int
    epoch: float
    loss: float
    rate: float
    images_per_second: float


@dataclass(frozen=True)
class Trained:
    """What a finished run leaves beside the model's weights."""

    steps: int
    seconds: float
    cpu_seconds: float
    curve: list[list[float]]  # (epoch, mean training loss of it)
    resumed: int  # how often


class Interrupted(KeyboardInterrupt):
    """Training was stopped from outside; the message says how to go on."""


class NotFinite(ValueError):
    """The loss or the weights left the numbers."""


def per_epoch(images: int, batch: int) -> int:
    """Updates of one pass."""
    if images < batch:
        raise ValueError(f"batch ({batch}) must not be larger than the number of training images ({images})")
    return images // batch


def train(
    model: nn.Module,
    data: Dataset,
    training: Training,
    *,
    seed: int = 0,
    file: Path | None = None,
    world: World = _ALONE,
    report: Callable[[Progress], None] = lambda progress: None,
    save_every: float = 60.0,
    accumulate: int = 1,
) -> Trained:
    """Train the model in place.

    Args:
        model: on the world's device.
        data: training images.
        training: how.
        seed: of the order of images and of dropout.
        file: a checkpoint that is resumed if it is there and saved every `save_every` seconds and at the end.
        world: from `distributed.join()`.
        report: called after every update by the leading process.
        save_every: seconds.
        accumulate: parts in which a process computes its share of a batch, one after the other, to save memory.

    Raises:
        Interrupted: after Ctrl-C or a request to end (SIGTERM); what was done is saved.
        NotFinite: if the loss or a weight is not finite; the last good checkpoint is named.
        ValueError: if the checkpoint is of another run, or damaged.
    """
    run = _Run(model, data, training, seed, file, world, accumulate)
    run.resume()
    with _requests() as requested:
        return run.go(requested, report, save_every)


class _Run:
    """One training: its optimiser, its averages, its place."""

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
        self.data, self.training, self.seed, self.file, self.world = data, training, seed, file, world
        self.accumulate = accumulate
        self.model = _channels_last(model)
        self.optimiser = torch.optim.SGD(
            _groups(model, training),
            lr=training.lr,
            momentum=training.momentum,
            nesterov=training.nesterov and training.momentum > 0,
            weight_decay=training.weight_decay,
        )
        self.total = training.total(len(data))
        self.per_epoch = per_epoch(len(data), training.batch)
        if training.batch < world.size:
            raise ValueError(
                f"batch ({training.batch}) must not be smaller than the number of processes ({world.size})"
            )
        self.average = {n: t.detach().clone() for n, t in model.state_dict().items()} if training.ema else {}
        self.precision = _precision(world.device) if training.amp else None
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.precision is torch.float16)
        self.step = self.resumed = 0
        self.seconds = self.cpu_seconds = self.loss_sum = 0.0
        self.curve: list[list[float]] = []
        self.saved: int | None = None
        self.infinite = {name for name, value in self.tensors().items() if not _finite(value)}  # such as masks

    # ---- the loop ----------------------------------------------------------------------------------

    def go(self, requested: Callable[[], int], report: Callable[[Progress], None], save_every: float) -> Trained:
        self.model.train()
        network: nn.Module = self.model
        if self.world.size > 1 and self.step < self.total:
            # Without this argument gradients are laid out anew after the first update of every start, and then added up
            # in another order: a resumed run of three processes would not be the same bit for bit.
            network = DistributedDataParallel(self.model, find_unused_parameters=True)
        look = _look_every(self.world.device)
        losses = torch.zeros(look, device=self.world.device, dtype=torch.float64)
        begun = saved = time.perf_counter()
        cpu_begun, before, first = time.process_time(), (self.seconds, self.cpu_seconds), self.step
        unseen = 0
        batches = stream(self.data, self.shares(), workers=getattr(self.data, "workers", 0))
        while self.step < self.total:
            losses[unseen] = self.update(network, *next(batches))
            unseen += 1
            self.step += 1
            ends = self.step % self.per_epoch == 0 or self.step == self.total
            if self.step % look and not ends:
                continue
            loss, stop = self.look(losses[:unseen], requested())
            unseen = 0
            now = time.perf_counter()
            self.seconds, self.cpu_seconds = before[0] + now - begun, before[1] + time.process_time() - cpu_begun
            if ends:
                self.end_epoch()
            if self.world.leads:
                done = self.step - first
                speed = done * self.training.batch / max(now - begun, 1e-9)
                rate = self.training.rate(self.step - 1, self.total)
                report(Progress(self.step, self.total, self.step / self.per_epoch, loss, rate, speed))
            if stop:
                self.save()
                raise Interrupted(self.where())
            if self.world.agreed(now - saved > save_every):
                self.save()
                saved = time.perf_counter()
        if self.average:
            self.model.load_state_dict(self.average)
        self.world.spread(self.model.state_dict().values())  # each process has running statistics of its own
        if self.world.any(requested() > 0):  # while the last checkpoint was written
            raise Interrupted(self.where())
        return Trained(self.step, self.seconds, self._sum(self.cpu_seconds), self.curve, self.resumed)

    def shares(self) -> Iterator[tuple[Tensor, int]]:
        """The images of this process's part of every update from here to the end, and the epoch they belong to."""
        batch, seed = self.training.batch, self.seed
        order, its_epoch = torch.empty(0), -1
        for step in range(self.step, self.total):
            epoch, position = divmod(step, self.per_epoch)
            if epoch != its_epoch:
                order, its_epoch = _order(self.data, seed=seed, epoch=epoch), epoch
            yield self.world.share(order[position * batch : (position + 1) * batch]), epoch

    def update(self, network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """One step of SGD; this process's part of the mean loss."""
        rate = self.training.rate(self.step, self.total)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["scale"]
        torch.manual_seed(_mixed(self.seed, self.step, self.world.rank))  # for dropout and the like
        self.optimiser.zero_grad(set_to_none=True)
        parts = min(self.accumulate, max(len(labels), 1))
        loss = torch.zeros((), device=self.world.device)
        for part, (some, truth) in enumerate(
            zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True), 1
        ):
            # The processes exchange gradients once, with the last part.
            many = isinstance(network, DistributedDataParallel)
            with network.no_sync() if many and part < parts else contextlib.nullcontext():  # type: ignore[operator]
                loss = loss + self.gradients(network, some, truth)
        if self.training.clip:
            self.scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        if self.average:
            self._average()
        return loss

    def gradients(self, network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Add the gradients of some images of a batch; their part of its mean loss."""
        with torch.autocast(self.world.device.type, dtype=self.precision, enabled=self.precision is not None):
            logits = network(model_input(images, self.world.device))
        labels = labels.to(self.world.device)
        part = F.cross_entropy(logits.to(_at_least_float(logits)), labels, reduction="sum") / self.training.batch
        self.scaler.scale(part * self.world.size).backward()  # the processes' gradients are averaged: this is the mean
        return part.detach()

    def _average(self) -> None:
        assert self.training.ema
        # Early on the average of few updates: the start must not weigh more than its share.
        decay = min(self.training.ema, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                if value.is_floating_point() and f"model.{name}" not in self.infinite:
                    self.average[name].lerp_(value, 1 - decay)
                else:
                    self.average[name].copy_(value)

    def look(self, losses: Tensor, requested: int) -> tuple[float, bool]:
        """Add up the losses of the last updates, stop if one is not finite; the last one, and whether to end."""
        *values, asked = self.world.total(torch.cat([losses, losses.new_tensor([requested])])).tolist()
        for step, value in enumerate(values, self.step - len(values) + 1):
            if not math.isfinite(value):
                raise NotFinite(f"the loss of step {step} is not finite ({value}); {self._last_good()}")
        self.loss_sum += sum(values)
        return values[-1], asked > 0

    def end_epoch(self) -> None:
        steps = (self.step - 1) % self.per_epoch + 1
        self.curve.append([self.step / self.per_epoch, self.loss_sum / steps])
        self.loss_sum = 0.0
        if self.step == self.total:
            self.save()

    def _sum(self, value: float) -> float:
        """Over all processes."""
        return float(self.world.total(torch.tensor(value, device=self.world.device, dtype=torch.float64)))

    # ---- checkpoints -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "run": digest({"training": asdict(self.training), "seed": self.seed, "images": len(self.data)}),
            "step": self.step,
            "resumed": self.resumed,
            "seconds": self.seconds,
            "curve": self.curve,
            "scaler": self.scaler.state_dict(),
            **self.place(),
        }

    def place(self) -> dict[str, Any]:
        """What a run must find again to go on bit for bit."""
        return {
            "threads": torch.get_num_threads(),
            "world": self.world.size,
            "device": self.world.device.type,
            "precision": str(self.precision),
            "accumulate": self.accumulate,
        }

    def tensors(self) -> dict[str, Tensor]:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        moments = {
            f"momentum.{names[id(parameter)]}": values["momentum_buffer"]
            for parameter, values in self.optimiser.state.items()
            if values.get("momentum_buffer") is not None
        }
        model = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        return model | moments | {f"average.{name}": value for name, value in self.average.items()}

    def save(self) -> None:
        """Write the checkpoint, unless a weight has become infinite: the last good one then stays."""
        tensors = self.tensors()
        bad = [name for name, value in tensors.items() if name not in self.infinite and not _finite(value)]
        if self.world.any(bool(bad)):
            name = bad[0] if bad else "a tensor of another process"
            raise NotFinite(f"{name} is not finite after step {self.step}; {self._last_good()}")
        if self.file is None:
            return
        sums = {"loss_sum": self.loss_sum, "cpu_seconds": self._sum(self.cpu_seconds)}
        if self.world.leads:
            checkpoint.write(self.file, tensors, self.state() | sums)
        self.world.wait()  # none may end, and have torchrun end the others, before the file is there
        self.saved = self.step

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one."""
        if self.file is None or not self.world.agreed(self.file.is_file()):
            return
        tensors, state = checkpoint.read(self.file)
        if state.get("run") != self.state()["run"]:
            raise ValueError(f"{self.file} is the checkpoint of another run: remove it or choose another folder")
        for name, here in self.place().items():
            if state.get(name, here) != here and self.world.leads:
                warnings.warn(
                    f"{name}: {here} here, {state[name]} when {self.file} was saved: not bit for bit", stacklevel=3
                )
        moments = {  # frozen or unused parameters have none
            f"momentum.{name}": (parameter, torch.empty_like(parameter, requires_grad=False))
            for name, parameter in self.model.named_parameters()
            if f"momentum.{name}" in tensors
        }
        try:
            checkpoint.copy_into(self.tensors() | {name: buffer for name, (_, buffer) in moments.items()}, tensors)
        except ValueError as error:
            raise ValueError(f"{self.file} is the checkpoint of {error}; remove it or choose another folder") from None
        for parameter, buffer in moments.values():
            self.optimiser.state[parameter]["momentum_buffer"] = buffer
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]
        self.loss_sum = state["loss_sum"]
        if self.world.leads:  # the sum over the processes is made again at the end
            self.cpu_seconds = state["cpu_seconds"]
        self.resumed = state["resumed"] + (self.step < self.total)
        self.saved = self.step

    def where(self) -> str:
        if self.file is None:
            return f"stopped after step {self.step} of {self.total}; nothing was saved: there was no folder for it"
        return f"stopped after step {self.step} of {self.total}, saved in {self.file}"

    def _last_good(self) -> str:
        if self.saved is None:
            return "there is no earlier checkpoint; try a lower learning rate"
        return f"the last good checkpoint is step {self.saved}, {self.file}; try a lower learning rate"


def model_input(images: Tensor, device: torch.device) -> Tensor:
    """Images on the device, as floats, in the layout that convolutions are fastest with."""
    images = images.to(device, non_blocking=True)
    if images.dtype == torch.uint8:
        images = images.to(torch.get_default_dtype()).div_(255)
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


def _channels_last(model: nn.Module) -> nn.Module:
    """The model with its maps and kernels in that layout; `Module.to()` refuses tensors of five dimensions."""
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return model


def _groups(model: nn.Module, training: Training) -> list[dict[str, Any]]:
    """The parameters by the scale of their learning rate: the product of the scales of all matching keys."""
    groups: dict[float, list[nn.Parameter]] = {}
    unused = set(training.scales)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        matching = [key for key in sorted(training.scales) if name.startswith(key) or name.endswith(f".{key}")]
        unused -= set(matching)
        scale = math.prod((training.scales[key] for key in matching), start=1.0)
        groups.setdefault(scale, []).append(parameter)
    if unused:
        raise ValueError(f"scales ({', '.join(sorted(unused))}) match no parameter of the model")
    return [{"params": parameters, "scale": scale} for scale, parameters in groups.items()]


def _precision(device: torch.device) -> torch.dtype:
    if device.type == "cuda" and not torch.cuda.is_bf16_supported():
        return torch.float16
    return torch.bfloat16


def _look_every(device: torch.device) -> int:
    """Updates from one look at the loss to the next: on a GPU every look waits for the device."""
    return 1 if device.type == "cpu" else 20


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def _at_least_float(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _order(data: Dataset, *, seed: int, epoch: int) -> Tensor:
    """The images of an epoch, one after the other."""
    own = getattr(data, "order", None)  # such as that of shards, which are read one after the other
    order = own(seed=seed, epoch=epoch) if own is not None else None
    return _shuffled(len(data), seed=seed, epoch=epoch) if order is None else order


def _shuffled(count: int, *, seed: int, epoch: int) -> Tensor:
    """An order of the images, its stream apart from those of their parameters."""
    stream = np.random.Philox(np.random.SeedSequence([seed, epoch, 1]))
    return torch.from_numpy(np.random.Generator(stream).permutation(count))


@contextlib.contextmanager
def _requests() -> Iterator[Callable[[], int]]:
    """Counts requests to end (Ctrl-C, SIGTERM) instead of ending at once; a second Ctrl-C ends at once."""
    asked: list[int] = []
    old: dict[signal.Signals, Any] = {}

    def note(number: int, frame: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with contextlib.suppress(ValueError):  # not the main thread: signals are somebody else's business
        old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: len(asked)
    finally:
        for kind, handler in old.items():
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)  # None: it was not Python's

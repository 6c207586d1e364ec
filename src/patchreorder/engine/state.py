"""What a training run carries from step to step, and its checkpoint: a resumed run is bit for bit the same."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchreorder.files import remove_abandoned

from . import checkpoint
from .distributed import World

BUFFERS = {"momentum": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq", "updates": "step"}  # of optimisers


class NotFinite(ValueError):
    """The loss or a weight is NaN or infinite."""


class State:
    """Weights, buffers of the optimiser and counters of a run.

    Args:
        model: on the world's device.
        optimiser: of the model's parameters.
        scaler: of the loss.
        world: the processes that train together.
        file: the checkpoint; None saves nothing.
        run: identifies the run: a checkpoint of another one is refused.
        setting: what a resumed run should have in common with the saved one, or it warns.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        *,
        world: World,
        file: Path | None,
        run: str,
        setting: Mapping[str, Any],
    ) -> None:
        self.model, self.optimiser, self.scaler = model, optimiser, scaler
        self.world, self.file, self.run, self.setting = world, file, run, setting
        self.step = self.resumed = 0
        self.seconds = self.cpu_seconds = 0.0  # cpu_seconds of this process
        self.loss_sum = 0.0  # of the epoch so far
        self.curve: list[list[float]] = []  # (epoch, mean training loss)
        self.saved: int | None = None  # the step of the last checkpoint
        self._infinite = {name for name, value in self.tensors().items() if not _finite(value)}  # such as masks

    def tensors(self) -> dict[str, Tensor]:
        """By the names they have in the checkpoint."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        buffers = {
            f"{own}.{names[id(parameter)]}": values[buffer]
            for parameter, values in self.optimiser.state.items()
            for own, buffer in BUFFERS.items()
            if values.get(buffer) is not None
        }
        return {f"model.{name}": value for name, value in self.model.state_dict().items()} | buffers

    def total_cpu_seconds(self) -> float:
        """Over all processes."""
        return float(self.world.sum(torch.tensor(self.cpu_seconds, device=self.world.device, dtype=torch.float64)))

    def save(self) -> None:
        """Write the checkpoint.

        Raises:
            NotFinite: if a weight is not finite; the last checkpoint stays.
        """
        tensors = self.tensors()
        bad = [name for name, value in tensors.items() if name not in self._infinite and not _finite(value)]
        if self.world.any(bool(bad)):
            name = bad[0] if bad else "a tensor of another process"
            raise NotFinite(f"{name} is not finite after step {self.step}; {self.advice()}")
        if self.file is None:
            return
        state = {
            "run": self.run,
            "step": self.step,
            "resumed": self.resumed,
            "seconds": self.seconds,
            "cpu_seconds": self.total_cpu_seconds(),
            "loss_sum": self.loss_sum,
            "curve": self.curve,
            "scaler": self.scaler.state_dict(),
            **self.setting,
        }
        if self.world.is_main:
            checkpoint.write(self.file, tensors, state)
        self.world.barrier()  # a process that ended earlier would have torchrun end the others before the file is there
        self.saved = self.step

    def resume(self, *, total: int) -> None:
        """Continue from the checkpoint, if there is one.

        Raises:
            ValueError: if it is of another run or network, or damaged.
        """
        if self.file is not None and self.world.is_main:
            remove_abandoned(self.file)  # what is not trained on writes no checkpoint that would
        if self.file is None or not self.world.from_main(self.file.is_file()):
            return
        tensors, state = checkpoint.read(self.file)
        if state.get("run") != self.run:
            raise ValueError(f"{self.file} is the checkpoint of another run: remove it or choose another folder")
        for name, here in self.setting.items():
            if state.get(name, here) != here and self.world.is_main:
                warnings.warn(
                    f"{name} is {here}, but was {state[name]} when {self.file} was saved: results may differ in bits",
                    stacklevel=3,
                )
        buffers = {  # frozen and unused parameters have none
            f"{own}.{name}": (parameter, torch.zeros(()) if own == "updates" else torch.zeros_like(parameter))
            for name, parameter in self.model.named_parameters()
            for own in BUFFERS
            if f"{own}.{name}" in tensors
        }
        try:
            own = {name: buffer.requires_grad_(False) for name, (_, buffer) in buffers.items()}
            checkpoint.copy_into(self.tensors() | own, tensors)
        except ValueError as error:
            raise ValueError(f"{self.file} is the checkpoint of {error}; remove it or choose another folder") from None
        for name, (parameter, buffer) in buffers.items():
            self.optimiser.state[parameter][BUFFERS[name.partition(".")[0]]] = buffer
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.step, self.seconds, self.curve = state["step"], state["seconds"], state["curve"]
        self.loss_sum = state["loss_sum"]
        if self.world.is_main:  # one process only: it is summed over all
            self.cpu_seconds = state["cpu_seconds"]
        self.resumed = state["resumed"] + (self.step < total)
        self.saved = self.step

    def advice(self) -> str:
        """What to do when a number is not finite."""
        if self.saved is None:
            return "there is no earlier checkpoint; try a lower learning rate"
        return f"the last good checkpoint is step {self.saved}, {self.file}; try a lower learning rate"


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())

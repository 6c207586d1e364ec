"""Compare the output of a model with its output after a change to the feature maps of one module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

Change = Callable[[Tensor, torch.Generator], Tensor]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode without gradients; restore the mode of every module and torch's random state."""
    modes = [(module, module.training) for module in model.modules()]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.no_grad(), torch.random.fork_rng(devices):
        try:
            model.eval()
            yield
        finally:
            for module, training in modes:
                module.training = training


class Probe:
    """Runs a model repeatedly on one input with the same random numbers, and compares the outputs."""

    def __init__(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.model, self.arguments = model, arguments
        self.varied = tuple(
            value + torch.randn_like(value) if isinstance(value, Tensor) and value.is_floating_point() else value
            for value in arguments
        )
        # An image among them may come with other arguments, such as facts about it.
        self.other_images = tuple(
            changed if is_maps(value) or not any(map(is_maps, arguments)) else value
            for value, changed in zip(arguments, self.varied, strict=True)
        )
        self.output = self._first_run()
        if not self.output:
            raise ValueError("the model returned no tensor, so there is nothing to compare")
        sizes = [tensor.double().nan_to_num(0.0, 0.0, 0.0).norm().item() for tensor in self.output]
        self.repeated = _distances(self.output, self.run(arguments))
        if not _within(self.repeated, [1e-2 * size for size in sizes]):
            raise ValueError("the model's output changes from run to run, for the same input and seed")
        precision = [torch.finfo(out.dtype).eps if out.is_floating_point() else 0.0 for out in self.output]
        self.rounding = [4 * (e * size + d) for e, size, d in zip(precision, sizes, self.repeated, strict=True)]
        self.visible = [max(1e-2 * size, limit) for size, limit in zip(sizes, self.rounding, strict=True)]

    def _first_run(self) -> list[Tensor]:
        try:
            return self.run(self.arguments)
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
            given = [
                f"{'x'.join(map(str, value.shape))} {value.dtype}" if isinstance(value, Tensor) else repr(value)
                for value in self.arguments
            ]
            raise ValueError(
                f"model ({type(self.model).__name__}) cannot take the example ({', '.join(given)}): "
                f"{' '.join(str(error).split())[:240]}: give what its forward takes, several arguments as a tuple"
            ) from error

    def run(
        self, arguments: tuple[Any, ...], module: nn.Module | None = None, change: Change | None = None
    ) -> list[Tensor]:
        """Return the tensors of the output, with the feature maps of one module changed at every call."""
        generator = torch.Generator().manual_seed(0)

        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            return change(output, generator) if change and is_maps(output) else output

        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)
        # Copies: a model may write to its input, or return a tensor that its next run overwrites.
        copies = [argument.clone() if isinstance(argument, Tensor) else argument for argument in arguments]
        handle = (module or self.model).register_forward_hook(hook)
        try:
            return [tensor.cpu().clone() for tensor in _tensors(self.model(*copies))]
        finally:
            handle.remove()

    def ignores_positions(self, module: nn.Module) -> bool:
        """Whether shuffling the maps of a module changes the output by no more than rounding."""
        changes = _distances(self.output, self.run(self.arguments, module, shuffle))
        if not _within(changes, self.visible):
            return False
        # A pool sums shuffled maps in another order. The effect of that rounding depends on all later layers, so it is
        # measured: by noise of the size of rounding on the same maps.
        noise = _distances(self.output, self.run(self.arguments, module, _add_rounding_noise))
        return _within(changes, [max(pair) for pair in zip(noise, self.rounding, strict=True)])

    def is_bypassed(self, module: nn.Module) -> bool:
        """Whether the output still depends on the images when the maps of a module are all zero."""
        first, second = (
            self.run(arguments, module, lambda maps, _: torch.zeros_like(maps))
            for arguments in (self.arguments, self.other_images)
        )
        return not _within(_distances(first, second), self.rounding)

    def accepts(self, module: nn.Module, change: Change) -> bool:
        """Whether the model runs with the maps of a module changed, without warnings, and returns the same shapes."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                changed = self.run(self.arguments, module, change)
        except Exception:  # networks raise errors of every kind for other shapes, AssertionError too
            return False
        return [tensor.shape for tensor in changed] == [tensor.shape for tensor in self.output]

    def returns_maps(self) -> bool:
        """Whether all of the output is feature maps."""
        return all(map(is_maps, self.output))

    def reaches(self, module: nn.Module, is_target: Callable[[nn.Module], bool]) -> int:
        """How many calls of such modules take something that depends on the maps of a module."""
        found = 0

        def look(target: nn.Module, args: tuple[Any, ...]) -> None:
            nonlocal found
            tensors = [value for value in args if isinstance(value, Tensor) and value.is_floating_point()]
            found += is_target(target) and any(bool(value.isnan().any()) for value in tensors)

        handle = register_module_forward_pre_hook(look)
        try:
            self.run(self.arguments, module, lambda maps, _: torch.full_like(maps, torch.nan))
        finally:
            handle.remove()
        return found

    def ignores_shifts(self) -> bool:
        """Whether rolling the images by a pixel, down and right, changes the output by no more than rounding."""
        rolled = tuple(value.roll((1, 1), (2, 3)) if is_maps(value) else value for value in self.arguments)
        return _within(_distances(self.output, self.run(rolled)), self.rounding)

    def ignores_input(self) -> bool:
        """Whether another input gives the same output."""
        return _within(_distances(self.output, self.run(self.varied)), self.repeated)


def is_maps(value: Any) -> bool:
    """Whether a value is feature maps: floats, (batch, channels, height, width), more than one position."""
    is_image = isinstance(value, Tensor) and value.dim() == 4 and value.is_floating_point()
    return is_image and value.shape[2:].numel() > 1


def shuffle(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Permute the positions of every map by its own random cycle, so that no position stays."""
    path = torch.rand(maps.flatten(2).shape, generator=generator).argsort(2)  # b c hw
    order = torch.empty_like(path).scatter_(2, path, path.roll(1, 2)).to(maps.device)
    # The memory layout is kept: in another one the next layers may round differently.
    return torch.empty_like(maps).copy_(maps.flatten(2).gather(2, order).view(maps.shape))


def _add_rounding_noise(maps: Tensor, generator: torch.Generator) -> Tensor:
    """Add some units in the last place, independent for every value and for every map as a whole."""
    scale = 32 * torch.finfo(maps.dtype).eps * maps.abs().mean((2, 3), keepdim=True)
    values = torch.randn(maps.shape, generator=generator)
    sums = torch.randn(*maps.shape[:2], 1, 1, generator=generator)
    return torch.empty_like(maps).copy_(maps + scale * (values + sums).to(maps))


def _tensors(value: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples, mappings and dataclasses."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _distances(first: list[Tensor], second: list[Tensor]) -> list[float]:
    """The L2 distances, in which NaN equals NaN and is infinitely far from every number."""
    if [tensor.shape for tensor in first] != [tensor.shape for tensor in second]:
        return [torch.inf] * len(first)
    return [
        (a.double() - b.double())
        .masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)
        .nan_to_num(torch.inf)
        .norm()
        .item()
        for a, b in zip(first, second, strict=True)
    ]


def _within(distances: list[float], limits: list[float]) -> bool:
    return all(distance <= limit for distance, limit in zip(distances, limits, strict=True))

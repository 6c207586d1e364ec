"""Where can reordering help in a model? `advise` looks at the maps of its modules and tries each place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from .functional import Grid
from .module import PatchReorder
from .surgery import check_plain
from .trial import Trial, evaluating, is_maps

GRIDS, LEVELS = (2, 3, 4), (1, 2, 3)
NO_OP, EARLY, BRANCH, REORDERED, CONSTANT = "no-op", "early", "branch", "already reordered", "constant output"
MEANINGS = {
    NO_OP: "these maps can be shuffled and the output stays the same, as with a global pool behind them.",
    EARLY: "reordering breaks the arrangement that later convolutions look at; the paper found losses there.",
    BRANCH: "other maps bypass it, as in a residual block, and would join the reordered ones out of place.",
    CONSTANT: "the output is the same for other inputs, so nothing can be said about any place.",
}


class Fit(NamedTuple):
    """A setting whose patches fit a map, and the rows and columns that they do not cover."""

    grid: Grid
    levels: int
    leftover_rows: int
    leftover_columns: int


class Advice(NamedTuple):
    """What `advise` says about one module: the size of its maps, what fits them, what speaks against it."""

    name: str
    kind: str
    channels: int
    height: int
    width: int
    fits: tuple[Fit, ...]
    warning: str  # empty, or "no-op", "early: 3 convolutions follow", "branch", "already reordered", ...


def advise(model: nn.Module, example: Tensor | tuple[Any, ...], *, console: Console | None = None) -> list[Advice]:
    """Print where a reordering layer fits into a model, and where it would do nothing or harm.

    The model runs once to find the modules that return maps, and again for each with the positions of its
    maps shuffled, every channel by itself. Where the output stays the same, up to rounding, reordering is a
    no-op. Where convolutions larger than 1x1 are called later, it is early (Fig. 5 of the paper). A container
    that returns the very maps of a module inside it gets no line of its own. The model runs in eval mode
    without gradients; its modes and torch's random state are put back.

    Args:
        model: any plain `nn.Module` that takes images.
        example: what the model takes, at best a small batch of real images; a tuple holds several arguments.
        console: where to print.

    Returns:
        The lines of the table, in the order of the calls.

    Raises:
        ValueError: the example is empty, or the output has no tensors or changes from run to run.
        TypeError: the model is compiled, wrapped, scripted or traced, or an argument is of the wrong type.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> lines = advise(model, torch.rand(1, 3, 8, 8), console=Console(quiet=True))
    >>> [(line.name, line.height, line.warning) for line in lines]
    [('0', 6, 'no-op'), ('1', 6, 'no-op')]
    """
    check_plain(model)
    arguments = example if isinstance(example, tuple) else (example,)
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if not tensors:
        raise TypeError(f"example must be a tensor or a tuple with tensors, got {type(example).__name__}")
    if not all(tensor.numel() for tensor in tensors):
        raise ValueError(f"example is empty: its shape is {[tuple(tensor.shape) for tensor in tensors]}")
    console = console or Console()
    with evaluating(model):
        trial = Trial(model, arguments)
        lines, convolutions = _find_maps(trial)
        advice = [_judge(line, trial, convolutions) for line in _with_progress(lines, console)]
        if all(line.warning == NO_OP for line in advice) and trial.ignores_input():
            advice = [line._replace(warning=CONSTANT) for line in advice]
    _print(advice, console)
    return advice


@dataclass(eq=False)
class _Line:
    """A module that returns maps."""

    name: str
    module: nn.Module
    shape: torch.Size
    start: int  # the number of its first call, among the calls that return maps
    calls: int = 0
    inside: _Line | None = None  # the module inside it that returned the same maps
    followed: bool = False  # by a reordering layer


class _Watch:
    """A hook that sees every call of every module, and keeps a line for each that returns maps."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.lines: dict[nn.Module, _Line] = {}
        self.convolutions: list[int] = []
        self.channels_last: set[torch.Size] = set()
        self.last: tuple[Tensor, _Line] | None = None
        self.calls = 0

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not is_maps(output) or isinstance(module, nn.Identity):
            return
        self.calls += 1
        new = _Line(self.names.get(module, ""), module, output.shape, self.calls)
        line = self.lines.setdefault(module, new)
        line.calls += 1
        if _is_convolution(module):
            self.convolutions.append(self.calls)
        if _works_on_last_dimension(module, output):
            self.channels_last.add(output.shape)
        if self.last is not None:
            self._compare(line, args, output, *self.last)
        self.last = output, line

    @staticmethod
    def _compare(line: _Line, args: Any, output: Tensor, last_output: Tensor, last: _Line) -> None:
        if isinstance(line.module, PatchReorder) and args and args[0] is last_output:
            last.followed = True
        if output is last_output and last is not line and last.module in set(line.module.modules()):
            line.inside = last

    def lines_to_show(self) -> list[_Line]:
        shown: list[_Line] = []
        for line in reversed(self.lines.values()):
            # Unless the module inside is used elsewhere as well: then it is another place.
            if line.inside and line.inside.calls == line.calls:
                line.inside.followed |= line.followed
            elif line.module in self.names and not isinstance(line.module, PatchReorder):
                shown.insert(0, line)
        return [line for line in shown if line.shape not in self.channels_last or _is_convolution(line.module)]


def _find_maps(trial: Trial) -> tuple[list[_Line], list[int]]:
    """The modules that return maps, and the numbers of the calls of convolutions."""
    watch = _Watch(trial.model)
    # Global hooks run before those of insert_after, so a module is seen before the layer inserted after it.
    # And they also see layers that only a hook holds.
    handle = register_module_forward_hook(watch)
    try:
        trial.run(trial.arguments)
    finally:
        handle.remove()
    return watch.lines_to_show(), watch.convolutions


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and max(module.kernel_size) > 1


def _works_on_last_dimension(module: nn.Module, output: Tensor) -> bool:
    """Then the last dimension holds the channels, and the output is not maps as we mean them."""
    if isinstance(module, nn.LayerNorm):
        return module.normalized_shape == (output.shape[3],) != (output.shape[1],)
    return isinstance(module, nn.Linear)


def _judge(line: _Line, trial: Trial, convolutions: list[int]) -> Advice:
    kind = type(line.module).__name__
    _, channels, height, width = line.shape
    warning = _warning(line, trial, sum(call > line.start for call in convolutions))
    return Advice(line.name, kind, channels, height, width, _fits(height, width), warning)


def _warning(line: _Line, trial: Trial, later: int) -> str:
    if line.followed:
        return REORDERED
    if trial.ignores_positions(line.module):
        return NO_OP
    if later:
        return f"{EARLY}: {later} convolutions follow" if later > 1 else f"{EARLY}: a convolution follows"
    return BRANCH if trial.is_bypassed(line.module) else ""


def _fits(height: int, width: int) -> tuple[Fit, ...]:
    sides = [(grid, levels, grid**levels) for grid in GRIDS for levels in LEVELS]
    fitting = [side for side in sides if side[2] <= min(height, width)]
    return (
        Fit("pixels", 1, 0, 0),
        *(Fit(grid, levels, height % side, width % side) for grid, levels, side in fitting),
    )


def _with_progress(lines: list[_Line], console: Console) -> Iterator[_Line]:
    start, bar = time.monotonic(), Progress(console=console, transient=True)
    task = bar.add_task("shuffling maps", total=len(lines))
    try:
        for line in lines:
            if console.is_terminal and time.monotonic() - start > 2:
                bar.start()
            yield line
            bar.advance(task)
    finally:
        if bar.live.is_started:
            bar.stop()


def _print(advice: list[Advice], console: Console) -> None:
    if not advice:
        console.print("No module returns maps (batch, channels, height, width) with more than one position.")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True, overflow="fold")  # whole: it is there to be copied
    for column in ("kind", "maps", *(f"grid={grid}" for grid in GRIDS), "warning"):
        table.add_column(column)
    for line in advice:
        size = f"{line.channels}x{line.height}x{line.width}"
        leftovers = (_leftovers(line, grid) for grid in GRIDS)
        table.add_row(escape(line.name or '""'), line.kind, size, *leftovers, line.warning)
    console.print(table)
    for sentence in _conclusions(advice):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _leftovers(line: Advice, grid: int) -> str:
    rests = [fit[2:] for fit in line.fits if fit.grid == grid]
    pixels = [line.height * line.width - (line.height - down) * (line.width - right) for down, right in rests]
    return " ".join(map(str, pixels)) or "-"


def _conclusions(advice: list[Advice]) -> Iterator[str]:
    warnings = {line.warning.split(":")[0] for line in advice}
    reordered = [line.name for line in advice if line.warning == REORDERED]
    # In training, dropout changes the energies, so the place before it is the better one.
    free = [line.name for line in advice if not line.warning and "Drop" not in line.kind]
    yield 'grid=N: pixels left over at levels 1, 2, 3, as far as patches fit; grid="pixels" fits all maps.'
    yield from (f"{warning}: {meaning}" for warning, meaning in MEANINGS.items() if warning in warnings)
    if reordered:
        yield f"A reordering layer is in place already, after {', '.join(reordered)}."
    elif free:
        yield f"Worth trying, the last one first: {', '.join(reversed(free[-5:]))}"
        yield f'  insert_after(model, "{free[-1]}", PatchReorder(grid="pixels"))'
    elif CONSTANT not in warnings:
        yield (
            "No place is free of warnings: flatten the last maps for the classifier instead of pooling them "
            "globally, and reorder them there."
        )

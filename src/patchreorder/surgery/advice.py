"""Where can reordering help in a model, and which layer? `advise` looks at the maps of its modules and tries places."""

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

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.ranked_pool import RankedPool, ranked_pool
from patchreorder.layers.registry import FAMILY
from patchreorder.operator.functional import Grid

from .insertion import check_plain
from .probe import Probe, evaluating, is_maps

GRIDS, LEVELS = (2, 3, 4), (1, 2, 3)
SHARES = 16  # of the values of a map, for ranked pooling instead of a global pool
NO_OP, EARLY, BRANCH, REORDERED, CONSTANT = "no-op", "early", "branch", "already reordered", "constant output"
MEANINGS = {
    NO_OP: "these maps can be shuffled and the output stays the same, as with a global pool behind them.",
    EARLY: "so many convolutions follow, and would see a broken arrangement; the paper found losses there.",
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
    layer: str = ""  # what the rules of `advise` recommend here, for `insert_after`; after "no-op": instead of the pool


def advise(model: nn.Module, example: Tensor | tuple[Any, ...], *, console: Console | None = None) -> list[Advice]:
    """Print where a reordering layer fits into a model, which one, and where it would do nothing or harm.

    The model runs once to find the modules that return maps, and again for each with the positions of its
    maps shuffled, every channel by itself. Where the output stays the same, up to rounding, reordering is a
    no-op. Where convolutions larger than 1x1 are called later, it is early (Fig. 5 of the paper). A container
    that returns the very maps of a module inside it gets no line of its own. The model runs in eval mode
    without gradients; its modes and torch's random state are put back.

    Which layer of the family to try, the first of these first. These are rules, from what can be known of the
    network and the example; nothing is measured here, results are in the README:

    1. `orient` behind the last group convolution (a module with an attribute `orientations`, as ours have), if its
       maps are square.
    2. `align` at the input, if the outermost pixels of all example images are zero, the output is no maps, and it
       changes when the images are shifted by a pixel; `pose` if things are turned that are upright in training images.
    3. `ranked:quantiles=16` instead of a global pool, if the last maps go into one (there reordering is a no-op); fewer
       shares if the maps have fewer positions. The next layer gets as many times the numbers.
    4. `reorder:grid=pixels` at the places without a warning, the last one first, but not behind a dropout. `ranked`, if
       the maps hold negative values, which it sorts by value and not by energy, and the model takes what it returns.

    Nothing is recommended if a layer of the family stands behind a module already, or if the output is constant.

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
        probe = Probe(model, arguments)
        watch = _find_maps(probe)
        lines = watch.lines_to_show()
        advice = [_judge(line, probe, watch.convolutions) for line in _with_progress(lines, console)]
        if all(line.warning == NO_OP for line in advice) and probe.ignores_input():
            advice = [line._replace(warning=CONSTANT) for line in advice]
        advice = _recommend(advice, lines, watch, probe)
        background = _background(probe) if not any(line.warning == CONSTANT for line in advice) else ""
    _print(advice, watch.pool, background, console)
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
    negative: bool = False  # some value is


class _Watch:
    """A hook that sees every call of every module, and keeps a line for each that returns maps."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.lines: dict[nn.Module, _Line] = {}
        self.convolutions: list[int] = []
        self.channels_last: set[torch.Size] = set()
        self.last: tuple[Tensor, _Line] | None = None
        self.calls = 0
        self.sorted = False  # by some layer, so that earlier maps may be shuffled
        self.pool = ""  # the module that made one position of the last maps, if one did

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, FAMILY) and self.last is not None and args and args[0] is self.last[0]:
            self.last[1].followed = True
        self.sorted |= isinstance(module, (PatchReorder, RankedPool))
        if args and is_maps(args[0]) and _is_one_position(output, args[0]) and not list(module.children()):
            self.pool = self.names.get(module, "")
        if not is_maps(output) or isinstance(module, nn.Identity):
            return
        self.pool = ""
        self.calls += 1
        new = _Line(self.names.get(module, ""), module, output.shape, self.calls)
        line = self.lines.setdefault(module, new)
        line.calls += 1
        line.negative |= bool((output < 0).any())
        if _is_convolution(module):
            self.convolutions.append(self.calls)
        if _works_on_last_dimension(module, output):
            self.channels_last.add(output.shape)
        if self.last is not None:
            self._compare(line, output, *self.last)
        self.last = output, line

    @staticmethod
    def _compare(line: _Line, output: Tensor, last_output: Tensor, last: _Line) -> None:
        if output is last_output and last is not line and last.module in set(line.module.modules()):
            line.inside = last

    def lines_to_show(self) -> list[_Line]:
        shown: list[_Line] = []
        for line in reversed(self.lines.values()):
            # Unless the module inside is used elsewhere as well: then it is another place.
            if line.inside and line.inside.calls == line.calls:
                line.inside.followed |= line.followed
            elif line.module in self.names and not isinstance(line.module, FAMILY):
                shown.insert(0, line)
        return [line for line in shown if line.shape not in self.channels_last or _is_convolution(line.module)]


def _find_maps(probe: Probe) -> _Watch:
    """What a run of the model shows: the modules that return maps, and the numbers of the calls of convolutions."""
    watch = _Watch(probe.model)
    # Global hooks run before those of insert_after, so a module is seen before the layer inserted after it.
    # And they also see layers that only a hook holds.
    handle = register_module_forward_hook(watch)
    try:
        probe.run(probe.arguments)
    finally:
        handle.remove()
    return watch


def _is_convolution(module: nn.Module) -> bool:
    """Larger than 1x1, whoever wrote it: known by its weight and the size of its kernel."""
    weight, size = getattr(module, "weight", None), getattr(module, "kernel_size", 1)
    return isinstance(weight, Tensor) and weight.dim() == 4 and max(size if isinstance(size, tuple) else (size,)) > 1


def _is_one_position(output: Any, maps: Tensor) -> bool:
    return isinstance(output, Tensor) and output.shape[:2] == maps.shape[:2] and output[0, 0].numel() == 1


def _works_on_last_dimension(module: nn.Module, output: Tensor) -> bool:
    """Then the last dimension holds the channels, and the output is not maps as we mean them."""
    if isinstance(module, nn.LayerNorm):
        return module.normalized_shape == (output.shape[3],) != (output.shape[1],)
    return isinstance(module, nn.Linear)


def _judge(line: _Line, probe: Probe, convolutions: list[int]) -> Advice:
    kind = type(line.module).__name__
    _, channels, height, width = line.shape
    warning = _warning(line, probe, sum(call > line.start for call in convolutions))
    return Advice(line.name, kind, channels, height, width, _fits(height, width), warning)


def _warning(line: _Line, probe: Probe, later: int) -> str:
    if line.followed:
        return REORDERED
    if probe.ignores_positions(line.module):
        return NO_OP
    if later:
        return f"{EARLY}: {later} convolutions follow" if later > 1 else f"{EARLY}: a convolution follows"
    return BRANCH if probe.is_bypassed(line.module) else ""


def _fits(height: int, width: int) -> tuple[Fit, ...]:
    sides = [(grid, levels, grid**levels) for grid in GRIDS for levels in LEVELS]
    fitting = [side for side in sides if side[2] <= min(height, width)]
    return (
        Fit("pixels", 1, 0, 0),
        *(Fit(grid, levels, height % side, width % side) for grid, levels, side in fitting),
    )


def _recommend(advice: list[Advice], lines: list[_Line], watch: _Watch, probe: Probe) -> list[Advice]:
    """The lines with the layers that the rules of `advise` give them."""
    if any(line.warning in (REORDERED, CONSTANT) for line in advice):
        return advice
    turning = [place for place, line in enumerate(lines) if _orientations(line)]
    kept = [place for place, line in enumerate(advice) if "Drop" not in line.kind]
    # In training, dropout changes the energies, so the place before it is the better one.
    found = []
    for place, (told, line) in enumerate(zip(advice, lines, strict=True)):
        layer = ""
        if turning and place == turning[-1]:
            layer = _orientations(line)
        elif told.warning == NO_OP:
            if place in kept[-1:] and not watch.sorted:
                layer = f"ranked:quantiles={min(SHARES, told.height * told.width)}"
        elif not told.warning and place in kept:
            by_value = line.negative and probe.takes(line.module, lambda maps, _: ranked_pool(maps))
            layer = "ranked" if by_value else "reorder:grid=pixels"
        found.append(told._replace(layer=layer))
    return found


def _orientations(line: _Line) -> str:
    """The layer for the maps of a group convolution; empty if they are none."""
    count, (_, channels, height, width) = getattr(line.module, "orientations", None), line.shape
    if not isinstance(count, int) or count < 4 or count % 4 or channels % count or height != width:
        return ""
    return "orient" if count == 4 else f"orient:orientations={count}"


def _background(probe: Probe) -> str:
    """Empty, "zero" or "constant": what is at the border of all images, if shifting them changes the output."""
    images = next((value for value in probe.arguments if is_maps(value)), None)
    if images is None or min(images.shape[2:]) < 3 or any(is_maps(tensor) for tensor in probe.output):
        return ""
    rows, columns = images[:, :, [0, -1]].flatten(2), images[:, :, :, [0, -1]].flatten(2)
    border = torch.cat([rows, columns], 2)  # b c n
    first = border[:1, :, :1]
    if not bool((border == first).all()) or bool((images == first.unsqueeze(3)).all()) or probe.ignores_shifts():
        return ""
    return "zero" if not bool(first.any()) else "constant"


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


def _print(advice: list[Advice], pool: str, background: str, console: Console) -> None:
    if advice:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("name", no_wrap=True, overflow="fold")  # whole: it is there to be copied
        for column in ("kind", "maps", *(f"grid={grid}" for grid in GRIDS), "advice"):
            table.add_column(column, no_wrap=column in ("maps", "advice"))
        for line in advice:
            size = f"{line.channels}x{line.height}x{line.width}"
            leftovers = (_leftovers(line, grid) for grid in GRIDS)
            table.add_row(escape(line.name or '""'), line.kind, size, *leftovers, _in_short(line))
        console.print(table)
    else:
        console.print("No module returns maps (batch, channels, height, width) with more than one position.")
    for sentence in _conclusions(advice, pool, background):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _leftovers(line: Advice, grid: int) -> str:
    rests = [fit[2:] for fit in line.fits if fit.grid == grid]
    pixels = [line.height * line.width - (line.height - down) * (line.width - right) for down, right in rests]
    return " ".join(map(str, pixels)) or "-"


def _in_short(line: Advice) -> str:
    """Such as "early: 3" or "reorder": what the lines below the table say in full, so that it fits 80 columns."""
    if not line.warning or line.layer.startswith("orient"):
        return line.layer.partition(":")[0]
    warning, _, more = line.warning.removeprefix("already ").removesuffix(" output").partition(": ")
    number = more.partition(" ")[0]
    return f"{warning}: {'1' if number == 'a' else number}" if more else warning


def _conclusions(advice: list[Advice], pool: str, background: str) -> Iterator[str]:
    warnings = {line.warning.split(":")[0] for line in advice}
    reordered = [line.name for line in advice if line.warning == REORDERED]
    if advice:
        yield 'grid=N: pixels left over at levels 1, 2, 3, as far as patches fit; grid="pixels" fits all maps.'
    yield from (f"{warning}: {meaning}" for warning, meaning in MEANINGS.items() if warning in warnings)
    if reordered:
        yield f"A reordering layer is in place already, after {', '.join(reordered)}."
        return
    rules = [*_rules(advice, pool, background)]
    if rules:
        yield "To try, the first one first. These are rules; what was measured is in the README."
        yield from rules
    elif advice and CONSTANT not in warnings:
        yield (
            "No place is free of warnings: flatten the last maps for the classifier instead of pooling them "
            "globally, and reorder them there."
        )


def _rules(advice: list[Advice], pool: str, background: str) -> Iterator[str]:
    """What is recommended, in the order of the rules of `advise`."""
    for line in advice:
        if line.layer.startswith("orient"):
            yield f"  {line.layer} after {line.name}: undoes quarter turns of the image, up to rounding."
            yield f'    insert_after(model, "{line.name}", "{line.layer}")'
    if background:
        yield "  align at the input: undoes shifts over an empty background."
        if background == "constant":
            yield "    That of the example is not zero, as it has to be: subtract it from the images first."
        yield '    model = nn.Sequential(create_layer("align"), model)'
        yield '    "pose" instead of "align" also undoes turns; for training images that have not the turns to come.'
    for line in advice:
        if line.warning == NO_OP and line.layer.startswith("ranked"):
            shares = line.layer.partition("=")[2]
            yield f"  {line.layer} instead of the global pool behind {line.name}{f' ({pool})' if pool else ''}:"
            yield f"    the next layer has to be made for {line.channels} x {shares} numbers then, not {line.channels}."
            if pool:
                yield f'    model.set_submodule("{pool}", create_layer("{line.layer}"))'
    free = [line for line in advice if line.layer and not line.warning and not line.layer.startswith("orient")]
    if free:
        others = ", ".join(line.name for line in reversed(free[-5:-1]))
        yield f"  {free[-1].layer} after {free[-1].name}{f', or after {others}' if others else ''}:"
        yield f'    insert_after(model, "{free[-1].name}", "{free[-1].layer}")'

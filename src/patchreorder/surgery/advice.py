"""`advise`: which modules of a model a reordering layer can follow, and which layer to try first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from patchreorder.layers.ranked_pool import ranked_pool
from patchreorder.operator.functional import Grid
from patchreorder.untrusted import clean

from .feature_maps import (
    ForwardTrace,
    MapModule,
    breaks_without_order,
    is_attention,
    is_convolution,
    trace_forward,
)
from .insertion import check_plain
from .probe import Probe, evaluating, is_maps

GRIDS, LEVELS = (2, 3, 4), (1, 2, 3)
QUANTILES = 16  # of ranked pooling in place of a global pool
NO_OP, EARLY, BRANCH, REORDERED, CONSTANT = "no-op", "early", "branch", "reordered", "constant"
MEANINGS = {
    NO_OP: "shuffling these maps leaves the output unchanged, as before a global pool.",
    EARLY: "so many convolutions follow (or attention), and would see a broken arrangement; the paper found losses.",
    BRANCH: "other maps bypass this module, as in a residual block, and would not match the reordered ones.",
    REORDERED: "a reordering layer follows already.",
    CONSTANT: "the output is the same for other inputs, so no module can be judged.",
}


class Fit(NamedTuple):
    """A setting whose patches fit a feature map, and the rows and columns that they do not cover."""

    grid: Grid
    levels: int
    leftover_rows: int
    leftover_columns: int


class Advice(NamedTuple):
    """The judgement of `advise` on one module."""

    name: str
    kind: str
    channels: int
    height: int
    width: int
    fits: tuple[Fit, ...]
    warning: str  # empty, "no-op", "early: 3" (convolutions follow), "branch", "reordered" or "constant"
    layer: str = ""  # the layer to insert after it, for `insert_after`; with "no-op", the layer in place of the pool


class Advices(list[Advice]):
    """One `Advice` per module in the order of the calls, and what follows from them in a sentence."""

    def __init__(self, advice: Iterable[Advice], sentence: str) -> None:
        super().__init__(advice)
        self.sentence = sentence

    def __repr__(self) -> str:
        return f"<advice on {len(self)} modules: {clean(self.sentence)}>"


def advise(
    model: nn.Module, example: Tensor | tuple[Any, ...], *, table: bool = False, console: Console | None = None
) -> Advices:
    """Print in a sentence whether and where a reordering layer can help, and the code that inserts it.

    The model runs once to find the modules that return feature maps, and again for each of them with its maps shuffled,
    every channel by itself. If the output stays the same up to rounding, reordering is a no-op there. If convolutions
    larger than 1x1, or attention, are called later, it is early (Fig. 5 of the paper). A container that returns the
    output of a module inside it is not listed. The model runs in eval mode without gradients; its modes and torch's
    random state are restored.

    Layers are recommended by these rules, the first one first. They are rules of thumb; measured results are in
    docs/choosing.md.

    1. `orient` after the last group convolution (a module with an attribute `orientations`), if its maps are square.
    2. `align` at the input, if the border of every example image is zero, the output is no feature map, and it changes
       when the images are shifted by a pixel. `pose` if test images are rotated and training images are not.
    3. `ranked:quantiles=16` in place of a global pool after the last maps, with fewer quantiles if the maps have fewer
       positions. The next layer then needs as many times the inputs.
    4. Without a global pool, `reorder:grid=pixels` after the last module without a warning, but not after a dropout.
       `ranked`, which sorts by value and not by energy, if the maps hold negative values and the model accepts its
       output.

    Nothing is recommended if a layer of the family follows a module already, or if the output is constant or maps.
    Transformers are refused: their tokens carry their positions, so that reordering the maps of their first convolution
    breaks them.

    Args:
        model: any plain `nn.Module` that takes images.
        example: the input of the model, ideally a small batch of real images; a tuple holds several arguments.
        table: print all modules, too: their maps, the settings that fit, and warnings.
        console: where to print.

    Returns:
        One `Advice` per module, in the order of the calls; its `sentence` is what is printed first.

    Raises:
        ValueError: the model is a transformer or cannot take the example, the example is empty, or the output has no
            tensors or changes from run to run.
        TypeError: the model is compiled, wrapped, scripted or traced, or an argument is of the wrong type.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    >>> found = advise(model, torch.rand(1, 3, 8, 8), console=Console(quiet=True))
    >>> [(advice.name, advice.height, advice.warning) for advice in found]
    [('0', 6, 'no-op'), ('1', 6, 'no-op')]
    >>> found
    <advice on 2 modules: The network ends in a global pool (2): reordering its maps changes nothing. What is left is \
`unroll` or `align` at the input, or `ranked:quantiles=16` in place of the pool.>
    """
    check_plain(model)
    refuse_transformers(model)
    arguments = example if isinstance(example, tuple) else (example,)
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if not tensors:
        raise TypeError(f"example must be a tensor or a tuple with tensors, got {type(example).__name__}")
    if not all(tensor.numel() for tensor in tensors):
        raise ValueError(f"example is empty: its shape is {[tuple(tensor.shape) for tensor in tensors]}")
    console = console or Console()
    with evaluating(model):
        probe = Probe(model, arguments)
        trace = trace_forward(probe)
        modules = trace.map_modules()
        progress = track(
            modules, "shuffling maps", console=console, transient=True, disable=not console.is_terminal or console.quiet
        )
        advice = [_judge(found, probe, trace) for found in progress]
        if all(entry.warning == NO_OP for entry in advice) and probe.ignores_input():
            advice, background = [entry._replace(warning=CONSTANT) for entry in advice], ""
        else:
            advice, background = _recommend(advice, modules, trace, probe), _background(probe)
        bare = any(
            entry.layer.startswith("ranked:") and _is_output(found, probe)
            for entry, found in zip(advice, modules, strict=True)
        )
    images = [value for value in arguments if is_maps(value)]
    if images and all(bool((value == value[..., :1, :1]).all()) for value in images):
        sentence = "Every pixel of the example images is the same, so that positions cannot matter: give real images."
    else:
        sentence = _sentence(advice, trace, probe, background)
    found = Advices(advice, sentence)
    _print(found, trace.pool, background, console, table=table, bare=bare)
    return found


def refuse_transformers(model: nn.Module) -> None:
    """Raise ValueError if a model has as many attention modules as convolutions larger than 1x1, or more."""
    attention = [name for name, module in model.named_modules() if is_attention(module)]
    convolutions = sum(is_convolution(module) for module in model.modules())
    if attention and len(attention) >= convolutions:
        raise ValueError(
            f"model ({type(model).__name__}) is a transformer, with attention in {clean(attention[0])}: its tokens "
            "carry their positions, and reordering its maps would give them wrong ones. What is left is a layer at the "
            'input: model = nn.Sequential(create_layer("align"), model) undoes shifts over an empty background'
        )


def _judge(found: MapModule, probe: Probe, trace: ForwardTrace) -> Advice:
    _, channels, height, width = found.shape
    later = sum(call > found.first_call for call in (*trace.convolutions, *trace.attention))
    if later and found.calls > 1:  # those of another image, as in a Siamese network, do not count
        later = probe.reaches(found.module, breaks_without_order)
    if found.followed:
        warning = REORDERED
    elif probe.ignores_positions(found.module):
        warning = NO_OP
    elif later:
        warning = f"{EARLY}: {later}"
    else:
        warning = BRANCH if probe.is_bypassed(found.module) else ""
    sides = [(grid, levels, grid**levels) for grid, levels in product(GRIDS, LEVELS)]
    fits = [Fit(grid, levels, height % n, width % n) for grid, levels, n in sides if n <= min(height, width)]
    fits = [Fit("pixels", 1, 0, 0), *fits]
    return Advice(found.name, type(found.module).__name__, channels, height, width, tuple(fits), warning)


def _recommend(advice: list[Advice], modules: list[MapModule], trace: ForwardTrace, probe: Probe) -> list[Advice]:
    """Fill in the layers that the rules of `advise` give."""
    if any(entry.warning == REORDERED for entry in advice):
        return advice
    layers = [""] * len(advice)
    # In training a dropout changes the energies, so a layer goes before it.
    candidates = [number for number, entry in enumerate(advice) if "Drop" not in entry.kind]
    # What is sorted for each channel before a global pool changes which values the layers between see together.
    flat = not probe.returns_maps() and not any(advice[number].warning == NO_OP for number in candidates[-1:])
    for number in candidates:
        entry, found = advice[number], modules[number]
        if flat and not entry.warning:
            by_value = found.negative and probe.accepts(found.module, lambda maps, _: ranked_pool(maps))
            layers[number] = "ranked" if by_value else "reorder:grid=pixels"
        elif entry.warning == NO_OP and number == candidates[-1] and not trace.has_sorting:
            layers[number] = f"ranked:quantiles={min(QUANTILES, entry.height * entry.width)}"
    orient = [(number, layer) for number, found in enumerate(modules) if (layer := _orientation_layer(found))]
    for number, layer in orient[-1:]:
        layers[number] = layer
    return [entry._replace(layer=layer) for entry, layer in zip(advice, layers, strict=True)]


def _is_output(found: MapModule, probe: Probe) -> bool:
    """Whether the output is the pooled maps of a module, a number for each channel, without a layer in between."""
    doubled = probe.run(probe.arguments, found.module, lambda maps, _: 2 * maps)
    pairs = list(zip(doubled, probe.output, strict=True))
    return all(out.shape[1:].numel() == found.shape[1] and torch.equal(own, 2 * out) for own, out in pairs)


def _orientation_layer(found: MapModule) -> str:
    """The layer for the maps of a group convolution; empty for other maps."""
    count, (_, channels, height, width) = getattr(found.module, "orientations", None), found.shape
    if not isinstance(count, int) or count < 4 or count % 4 or channels % count or height != width:
        return ""
    return "orient" if count == 4 else f"orient:orientations={count}"


def _background(probe: Probe) -> str:
    """The value at the border of all images, "zero" or "constant"; empty if it varies or `align` would do nothing."""
    images = next((value for value in probe.arguments if is_maps(value)), None)
    if images is None or min(images.shape[2:]) < 3 or any(is_maps(tensor) for tensor in probe.output):
        return ""
    rows, columns = images[:, :, [0, -1]].flatten(2), images[:, :, :, [0, -1]].flatten(2)
    border = torch.cat([rows, columns], 2)  # b c n
    first = border[:1, :, :1]
    if not bool((border == first).all()) or probe.ignores_shifts():
        return ""
    return "zero" if not bool(first.any()) else "constant"


def _sentence(advice: list[Advice], trace: ForwardTrace, probe: Probe, background: str) -> str:
    """What follows from the advice, the first that applies."""
    pool = trace.pool
    warnings = {entry.warning for entry in advice}
    if CONSTANT in warnings:
        return "The output is the same for other inputs: no module can be judged."
    if REORDERED in warnings:
        after = next(entry.name for entry in advice if entry.warning == REORDERED)
        return f"A reordering layer follows {after} already: nothing is proposed."
    for entry in advice:
        if entry.layer.startswith("orient"):
            return f"Insert `{entry.layer}` after {entry.name}: it undoes rotations by 90 degrees."
    if background:
        return "Put `align` at the input: it undoes shifts over the empty background of these images."
    if not advice:
        return "No module returns feature maps (batch, channels, height, width): there is nothing to reorder."
    for entry in advice:
        if entry.warning == NO_OP and entry.layer:
            average = pool and "Avg" in type(probe.model.get_submodule(pool)).__name__
            kind = f"global {'average' if average else 'pool'}{f' ({pool})' if pool else ''}"
            return (
                f"The network ends in a {kind}: reordering its maps changes nothing. What is left is `unroll` or "
                f"`align` at the input, or `{entry.layer}` in place of the pool."
            )
    free = [entry for entry in advice if entry.layer and not entry.warning]
    if free:
        return f"Insert `{free[-1].layer}` after {free[-1].name}: no convolution follows, and positions matter there."
    if trace.has_sorting:
        return "A reordering layer comes later: nothing is proposed in front of it."
    last = advice[-1]
    if probe.returns_maps():
        return (
            "The output is feature maps, with an answer for each place: reordering would bring the answers to other "
            "places. If a classifier follows these maps, give the network with it."
        )
    if trace.attention and last.warning.startswith(EARLY):
        return (
            f"Attention follows the last maps ({last.name}): its tokens carry their positions, and reordering would "
            "give them wrong ones. What is left is `align` or `unroll` at the input."
        )
    if last.warning == BRANCH:
        return (
            f"No module returns the last maps: other maps bypass {last.name}, and are added in `forward`. Call "
            '`patch_reorder(maps, grid="pixels")` there, behind the sum.'
        )
    if last.warning.startswith(EARLY):
        return f"Convolutions follow every module that returns maps, also the last one ({last.name}): none is proposed."
    return "The last maps are pooled globally: flatten them for the classifier instead, and reorder them before it."


def _print(advice: Advices, pool: str, background: str, console: Console, *, table: bool, bare: bool) -> None:
    console.print(clean(advice.sentence), markup=False, highlight=False, soft_wrap=True)
    if table:
        _print_table(advice, console)
    elif advice:
        more = f"All {len(advice)} modules: advise(model, example, table=True)."
        console.print(more, markup=False, highlight=False, soft_wrap=True)
    for line in _conclusions(advice, pool, background, table=table, bare=bare):
        console.print(clean(line), markup=False, highlight=False, soft_wrap=True)


def _print_table(advice: list[Advice], console: Console) -> None:
    if advice:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("name", no_wrap=True, overflow="fold")  # never shortened, so that it can be copied
        for column in ("kind", "maps", *(f"grid={grid}" for grid in GRIDS), "advice"):
            table.add_column(column, no_wrap=column in ("maps", "advice"))
        for entry in advice:
            size = f"{entry.channels}x{entry.height}x{entry.width}"
            by_layer = not entry.warning or entry.layer.startswith("orient")
            short = entry.layer.partition(":")[0] if by_layer else entry.warning  # the table must fit 80 columns
            table.add_row(
                escape(clean(entry.name) or '""'), entry.kind, size, *(_leftovers(entry, n) for n in GRIDS), short
            )
        console.print(table)


def _leftovers(entry: Advice, grid: int) -> str:
    """The number of pixels outside the patches, for each number of levels that fits."""
    h, w = entry.height, entry.width
    left = [h * w - (h - f.leftover_rows) * (w - f.leftover_columns) for f in entry.fits if f.grid == grid]
    return " ".join(map(str, left)) or "-"


def _conclusions(advice: list[Advice], pool: str, background: str, *, table: bool, bare: bool) -> Iterator[str]:
    warnings = {entry.warning.split(":")[0] for entry in advice}
    if advice and table:
        yield 'grid=N: pixels outside the patches at levels 1, 2, 3, where they fit; grid="pixels" fits all maps.'
        yield from (f"{warning}: {meaning}" for warning, meaning in MEANINGS.items() if warning in warnings)
    if REORDERED in warnings:
        return
    recommendations = [*_recommendations(advice, pool, background, bare=bare)]
    if recommendations:
        yield "Try these, the first one first. They are rules of thumb; measured results are in docs/choosing.md."
        yield from recommendations


def _recommendations(advice: list[Advice], pool: str, background: str, *, bare: bool) -> Iterator[str]:
    """The recommended layers and their code, in the order of the rules of `advise`."""
    for entry in advice:
        if entry.layer.startswith("orient"):
            yield f"  {entry.layer} after {entry.name}: undoes rotations by 90 degrees, up to rounding."
            yield f'    insert_after(model, "{entry.name}", "{entry.layer}")'
    if background:
        yield "  align at the input: undoes shifts over an empty background."
        if background == "constant":
            yield "    The background must be zero, and that of the example is not: subtract it from the images first."
        yield '    model = nn.Sequential(create_layer("align"), model)'
        yield '    "pose" instead of "align" also undoes rotations that the training images do not show.'
    for entry in advice:
        if entry.warning == NO_OP and entry.layer.startswith("ranked"):
            quantiles = entry.layer.partition("=")[2]
            yield f"  {entry.layer} in place of the global pool after {entry.name}{f' ({pool})' if pool else ''}:"
            if bare:
                numbers = f"{entry.channels} x {quantiles} numbers, not {entry.channels}"
                yield f"    no layer follows: the output then has {numbers}."
            else:
                yield f"    the next layer then needs {entry.channels} x {quantiles} inputs, not {entry.channels}."
            if pool:
                yield f'    model.set_submodule("{pool}", create_layer("{entry.layer}"))'
    free = [entry for entry in advice if entry.layer and not entry.warning and not entry.layer.startswith("orient")]
    if free:
        others = ", ".join(entry.name for entry in reversed(free[-5:-1]))
        yield f"  {free[-1].layer} after {free[-1].name}{f', or after {others}' if others else ''}:"
        yield f'    insert_after(model, "{free[-1].name}", "{free[-1].layer}")'

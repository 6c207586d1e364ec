"""What the layers of a network say on the way to its answer, by name, in one forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.registry import FAMILY

LAYERS = 12  # that are watched if none are named; reordering layers and what they are given may add to it
BEFORE = "before "  # and the name of a reordering layer: what that layer is given
# Layers whose output holds the same values as their input, in tests.
_SAME = (nn.Flatten, nn.Unflatten, nn.Identity, nn.modules.dropout._DropoutNd)


class Outputs(NamedTuple):
    """What a network says of a batch."""

    logits: Tensor  # (b, classes)
    layers: dict[str, Tensor]  # of the layers that are watched, (b, ...)
    given: dict[str, Tensor]  # to each `PatchReorder`, (b, c, h, w)


class Watched(Protocol):
    """A network whose layers are watched, in the order in which they answer."""

    layers: Sequence[str]
    reorders: Mapping[str, PatchReorder]

    def __call__(self, images: Tensor) -> Outputs: ...


class Call(NamedTuple):
    """The last call of a layer: its name, whether its output is maps or features, and whether it was overwritten."""

    name: str
    layer: nn.Module
    whole: bool  # a floating-point tensor with a row for each image
    overwritten: bool
    shape: Sequence[int]


class WatchedModule:
    """An nn.Module with hooks; `watch` makes one and takes the hooks off again."""

    def __init__(self, model: nn.Module, layers: Sequence[str], reorders: Mapping[str, PatchReorder]) -> None:
        self.model, self.layers, self.reorders = model, layers, reorders
        self.outputs: dict[str, Tensor] = {}
        self.given: dict[str, Tensor] = {}

    def __call__(self, images: Tensor) -> Outputs:
        self.outputs, self.given = {}, {}
        logits = self.model(images)
        return Outputs(logits, self.outputs, self.given)


@contextmanager
def watch(model: nn.Module, images: Tensor, layers: Sequence[str] | None = None) -> Iterator[WatchedModule]:
    """The model, in the mode for tests, with hooks on its layers; both are as before afterwards.

    A layer that is called several times, as a shared ReLU, is watched at its last call. The output of a layer that the
    next one overwrites (an in-place ReLU) is copied before; where nothing is overwritten nothing is copied.

    Args:
        model: takes images and gives logits.
        images: a few, (b, ...), to see which layers answer, and when.
        layers: names as of `named_modules`, or "before NAME" for what a reordering layer is given; None for those of
            `usual_layers`.

    Raises:
        ValueError: a layer is unknown, was not called, or gives something else than a tensor with a row for each image;
            or the model cannot take the images, or gives something else than logits.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    hooks: list[Any] = []
    try:
        calls = _calls(model, images)
        chosen = usual_layers(list(calls.values())) if layers is None else _asked(model, calls, layers)
        reorders = {call.name: call.layer for call in calls.values() if isinstance(call.layer, PatchReorder)}
        watched = WatchedModule(model, chosen, reorders)
        for name in chosen:
            if name not in calls:
                continue  # "before NAME", which the layer's own hook keeps
            hook = _keeper(watched, name, copy=calls[name].overwritten)
            hooks.append(calls[name].layer.register_forward_hook(hook))
        for call in calls.values():
            if isinstance(call.layer, FAMILY):
                hooks.append(call.layer.register_forward_pre_hook(_taker(watched, call.name)))
        yield watched
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode


def usual_layers(calls: Sequence[Call]) -> list[str]:
    """The layers that are measured if none are named.

    Of every layer with weights what leaves it, behind its normalisation, ReLU and pool: the last output before the
    next layer with weights; of these at most `LAYERS`, evenly spread from the first to the last. Then every reordering
    layer, and what it is given. Side branches (see `on_the_way`) are left out.
    """
    ends: list[str] = []
    begun = ended = False
    single = [call for call in calls if call.whole and not any(call.layer.children())]
    for call, main in zip(single, on_the_way([call.shape for call in single]), strict=True):
        if isinstance(call.layer, _SAME) or not main:
            continue
        weighs = any(weight.dim() > 1 for weight in call.layer.parameters(recurse=False))
        begun = begun or weighs
        if not weighs and ended:
            ends.pop()
        ended = begun and not call.overwritten
        if ended:
            ends.append(call.name)
    chosen = set(spread(ends))
    for call in calls:
        if isinstance(call.layer, FAMILY):
            chosen |= {call.name, BEFORE + call.name}
    return _ordered(calls, chosen)


def on_the_way(shapes: Sequence[Sequence[int]]) -> list[bool]:
    """Whether each of these outputs, (b, ...), in their order, is none of a side branch.

    One without places that comes before one with places tells how to treat maps and is not made of them, as a gate of
    squeeze-and-excitation or the angles of a spatial transformer.

    >>> on_the_way([(1, 8, 5, 5), (1, 8, 1, 1), (1, 8, 5, 5), (1, 8, 1, 1), (1, 10)])
    [True, False, True, True, True]
    """
    places = [len(shape) > 2 and math.prod(shape[2:]) > 1 for shape in shapes]
    last = max((i for i, found in enumerate(places) if found), default=-1)
    return [found or i > last for i, found in enumerate(places)]


def spread(names: Sequence[str]) -> list[str]:
    """At most `LAYERS` of these, evenly from the first to the last."""
    count = min(LAYERS, len(names))
    return [names[round(i * (len(names) - 1) / max(1, count - 1))] for i in range(count)]


def check_logits(logits: Any, images: Tensor) -> None:
    """Raise a ValueError where a network's output is not (b, classes) numbers."""
    if isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() == 2 and len(logits) == len(images):
        return
    shown = f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
    raise ValueError(
        f"the network's output ({shown}) for {len(images)} images must be logits, ({len(images)}, classes) "
        "floating-point numbers: measure a classifier, or wrap the network so that it returns one number for each class"
    )


def _calls(model: nn.Module, images: Tensor) -> dict[str, Call]:
    """The last calls of all layers without layers inside, in their order, from one forward pass."""
    found: dict[str, tuple[nn.Module, Any, int]] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            found.pop(name, None)
            found[name] = module, output, output._version if isinstance(output, Tensor) else 0

        return hook

    hooks = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():  # not in inference mode: what is made there does not count how often it is written to
            logits = model(images)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"the network cannot take images of {'x'.join(map(str, images.shape[1:]))}: "
            f"{' '.join(str(error).split())[:240]}: give images of the size and channels it was made for"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    check_logits(logits, images)
    calls = {}
    for name, (module, output, version) in found.items():
        whole = isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 1
        whole = whole and len(output) == len(images) and math.prod(output.shape) > 0
        overwritten = isinstance(output, Tensor) and output._version != version
        calls[name] = Call(name, module, whole, overwritten, output.shape if whole else ())
    return calls


def _asked(model: nn.Module, calls: Mapping[str, Call], layers: Sequence[str]) -> list[str]:
    for name in layers:
        own = name.removeprefix(BEFORE)
        call = calls.get(own)
        if call is None:
            known = own and own in dict(model.named_modules())
            why = "is not called for the answer" if known else "is none of the network's"
            raise ValueError(f"layer ({name!r}) {why}: choose of {', '.join(calls) or 'none'}")
        if own != name and not isinstance(call.layer, FAMILY):
            raise ValueError(f"layer ({name!r}): only what a reordering layer is given can be measured, {own} is none")
        if not call.whole:
            raise ValueError(f"layer ({name!r}) gives no tensor with a row for each image: choose another one")
    return _ordered(list(calls.values()), set(layers))


def _ordered(calls: Sequence[Call], chosen: set[str]) -> list[str]:
    names = [name for call in calls for name in (BEFORE + call.name, call.name)]
    return [name for name in names if name in chosen]


def _keeper(watched: WatchedModule, name: str, *, copy: bool) -> Callable[..., None]:
    def keep(module: nn.Module, given: Any, output: Tensor) -> None:
        watched.outputs[name] = output.clone() if copy else output

    return keep


def _taker(watched: WatchedModule, name: str) -> Callable[..., None]:
    def take(module: nn.Module, given: tuple[Any, ...]) -> None:
        if name in watched.reorders:
            watched.given[name] = given[0]
        if BEFORE + name in watched.layers:
            watched.outputs[BEFORE + name] = given[0]

    return take

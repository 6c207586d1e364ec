"""Activations of a network's layers by name, recorded in one forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from patchreorder.layers.layer import Layer
from patchreorder.layers.patch_reorder import PatchReorder

MAX_LAYERS = 12  # recorded by default; reordering layers and their inputs come on top
BEFORE = "before "  # followed by the name of a reordering layer: the input of that layer
# In eval mode the output of these layers holds the same values as their input.
_SAME = (nn.Flatten, nn.Unflatten, nn.Identity, nn.modules.dropout._DropoutNd)


class Activations(NamedTuple):
    """A network's output for a batch of images, with the activations of its recorded layers."""

    logits: Tensor  # (b, classes)
    layers: dict[str, Tensor]  # (b, ...)
    reorder_inputs: dict[str, Tensor]  # of every `PatchReorder`, (b, c, h, w)


@dataclass(frozen=True)
class Recorder:
    """Runs a network and returns its `Activations`."""

    layers: Sequence[str]  # names of the recorded layers, in the order in which the network calls them
    reorders: Mapping[str, PatchReorder]  # the network's `PatchReorder` layers by name
    run: Callable[[Tensor], Activations]

    def __call__(self, images: Tensor) -> Activations:
        return self.run(images)


class LayerCall(NamedTuple):
    """The last call of a layer in a forward pass."""

    name: str
    layer: nn.Module
    overwritten: bool  # a later layer changes the output in place
    shape: Sequence[int]  # of the output; () if it is not a floating-point tensor with one row per image


@contextmanager
def record_activations(model: nn.Module, images: Tensor, layers: Sequence[str] | None = None) -> Iterator[Recorder]:
    """Put the model in eval mode and hook its layers; on exit, hooks are removed and modes restored.

    A layer that is called several times, such as a shared ReLU, is recorded at its last call. The output of a layer is
    copied only if a later layer overwrites it, as an in-place ReLU does.

    Args:
        model: maps images to logits.
        images: a few, (b, ...), for a first pass that finds the order of the layers.
        layers: names as in `named_modules`, or "before NAME" (a reordering layer's input); None for `default_layers`.

    Raises:
        ValueError: a layer is unknown, is not called, or does not return a tensor with one row per image; or the model
            rejects the images, or returns something other than logits.
    """
    outputs: dict[str, Tensor] = {}
    inputs: dict[str, Tensor] = {}

    def save_output(name: str, copy: bool, module: nn.Module, args: Any, output: Tensor) -> None:
        outputs[name] = output.clone() if copy else output

    def save_input(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        inputs[name] = args[0]

    def run(images: Tensor) -> Activations:
        logits = model(images)
        found = {name: outputs[name] if name in outputs else inputs[name.removeprefix(BEFORE)] for name in chosen}
        reordered = {name: inputs[name] for name in reorders}
        outputs.clear()
        inputs.clear()
        return Activations(logits, found, reordered)

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        model.eval()
        calls = _calls(model, images)
        chosen = default_layers(list(calls.values())) if layers is None else _check_names(model, calls, layers)
        reorders = {call.name: call.layer for call in calls.values() if isinstance(call.layer, PatchReorder)}
        for name, layer, overwritten, _ in calls.values():
            if name in chosen:
                stack.enter_context(layer.register_forward_hook(partial(save_output, name, overwritten)))
            if isinstance(layer, Layer):
                stack.enter_context(layer.register_forward_pre_hook(partial(save_input, name)))
        yield Recorder(chosen, reorders, run)


def default_layers(calls: Sequence[LayerCall]) -> list[str]:
    """The layers to record by default.

    For every layer with weights, the last output before the next layer with weights: after its normalisation, ReLU and
    pooling. At most `MAX_LAYERS` of these, evenly spaced from the first to the last. Then every reordering layer and
    its input. Side branches (see `on_main_path`) are left out.
    """
    ends: list[str] = []
    begun = ended = False
    leaves = [call for call in calls if call.shape and not any(call.layer.children())]
    for call, main in zip(leaves, on_main_path([call.shape for call in leaves]), strict=True):
        if isinstance(call.layer, _SAME) or not main:
            continue
        has_weights = any(weight.dim() > 1 for weight in call.layer.parameters(recurse=False))
        begun = begun or has_weights
        if not has_weights and ended:
            ends.pop()
        ended = begun and not call.overwritten
        if ended:
            ends.append(call.name)
    chosen = set(evenly_spaced(ends))
    for call in calls:
        if isinstance(call.layer, Layer):
            chosen |= {call.name, BEFORE + call.name}
    return _in_call_order(calls, chosen)


def on_main_path(shapes: Sequence[Sequence[int]]) -> list[bool]:
    """For outputs of these shapes, (b, ...), in call order: whether each is on the path from image to logits.

    An output without spatial extent that precedes one with spatial extent belongs to a side branch, such as the gate
    of squeeze-and-excitation or the angles of a spatial transformer.

    >>> on_main_path([(1, 8, 5, 5), (1, 8, 1, 1), (1, 8, 5, 5), (1, 8, 1, 1), (1, 10)])
    [True, False, True, True, True]
    """
    spatial = [len(shape) > 2 and math.prod(shape[2:]) > 1 for shape in shapes]
    last = max((i for i, found in enumerate(spatial) if found), default=-1)
    return [found or i > last for i, found in enumerate(spatial)]


def evenly_spaced(names: Sequence[str]) -> list[str]:
    """At most `MAX_LAYERS` of the names, evenly spaced from the first to the last."""
    count = min(MAX_LAYERS, len(names))
    return [names[round(i * (len(names) - 1) / max(1, count - 1))] for i in range(count)]


def check_logits(logits: Any, images: Tensor) -> None:
    """Raise ValueError unless a network's output is a floating-point tensor (b, classes)."""
    if isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() == 2 and len(logits) == len(images):
        return
    shown = f"{tuple(logits.shape)} {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
    raise ValueError(
        f"the network's output ({shown}) for {len(images)} images must be logits, ({len(images)}, classes) "
        "floating-point numbers: measure a classifier, or wrap the network so that it returns one number for each class"
    )


def unfit(network: str, images: Tensor, error: Exception) -> ValueError:
    """The error for images that a network rejects."""
    return ValueError(
        f"{network} cannot take images of {'x'.join(map(str, images.shape[1:]))}: "
        f"{' '.join(str(error).split())[:240]}: give images of the size and channels it was made for"
    )


def _calls(model: nn.Module, images: Tensor) -> dict[str, LayerCall]:
    """The last call of every layer, in call order, from one forward pass."""
    found: dict[str, tuple[nn.Module, Any, int]] = {}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        found.pop(name, None)
        found[name] = module, output, output._version if isinstance(output, Tensor) else 0

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.enter_context(module.register_forward_hook(partial(note, name)))
        try:
            with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode have no version counter
                logits = model(images.clone())
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise unfit("the network", images, error) from error
    check_logits(logits, images)
    calls = {}
    for name, (module, output, version) in found.items():
        per_image = isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 1
        per_image = per_image and len(output) == len(images) and output.numel() > 0
        overwritten = isinstance(output, Tensor) and output._version != version
        calls[name] = LayerCall(name, module, overwritten, output.shape if per_image else ())
    return calls


def _check_names(model: nn.Module, calls: Mapping[str, LayerCall], layers: Sequence[str]) -> list[str]:
    for name in layers:
        own = name.removeprefix(BEFORE)
        call = calls.get(own)
        if call is None:
            known = own and own in dict(model.named_modules())
            why = "is not called in the forward pass" if known else "is not a layer of the network"
            raise ValueError(f"layer ({name!r}) {why}: choose from {', '.join(calls) or 'none'}")
        if own != name and not isinstance(call.layer, Layer):
            raise ValueError(f"layer ({name!r}): {BEFORE!r} is for reordering layers, {own} is not one")
        if not call.shape:
            raise ValueError(f"layer ({name!r}) does not return a tensor with one row per image: choose another one")
    return _in_call_order(list(calls.values()), set(layers))


def _in_call_order(calls: Sequence[LayerCall], chosen: set[str]) -> list[str]:
    names = [name for call in calls for name in (BEFORE + call.name, call.name)]
    return [name for name in names if name in chosen]

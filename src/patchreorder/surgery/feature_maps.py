"""Find the modules of a model that return feature maps, by a hook on every module during one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from patchreorder.layers.layer import Layer
from patchreorder.layers.patch_reorder import PatchReorder
from patchreorder.layers.ranked_pool import RankedPool

from .probe import Probe, is_maps


@dataclass(eq=False)
class MapModule:
    """A module that returns feature maps, and what its calls showed."""

    name: str
    module: nn.Module
    shape: torch.Size
    first_call: int  # counted among all calls that return feature maps, or are attention
    calls: int = 0
    inner: MapModule | None = None  # the module inside that returned the very same tensor
    followed: bool = False  # by a layer of the family
    negative: bool = False  # whether some value is


class ForwardTrace:
    """The forward hook: called with every module, in the order of the calls."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.found: dict[nn.Module, MapModule] = {}
        self.convolutions: list[int] = []  # the numbers of their calls
        self.attention: list[int] = []  # and of those of attention
        self.channels_last: set[torch.Size] = set()
        self.last: tuple[Tensor, MapModule] | None = None
        self.calls = 0
        self.has_sorting = False  # a layer that makes the positions of earlier maps irrelevant
        self.pool = ""  # the module that reduces the last maps to one position

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(module, Layer) and self.last is not None and args and args[0] is self.last[0]:
            self.last[1].followed = True
        self.has_sorting |= isinstance(module, (PatchReorder, RankedPool))
        if is_attention(module):
            self.calls += 1
            self.attention.append(self.calls)
        pools = args and is_maps(args[0]) and isinstance(output, Tensor) and not list(module.children())
        if pools and output.shape[:2] == args[0].shape[:2] and output[0, 0].numel() == 1:
            self.pool = self.names.get(module, "")
        if not is_maps(output) or isinstance(module, nn.Identity):
            return
        self.pool = ""
        self.calls += 1
        new = MapModule(self.names.get(module, ""), module, output.shape, self.calls)
        found = self.found.setdefault(module, new)
        found.calls += 1
        found.negative |= bool((output < 0).any())
        if is_convolution(module):
            self.convolutions.append(self.calls)
        normalises = isinstance(module, nn.LayerNorm) and module.normalized_shape == output.shape[3:]
        if isinstance(module, nn.Linear) or (normalises and output.shape[3] != output.shape[1]):
            self.channels_last.add(output.shape)
        if self.last is not None and output is self.last[0]:
            inner = self.last[1]
            if inner is not found and inner.module in set(module.modules()):
                found.inner = inner
        self.last = output, found

    def map_modules(self) -> list[MapModule]:
        """The modules to judge, in the order of their first calls.

        Containers that return the output of a module inside them, layers of the family, modules that the model does not
        list, and outputs with the channels in the last dimension are left out.
        """
        kept: list[MapModule] = []
        for found in reversed(self.found.values()):
            # A module inside that is also called elsewhere is not the same place.
            if found.inner and found.inner.calls == found.calls:
                found.inner.followed |= found.followed
            elif found.module in self.names and not isinstance(found.module, Layer):
                kept.insert(0, found)
        return [found for found in kept if found.shape not in self.channels_last or is_convolution(found.module)]


def trace_forward(probe: Probe) -> ForwardTrace:
    """Run the model of a probe once and record the modules that return feature maps."""
    trace = ForwardTrace(probe.model)
    # A global hook runs before the hooks of insert_after, so a module is seen before the layer inserted after it.
    # It also sees layers that only a hook holds.
    handle = register_module_forward_hook(trace)
    try:
        probe.run(probe.arguments)
    finally:
        handle.remove()
    return trace


def is_convolution(module: nn.Module) -> bool:
    """Whether it is a convolution larger than 1x1, of any class: known by its weight and `kernel_size`."""
    weight, size = getattr(module, "weight", None), getattr(module, "kernel_size", 1)
    return isinstance(weight, Tensor) and weight.dim() == 4 and max(size if isinstance(size, tuple) else (size,)) > 1


def is_attention(module: nn.Module) -> bool:
    """Whether it is attention between tokens: queries, keys and values come from one product, or `qkv` by name."""
    if isinstance(module, nn.MultiheadAttention):
        return True
    if "Attention" not in type(module).__name__:
        return False
    return any(
        name == "qkv" or (isinstance(part, nn.Linear) and part.out_features == 3 * part.in_features)
        for name, part in module.named_children()
    )


def breaks_without_order(module: nn.Module) -> bool:
    """Whether it looks at positions: a convolution larger than 1x1, or attention between tokens."""
    return is_convolution(module) or is_attention(module)

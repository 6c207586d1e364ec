"""Insert a layer after a module of any model, by name, and remove it again.

No existing module moves and no name changes, so old checkpoints still load with `strict=True`. A `Sequential` gets the
layer as its last child. Any other module gets it as a child that its own code does not call, and a forward hook that
does.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from patchreorder.layers.registry import create_layer

AnyModule = TypeVar("AnyModule", bound=nn.Module)
WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")
CHILD_ITERATORS = {"children", "named_children", "modules", "named_modules", "_modules"}
# The attribute of a Sequential that names the children which insert_after appended.
APPENDED = "_inserted_layers"
OVERRIDDEN = ("_get_name", "train")  # methods of a module whose layers only hooks hold


def insert_after(model: AnyModule, name: str, layer: nn.Module | str) -> AnyModule:
    """Insert a layer after the module of that name, in place: every output of the module goes through the layer.

    A module with several names is one module, and gets the layer under all of them. Several layers after one module run
    in the order of insertion. One layer inserted after several modules is shared, with its parameters.

    Args:
        model: any plain `nn.Module`; compile, wrap, trace or export it afterwards.
        name: as in `model.named_modules()`, such as "features.12"; "" is the model itself.
        layer: a module, usually a `PatchReorder`, or the name of a layer such as "reorder:grid=pixels" or
            "ranked:quantiles=16" (see `create_layer`). It becomes the child "reorder" (or "reorder_1", ...) of the
            module, unless the module's own code iterates over its children: then only a hook holds the layer.

    Returns:
        The same model.

    Raises:
        ValueError: no module or no layer has that name, the module is never called, or it cannot hold the layer.
        TypeError: the model is compiled, wrapped, scripted or traced, or an argument is of the wrong type;
            when the model runs: the module returns something other than one tensor.

    >>> insert_after(nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2)), "1", "reorder:grid=pixels")
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (1): MaxPool2d(
        kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False
        (reorder): PatchReorder(grid='pixels')
      )
    )
    """
    target = _find(model, name)
    layer = create_layer(layer) if isinstance(layer, str) else layer
    _check(layer, target, name)
    if _runs_as_sequential(target):
        vars(target)[APPENDED] = [*_appended(target), _add_child(target, layer)]
    elif _iterates_over_children(target):
        if [*layer.parameters(), *layer.buffers()]:
            raise ValueError(
                f"{_label(name)} ({type(target).__name__}) iterates over its children, so a layer with parameters or "
                "buffers cannot become one of them: choose a module inside or around it"
            )
        _LayerHook(_label(name), layer).register(target)
        vars(target).update({method: getattr(_Overrides(target), method) for method in OVERRIDDEN})
    else:
        _hooks(target)  # drops stale hooks before their names are used again
        _LayerHook(_label(name), _add_child(target, layer)).register(target)
    return model


def remove_after(model: nn.Module, name: str) -> list[nn.Module]:
    """Remove all layers that `insert_after` inserted after the module of that name, in place.

    Args:
        model: a model with inserted layers, or a copy of one.
        name: the name that was passed to `insert_after`.

    Returns:
        The layers, in the order in which they ran.

    Raises:
        ValueError: no module has that name, or nothing was inserted after it.

    >>> model = insert_after(nn.Sequential(nn.ReLU()), "0", nn.Dropout())
    >>> remove_after(model, "0"), model
    ([Dropout(p=0.5, inplace=False)], Sequential(
      (0): ReLU()
    ))
    """
    target = _find(model, name)
    hooks, children = _hooks(target), _appended(target)
    if not hooks and not children:
        others = [_label(other) for other, module in model.named_modules() if _hooks(module) or _appended(module)]
        raise ValueError(f"no layer is inserted after {_label(name)}, only after {', '.join(others) or 'nothing'}")
    layers = [getattr(target, child) for child in children]
    for hook in hooks:
        hook.handle.remove()
        layers.append(hook.layer_of(target))
        children += [hook.layer] if isinstance(hook.layer, str) else []
    for child in children:
        delattr(target, child)
    for attribute in (APPENDED, *OVERRIDDEN):
        vars(target).pop(attribute, None)
    return layers


def check_plain(model: nn.Module) -> None:
    """Raise TypeError if the model, or a module in it, is compiled, wrapped, scripted or traced.

    A compiled model ignores new hooks, so an inserted layer would silently not run.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {_describe(model)}")
    for name, module in model.named_modules():
        # By name: importing these classes takes a second, and a model of such a class has imported it already.
        kinds = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")]
        state = next((f"wrapped in {kind}" for kind in WRAPPERS if kind in kinds), "")
        if isinstance(module, torch.jit.ScriptModule):
            state = "scripted or traced"
        elif module._compiled_call_impl or hasattr(module.forward, "get_compiler_config") or "OptimizedModule" in kinds:
            state = "compiled"
        if state:
            raise TypeError(f"{_label(name)} is {state}: use the plain model, before it is {state}")


class _LayerHook:
    """The forward hook that runs a layer on the output of a module.

    It refers to the layer by its name in the module, so that the hook of a copied or replicated module runs the copy.
    It is a class at module level, without closures, because it is pickled with the model.
    """

    def __init__(self, label: str, layer: str | nn.Module) -> None:
        self.label, self.layer = label, layer

    def register(self, module: nn.Module) -> None:
        # The handle reserves the hook's number when a pickled model is loaded. Without it, a hook that is registered
        # later could get the same number and silently replace this one.
        self.handle = module.register_forward_hook(self)

    def layer_of(self, module: nn.Module) -> Any:
        return getattr(module, self.layer, None) if isinstance(self.layer, str) else self.layer

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        layer = self.layer_of(module)
        if layer is None:  # the child was deleted by hand, which removes the layer
            return output
        if not isinstance(output, (Tensor, fx.Proxy)):
            raise TypeError(
                f"{self.label} returned {_describe(output)}, not a tensor, so {type(layer).__name__} cannot "
                "follow it: insert it after a module that returns one tensor"
            )
        return layer(output)


class _Overrides:
    """Methods of a module that make `print` and `train` reach layers which are not its children."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def _get_name(self) -> str:
        layers = [repr(hook.layer) for hook in _hooks(self.module)]
        return ", then ".join([type(self.module)._get_name(self.module), *layers])

    def train(self, mode: bool = True) -> nn.Module:
        for hook in _hooks(self.module):
            hook.layer_of(self.module).train(mode)
        return type(self.module).train(self.module, mode)


def _find(model: nn.Module, name: str) -> nn.Module:
    check_plain(model)
    if not isinstance(name, str):
        raise TypeError(f"name must be a string such as 'features.12', got {_describe(name)}")
    modules = dict(model.named_modules(remove_duplicate=False))
    if name in modules:
        return modules[name]
    names = [known for known in modules if known]
    near = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    some = f"nearest: {', '.join(near)}" if near else f"it has: {', '.join(names[:8])}"
    raise ValueError(f"the model has no module {name!r}; {some if names else 'it has no submodules'}")


def _check(layer: nn.Module, target: nn.Module, name: str) -> None:
    if not isinstance(layer, nn.Module):
        raise TypeError(f"layer must be an nn.Module such as PatchReorder(), or its name, got {_describe(layer)}")
    if any(inner is target for inner in layer.modules()):
        raise ValueError(f"the layer contains {_label(name)}, so it would call itself without end")
    if type(target).forward is nn.Module.forward and "forward" not in vars(target):
        children = ", ".join(f"{name}.{child}".lstrip(".") for child, _ in target.named_children())
        raise ValueError(
            f"{_label(name)} is a {type(target).__name__}, which is never called itself: "
            f"choose a module in it ({children or 'it has none'})"
        )


def _runs_as_sequential(module: nn.Module) -> bool:
    return type(module).forward is nn.Sequential.forward and "forward" not in vars(module)


def _iterates_over_children(module: nn.Module) -> bool:
    """Whether its forward seems to call all of its children, and so would call a new one."""
    if isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        return True
    code = getattr(inspect.unwrap(module.forward), "__code__", None)
    return code is not None and not CHILD_ITERATORS.isdisjoint(_names_in(code))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # comprehensions and inner functions
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _add_child(module: nn.Module, layer: nn.Module) -> str:
    name, number = "reorder", 0
    while hasattr(module, name):
        number += 1
        name = f"reorder_{number}"
    module.add_module(name, layer)
    return name


def _appended(module: nn.Module) -> list[str]:
    return [child for child in vars(module).get(APPENDED, ()) if child in module._modules]


def _hooks(module: nn.Module) -> list[_LayerHook]:
    """Our hooks on a module. Those whose child was deleted by hand are removed: its name may be used again."""
    hooks = [hook for hook in module._forward_hooks.values() if isinstance(hook, _LayerHook)]
    for hook in hooks:
        if hook.layer_of(module) is None:
            hook.handle.remove()
    return [hook for hook in hooks if hook.layer_of(module) is not None]


def _label(name: str) -> str:
    return f"module {name!r}" if name else "the model"


def _describe(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__

"""Activations of inner layers of any network, by the names of its modules; alone, or pooled and joined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .pools import check_pool_fits, create_pool


def activations(model: nn.Module, images: Tensor, *, names: Collection[str], inputs: bool = False) -> list[Tensor]:
    """Outputs of modules of a network in one forward pass, or their inputs.

    Of a module that is called more than once the last call counts.

    Args:
        model: the network.
        images: its input.
        names: of the modules, as in `named_modules`.
        inputs: return the first input of each module instead of its output.

    Raises:
        ValueError: a module is not called.

    >>> activations(nn.Sequential(nn.ReLU(), nn.Flatten()), torch.tensor([[[-1.0, 2.0]]]), names=["0"])
    [tensor([[[0., 2.]]])]
    """
    found: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[..., None]:
        def store(module: nn.Module, given: tuple[Tensor, ...], output: Any = None) -> None:
            found[name] = (given[0] if inputs else output).clone()  # the next module may work in place

        return store

    modules = {name: model.get_submodule(name) for name in names}
    handles = [
        module.register_forward_pre_hook(hook(name)) if inputs else module.register_forward_hook(hook(name))
        for name, module in modules.items()
    ]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    for name in modules:
        if name not in found:
            raise ValueError(f"layer ({name!r}) is not called in the forward pass of {type(model).__name__}")
    return [found[name] for name in names]


class LayerActivation(nn.Module):
    """The network up to one of its modules: the output of that module, or its input.

    Args:
        model: the network; it is not copied.
        name: of the module, as in `named_modules`.
        inputs: give the module's input instead of its output.

    Raises:
        ValueError: the network has no such module.

    >>> LayerActivation(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)), "0")(torch.ones(1, 2, 1)).shape
    torch.Size([1, 2])
    """

    def __init__(self, model: nn.Module, name: str, *, inputs: bool = False) -> None:
        super().__init__()
        _check_module(model, name)
        self.model, self.name, self.inputs = model, name, inputs

    def forward(self, images: Tensor) -> Tensor:
        return activations(self.model, images, names=[self.name], inputs=self.inputs)[0]

    def extra_repr(self) -> str:
        return f"name={self.name!r}" + (", inputs=True" if self.inputs else "")


class PooledLayers(nn.Module):
    """Activations of several modules of a network, each pooled, as one vector in which every layer has equal weight.

    The pooled values of a layer are divided by the sum of their magnitudes. So the signed square root of a descriptor
    gives every layer unit length, whatever the number and the size of its values. A layer of zeros stays zero.

    Shape:
        images: what the network takes; to (batch, dimensions), float32. The maps of the layers may differ in size.

    Args:
        model: the network; it is not copied.
        layers: names of the layers in messages -> names of their modules, as in `named_modules`.
        pool: see `create_pool`; every layer has its own.

    Raises:
        ValueError: there is no such module or pool; in the forward pass: the pool does not fit.

    >>> network = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    >>> pooled = PooledLayers(network, {"all": "0", "largest": "1"}, pool="flatten")
    >>> pooled(torch.tensor([[[[1.0, 3.0], [-5.0, 0.0]]]]))
    tensor([[0.2500, 0.7500, 0.0000, 0.0000, 1.0000]])
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, str], *, pool: str) -> None:
        super().__init__()
        for name in layers.values():
            _check_module(model, name)
        if not pool:
            joined = "+".join(layers)
            raise ValueError(f"layers ({joined!r}) need a pool: name it behind them, as in {joined}/gap")
        self.model, self.layers, self.pool = model, dict(layers), pool
        self.pools = nn.ModuleList(create_pool(pool) for _ in layers)

    def forward(self, images: Tensor) -> Tensor:
        parts = []
        maps_of_layers = activations(self.model, images, names=self.layers.values())
        for name, maps, pool in zip(self.layers, maps_of_layers, self.pools, strict=True):
            check_pool_fits(self.pool, maps, source=name)
            try:
                pooled = pool(maps)
            except ValueError as error:
                raise ValueError(f"pool ({self.pool!r}) does not fit {name}: {error}") from None
            parts.append(F.normalize(pooled.float(), p=1))
        return torch.cat(parts, 1)

    def extra_repr(self) -> str:
        return f"layers={'+'.join(self.layers.values())!r}, pool={self.pool!r}"


def _check_module(model: nn.Module, name: str) -> None:
    names = [known for known, _ in model.named_modules() if known]
    if name not in names:
        raise ValueError(f"layer ({name!r}) must be a module of {type(model).__name__}: {', '.join(names)}")

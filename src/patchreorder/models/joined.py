"""`Joined`: a sequence of layers whose outputs are pooled in several places and joined to one vector."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Joined(nn.Module):
    """Layers in sequence. The outputs of some of them are pooled and concatenated, with equal weight.

    The values of each pool are scaled to the root mean square of the last pool's, image by image.

    Shape:
        x: the input of the first layer; to (batch, values of all pools).

    Args:
        layers: they keep their names; those behind the last pooled one are left out.
        pools: names of layers -> the pools of their outputs.

    Raises:
        ValueError: there are no pools, or there is no layer of such a name.

    >>> both = Joined(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), {"0": nn.AvgPool2d(2), "1": nn.Identity()})
    >>> both(torch.tensor([[[[1.0, 3.0], [-5.0, 0.0]], [[7.0, 1.0], [0.0, 0.0]]]])).round(decimals=2)
    tensor([[3.4100, 6.8100, 3.0000, 7.0000]])
    """

    def __init__(self, layers: nn.Sequential, pools: Mapping[str, nn.Module]) -> None:
        super().__init__()
        names = [name for name, _ in layers.named_children()]
        unknown = [name for name in pools if name not in names]
        if unknown or not pools:
            raise ValueError(f"pools ({', '.join(unknown) or 'none'}) must be for layers: {', '.join(names)}")
        self.order = names[: max(names.index(name) for name in pools) + 1]
        for name in self.order:
            self.add_module(name, layers.get_submodule(name))
        self.pools = nn.ModuleDict(pools)

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for name in self.order:
            x = self.get_submodule(name)(x)
            if name in self.pools:
                parts.append(self.pools[name](x).flatten(1))
        last = parts[-1].norm(dim=1, keepdim=True) / parts[-1].shape[1] ** 0.5
        scaled = [F.normalize(part, dim=1) * (last * part.shape[1] ** 0.5) for part in parts[:-1]]
        return torch.cat([*scaled, parts[-1]], 1)

"""The layer: `PatchReorder` checks and keeps the arguments of `patch_reorder` and calls it."""

from __future__ import annotations

import torch.fx
from torch import Tensor, nn

from patchreorder.operator.functional import Energy, Grid, Settings, patch_reorder

torch.fx.wrap("patch_reorder")  # one node in a symbolic trace, which cannot look at sizes


class PatchReorder(nn.Module):
    """Sort the patches of every feature map by their energy; no parameters (see `patch_reorder`).

    Shape:
        Input and output: (batch, channels, height, width) or (channels, height, width).

    Args:
        grid: patches a side at each level, or "pixels" for one pixel a patch on maps of any size.
        levels: how many times patches are divided again.
        energy: "l2" (sum of squares) or "l1" (sum of magnitudes).
        per_channel: rank every channel by itself; False moves all channels together.
        descending: strongest first.

    Raises:
        ValueError: an argument is out of range; when called, the map is smaller than the patches.

    >>> import torch
    >>> layer = PatchReorder(grid="pixels")
    >>> layer(torch.tensor([[[[1.0, 4.0, 2.0]]]]))
    tensor([[[[4., 2., 1.]]]])
    >>> layer
    PatchReorder(grid='pixels', levels=1, energy='l2', per_channel=True, descending=True)
    """

    def __init__(
        self,
        grid: Grid = 2,
        levels: int = 1,
        energy: Energy = "l2",
        per_channel: bool = True,
        descending: bool = True,
    ) -> None:
        super().__init__()
        checked = Settings(grid, levels, energy, per_channel, descending).check()
        self.grid, self.levels, self.energy, self.per_channel, self.descending = checked

    def forward(self, x: Tensor) -> Tensor:
        return patch_reorder(
            x,
            grid=self.grid,
            levels=self.levels,
            energy=self.energy,
            per_channel=self.per_channel,
            descending=self.descending,
        )

    def extra_repr(self) -> str:
        return (
            f"grid={self.grid!r}, levels={self.levels}, energy={self.energy!r}, "
            f"per_channel={self.per_channel}, descending={self.descending}"
        )

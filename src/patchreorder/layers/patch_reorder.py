"""`PatchReorder`: the operator of the paper as a layer."""

from __future__ import annotations

from patchreorder.operator.functional import PatchReorderOptions, patch_reorder
from patchreorder.operator.options import constructor

from .layer import Layer


class PatchReorder(Layer[PatchReorderOptions]):
    """Sort the patches of every feature map by their energy; no parameters (see `patch_reorder`).

    Shape:
        Input and output: (batch, channels, height, width) or (channels, height, width).

    Raises:
        ValueError: an argument is out of range; when called, the map is smaller than the patches.

    >>> import torch
    >>> layer = PatchReorder(grid="pixels")
    >>> layer(torch.tensor([[[[1.0, 4.0, 2.0]]]]))
    tensor([[[[4., 2., 1.]]]])
    >>> layer
    PatchReorder(grid='pixels')
    """

    function = staticmethod(patch_reorder)

    @constructor(PatchReorderOptions)
    def __init__(self, options: PatchReorderOptions) -> None:
        super().__init__(options)

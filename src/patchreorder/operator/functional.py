"""`patch_reorder` and `undo_reorder`: arguments are checked here; `dispatch` chooses the form that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from .dispatch import PatchGrid, permute_patches, reorder
from .options import Count, Must, Options, takes_and_returns_order

Grid = Annotated[int, Must("2 or more patches a side, or 'pixels'", lambda value: value >= 2)] | Literal["pixels"]
Energy = Literal["l1", "l2"]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class PatchReorderOptions(Options):
    """Options of `patch_reorder` and `PatchReorder`.

    Args:
        grid: patches a side at each level, or "pixels": every pixel is a patch, on maps of any size.
        levels: how many times patches are divided again.
        energy: of a patch: "l2", the sum of squares, or "l1", the sum of magnitudes.
        per_channel: rank every channel by itself; False ranks by the sum over channels, and all move together.
        descending: strongest first; False puts the weakest first.
    """

    grid: Grid = 2
    levels: Count = 1
    energy: Energy = "l2"
    per_channel: bool = True
    descending: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid == "pixels" and self.levels != 1:
            raise ValueError(f"levels ({self.levels}) must be 1 with grid='pixels': a pixel cannot be divided")

    def patch_grid(self, height: int, width: int) -> PatchGrid:
        """The unit patches of maps of this size; ValueError if they do not fit."""
        if self.grid == "pixels":
            if height < 1 or width < 1:
                raise ValueError(f"x has no pixels to reorder: its maps are {height}x{width}")
            rows, columns = height, width
        else:
            # Beyond, there are more than 2**32 patches a side, which fit no map; a power of any length may take hours.
            few = self.levels * self.grid.bit_length() <= 64
            rows = columns = self.grid**self.levels if few else 0
            if not few or rows > min(height, width):
                raise ValueError(
                    f"grid ({self.grid}) ** levels ({self.levels}){f' = {rows}' if few else ''} patches a side do not "
                    f"fit a {height}x{width} map: lower grid or levels, or use grid='pixels'"
                )
        return PatchGrid(rows, columns, self.levels, self.energy, self.per_channel, self.descending)


def check_maps(name: str, x: Tensor) -> None:
    """Raise TypeError or ValueError unless x is a dense tensor of floats, (b, c, h, w) or (c, h, w)."""
    _check_dense(name, x)
    if x.dim() not in (3, 4):
        raise ValueError(
            f"{name} must have shape (batch, channels, height, width) or (channels, height, width), "
            f"got {tuple(x.shape)}"
        )
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}")


def _check_dense(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.layout is not torch.strided or x.is_nested:
        kind = x.layout if x.layout is not torch.strided else "a nested tensor"
        raise TypeError(f"{name} must be a dense (strided) tensor, got {kind}")


@takes_and_returns_order(PatchReorderOptions)
def patch_reorder(x: Tensor, options: PatchReorderOptions) -> tuple[Tensor, Tensor]:
    """Sort the patches of every feature map by their energy (Eqs. 5 and 6 of the paper).

    Each map is divided into `grid ** levels` patches a side. At every level, from coarse to fine, the patches inside
    one patch of the level above are placed in raster order, the strongest first. Pixels inside the smallest patches
    keep their arrangement, and pixels that no patch covers keep their place. Ties keep their order, and NaN goes first.
    The gradient is the inverse permutation (Eq. 7).

    Shape:
        x: (batch, channels, height, width) or (channels, height, width); the result has its shape, type and layout.
        order: (batch, channels, rows, columns), with one channel if `per_channel` is False.

    Args:
        return_order: also return the permutation: the source patch (raster index) of each place, uint8 up to
            256 patches and int32 above, for `undo_reorder`.

    Raises:
        ValueError: more patches than pixels, or an argument out of range.
        TypeError: an argument, or the tensor, is of the wrong type.

    >>> x = torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]])
    >>> patch_reorder(x)
    tensor([[[[3., 2.],
              [1., 0.]]]])
    """
    check_maps("x", x)
    patches = options.patch_grid(x.shape[-2], x.shape[-1])
    if x.dim() == 4:
        return reorder(x, patches)
    z, order = reorder(x.unsqueeze(0), patches)
    return z.squeeze(0), order.squeeze(0)


def undo_reorder(z: Tensor, order: Tensor) -> Tensor:
    """Move the patches back: `undo_reorder(*patch_reorder(x, return_order=True))` equals x bit for bit.

    Shape:
        z: (batch, channels, height, width) or (channels, height, width); the result has its shape, type and layout.
        order: as `patch_reorder` returned it.

    Args:
        z: reordered maps, or a tensor of their shape, such as a mask.
        order: the source patch of each place.

    Raises:
        ValueError: the order does not fit z, or is not a permutation.
        TypeError: z is not a floating-point tensor, or order not uint8 or int32.

    >>> x = torch.rand(2, 3, 8, 8)
    >>> z, order = patch_reorder(x, levels=2, return_order=True)
    >>> torch.equal(undo_reorder(z, order), x)
    True
    """
    check_maps("z", z)
    _check_dense("order", order)
    if order.dtype not in (torch.uint8, torch.int32):
        raise TypeError(f"order must be uint8 or int32, as patch_reorder returns it, got {order.dtype}")
    fits = (
        order.dim() == z.dim()
        and order.shape[:-3] == z.shape[:-3]
        and order.shape[-3] in (1, z.shape[-3])
        and 1 <= order.shape[-2] <= z.shape[-2]
        and 1 <= order.shape[-1] <= z.shape[-1]
    )
    if not fits:
        raise ValueError(f"order of shape {tuple(order.shape)} does not fit z of shape {tuple(z.shape)}")
    if order.device != z.device:
        raise ValueError(f"order is on {order.device}, z on {z.device}: move one of them")
    if z.dim() == 3:
        return permute_patches(z.unsqueeze(0), order.unsqueeze(0), inverse=True, check=True).squeeze(0)
    return permute_patches(z, order, inverse=True, check=True)

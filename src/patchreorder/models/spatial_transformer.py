"""The spatial transformer: a small network chooses a warp of the image (Jaderberg et al., 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IDENTITY = {"affine": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), "projective": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)}
HORIZON = 0.01  # the least magnitude of a projective denominator; see projective_grid


def projective_grid(theta: Tensor, size: Sequence[int]) -> Tensor:
    """The sampling grid of a projective transformation for `F.grid_sample`, as `F.affine_grid` for an affine one.

    Pixel (x, y) is read at (u / w, v / w) where (u, v, w) = theta (x, y, 1); both in [-1, 1] from edge to edge of the
    image (align_corners=False). On the line w = 0, the horizon, that is infinitely far. Near it w is clamped to 0.01 or
    -0.01 and has no gradient: such a pixel is still read far outside unless u and v vanish with w, and neither the grid
    nor its gradient becomes infinite or NaN for any theta that occurs in training.

    Shape:
        theta: (batch, 3, 3), or (batch, 8), its first eight entries, the ninth being 1.
        result: (batch, height, width, 2); float32 where theta is float16 or bfloat16, too coarse for pixel positions.

    Args:
        theta: maps positions in the result to positions in the image.
        size: (batch, channels, height, width) of the result.

    Raises:
        ValueError: theta or size has another shape.

    >>> theta = torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    >>> projective_grid(theta, (1, 1, 2, 2))[0, 0]  # the centres of the pixels of the first row
    tensor([[-0.5000, -0.5000],
            [ 0.5000, -0.5000]])
    """
    if theta.shape[1:] not in ((8,), (3, 3)):
        raise ValueError(f"theta must have shape (batch, 8) or (batch, 3, 3), got {tuple(theta.shape)}")
    if len(size) != 4 or size[0] != theta.shape[0]:
        raise ValueError(f"size ({tuple(size)}) must be (batch, channels, height, width) with batch {theta.shape[0]}")
    height, width = size[2], size[3]
    theta = theta.to(torch.promote_types(theta.dtype, torch.float32))
    if theta.dim() == 2:
        theta = F.pad(theta, (0, 1), value=1.0).view(-1, 3, 3)
    x = (torch.arange(width, dtype=theta.dtype, device=theta.device) * 2 + 1) / width - 1
    y = (torch.arange(height, dtype=theta.dtype, device=theta.device) * 2 + 1) / height - 1
    x, y = x.expand(height, width), y.unsqueeze(1).expand(height, width)
    positions = torch.stack([x, y, torch.ones_like(x)]).view(3, height * width)
    with torch.autocast(theta.device.type, enabled=False):
        u, v, w = torch.matmul(theta, positions).unbind(1)  # batch height*width
    w = torch.where(w < 0, w.clamp(max=-HORIZON), w.clamp(min=HORIZON))
    return torch.stack([u / w, v / w], dim=-1).view(-1, height, width, 2)


class Localisation(nn.Sequential):
    """The localisation network of the paper's ST-CNN: two convolutions and a fully connected layer, 20 wide each.

    Max-pooling 2x2, convolution 5x5, max-pooling 2x2, ReLU, convolution 5x5, ReLU, fully connected, ReLU. Pools round
    up, so that the fully connected layer gets 5x5 maps of a 42x42 image and 1x1 maps of a 28x28 image.

    Shape:
        x: (batch, in_channels, in_size, in_size) to (batch, 20).

    Args:
        in_channels: of the image.
        in_size: side of the image, 25 or more.

    Raises:
        ValueError: the image is too small for both convolutions.

    >>> Localisation(1, 28)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 20])
    """

    features = 20

    def __init__(self, in_channels: int, in_size: int) -> None:
        width, side = self.features, -(-(-(-in_size // 2) - 4) // 2) - 4
        if side < 1:
            raise ValueError(f"in_size ({in_size}) must be 25 or more for two pools and two convolutions")
        super().__init__(
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(in_channels, width, 5),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 5),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(width * side * side, width),
            nn.ReLU(inplace=True),
        )


class SpatialTransformer(nn.Module):
    """Warp each image by a transformation that a network chooses for it; the identity before training.

    Bilinear sampling, zero outside the image. Positions are computed in float32 or wider, also under autocast.

    Shape:
        Input and output: (batch, channels, height, width), of the same type and layout.

    Args:
        localisation: from the image to (batch, features), such as `Localisation`.
        transform: "affine" (6 numbers) or "projective" (8, see `projective_grid`).
        features: of the localisation, by default `localisation.features`; a linear layer, `head`, maps them to the
            transformation.

    Raises:
        ValueError: an argument is out of range.

    >>> layer = SpatialTransformer(Localisation(1, 28), transform="projective")
    >>> x = torch.rand(2, 1, 28, 28)
    >>> torch.allclose(layer(x), x, atol=1e-5)
    True
    """

    def __init__(self, localisation: nn.Module, *, transform: str = "affine", features: int | None = None) -> None:
        super().__init__()
        if transform not in IDENTITY:
            raise ValueError(f"transform ({transform!r}) must be one of {sorted(IDENTITY)}")
        if features is None:
            features = getattr(localisation, "features", None)
        if not isinstance(features, int) or features < 1:
            raise ValueError(f"features ({features}) must be the number of outputs of localisation, 1 or more")
        self.localisation = localisation
        self.head = nn.Linear(features, len(IDENTITY[transform]))
        self.transform = transform
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the head return the identity for any image."""
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor(IDENTITY[self.transform]))

    def grid(self, x: Tensor) -> Tensor:
        """The sampling grid for x, (batch, height, width, 2), as `F.grid_sample` takes it."""
        features = self.localisation(x)
        with torch.autocast(x.device.type, enabled=False):
            theta = self.head(features.to(self.head.weight.dtype))
            if self.transform == "projective":
                return projective_grid(theta, x.shape)
            theta = theta.view(-1, 2, 3).to(torch.promote_types(theta.dtype, torch.float32))
            return F.affine_grid(theta, list(x.shape), align_corners=False)

    def forward(self, x: Tensor) -> Tensor:
        grid = self.grid(x)
        warped = F.grid_sample(x.to(grid.dtype), grid, padding_mode="zeros", align_corners=False).to(x.dtype)
        # grid_sample returns contiguous maps, whatever the layout of x.
        return warped.to(memory_format=torch.channels_last) if x.stride(1) == 1 else warped

    def extra_repr(self) -> str:
        return f"transform={self.transform!r}"

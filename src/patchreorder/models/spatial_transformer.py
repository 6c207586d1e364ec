"""The spatial transformer: a small network looks at the image and says how to warp it (Jaderberg et al., 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IDENTITY = {"affine": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), "projective": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)}
HORIZON = 0.01  # the least magnitude of a projective denominator; see projective_grid


def projective_grid(theta: Tensor, size: Sequence[int]) -> Tensor:
    """Where a projective transformation reads each pixel, for `F.grid_sample`; beside torch's `F.affine_grid`.

    Pixel (x, y) reads at (u / w, v / w) where (u, v, w) = theta (x, y, 1); both in [-1, 1] from edge to edge of the
    image (align_corners=False). On the line w = 0, the horizon, that is infinitely far. There w is kept at least 0.01
    away from 0, with its sign, and passes no gradient: such a pixel still reads far outside unless u and v vanish with
    w, and neither the grid nor its gradient can be infinite or NaN for any theta that a network in training would give.

    Shape:
        theta: (batch, 3, 3), or (batch, 8), its first eight entries, the ninth being 1.
        result: (batch, height, width, 2); float32 where theta is float16 or bfloat16, too coarse for pixel positions.

    Args:
        theta: maps places of the result to places in the image.
        size: (batch, channels, height, width) of the result.

    Raises:
        ValueError: the shapes are not these.

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
    places = torch.stack([x, y, torch.ones_like(x)]).view(3, height * width)
    with torch.autocast(theta.device.type, enabled=False):
        u, v, w = torch.matmul(theta, places).unbind(1)  # batch height*width
    w = torch.where(w < 0, w.clamp(max=-HORIZON), w.clamp(min=HORIZON))
    return torch.stack([u / w, v / w], dim=-1).view(-1, height, width, 2)


class Localisation(nn.Sequential):
    """The network that looks at the digit in the paper's ST-CNN: two convolutions and a fully connected layer.

    Max-pooling 2x2, convolution 5x5, max-pooling 2x2, ReLU, convolution 5x5, ReLU, fully connected, ReLU. Pools keep
    what is left over at the border (ceil mode), so a 42x42 image ends as 5x5, a 28x28 image as 1x1, before the last.

    Shape:
        x: (batch, in_channels, in_size, in_size) to (batch, features).

    Args:
        in_channels: of the image.
        in_size: side of the image, 25 or more.
        widths: of the two convolutions and the fully connected layer; the last is `features`.

    Raises:
        ValueError: the image is too small for both convolutions.

    >>> Localisation(1, 28)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 20])
    """

    def __init__(self, in_channels: int, in_size: int, *, widths: tuple[int, int, int] = (20, 20, 20)) -> None:
        first, second, features = widths
        side = -(-(-(-in_size // 2) - 4) // 2) - 4
        if side < 1:
            raise ValueError(
                f"in_size ({in_size}) must be 25 or more: nothing is left after two pools and convolutions"
            )
        super().__init__(
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(in_channels, first, 5),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(inplace=True),
            nn.Conv2d(first, second, 5),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(second * side * side, features),
            nn.ReLU(inplace=True),
        )
        self.features = features


class SpatialTransformer(nn.Module):
    """Warp each image by a transformation that a network chooses for it; the identity before training.

    Bilinear sampling, zero outside the image. Positions are computed in float32 or better, also under autocast.

    Shape:
        Input and output: (batch, channels, height, width); the type and layout are kept.

    Args:
        localisation: from the image to (batch, features), such as `Localisation`.
        transform: "affine" (6 numbers) or "projective" (8, see `projective_grid`).
        features: how many the localisation gives, if it does not say so itself as `localisation.features`; one more
            linear layer, `head`, turns them into the transformation.

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
            raise ValueError(f"features ({features}) must say how many numbers localisation gives, 1 or more")
        self.localisation = localisation
        self.head = nn.Linear(features, len(IDENTITY[transform]))
        self.transform = transform
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the head say "identity", whatever it sees."""
        nn.init.zeros_(self.head.weight)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor(IDENTITY[self.transform]))

    def grid(self, x: Tensor) -> Tensor:
        """Where each pixel of the result reads in x: (batch, height, width, 2), as `F.grid_sample` takes it."""
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
        # grid_sample answers in rows of one channel, whatever the layout of x.
        return warped.to(memory_format=torch.channels_last) if x.stride(1) == 1 else warped

    def extra_repr(self) -> str:
        return f"transform={self.transform!r}"

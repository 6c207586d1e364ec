"""Small networks and images to measure, with known results."""

import torch
from torch import Tensor, nn

from patchreorder.data.poses import translations

X = {"x": translations(axes=["x"])}


class Dots:
    """200 images of 25x25 with a bright dot at one of 5x5 central pixels, so that no shift of `X` loses it."""

    def __init__(self, *, labelled: bool = True) -> None:
        position = torch.arange(200) % 25
        self.images = torch.zeros(200, 1, 25, 25)
        rows, columns = 10 + position // 5, 10 + position % 5
        self.images[torch.arange(200), 0, rows, columns] = 1 + torch.arange(200) / 100
        self.labels = columns if labelled else torch.full((200,), -1)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]


class DotDetector(nn.Module):
    """Predicts the column of the dot, or always the last class.

    The layer `pixels` has one neuron per pixel, `brightness` one neuron that ignores the position.
    """

    class Brightness(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.amax(1, keepdim=True)

    def __init__(self, *, invariant: bool) -> None:
        super().__init__()
        self.pixels, self.brightness = nn.Flatten(), self.Brightness()
        self.invariant = invariant

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.pixels(x)
        brightness = self.brightness(pixels)
        return brightness * torch.arange(1.0, 26.0) if self.invariant else pixels.unflatten(1, (25, 25)).sum(1)


class Noise:
    """Random grey images of a size, all labelled 0."""

    def __init__(self, side: int, count: int = 4) -> None:
        self.side, self.count = side, count

    def __len__(self) -> int:
        return self.count

    def batch(self, indices: Tensor, *, epoch: int = 0) -> tuple[Tensor, Tensor]:
        return torch.rand(len(indices), 1, self.side, self.side), torch.zeros(len(indices), dtype=torch.int64)

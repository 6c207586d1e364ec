"""Blurred pools against padded convolutions and by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from patchreorder.models.blur_pool import MaxBlurPool2d, blur_pool, blur_rows, max_blur_pool


@pytest.mark.parametrize("sides", [(54, 27), (13, 12), (3, 2)])
def test_blurred_pools_with_windows_of_three(sides):
    x = torch.randn(2, 3, *sides)
    # Minus infinity beyond the end, where a window is half outside.
    ends = [1 - side % 2 for side in sides]
    padded = F.pad(x, (0, ends[1], 0, ends[0]), value=-torch.inf)
    want = blur_pool(padded.unfold(2, 3, 1).unfold(3, 3, 1).amax((4, 5)))
    torch.testing.assert_close(max_blur_pool(x, window=3), want)
    assert want.shape == F.max_pool2d(x, 3, 2, ceil_mode=True).shape
    with pytest.raises(ValueError, match=r"window \(4\) must be 2 or 3"):
        max_blur_pool(x, window=4)
    with pytest.raises(ValueError, match=r"x of \(2, 3, 1, 2\) not smaller"):
        max_blur_pool(torch.zeros(2, 3, 1, 2), window=3)


class TestBlurPool:
    sizes = pytest.mark.parametrize("size", [(20, 20), (4, 4), (34, 34), (11, 11), (2, 3), (1, 1), (1, 5), (9, 6)])

    @sizes
    @pytest.mark.parametrize("pool", [blur_pool, max_blur_pool])
    def test_size_is_that_of_a_pool_in_ceil_mode(self, size, pool):
        x = torch.randn(2, 3, *size)
        assert pool(x).shape == F.max_pool2d(x, 2, 2, ceil_mode=True).shape

    @sizes
    @pytest.mark.parametrize("pool", [blur_pool, max_blur_pool])
    def test_constants_stay(self, size, pool):
        x = torch.full((1, 2, *size), 3.25)
        assert torch.equal(pool(x), torch.full_like(pool(x), 3.25))

    @pytest.mark.parametrize("size", [(20, 20), (11, 11), (9, 6), (2, 3)])
    def test_is_a_padded_depthwise_convolution(self, size):
        x = torch.randn(2, 3, *size)
        line = torch.tensor([1.0, 2.0, 1.0]) / 4
        kernel = torch.outer(line, line).expand(3, 1, 3, 3)
        want = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=3)
        torch.testing.assert_close(blur_pool(x), want)

    def test_an_impulse_spreads_to_the_binomial_kernel(self):
        """Every place of the kernel is seen from an impulse at one of four neighbouring pixels."""
        kernel = torch.zeros(3, 3)
        for y in (3, 4, 5):
            for x in (3, 4, 5):
                image = torch.zeros(1, 1, 9, 9)
                image[0, 0, y, x] = 16
                kernel[y - 3, x - 3] = blur_pool(image)[0, 0, 2, 2]
        assert kernel.tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]

    @pytest.mark.parametrize("size", [(20, 20), (11, 11), (9, 6), (5, 3)])
    def test_max_blur_pool_in_steps(self, size):
        x = torch.randn(2, 3, *size)
        odd = [side % 2 for side in size]
        whole = F.pad(x, (0, odd[1], 0, odd[0]), value=-math.inf)  # a window at the end covers what there is
        largest = torch.stack([whole[:, :, i : i + size[0] - 1 + odd[0], :] for i in (0, 1)]).amax(0)
        largest = torch.stack([largest[..., i : i + size[1] - 1 + odd[1]] for i in (0, 1)]).amax(0)
        torch.testing.assert_close(max_blur_pool(x), blur_pool(largest))

    def test_moves_less_than_a_plain_pool(self):
        """What it is for: shifted by one pixel, the pooled map changes less."""
        x = F.avg_pool2d(torch.randn(8, 4, 44, 44), 3, 1)
        inside = (..., slice(2, -2), slice(2, -2))
        changes = []
        for pool in (max_blur_pool, lambda x: F.max_pool2d(x, 2)):
            still, moved = pool(x[..., :40, :40])[inside], pool(x[..., :40, 1:41])[inside]
            changes.append(((still - moved).norm() / still.norm()).item())
        assert changes[0] < 0.8 * changes[1]

    def test_rows_by_hand(self):
        assert blur_rows(1) == [[1.0]]
        assert blur_rows(2) == [[0.5, 0.5]]
        assert blur_rows(4) == [[0.5, 0.5, 0, 0], [0, 0.25, 0.5, 0.25]]
        assert blur_rows(3, skip=1) == [[0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
        assert blur_rows(1, skip=1) == [[0, 1.0]]

    def test_the_layer_calls_the_function(self):
        x = torch.randn(1, 2, 5, 6)
        assert torch.equal(MaxBlurPool2d()(x), max_blur_pool(x))

    def test_bad_arguments_are_named(self):
        for pool in (blur_pool, max_blur_pool):
            for shape in ((3, 4, 4), (1, 3, 0, 4)):
                with pytest.raises(ValueError, match=r"x must have shape .* got \("):
                    pool(torch.zeros(shape))

"""Augmentation: known answers, the amounts that are drawn, training mode only, exact repetition."""

import copy
import math
import pickle

import pytest
import torch

from patchreorder.data.augmentation import Augment, Augmentation, Sampled, apply, read_augmentation, sample


def fixed(count=1, *, down=0.0, right=0.0, degrees=0.0, scale=1.0, knots=None):
    """The same changes for every image."""
    every = torch.ones(count)
    return Sampled(torch.tensor([[down, right]]).repeat(count, 1), degrees * every, scale * every, knots)


def ramps(size=33, count=1):
    """Images whose two channels hold the row and the column of each pixel, counted from the middle."""
    line = torch.arange(float(size)) - (size - 1) / 2
    return torch.stack([line.view(-1, 1).expand(size, size), line.expand(size, size)]).repeat(count, 1, 1, 1)


def test_shifts_rotations_and_scales():
    x = torch.rand(2, 3, 7, 7)
    torch.testing.assert_close(apply(x, fixed(2)), x)
    shifted = torch.zeros_like(x)
    shifted[:, :, 2:, :-1] = x[:, :, :-2, 1:]
    torch.testing.assert_close(apply(x, fixed(2, down=2, right=-1)), shifted)
    torch.testing.assert_close(apply(x, fixed(2, degrees=90)), x.rot90(1, (2, 3)))
    half = apply(ramps(9), fixed(scale=2.0))  # twice as large: neighbours differ by half as much
    torch.testing.assert_close(half, ramps(9) / 2)


def test_bending_moves_the_knots_and_is_smooth_between_them():
    knots = torch.zeros(1, 2, 5, 5)
    knots[0, 0, 2, 1], knots[0, 1, 2, 1] = 2.0, -1.0
    moved = apply(ramps(33), fixed(knots=knots)) - ramps(33)
    torch.testing.assert_close(moved[0, :, 16, 8], torch.tensor([2.0, -1.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(moved[0, :, 16, 24], torch.zeros(2), atol=1e-4, rtol=0)  # two knots away
    assert moved[0, :, 4:-4, 4:-4].diff(dim=1).abs().max() < 0.5


def test_amounts_are_uniform_and_independent():
    torch.manual_seed(0)
    drawn = sample(Augmentation(jitter=2.5, tilt=12, zoom=0.25, bend=1.5), 4000)
    columns = torch.cat(
        [
            drawn.shift / 2.5,
            drawn.degrees[:, None] / 12,
            drawn.scale[:, None].log() / math.log(1.25),
            drawn.knots.flatten(1) / 1.5,
        ],
        1,
    )
    assert columns.shape == (4000, 54)
    assert columns.abs().max() <= 1 + 1e-5
    assert columns.amax(0).min() > 0.98
    assert columns.amin(0).max() < -0.98
    torch.testing.assert_close(columns.std(0), torch.full((54,), 3**-0.5), atol=0.03, rtol=0)
    assert (torch.corrcoef(columns.T) - torch.eye(54)).abs().max() < 0.08


def test_an_amount_of_one_kind_changes_no_other():
    torch.manual_seed(3)
    first = sample(Augmentation(jitter=2), 5)
    torch.manual_seed(3)
    both = sample(Augmentation(jitter=2, bend=1), 5)
    assert torch.equal(first.shift, both.shift)
    assert first.knots is None
    assert torch.equal(first.scale, torch.ones(5))


def test_only_training_mode_changes_images_and_a_seed_repeats_it():
    layer, x = Augment(jitter=1, tilt=10, zoom=0.1, bend=1), torch.rand(4, 1, 12, 12)
    assert layer.eval()(x) is x
    torch.manual_seed(1)
    changed = layer.train()(x)
    assert not torch.allclose(changed, x, atol=0.1)
    torch.manual_seed(1)
    assert torch.equal(layer(x), changed)
    assert not torch.equal(layer(x), changed)
    same = x[:1].expand(4, 1, 12, 12)
    assert not torch.allclose(layer(same)[0], layer(same)[1], atol=1e-3)  # each image by itself
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.manual_seed(1)
        assert torch.equal(other(x), changed)
        assert repr(other) == "Augment(jitter=1, tilt=10, zoom=0.1, bend=1)"
    assert layer.state_dict() == {}


def test_gradients_reach_the_images():
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    drawn = sample(Augmentation(jitter=1, tilt=20, zoom=0.2, bend=1), 2)
    assert torch.autograd.gradcheck(lambda x: apply(x, drawn), x)


def test_texts_and_bad_amounts():
    assert read_augmentation("jitter=0.5, zoom=0.06") == {"jitter": 0.5, "zoom": 0.06}
    assert read_augmentation("") == {}
    with pytest.raises(ValueError, match=r"augment \('jiter=2'\): 'jiter=2' must be one of jitter=DECIMAL, tilt="):
        read_augmentation("jiter=2")
    for name, value, error in (
        ("jitter", -1, ValueError),
        ("tilt", 181, ValueError),
        ("tilt", True, TypeError),
        ("zoom", 1.5, ValueError),
        ("bend", math.nan, ValueError),
        ("bend", None, TypeError),
    ):
        with pytest.raises(error, match=rf"{name} \({value}\) must be"):
            Augment(**{name: value})

"""The drawn images of the demo."""

import numpy as np

from patchreorder.playground.scene import Scene, draw_key


def test_a_rotated_and_a_shifted_key_are_the_rotated_and_shifted_image():
    teeth = np.array([0.1, 0.1, 0.1])
    upright, rotated = draw_key(teeth), draw_key(teeth, rotation=90)
    assert np.abs(np.rot90(upright) - rotated).mean() < 0.01 < np.abs(upright - rotated).mean()
    assert np.array_equal(np.roll(upright, (-3, 5), (0, 1)), draw_key(teeth, shift=(5, -3)))


def test_the_seed_chooses_the_scene():
    first, again, other = Scene.draw(0), Scene.draw(0), Scene.draw(1)
    assert first.images.keys() == again.images.keys() != other.images.keys()
    for name, image in first.images.items():
        assert np.array_equal(image, again.images[name])

"""Perceptual hashes: the same in eight symmetries, near after small changes."""

import io

import pytest
from PIL import Image, ImageOps

from patchreorder.search.hashes import MOST, negative_hash, perceptual_hash, similar_hashes

from .photographs import photograph


def test_the_same_in_the_eight_symmetries():
    image = photograph(1, (256, 256))
    poses = [own.rotate(angle) for own in (image, ImageOps.mirror(image)) for angle in (0, 90, 180, 270)]
    assert len({perceptual_hash(pose) for pose in poses}) == 1


def test_a_coarse_copy_is_near_in_any_symmetry_and_other_photographs_are_not():
    images = [photograph(seed, (240, 240)) for seed in range(12)]
    content = io.BytesIO()
    images[3].resize((60, 60)).transpose(Image.Transpose.ROTATE_90).save(content, "JPEG", quality=10)
    hashes = [perceptual_hash(image) for image in (*images, Image.open(content))]
    found = similar_hashes(hashes)
    assert (3, 12) in found
    assert len(found) <= 3  # synthetic photographs may be alike


def test_a_negative_is_near_in_any_symmetry():
    own = perceptual_hash(photograph(3, (240, 240)))
    negative = perceptual_hash(ImageOps.invert(ImageOps.mirror(photograph(3, (240, 240)))))
    assert negative_hash(own) == negative
    assert negative_hash(negative) == own
    assert similar_hashes([own, negative]) == [(0, 1)]
    assert similar_hashes([own, perceptual_hash(photograph(5))]) == []
    assert negative_hash("") == ""


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_hashes_have_no_pairs(count):
    assert similar_hashes(["0" * 10] * count) == []


def test_too_many_hashes_are_not_compared():
    assert similar_hashes(["0" * 10] * (MOST + 1)) == []


def test_a_flipped_bit_counts_in_every_symmetry():
    own = perceptual_hash(photograph(4))
    for bit in range(35):
        changed = (int(own, 16) ^ (1 << (39 - bit))).to_bytes(5, "big").hex()
        assert similar_hashes([own, changed]) == [(0, 1)]

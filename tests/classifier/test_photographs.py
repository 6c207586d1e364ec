"""The photographs of a folder and their poses."""

from patchreorder.classifier.photographs import SamePoses


def test_a_single_copy_is_mirrored_half_the_time():
    """Fine-tuning draws one pose of a photograph for each epoch."""
    drawn = [SamePoses(flips=True).draw(1, (0, epoch))[0].flip for epoch in range(400)]
    assert 160 < sum(drawn) < 240


def test_copies_are_mirrored_at_random_and_only_if_asked():
    flips = {tuple(pose.flip for pose in SamePoses(flips=True).draw(4, (0, index))) for index in range(200)}
    assert len(flips) == 16
    assert not any(pose.flip for index in range(50) for pose in SamePoses().draw(4, (0, index)))


def test_flips_change_nothing_else():
    plain, mirrored = (SamePoses(flips=flips).draw(4, (3, 1)) for flips in (False, True))
    assert [pose._replace(flip=False) for pose in mirrored] == plain

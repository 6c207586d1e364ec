"""Exact scores of networks made by hand; batches, layouts and the number of forward passes; errors."""

import pytest
import torch
from torch import nn

from patchreorder.data.generated import generate_digits
from patchreorder.data.poses import UPRIGHT, Pose, apply_pose, rotations, translations
from patchreorder.measuring import image_set
from patchreorder.measuring.measure import forward_passes, measure
from patchreorder.models import create_model
from tests.measurable import DotDetector, Dots, Noise, X


def test_neurons_that_see_a_position_and_an_invariant_neuron():
    network = DotDetector(invariant=False)
    found = measure(network, Dots(), transforms=X, layers=["pixels", "brightness"], batch=64)
    assert list(found.layers) == ["image", "pixels", "brightness"]
    score = {name: layer.invariance.get("x") for name, layer in found.layers.items()}
    assert score["image"] is None
    # Three of 200 images are the fewest above 1 %. A neuron that never stops firing has 1 / 0.015.
    assert score["brightness"].score == pytest.approx(200 / 3)
    # 25 pixels fire in one pose of 11; 600 are always zero and fire always. The best fifth are 125.
    assert score["pixels"].score == pytest.approx((25 * (1 / 11) / (3 / 200) + 100 * 1) / 125)
    assert score["pixels"].unselective == 600
    for pose in found.poses.keys() - {"as it is"}:
        assert found.layers["brightness"].similarity[pose].mean == pytest.approx(1, abs=1e-6)
        assert found.layers["pixels"].similarity[pose].mean == pytest.approx(0, abs=1e-4)
        assert found.layers["image"].similarity[pose].mean == pytest.approx(0, abs=1e-4)
        assert found.error(pose).value == 100
        assert found.agreement(pose).value == 0
    assert found.error("as it is").value == 0
    assert found.consistency("x").value == 0  # eleven poses, eleven predictions
    assert found.changed().sum(1).tolist() == [10] * 200
    assert len(found.least_stable(3)) == 3


def test_vertical_shifts_do_not_change_columns():
    found = measure(DotDetector(invariant=False), Dots(), transforms={"y": translations(axes=["y"])}, layers=[])
    assert found.consistency("y").value == 100
    assert {found.error(pose).value for pose in found.poses} == {0.0}
    assert found.least_stable(5) == []


def test_the_mean_and_the_worst_pose_of_each_image():
    data = Dots()
    found = measure(DotDetector(invariant=False), data, transforms={**X, "y": translations(axes=["y"])}, layers=[])
    for transform, value in (("x", 100), ("y", 0)):
        over = found.over(transform, right=data.labels)
        assert (over.mean.value, over.worst.value, over.poses) == (value, value, 10)
        assert over.worst.n == over.mean.n == 200
    # Of two poses one changes all columns.
    poses = {"still": Pose(down=0.04), "x 0.04": Pose(right=0.04), "as it is": UPRIGHT}
    over = measure(DotDetector(invariant=False), data, transforms={"some": poses}, layers=[]).over(
        "some", right=data.labels
    )
    assert (over.mean.value, over.worst.value, over.hardest) == (50, 100, "x 0.04")
    assert over.mean.low < 50 < over.mean.high


def test_an_invariant_network_without_labels():
    found = measure(DotDetector(invariant=True), Dots(labelled=False), transforms=X, layers=["brightness"])
    assert found.labels is None
    assert {found.agreement(pose).value for pose in found.poses} == {100.0}
    with pytest.raises(ValueError, match="the images have no labels"):
        found.error("as it is")


def test_each_image_passes_once_in_each_pose(monkeypatch):
    seen, moved, reported = [], [], []
    network = DotDetector(invariant=False)
    network.pixels.register_forward_hook(lambda layer, args, output: seen.append(len(output)))
    monkeypatch.setattr(
        image_set, "apply_pose", lambda images, pose, fill: moved.append(pose) or apply_pose(images, pose)
    )
    transforms = {"rotate": rotations(), "far": rotations(step=45), **X}  # the poses of the second are in the first
    options = {"transforms": transforms, "layers": ["brightness"], "equivariance": False}
    found = measure(network, Dots(), batch=50, report=reported.append, **options)
    for transform in transforms:  # the worst pose of each image is found among the predictions
        assert found.over(transform, right=found.labels).poses == len(transforms[transform]) - 1
    # Two images, twice, for the order and the sizes of the layers.
    assert sum(seen) - 4 == sum(reported) == found.forwards == 200 * 22
    assert found.forwards == forward_passes(200, transforms)
    assert {pose: moved.count(pose) for pose in moved if pose != UPRIGHT} == {
        pose: 4 for name, pose in found.poses.items() if name != "as it is"
    }
    without = measure(network, Dots(), invariance=False, similarity=False, **options)
    assert without.forwards == 200 * 21
    assert without.layers["brightness"].invariance == without.layers["brightness"].similarity == {}


def test_the_batch_size_changes_nothing():
    torch.manual_seed(3)
    network = create_model("pr_cnn", dataset="mnist")
    data = generate_digits("mnist", count=30)
    transforms = {"rotate": rotations(most=18, step=9), "translate": translations(most=0.08)}
    one, other = (measure(network, data, transforms=transforms, batch=batch) for batch in (30, 7))
    assert torch.equal(one.predictions, other.predictions)
    for name, layer in one.layers.items():
        for transform, score in layer.invariance.items():
            assert score.score == pytest.approx(other.layers[name].invariance[transform].score)
        for pose, similarity in layer.similarity.items():
            assert similarity.mean == pytest.approx(other.layers[name].similarity[pose].mean, abs=1e-5)
    # Only the smallest poses of every transform.
    stability, same = (found.order_stability["reorder"] for found in (one, other))
    assert list(stability) == ["rotate -9", "rotate 9", "x -0.04", "x 0.04", "y -0.04", "y 0.04"]
    assert stability["rotate 9"].changed == same["rotate 9"].changed > 0


def test_uncovered_pixels_show_the_fill():
    seen = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(625, 2))
    network.register_forward_pre_hook(lambda layer, args: seen.append(args[0][:, 0, :, 0].mean().item()))
    measure(network, Dots(), transforms={"x": {"x 0.2": Pose(right=0.2)}}, layers=[], fill=[0.5])
    assert seen[-1] == pytest.approx(0.5)
    assert seen[-2] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": Noise(28, 0)}, "there are no images"),
        ({"layers": ["relu9"]}, r"layer \('relu9'\) is not a layer of the network: choose from conv1, pool1, relu1"),
        ({"transforms": {}}, r"transforms \(none\) must be one or more"),
        ({"transforms": {"a": {"one": Pose(9.0)}, "b": {"one": Pose(8.0)}}}, r"pose \('one'\) of transform 'b' .* ren"),
        ({"transforms": {"a": {"one": Pose(9.0), "two": Pose(9.0)}}}, r"poses 'one' and 'two' are the same: .* once"),
        ({"batch": 0}, r"batch \(0\) must be 1 or more"),
        ({"classes": 12}, r"the network has 10 outputs, but the labels have 12 classes: .*--no-labels"),
    ],
)
def test_errors(change, message):
    arguments = {"network": create_model("cnn", dataset="mnist"), "data": Noise(28), "transforms": X} | change
    with pytest.raises(ValueError, match=message):
        measure(arguments.pop("network"), arguments.pop("data"), **arguments)


def test_nan_is_an_error():
    network = nn.Sequential(nn.Flatten(), nn.Linear(625, 2))
    network[1].weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="the network returns NaN for images in the pose 'as it is'"):
        measure(network, Dots(), transforms=X, layers=[])

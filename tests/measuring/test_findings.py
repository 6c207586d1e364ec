"""Scores as plain measurements, and the least stable images."""

import dataclasses
import io
import json

from PIL import Image

from patchreorder.data.generated import generate_digits
from patchreorder.data.poses import rotations
from patchreorder.measuring import findings
from patchreorder.measuring.image_set import ImageSet
from patchreorder.measuring.measure import measure
from patchreorder.models import create_model
from tests.measurable import DotDetector, Dots, X


def test_measurements_are_plain_numbers():
    scores = measure(create_model("pr_cnn", dataset="mnist"), generate_digits("mnist", count=20), transforms=X)
    found = [dataclasses.asdict(one) for one in findings.measurements(scores, "own")]
    for one in found:
        one["indices"] = list(one["indices"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    kinds = {"error", "agreement", "consistency", "invariance", "similarity", "different", "order"}
    kinds |= {"equivariance", "unmoved maps", "derivative", "module derivative"}
    kinds |= {"commonest answer", "mean error", "mean change", "worst error", "worst change"}
    assert {one["measure"] for one in found} == kinds
    error = next(one for one in found if one["measure"] == "error")
    assert (error["model"], error["pose"], error["n"]) == ("own", "as it is", 20)
    assert error["low"] <= error["value"] == 5 * len(error["indices"]) <= error["high"]


def test_unstable_images_in_the_nearest_poses_that_change_the_prediction():
    transforms = {**X, "rotate": rotations(most=18)}
    scores = measure(DotDetector(invariant=False), Dots(), transforms=transforms, layers=[])
    images = ImageSet(
        "dots", Dots(), [f"dot {index}" for index in range(200)], [f"column {i}" for i in range(25)], None
    )
    first, _ = findings.unstable_images(scores, "detector", images, 2)
    assert (first.model, first.image[:4]) == ("detector", "dot ")
    assert [view.pose for view in first.views][:3] == ["as it is", "x -0.04", "x 0.04"]
    assert first.label == first.views[0].prediction
    column, *others = (int(view.prediction.removeprefix("column ")) for view in first.views)
    assert others[:2] == [column - 1, column + 1]
    with Image.open(io.BytesIO(first.views[0].png)) as image:
        assert (image.size, image.mode) == ((25, 25), "L")
    first, _ = findings.unstable_images(scores, "detector", images, 2, classes=["only one"])
    assert first.label == f"class {column}"

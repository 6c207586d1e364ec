"""Reports of `patchreorder fit`, made by hand."""

from typing import Any

METHODS = {"fit": 90.0, "plain average": 80.0, "5 nearest": 70.0}
POSES = ("as they are", "rotated up to 45", "any rotation")
JPEG = b"\xff\xd8\xff\xe0 small"


def fitted_report(classes: int = 3, **changed: Any) -> dict[str, Any]:
    """Ten test photographs of each class, of which the next class gets one; of "class 0" two.

    At 90 degrees 70 % are right (fit), at other rotations 90 %. Differences are more than chance, except for
    photographs as they are.
    """
    names = [f"class {index}" for index in range(classes)]
    matrix = [[0] * classes for _ in names]
    for index in range(classes):
        wrong = 2 if index == 0 else 1
        matrix[index][index] = 10 - wrong
        matrix[index][(index + 1) % classes] += wrong
    plain = {"name": "plain average", "copies": False, "strength": 0.001, "upright": 80.0, "posed": 75.0}
    best = {"name": "sorted quarters", "copies": True, "strength": 0.01, "upright": 85.0, "posed": 84.0}
    tried = [{**plain, "blocks": ["head/gap"]}, {**best, "blocks": ["head/ranked:quantiles=4"]}]
    report = {
        "verdict": "90.0 % of 30 test photographs are right.",
        "classes": names,
        "train": 60,
        "test": 10 * classes,
        "backbone": "efficientnet_lite0",
        "size": 224,
        "copies": 4,
        "chosen": tried[1],
        "tried": tried,
        "gain": {"upright": difference(5.0, 1.0), "posed": difference(9.0, 4.0)},
        "rotations_hurt": None,
        "same_poses": {"rotations": 180.0, "flips": False, "shifts": 0.1, "zoom": 0.1},
        "unreadable": {},
        "in_two_classes": [],
        "repeated": 0,
        "single": [],
        "shared": [],
        "accuracy": {
            pose: {name: {"value": own, "low": own - 9, "high": own + 6, "n": 30} for name, own in METHODS.items()}
            for pose in POSES
        },
        "differences": {
            pose: {name: difference(90 - METHODS[name], low) for name in list(METHODS)[1:]}
            for pose, low in zip(POSES, (-1.0, 2.0, 2.0), strict=True)
        },
        "angles": {name: angles(value) for name, value in METHODS.items()},
        "per_class": [
            {
                "class": name,
                "train": 20,
                "test": 10,
                "right": matrix[index][index],
                "answered": sum(row[index] for row in matrix),
            }
            for index, name in enumerate(names)
        ],
        "confusion": matrix,
        "mistakes": [mistake(f"/data/val/class 0/{index}.jpg", 0.95 - index / 10) for index in range(3)],
        "mislabelled": [mistake(f"/data/train/class 0/{index}.jpg", 0.99) for index in range(5)],
        "calibration_error": 2.5,
        "refusal": {"threshold": 0.4, "own": 5.0, "others": 81.0, "test": 3.0},
        "cost": {"seconds": 44.4, "cpu_seconds": 80.0},
        "command": "patchreorder fit --data photographs",
    }
    return {**report, **changed}


def difference(value: float, low: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": 2 * value - low}


def angles(value: float) -> dict[str, Any]:
    degrees = [15.0 * number for number in range(24)]
    values = [value - 20 if angle == 90 else value for angle in degrees]
    worst = {"degrees": 90.0, "value": value - 20, "low": value - 30, "high": value - 10, "n": 8}
    return {"degrees": degrees, "values": values, "n": [8, 7] * 12, "mean": value - 20 / 24, "worst": worst}


def mistake(name: str, probability: float) -> dict[str, Any]:
    return {"name": name, "class": "class 0", "answer": "class 1", "probability": probability}


def untested(**changed: Any) -> dict[str, Any]:
    """What `fit` reports if there is no test photograph."""
    tested = ("differences", "angles", "per_class", "confusion", "mistakes", "calibration_error", "refusal", "command")
    whole = fitted_report()
    nothing = {"accuracy": {}, "test": 0, "shared": ["class 0/1.jpg"], "verdict": "Nothing was measured."}
    return {**{key: value for key, value in whole.items() if key not in tested}, **nothing, **changed}


HOSTILE = "<script>alert(1)</script>\"'{{ 7 * 7 }}[red]\x1b[31m\x1b]8;;x\x07\u202e\ud800 $x$\n:smile:"


def hostile(name: str = HOSTILE) -> dict[str, Any]:
    """A report in which every name of a file, a class, a method or a choice is this one."""
    report = fitted_report(classes=2, verdict=name, backbone=name, command=name)
    report["classes"] = [name, name + "2"]
    for own, each in zip(report["per_class"], report["classes"], strict=True):
        own["class"] = each
    for each in (*report["mistakes"], *report["mislabelled"]):
        each |= {"name": name, "class": name, "answer": name + "2"}
    for each in report["tried"]:
        each |= {"name": name, "blocks": [name]}
    report |= {"unreadable": {name: name}, "in_two_classes": [[name, name]], "shared": [name], "single": [name]}
    report["rotations_hurt"] = {
        "cost": difference(3.0, 1.0),
        "loss": difference(9.0, 1.0),
        "rotations": 180.0,
        "classes": [[name, name]],
    }
    return report

"""Plans and their changes."""

import dataclasses
import re

import pytest

from patchreorder.engine.options import Training
from patchreorder.files import differing
from patchreorder.laboratory.recipe import Plan


def test_only_what_differs_from_the_defaults_is_hashed():
    assert differing(Plan()) == {}
    plan = Plan(training=Training(epochs=3, lr=0.07, clip=2.0), images=9, note="x", options={"width": 4})
    assert plan.hashed() == {"training": {"epochs": 3, "clip": 2.0}, "images": 9, "options": {"width": 4}}


@pytest.mark.parametrize(
    "change",
    [
        {"lr": "0,1"},
        {"lr": True},
        {"lr": float("inf")},  # no row could hold it
        {"batch": 12.5},
        {"steps": "many"},
        {"nesterov": "yes"},
        {"nesterov": 1},
        {"clip": [1]},
        {"momentum": None},
        {"schedule": 3},
        {"scales": 5},
        {"scales": {"conv1": "x"}},
    ],
    ids=str,
)
def test_a_change_of_the_wrong_type_is_named(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=re.escape(f"({name}={value!r}) must be of the type")):
        Plan(training=Training(steps=3)).changed(change)


@pytest.mark.parametrize(
    "change",
    [{"lr": 1}, {"clip": None}, {"clip": 2.5}, {"amp": True}, {"scales": {"conv1": 2, "bias": 0.5}}, {}]
    + [{"schedule": "step"}, {"steps": None, "epochs": 0.5}],
    ids=str,
)
def test_a_change_of_the_right_type_is_taken(change):
    plan = Plan(training=Training(steps=3, lr=0.2))
    assert plan.changed(change) == Plan(training=dataclasses.replace(plan.training, **change))


def test_only_fields_that_the_task_allows_can_be_changed():
    plan = Plan(training=Training(steps=3))
    assert plan.changed({"images": 5, "lr": 1.0}, own=("images",)) == Plan(training=Training(steps=3, lr=1.0), images=5)
    with pytest.raises(ValueError, match=r"change \(groups=5\) must name one of: images, amp, batch"):
        plan.changed({"groups": 5}, own=("images",))
    with pytest.raises(ValueError, match=r"change \(lr=5\) must name one of: groups"):
        Plan().changed({"lr": 5}, own=("groups",))
    for value in (0, "many", True):
        with pytest.raises(ValueError, match=re.escape(f"change (images={value!r}) must be of the type")):
            plan.changed({"images": value}, own=("images",))

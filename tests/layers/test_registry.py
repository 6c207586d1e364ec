"""Layers by name: texts and the layers they name, and errors."""

import pytest

import patchreorder
from patchreorder import OrientationReorder, PatchReorder, RankedPool, ShiftAlign, create_layer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("reorder", PatchReorder(grid="pixels")),
        ("reorder:grid=pixels", PatchReorder(grid="pixels")),
        ("reorder:grid=2,levels=2", PatchReorder(grid=2, levels=2)),
        (
            "reorder:grid=3,energy=l1,per_channel=false,descending=False",
            PatchReorder(grid=3, energy="l1", per_channel=False, descending=False),
        ),
        ("ranked", RankedPool()),
        ("ranked:", RankedPool()),
        ("ranked:keep=9,smooth=3,weights=-0.5", RankedPool(keep=9, smooth=3, weights=-0.5)),
        ("ranked: quantiles = 16, stride=2 ,mean=true,", RankedPool(quantiles=16, stride=2, mean=True)),
        ("ranked:weights=-1", RankedPool(weights=-1)),
        ("ranked:quantiles=8,centre=true", RankedPool(quantiles=8, centre=True)),
        ("ranked:weights=1e-1", RankedPool(weights=0.1)),
        ("align", ShiftAlign()),
        ("align:energy=l1,per_channel=true", ShiftAlign(energy="l1", per_channel=True)),
        ("orient", OrientationReorder()),
        (
            "orient:orientations=8,turn=false,per_channel=true,energy=l1",
            OrientationReorder(orientations=8, turn=False, per_channel=True, energy="l1"),
        ),
    ],
)
def test_a_text_is_the_layer(text, layer):
    made = create_layer(text)
    assert type(made) is type(layer)
    assert repr(made) == repr(layer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"layer \(''\) must begin with one of reorder, ranked, align, pose, orient"),
        ("sorted:keep=3", r"layer \('sorted:keep=3'\) must begin with one of reorder, ranked, align, pose, orient"),
        ("keep=3", r"must begin with one of reorder"),
        ("Ranked", r"must begin with one of reorder"),
        ("ranked:kept=3", r"layer \('ranked:kept=3'\): 'kept=3' must be one of keep=NUMBER, .*centre=true\|false"),
        ("ranked:grid=2", r"'grid=2' must be one of keep=NUMBER"),
        ("align:keep=3", r"'keep=3' must be one of energy=l1\|l2, per_channel=true\|false"),
        ("ranked:keep", r"'keep' must be one of"),
        ("ranked:keep=", r"'keep=' must be one of"),
        ("ranked:keep=many", r"'keep=many' must be one of"),
        ("ranked:keep=1.5", r"'keep=1.5' must be one of"),
        ("ranked:keep=true", r"'keep=true' must be one of"),
        ("ranked:mean=1", r"'mean=1' must be one of"),
        ("ranked:weights=x", r"'weights=x' must be one of .*weights=DECIMAL"),
        ("align:energy=", r"'energy=' must be one of"),
        ("align:energy=1", r"'energy=1' must be one of"),
        ("ranked:keep=2,keep=2", r"keep is given twice"),
        ("ranked:keep=0", r"layer \('ranked:keep=0'\): keep \(0\) must be 1 or more"),
        ("ranked:keep=2,quantiles=2", r"keep \(2\) and quantiles \(2\) exclude each other"),
        ("ranked:weights=nan", r"weights \(nan\) must be finite"),
        ("align:energy=l3", r"energy \('l3'\) must be 'l1' or 'l2'"),
        ("reorder:grid=pixel", r"grid \('pixel'\) must be a whole number"),
        ("reorder:levels=2", r"levels \(2\) must be 1 with grid='pixels'"),
        ("orient:orientations=6", r"orientations \(6\) must be a multiple of 4"),
    ],
)
def test_bad_texts_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        create_layer(text)


def test_a_layer_is_not_a_text():
    with pytest.raises(TypeError, match="layer must be a text such as 'ranked:quantiles=16', got RankedPool"):
        create_layer(RankedPool())


def test_it_is_public():
    assert "create_layer" in patchreorder.__all__
    assert patchreorder.create_layer is create_layer

"""The task of the figure of invariance."""

from patchreorder import recipes
from patchreorder.laboratory.rows import read as read_rows
from patchreorder.laboratory.run import run


def test_invariance_of_the_smoke_form_has_a_score_for_every_layer(tmp_path):
    run(recipes.load("fig_invariance"), out=tmp_path, setting="smoke", rows=["pr_cnn"])
    for row in read_rows(tmp_path / "fig_invariance.jsonl").results:
        curve = dict(row.curves["invariance score"])
        assert row.details["layers"][-4:] == ["maps", "fc6", "fc7", "fc8"]
        assert len(curve) == len(row.details["layers"]) == 11
        assert row.value == curve[row.details["layers"].index("maps")]
        assert row.details["poses"] == {"rotation": 11, "translation": 21}[row.column]
        assert all(0 < score <= row.details["ceiling"] == 10 for score in curve.values())

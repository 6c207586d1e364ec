"""Numbers and comparisons as text."""

import pytest

from patchreorder.report import text
from patchreorder.report.text import MINUS, NONE
from tests.report_rows import facts, only_table, seeds, write


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (text.duration(3.14), "3.1 s"),
        (text.duration(59.6), "1 min 00 s"),
        (text.duration(200), "3 min 20 s"),
        (text.duration(3599.9), "1 h 00 min"),
        (text.duration(7500), "2 h 05 min"),
        (text.signed(-0.004), "0.00"),
        (text.signed(-0.126), f"{MINUS}0.13"),
        (text.signed(0.5), "+0.50"),
        (text.signed(None), NONE),
        (text.short(-0.12345), f"{MINUS}0.123"),
        (text.count(208586), "208,586"),
        (text.chance(0.0385), "p = 0.038"),
        (text.chance(1.0), "p = 1"),
        (text.chance(0.0), "p < 0.0001"),
    ],
)
def test_numbers_as_text(found, expected):
    assert found == expected


def test_comparisons_in_words(folder, tmp_path):
    pairs = only_table(folder, split="test").pairs
    words = text.describe(pairs[0])
    assert f"PR-CNN against CNN on R: fewer errors. {MINUS}1.50 points of error (95 % interval {MINUS}2." in words
    assert "seeds 0, 1, 2" in words
    assert words.endswith("(all seeds).")
    assert "over images alone" in text.describe(pairs[2])
    rows = seeds("pr_cnn", [1], steps=10) + seeds("cnn", [2], steps=20)
    lacking = only_table(write(tmp_path, rows, facts(compare=[["pr_cnn", "cnn"], ["pr_cnn", "st_cnn"]]))).pairs
    words = [text.describe(pair) for pair in lacking]
    assert "trained for 10 and 20 steps" in words[0]
    assert words[1] == "PR-CNN against CNN on T: not compared, PR-CNN and CNN have no rows here."
    assert words[2] == "PR-CNN against ST-CNN on R: not compared, ST-CNN has no rows here."

"""The recipe upright: its smoke setting, its facts, its committed rows."""

from tests.recipes.every import *  # noqa: F403

NAME = "upright"


def test_an_aligned_network_makes_the_same_errors_on_shifted_digits(smoke):
    wrong = {(row.row, row.column): row.errors for row in smoke.rows}
    assert wrong["aligned", "T"] == wrong["aligned", "Ori"]
    assert wrong["cnn", "T"] != wrong["cnn", "Ori"]  # trained on upright digits for all columns

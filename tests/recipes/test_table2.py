"""The recipe table2: its smoke setting, its facts."""

from tests.recipes.every import *  # noqa: F403

NAME = "table2"


def test_the_right_answer_may_be_among_the_first_five(smoke):
    rows = {(row.row, row.column): row for row in smoke.rows}
    for (row, column), result in rows.items():
        if column.endswith("5"):
            first = rows[row, column.removesuffix("5")]
            assert set(result.errors) <= set(first.errors)  # of six classes
            assert result.value >= first.value
    assert any(result.value > rows[row, "Ori"].value for (row, column), result in rows.items() if column == "Ori5")

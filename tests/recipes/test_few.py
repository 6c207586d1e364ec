"""The recipe few: its smoke setting, its facts, its committed rows, the learning rates that its trials chose."""

from collections import defaultdict
from pathlib import Path
from statistics import mean

from patchreorder.laboratory import rows
from patchreorder.recipes import few
from tests.recipes.every import *  # noqa: F403

NAME = "few"
TRIALS = Path(__file__).parents[2] / "results" / "trials" / "few.jsonl"


def test_learning_rates_are_those_with_the_fewest_errors_in_the_trials():
    errors = defaultdict(lambda: defaultdict(list))
    for trial in rows.read(TRIALS).results:
        if trial.split == "validation" and trial.column[1:] == "1000":
            errors[trial.row, trial.column[0]][float(trial.setting.partition("lr=")[2])].append(trial.value)
    assert len(errors) == sum(len({name[0] for name in row.columns or ("R", "T")}) for row in few.ROWS)
    for cell, by_rate in errors.items():
        assert {rate: len(found) for rate, found in by_rate.items()} == {0.02: 2, 0.07: 2, 0.2: 2}, cell
        best = min(by_rate, key=lambda rate: mean(by_rate[rate]))
        assert few.RATES.get(cell, few.RATE) == best, cell

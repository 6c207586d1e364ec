"""Options of a run: the schedule, the number of updates, invalid values."""

import math

import pytest

from patchreorder.engine.options import Training


def test_one_cycle_rises_linearly_and_falls_along_a_cosine():
    training = Training(steps=100, lr=0.5, warmup=0.19)
    rates = [training.rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.5 / 20)
    assert rates[18] == pytest.approx(0.5 * 19 / 20)
    assert rates[19] == 0.5 == max(rates)
    assert rates[19 + 27] == pytest.approx(0.5 * 0.5 * (1 + math.cos(math.pi / 3)))
    assert 0 < rates[99] < 0.5 * 4e-4
    assert rates[:20] == sorted(rates[:20])
    assert rates[19:] == sorted(rates[19:], reverse=True)
    assert training.rate(100, 100) == 0
    assert Training(steps=1, lr=0.5, warmup=0.0).rate(0, 1) == 0.5


def test_step_schedule_divides_the_rate_by_ten():
    training = Training(steps=9, lr=0.02, schedule="step", decay_every=3)
    rates = [training.rate(step, 9) for step in range(9)]
    assert rates == pytest.approx([0.02] * 3 + [0.002] * 3 + [0.0002] * 3)


def test_number_of_updates():
    assert Training(steps=7, batch=8).total(46) == 7
    assert Training(epochs=2.5, batch=8).total(46) == 12  # of 5 an epoch
    assert Training(epochs=0.01, batch=8).total(46) == 1
    with pytest.raises(ValueError, match=r"batch \(8\) must not exceed the number of training images \(7\)"):
        Training(epochs=1, batch=8).total(7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "steps"),
        ({"steps": 1, "epochs": 1}, "steps"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"steps": 1, "batch": 8.0}, "batch"),
        ({"epochs": -1.0}, "epochs"),
        ({"steps": 1, "batch": 0}, "batch"),
        ({"steps": 1, "lr": math.nan}, "lr"),
        ({"steps": 1, "clip": 0.0}, "clip"),
        ({"steps": 1, "schedule": "cosine"}, "cosine"),
        ({"steps": 1, "optimiser": "adam"}, "optimiser \\('adam'\\)"),
        ({"steps": 1, "warmup": 1.0}, "warmup"),
        ({"steps": 1, "momentum": -0.1}, "momentum"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        Training(**options)

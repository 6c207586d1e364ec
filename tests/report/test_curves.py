"""Curves of rows: their mean and range over seeds."""

from patchreorder.report.curves import Line, mean_line, thinned
from patchreorder.report.tables import Curve
from tests.report_rows import result


def test_the_mean_line_by_hand():
    curve = Curve("loss", "epoch", "loss", log=True)
    first = result(curves={"loss": [[1, 4.0], [2, 2.0], [3, 5e-324], ["x", 1], [4]]})
    second = result(seed=1, curves={"loss": [[2, 1.0], [1, 2.0], [3, 1.0]]})
    line = mean_line([first, second, result(seed=2)], curve)
    assert line == Line([1, 2], [3.0, 1.5], [2.0, 1.0], [4.0, 2.0])  # 0 has no logarithm
    assert mean_line([result()], curve) is None


def test_seeds_without_common_x_are_not_averaged():
    rows = [result(curves={"loss": [[1, 4.0]]}), result(seed=1, curves={"loss": [[2, 1.0]]})]
    assert mean_line(rows, Curve("loss", "epoch", "loss")) == Line([1], [4.0], [4.0], [4.0])


def test_thinned_values_keep_both_ends():
    assert thinned(range(101), 5) == [0, 25, 50, 75, 100]
    assert thinned([1, 2], 5) == [1, 2]

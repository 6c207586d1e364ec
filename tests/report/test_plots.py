"""Plots of feature maps."""

import subprocess
import sys

import numpy as np
import pytest

from patchreorder.report import plots


def test_plots_need_no_torch():
    code = "import sys, patchreorder.report.plots as p; p.need_matplotlib(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plots_neither_use_nor_change_the_global_style(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    arrays = [np.eye(4)] * 3, np.ones((2, 2)), np.arange(4)
    plots.levels([tmp_path / "plain.png"], *arrays)
    with matplotlib.rc_context({"font.size": 30, "lines.linestyle": "dotted"}):
        plots.levels([tmp_path / "styled.png"], *arrays)
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "styled.png").read_bytes()

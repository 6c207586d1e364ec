"""The recipe fig_redundancy: its smoke setting, its facts, its committed rows, its figure."""

import base64

from patchreorder.__main__ import main
from patchreorder.engine import memory
from tests.recipes.every import *  # noqa: F403

NAME = "fig_redundancy"


def test_the_command_with_a_hyphen_writes_the_figure_and_the_page_shows_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(memory, "keep_freed_memory", lambda: None)
    monkeypatch.setenv("COLUMNS", "300")
    out = tmp_path / "out"
    main(["run", "fig-redundancy", "--setting", "mnist_r", "--threads", "1", "--out", str(out)])
    assert f"Figure: {out / 'fig_redundancy.mnist_r.svg'}" in capsys.readouterr().out.replace("\n", "")
    drawn = (out / "fig_redundancy.mnist_r.svg").read_text(encoding="utf-8")
    assert ">fc6, positions (60 pairs)</text>" in drawn
    assert ">Made by: patchreorder run fig_redundancy --setting mnist_r. " in drawn
    main(["report", str(out), "--out", str(tmp_path / "page.html"), "--quiet"])
    assert (tmp_path / "fig_redundancy.mnist_r.svg").read_text(encoding="utf-8") == drawn
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert base64.b64encode(drawn.encode()).decode() in html

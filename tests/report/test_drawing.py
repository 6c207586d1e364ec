"""Drawings: deterministic, escaped, light and dark, the same whatever the user's matplotlib settings are."""

import subprocess
import sys
import warnings
from xml.etree import ElementTree

import matplotlib
import pytest

from patchreorder.report.drawing import DARK, INK, STYLES, canvas, finish, frame, need_matplotlib, save
from tests.report.svg import SVG, texts

HOSTILE = "</text><script>alert(\"1\")</script> & <b onload='x'> $x$ _y"


def drawn(content: str = "text"):
    with frame(1.0, {content: {"color": INK}}, title=content, about=content, foot=content) as (figure, _):
        return finish(figure, content)


def test_the_same_figure_is_the_same_file_whatever_the_settings():
    plain = drawn()
    with matplotlib.rc_context({"font.size": 30, "lines.linestyle": "dotted", "svg.fonttype": "path"}):
        assert drawn() == plain
        assert matplotlib.rcParams["font.size"] == 30
    assert "dc:date" not in plain.svg


def test_hostile_text_stays_text():
    drawing = drawn(HOSTILE)
    root = ElementTree.fromstring(drawing.svg)
    assert not {"script", "b"} & {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
    assert texts(drawing.svg).count(HOSTILE) == 4
    assert root.find(f"{SVG}title").text == HOSTILE
    assert root.get("role") == "img"


def test_letters_that_matplotlib_lacks_are_left_to_the_viewer():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "日本" in texts(drawn("日本").svg)


def test_every_colour_has_one_for_dark_screens():
    with canvas(2, 2) as figure:
        plot = figure.subplots()
        for style in STYLES:
            plot.plot([0, 1], [0, 1], **style.line(), **style.mark())
        svg = finish(figure, "").svg
    sheet, drawn = svg[: svg.index("</style>")], svg[svg.index("</style>") :]
    for light, dark in DARK.items():
        assert f'[style*="fill: {light}"] {{ fill: {dark} !important }}' in sheet
        assert f'[style*="stroke: {light}"] {{ stroke: {dark} !important }}' in sheet
    assert {style.colour for style in STYLES} <= {f"#{part[:6]}" for part in drawn.split(": #")[1:]} <= set(DARK)


def test_lines_differ_in_colour_and_in_dash_or_mark():
    assert len({style.colour for style in STYLES}) == len(STYLES)
    assert len({(str(style.dash), style.marker) for style in STYLES}) == len(STYLES)


def test_files_are_those_of_their_ending(tmp_path):
    with canvas(1, 1) as figure:
        save(figure, [tmp_path / "a.svg", tmp_path / "a.png"], "nothing")
        assert (tmp_path / "a.svg").read_text() == finish(figure, "nothing").svg
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_matplotlib_is_loaded_late_and_torch_never():
    code = (
        "import sys\nfrom patchreorder.report import drawing, figures, operator_figures, page, table_charts\n"
        "assert 'matplotlib' not in sys.modules\ndrawing.need_matplotlib()\nassert 'torch' not in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"figures need matplotlib: pip install 'patchreorder\[report\]'"):
        need_matplotlib()

"""The command line: what it prints, what it imports, how it fails, and that the demo shows what it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import patchreorder
from patchreorder import __main__
from patchreorder.__main__ import COMMANDS, main
from patchreorder.commands import demo as demo_module
from patchreorder.commands import info as info_module
from patchreorder.operator import native
from patchreorder.playground import demonstration
from patchreorder.report import plots as pictures

COMMITTED = Path(__file__).parents[2] / "docs" / "images" / "demo.json"


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "patchreorder", *args]
    settings = {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | settings | environment, timeout=60)


def imports(code: str) -> set[str]:
    """The modules that are loaded after the code has run in a process of its own."""
    code += "\nimport sys; print('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rsplit("loaded:", 1)[1].split())


def test_version_and_help_do_not_wait_for_torch():
    calls = [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]
    lines = ["from patchreorder.__main__ import main"]
    for call in calls:
        lines += ["try:", f"    main({call})", "except SystemExit as end:", "    assert not end.code"]
    loaded = imports("\n".join(lines))
    assert "patchreorder.commands.demo" in loaded
    assert not {"torch", "matplotlib"} & loaded


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"patchreorder {patchreorder.__version__}\n"


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert not end.value.code
    said = " ".join(re.sub(r"[│\s]+", " ", capsys.readouterr().out).split())
    for name, summary in COMMANDS.items():
        assert f"{name} {summary}" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_opens_with_its_line_in_the_list(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert not end.value.code
    said = " ".join(capsys.readouterr().out.split())
    assert f"usage: patchreorder {name}" in said
    assert COMMANDS[name] in said


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        main(["dmeo"])
    assert end.value.code == 2
    assert "dmeo" in capsys.readouterr().err


# ---- info ------------------------------------------------------------------------------------------


def test_info_is_the_default_and_says_the_build(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(native, "KERNEL", native.Kernel(object(), "vax", "the best build for this processor"))
    assert main([]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"^patchreorder +{re.escape(patchreorder.__version__)} ", said, re.MULTILINE)
    assert "native kernel, build vax: the best build for this processor" in said
    assert "patchreorder demo" in said


def test_info_says_why_there_is_no_kernel():
    done = run("info", PATCHREORDER_NATIVE="off")
    assert done.returncode == 0, done.stderr
    assert "plain torch; the native kernel is switched off by PATCHREORDER_NATIVE=off" in done.stdout


def test_info_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(info_module, "_extras", lambda: {"moon": ["numpy", "moonshine"]})
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert f"numpy {np.__version__}; missing moonshine: pip install 'patchreorder[moon]'" in said


def test_extras_are_those_of_the_package():
    extras = info_module._extras()
    assert "matplotlib" in extras["report"]
    assert not {"torch", "numpy"} & {package for packages in extras.values() for package in packages}


# ---- errors ----------------------------------------------------------------------------------------


def test_a_bad_build_is_one_line():
    done = run("info", PATCHREORDER_NATIVE="vax")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"patchreorder: PATCHREORDER_NATIVE \('vax'\) is no build .*\n", done.stderr)


def fails(monkeypatch, error: BaseException) -> None:
    """Make every command raise the error."""

    def load(name):
        raise error

    monkeypatch.setattr(__main__, "_load", load)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("grid (1)\nmust be more"), "patchreorder: grid (1) must be more\n"),
        (FileExistsError(17, "File exists", "x/y"), "patchreorder: x/y: File exists\n"),
        (ImportError("pip install it"), "patchreorder: pip install it\n"),
        (OSError(), "patchreorder: OSError\n"),
    ],
)
def test_expected_errors_are_one_line(monkeypatch, capsys, error, line):
    fails(monkeypatch, error)
    assert main(["info"]) == 2
    assert capsys.readouterr() == ("", line)
    monkeypatch.setenv("PATCHREORDER_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["info"])


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    fails(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_control_c(monkeypatch):
    fails(monkeypatch, KeyboardInterrupt())
    assert main(["info"]) == 130


def test_a_missing_extra_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    said = capsys.readouterr().err
    assert said == "patchreorder: pictures need matplotlib: pip install 'patchreorder[report]'\n"
    assert not (tmp_path / "demo").exists()


def test_a_bad_seed_is_named(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path / "demo"), "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "patchreorder: seed (-1) must be 0 or more\n"
    assert not (tmp_path / "demo").exists()


def test_a_file_in_the_way_is_named(capsys, tmp_path):
    (tmp_path / "demo").write_text("")
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    assert capsys.readouterr().err == f"patchreorder: {tmp_path / 'demo'}: File exists\n"


# ---- demo ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """The demo twice with the first seed, and shorter with another: its folders, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    said = run("demo", "--out", str(folder / "a"))
    assert said.returncode == 0, said.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_module, "rough_times", lambda: "")
        assert main(["demo", "--out", str(folder / "b")]) == 0
        patch.setattr(demo_module, "KEYS", 1)
        assert main(["demo", "--out", str(folder / "c"), "--seed", "1"]) == 0
    return folder, said.stdout


def numbers_of(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def test_demo_writes_its_pictures(demos):
    folder, said = demos
    names = {"before_after.png", "before_after.svg", "levels.png", "limits.png", "demo.json"}
    assert {file.name for file in (folder / "a").iterdir()} == names
    assert all(name in said for name in names)
    assert str(folder / "a") in said
    for name in ("before_after", "levels", "limits"):
        assert (folder / "a" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "a" / "before_after.svg").read_text().startswith("<?xml")


def test_demo_is_the_same_for_a_seed_and_another_for_another(demos):
    folder, _ = demos
    for file in (folder / "a").iterdir():
        assert file.read_bytes() == (folder / "b" / file.name).read_bytes(), file.name
        if file.name != "levels.png":
            assert file.read_bytes() != (folder / "c" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("name", "ac")
def test_sorted_pixels_bring_the_copies_nearer_than_the_leaf(demos, name):
    numbers = numbers_of(demos[0] / name / "demo.json")
    plain, _, pixels = numbers["distance"].values()
    *copies, leaf = pixels
    for copy in copies:
        assert pixels[copy] < plain[copy] / 2
        assert pixels[copy] < pixels[leaf]
        assert numbers["similarity"]['grid="pixels"'][copy] > numbers["similarity"]["as they are"][copy]


def test_the_committed_numbers_are_those_of_today(demos):
    today, committed = numbers_of(demos[0] / "a" / "demo.json"), numbers_of(COMMITTED)
    assert today.keys() == committed.keys()
    for label, distances in today["distance"].items():
        assert distances == pytest.approx(committed["distance"][label], abs=0.004)


def test_the_demo_prints_what_it_wrote(demos):
    folder, said = demos
    numbers = numbers_of(folder / "a" / "demo.json")
    for row in numbers["distance"]["as they are"]:
        cells = [
            f"{numbers['distance'][label][row]:.2f} ({numbers['similarity'][label][row]:.2f})"
            for label in demonstration.SETTINGS
        ]
        assert [
            cell.strip() for cell in next(line for line in said.splitlines() if row in line).split("│")[2:5]
        ] == cells


def test_distance_and_similarity_by_hand():
    a = np.array([[[3.0, 4.0]], [[0.0, 2.0]]])
    b = np.array([[[3.0, 0.0]], [[2.0, 2.0]]])
    assert demonstration.distance(a, b) == pytest.approx((4 / 5 + 2 / 2) / 2)
    assert demonstration.similarity(a, b) == pytest.approx((3 / 5 + 1 / np.sqrt(2)) / 2)


def test_a_quarter_turn_of_the_drawing_is_one_of_the_image():
    teeth = np.array([0.1, 0.1, 0.1])
    upright, turned = demonstration.draw_key(teeth), demonstration.draw_key(teeth, turn=90)
    assert np.abs(np.rot90(upright) - turned).mean() < 0.01 < np.abs(upright - turned).mean()
    shifted = demonstration.draw_key(teeth, shift=(5, -3))
    assert np.array_equal(np.roll(upright, (-3, 5), (0, 1)), shifted)


def test_pictures_need_no_torch():
    assert "torch" not in imports("import patchreorder.report.pictures as p; p.need_matplotlib()")


def test_pictures_neither_take_nor_leave_a_style(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    arrays = [np.eye(4)] * 3, np.ones((2, 2)), np.arange(4)
    pictures.levels([tmp_path / "plain.png"], *arrays)
    with matplotlib.rc_context({"font.size": 30, "lines.linestyle": "dotted"}):
        pictures.levels([tmp_path / "styled.png"], *arrays)
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "styled.png").read_bytes()

"""Imports point down only (CONTRIBUTING.md): each part may import what stands below it."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "patchreorder"
# From the top down; parts on one line never import each other.
LINES = [
    ["__main__"],
    ["commands"],
    ["playground"],
    ["recipes"],
    ["report"],
    ["laboratory"],
    ["search", "classifier"],
    ["measuring"],
    ["engine"],
    ["models"],
    ["data", "metrics"],
    ["surgery"],
    ["layers"],
    ["operator"],
    ["files", "untrusted"],
]
HEIGHT = {part: -line for line, parts in enumerate(LINES) for part in parts}
ONLY = {"report": {"files", "untrusted", "laboratory", "measuring"}}  # modules of these that work without torch


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """Parts of this package that a file imports, anywhere in it."""
    package = ("patchreorder", *path.relative_to(SOURCE).parent.parts)
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module or ""]))
            names |= {f"{base}.{alias.name}" for alias in node.names}
    inside = [name.split(".") for name in names if name.split(".")[0] == "patchreorder"]
    return {name[1] for name in inside if len(name) > 1}


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path):
    own = part_of(path)
    assert own in HEIGHT, f"{own} has no place in LINES: give it one"
    for other in imported_parts(path) - {own, "__version__"}:
        assert other in HEIGHT, f"{path.name} imports {other}, which has no place in LINES"
        assert HEIGHT[other] < HEIGHT[own], f"{path.name}: {own} must not import {other}"
        assert other in ONLY.get(own, {other}), f"{path.name}: {own} imports {other}, may import only {ONLY[own]}"


def test_the_reader_of_imports_sees_them(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    folder = tmp_path / "metrics"
    folder.mkdir()
    file = folder / "x.py"
    file.write_text(
        "def f():\n    from ..engine import train\n    from patchreorder.data.folders import a\n    from . import b\n"
    )
    assert imported_parts(file) == {"engine", "data", "metrics"}


def test_the_core_needs_no_optional_package():
    optional = {"torchvision", "timm", "matplotlib", "jinja2", "onnx", "onnxruntime", "faiss", "fastapi"}
    for path in FILES:
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name.split(".")[0] for node in top if isinstance(node, ast.Import) for alias in node.names}
        names |= {
            (node.module or "").split(".")[0] for node in top if isinstance(node, ast.ImportFrom) and not node.level
        }
        assert not names & optional, f"{path.name} imports {names & optional} when it is loaded"

"""The notebooks of examples/: what is committed is small and whole, and they run."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PICTURES = {"image/png", "image/jpeg"}

pytestmark = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def ends_with_a_picture(notebook: dict) -> bool:
    outputs = code_cells(notebook)[-1]["outputs"]
    return bool(outputs) and bool(PICTURES & set(outputs[-1].get("data", {})))


def test_what_is_committed_is_small_and_whole(file):
    text = file.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert len(text) < 300_000
    assert [cell["execution_count"] for cell in code_cells(notebook)] == [*range(1, len(code_cells(notebook)) + 1)]
    assert ends_with_a_picture(notebook)
    printed = json.dumps([output for cell in code_cells(notebook) for output in cell["outputs"]])
    assert not re.search(r"\\u001b|/tmp/|/home/|/root/|/Users/|Traceback", printed)


def test_readme_and_site_lead_there(file):
    assert f"(examples/{file.name})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"(../examples/{file.name})" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f": examples/{file.stem}.md\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_runs(file, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where they write
    notebook = nbformat.read(file, as_version=4)
    for cell in code_cells(notebook):
        cell["outputs"] = []
    nbclient.NotebookClient(notebook, timeout=1500, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert ends_with_a_picture(notebook)
    commands = [cell for cell in code_cells(notebook) if "sys.executable" in cell["source"]]
    assert all(cell["outputs"] for cell in commands if "said =" not in cell["source"])  # one that fails prints nothing

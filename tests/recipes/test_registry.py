"""The list of recipes."""

import re
from pathlib import Path

from patchreorder import recipes


def test_every_file_with_a_recipe_is_registered():
    files = Path(recipes.__file__).parent.glob("*.py")
    found = {file.stem for file in files if re.search(r"^RECIPE\b", file.read_text(), re.MULTILINE)}
    assert found == set(recipes.NAMES)
    assert all(recipes.load(name).name == name for name in recipes.NAMES)
    assert recipes.load("table2-cifar10").name == "table2_cifar10"


def test_a_recipe_imports_no_other():
    for name in recipes.NAMES:
        text = Path(recipes.__file__).with_name(f"{name}.py").read_text()
        assert set(re.findall(r"^from \.(\w*) import", text, re.MULTILINE)) <= {"rows"}, name

"""The notebooks of examples/ as pages of the site: text, code, and what it printed and drew."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

ENDINGS = {"image/png": "png", "image/jpeg": "jpg"}


def as_page(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook, and its images by file name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{text}\n```")
        printed = ""
        for output in cell["outputs"]:
            data: dict[str, Any] = output.get("data", {})
            kind = next((kind for kind in ENDINGS if kind in data), None)
            if kind:
                name = f"{notebook.stem}.{len(images) + 1}.{ENDINGS[kind]}"
                images[name] = base64.b64decode("".join(data[kind]))
                parts.append(f"![What the cell above draws]({name})")
            else:
                printed += "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n") + "\n"
        if printed.strip():
            parts.append(f"```text\n{printed.rstrip()}\n```")
    title, *rest = parts[0].split("\n", 1)
    source = f"This page is the notebook `examples/{notebook.name}` of the repository, with its output."
    return "\n\n".join([title, source, "".join(rest).strip(), *parts[1:]]) + "\n", images

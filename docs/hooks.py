"""Events of mkdocs: pages that are generated, what they ask for, and links that leave docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "src")]

import directives
import notebooks

from patchreorder.__main__ import GROUPS, explain, overview, summary

DATA = "data"  # where the files of results/ are on the site
NETWORK_SHIM, SHIM = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
WIDTH = 90


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add generated pages, and the files of results/ that pages link to."""
    for name, text in {
        "reference/commands.md": commands(),
        "reference/changelog.md": moved((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
        "reference/contributing.md": moved((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")),
    }.items():
        files.append(File.generated(config, name, content=text))
    for source in sorted(directives.RESULTS.glob("*.*")):
        if source.suffix in (".json", ".jsonl", ".svg"):
            files.append(File.generated(config, f"{DATA}/{source.name}", abs_src_path=str(source)))
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        text, images = notebooks.as_page(notebook)
        files.append(File.generated(config, f"examples/{notebook.stem}.md", content=text))
        for name, content in images.items():
            files.append(File.generated(config, f"examples/{name}", content=content))
    return files


def on_page_markdown(text: str, *, page: Page, **_: Any) -> str:
    """Fill in results, and lead links out of docs/ to the site's copies."""
    up = "../" * page.file.src_uri.count("/")
    text = directives.fill(text, data=f"{up}{DATA}/")
    text = re.sub(r"\]\(\.\./results/([\w.]+\.(?:jsonl?|svg))\)", rf"]({up}{DATA}/\1)", text)
    text = re.sub(r"\]\(\.\./examples/(\w+)\.ipynb\)", rf"]({up}examples/\1.md)", text)
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", text) if not up else text


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Load the shim of the search from this site instead of from a network."""
    return output.replace(NETWORK_SHIM, f"{'../' * page.file.src_uri.count('/')}{SHIM}")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page of addresses that are not there."""
    return output_content.replace(NETWORK_SHIM, f"/{SHIM}")


def commands() -> str:
    """Every command with its help."""
    parts = [
        "# Commands",
        "The help of every command, as `patchreorder COMMAND --help` prints it.",
        "## Completion",
        "Commands and options are completed by the Tab key after",
        "```sh\n"
        "patchreorder --completion bash > ~/.local/share/bash-completion/completions/patchreorder\n"
        "patchreorder --completion zsh > ~/.zfunc/_patchreorder  # fpath+=~/.zfunc before compinit in ~/.zshrc\n"
        "patchreorder --completion fish > ~/.config/fish/completions/patchreorder.fish\n"
        "```",
        "## patchreorder",
        _block(overview(width=WIDTH)),
    ]
    for names in GROUPS.values():
        for name in names:
            parts += [f"## {name}", summary(name), _block(explain(name, [], width=WIDTH))]
    return "\n\n".join(parts) + "\n"


def moved(text: str) -> str:
    """A page of the repository's root, as one of reference/."""
    text = re.sub(r"\]\(docs/([^)]+)\)", r"](../\1)", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?:|\.\./|#)[^)]*\)", r"\1", text)


def _block(text: str) -> str:
    return f"```text\n{text}\n```"

"""Source archives of PyPI, downloaded but never built: pip would run their code, and that of what they need to build.

The indexes are those that pip is configured to use. Standard library only.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

from .download import download, verify

MOST_LINKS = 5_000_000  # bytes of a page that lists the files of a package
PIP_SECONDS = 60


def source_archive(package: str, most: int, sha256: str) -> bytes:
    """The source archive (.tar.gz) of a package such as `name==1.0`, at most so many bytes, verified.

    Raises:
        OSError: no index has it.
    """
    name, _, version = package.partition("==")
    wanted = re.compile(f"{_loose(name)}-{re.escape(version)}[.]tar[.]gz")
    failures = []
    for index in indexes():
        try:
            for link in _links(index, name):
                if wanted.fullmatch(unquote(urlsplit(link).path.rpartition("/")[2]).lower()):
                    content = download(link, most + 1)
                    verify(content, sha256)
                    return content
            failures.append(f"{_shown(index)} has no {package}.tar.gz")
        except (OSError, ValueError) as error:
            failures.append(f"{_shown(index)}: {error}")
    raise OSError("; ".join(failures) or f"pip, which knows where {package} is, cannot be run: install pip")


def indexes() -> list[str]:
    """The package indexes of pip's configuration, else the one that pip uses by itself; none without pip."""
    options = {}
    for line in _pip("config", "list").splitlines():
        key, _, value = line.partition("=")
        if re.fullmatch(r"'.*'|\".*\"", value):
            options[key] = str(ast.literal_eval(value))

    def chosen(name: str) -> str:
        sections = (":env:", "download", "global")  # as pip weighs them
        return next(filter(None, (options.get(f"{section}.{name}") for section in sections)), "")

    return [index for index in (chosen("index-url") or _default(), *chosen("extra-index-url").split()) if index]


def _default() -> str:
    """The index that pip's help names as its default."""
    found = re.search(r"--index-url.*?\(default\s+(https://\S+?)\)", _pip("download", "--help"), re.DOTALL)
    return found[1] if found else ""


def _pip(*words: str) -> str:
    """What pip prints; nothing if it is not there."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=PIP_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _links(index: str, name: str) -> Iterator[str]:
    """The addresses on an index's page about a package; only https, or the scheme of the index."""
    page = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', name).lower()}/"
    if page.startswith("file:"):
        page += "index.html"
    found = _Anchors()
    found.feed(download(page, MOST_LINKS).decode(errors="replace"))
    for reference in found.references:
        link = urljoin(page, reference)
        if urlsplit(link).scheme in ("https", urlsplit(index).scheme):
            yield link


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.references += [value for key, value in attrs if key == "href" and value]


def _loose(name: str) -> str:
    """A pattern for a package's name, however its letters and dashes are written."""
    return "[-_.]+".join(map(re.escape, re.split(r"[-_.]+", name.lower())))


def _shown(index: str) -> str:
    """The address without the user and the password that it may hold."""
    return index.replace(urlsplit(index).netloc, urlsplit(index).netloc.rpartition("@")[2], 1)

"""The files of the page."""

import re

from patchreorder.playground.app import PAGE


def test_the_files_name_no_other_server_and_no_inline_code():
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8")
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[^\s\"']*", text)) - {"http://www.w3.org/2000/svg"}
        assert not found, path.name
        assert "innerHTML" not in text
        assert "eval(" not in text
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*src=)", html) == []
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)


def test_every_control_has_a_label():
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    labelled = set(re.findall(r'for="([\w-]+)"', html))
    for tag in re.findall(r"<input[^>]*>", html):
        name = re.search(r'id="([\w-]+)"', tag)
        inside = re.search(rf"<label[^>]*>[^<]*{re.escape(tag)}", html)
        assert inside or (name and name[1] in labelled) or 'class="time"' in tag, tag

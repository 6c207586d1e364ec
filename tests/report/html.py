"""Reads pages back from HTML."""

import re
from html.parser import HTMLParser
from itertools import pairwise


class Reader(HTMLParser):
    """Collects the tags and the text of a page, and checks that every element that opens closes."""

    EMPTY = frozenset({"meta", "img", "br"})

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def assert_well_formed(html: str) -> None:
    tags = read(html).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, attributes in tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes or re.match(r"data:image/(png|jpeg|svg\+xml);base64,", attributes["src"])
        assert "href" not in attributes or attributes["href"] in [f"#{name}" for name in ids]
        assert tag != "img" or attributes["alt"]
        assert tag != "svg"
        assert tag != "th" or attributes["scope"] in ("row", "col", "colgroup")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[^\"]*", "", html))

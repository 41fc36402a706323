"""HTML pages as a browser without scripts sees them: their tags, attributes, text and tables."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' style='background:url(https://example.com/x)",
    "</style><svg onload=alert(1)>",
    "{{ 7 * 7 }} {% raw %}",
    r"$\frac{1}{0}$ \unknown $$$",
    "&lt;b&gt; &#60;script&#62;",
    "]]> --> <!-- <![CDATA[",
    "\u202eright to left\u202c \u2066isolated\u2069 \u200f",
    "\U0001f469\u200d\U0001f4bb emoji \U0001f1ea\U0001f1fa",
    "\x00\x1b[31m\x07 half \ud800 of a pair",
    "word " * 2000,
    "x" * 10_000,
    "",
]


class Parsed(HTMLParser):
    """tags: in their order, with the names of their attributes. values: of each attribute. text: between them.

    tables: by caption the texts of their rows' cells, the header first. entries: by heading what stands there by name.
    marked: the texts of all marks.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[tuple[str, str, str]] = []
        self.text = self.style = ""
        self.headings: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.entries: dict[str, dict[str, str]] = {}
        self.marked: list[str] = []
        self._open: list[str] = []
        self._texts: list[str] = []  # of each open tag
        self._rows: list[list[str]] = []
        self._name = ""
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "img"):
            self._open.append(tag)
            self._texts.append("")
        if tag == "tr":
            self._rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        text = self._texts.pop()
        if tag in ("th", "td"):
            self._rows[-1].append(text)
        elif tag == "caption":
            self._rows = []
            self.tables[text] = self._rows
        elif tag in ("h1", "h2", "h3"):
            self.headings.append(text)
        elif tag == "dt":
            self._name = text
        elif tag == "dd":
            self.entries.setdefault(self.headings[-1], {})[self._name] = text
        elif tag == "mark":
            self.marked.append(text)

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["style"]:
            self.style += data
            return
        self.text += data
        self._texts = [text + data for text in self._texts]

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def assert_inert(page: str) -> Parsed:
    """Nothing is executed or fetched, even where a browser knew no CSP; and the CSP comes before all that it is for."""
    parsed = Parsed(page)
    names = [tag for tag, _ in parsed.tags]
    assert not set(names) & {"script", "iframe", "object", "embed", "link", "form", "base", "svg", "math", "video", "audio"}
    assert names[:4] == ["html", "head", "meta", "meta"]
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert next(value for _, name, value in parsed.values if name == "content") == policy
    assert ("meta", "http-equiv", "Content-Security-Policy") in parsed.values
    for tag, name, value in parsed.values:
        assert not name.startswith("on"), name
        assert name not in ("srcset", "action", "formaction", "ping", "background", "http-equiv") or tag == "meta"
        if name in ("src", "href"):
            assert value.startswith("data:image/svg+xml;base64," if tag == "img" else "#part-"), value
        if name == "style":
            assert re.fullmatch(r"(border-top-(style|color)|background): ?[-#\w(). /]+(; border-top-color: #\w+)?", value), (
                value
            )
    assert not re.search(r"url|@import|expression|http", parsed.style)
    return parsed


def assert_accessible(parsed: Parsed) -> None:
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    count = [tag for tag, _ in parsed.tags].count
    assert count("table") == count("caption") == count("thead")
    assert all("scope" in names for tag, names in parsed.tags if tag == "th")
    assert all({"src", "alt"} == set(names) for tag, names in parsed.tags if tag == "img")
    assert all(value for tag, name, value in parsed.values if (tag, name) == ("img", "alt"))

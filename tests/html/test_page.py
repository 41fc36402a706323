"""A page: its structure is the same whatever the data says, nothing in it is fetched or executed, and it can be read aloud."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from bertkit.errors import MachineError, UsageError
from bertkit.html.charts import Line, draw_lines
from bertkit.html.page import MOST_BYTES, Entry, Section, render, require_packages, shown
from bertkit.report import Finding, Matrix, Piece, Table

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
    """tags: in their order, with the names of their attributes. values: of each attribute. text: between them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[tuple[str, str, str]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["style"]:
            self.style += data
        else:
            self.text += data

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


def page_of(text: str) -> str:
    """A page that has the text wherever data can be."""
    pieces = [Piece(text), Piece(text, text or "mark"), Piece(text, weight=0.5), Piece(text, weight=-1.0)]
    parts = [
        Table(text, [text, "number"], [[text, 1.5], [text, None]]),
        Matrix(text, ["", text, "b"], [[text, 3, 1], ["b", 0, 0]]),
        draw_lines(text, [Line(text, [1, 2], [0.5, 0.25])]),
        Finding("warning", text, (text, text), text),
        Entry(text, {text: pieces, "expected": [Piece(text)]}),
    ]
    return render(text, [Section(text, parts), Section("second", [])])


def test_structure_is_the_same_whatever_data_says() -> None:
    plain = assert_inert(page_of("plain"))
    assert_accessible(plain)
    for text in HOSTILE:
        page = page_of(text)
        parsed = assert_inert(page)
        assert parsed.tags == plain.tags, text
        assert parsed.style == plain.style
        assert shown(text) in parsed.text
        assert_accessible(parsed)
        page.encode("utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\u200e\u200f]", page)


def test_text_is_shown_as_it_is() -> None:
    assert (
        shown("a <b> $x$ \u00e9 \u05d0 \u4e2d \U0001f469\u200d\U0001f4bb")
        == "a <b> $x$ \u00e9 \u05d0 \u4e2d \U0001f469\u200d\U0001f4bb"
    )
    assert shown("a\u202eb\x00\n") == "a\\u202eb\\x00\n"
    assert shown("x" * 100 + "y" * 500 + "z" * 100) == "x" * 100 + " [...] " + "z" * 100
    assert shown(200 * "x") == 200 * "x"


def test_numbers_are_those_of_the_terminal() -> None:
    parsed = Parsed(render("t", [Section("s", [Table("t", ["name", "n"], [["a", 0.123456], ["b", None], ["c", 2.0]])])]))
    assert re.findall(r"0\.1235|2\.0000|-(?=\n)", parsed.text) == ["0.1235", "-", "2.0000"]
    cells = [(tag, value) for tag, name, value in parsed.values if name == "class" and tag in ("th", "td")]
    assert cells == [("th", "number"), *[("th", ""), ("td", "number")] * 3]


def test_a_matrix_is_shaded_by_the_share_of_a_row() -> None:
    matrix = Matrix("m", ["", "a", "b"], [["a", 3, 1], ["b", 0, 0]])
    parsed = Parsed(render("t", [Section("s", [matrix])]))
    shades = [float(value.split("/ ")[1].rstrip(")")) for tag, name, value in parsed.values if (tag, name) == ("td", "style")]
    assert shades == [0.45, 0.15, 0.0, 0.0]
    assert [value for tag, name, value in parsed.values if (tag, name) == ("td", "class")] == [
        "number right",
        "number",
        "number",
        "number right",
    ]


def test_words_for_and_against_are_told_apart_without_colour() -> None:
    pieces = [Piece("good", weight=1.0), Piece(" "), Piece("bad", weight=-0.5)]
    page = render("t", [Section("s", [Entry("e", {"text": pieces})])])
    assert re.findall(r'<span class="(\w+)" style="background: rgb\(var\(--(\w+)\) / ([.\d]+)\)">(\w+)</span>', page) == [
        ("for", "for", "0.6", "good"),
        ("against", "against", "0.3", "bad"),
    ]
    assert ".for { text-decoration: underline }" in page
    assert ".against { text-decoration: underline dotted }" in page


def test_a_page_that_is_too_large_is_refused() -> None:
    entry = Entry("e", {"text": [Piece("y" * 500)] * 5000})
    with pytest.raises(UsageError, match=r"the report would have 2\.\d MB; a report has at most 2") as error:
        render("t", [Section("s", [entry])])
    assert "--rows" in str(error.value.hint)
    assert MOST_BYTES == 2_000_000


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_packages_are_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_packages()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MachineError, match=f"report needs the package {package}") as error:
        require_packages()
    assert error.value.hint == 'python -m pip install "bertkit[report]"'

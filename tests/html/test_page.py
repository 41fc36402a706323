"""A page: its structure is the same whatever the data says, nothing in it is fetched or executed, and it can be read aloud."""

from __future__ import annotations

import re
import sys

import pytest
from html_pages import HOSTILE, Parsed, assert_accessible, assert_inert

from bertkit.errors import MachineError, UsageError
from bertkit.html.charts import Line, draw_lines
from bertkit.html.page import MOST_BYTES, Entry, Section, render, require_packages, shown
from bertkit.report import Finding, Matrix, Piece, Table


def page_of(text: str) -> str:
    """A page that has the text wherever data can be."""
    pieces = [Piece(text), Piece(text, text or "mark"), Piece(text, weight=0.5), Piece(text, weight=-1.0)]
    parts = [
        Table(text, [text, "number"], [[text, 1.5], [text, None]]),
        Matrix(text, ["", text, "b"], [[text, 3, 1], ["b", 0, 0]]),
        draw_lines(text, [Line(text, [1, 2], [0.5, 0.25]), Line(text, [1], [0.5])]),
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
    assert cells == [("th", ""), ("th", "number "), *[("th", "short"), ("td", "number short")] * 3]


def test_a_matrix_is_shaded_by_the_share_of_a_row() -> None:
    matrix = Matrix("m", ["", "a", "b"], [["a", 3, 1], ["b", 0, 0]])
    parsed = Parsed(render("t", [Section("s", [matrix])]))
    shades = [float(value.split("/ ")[1].rstrip(")")) for tag, name, value in parsed.values if (tag, name) == ("td", "style")]
    assert shades == [0.45, 0.15, 0.0, 0.0]
    assert [value for tag, name, value in parsed.values if (tag, name) == ("td", "class")] == [
        "number right short",
        "number short",
        "number short",
        "number right short",
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
    with pytest.raises(UsageError, match=r"the report would be 2\.\d MB; expected at most 2 MB") as error:
        render("t", [Section("s", [entry])])
    assert "--errors" in str(error.value.hint)
    assert MOST_BYTES == 2_000_000


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_packages_are_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_packages()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MachineError, match=f"report needs the package {package}") as error:
        require_packages()
    assert error.value.hint == 'python -m pip install "bertkit[report]"'

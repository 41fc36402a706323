"""Text of data is printed as it is."""

from __future__ import annotations

import io
from typing import Any

import pytest

from bertkit import progress

HOSTILE = (
    "[/INST] [bold]x[/bold] [link=file:///etc/passwd]y[/link]",
    "\x1b[2J\x1b]0;title\x07",
    "a\x00b\rc\td",
    "\u202eabc",
    "[red",
    "[/]",
)


def console(monkeypatch: pytest.MonkeyPatch, **options: Any) -> io.StringIO:
    text = io.StringIO()
    options = {"file": text, "width": 200, "highlight": False, "soft_wrap": True, **options}
    monkeypatch.setattr(progress, "console", progress._Console(**options))
    return text


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The output in a terminal with colours."""
    return console(monkeypatch, force_terminal=True, color_system="standard")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The output in a file."""
    return console(monkeypatch, force_terminal=False)


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_and_control_characters_are_shown_and_not_obeyed(text: str, screen: io.StringIO) -> None:
    for printed in (progress.note, progress.warn, progress.error):
        printed(text)
    progress.table(text, [text, "b"], [[text, 1.5], ["x", None]])
    visible = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    assert screen.getvalue().count(visible) == 6  # three lines, the title, the header and the row
    assert not [code for code in ("\x1b[2J", "\x1b]0", "\u202e", "\x00") if code in screen.getvalue()]


def test_a_bar_in_a_terminal(screen: io.StringIO) -> None:
    with progress.bar("train", 3, done=1) as bar:
        bar.advance(2, loss="0.25")
    assert [shown for shown in ("train", "3/3", "loss 0.25") if shown not in screen.getvalue()] == []


def test_table_shows_numbers_to_four_places_and_a_dash_for_none(lines: io.StringIO) -> None:
    progress.table("scores", ["score", "best", "count"], [["accuracy", 0.123456, 3], ["f1", None, 12]])
    rows = [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines.getvalue().splitlines()]
    assert ["score", "best", "count"] in rows
    assert ["accuracy", "0.1235", "3"] in rows
    assert ["f1", "-", "12"] in rows


def test_a_table_in_a_narrow_terminal_continues_below_and_cuts_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = ["label", "precision", "recall", "f1", "chunks", "predicted", "wrong type", "wrong bounds", "missed", "spurious"]
    rows = [["PER", *(number / 7 for number in range(1, 4)), *range(100, 106)], ["a long name", 0.5, 0.5, 0.5, *[7] * 6]]
    text = console(monkeypatch, force_terminal=True, color_system=None)
    progress.console.width = 60
    progress.table("types", columns, rows)
    shown = text.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 60
    assert (shown.count("types"), shown.count("PER")) == (2, 2)
    assert all(shown.count(number) == 1 for number in ("0.1429", "0.2857", "0.4286", *map(str, range(100, 106))))


def test_white_space_around_a_cell_or_a_column_is_seen(lines: io.StringIO) -> None:
    progress.table("labels", ["label", "spam "], [["spam", 1], ["spam ", 2], [" ", 3]])
    assert [shown for shown in ("│ spam ", "│ 'spam '", "│ ' '", "┃ 'spam '") if shown not in lines.getvalue()] == []


def test_a_bar_in_a_file_is_an_occasional_line(lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))  # ten seconds between two looks at it
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    with progress.bar("train", 8, done=2) as bar:
        for step in range(6):
            bar.advance(1, loss=f"0.{step}")
    shown = lines.getvalue().splitlines()
    assert shown == ["train 4/8  loss 0.1  40 s left", "train 6/8  loss 0.3  20 s left"]


def test_other_processes_show_only_what_the_main_one_does_not_know(lines: io.StringIO) -> None:
    with progress.on_main_process(is_main=False):
        progress.note("a")
        progress.warn("b")
        progress.table("c", ["d"], [["e"]])
        assert list(progress.with_bar("ab", "f", 2)) == ["a", "b"]
        assert lines.getvalue() == ""
        with progress.on_every_process():
            progress.note("mine")
            assert not progress.is_main_process()
        progress.note("g")
    assert lines.getvalue() == "mine\n"
    assert progress.is_main_process()


def test_a_rate_has_rows_a_second_and_the_time_left_where_the_size_is_known(monkeypatch, capsys) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.rate("predict") as rate:
        now += 1
        rate.move(10, 0.1)  # too early for a line
        now += 19
        rate.move(1990, 0.5)
        now += 20
        rate.move(500, None)
        rate.skip(0.8)  # an earlier command did so much
        now += 20
        rate.move(1000, 0.9)
    assert capsys.readouterr().err.splitlines() == [
        "predict 2,000 rows  100 rows/s  20 s left",
        "predict 2,500 rows  62 rows/s",
        "predict 1,000 rows  50 rows/s  20 s left",
    ]
    with progress.rate("predict", shown=False) as rate:
        now += 60
        rate.move(10, 0.5)
    assert capsys.readouterr().err == ""

"""Errors and reports as text: places, hints, counts."""

from __future__ import annotations

import pytest
from rich.text import Text

from bertkit.errors import DataError, MachineError, ModelError, UsageError, did_you_mean, excerpt, listed, not_a_choice, plural
from bertkit.report import Finding, Report, Table, show


@pytest.mark.parametrize(("error", "code"), [(UsageError, 2), (DataError, 3), (ModelError, 4), (MachineError, 5)])
def test_an_error_has_a_place_and_an_exit_code(error: type, code: int) -> None:
    assert (str(error("what", where="a.csv:3", hint="mend it")), str(error("what")), error.exit_code) == (
        *("what (a.csv:3)", "what"),
        code,
    )


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("sst3", ["sst2", "mrpc", "sst2"], "did you mean sst2?"),
        ("tran", ["trai", "train"], "did you mean train or trai?"),
        ("seperator", ["separator", "decorator"], "did you mean separator?"),  # the other is far less close
        ("x", ["b", "a"], "known: a, b"),
    ],
)
def test_the_closest_names_are_suggested(name: str, known: list[str], hint: str) -> None:
    assert did_you_mean(name, known) == hint


@pytest.mark.parametrize(("value", "hint"), [("liner", "did you mean linear?"), ("polynomial", None)])
def test_a_hint_does_not_repeat_the_choices(value: str, hint: str | None) -> None:
    error = not_a_choice("--schedule", value, ["linear", "cosine"])
    assert (error.what, error.hint) == (f"--schedule is {value!r}; expected linear or cosine", hint)


def test_an_error_and_its_hint_are_one_line() -> None:
    assert DataError("what", where="a.csv:3", hint="mend it").line == "what (a.csv:3); mend it"
    assert DataError("what").line == "what"


def test_lists_and_counts() -> None:
    assert [listed("ab", 2), listed("abcd", 2), listed("abcd", 3, "; ")] == ["a, b", "a, b, and 2 more", "a; b; c; and 1 more"]
    assert [listed("abc", 2, total=9), listed("a", total=1)] == ["a, b, and 7 more", "a"]
    assert [excerpt("abcdef", 6), excerpt("abcdefg", 6)] == ["abcdef", "abc..."]
    assert [plural(1, "row"), plural(0, "row"), plural(2, "process", "processes")] == ["1 row", "0 rows", "2 processes"]


def test_a_report_is_printed_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("error", "one", ("a:1", "a:2"), "mend it"), Finding("warning", "two"), Finding("note", "three")]
    show(Report([Table("title", ["name"], [[0.5], [None]]), *findings, Text("four")]))
    out, err = capsys.readouterr()
    assert out == ""
    cells = [line.strip("│┃ ") for line in err.splitlines()]
    assert [cell for cell in cells if cell in ("title", "name", "0.5000", "-")] == ["title", "name", "0.5000", "-"]
    assert cells[-4:] == ["error: one (a:1, a:2); mend it", "warning: two", "three", "four"]

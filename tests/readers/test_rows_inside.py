"""JSON documents that hold the rows inside (--rows), and rows that are lists (--columns)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from file_contents import parsed, refused, write

from bertkit.errors import UsageError
from bertkit.readers.formats import read_file
from bertkit.readers.parsers.jsonl import parse_jsonl

ROWS = [{"text": "a", "label": "x"}, {"text": "b\n", "label": "y"}]
COLUMNS = {"text": ["a", "b\n"], "label": ["x", "y"]}
DOCUMENT: dict[str, Any] = {"about": {"note": "{[", "n": [1, 2]}, "data": {"a.b": {"train": ROWS}, "test": ROWS[:1]}}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"rows": ROWS}, "rows"),
        ({"version": "1", "rows": ROWS, "more": {}}, "rows"),
        (DOCUMENT, "data.a.b.train"),
        ({"a": [{"rows": 1}], "b": {"a": "}", "rows": ROWS}}, "b.rows"),
        ({"é": {'"q"': ROWS}}, 'é."q"'),
    ],
)
def test_rows_inside_a_document(indent: int | None, document: dict[str, Any], path: str) -> None:
    text = "\n" + json.dumps(document, indent=indent)
    rows = parsed(parse_jsonl, text, rows=path)
    assert rows.columns == COLUMNS
    lines = text.split("\n")
    if indent:  # each row begins where its line says
        assert [lines[line - 1].strip() for line in rows.lines] == ["{", "{"]
        assert ['"text"' in lines[line] for line in rows.lines] == [True, True]
    else:
        assert [*rows.lines] == ["2[0]", "2[1]"], "which tells two rows of a line apart"


def test_rows_that_share_a_line_are_told_apart() -> None:
    text = '[\n{"text": "a"}, {"text": "b"},\n{"text": "c"}, [1]]'
    assert refused(parsed, parse_jsonl, text).where == "f:3[3]"
    rows = parsed(parse_jsonl, text.replace(", [1]", ""))
    assert [rows.where(row) for row in range(3)] == ["f:2[0]", "f:2[1]", "f:3"]
    half = '[{"text": "a"}, {"text": "\\ud83d"}]'
    assert refused(parsed, parse_jsonl, half).where == "f:1[1]"


@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_says_where_its_rows_are(indent: int | None) -> None:
    error = refused(parsed, parse_jsonl, json.dumps({"version": "1", "data": {"train": ROWS}}, indent=indent))
    assert (error.where, error.hint) == ("f", "if these are the rows: --rows data.train")
    error = refused(parsed, parse_jsonl, json.dumps(DOCUMENT, indent=indent), rows="data.dev")
    assert "no --rows data.dev" in error.what
    assert "data.a.b.train (2 rows)" in (error.hint or "")
    assert "data.test (1 row)" in (error.hint or "")
    of_fields = {"schema": {"fields": [{"name": "text"}]}, "data": ROWS}  # pandas, orient="table"
    assert "--rows data;" in (refused(parsed, parse_jsonl, json.dumps(of_fields, indent=indent)).hint or "")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "document", [{"text": {"0": "a", "1": "b"}, "label": {"0": "x", "1": "y"}}, {"0": ROWS[0], "1": ROWS[1]}]
)
def test_the_forms_that_pandas_writes_unasked_are_named(document: dict[str, Any], indent: int | None) -> None:
    error = refused(parsed, parse_jsonl, json.dumps(document, indent=indent))
    assert 'orient="records"' in (error.hint or "")
    assert len(str(error)) < 100, "it does not show the file"


def test_a_document_on_one_line_is_told_by_its_many_rows() -> None:
    lists = {"train": [["a", "x"]] * 10}
    assert refused(parsed, parse_jsonl, json.dumps(lists)).hint == "if these are the rows: --rows train"
    few = {"train": [["a", "x"]] * 9}
    assert parsed(parse_jsonl, json.dumps(few)).columns == {"train": [few["train"]]}


@pytest.mark.parametrize(
    ("text", "options", "where"),
    [
        (json.dumps({"a": {"b": 1}}, indent=1), {}, "f"),  # no rows anywhere
        (json.dumps({"a": ROWS}), {"rows": "a.b"}, "f"),
        (json.dumps({"a": {"b": 1}}), {"rows": "a"}, "f"),  # an object
        (json.dumps({"a": []}), {"rows": "a"}, "f"),
        (json.dumps({"a": [*ROWS, 7]}), {"rows": "a"}, "f:1[2]"),
        ('{\n"a": [{"b": 1},\n{"b": 2', {"rows": "a"}, "f:3"),  # cut off
        ('{\n"a": [{"b": 1},\n{"b": 2', {}, "f:1"),
        ("[]", {"rows": "a"}, "f"),
        ("", {"rows": "a"}, "f"),
        ('{"a": [["x", "y"], ["z"]]}', {"rows": "a", "columns": ("text", "label")}, "f:1[1]"),
    ],
)
def test_documents_without_such_rows_are_refused(text: str, options: dict[str, Any], where: str) -> None:
    assert refused(parsed, parse_jsonl, text, **options).where == where


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('[["a", "x"],\n["b\\n", "y"]]', {}),
        ('\n[["a", "x"], ["b\\n", "y"]]\n\n', {}),
        (json.dumps({"train": [["a", "x"], ["b\n", "y"]], "val": []}), {"rows": "train"}),
    ],
)
def test_rows_that_are_lists_get_names(text: str, options: dict[str, Any]) -> None:
    assert parsed(parse_jsonl, text, columns=("text", "label"), **options).columns == COLUMNS
    assert "--columns text,label" in (refused(parsed, parse_jsonl, text, **options).hint or "")


@pytest.mark.parametrize("rows", [[[1, "good"], [0, "bad"]], [[["a"], "x"], [{"b": 1}, "y"]], [["a", "x"]], [[1, {}]] * 9999])
def test_rows_that_are_lists_a_line_each(rows: list[Any]) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    found = parsed(parse_jsonl, text, columns=("a", "b"))
    assert (found.columns, [*found.lines]) == (
        {"a": [a for a, _ in rows], "b": [b for _, b in rows]},
        [*range(1, len(rows) + 1)],
    )
    assert "--columns" in (refused(parsed, parse_jsonl, text).hint or "")


def test_objects_take_no_names(tmp_path: Path) -> None:
    error = refused(read_file, write(tmp_path / "a.jsonl", '{"a": 1}\n'), columns=("a",), kind=UsageError)
    assert error.where == f"{tmp_path / 'a.jsonl'}:1"


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answers": [{"text": "a", "answer_start": 0}]},
        {"text": "t", "entities": [{"start": 0, "end": 1, "label": "X"}]},
        {"id": 7, "lists": [[1, 2]]},
    ],
)
def test_one_row_that_holds_lists_is_a_row(row: dict[str, Any]) -> None:
    assert parsed(parse_jsonl, json.dumps(row)).columns == {name: [value] for name, value in row.items()}

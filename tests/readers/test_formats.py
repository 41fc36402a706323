"""Which format a file is in, for every task family; options that a format does not take; what is no data file at all."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import re
import struct
import sys
from collections.abc import Callable
from datetime import date, datetime, time
from functools import partial
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest
from file_contents import refused, write

from bertkit import readers
from bertkit.errors import DataError, MachineError, UsageError
from bertkit.readers import content, join_blocks
from bertkit.readers.formats import (
    C3,
    CHOICES,
    CONLL,
    DELIMITED,
    JSON,
    LINES,
    SQUAD,
    TABLES,
    TAGGED,
    TEXTS,
    Format,
    endings_of,
    find_split_file,
    read_blocks,
    read_file,
    recognize,
)
from bertkit.readers.parsers import table
from bertkit.readers.parsers.conll import CONLLU_LINES
from bertkit.tasks import TextClassification

CONLL_TEXT = "EU NNP B-ORG\nrejects VBZ O\n\nBerlin NNP B-LOC\n"
TOKENS, TAGS = [["EU", "rejects"], ["Berlin"]], [["B-ORG", "O"], ["B-LOC"]]
CONLLU = "# text\n1\tEU\teu\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n\n1\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n"
AS_TABLE = {"a": ["1"], "b": ["2"]}


def packed(ending: str, data: bytes) -> bytes:
    return {".gz": gzip.compress, ".xz": lzma.compress}.get(ending, bytes)(data)


# --- by name, by look, by options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formats", "name", "text", "options", "columns"),
    [
        (TEXTS, "a.csv", "a,b\n1,2\n", {}, AS_TABLE),
        (TEXTS, "a.csv.gz", "a,b\n1,2\n", {}, AS_TABLE),
        (TEXTS, "a.xz", "a\tb\n1\t2\n", {}, AS_TABLE),
        (TAGGED, "a.conll.XZ", CONLL_TEXT, {}, {"tokens": TOKENS, "tags": TAGS}),
        (TEXTS, "a.TSV", "a\tb\n1\t2\n", {}, AS_TABLE),
        (TEXTS, "a.data", "a\tb\n1\t2\n", {}, AS_TABLE),
        (TEXTS, "a", "a;b\n1;2\n", {"separator": ";"}, AS_TABLE),
        (TEXTS, "a.txt", "1\t2\n", {"columns": ("a", "b")}, AS_TABLE),
        (TEXTS, "a.jsonl", '{"a": 1}\n', {}, {"a": [1]}),
        (TEXTS, "a.json-lines", '{"a": 1}\n', {}, {"a": [1]}),
        (TEXTS, "a.json", '[{"a": 1}]', {}, {"a": [1]}),
        (TEXTS, "a", '{"a":\t1}\n', {}, {"a": [1]}),
        (TEXTS, "a.txt", "{not JSON}\n", {}, {"text": ["{not JSON}"]}),
        (TEXTS, "a.txt", "one, two\n\nthree\n", {}, {"text": ["one, two", "", "three"]}),
        (TEXTS, "a.conll", "EU B-ORG\n", {}, {"text": ["EU B-ORG"]}),
        (TAGGED, "a.txt", "EU rejects it.\n\nSo.\tYes.\n", {}, {"text": ["EU rejects it.", "", "So.\tYes."]}),
        (TAGGED, "a.txt", "Yes.\tSo.\n", {}, {"text": ["Yes.\tSo."]}),
        (TAGGED, "a.txt", "EU\tB-X x\n", {"columns": ("words", "tags")}, {"words": ["EU"], "tags": ["B-X x"]}),
        (TAGGED, "a.jsonl", json.dumps({"tokens": TOKENS[0], "tags": TAGS[0]}), {}, {"tokens": TOKENS[:1], "tags": TAGS[:1]}),
        (TAGGED, "a.csv", "words,tags\nEU rejects,B-ORG O\n", {}, {"words": ["EU rejects"], "tags": ["B-ORG O"]}),
        (TAGGED, "a.tsv", "words\ttags\nEU rejects\tB-ORG O\n", {}, {"words": ["EU rejects"], "tags": ["B-ORG O"]}),
        (TAGGED, "a.tsv", "EU a\tB-X O\n", {"columns": ("words", "tags")}, {"words": ["EU a"], "tags": ["B-X O"]}),
        (TAGGED, "a.conll", "EU\nrejects\n\nBerlin\n", {}, {"tokens": TOKENS}),
        (TAGGED, "a", CONLLU, {}, {"tokens": [["EU"], ["go"]], "tags": [["PROPN"], ["VERB"]]}),
        (TAGGED, "a.conllu", CONLLU, {"column": "xpos"}, {"tokens": [["EU"], ["go"]], "tags": [["NNP"], ["VB"]]}),
        *(
            (TAGGED, name, "\ufeff" * mark + CONLL_TEXT.replace(" ", separator), {}, {"tokens": TOKENS, "tags": TAGS})
            for name, separator, mark in [
                *((name, " ", 0) for name in ("a.conll", "a.txt", "a", "a.bio", "a.tsv", "a.CONLL")),
                *((name, "\t", 1) for name in ("a.conll", "a.txt", "a", "a.tsv")),
            ]
        ),
        *(
            (TAGGED, name, CONLL_TEXT.replace(" ", "|"), {"separator": "|"}, {"tokens": TOKENS, "tags": TAGS})
            for name in ("a.conll", "a.txt")
        ),
        (TAGGED, "a.tsv", "a O X\n", {"column": "2"}, {"tokens": [["a"]], "tags": [["O"]]}),
    ],
)
def test_format_of_a_file(tmp_path: Path, formats: tuple[Format, ...], name: str, text: str, options, columns) -> None:
    path = write(tmp_path / name, packed(Path(name).suffix.lower(), text.encode()))
    found = read_file(path, formats, **options).columns
    assert {name: values for name, values in found.items() if name != CONLLU_LINES} == columns


def test_a_folder_of_files_side_by_side(tmp_path: Path) -> None:
    for name, text in (("seq.in", "EU rejects\n"), ("seq.out", "B-ORG O\n"), ("label", "news\n")):
        write(tmp_path / name, text)
    assert read_file(tmp_path, TAGGED).columns == {"tokens": TOKENS[:1], "tags": TAGS[:1], "label": ["news"]}
    assert refused(read_file, tmp_path).where == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", CONLL_TEXT, CONLL),
        ("a.json", '{"version": "1.1", "data": []}', SQUAD),
        ("a", '{"data": [{"paragraphs": []}]}', SQUAD),
        ("a.json", '[[["a"], [], "1"]]', C3),
        ("a", '[[["a"], [], "1"]]', C3),
        ("a.json", '[{"text": "[[a"}]', JSON),
        ("a.tsv", "text\tlabel\n", DELIMITED),
        ("a", "", LINES),
    ],
)
def test_format_is_recognized_among_all(tmp_path: Path, name: str, text: str, expected: Format) -> None:
    assert recognize(write(tmp_path / name, text), (CONLL, SQUAD, C3, *TEXTS)) == expected


@pytest.mark.parametrize(("name", "told"), [("a.conll", True), ("a.iob2.gz", True), ("a.txt", False)])
def test_columns_of_tags_that_are_read_as_texts_are_told(tmp_path: Path, name: str, told: bool) -> None:
    path = write(tmp_path / name, packed(Path(name).suffix, b"EU B-ORG\nrejects O\n"))
    found = read_file(path)
    assert found.columns == {"text": ["EU B-ORG", "rejects O"]}
    warning = f"{path}: CoNLL columns are for tags; here each line is a text"
    assert found.remarks.warnings == ((warning,) if told else ())


@pytest.mark.parametrize(
    ("formats", "name", "options"),
    [
        (TEXTS, "a.json", {"separator": ","}),
        (TEXTS, "a.csv", {"rows": "data"}),
        (TEXTS, "a.parquet", {"columns": ("a",)}),
        (TEXTS, "a.arrow", {"separator": ","}),
        (TEXTS, "a.xlsx", {"separator": ","}),
        (CHOICES, "a.tsv", {"rows": "data"}),
        (TAGGED, "a.jsonl", {"column": "2"}),
        (TAGGED, "a.csv", {"column": "2"}),
        (TAGGED, "a.conll", {"columns": ("a",)}),
        (TAGGED, "", {"separator": ","}),
        ((LINES,), "a", {"columns": ("a",)}),
    ],
)
def test_an_option_that_the_format_does_not_take(tmp_path: Path, formats: tuple[Format, ...], name: str, options: dict) -> None:
    if name:
        write(tmp_path / name, "")
    error = refused(read_file, tmp_path / name, formats, kind=UsageError, **options)
    assert error.where == str(tmp_path / name)
    assert f"--{next(iter(options))}" in error.what


def test_an_option_of_recipes_is_ignored_by_other_formats(tmp_path: Path) -> None:
    assert read_file(write(tmp_path / "a.jsonl", '{"a": 1}'), keep_broken=True).columns == {"a": [1]}


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (b"one\ntwo\n", {"text": ["one", "two"]}),
        (b'{"a": 1}\n', {"a": [1]}),
        (gzip.compress(b"a\tb\n1\t2\n", mtime=0), AS_TABLE),
        (b'id,question\r\n1,"hello, you"\r\n', {"id": ["1"], "question": ["hello, you"]}),
        (b'\xef\xbb\xbftext,label\n"two\nlines",a\n', {"text": ["two\nlines"], "label": ["a"]}),
        (b",text\n0,one\n", {"Unnamed: 0": ["0"], "text": ["one"]}),
        (b"Hello, you\nGood day, sir\n", {"text": ["Hello, you", "Good day, sir"]}),
        (b"text, of course\nno comma\n", {"text": ["text, of course", "no comma"]}),
        (b"text,label\n", {"text": ["text,label"]}),
        (b"this is what it is about,label\nyes,no\n", {"text": ["this is what it is about,label", "yes,no"]}),
    ],
)
def test_the_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes, columns: dict) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    examples = read_file("-")
    assert (examples.columns, examples.source) == (columns, "stdin")
    assert not sys.stdin.closed
    assert sys.stdin.read() == ""


@pytest.mark.parametrize(
    ("text", "columns", "expected", "said"),
    [
        ("good, then {};pos\n", ("text", "label"), ("good, then 1", "pos"), "note: ';' separates the columns"),
        ("good;so {}, pos\n", ("text", "label"), ("good", "so 1, pos"), "note: ';' separates the columns"),
        ("good; then {},pos\n", ("text", "label"), ("good; then 1", "pos"), ""),
        (
            "a {};b;pos\n",
            ("question",),
            ("a 1;b;pos",),
            "warning: each line is read as one text; if ';' separates columns",
        ),
        ("well; {}\nthen\n", ("question",), ("well; 1",), ""),
        ("one {}\n", ("question",), ("one 1",), ""),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a"])
def test_a_separator_that_only_the_rows_show(
    tmp_path: Path, name: str, text: str, columns: tuple[str, ...], expected: tuple[str, ...], said: str
) -> None:
    path = write(tmp_path / name, "".join(text.format(row) for row in range(1, 9)))
    examples = read_file(path, columns=columns)
    assert tuple(values[0] for values in examples.columns.values()) == expected
    notes, warnings, _ = examples.remarks
    (*remarks,) = [*(f"note: {note}" for note in notes), *(f"warning: {warning}" for warning in warnings)]
    assert [remark.replace(f"{path}: ", "").startswith(said) for remark in remarks] == [True] * bool(said)


NAMED = "words (raw)"
LINES_ONLY = ["good", *["fine"] * 30, "well, then; and | so", '"Great" movie', '"never closed', ""]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (f"{NAMED},no\none,1\ntwo,2\n", {NAMED: ["one", "two"], "no": ["1", "2"]}),
        ("no;what they said yesterday\n1;one\n", {"no": ["1"], "what they said yesterday": ["one"]}),
        (f'"no","{NAMED}"\n"1","one"\n', {"no": ["1"], NAMED: ["one"]}),
        (f"{NAMED}\n" + "\n".join(LINES_ONLY) + "\n", {NAMED: LINES_ONLY}),
        (f'"{NAMED}"\n"one, or\ntwo"\n"three"\n', {NAMED: ["one, or\ntwo", "three"]}),
        (f"{NAMED.upper()}\none\n", {NAMED.upper(): ["one"]}),
        (f"{NAMED}\n", {"text": [NAMED]}),
        (f"all {NAMED}\none\n", {"text": [f"all {NAMED}", "one"]}),
        (f"the {NAMED},no\none\ntwo, or three\nfour\n", {"text": [f"the {NAMED},no", "one", "two, or three", "four"]}),
        ("was it good?,pos\nyes it was,neg\n", {"text": ["was it good?,pos", "yes it was,neg"]}),
    ],
)
def test_a_header_is_recognized_by_the_names_of_columns(tmp_path: Path, text: str, columns: dict) -> None:
    recipe = TextClassification(text=NAMED, text_pair="what they said yesterday")
    path = write(tmp_path / "a", text)
    examples = recipe.read_file(path)
    assert examples.columns == columns
    named = [name for name in columns if [*columns] == [name] != ["text"]]
    expected = [f"{path}: the first line, {name!r}, is the name of the column" for name in named]
    if text.startswith("no;"):
        expected.append(f"{path}: ';' separates the columns (change it with --separator)")
    assert examples.remarks.notes == tuple(expected)
    assert (examples.lines[0], len(examples.lines)) == (1 if [*columns] == ["text"] else 2, len(examples))


@pytest.mark.parametrize("formats", [TEXTS, CHOICES, TAGGED])
@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a,Where is it\nb,I paid\n", {"k": ["a", "b"], "text": ["Where is it", "I paid"]}),
        ("a;Where, then\nb;I paid\n", {"k": ["a", "b"], "text": ["Where, then", "I paid"]}),
        ('"Where, then"\n"a ""b"""\n', {"text": ["Where, then", 'a "b"']}),
        ("Where, then\nI paid\n", {"text": ["Where, then", "I paid"]}),
    ],
)
def test_columns_make_a_table_of_any_text(tmp_path: Path, formats: tuple[Format, ...], text: str, columns: dict) -> None:
    for name in ("a", "a.txt", "a.log"):
        assert read_file(write(tmp_path / name, text), formats, columns=tuple(columns)).columns == columns


def test_a_header_of_one_quoted_text_is_data(tmp_path: Path) -> None:
    error = refused(read_file, write(tmp_path / "a.csv", '"Where, then"\n"I paid"\n'))
    assert (error.where, error.hint) == (f"{tmp_path}/a.csv:1", "if the file has no header, name its columns: --columns text")
    assert "--separator ';'" in str(refused(read_file, write(tmp_path / "b.csv", "one;two\n1\n2\n3\n")).hint)


def test_a_workbook_under_a_wrong_name_is_still_refused_as_one(tmp_path: Path) -> None:
    error = refused(read_file, write(tmp_path / "a.xlsx", "a,b\n"), columns=("x", "y"))
    assert "workbook" in error.what


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('"Where, then"\n"a ""b"""\nc\n', "--columns text"),
        ('1,"Where, then"\n2,"b"\n', "--columns label,text"),
        ('"Hello," she said.\nHe said "no"\n', None),
    ],
)
def test_lines_that_look_like_csv_are_named(tmp_path: Path, text: str, hint: str | None) -> None:
    examples = read_file(write(tmp_path / "a.txt", text))
    assert examples.columns == {"text": text.splitlines()}
    assert [warning.partition("name its columns: ")[2] for warning in examples.remarks.warnings] == [hint][: bool(hint)]


@pytest.mark.parametrize("end", ["", ",", ",, "])  # of every line, as spreadsheets write empty columns
@pytest.mark.parametrize("swallowed", [3, 30])
def test_a_quote_that_swallows_rows_is_a_warning(tmp_path: Path, swallowed: int, end: str) -> None:
    rows = "".join(f"where is parcel {number},delivery\n" for number in range(swallowed))
    text = f'text,label\nfine,billing\n"where is it,delivery\n{rows}late again",delivery\nfine,billing\n'
    path = write(tmp_path / "a.csv", text.replace("\n", f"{end}\n"))
    examples = read_file(path)
    assert (len(examples), examples.columns["label"]) == (3, ["billing", "delivery", "billing"])
    (warning,) = examples.remarks.warnings
    assert warning.startswith(f"column 'text' has a text of {swallowed + 2} lines that look like rows")
    assert warning.endswith(f"({path}:3)")


def test_a_text_of_many_lines_is_no_warning(tmp_path: Path) -> None:
    poem = "One line, no more\nand a second\nthen, one, by, one\nthe rest\nto the end, at last"
    examples = read_file(write(tmp_path / "a.csv", f'text,label\n"{poem}",x\n"a\nb\nc\nd\ne\nf",y\n'))
    assert (examples.columns["text"][0], examples.remarks.warnings) == (poem, ())


def test_names_in_a_csv_may_have_punctuation(tmp_path: Path) -> None:
    text = "no;customer's words (raw);answered?\n1;one;yes\n"
    assert [*read_file(write(tmp_path / "a.csv", text)).columns] == ["no", "customer's words (raw)", "answered?"]


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("body,my class\none,1\n", True),
        ("a great movie,pos\nawful,neg\nfine,pos\n", False),
        ("word,NN\nright,JJ\nother,NN\n", False),
        ("what is it?,topic\nwho,person\n", False),
    ],
)
def test_a_header_that_is_read_as_data_is_named(tmp_path: Path, text: str, warns: bool) -> None:
    file = write(tmp_path / "a.csv", text)
    examples = read_file(file, columns=("text", "label"))
    assert [",".join(row) for row in zip(*examples.columns.values(), strict=True)] == text.splitlines()
    first = text.partition("\n")[0].replace(",", ", ")
    warning = f"the first row, '{first}', is read as data; if it is a header, omit --columns ({file}:1)"
    assert examples.remarks.warnings == ((warning,) if warns else ())
    assert not read_file(file, columns=tuple(first.split(", "))).remarks.warnings


def test_a_value_in_a_column_without_a_name_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label,\ngood,a,\nnice,a,note\nbad,b,\n")
    assert refused(read_file, path).where == f"{path}:3"
    examples = read_file(path, on_error="skip")
    assert (examples.columns["text"], len(examples.remarks.warnings)) == (["good", None, "bad"], 1)
    assert "column 3 of the header has no name, but here" in examples.remarks.warnings[0]
    path = write(tmp_path / "b.csv", "text,label,,\ngood,a,,note\n")
    assert "column 4 of the header has no name" in refused(read_file, path).what


def test_a_header_again_is_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\ngood,a\ntext,label\nbad,b\n")  # as `cat a.csv b.csv` joins files
    warning = f"a row repeats the header: are these several files in one? ({path}:3)"
    assert read_file(path).remarks.warnings == (warning,)
    assert not read_file(path, columns=("text", "label")).remarks.warnings


def test_a_broken_row_of_a_table_on_the_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"id,text\n1,go away\n2,win a prize, now\n")))
    assert refused(read_file, "-").where == "stdin:3"


# --- blocks ------------------------------------------------------------------------------------------------------------------

BIG = {
    "a.csv": "text,label\n" + "".join(f'"a ""b""\n{i}, é",{i}\n\n' for i in range(30)),
    "a.tsv": "text\tlabel\n" + "".join(f"é {i}\t{i}\r\n" for i in range(30)),
    "one.csv": "text\n" + "a\n\n" * 60,
    "a.jsonl": "".join(json.dumps({"text": "é", f"x{i % 7}": i}, ensure_ascii=False) + "\n" * (i % 3 + 1) for i in range(30)),
    "a.json": json.dumps([{"text": "é", f"x{i % 7}": i} for i in range(30)], indent=1),
    "a.conll": "".join("é O\nb O\n" + "\n" * (i % 2 + 1) for i in range(30)),
    "a.txt": "é\n\nb\r\n" * 30,
}


@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize("block", [40, 64, 101])
def test_blocks_of_any_size_hold_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block: int) -> None:
    path = write(tmp_path / name, BIG[name])
    whole = read_file(path, TAGGED)
    monkeypatch.setattr(content, "BLOCK", block)
    monkeypatch.setattr(readers, "ROWS", 4)
    blocks = [*read_blocks(path, TAGGED)]
    joined = join_blocks(blocks)
    assert (joined.columns, [*joined.lines]) == (whole.columns, [*whole.lines])
    assert (len(blocks) == 1) is (name == "a.json")
    assert name == "a.json" or max(map(len, blocks)) <= block


def test_error_in_a_later_block_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "BLOCK", 16)
    good = b"good,1\n" * 50
    for broken in (b"\xe9,1\n", b"a\0,1\n", b"a,b,1\n", b'"a,1\n', b'"a" b,1\n', b"a\rb,1\n"):
        path = write(tmp_path / "a.csv", b"text,label\n" + good + broken + good)
        assert refused(read_file, path).where == f"{path}:52"
    for broken in (b"\xe9\t1\n", b"a\tb\t1\n"):
        path = write(tmp_path / "a.tsv", b"text\tlabel\n" + good.replace(b",", b"\t") + broken)
        assert refused(read_file, path).where == f"{path}:52"


# --- Parquet, Arrow and Excel in every family ------------------------------------------------------------------------------


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def as_arrow(rows: list[dict[str, Any]]) -> bytes:
    out, table = io.BytesIO(), pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def as_xlsx(rows: list[dict[str, Any]]) -> bytes:
    return workbook([*rows[0]], *([*row.values()] for row in rows))


def workbook(*rows: list[Any], sheets: int = 1) -> bytes:
    out, book = io.BytesIO(), openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for _ in range(1, sheets):
        book.create_sheet().append(["other"])
    book.save(out)
    return out.getvalue()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    return "".join(",".join(map(str, row)) + "\n" for row in ([*rows[0]], *(row.values() for row in rows))).encode()


SPAN = {"text": ["movie"], "answer_start": [4]}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {  # a row; a flat one; its options
    "text-classification": ({"text": "{} movie", "label": "{}"}, {"text": "{} movie"}, ()),
    "multiple-choice": (
        {"context": "{}", "choices": ["good", "{}"], "label": 0},
        {"context": "{}", "choice0": "good", "choice1": "bad"},
        ("--choices", "choice0,choice1"),
    ),
    "token-classification": ({"tokens": ["EU", "{}"], "tags": ["B-ORG", "O"]}, {"tokens": "EU rejects {}"}, ()),
    "question-answering": (
        {"question": "who {}", "context": "the movie was good", "answers": SPAN},
        {"question": "who {}", "context": "the movie was good"},
        (),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_parquet_arrow_and_excel(run_bertkit, tiny_model_dir: Path, tmp_path: Path, family: str) -> None:
    nested, flat, options = FAMILIES[family]
    rows = [json.loads(json.dumps(nested).replace("{}", word)) for word in ("good", "bad", "NA", "null")]
    new = [json.loads(json.dumps(flat).replace("{}", word)) for word in ("good", "NA")]
    write(tmp_path / "train.parquet", as_parquet(rows))
    write(tmp_path / "dev.arrow", as_arrow(rows))
    data = ("--train", "train.parquet", "--validation", "dev.arrow", "-m", tiny_model_dir, "-o", "run")
    ran = run_bertkit("finetune", family, *data, "--max-steps", 1, "--max-length", 32, "--device", "cpu")
    assert ran.code == 0, ran.err
    options += ("--precision", "fp32")  # auto measures anew, and may choose another one on a busy machine
    outs = [
        run_bertkit("predict", "run", write(tmp_path / "new.csv", as_csv(new)), *options).out,
        run_bertkit("predict", "run", write(tmp_path / "new.xlsx", as_xlsx(new)), *options).out,
        run_bertkit("predict", "run", "-", *options, stdin=as_parquet(new)).out,
    ]
    assert (len(set(outs)), len(outs[0].splitlines())) == (1, 2)


# --- Excel -----------------------------------------------------------------------------------------------------------------


def test_a_sheet_is_read_as_csv_would_be(tmp_path: Path) -> None:
    rows = [
        ["text", "value", None],
        ["NA", 3.0],
        [" good ", True, ""],
        [],
        [None, 0.1],
        ["two\nlines", datetime(2024, 1, 31)],
        ["late", datetime(2024, 1, 31, 13, 45)],
        [1_000_000, time(13, 45)],
        ["#N/A", date(2024, 1, 31)],
        ["last"],
        [],
    ]
    path = write(tmp_path / "a.xlsx", workbook(*rows, sheets=2))
    examples = read_file(path)
    assert examples.columns == {
        "text": ["NA", " good ", "", "two\nlines", "late", "1000000", "#N/A", "last"],
        "value": ["3", "TRUE", "0.1", "2024-01-31", "2024-01-31 13:45:00", "13:45:00", "2024-01-31", ""],
    }
    assert examples.where(2) == f"{path}:5"
    assert examples.remarks.warnings == (f"{path}: only the sheet 'Sheet' is read, not 'Sheet1'",)
    with pytest.raises(DataError, match=re.escape("the file is empty (sheet 'Sheet', the only one that is read)")):
        read_file(write(tmp_path / "b.xlsx", workbook(sheets=2)))
    assert read_file(path, columns=("a", "b")).columns["a"][:2] == ["text", "NA"]
    assert read_file(write(tmp_path / "a", workbook(["a", "b"], [1, 2]))).columns == AS_TABLE
    assert read_file(write(tmp_path / "a", workbook(["a"], [], ["x"], [], ["y"], []))).columns == {"a": ["", "x", "", "y"]}


@pytest.mark.parametrize("validation", ["50%", "notes.xlsx"])
def test_what_a_reader_warns_of_comes_before_the_error(validation, tmp_path, tiny_model_dir, run_bertkit) -> None:
    write(tmp_path / "notes.xlsx", workbook(["written by Ann"], ["do not edit"], ["twice"], sheets=2))
    options = ("--validation", validation, "--model", tiny_model_dir, "--output-dir", "run")
    ran = run_bertkit("finetune", "text-classification", "--train", "notes.xlsx", *options)
    warning, error, _ = ran.err.splitlines()[-3:]
    assert (ran.code, "only the sheet 'Sheet' is read" in warning, error[:22]) == (3, True, "error: it is not clear"), ran.err


@pytest.mark.parametrize("validation", ["50%", "twice.csv"])
def test_a_warning_that_explains_the_labels_comes_before_their_error(validation, tmp_path, tiny_model_dir, run_bertkit) -> None:
    rows = "".join(f"a film,t{row}\n" for row in range(30))
    (tmp_path / "twice.csv").write_text(f"text,label\n{rows}text,label\n{rows.replace('t', 'u')}", encoding="utf-8")
    options = ("--validation", validation, "--model", tiny_model_dir, "--output-dir", "run")
    ran = run_bertkit("finetune", "text-classification", "--train", "twice.csv", *options)
    warning, error, _ = ran.err.splitlines()[-3:]
    assert (ran.code, "a row repeats the header" in warning, "61 distinct values" in error) == (3, True, True), ran.err
    checked = run_bertkit("check", "twice.csv", "--recipe", "text-classification", "--validation", validation)
    said = [line for line in (checked.err + checked.out).splitlines() if "a row repeats the header" in line]
    assert (checked.code, len(said), len({*said})) == (3, *[1 if validation == "50%" else 2] * 2), checked.err


def test_a_warning_of_rows_that_check_reads_again_is_printed_once(tmp_path: Path, run_bertkit) -> None:
    rows = "".join(f"a film {row},{'pn'[row % 2]}\n" for row in range(30))
    (tmp_path / "a.csv").write_text(f"text,label\n{rows}text,label\nb,\"['x', 'y']\"\n{rows}", encoding="utf-8")
    ran = run_bertkit("check", "a.csv", "--recipe", "text-classification", "--validation", "50%")
    said = [line for line in (ran.err + ran.out).splitlines() if "a row repeats the header" in line]
    assert (ran.code, len(said), len({*said})) == (3, 2, 2), f"not once for each split: {ran.err}"


@pytest.mark.parametrize(
    ("data", "line", "hint"),
    [
        (workbook(["text", "label"], ["a", 1], ["b", 2, "c"]), ":3", "clear the cell 'c'"),
        (workbook(["A title"], ["text", "label"], ["a", 1]), ":2", "title above the header, remove it; else clear the cell"),
        (workbook(["text", None, "label"], ["a", 1, 2]), ":1", ""),
        (workbook(["text", "text"], ["a", 1]), ":1", "give each column its own name"),
        (workbook(["text"]), "", ""),
        (workbook(), "", ""),
        (b"", "", ""),
        (b"text,label\n", "", ""),
        (workbook(["text"], ["a"])[:-40], "", ""),
    ],
)
def test_broken_workbook_is_refused_by_row(tmp_path: Path, data: bytes, line: str, hint: str) -> None:
    path = write(tmp_path / "a.xlsx", data)
    error = refused(read_file, path)
    assert (error.where, hint in (error.hint or "")) == (f"{path}{line}", True), error.hint


def test_without_openpyxl_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.xlsx", workbook(["text"], ["a"]))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    error = refused(read_file, path, kind=MachineError)
    assert (error.where, "bertkit[xlsx]" in error.hint) == (str(path), True)


# --- what is no data file ----------------------------------------------------------------------------------------------------

NOISE = random.Random(1).randbytes(5000)


@pytest.mark.parametrize("name", ["a", "a.csv", "a.tsv", "a.jsonl", "a.gz"])
@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04\x14\0\0\0" + NOISE,
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + NOISE,
        b"\xff\xd8\xff\xe0\0\x10JFIF" + NOISE,
        b"%PDF-1.7\n%\xe2\xe3\n1 0 obj\n" + NOISE,
        b"%PDF-1.4\n1 0 obj\n",
        b"{\\rtf1\\ansi text\\par}\n",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500) + NOISE,
        gzip.compress(NOISE),
        gzip.compress(gzip.compress(b"text,label\n")),
        bytes(range(256)) * 8,
        struct.pack("<200i", *range(200)),
        bytes(3000),
        NOISE,
    ],
    ids=[
        "zip",
        "png",
        "jpeg",
        "pdf",
        "pdf in ASCII",
        "rtf",
        "xls",
        "gzip",
        "gzip twice",
        "bytes",
        "integers",
        "zeros",
        "noise",
    ],
)
def test_binary_files_are_named_as_such(tmp_path: Path, name: str, data: bytes) -> None:
    path = write(tmp_path / name, data)
    for formats in (TEXTS, TAGGED, (SQUAD, *TABLES, LINES)):
        error = refused(read_file, path, formats)
        assert error.where == str(path)
        assert not any(tool in (error.hint or "") for tool in ("tr -d", "iconv"))


@pytest.mark.parametrize(("form", "data"), [("parquet", as_parquet([{"text": "a"}])), ("xlsx", as_xlsx([{"text": "a"}]))])
def test_data_file_under_a_wrong_name(tmp_path: Path, form: str, data: bytes) -> None:
    path = write(tmp_path / "a.csv", data)
    error = refused(read_file, path)
    assert (error.where, f".{form}" in (error.hint or "")) == (str(path), True)


@pytest.mark.parametrize("packing", [".gz", ".xz"])
def test_packed_file_that_is_damaged(tmp_path: Path, packing: str) -> None:
    text = b"\xef\xbb\xbftext\tlabel\r\n" + b"hello\t1\r\n" * 100
    data = packed(packing, text)
    assert len(read_file(write(tmp_path / "a.csv", data), separator="\t")) == 100  # known by its bytes, whatever its name
    twice = packed(packing, text[:200]) + packed(packing, text[200:])  # as gzip -c b >> a writes
    assert len(read_file(write(tmp_path / f"a.TSV{packing.upper()}", twice))) == 100
    for damaged in (data[:-12], data[:12], data[:30] + b"\xff\xff\xff" + data[33:]):
        path = write(tmp_path / f"a.tsv{packing}", damaged)
        assert refused(read_file, path).where == str(path)


@pytest.mark.parametrize("formats", [TEXTS, TAGGED])
def test_file_that_is_not_there(tmp_path: Path, formats: tuple[Format, ...]) -> None:
    write(tmp_path / "train.csv", "a,b\n1,2\n")
    for name, hint in (("trian.csv", "train.csv"), ("data/train.csv", str(tmp_path)), ("train.csv/x", "")):
        error = refused(read_file, tmp_path / name, formats)
        assert error.where == str(tmp_path / name)
        assert hint in (error.hint or "")


# --- the file of a split -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endings", "files", "expected"),
    [
        (endings_of(TEXTS), "train.tsv.gz training.csv README.md", {"train": "train.tsv.gz", "more": None}),
        (endings_of(TEXTS), "dev.csv dev_mm.tsv valid.txt", {"validation": "dev.csv", "validation_mm": "dev_mm.tsv"}),
        (endings_of(TEXTS), "train.parquet Dev.xlsx test.json", {"train": "train.parquet", "dev": "Dev.xlsx"}),
        (endings_of(TAGGED), "train.parquet train.md dev.txt", {"train": "train.parquet", "validation": "dev.txt"}),
        ((".char.bmes",), "train.tsv train.char.bmes.xz", {"train": "train.char.bmes.xz", "validation": None}),
        (endings_of(TEXTS), "dev.csv validation.csv", {"validation": DataError}),
        (endings_of(TAGGED), "train.conll train.txt.xz", {"train": DataError}),
    ],
)
def test_file_of_a_split(tmp_path: Path, endings: tuple[str, ...], files: str, expected: dict[str, Any]) -> None:
    for name in files.split():
        write(tmp_path / name, "x")
    find = partial(find_split_file, tmp_path, endings=endings)
    for split, name in expected.items():
        if name is DataError:
            assert refused(find, split).where == str(tmp_path)
        else:
            assert find(split) == (name and tmp_path / name)


# --- what is linear in its input, and what would not be ---------------------------------------------------------------------


def test_names_of_columns_are_compared_once_each() -> None:
    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

        def strip(self, chars: str | None = None) -> Name:
            return self

    table._header([Name(f"c{number}") for number in range(2000)], "a.csv:1")
    assert Name.compared < 20_000  # each with all others would be two million


def test_rows_of_json_that_share_no_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text("".join(json.dumps({"text": "a", f"key{number}": 1}) + "\n" for number in range(5000)), encoding="utf-8")
    with pytest.raises(DataError) as error:
        read_file(path)
    assert "different keys" in error.value.what
    path.write_text("".join(json.dumps({"text": "a", f"key{number}": 1}) + "\n" for number in range(500)), encoding="utf-8")
    assert len(read_file(path).columns) == 501


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_a_packed_file_ends_at_its_largest_size(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    for name, data, count in (("rows.csv", b"text,label\n" + b"good,pos\n" * 40_000, 40_000), ("line.txt", b"a" * 400_000, 1)):
        path = tmp_path / f"{name}.{ending}"
        path.write_bytes(pack(data))
        with pytest.raises(DataError) as error:
            read_file(path, max_file_size=0.0003)
        assert "unpacks to more than 0.0003 GB" in error.value.what
        assert "--max-file-size" in str(error.value.hint)
        assert len(read_file(path, max_file_size=0.0005)) == count


def test_a_damaged_arrow_file_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    table = pa.table({"text": ["good movie", "bad"], "label": ["a", "b"]})
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    whole = out.getvalue()
    path = tmp_path / "rows.arrow"
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        try:
            read_file(path)
        except DataError:
            refused += 1
    assert refused > len(whole) // 10

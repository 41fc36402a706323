"""Which format a file is in, for every task family; options that a format does not take; what is no data file at all."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import struct
import sys
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest

from bertkit import readers
from bertkit.errors import DataError, MachineError, UsageError
from bertkit.readers import content as module
from bertkit.readers import join_blocks
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

CONLL_TEXT = "EU NNP B-ORG\nrejects VBZ O\n\nBerlin NNP B-LOC\n"
TOKENS, TAGS = [["EU", "rejects"], ["Berlin"]], [["B-ORG", "O"], ["B-LOC"]]
CONLLU = "# text\n1\tEU\teu\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n\n1\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n"
AS_TABLE = {"a": ["1"], "b": ["2"]}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def packed(ending: str, data: bytes) -> bytes:
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[ending](data)


# --- by name, by look, by options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize(
    ("formats", "name", "text", "options", "columns"),
    [
        (TEXTS, "a.csv", "a,b\n1,2\n", {}, AS_TABLE),
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
def test_the_format_of_a_file(
    tmp_path: Path, formats: tuple[Format, ...], name: str, text: str, options: dict, columns: dict, packing: str
) -> None:
    path = write(tmp_path / (name + packing), packed(packing, text.encode()))
    assert read_file(path, formats, **options).columns == columns


def test_a_folder_of_files_side_by_side(tmp_path: Path) -> None:
    for name, text in (("seq.in", "EU rejects\n"), ("seq.out", "B-ORG O\n"), ("label", "news\n")):
        write(tmp_path / name, text)
    assert read_file(tmp_path, TAGGED).columns == {"tokens": TOKENS[:1], "tags": TAGS[:1], "label": ["news"]}
    with pytest.raises(DataError):
        read_file(tmp_path)


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
def test_a_format_is_recognized_among_all(tmp_path: Path, name: str, text: str, expected: Format) -> None:
    assert recognize(write(tmp_path / name, text), (CONLL, SQUAD, C3, *TEXTS)) == (expected, text)


@pytest.mark.parametrize(
    ("formats", "name", "options"),
    [
        (TEXTS, "a.json", {"separator": ","}),
        (TEXTS, "a.jsonl", {"columns": ("a",)}),
        (TEXTS, "a.parquet", {"columns": ("a",)}),
        (TEXTS, "a.arrow", {"separator": ","}),
        (TEXTS, "a.xlsx", {"separator": ","}),
        (CHOICES, "a.json", {"columns": ("a",)}),
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
    with pytest.raises(UsageError) as refused:
        read_file(tmp_path / name, formats, **options)
    assert refused.value.where == str(tmp_path / name)
    assert f"--{next(iter(options))}" in refused.value.what


def test_a_share_of_ragged_rows_is_for_tables_alone(tmp_path: Path) -> None:
    assert read_file(write(tmp_path / "a.jsonl", '{"a": 1}'), ragged=0.1).columns == {"a": [1]}


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (b"one\ntwo\n", {"text": ["one", "two"]}),
        (b'{"a": 1}\n', {"a": [1]}),
        (gzip.compress(b"a\tb\n1\t2\n", mtime=0), AS_TABLE),
    ],
)
def test_the_standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes, columns: dict) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    examples = read_file("-")
    assert (examples.columns, examples.source) == (columns, "stdin")
    assert not sys.stdin.closed
    assert sys.stdin.read() == ""


# --- blocks ------------------------------------------------------------------------------------------------------------------

BIG = {
    "a.csv": "text,label\n" + "".join(f'"a ""b""\n{i}, é",{i}\n\n' for i in range(30)),
    "a.tsv": "text\tlabel\n" + "".join(f"é {i}\t{i}\r\n" for i in range(30)),
    "one.csv": "text\n" + "a\n\n" * 30,
    "a.jsonl": "".join(json.dumps({"text": "é", f"x{i % 7}": i}, ensure_ascii=False) + "\n" * (i % 3 + 1) for i in range(30)),
    "a.json": json.dumps([{"text": "é", f"x{i % 7}": i} for i in range(30)], indent=1),
    "a.conll": "".join("é O\nb O\n" + "\n" * (i % 2 + 1) for i in range(30)),
    "a.txt": "é\n\nb\r\n" * 30,
}


@pytest.mark.parametrize("name", BIG)
@pytest.mark.parametrize(("block", "rows"), [(1, 1), (7, 4), (2**20, 5)])
def test_blocks_of_any_size_hold_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block: int, rows: int
) -> None:
    path = write(tmp_path / name, BIG[name])
    whole = read_file(path, TAGGED)
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(readers, "ROWS", rows)
    blocks = list(read_blocks(path, TAGGED if block > 1000 or name != "a.txt" else (LINES,)))
    joined = join_blocks(blocks)
    assert (joined.columns, list(joined.lines)) == (whole.columns, list(whole.lines))
    assert [len(each) for each in blocks[:-1]] == [rows] * (len(blocks) - 1)
    assert 1 <= len(blocks[-1]) <= rows


def test_a_fault_in_a_later_block_is_named_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 16)
    good = "good,1\n" * 50
    for fault in (b"\xe9,1\n", b"a\0,1\n", b"a,b,1\n", b'"a,1\n', b'"a" b,1\n', b"a\rb,1\n"):
        path = write(tmp_path / "a.csv", b"text,label\n" + good.encode() + fault + good.encode())
        with pytest.raises(DataError) as refused:
            read_file(path)
        assert refused.value.where == f"{path}:52", fault


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
    out, workbook = io.BytesIO(), openpyxl.Workbook()
    for row in ([*rows[0]], *([*row.values()] for row in rows)):
        workbook.active.append(row)
    workbook.save(out)
    return out.getvalue()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    return "".join(",".join(map(str, row)) + "\n" for row in ([*rows[0]], *(row.values() for row in rows))).encode()


FAMILIES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], tuple[str, ...]]] = {  # rows; flat rows; their options
    "text-classification": (
        [{"text": f"{name} movie", "label": name} for name in ("good", "bad", "NA", "null")],
        [{"text": f"{name} movie"} for name in ("good", "bad")],
        (),
    ),
    "multiple-choice": (
        [{"context": "the movie was", "choices": ["good", f"bad {i}"], "label": i % 2} for i in range(4)],
        [{"context": f"movie {i}", "choice0": "good", "choice1": "bad"} for i in range(3)],
        ("--choices", "choice0,choice1"),
    ),
    "token-classification": (
        [{"tokens": ["EU", "rejects", f"{i}"], "tags": ["B-ORG", "O", "O"]} for i in range(4)],
        [{"tokens": f"EU rejects {i}"} for i in range(3)],
        (),
    ),
    "question-answering": (
        [
            {"question": f"who {i}", "context": "the movie was good", "answers": {"text": ["movie"], "answer_start": [4]}}
            for i in range(4)
        ],
        [{"question": f"who {i}", "context": "the movie was good"} for i in range(3)],
        (),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_parquet_arrow_and_excel(run_bertkit, tiny_model_dir: Path, tmp_path: Path, family: str) -> None:
    rows, flat, options = FAMILIES[family]
    write(tmp_path / "train.parquet", as_parquet(rows))
    write(tmp_path / "dev.arrow", as_arrow(rows))
    data = ("--train", "train.parquet", "--validation", "dev.arrow", "-m", tiny_model_dir, "-o", "run")
    ran = run_bertkit("finetune", family, *data, "--max-steps", 1, "--max-length", 32, "--device", "cpu")
    assert ran.code == 0, ran.err
    for values, more, forms in (
        (rows, (), {"jsonl": "".join(map("{}\n".format, map(json.dumps, rows))).encode(), "arrow": as_arrow(rows)}),
        (flat, options, {"csv": as_csv(flat), "xlsx": as_xlsx(flat)}),
    ):
        outs = []
        for ending, content in forms.items():
            ran = run_bertkit("predict", "run", write(tmp_path / f"new.{ending}", content), *more)
            assert ran.code == 0, ran.err
            outs.append(ran.out)
        ran = run_bertkit("predict", "run", "-", *more, stdin=as_parquet(values))
        assert ran.code == 0, ran.err
        assert outs == [ran.out] * len(outs)
        assert len(ran.out.splitlines()) == len(values)


# --- Excel -----------------------------------------------------------------------------------------------------------------


def workbook(*rows: list[Any], sheets: int = 1) -> bytes:
    out, book = io.BytesIO(), openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for _ in range(1, sheets):
        book.create_sheet().append(["other"])
    book.save(out)
    return out.getvalue()


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
    assert len(examples.remarks.notes) == 1
    assert read_file(path, columns=("a", "b")).columns["a"][:2] == ["text", "NA"]
    assert read_file(write(tmp_path / "a", workbook(["a", "b"], [1, 2]))).columns == AS_TABLE
    assert read_file(write(tmp_path / "a", workbook(["a"], [], ["x"], [], ["y"], []))).columns == {"a": ["", "x", "", "y"]}


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (workbook(["text", "label"], ["a", 1], ["b", 2, "c"]), ":3"),
        (workbook(["text", None, "label"], ["a", 1, 2]), ":1"),
        (workbook(["text", "text"], ["a", 1]), ":1"),
        (workbook(["text"]), ""),
        (workbook(), ""),
        (b"", ""),
        (b"text,label\n", ""),
        (workbook(["text"], ["a"])[:-40], ""),
    ],
)
def test_faults_of_workbooks_by_row(tmp_path: Path, data: bytes, line: str) -> None:
    path = write(tmp_path / "a.xlsx", data)
    with pytest.raises(DataError) as refused:
        read_file(path)
    assert refused.value.where == f"{path}{line}"
    assert "\n" not in f"{refused.value} {refused.value.hint}"


def test_without_openpyxl_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.xlsx", workbook(["text"], ["a"]))
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MachineError) as refused:
        read_file(path)
    assert (refused.value.where, refused.value.exit_code) == (str(path), 5)
    assert "bertkit[xlsx]" in (refused.value.hint or "")


# --- what is no data file ----------------------------------------------------------------------------------------------------

NOISE = random.Random(1).randbytes(5000)


@pytest.mark.parametrize("name", ["a", "a.csv", "a.tsv", "a.txt", "a.jsonl", "a.conll", "a.gz"])
@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04\x14\0\0\0" + NOISE,
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + NOISE,
        b"\xff\xd8\xff\xe0\0\x10JFIF" + NOISE,
        b"%PDF-1.7\n%\xe2\xe3\n1 0 obj\n" + NOISE,
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500) + NOISE,
        gzip.compress(NOISE),
        gzip.compress(gzip.compress(b"text,label\n")),
        bytes(range(256)) * 8,
        struct.pack("<200i", *range(200)),
        bytes(3000),
        NOISE,
    ],
    ids=["zip", "png", "jpeg", "pdf", "xls", "gzip", "gzip twice", "bytes", "integers", "zeros", "noise"],
)
def test_binary_files_are_named_as_such(tmp_path: Path, name: str, data: bytes) -> None:
    path = write(tmp_path / name, data)
    for formats in (TEXTS, CHOICES, TAGGED, (SQUAD, *TABLES, LINES)):
        with pytest.raises(DataError) as refused:
            read_file(path, formats)
        assert refused.value.where == str(path)
        assert not any(tool in (refused.value.hint or "") for tool in ("tr -d", "iconv"))


@pytest.mark.parametrize(("form", "data"), [("parquet", as_parquet([{"text": "a"}])), ("xlsx", as_xlsx([{"text": "a"}]))])
def test_a_data_file_under_a_wrong_name(tmp_path: Path, form: str, data: bytes) -> None:
    path = write(tmp_path / "a.csv", data)
    with pytest.raises(DataError) as refused:
        read_file(path)
    assert refused.value.where == str(path)
    assert f".{form}" in (refused.value.hint or "")


@pytest.mark.parametrize("packing", [".gz", ".xz"])
def test_packed_files_that_are_damaged(tmp_path: Path, packing: str) -> None:
    text = b"\xef\xbb\xbftext\tlabel\r\n" + b"hello\t1\r\n" * 100
    data = packed(packing, text)
    assert len(read_file(write(tmp_path / "a.csv", data), separator="\t")) == 100  # known by its bytes, whatever its name
    twice = write(tmp_path / f"a.TSV{packing.upper()}", packed(packing, text[:200]) + packed(packing, text[200:]))
    assert len(read_file(twice)) == 100  # as gzip -c b >> a writes
    for damaged in (data[:-12], data[:12], data[:30] + b"\xff\xff\xff" + data[33:]):
        path = write(tmp_path / f"a.tsv{packing}", damaged)
        with pytest.raises(DataError, match="unpacked") as refused:
            read_file(path)
        assert refused.value.where == str(path)


@pytest.mark.parametrize("formats", [TEXTS, CHOICES, TAGGED, (LINES,)])
def test_files_that_are_not_there(tmp_path: Path, formats: tuple[Format, ...]) -> None:
    write(tmp_path / "train.csv", "a,b\n1,2\n")
    for name, hint in (("trian.csv", "train.csv"), ("data/train.csv", str(tmp_path)), ("train.csv/x", None)):
        with pytest.raises(DataError) as refused:
            read_file(tmp_path / name, formats)
        assert refused.value.where == str(tmp_path / name)
        assert hint is None or hint in (refused.value.hint or "")


# --- the file of a split -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endings", "files", "expected"),
    [
        (endings_of(TEXTS), "train.tsv.gz training.csv README.md", {"train": "train.tsv.gz", "more": None}),
        (
            endings_of(TEXTS),
            "dev.csv dev_matched.tsv valid.txt",
            {"validation": "dev.csv", "validation_matched": "dev_matched.tsv"},
        ),
        (endings_of(TEXTS), "train.parquet Dev.xlsx test.json", {"train": "train.parquet", "dev": "Dev.xlsx"}),
        (endings_of(TAGGED), "train.parquet train.md dev.txt", {"train": "train.parquet", "validation": "dev.txt"}),
        ((".char.bmes",), "train.tsv train.char.bmes.xz", {"train": "train.char.bmes.xz", "validation": None}),
        (endings_of(TEXTS), "dev.csv validation.csv", {"validation": DataError}),
        (endings_of(TAGGED), "train.conll train.txt.xz", {"train": DataError}),
    ],
)
def test_the_file_of_a_split(tmp_path: Path, endings: tuple[str, ...], files: str, expected: dict[str, Any]) -> None:
    for name in files.split():
        write(tmp_path / name, "x")
    for split, name in expected.items():
        if name is DataError:
            with pytest.raises(DataError) as refused:
                find_split_file(tmp_path, split, endings)
            assert refused.value.where == str(tmp_path)
        else:
            assert find_split_file(tmp_path, split, endings) == (name and tmp_path / name)

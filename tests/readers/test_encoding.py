"""Text that is not UTF-8: --encoding for every reader of text, and the errors that name it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import openpyxl
import pytest
from file_contents import content_of, refused, write

from bertkit.errors import UsageError
from bertkit.readers.content import BLOCK
from bertkit.readers.documents import Documents
from bertkit.readers.encoding import guess_encoding
from bertkit.readers.faults import Faults
from bertkit.readers.formats import C3, SQUAD, TAGGED, TEXTS, Format, read_file
from bertkit.readers.text_sources import Source, look_for

LATIN = ["latin-1", "windows-1252", "utf-16", "utf-16-le", "utf-32", "utf-8", "utf-8-sig", "gb18030"]


@pytest.mark.parametrize("encoding", LATIN)
@pytest.mark.parametrize(
    ("name", "text", "formats", "columns"),
    [
        ("a.csv", 'text,label\n"café,\nnoir",é\n', TEXTS, {"text": ["café,\nnoir"], "label": ["é"]}),
        ("a.csv", "text;label\ncafé, noir;1\n", TEXTS, {"text": ["café, noir"], "label": ["1"]}),
        ("a.tsv", "text\tlabel\ncafé\t1\n", TEXTS, {"text": ["café"], "label": ["1"]}),
        ("a.jsonl", '{"text": "café"}\n', TEXTS, {"text": ["café"]}),
        ("a.json", '[{"text": "café"}]', TEXTS, {"text": ["café"]}),
        ("a.txt", "café\n\nnoir", TEXTS, {"text": ["café", "", "noir"]}),
        ("a.txt", "__label__é café\n", TEXTS, {"label": ["é"], "text": ["café"]}),
        ("a.conll", "café O\nParis B-LOC\n", TAGGED, {"tokens": [["café", "Paris"]], "tags": [["O", "B-LOC"]]}),
    ],
)
def test_every_text_reader_takes_an_encoding(
    tmp_path: Path, encoding: str, name: str, text: str, formats: tuple[Format, ...], columns: dict[str, list]
) -> None:
    data = text.encode(encoding)
    assert read_file(write(tmp_path / name, data), formats, encoding=encoding).columns == columns
    assert read_file(write(tmp_path / f"{name}.gz", gzip.compress(data)), formats, encoding=encoding).columns == columns


def test_whole_documents_take_an_encoding(tmp_path: Path) -> None:
    qas = [{"id": "1", "question": "où ?", "answers": [{"text": "café", "answer_start": 0}]}]
    squad = {"version": "1", "data": [{"title": "", "paragraphs": [{"context": "café", "qas": qas}]}]}
    data = json.dumps(squad, ensure_ascii=False).encode("latin-1")
    assert read_file(write(tmp_path / "a.json", data), (SQUAD,), encoding="latin-1").columns["context"] == ["café"]
    data = '[[["这个"], [{"question": "问", "choice": ["一", "二"]}], "1"]]'.encode("gb18030")
    assert read_file(write(tmp_path / "b.json", data), (C3,), encoding="gb18030").columns["question"] == ["问"]
    folder = tmp_path / "train"
    folder.mkdir()
    write(folder / "seq.in", "café\n".encode("latin-1"))
    write(folder / "seq.out", "O\n".encode("latin-1"))
    assert read_file(folder, TAGGED, encoding="latin-1").columns["tokens"] == [["café"]]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "gb18030"])
def test_text_longer_than_a_block(tmp_path: Path, encoding: str) -> None:
    lines = [f"é{number} café" for number in range(BLOCK // 8)]
    path = write(tmp_path / "a.txt", "\r\n".join(lines).encode(encoding))
    rows = read_file(path, encoding=encoding)
    assert rows.columns["text"] == lines
    assert rows.where(len(lines) - 1) == f"{path}:{len(lines)}"


def test_a_workbook_is_read_as_it_is(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["text"])
    book.active.append(["café"])
    book.save(tmp_path / "a.xlsx")
    assert read_file(tmp_path / "a.xlsx", encoding="latin-1").columns == {"text": ["café"]}


@pytest.mark.parametrize(
    ("encoding", "data", "line"),
    [
        ("utf-8", b"ok\ncaf\xe9\n", 2),
        ("gb18030", b"ok\nok\n\xff\xff\n", 3),
        ("utf-16-le", "ok\nok".encode("utf-16-le") + b"\x00\xd8" + "\n".encode("utf-16-le"), 2),
        ("ascii", b"ok\n\xc3\xa9\n", 2),  # bytes that UTF-8 has
        ("latin-1", "ok\n".encode("utf-16-le"), 1),
    ],
)
def test_text_of_another_encoding_is_refused_by_line(tmp_path: Path, encoding: str, data: bytes, line: int) -> None:
    path = write(tmp_path / "a.txt", data)
    error = refused(read_file, path, encoding=encoding)
    assert (error.where, encoding in error.what, "--encoding" in (error.hint or "")) == (f"{path}:{line}", True, True)


@pytest.mark.parametrize("encoding", ["klingon", "hex", ""])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    error = refused(read_file, write(tmp_path / "a.txt", "a\n"), encoding=encoding, kind=UsageError)
    assert f"--encoding is {encoding!r}" in error.what


def test_old_line_ends_of_a_table(tmp_path: Path) -> None:
    assert read_file(write(tmp_path / "a.csv", "text,label\ra,1\rb,2\r")).columns == {"text": ["a", "b"], "label": ["1", "2"]}


def test_documents_take_an_encoding(tmp_path: Path) -> None:
    source = Source(str(write(tmp_path / "a.txt", "café\n\nnoir\n".encode("latin-1"))))
    assert [document.lines for document in Documents(source, encoding="latin-1")] == [["café"], ["noir"]]
    faults = Faults("skip")
    source = Source(str(write(tmp_path / "b.txt", b"one\n\xff\xff\ntwo\n")))
    assert [document.lines for document in Documents(source, encoding="gb18030", faults=faults)] == [["one"], ["two"]]
    assert faults.count == 1


@pytest.mark.parametrize(
    "data",
    [
        b"ok,1\nab\0c,1\n",
        b"\xef\xbb\xbfa\xff,1\n",
        "été,1\n".encode() + b"bad \xe9,1\n",
        "café".encode("utf-16"),
        "café\n".encode("latin-1"),
        bytes(3000),
    ],
    ids=["nul", "ff", "part", "utf-16", "latin-1", "zeros"],
)
def test_no_hint_changes_or_drops_data(data: bytes) -> None:
    hint = refused(content_of(data, "a.csv").text).hint
    assert hint
    assert not any(tool in hint for tool in ("tr ", "iconv", "sed ", "> ", "remove", "delete", "drop"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "idna"])
def test_an_encoding_that_the_text_does_not_have_is_refused(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.csv", "text,label\ngood,1\n")
    with pytest.raises(UsageError):
        read_file(path, encoding=encoding)


@pytest.mark.parametrize("encoding", ["latin-1", "windows-1252", "iso-8859-15", "koi8-r"])
@pytest.mark.parametrize("text", ["Wären Sie schön, größer, früher, später, öfter\n" * 3, "这个很好吃\n" * 4, "é" * 2**17])
def test_utf8_is_not_read_letter_for_several(tmp_path: Path, text: str, encoding: str) -> None:
    path = write(tmp_path / "a.txt", text)
    error = refused(read_file, path, encoding=encoding, kind=UsageError)
    assert error.what == f"{path} is text in UTF-8, which --encoding {encoding} would garble"
    assert error.hint == "leave out --encoding; files in another encoding need a command of their own"
    lines = {"text": text.splitlines()}
    for right in ("utf-8", "UTF8", "utf_8_sig"):
        assert read_file(path, encoding=right).columns == lines
    read_file(write(tmp_path / "b.txt", b"sch\xf6n, sp\xe4ter\n" * 9), encoding=encoding)  # no UTF-8


def test_a_mark_of_utf8_wins_over_the_option(tmp_path: Path) -> None:
    """Of the files of a folder, which share one --encoding."""
    (tmp_path / "a.txt").write_bytes("café\n".encode("utf-8-sig"))
    (tmp_path / "b.txt").write_bytes("café\n".encode("latin-1"))
    sources = look_for([str(tmp_path)]).sources.values()
    assert [[each.lines for each in Documents(source, encoding="latin-1")] for source in sources] == [[["café"]]] * 2


@pytest.mark.parametrize(
    ("text", "encoding", "guess"),
    [
        ("Grüße, Füße", "latin-1", "Windows-1252"),
        ("Müßiggang; die Straße heißt „Süß“", "windows-1252", "Windows-1252"),
        ("aïe, naïf, Noël", "latin-1", "Windows-1252"),
        ("这个问题很好。ok没有问题", "gb18030", "GB18030"),
        ("用iPhone的app和Mac的CPU", "gb18030", "GB18030"),
        ("我love你。very好", "gb18030", "GB18030"),
    ],
)
def test_a_guess_at_an_encoding(text: str, encoding: str, guess: str) -> None:
    assert guess_encoding(text.encode(encoding)) == guess

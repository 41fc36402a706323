"""Documents of running text: every format and packing gives the same documents, and faults are named by line."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DataError
from bertkit.readers import content
from bertkit.readers import documents as module
from bertkit.readers.documents import Document, Documents, Source, find_sources

TEXT = "One.\nTwo.\n\n\n Three. \r\n\nFour.\nFive."
EXPECTED = [["One.", "Two."], ["Three."], ["Four.", "Five."]]


def read(path: Path | str, **options) -> list[Document]:
    (source,) = find_sources([str(path)])
    return list(Documents(source, **options))


def lines_of(found: list[Document]) -> list[list[str]]:
    return [document.lines for document in found]


def fails(path: Path | str, **options) -> DataError:
    with pytest.raises(DataError) as caught:
        read(path, **options)
    return caught.value


# --- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "pack"), [("txt", bytes), ("txt.gz", gzip.compress), ("TXT.XZ", lzma.compress), ("raw", bytes)]
)
def test_plain_text_of_any_name_and_packing(tmp_path, ending, pack):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(pack(TEXT.encode()))
    found = read(path)
    assert lines_of(found) == EXPECTED
    assert [document.where for document in found] == [f"{path}:{line}" for line in (1, 5, 7)]


def test_without_a_blank_line_each_line_is_a_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\nOne. Two.\nThree.\n\n\n", encoding="utf-8")  # blank lines at the ends separate nothing
    assert lines_of(read(path)) == [["One. Two."], ["Three."]]
    assert lines_of(read(path, layout="blank-lines")) == [["One. Two.", "Three."]]
    path.write_text(TEXT, encoding="utf-8")
    assert lines_of(read(path, layout="lines")) == [["One."], ["Two."], ["Three."], ["Four."], ["Five."]]


def test_the_layout_is_that_of_the_first_block_for_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "BLOCK", 8)
    path = tmp_path / "a.txt"
    path.write_text("One.\nTwo.\nThree.\n\nFour.\n", encoding="utf-8")  # the blank line lies beyond the first 8 bytes
    assert lines_of(read(path)) == [["One."], ["Two."], ["Three."], ["Four."]]


@pytest.mark.parametrize("ending", ["jsonl", "json", "ndjson.gz"])
def test_json_lines(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    rows = [{"id": 1, "text": "One.\nTwo."}, {"id": 2, "text": None}, {"id": 3, "text": " \n "}, {"text": "null"}]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    found = read(path)
    assert lines_of(found) == [["One.", "Two."], ["null"]]
    assert [document.where for document in found] == [f"{path}:1", f"{path}:4"]


def test_parquet_in_several_batches(tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = [f"Text {i}." if i % 3 else None for i in range(3000)]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": range(3000), "body": texts}), path)
    found = read(path, text_column="body")
    assert lines_of(found) == [[text] for text in texts if text]
    assert found[-1].where == f"{path}:2999"
    error = fails(path)
    assert error.what == "there is no column 'text'"
    assert "id, body" in error.hint


def test_the_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TEXT.encode())))
    found = read("-")
    assert lines_of(found) == EXPECTED
    assert found[1].where == "stdin:5"


def test_the_hub_gives_the_rows_of_its_train_split(monkeypatch):
    asked = []

    def stream(name):
        asked.append(name)
        yield from ({"text": "One.\nTwo."}, {"text": "Three."})

    monkeypatch.setattr(module, "stream_hub", stream)
    found = read("hub:owner/name:configuration")
    assert asked == ["owner/name:configuration"]
    assert found == [
        Document(["One.", "Two."], "hub:owner/name:configuration:0"),
        Document(["Three."], "hub:owner/name:configuration:1"),
    ]


@given(
    st.lists(
        st.lists(st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1), min_size=1),
        min_size=2,
    ),
    st.sampled_from([1, 7, 64, 2**20]),
)
def test_what_is_written_is_read_whatever_the_blocks(tmp_path_factory, documents, block):
    path = tmp_path_factory.mktemp("texts") / "a.txt"
    path.write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8", newline="\n")
    before, content.BLOCK = content.BLOCK, block
    try:
        wanted = [[stripped for line in lines if (stripped := line.strip().removeprefix("\ufeff"))] for lines in documents]
        if documents[0][0].startswith("\ufeff") or any("\ufeff" in line for lines in documents for line in lines):
            return  # a byte-order mark at the beginning of a block is none of the text
        assert lines_of(read(path, layout="blank-lines")) == [lines for lines in wanted if lines]
    finally:
        content.BLOCK = before


def test_the_position_ends_at_the_size_on_disk(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(TEXT.encode() * 1000))
    (source,) = find_sources([str(path)])
    reader = Documents(source)
    assert reader.position == 0
    assert len(list(reader)) == 2001
    assert reader.position == source.size == path.stat().st_size


def test_real_files_hold_what_their_sources_say(data_dir):
    """The documents and lines that SOURCES.md counts."""
    counts = {
        "text-en/imdb-reviews-unsup.txt.xz": (22500, 67331),
        "text-en/novels-67.txt.xz": (2854, 176664),
        "text-zh/zh-docs.txt.xz": (6574, 56250),
    }
    for name, expected in counts.items():
        found = read(data_dir / name)
        assert (len(found), sum(len(document.lines) for document in found)) == expected


# --- sources -----------------------------------------------------------------------------------------------------------


def test_folders_globs_and_doubles(tmp_path):
    for name in (
        "b.txt",
        "a.jsonl.gz",
        "sub/c.PARQUET",
        "sub/d.txt.xz",
        "notes.md",
        "README",
        ".hidden.txt",
        ".git/e.txt",
        "f.csv",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    found = find_sources([str(tmp_path)])
    assert [Path(source.name).relative_to(tmp_path).as_posix() for source in found] == [
        "a.jsonl.gz",
        "b.txt",
        "sub/c.PARQUET",
        "sub/d.txt.xz",
    ]
    assert {source.size for source in found} == {1}
    assert find_sources([str(tmp_path / "*.txt"), str(tmp_path / "b.txt")]) == [Source(str(tmp_path / "b.txt"), 1)]
    deep = find_sources([str(tmp_path / "**" / "*.xz")])
    assert [Path(source.name).name for source in deep] == ["d.txt.xz"]
    assert find_sources([str(tmp_path / "notes.md")])[0].size == 1  # named, it is text whatever its ending


@pytest.mark.parametrize(
    ("name", "what"),
    [("missing.txt", "no such file"), ("*.txt", "no file matches"), ("empty", "the folder holds no .txt, .jsonl or .parquet")],
)
def test_names_that_lead_to_nothing(tmp_path, name, what):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=what):
        find_sources([str(tmp_path / name)])


# --- faults ------------------------------------------------------------------------------------------------------------


def test_bytes_that_are_not_utf8_are_named_by_line_in_any_block(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "BLOCK", 16)
    path = tmp_path / "a.txt"
    path.write_bytes(b"good line of text\n" * 9 + "na\u00efve\n".encode("latin-1") + b"good\n")
    error = fails(path)
    assert error.where == f"{path}:10"
    assert "0xef" in error.what
    path.write_bytes(b"good line of text\n" * 9 + b"a\0b\n")
    assert fails(path).where == f"{path}:10"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": "a"', "not valid JSON"),
        ('["a"]', "expected one JSON object a line"),
        ('{"body": "a"}', "there is no column 'text'"),
        ('{"text": 3}', "text is 3; expected text"),
    ],
)
def test_rows_of_json_that_hold_no_text(tmp_path, line, what):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n' + line + "\n", encoding="utf-8")
    error = fails(path)
    assert what in error.what
    assert error.where == f"{path}:3"


@pytest.mark.parametrize("ending", ["txt.gz", "txt.xz", "parquet"])
def test_damaged_files(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    packed = {"txt.gz": gzip.compress, "txt.xz": lzma.compress, "parquet": bytes}[ending](TEXT.encode() * 999)
    for data in (packed[: len(packed) // 2], packed[:20] + b"no such format" * 9):
        path.write_bytes(data)
        error = fails(path)
        assert "cannot be unpacked" in error.what or "not a readable Parquet file" in error.what

"""Documents of running text: every format and packing gives the same documents, and errors have their line."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from file_contents import refused, write
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.readers import content
from bertkit.readers import documents as module
from bertkit.readers.documents import Document, Documents, Source, find_sources

TEXT = "One.\nTwo.\n\n\n Three. \r\n\nFour.\nFive."
EXPECTED = [["One.", "Two."], ["Three."], ["Four.", "Five."]]


def read(path: Path | str, **options) -> list[Document]:
    (source,) = find_sources([str(path)])
    return list(Documents(source, **options))


def lines_of(path: Path | str, **options) -> list[list[str]]:
    return [document.lines for document in read(path, **options)]


@pytest.mark.parametrize(
    ("ending", "pack"), [("txt", bytes), ("txt.gz", gzip.compress), ("TXT.XZ", lzma.compress), ("raw", bytes)]
)
def test_plain_text_of_any_name_and_packing(tmp_path, ending, pack):
    path = write(tmp_path / f"a.{ending}", pack(TEXT.encode()))
    lines = [1, 5, 7]
    assert read(path) == [Document(text, f"{path}:{line}") for text, line in zip(EXPECTED, lines, strict=True)]


def test_without_a_blank_line_each_line_is_a_document(tmp_path):
    path = write(tmp_path / "a.txt", "\nOne. Two.\nThree.\n\n\n")  # blank lines at the ends separate nothing
    assert lines_of(path) == [["One. Two."], ["Three."]]
    assert lines_of(path, layout="blank-lines") == [["One. Two.", "Three."]]
    assert lines_of(write(path, TEXT), layout="lines") == [["One."], ["Two."], ["Three."], ["Four."], ["Five."]]
    assert lines_of(write(path, "\n \n")) == []


def test_the_layout_is_that_of_the_first_blocks_for_the_whole_file(tmp_path, monkeypatch):
    monkeypatch.setattr(content, "BLOCK", 8)
    path = write(tmp_path / "a.txt", "One.\nTwo.\nThree.\n\nFour.\nFive.\n\nSix.\n")
    for blocks, layout, documents in ((1, "lines", 6), (2, "blank-lines", 3)):  # the first blank line lies in the second block
        monkeypatch.setattr(module, "_HEAD", blocks)
        reader = Documents(Source(str(path)))
        assert (len([*reader]), reader.found_layout) == (documents, layout)


@pytest.mark.parametrize("ending", ["jsonl", "json", "ndjson.gz", "json-lines"])
def test_json_lines(tmp_path, ending):
    rows = [{"id": 1, "text": "One.\nTwo."}, {"id": 2, "text": None}, {"id": 3, "text": " \n "}, {"text": "half \ud83d"}]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    path = write(tmp_path / f"a.{ending}", gzip.compress(data) if ending.endswith("gz") else data)
    assert read(path) == [Document(["One.", "Two."], f"{path}:1"), Document(["half \ufffd"], f"{path}:4")]


def test_parquet_in_several_batches(tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = [f"Text {i}." if i % 3 else None for i in range(3000)]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": range(3000), "body": texts}), path)
    assert lines_of(path, text_column="body") == [[text] for text in texts if text]
    assert read(path, text_column="body")[-1].where == f"{path}:2999"
    error = refused(read, path)
    assert (error.where, "id, body" in error.hint) == (f"{path}:0", True)


def test_the_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TEXT.encode())))
    assert read("-")[1] == Document(["Three."], "stdin:5")


def test_the_hub_gives_the_rows_of_its_train_split(monkeypatch):
    rows = {"owner/name:configuration": [{"text": "One.\nTwo."}, {"text": "Three."}]}
    monkeypatch.setattr(module, "stream_hub", lambda name: iter(rows[name]))
    name = "hub:owner/name:configuration"
    assert read(name) == [Document(["One.", "Two."], f"{name}:0"), Document(["Three."], f"{name}:1")]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1), min_size=1), min_size=2
    ),
    st.sampled_from([1, 7, 64, 2**16]),
)
def test_what_is_written_is_read_whatever_the_blocks(tmp_path_factory, documents, block):
    text = "\n\n".join("\n".join(lines) for lines in documents)
    path = write(tmp_path_factory.mktemp("texts") / "a.txt", b"\xef\xbb\xbf" + text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content, "BLOCK", block)
        assert lines_of(path, layout="blank-lines") == documents


def test_the_position_ends_at_the_size_on_disk(tmp_path):
    path = write(tmp_path / "a.txt.xz", lzma.compress(TEXT.encode() * 1000))
    (source,) = find_sources([str(path)])
    reader = Documents(source)
    assert (reader.position, len(list(reader))) == (0, 2001)
    assert reader.position == source.size == path.stat().st_size


def test_real_files_hold_what_their_sources_say(data_dir):
    """The documents and lines that SOURCES.md counts."""
    counts = {"text-en/imdb-reviews-unsup.txt.xz": (22500, 67331), "text-zh/zh-docs.txt.xz": (6574, 56250)}
    for name, expected in counts.items():
        found = lines_of(data_dir / name)
        assert (len(found), sum(map(len, found))) == expected


# --- sources -----------------------------------------------------------------------------------------------------------


def test_folders_globs_and_doubles(tmp_path):
    names = "b.txt a.jsonl.gz sub/c.PARQUET sub/d.txt.xz notes.md README .hidden.txt .git/e.txt f.csv"
    for name in names.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "x")
    found = find_sources([str(tmp_path)])
    assert [Path(source.name).relative_to(tmp_path).as_posix() for source in found] == [
        *("a.jsonl.gz", "b.txt", "sub/c.PARQUET", "sub/d.txt.xz")
    ]
    assert {source.size for source in found} == {1}
    assert find_sources([str(tmp_path / "*.txt"), str(tmp_path / "b.txt")]) == [Source(str(tmp_path / "b.txt"), 1)]
    assert [Path(source.name).name for source in find_sources([str(tmp_path / "**" / "*.xz")])] == ["d.txt.xz"]
    assert find_sources([str(tmp_path / "notes.md")])[0].size == 1  # named, it is text whatever its ending


@pytest.mark.parametrize("name", ["missing.txt", "*.txt", "empty"])
def test_names_that_lead_to_nothing(tmp_path, name):
    (tmp_path / "empty").mkdir()
    assert refused(find_sources, [str(tmp_path / name)]).where == str(tmp_path / name)


# --- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["na\u00efve\n".encode("latin-1"), b"a\0b\n"])
def test_bytes_that_are_not_utf8_are_named_by_line_in_any_block(tmp_path, monkeypatch, broken):
    monkeypatch.setattr(content, "BLOCK", 16)
    path = write(tmp_path / "a.txt", b"good line of text\n" * 9 + broken + b"good\n")
    assert refused(read, path).where == f"{path}:10"


@pytest.mark.parametrize("line", ['{"text": "a"', '["a"]', '{"body": "a"}', '{"text": 3}'])
def test_rows_of_json_that_hold_no_text(tmp_path, line):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n' + line + "\n")
    assert refused(read, path).where == f"{path}:3"


@pytest.mark.parametrize("ending", ["txt.gz", "txt.xz", "parquet"])
def test_damaged_files(tmp_path, ending):
    packed = {"txt.gz": gzip.compress, "txt.xz": lzma.compress, "parquet": bytes}[ending](TEXT.encode() * 999)
    for data in (packed[: len(packed) // 2], packed[:20] + b"no such format" * 9):
        path = write(tmp_path / f"a.{ending}", data)
        assert refused(read, path).where == str(path)

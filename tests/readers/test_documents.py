"""Documents of running text: every format and packing gives the same documents, and errors have their line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
from file_contents import refused, write
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import DataError, MachineError, UsageError
from bertkit.readers import content, text_sources
from bertkit.readers import documents as module
from bertkit.readers.documents import Document, Documents
from bertkit.readers.faults import Faults
from bertkit.readers.text_sources import Source, look_for

TEXT = "One.\nTwo.\n\n\n Three. \r\n\nFour.\nFive."
EXPECTED = [["One.", "Two."], ["Three."], ["Four.", "Five."]]


def read(path: Path | str, **options) -> list[Document]:
    (source,) = look_for([str(path)]).sources.values()
    return list(Documents(source, **options))


def lines_of(path: Path | str, **options) -> list[list[str]]:
    return [document.lines for document in read(path, **options)]


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("txt", bytes), ("txt.gz", gzip.compress), ("TXT.XZ", lzma.compress), ("txt.bz2", bz2.compress), ("raw", bytes)],
)
def test_plain_text_of_any_name_and_compression(tmp_path, ending, pack):
    path = write(tmp_path / f"a.{ending}", pack(TEXT.encode()))
    lines = [1, 5, 7]
    assert read(path) == [Document(text, f"{path}:{line}") for text, line in zip(EXPECTED, lines, strict=True)]


def test_faults_of_whole_files_are_named_first() -> None:
    faults = Faults("skip")
    faults.add(["a.txt:1: no"])
    for number in range(3):
        faults.take(DataError(f"cannot read {number}"), of_file=True)
        faults.add([f"b.txt:{number}: no"])
    assert faults.shown == ["cannot read 0", "cannot read 1", "cannot read 2", "a.txt:1: no", "b.txt:0: no", "b.txt:1: no"]
    for number in range(3, 9):
        faults.take(DataError(f"cannot read {number}"), of_file=True)
    assert faults.shown == [f"cannot read {number}" for number in range(6)]
    assert faults.summary().startswith("skipped 13 rows: cannot read 0; cannot read 1; ")
    assert faults.summary().endswith("and 8 more")


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


def test_a_line_that_is_left_out_does_not_change_the_layout(tmp_path):
    text = "\n\n".join(f"{i}.\n" + "More.\n" * 19 for i in range(30))
    path = write(tmp_path / "a.txt", b"\xff\n" + text.encode())
    assert [len(read(path, faults=Faults(policy))) for policy in ("skip", "replace")] == [30, 30]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_list_is_read_row_by_row(tmp_path, indent):
    rows = [{"text": "One.\nTwo."}, 5, {"text": "Three."}, {"body": "x"}]
    path = write(tmp_path / "a.json", json.dumps(rows[::2], indent=indent))
    assert lines_of(path) == [["One.", "Two."], ["Three."]]
    assert read(path)[1].where == f"{path}:{5 if indent else '1[1]'}"
    write(path, json.dumps(rows, indent=indent))
    with pytest.raises(DataError, match="found a number; expected an object"):
        read(path)
    faults = Faults("skip")
    assert lines_of(path, faults=faults) == [["One.", "Two."], ["Three."]]
    assert (faults.count, "no column 'text'" in faults.summary()) == (2, True)


def test_a_json_object_is_no_text(tmp_path):
    """Such as the configuration of a model beside its texts."""
    write(tmp_path / "a.txt", "One.")
    path = write(tmp_path / "config.json", json.dumps({"text": {"hidden_size": 8}}, indent=1))
    found = look_for([str(tmp_path)])
    assert [*found.sources] == [str(tmp_path / "a.txt")]
    assert found.skipped == {"a JSON object, not rows": [str(path)]}
    with pytest.raises(DataError, match="the file is one JSON object"):
        read(path)
    with pytest.raises(DataError) as error:
        read(write(tmp_path / "b.jsonl", "[1, 2]\n[3, 4]\n"))
    assert "--columns" not in str(error.value.hint), "no option of a command that reads text"
    cut = write(tmp_path / "cut.jsonl", '{"text": "One.",\n{"text": "Two."}\n')
    assert lines_of(cut, faults=Faults("skip")) == [["Two."]], "one damaged line does not make a file an object"


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


def test_a_file_named_stdin_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path / "stdin", TEXT).parent)
    assert lines_of("stdin") == EXPECTED


def test_the_position_ends_at_the_size_on_disk(tmp_path):
    path = write(tmp_path / "a.txt.xz", lzma.compress(TEXT.encode() * 1000))
    (source,) = look_for([str(path)]).sources.values()
    reader = Documents(source)
    assert (reader.position, len(list(reader))) == (0, 2001)
    assert reader.position == source.size == path.stat().st_size
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "ab":
            archive.writestr(f"{name}.txt", TEXT * 9999)
    (source,) = look_for([str(tmp_path / "a.zip")]).sources.values()
    reader = Documents(source)
    positions = [reader.position for _ in reader]
    assert positions == sorted(positions)
    assert source.size // 3 < positions[-1] <= source.size


def test_real_files_hold_what_their_sources_say(data_dir):
    """The documents and lines that SOURCES.md counts."""
    counts = {"text-en/imdb-reviews-unsup.txt.xz": (22500, 67331), "text-zh/zh-docs.txt.xz": (6574, 56250)}
    for name, expected in counts.items():
        found = lines_of(data_dir / name)
        assert (len(found), sum(map(len, found))) == expected


# --- sources -----------------------------------------------------------------------------------------------------------


def test_folders_globs_and_doubles(tmp_path):
    names = "b.txt a.jsonl.gz sub/c.PARQUET sub/d.txt.xz g.pdf README .hidden.txt .git/e.txt __MACOSX/h.txt f.csv"
    for name in names.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "x\nx\n")
    found = [*look_for([str(tmp_path)]).sources.values()]
    assert [Path(source.name).relative_to(tmp_path).as_posix() for source in found] == [
        *("a.jsonl.gz", "b.txt", "sub/c.PARQUET", "sub/d.txt.xz")
    ]
    assert {source.size for source in found} == {4}
    modified = (tmp_path / "b.txt").stat().st_mtime_ns
    assert [*look_for([str(tmp_path / "*.txt"), str(tmp_path / "b.txt")]).sources.values()] == [
        Source(str(tmp_path / "b.txt"), 4, modified)
    ]
    assert [Path(name).name for name in look_for([str(tmp_path / "**" / "*.xz")]).sources] == ["d.txt.xz"]
    by_pattern = look_for([str(tmp_path / "[_as]*")])
    assert [Path(name).name for name in by_pattern.sources] == ["a.jsonl.gz", "c.PARQUET", "d.txt.xz"]
    assert {name for names in by_pattern.skipped.values() for name in names} == {str(tmp_path / "__MACOSX" / "h.txt")}
    everything = look_for([str(tmp_path / "**")])  # named by the pattern, files are read whatever their endings
    assert [Path(name).name for name in everything.sources] == [
        *("README", "h.txt", "a.jsonl.gz", "b.txt", "f.csv", "g.pdf", "c.PARQUET", "d.txt.xz")
    ]
    for pattern in ("**/s*", "su**", "**/sub"):
        assert [Path(name).name for name in look_for([str(tmp_path / pattern)]).sources] == ["c.PARQUET", "d.txt.xz"]
    assert (
        look_for([str(tmp_path / "g.pdf")]).sources[str(tmp_path / "g.pdf")].size == 4
    )  # named, it is text whatever its ending
    skipped = {Path(name).name: why for why, names in look_for([str(tmp_path)]).skipped.items() for name in names}
    assert skipped.keys() == {"g.pdf", "README", ".hidden.txt", "e.txt", "h.txt", "f.csv"}, "all others, each with a reason"
    assert "*.pdf" in skipped["g.pdf"]
    assert "text-column" in skipped["f.csv"]
    more = look_for([str(tmp_path)], include=["*.pdf", "READ*"], text_column="x")
    assert {"g.pdf", "README", "f.csv"} <= {Path(name).name for name in more.sources}
    write(tmp_path / "packed.raw.gz", gzip.compress(b"x"))
    for pattern in ("*.raw", "*.raw.gz"):
        assert str(tmp_path / "packed.raw.gz") in look_for([str(tmp_path)], include=[pattern]).sources


def test_an_encoding_is_that_of_the_files_that_are_looked_at_too(tmp_path):
    write(tmp_path / "posts.csv", "body,by\nna\u00efve,her\n".encode("latin-1"))
    write(tmp_path / "a.txt", "x\n")
    write(tmp_path / "utf-8.csv", "body,by\n" + "na\u00efve " * 9 + ",her\n")
    why = "a table without a column text: --text-column names it"
    for encoding, skipped in ((None, ["utf-8.csv"]), ("latin-1", ["posts.csv", "utf-8.csv"])):
        found = look_for([str(tmp_path)], encoding=encoding)
        assert found.skipped == {why: [str(tmp_path / name) for name in skipped]}
    write(tmp_path / "read.csv", "text\n" + "na\u00efve " * 9 + "\n")
    for encoding in ("latin-1", "no-such-encoding"):
        with pytest.raises(UsageError):
            look_for([str(tmp_path)], encoding=encoding)


def test_linked_folders_are_read_once(tmp_path):
    for name in ("real/a.txt", "real/deep/b.txt", "mine/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x")
    (tmp_path / "mine" / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "mine" / "again").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "circle").symlink_to(tmp_path / "mine")
    (tmp_path / "mine" / "lost.txt").symlink_to(tmp_path / "nowhere.txt")
    found = look_for([str(tmp_path / "mine")])
    assert sorted(Path(name).name for name in found.sources) == ["a.txt", "b.txt", "c.txt"]
    assert [*found.skipped.values()] == [[str(tmp_path / "mine" / "lost.txt")]]


# --- more formats ------------------------------------------------------------------------------------------------------


ARTICLES = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="One">
One

First line.
Second line.

</doc>
<doc id="39" url="x" title="Two">
Two

Third.
</doc>
"""


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".bz2", bz2.compress)])
def test_what_wikiextractor_writes(tmp_path, ending, pack):
    (tmp_path / "AA").mkdir()
    path = write(tmp_path / "AA" / f"wiki_00{ending}", pack(ARTICLES.encode()))
    rows = "".join(json.dumps({"id": str(n), "text": f"Of {n}.\nMore."}) + "\n" for n in range(2))
    rows_path = write(tmp_path / "AA" / f"wiki_01{ending}", pack(rows.encode()))
    assert [*look_for([str(tmp_path)]).sources] == [str(path), str(rows_path)]
    assert read(path) == [
        Document(["One", "First line.", "Second line."], f"{path}:2"),
        Document(["Two", "Third."], f"{path}:9"),
    ]
    assert lines_of(rows_path) == [["Of 0.", "More."], ["Of 1.", "More."]]


def test_pages_and_markdown_are_one_document_each(tmp_path):
    page = """<html><head><title>Not this</title><style>p {}</style></head><body><h1>One</h1>
    <p>A <b>bold</b>
    word &amp; more.<p>Two<br>lines<script>var x = "<p>";</script></body></html>"""
    for text in (page, page.replace("</head>", ""), page.replace("</head><body>", "")):
        assert lines_of(write(tmp_path / "a.html", text)) == [["One", "A bold word & more.", "Two", "lines"]]
    faults = Faults()
    assert (read(write(tmp_path / "b.html", "<script>x</script>"), faults=faults), faults.without_text) == ([], 1)
    assert lines_of(write(tmp_path / "a.md", "# One\n\nTwo.\n\nThree.\n")) == [["# One", "Two.", "Three."]]


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", 'id,text\n1,"One.\nTwo, three."\n2,Four.\n'), ("a.tsv", "id\ttext\n2\tFour.\n")]
)
def test_tables(tmp_path, name, text):
    path = write(tmp_path / name, text)
    expected = [Document(["Four."], f"{path}:{2 if name == 'a.tsv' else 4}")]
    assert read(path)[-1:] == expected
    assert len(read(path)) == text.count("\n") - (2 if name == "a.csv" else 1)
    assert refused(read, path, text_column="body").where == f"{path}:2"


def test_archives(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("b/one.txt", TEXT)
        archive.writestr("b/two.jsonl", '{"text": "Six."}\n')
        archive.writestr("b/wiki_00", ARTICLES)
        archive.writestr("b/image.png", b"\x89PNG\0")
        for name in ("__MACOSX/b/._one.txt", "b/.DS_Store"):
            archive.writestr(name, b"\0\5\x16\7")
    assert lines_of(path)[:4] == [*EXPECTED, ["Six."]]
    assert len(lines_of(path)) == 6
    assert read(path)[1].where == f"{path}/b/one.txt:5"
    for name in (path, tmp_path):
        assert [*look_for([str(name)]).skipped.values()] == [
            [f"{path}/{hidden}" for hidden in ("b/image.png", "__MACOSX/b/._one.txt", "b/.DS_Store")]
        ]
    path.write_bytes(path.read_bytes()[:-40])
    assert refused(read, path).where == str(path)


class Frame:
    """A zstd frame as the zstandard package unpacks it, by zlib behind zstd's first bytes."""

    def __init__(self) -> None:
        self.head, self.zlib = b"", zlib.decompressobj()

    def decompress(self, data: bytes) -> bytes:
        if len(self.head) < 4:
            self.head, data = (self.head + data)[:4], (self.head + data)[4:]
        try:
            return self.zlib.decompress(data)
        except zlib.error as error:
            raise ArithmeticError(str(error)) from None

    eof = property(lambda self: self.zlib.eof)
    unused_data = property(lambda self: self.zlib.unused_data)


def test_zstd_is_read_where_its_package_is_installed_and_else_said_to_be_skipped(tmp_path, monkeypatch):
    frame = b"\x28\xb5\x2f\xfd" + zlib.compress(TEXT.encode() * 5000)
    path = write(tmp_path / "a.txt.zst", frame + frame)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(text_sources, "find_spec", lambda name: None)
    ((why, names),) = look_for([str(write(tmp_path / "b.txt", "x").parent)]).skipped.items()
    assert ("pip install zstandard" in why, names) == (True, [str(path)])
    error = refused(read, path, kind=MachineError)
    assert ("pip install zstandard" in error.hint, error.where) == (True, str(path))

    installed = SimpleNamespace(ZstdDecompressor=lambda: SimpleNamespace(decompressobj=Frame), ZstdError=ArithmeticError)
    monkeypatch.setitem(sys.modules, "zstandard", installed)
    monkeypatch.setattr(text_sources, "find_spec", lambda name: object())
    assert lines_of(path) == lines_of(write(tmp_path / "c.txt", TEXT * 10_000))
    assert look_for([str(tmp_path)]).skipped == {}
    for data in (frame[:-9], frame[:20] + b"no such format" * 99):
        assert refused(read, write(path, data)).where == str(path)


@pytest.mark.parametrize("block", [1, 5, 2**16])
def test_lines_of_an_old_macintosh(tmp_path, monkeypatch, block):
    monkeypatch.setattr(content, "BLOCK", max(block, 12))  # its first must hold the end of a line
    path = write(tmp_path / "a.txt", "One.\rTwo.\r\rThree.\r\rFour is longer than a block.\rFive.\r")
    expected = [["One.", "Two."], ["Three."], ["Four is longer than a block.", "Five."]]
    assert read(path, layout="blank-lines") == [Document(text, f"{path}:{line}") for text, line in zip(expected, (1, 4, 6))]
    assert lines_of(write(tmp_path / "a.jsonl", '{"text": "One.\\rTwo."}\n')) == [["One.", "Two."]]


# --- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "faulty", "kept", "replaced"),
    [  # the lines of faults; the first words of what "skip" keeps, and what "replace" keeps besides
        ("a.txt", b"One.\nTw\xffo.\n\nThree\0.\nFour.\n", [2, 4], "One. Four.", "Tw\ufffdo. Three\ufffd."),
        ("a.jsonl", b'{"text": "One."}\n{"text"\n{"body": "x"}\n{"text": 3}\n{"text": "T\xff"}\n{"text": "Two."}\n',
         [2, 3, 4, 5], "One. Two.", "T\ufffd"),
        ("a.csv", b"id,text\n1,One.\n2\n3,Two.\n", [3], "One. Two.", ""),
    ],
)  # fmt: skip
def test_faults_are_left_out_or_replaced_and_counted(tmp_path, name, data, faulty, kept, replaced):
    path = write(tmp_path / name, data)
    assert refused(read, path).where in {f"{path}:{line}" for line in faulty}
    for policy, words in (("skip", kept), ("replace", f"{kept} {replaced}")):
        faults = Faults(policy)
        lines = [line for document in read(path, faults=faults, layout="blank-lines") for line in document.lines]
        assert sorted(lines) == sorted(words.split())
        assert faults.count == len(faulty)
        assert all(f"({path}:{line})" in faults.summary() for line in faulty)


@pytest.mark.parametrize("block", [8, 2**16])
def test_the_lines_after_a_fault_keep_their_numbers(tmp_path, monkeypatch, block):
    monkeypatch.setattr(content, "BLOCK", block)
    path = write(tmp_path / "a.txt", b"One.\nTwo.\n\xff\nThree.\nFour.\n\xff\n\nFive.\n")
    assert read(path, faults=Faults("skip"), layout="lines")[-1] == Document(["Five."], f"{path}:8")


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"One.\n" * 9999)[:-20], "One.\nTwo.\n".encode("utf-16"), b"%PDF\0\0"],
    ids=["cut gzip", "utf-16", "pdf"],  # a packed file holds the time: as a name it would differ between test processes
)
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path, data):
    path = write(tmp_path / "a.txt", data)
    for policy in ("skip", "replace"):
        faults = Faults(policy)
        whole = read(path, faults=faults)  # of the cut one, what could be unpacked
        assert {line for document in whole for line in document.lines} <= {"One."}
        assert (faults.count, str(path) in faults.summary()) == (1, True)


TABLE = "text\n" + "Good.\n" * 5 + '"Bad" quote.\n' + "Good.\n" * 1000
NUMBERS = "".join(f"{i}.\n" for i in range(99_999))


@pytest.mark.parametrize(
    ("name", "data", "least", "most", "place"),
    [
        ("a.csv", TABLE.encode(), 5, 5, ":7"),
        ("b.csv", TABLE.replace('"Bad" ', "Bad\r").encode(), 5, 5, ":7"),
        *((name, gzip.compress(b"text\n" + NUMBERS.encode(), mtime=0)[:-2000], 90_000, 99_998, "")
          for name in ("a.txt.gz", "a.csv.gz", "a.tsv.gz")),
    ],
    ids=["quote", "carriage return", "cut text", "cut CSV", "cut TSV"],
)  # fmt: skip
def test_what_precedes_a_fault_is_kept(tmp_path, name, data, least, most, place):
    path = write(tmp_path / name, data)
    faults = Faults("skip")
    assert least <= len(read(path, faults=faults)) <= most
    assert f"; the rest of the file is left out ({path}{place})" in faults.summary()
    assert "left out" not in refused(read, path).what


def test_the_other_files_of_an_archive_are_read(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (("a.txt", TEXT), ("b.txt", "damaged"), ("c.csv", TABLE), ("d.txt", b"%PDF\0"), ("e.txt", TEXT)):
            archive.writestr(name, text)
    path.write_bytes(path.read_bytes().replace(b"damaged", b"Damaged"))
    faults = Faults("skip")
    assert lines_of(path, faults=faults) == [*EXPECTED, *[["Good."]] * 5, *EXPECTED]
    assert faults.count == 3
    assert all(f"({path}/{place})" in faults.summary() for place in ("b.txt", "c.csv:7", "d.txt"))
    assert refused(read, path).where == f"{path}/b.txt"


@pytest.mark.parametrize("name", ["missing.txt", "*.txt", "empty"])
def test_names_that_lead_to_nothing(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    for ending in ("txt", "pdf"):
        write(tmp_path / "full" / f"a.{ending}", "x")
    error = refused(look_for, [str(tmp_path / "full"), str(tmp_path / name)])
    assert (error.where, "a.pdf" in str(error.hint)) == (str(tmp_path / name), False)


# --- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["na\u00efve\n".encode("latin-1"), b"a\0b\n", b"\0" * 99 + b"\n", b"a\0" * 99 + b"\n"])
def test_bytes_that_are_not_utf8_are_named_by_line_in_any_block(tmp_path, monkeypatch, broken):
    monkeypatch.setattr(content, "BLOCK", 16)
    path = write(tmp_path / "a.txt", b"good line of text\n" * 9 + broken + b"good\n")
    assert refused(read, path).where == f"{path}:10"
    assert len(read(path, faults=Faults("skip"))) == 10


@pytest.mark.parametrize("line", ['{"text": "a"', '["a"]', '{"body": "a"}', '{"text": 3}'])
def test_rows_of_json_that_hold_no_text(tmp_path, line):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n' + line + "\n")
    assert refused(read, path).where == f"{path}:3"


def as_parquet(texts: bytes) -> bytes:
    lines = pyarrow.array(texts.splitlines(), pyarrow.binary())
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(lines), lines.buffers())  # whether or not it is UTF-8
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), out := io.BytesIO())
    return out.getvalue()


def test_parquet_with_bytes_that_are_no_text(tmp_path):
    assert [document.lines for document in read(write(tmp_path / "good.parquet", as_parquet(b"One.\nTwo.\n")))] == [
        ["One."],
        ["Two."],
    ]
    path = write(tmp_path / "a.parquet", as_parquet(b"One.\nna\xefve\n"))
    assert refused(read, path).where == str(path)
    faults = Faults("skip")
    assert read(path, faults=faults) == []
    assert (faults.count, "the file is left out" in faults.summary()) == (1, True)


@pytest.mark.parametrize("ending", ["txt.gz", "txt.xz", "parquet"])
def test_damaged_files(tmp_path, ending):
    packed = {"txt.gz": gzip.compress, "txt.xz": lzma.compress, "parquet": as_parquet}[ending](TEXT.encode() * 999)
    for data in (packed[: len(packed) // 2], packed[:20] + b"no such format" * 9):
        path = write(tmp_path / f"a.{ending}", data)
        assert refused(read, path).where == str(path)


def test_what_is_packed_inside_an_archive_has_the_same_limit(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt.gz", gzip.compress(b"One.\n" * 9999, mtime=0))
    assert len(read(tmp_path / "a.zip", layout="lines")) == 9999
    assert "unpacks to more than" in str(refused(read, tmp_path / "a.zip", layout="lines", max_file_size=1e-5))

"""Files named by URL: the same rows and documents as of a local file, streamed; and every failure is one line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import openpyxl
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from file_contents import refused, write
from fsspec.registry import known_implementations
from remote_files import Store, put, web

from bertkit.errors import DataError, MachineError, UsageError
from bertkit.readers.content import extension
from bertkit.readers.documents import Documents
from bertkit.readers.formats import read_blocks, read_file
from bertkit.readers.remote import is_url, look_up, open_url, path_of
from bertkit.readers.text_sources import Source, look_for

pytestmark = pytest.mark.usefixtures("empty_stores")

ROWS = [{"text": f"the movie was {kind} {row}", "label": kind} for row in range(50) for kind in ("good", "bad")]
CSV = ("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in ROWS)).encode()
LINES = "".join(f'{{"text": "{row["text"]}", "label": "{row["label"]}"}}\n' for row in ROWS).encode()


@pytest.mark.parametrize(
    "name",
    [
        *("s3://bucket/a.csv", "memory://a", "HTTPS://host/a", "file:///a", "abfs://box@account.host/a", "s3a://b/*"),
        *("simplecache::s3://bucket/a.csv", "zip://a.csv::file:///b.zip"),
    ],
)
def test_what_is_a_url(name: str) -> None:
    assert is_url(name)


@pytest.mark.parametrize(
    "name",
    [
        *("a.csv", "-", "10%", "1/5", "hub:owner/name", "hub:owner/name:part", "corpora/own:3", "a:b.txt", "12:30.txt"),
        *(r"C:\texts\a.csv", "C:/texts/a.csv", "C://texts/a.csv", "s3:/bucket/a.csv", "./s3://bucket", "//host/share"),
        Path("s3://bucket/a.csv"),
    ],
)
def test_what_is_a_path(name: str | Path) -> None:
    assert not is_url(name)


# --- the same as of a local file -------------------------------------------------------------------------------------------


def write_all(folder: Path) -> list[Path]:
    """The rows in every format and packing."""
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=30)
    pyarrow.feather.write_feather(table, folder / "a.arrow")
    workbook = openpyxl.Workbook()
    workbook.active.append(["text", "label"])
    for row in ROWS:
        workbook.active.append([*row.values()])
    workbook.save(folder / "a.xlsx")
    for name, data in (("a.csv", CSV), ("a.jsonl", LINES)):
        for ending, pack in (("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)):
            write(folder / f"{name}{ending}", pack(data))
    write(folder / "rows", LINES)  # recognized by its look
    return sorted(folder.iterdir())


def test_rows_are_those_of_the_local_file(tmp_path: Path) -> None:
    paths = write_all(tmp_path)
    assert len(paths) == 12
    for path in paths:
        expected = read_file(path)
        assert [*expected.columns["text"]] == [row["text"] for row in ROWS], path
        for url in (put(path), f"file://{path}"):
            found = read_file(url)
            assert {name: [*values] for name, values in found.columns.items()} == {
                name: [*values] for name, values in expected.columns.items()
            }
            assert ([*found.lines], found.source) == ([*expected.lines], url)
            assert found.where(3) == f"{url}:{expected.lines[3]}"


def write_texts(folder: Path) -> None:
    """Texts of all kinds, and what is none of them."""
    for name, data in {
        "b.txt": b"One.\n\nTwo.\n",
        "a.txt.gz": gzip.compress(b"Three.\nFour.\n"),
        "a-b/c.jsonl": LINES,
        "a/d.csv": CSV,
        "a/e.md": b"# Five\n\nSix.\n",
        "a/f.html": b"<p>Seven.</p><p>Eight.</p>",
        "a/.hidden/g.txt": b"hidden",
        ".h.txt": b"hidden",
        "wiki_00": b'<doc id="1" url="u" title="t">\nNine.\n</doc>\n',
        "README": b"no ending",
        "i.pdf": b"%PDF",
        "labels.csv": b"label\nx\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, data)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "j.parquet")
    with zipfile.ZipFile(folder / "k.zip", "w") as archive:
        archive.writestr("l.txt", "Ten.\n\nEleven.\n")
        archive.writestr("m.png", b"\x89PNG")


@pytest.mark.parametrize("pattern", ["", "*.t*", "*/*", "**/*.txt", "a?*/c.jsonl", "[ab].txt"])
def test_documents_are_those_of_local_files(tmp_path: Path, pattern: str) -> None:
    write_texts(tmp_path / "in")
    memory = fsspec.filesystem("memory")
    for path in (tmp_path / "in").rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/deep/in/{path.relative_to(tmp_path / 'in')}", path.read_bytes())

    def read(begin: str) -> tuple[list[Any], dict[str, list[str]]]:
        """The documents and what is not read, by names that begin after `begin`."""
        found = look_for([f"{begin}/{pattern}" if pattern else begin])
        documents = [each for source in found.sources.values() for each in Documents(source)]
        return (
            [(each.lines, each.where.removeprefix(begin)) for each in documents],
            {why: [name.removeprefix(begin) for name in names] for why, names in found.skipped.items()},
        )

    expected = read(str(tmp_path / "in"))
    assert expected[0], "the pattern matches"
    assert read(f"file://{tmp_path}/in") == expected
    assert read("memory://deep/in") == expected
    if not pattern:
        assert [where.partition(":")[0] for _, where in expected[0] if where.endswith(":1")][:3] == [
            *("/a/e.md", "/a/f.html", "/a-b/c.jsonl")
        ], "by the parts of their paths"
        assert {Path(name).name for names in expected[1].values() for name in names} == {
            *("g.txt", ".h.txt", "README", "i.pdf", "labels.csv", "m.png")
        }


def test_one_file_of_two_names_is_read_once(tmp_path: Path) -> None:
    url = put(write(tmp_path / "a.txt", "One.\n"))
    assert [*look_for([url, "memory://store/*", "memory://store"]).sources] == [url]


def test_names_begin_as_the_url_does() -> None:
    from bertkit.readers.remote import _files

    for url, path, found, expected in (
        ("s3://bucket/a/*.csv", "bucket/a/*.csv", "bucket/a/b.csv", "s3://bucket/a/b.csv"),
        ("s3a://bucket/a/", "bucket/a", "bucket/a/c/b.csv", "s3a://bucket/a/c/b.csv"),
        ("sftp://me@host/a/*", "/a/*", "/a/b", "sftp://me@host/a/b"),
        ("abfs://box@account.host/a/*", "box/a/*", "box/a/b", "abfs://box@account.host/a/b"),
        ("https://host/a/*", "https://host/a/*", "https://host/a/b", "https://host/a/b"),
    ):
        assert [file.url for file in _files(url, path, {found: {"size": 1, "type": "file"}})] == [expected]


def test_a_query_of_the_web_is_no_ending() -> None:
    assert extension("https://host/a.CSV.gz?token=x.y#part") == ".csv"
    assert extension("a.csv?token.txt") == ".txt", "a local file may have such a name"


def test_only_a_part_is_read_for_the_first_rows() -> None:
    Store.files["a.csv"] = b"text\n" + b"the movie was good\n" * 300_000
    blocks = read_blocks("store://a.csv")
    first = next(blocks)
    assert (len(first) > 100, 0 < (first.done or 0) < 0.1) == (True, True)
    assert Store.asked < len(Store.files["a.csv"]) // 20
    assert len(first) + sum(map(len, blocks)) == 300_000
    assert Store.asked == len(Store.files["a.csv"])


# --- what tells it from an earlier one --------------------------------------------------------------------------------------


def test_a_changed_file_has_another_version(tmp_path: Path) -> None:
    url = put(write(tmp_path / "a.txt", "One.\n"))
    (before,) = look_up(url).files
    assert (before.url, before.size) == (url, 5)
    assert look_up(url).files == [before]
    put(write(tmp_path / "a.txt", "Two.\n"))
    (after,) = look_up(url).files
    assert (after.size, after.version != before.version) == (5, True)
    Store.files["a"], Store.etags["a"] = b"One.\n", '"1"'
    assert look_for(["store://a"]).sources == {"store://a": Source("store://a", 5, '"1"')}
    Store.etags.clear()
    assert look_for(["store://a"]).sources == {"store://a": Source("store://a", 5, "")}, "its size alone"


def test_the_web() -> None:
    pages: dict[str, bytes | int] = {"/a.csv.gz?token=x": gzip.compress(CSV), "/denied.csv": 403, "/b.csv": 500}
    etags = {"/a.csv.gz?token=x": '"1"'}
    with web(pages, etags) as address:
        url = f"{address}/a.csv.gz?token=x"
        assert [*read_file(url).columns["text"]] == [row["text"] for row in ROWS]
        assert look_up(url).files == [(url, len(gzip.compress(CSV)), '"1"')]
        etags["/a.csv.gz?token=x"] = '"2"'
        assert look_up(url).files[0].version == '"2"'
        for name, kind, what in (
            ("none.csv", DataError, "no such file"),
            ("denied.csv", DataError, "denied"),
            ("b.csv", MachineError, "cannot read the file: 500"),
        ):
            for read in (read_file, look_up):
                error = refused(read, f"{address}/{name}", kind=kind)
                assert (error.where, what in error.what) == (f"{address}/{name}", True), error
    for name in (url, f"{address}/b.csv", f"{address}/*.csv"):
        assert "cannot read the file: Cannot connect" in refused(look_up, name, kind=MachineError).what, "nobody answers"


def test_paths_of_local_files() -> None:
    assert path_of("file:///a/b.csv") == Path("/a/b.csv") == path_of("/a/b.csv")
    assert path_of("a.csv") == Path("a.csv")
    assert not path_of("s3://bucket/a").is_absolute()


# --- failures --------------------------------------------------------------------------------------------------------------


def test_a_bad_row_is_named_by_url_and_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", LINES.replace(b'"the movie was bad 7"', b'"the movie'))
    url, local = put(path), refused(read_file, path)
    assert local.where == f"{path}:16"
    error = refused(read_file, url)
    assert (error.what, error.where) == (local.what, f"{url}:16")
    cut = write(tmp_path / "b.csv.gz", gzip.compress(CSV)[:-20])
    assert "cut off" in str(refused(read_file, put(cut)).hint)


@pytest.mark.parametrize("verb", ["info", "open", "read"])
@pytest.mark.parametrize(
    ("error", "kind", "what"),
    [
        (PermissionError("Forbidden"), DataError, "access to the file is denied"),
        (FileNotFoundError("a"), DataError, "no such file"),
        (ConnectionError("reset\nby peer"), MachineError, "cannot read the file: reset by peer"),
        (TimeoutError(), MachineError, "cannot read the file: TimeoutError"),
        (RuntimeError("Unable to locate credentials"), MachineError, "cannot read the file: Unable to locate credentials"),
    ],
)
def test_each_failure_is_one_line(verb: str, error: Exception, kind: Any, what: str, tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS * 400), tmp_path / "a.parquet")
    data = {"a.csv": CSV * 400, "a.csv.gz": gzip.compress(CSV * 4000, 0), "a.parquet": (tmp_path / "a.parquet").read_bytes()}
    for name, content in data.items():
        Store.files[name] = content
        Store.errors[verb, name] = error
        if verb == "info":
            found = refused(look_for, [f"store://{name}"], kind=kind)
            assert refused(look_up, f"store://{name}", kind=kind).what == found.what
        else:
            found = refused(read_file, f"store://{name}", kind=kind)
            if verb == "read" or kind is MachineError:
                other = refused(lambda name: [*Documents(Source(f"store://{name}"))], name, kind=kind)
                assert other.what == found.what
        assert (found.what, found.where) == (what, f"store://{name}")
        assert found.hint


def test_the_package_of_a_protocol_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "far", {"class": "far_away_fs.core.FileSystem", "err": "Install far-away-fs"})
    monkeypatch.setitem(
        known_implementations, "near", {"class": "fsspec.implementations.nowhere.FileSystem", "err": "Install near"}
    )
    for read in (read_file, look_up):
        error = refused(read, "far://bucket/a.csv", kind=MachineError)
        assert (error.where, "far_away_fs" in error.what) == ("far://bucket/a.csv", True)
        assert error.hint == "python -m pip install far-away-fs"
        assert refused(read, "near://bucket/a.csv", kind=MachineError).hint == "Install near"
        error = refused(read, "memry://bucket/a.csv", kind=UsageError)
        assert ("memry://" in error.what, "s3://, gs://" in str(error.hint)) == (True, True)


def test_a_url_may_have_a_cache_and_no_other_chain(tmp_path: Path) -> None:
    cached = f"simplecache::{put(write(tmp_path / 'a.csv', CSV))}"
    assert [*read_file(cached).columns["text"]] == [row["text"] for row in ROWS]
    assert [*look_for(["simplecache::memory://store/*.csv", "simplecache::memory://store"]).sources] == [cached]
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr("a.csv", CSV)
    for url in (f"zip://a.csv::file://{tmp_path}/b.zip", f"reference://a::file://{tmp_path}/a.json", f"simplecache::{cached}"):
        for read in (read_file, look_up):
            error = refused(read, url, kind=UsageError)
            assert ("chained" in error.what, error.where) == (True, url)


def test_folders_and_patterns_of_nothing(tmp_path: Path) -> None:
    put(write(tmp_path / "a.pdf", "%PDF"))
    error = refused(read_file, "memory://store")
    assert ("folder" in error.what, "memory://store/*" in str(error.hint)) == (True, True)
    assert refused(look_for, ["memory://store/*.txt"]).what == "no file matches"
    error = refused(look_for, ["memory://store"])
    assert (error.what, "a.pdf is not a known text format" in str(error.hint)) == ("the folder holds no text files", True)
    assert refused(look_for, ["memory://store/b.txt"]).what == "no such file"


def test_a_page_is_no_data() -> None:
    page = b"<html><a href='rows.csv'>rows</a></html>"
    with web({"/page/texts": page, "/page/text.html": page}, {}) as address:
        for read in (look_up, open_url):
            with pytest.raises(DataError, match="the server answers with a web page") as raised:
                read(f"{address}/page/texts")
            assert "name the files themselves" in str(raised.value.hint)
        assert look_up(f"{address}/page/text.html").files
        assert open_url(f"{address}/page/text.html").read() == page


def test_a_server_that_sends_whole_files_alone_is_told_what_to_do() -> None:
    rows = CSV * 4000
    assert len(rows) > 10_000_000
    with web({"/rows.csv": rows}, {}, ranges=False) as address:
        with open_url(f"{address}/rows.csv") as file, pytest.raises(MachineError, match="read in parts") as raised:
            file.read()
        assert f"simplecache::{address}/rows.csv" in str(raised.value.hint)
        with open_url(f"simplecache::{address}/rows.csv") as file:
            assert file.read() == rows

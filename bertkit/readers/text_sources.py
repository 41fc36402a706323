"""The sources of running text that a command's arguments name: files, folders, globs, URLs, standard input, the hub."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path, PurePath
from zipfile import BadZipFile, ZipFile

from bertkit.errors import DataError, UsageError, listed
from bertkit.readers.content import STDIN, extension, nearest_files, open_content, plain_name
from bertkit.readers.formats import DELIMITED, JSON
from bertkit.readers.markup import ARTICLE
from bertkit.readers.parsers.delimited import parse_delimited
from bertkit.readers.parsers.jsonl import is_one_object
from bertkit.readers.remote import is_url, look_up
from bertkit.readers.zstd import INSTALL

HUB = "hub:"  # before the name of a data set on the hub

# Endings of file names.
_PLAIN = (".txt", ".text")
PARQUET = (".parquet",)
MARKDOWN, PAGES = (".md", ".markdown"), (".html", ".htm", ".xhtml")
ZIP = (".zip",)
READ = (*_PLAIN, *JSON.endings, *DELIMITED.endings, *PARQUET, *MARKDOWN, *PAGES, *ZIP)


@dataclass(frozen=True)
class Source:
    """A file by its path or URL, standard input ("-") or a data set on the hub ("hub:owner/name:configuration").

    size: bytes on disk; 0 if unknown. version: distinguishes a file from an earlier one of the same name, such as its mtime.
    """

    name: str
    size: int = 0
    version: int | str | None = None


@dataclass
class Found:
    """The sources that names of text stand for. skipped: files in folders and archives that are not read, by reason."""

    sources: dict[str, Source] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)


def look_for(
    names: Sequence[str], *, include: Sequence[str] = (), text_column: str = "text", encoding: str | None = None
) -> Found:
    """The sources that a command's arguments name: files, folders of text files, globs, URLs of these, "-" and data sets of the
    hub.

    In a folder, and in folders that it links to, these are the files with an ending in READ, compressed or not, files without
    an ending such as WikiExtractor's, and files whose names match a pattern in `include`, in the order of their paths. A source
    named twice is read once. text_column: a column that tables must have. encoding: as in Documents. Raises DataError for a
    name without files.
    """
    found = Found()
    for name in names:
        if name == STDIN or name.startswith(HUB):
            found.sources[name] = Source(name)
            continue
        files = []
        skipped: dict[str, list[str]] = {}
        for file, folder in _named(name):
            if folder is not None and (why := _why_skipped(file, folder, include, text_column, encoding)):
                skipped.setdefault(why, []).append(file.name)
            else:
                files.append(file)
        if not files:
            hint = listed([f"{names[0]} is {why}" for why, names in skipped.items()], 3, "; ") or None
            what = "the folder holds no text files" if skipped or Path(name).expanduser().is_dir() else "no file matches"
            raise DataError(what, where=name, hint=hint)
        if left_out := [name for file in files if extension(file.name) in ZIP for name in _left_out(file.name)]:
            skipped["hidden, or of a kind that is not read in archives"] = left_out
        for why, left_out in skipped.items():
            found.skipped.setdefault(why, []).extend(left_out)
        found.sources |= {file.name: file for file in files}
    return found


def _named(name: str) -> list[tuple[Source, Path | None]]:
    """The files that a path or URL names, none if nothing matches a pattern; each with the folder in which it was found, if it
    was not named itself.
    """
    if is_url(name):
        listing = look_up(name)
        return [(Source(*file), Path(name) if listing.is_folder else None) for file in listing.files]
    path = Path(name).expanduser()
    if path.is_dir():
        return [(_on_disk(file), path) for file in _files_in(path)]
    if path.is_file():
        return [(_on_disk(path), None)]
    if not glob.has_magic(name):
        raise DataError("no such file", where=name, hint=nearest_files(path))
    found: dict[Path, Path | None] = {}
    for match in map(Path, glob.glob(str(path), recursive=True)):
        found |= {file: found.get(file, match.parent) for file in _files_in(match)} if match.is_dir() else {match: None}
    return [(_on_disk(file), found[file]) for file in sorted(found, key=str)]


def _on_disk(path: Path) -> Source:
    """A local file; a broken link has no version."""
    try:
        stat = path.stat()
    except OSError:
        return Source(str(path))
    return Source(str(path), stat.st_size, stat.st_mtime_ns)


def _files_in(folder: Path) -> list[Path]:
    """The files in a folder and its subfolders, including linked ones, each folder once; in the order of their paths."""
    found, seen = [], set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(parent)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort(key=lambda name: (os.path.islink(os.path.join(parent, name)), name))
        found += [Path(parent, name) for name in files]
    return sorted(found)


def _is_hidden(path: PurePath) -> bool:
    """Whether a file, given by its path below a folder or in an archive, is hidden or added to archives by macOS."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def is_read_in_archives(name: str) -> bool:
    return extension(name) in {*READ, ""} - {*PARQUET, *ZIP} and not _is_hidden(PurePath(name))


def _left_out(path: str) -> list[str]:
    """The files in a ZIP archive that are not read; none for a damaged archive, which is reported when it is read."""
    try:
        with open_content(path) as content, ZipFile(content.file()) as archive:
            members = [member.filename for member in archive.infolist() if not member.is_dir()]
            return [f"{path}/{name}" for name in members if not is_read_in_archives(name)]
    except (BadZipFile, OSError, DataError):
        return []


def _why_skipped(source: Source, folder: Path, include: Sequence[str], text_column: str, encoding: str | None) -> str | None:
    """Why a file in a folder is not read; None if it is."""
    file = Path(source.name)
    ending = extension(file.name)
    if _is_hidden(file.relative_to(folder)):
        return "hidden"
    if source.version is None:
        return "a broken link"
    if file.suffix.lower() == ".zst" and find_spec("zstandard") is None:
        return f"compressed with zstd, which needs a package: {INSTALL}"
    if any(fnmatch(name, pattern) for pattern in include for name in (file.name, plain_name(file.name))):
        return None
    try:
        if not ending:
            with open_content(source.name, encoding=encoding) as content:
                known = ARTICLE.match(content.beginning) or JSON.looks_like(content)
            return None if known else "without a file extension: --include '*' reads them as text"
        if ending in JSON.endings:
            with open_content(source.name, encoding=encoding) as content:
                return "a JSON object, not rows" if is_one_object(content) else None
        if ending in DELIMITED.endings:
            with open_content(source.name, encoding=encoding) as content:
                if (rows := next(parse_delimited(content, keep_broken=True), None)) and text_column not in rows.columns:
                    return f"a table without a column {text_column}: --text-column names it"
    except DataError:  # reported when the file is read
        return None
    except UsageError:  # the encoding does not fit this file, which may be one to skip
        why = None if encoding is None else _why_skipped(source, folder, include, text_column, None)
        if why is None:
            raise
        return why
    return None if ending in READ else f"not a known text format: --include '*{ending}' reads them as text"

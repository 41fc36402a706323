"""Tokens and tags in files side by side, as ATIS and SNIPS come (Goo et al., 2018): seq.in, seq.out and label, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.readers.content import nearest_files, plain_name, read_text, split_lines

_TOKENS, _TAGS, _LABEL = "seq.in", "seq.out", "label"


def parse_parallel(folder: Path, *, encoding: str | None = None, max_file_size: float | None = None) -> Iterator[Examples]:
    """The rows of a folder, one block, as columns `tokens` and `tags`, lists of equal length, and `label`, text, if it has one.

    Each file may be compressed; spaces separate tokens and tags. encoding, max_file_size: as in `open_content`. Raises
    DataError, with file and line, where the files have different numbers of rows, or a row's numbers of tokens and tags differ.
    """
    tokens_path, tags_path, label_path = (_find(folder, name) for name in (_TOKENS, _TAGS, _LABEL))
    for name, path in ((_TOKENS, tokens_path), (_TAGS, tags_path)):
        if path is None:
            hint = nearest_files(folder / name)
            raise DataError(f"no file {name}; expected {_TOKENS} and {_TAGS} side by side", where=str(folder), hint=hint)
    assert tokens_path
    assert tags_path
    paths = [path for path in (tokens_path, tags_path, label_path) if path]
    lines = {path: split_lines(read_text(path, encoding=encoding, max_file_size=max_file_size)) for path in paths}
    if not lines[tokens_path]:
        raise DataError("the file is empty", where=str(tokens_path))
    for path in lines:
        _refuse_unequal_rows(tokens_path, path, lines)

    # At runs of spaces, which SNIPS has, and nowhere else: str.split would also cut at U+00A0.
    tokens, tags = ([[*filter(None, line.split(" "))] for line in lines[path]] for path in (tokens_path, tags_path))
    for number, (words, marks) in enumerate(zip(tokens, tags, strict=True), start=1):
        if not words:
            raise DataError("the row has no tokens", where=f"{tokens_path}:{number}", hint="remove the row from all files")
        if len(words) != len(marks):
            what = f"{len(words)} tokens and {len(marks)} tags; expected one tag per token, separated by spaces"
            raise DataError(what, where=f"{tags_path}:{number}")
    columns: dict[str, Sequence] = {"tokens": tokens, "tags": tags}
    if label_path:
        columns["label"] = [line.strip() for line in lines[label_path]]
    yield Examples(columns=columns, source=str(tokens_path), lines=range(1, len(tokens) + 1))


def is_parallel(folder: Path) -> bool:
    """Whether this is a folder with a file seq.in."""
    return folder.is_dir() and any(plain_name(path.name) == _TOKENS for path in folder.iterdir())


def _find(folder: Path, name: str) -> Path | None:
    """The file of that name, compressed or not. Raises DataError where there are several."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and plain_name(path.name) == name)
    if len(paths) > 1:
        names = " and ".join(path.name for path in paths)
        raise DataError(
            f"the folder has {names}; expected one of them",
            where=str(folder),
            hint="keep the right one, and move the other out of the folder",
        )
    return paths[0] if paths else None


def _refuse_unequal_rows(one: Path, other: Path, lines: dict[Path, list[str]]) -> None:
    """Raise DataError, with the first row that only one file has, if the files have different numbers of rows."""
    long, short = sorted((one, other), key=lambda path: -len(lines[path]))
    if len(lines[long]) > len(lines[short]):
        what = f"{one.name} has {len(lines[one])} rows and {other.name} {len(lines[other])}; expected the same number"
        where = f"{long}:{len(lines[short]) + 1}"
        raise DataError(what, where=where, hint=f"this is the first row that {short.name} lacks; is it cut off?")

"""Data files of all formats, and the ways in which `fuzz.py` damages them: cutting, flipping, splicing, odd values."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any

WORDS = ("good", "bad", "movie", "plot", "Zürich", "北京", "😀", "a", "'s", '"quoted"', "[MASK]", "1.5", "-1", "NA", "")
ODD = (
    *(
        "",
        " ",
        "\0",
        "\x1b[2J",
        "\u202e",
        "\u2028",
        "\ud800",
        "\ufeff",
        "\r",
        "\n",
        "\t",
        '"',
        "'",
        "[/red]",
        "{}",
        "=1+1",
        "é" * 3,
    ),
    *(
        "nan",
        "inf",
        "-0",
        "1e999",
        "99999999999999999999",
        "0x10",
        "true",
        "null",
        "None",
        "a" * 5000,
        "🏳️‍🌈" * 50,
        "%s%n",
        "../..",
        "~",
    ),
)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**30, "", "x", [], [[]], {}, {"a": {}}, [None], "\ud800", float("nan"))


# --- good files --------------------------------------------------------------------------------------------------------------


def _text(chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, 9)))


def _rows(chance: random.Random) -> list[dict[str, Any]]:
    return [{"text": _text(chance), "label": chance.choice("ab")} for _ in range(chance.randrange(2, 12))]


def _table(chance: random.Random, separator: str) -> bytes:
    out = io.StringIO()
    csv.writer(out, delimiter=separator).writerows([("text", "label"), *(row.values() for row in _rows(chance))])
    return out.getvalue().encode()


def _jsonl(chance: random.Random) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in _rows(chance)).encode()


def _conll(chance: random.Random) -> bytes:
    tags = ("O", "B-PER", "I-PER", "B-LOC", "O")
    sentences = ("".join(f"{word or 'x'}\t{chance.choice(tags)}\n" for word in _text(chance).split()) for _ in range(4))
    return "\n".join(sentences).encode()


def _squad(chance: random.Random) -> bytes:
    answer = {"text": "movie", "answer_start": 5}
    questions = [{"id": str(n), "question": _text(chance), "answers": [answer]} for n in range(3)]
    return json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "good movie", "qas": questions}]}]}
    ).encode()


def _parquet(chance: random.Random) -> bytes:
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_rows(chance)), out)
    return out.getvalue()


def _arrow(chance: random.Random) -> bytes:
    import pyarrow

    out, table = io.BytesIO(), pyarrow.Table.from_pylist(_rows(chance))
    with chance.choice((pyarrow.ipc.new_file, pyarrow.ipc.new_stream))(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _xlsx(chance: random.Random) -> bytes:
    import openpyxl

    book, out = openpyxl.Workbook(), io.BytesIO()
    for row in [("text", "label"), *(tuple(row.values()) for row in _rows(chance))]:
        book.active.append(row)
    book.save(out)
    return out.getvalue()


def _zip(chance: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", _plain(chance))
        archive.writestr("b.jsonl", _jsonl(chance))
    return out.getvalue()


def _plain(chance: random.Random) -> bytes:
    return "\n".join(_text(chance) + "." for _ in range(20)).encode()


FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    "csv": lambda chance: _table(chance, ","),
    "tsv": lambda chance: _table(chance, "\t"),
    "json": lambda chance: json.dumps(_rows(chance)).encode(),
    "jsonl": _jsonl,
    "conll": _conll,
    "squad.json": _squad,
    "parquet": _parquet,
    "arrow": _arrow,
    "xlsx": _xlsx,
    "zip": _zip,
    "txt": _plain,
    "md": lambda chance: b"# T\n\n* " + _plain(chance),
    "html": lambda chance: b"<html><p>" + _plain(chance) + b"</p><table><tr><td>x</table>",
    "csv.gz": lambda chance: gzip.compress(_table(chance, ","), mtime=0),
    "jsonl.xz": lambda chance: lzma.compress(_jsonl(chance)),
    "txt.bz2": lambda chance: bz2.compress(_plain(chance)),
}


# --- what is done to them ----------------------------------------------------------------------------------------------------


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 30)) if data else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _splice(data: bytes, chance: random.Random) -> bytes:
    other = good(chance.choice(tuple(FORMATS)), chance.randrange(50))
    return _cut(data, chance) + other[chance.randrange(len(other)) :]


def _insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(ODD).encode("utf-8", "surrogatepass") + data[at:]


def _repeat(data: bytes, chance: random.Random) -> bytes:
    first, second = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:second] + data[first:second] * chance.choice((1, 2, 200)) + data[second:]


def _remove(data: bytes, chance: random.Random) -> bytes:
    first, second = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[second:]


def _documents(text: str) -> list[Any]:
    """The values of JSON Lines, or of one JSON document over several lines. Raises ValueError for other text."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def _retype(data: bytes, chance: random.Random) -> bytes:
    """Put a value of another type somewhere into JSON."""
    try:
        lines = _documents(data.decode())
    except ValueError:
        return _insert(data, chance)
    for value in lines:
        while isinstance(value, (dict, list)) and value:
            key: Any = chance.choice([*value]) if isinstance(value, dict) else chance.randrange(len(value))
            if chance.random() < 0.4 or not isinstance(value[key], (dict, list)):
                value[key] = chance.choice(VALUES)
                break
            value = value[key]
    return "\n".join(map(json.dumps, lines)).encode()


CHANGES = (_cut, _flip, _splice, _insert, _insert, _repeat, _remove, _retype, _retype)


@cache
def good(name: str, number: int) -> bytes:
    """A good file of a format, a function of the number."""
    return FORMATS[name](random.Random(number))


def changed(data: bytes, chance: random.Random) -> bytes:
    """A file after one or more changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        data = chance.choice(CHANGES)(data, chance)[: 2**20]
    return data

"""A report as one self-contained HTML file: it loads and runs nothing, and escapes all text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import UsageError, packages_of
from bertkit.html.charts import STYLES, Figure
from bertkit.progress import format_cell, is_numeric
from bertkit.report import Finding, Matrix, Piece, Table

MOST_BYTES = 2_000_000
LONGEST = 200  # characters of a text that is shown whole
_JOINERS = "\n\u200c\u200d"  # Persian, Hindi and emoji need the last two


class Entry(NamedTuple):
    """A row of data. title: its place. texts: by name."""

    title: str
    texts: Mapping[str, Sequence[Piece]]


class Section(NamedTuple):
    """A part of a page with a heading."""

    title: str
    parts: Sequence[Table | Finding | Figure | Entry]


def require_packages() -> None:
    """Raise MachineError if the packages of the extra `report` are missing."""
    with packages_of("report"):
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401


def render(title: str, sections: Sequence[Section], *, paths: Mapping[str, str] = {}) -> str:
    """The page. paths: paths on this machine, with their replacements.

    Raises UsageError for a page of more than MOST_BYTES.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    places = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    replaced = _replacing(paths)
    places.filters.update(
        visible=lambda text: visible(replaced(text)),
        shown=lambda value, longest=LONGEST: shown(replaced(str(value)), longest),
        cell=lambda value: shown(replaced(format_cell(value))),
        shades=shades,
    )
    for kind in (Table, Matrix, Finding, Figure):
        places.tests[kind.__name__.lower()] = lambda part, kind=kind: isinstance(part, kind)
    text = places.get_template("page.html").render(title=title, sections=sections, styles=STYLES, is_numeric=is_numeric)
    if (size := len(text.encode())) > MOST_BYTES:
        what = f"the report would be {size / 1e6:.1f} MB; expected at most {MOST_BYTES / 1e6:.0f} MB"
        raise UsageError(what, hint="give fewer runs, or show fewer errors: --errors 5")
    return text


def _replacing(paths: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces these paths anywhere in a text, also at the beginning of longer paths."""
    if not paths:
        return str
    longest_first = sorted(paths, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.~/-])({'|'.join(map(re.escape, longest_first))})(?![\w-])")
    return lambda text: pattern.sub(lambda found: paths[found[0]], text)


def visible(text: str) -> str:
    """Text with invisible characters written out, such as those that change the direction of text."""
    return "".join(each if each.isprintable() or each in _JOINERS else repr(each)[1:-1] for each in text)


def shown(value: Any, longest: int = LONGEST) -> str:
    """`visible`, without the middle of a longer text."""
    text = str(value)
    return visible(text if len(text) <= longest else f"{text[: longest // 2]} [...] {text[-longest // 2 :]}")


def shades(row: Sequence[Any]) -> list[float]:
    """The shades of the cells in a row of a Matrix, from 0 to 0.6, by their share of the row."""
    return [0.0, *(round(0.6 * count / max(1, sum(row[1:])), 3) for count in row[1:])]

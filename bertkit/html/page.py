"""A report as one HTML file that stands alone: nothing is fetched or executed, and text of data is shown as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import UsageError, packages_of
from bertkit.html.charts import STYLES, Figure
from bertkit.progress import format_cell, is_numeric
from bertkit.report import Finding, Matrix, Piece, Table

MOST_BYTES = 2_000_000
_JOINERS = "\n\u200c\u200d"  # which Persian, Hindi and emoji need


class Entry(NamedTuple):
    """A row of data. title: where it is. texts: by name."""

    title: str
    texts: Mapping[str, Sequence[Piece]]


class Section(NamedTuple):
    """A part of a page with a heading."""

    title: str
    parts: Sequence[Table | Finding | Figure | Entry]


def require_packages() -> None:
    """Raise MachineError where the packages of the extra `report` are missing."""
    with packages_of("report"):
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401


def render(title: str, sections: Sequence[Section]) -> str:
    """The page. Raises UsageError for one of more than MOST_BYTES."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    places = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    places.filters.update(visible=visible, shown=shown, shades=shades, cell=lambda value: shown(format_cell(value)))
    for kind in (Table, Matrix, Finding, Figure):
        places.tests[kind.__name__.lower()] = lambda part, kind=kind: isinstance(part, kind)
    text = places.get_template("page.html").render(title=title, sections=sections, styles=STYLES, is_numeric=is_numeric)
    if (size := len(text.encode())) > MOST_BYTES:
        what = f"the report would have {size / 1e6:.1f} MB; a report has at most {MOST_BYTES / 1e6:.0f}"
        raise UsageError(what, hint="give fewer runs, or show fewer errors: --errors 5")
    return text


def visible(text: str) -> str:
    """Text with what is invisible written out, such as what turns the direction of text."""
    return "".join(each if each.isprintable() or each in _JOINERS else repr(each)[1:-1] for each in text)


def shown(value: Any, longest: int = 200) -> str:
    """`visible`, without the middle of what is longer than so many characters."""
    text = str(value)
    return visible(text if len(text) <= longest else f"{text[: longest // 2]} [...] {text[-longest // 2 :]}")


def shades(row: Sequence[Any]) -> list[float]:
    """How dark the cells of a Matrix's row are, from 0 to 0.6: their share of the row."""
    return [0.0, *(round(0.6 * count / max(1, sum(row[1:])), 3) for count in row[1:])]

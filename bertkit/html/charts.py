"""Figures drawn by matplotlib as SVG: the same bytes for the same numbers, whatever a user's matplotlibrc says.

They contain only numbers and fixed words. The names of data, metrics and runs are left to the page: matplotlib would read "$x$"
as mathematics, and its fonts lack many scripts.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

from bertkit.report import Table

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # Okabe and Ito (2008)
STYLES = [(colour, dash) for dash, colour in product(("solid", "dashed", "dotted"), _COLOURS)]  # of lines, in their order
_MOST_POINTS = 500  # of a line; more cannot be told apart
_INCHES = (5.2, 2.8)


class Line(NamedTuple):
    """name: for the page. xs, ys: at least one point, sorted by x."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


class Figure(NamedTuple):
    """title, alt: what it shows, and its numbers in words. source: a data URL. lines: their names, in the order of STYLES."""

    title: str
    alt: str
    source: str
    lines: Sequence[str] = ()


@contextmanager
def _defaults() -> Iterator[None]:
    """matplotlib's default settings, with a fixed salt for the ids in an SVG."""
    import matplotlib

    own = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    with matplotlib.rc_context({**own, "svg.hashsalt": "bertkit", "svg.fonttype": "none"}):
        yield


@_defaults()
def draw_lines(title: str, lines: Sequence[Line], *, marks: Sequence[float] = ()) -> Figure:
    """Lines by step. marks: steps at which something begins, as vertical lines."""
    figure, axes = _axes()
    for number, line in enumerate(lines):
        every = -(-len(line.xs) // _MOST_POINTS)
        chosen = sorted({*range(0, len(line.xs), every), len(line.xs) - 1})
        colour, dash = STYLES[number % len(STYLES)]
        xs, ys = ([values[at] for at in chosen] for values in (line.xs, line.ys))
        axes.plot(xs, ys, color=colour, linestyle=dash, marker="o" if len(xs) < 20 else "", markersize=3)
    for mark in marks:
        axes.axvline(mark, color="#767676", linewidth=0.8)
    axes.set_xlabel("step")
    series_texts = []
    for line in lines:
        low, high = (choose(range(len(line.ys)), key=line.ys.__getitem__) for choose in (min, max))
        named = {"first": 0, "lowest": low, "highest": high, "last": -1}
        points = [f"{which} {line.ys[at]:.4g} at step {line.xs[at]}" for which, at in named.items()]
        series_texts.append(f"{line.name}: {', '.join(points)}")
    return Figure(title, f"{title} by step. {'; '.join(series_texts)}", _encoded(figure), [line.name for line in lines])


@_defaults()
def draw_reliability(table: Table) -> Figure:
    """The share of correct predictions by confidence, with the diagonal of perfect calibration. table: its numbers."""
    figure, axes = _axes()
    confidence, right = ([row[column] for row in table.rows] for column in (2, 3))
    axes.plot([0, 1], [0, 1], color="#767676", linewidth=0.8)
    axes.bar(confidence, right, width=0.03, color=_COLOURS[0])
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="mean probability", ylabel="accuracy")
    alt = "; ".join(f"probability {row[2]:.3f}, accuracy {row[3]:.3f}" for row in table.rows)
    return Figure("reliability diagram", f"Reliability diagram of the numbers in the table: {alt}", _encoded(figure))


def _axes() -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#cccccc", linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _encoded(figure: Any) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return f"data:image/svg+xml;base64,{b64encode(drawn.getvalue().encode()).decode()}"

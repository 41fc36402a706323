"""Figures: the same bytes for the same numbers, whatever the surroundings; their points; no text of data in them."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import pytest

from bertkit.html.charts import STYLES, Figure, Line, draw_lines, draw_reliability
from bertkit.report import Table

LINES = [Line("training", [10, 20, 30], [1.0, 0.25, 0.5]), Line("$\\frac$ <b>", [10, 30], [2.0, 1.0])]
TABLE = Table("r", ["probability", "decisions", "mean probability", "accuracy"], [["a", 4, 0.5, 0.25], ["b", 6, 0.9, 1.0]])


def svg(figure: Figure) -> ElementTree.Element:
    head, _, data = figure.source.partition(",")
    assert head == "data:image/svg+xml;base64"
    return ElementTree.fromstring(base64.b64decode(data))


def words(figure: Figure) -> set[str]:
    return {"".join(each.itertext()) for each in svg(figure).iter("{http://www.w3.org/2000/svg}text")}


def polylines(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """The points of each line by its colour, in the units of the drawing."""
    found = {}
    for path in svg(figure).iter("{http://www.w3.org/2000/svg}path"):
        style = path.get("style") or ""
        if "fill: none" in style and (colour := re.search(r"stroke: (#\w+)", style)):
            points = re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", path.get("d") or "")
            found[colour[1]] = [(float(x), float(y)) for x, y in points]
    return found


def test_the_same_numbers_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    once = [draw_lines("loss", LINES), draw_reliability(TABLE)]
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path", "svg.hashsalt": None}):
        assert [draw_lines("loss", LINES), draw_reliability(TABLE)] == once
    assert draw_lines("loss", LINES[:1]).source != once[0].source
    code = (
        "from bertkit.html.charts import *\nfrom bertkit.report import Table\n"
        f"print(draw_lines('loss', {LINES!r}).source, draw_reliability({TABLE!r}).source)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [figure.source for figure in once]


def test_no_text_of_data_is_drawn() -> None:
    hostile = draw_lines("$\\frac{", [Line("\U0001f600 $x$", [1, 2], [3, 4])])
    assert all(re.fullmatch(r"step|[\u2212\d.]+", word) for word in words(hostile))
    assert {"mean probability", "accuracy"} <= words(draw_reliability(TABLE))
    assert hostile.lines == ["\U0001f600 $x$"]


def test_points_are_where_the_numbers_say() -> None:
    lines = polylines(draw_lines("loss", LINES))
    first, second = (lines[STYLES[number][0]] for number in (0, 1))
    assert len(first) == 3
    assert len(second) == 2
    xs, ys = zip(*first)
    assert (xs[1] - xs[0]) == pytest.approx(xs[2] - xs[1], abs=1e-4)
    assert (ys[1] - ys[0]) / (ys[2] - ys[1]) == pytest.approx(-0.75 / 0.25, abs=1e-4)
    assert second[1][1] - second[0][1] == pytest.approx(4 / 3 * (ys[1] - ys[0]), abs=1e-3)
    assert second[0][0] == xs[0]


def test_a_long_line_keeps_its_ends_and_stays_small() -> None:
    steps = [*range(100_003)]
    figure = draw_lines("loss", [Line("training", steps, [step**0.5 for step in steps])])
    assert len(figure.source) < 40_000
    assert "first 0 at step 0" in figure.alt
    assert "last 316.2 at step 100002" in figure.alt


def test_figures_say_their_numbers() -> None:
    assert draw_lines("loss", LINES[:1]).alt == (
        "loss by step. training: first 1 at step 10, lowest 0.25 at step 20, highest 1 at step 10, last 0.5 at step 30"
    )
    assert "probability 0.500, accuracy 0.250; probability 0.900, accuracy 1.000" in draw_reliability(TABLE).alt


def test_styles_are_all_different() -> None:
    assert len({*STYLES}) == len(STYLES) == 21

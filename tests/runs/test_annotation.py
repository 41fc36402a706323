"""Predictions to annotation tools and back: the same texts, spans and classes, whatever characters the text has."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from annotators import TOOLS
from file_contents import refused, write
from hypothesis import given
from hypothesis import strategies as st

from bertkit.config import filled
from bertkit.errors import UsageError
from bertkit.readers.formats import ANNOTATED, DOCCANO, LABEL_STUDIO, PRODIGY, TAGGED, TEXTS, read_file, recognize
from bertkit.readers.utf16 import from_utf16, to_utf16
from bertkit.runs.prediction.annotation import ANNOTATIONS
from bertkit.tasks import TextClassification, TokenClassification
from bertkit.tasks.token_classification.tags import spans_of

# Words and spans in [], each with its label after |: emoji of one and of several characters, Chinese, combining marks, CR LF.
MARKED = [
    "[👩‍🚀 Zoe\u0308|PER] met [王小明|PER] in [Ürümqi|LOC].\r\nHe said 👍👍\r\nto [Ann Lee|PER]",
    "nobody 🏳️‍🌈",
    "[🅱|LOC] [🅱|LOC]",
    "[Line\r\nends|PER] here",
    "\\n is [no\\nline|PER] end",
]
COLUMNS = ("id", "text", "tokens", "offsets", "tags", "probabilities", "entities", "more")


def sentence(marked: str, number: int) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """A row as `predict` writes it for tags, and its spans."""
    text, spans, entities = "", [], []
    for part in re.split(r"(\[.*?\|[A-Z]+\])", marked, flags=re.DOTALL):
        if match := re.fullmatch(r"\[(.*)\|([A-Z]+)\]", part, re.DOTALL):
            part, label = match[1], match[2]
            spans.append((part, label))
            span = {"start": len(text), "end": len(text) + len(part), "label": label, "text": part}
            entities.append(span | {"probability": 0.75})
        text += part
    edges = {edge for each in entities for edge in (each["start"], each["end"])}
    words = [match.span() for match in re.finditer(r"\S+", text)]
    offsets = [
        pair
        for start, end in words
        for at in [[start, *sorted(edge for edge in edges if start < edge < end), end]]
        for pair in pairwise(at)
    ]
    row = {"id": number, "text": text, "tokens": [text[start:end] for start, end in offsets], "offsets": [*map(list, offsets)]}
    return row | {"tags": [], "probabilities": [0.5] * len(offsets), "entities": entities, "more": "x"}, spans


ROWS, SPANS = zip(*(sentence(marked, number) for number, marked in enumerate(MARKED)), strict=True)


def written(name: str, rows: list[dict[str, Any]], columns: tuple[str, ...], predicted: tuple[str, ...]) -> str:
    """A file of two windows."""
    writer = ANNOTATIONS[f".{name}"](columns, predicted)
    data = writer.begin() + writer.write(rows[:1]) + writer.between + writer.write(rows[1:]) + writer.end
    return data.decode()


@pytest.mark.parametrize("name", TOOLS)
def test_spans_come_back(name: str, tmp_path: Path) -> None:
    content = written(name, [*ROWS], COLUMNS, COLUMNS[4:7])
    suffix, tool = TOOLS[name]
    exported, seen = tool(content)
    assert seen == [*map(list, SPANS)]
    path = write(tmp_path / f"export{suffix}", exported)
    recipe = filled(TokenClassification())
    rows = recipe.read_file(path)
    assert rows.columns["more"] == ["x"] * len(ROWS)
    examples = recipe.standardize(rows, labelled=True)
    assert examples.columns["text"] == [row["text"] for row in ROWS]
    found = [
        [(text[places[first][0] : places[end - 1][1]], label) for first, end, label in spans_of(tags)]
        for text, places, tags in zip(*(examples.columns[each] for each in ("text", "places", "tags")), strict=True)
    ]
    assert found == [*map(list, SPANS)]


GOOD = "good, or 好"
CLASSES = [
    {"id": 0, "text": "a 😀\r\nb", "label": GOOD, "probability": 0.75, "probabilities": {"bad": 0.25, GOOD: 0.75}},
    {"id": 1, "text": "Zoe\u0308", "label": "bad", "probability": 1.0, "probabilities": {"bad": 1.0, GOOD: 0.0}},
]
SETS = [
    {"id": 0, "text": "a 😀\r\nb", "labels": ["bad", GOOD], "probabilities": {"bad": 0.9, GOOD: 0.6}},
    {"id": 1, "text": "Zoe\u0308", "labels": ["bad"], "probabilities": {"bad": 0.8, GOOD: 0.4}},
    {"id": 2, "text": "none", "labels": [], "probabilities": {"bad": 0.1, GOOD: 0.2}},
]


@pytest.mark.parametrize("name", TOOLS)
def test_classes_come_back(name: str, tmp_path: Path) -> None:
    suffix, tool = TOOLS[name]
    content = written(name, CLASSES, tuple(CLASSES[0]), ("label", "probability", "probabilities"))
    exported, seen = tool(content)
    assert seen == [[row["label"]] for row in CLASSES]
    recipe = filled(TextClassification())
    examples = recipe.standardize(recipe.read_file(write(tmp_path / f"x{suffix}", exported)), labelled=True)
    assert examples.columns == {name: [row[name] for row in CLASSES] for name in ("text", "label")}


@pytest.mark.parametrize("name", TOOLS)
def test_several_labels_come_back(name: str, tmp_path: Path) -> None:
    suffix, tool = TOOLS[name]
    exported, seen = tool(written(name, SETS, tuple(SETS[0]), ("labels", "probabilities")))
    assert seen == [row["labels"] for row in SETS]
    path = write(tmp_path / f"x{suffix}", exported)
    recipe = filled(TextClassification(multi_label=True))
    examples = recipe.standardize(recipe.read_file(path), labelled=True)
    assert examples.columns["text"] == [row["text"] for row in SETS]
    assert [sorted(names) for names in examples.columns["label"]] == [row["labels"] for row in SETS]
    one = filled(TextClassification())
    error = refused(one.split_by, one.read_file(path))
    assert "expected one label" in error.what
    assert "--multi-label" in (error.hint or "")


def test_scores_are_of_the_least_certain_decision() -> None:
    def scores(rows: list[dict[str, Any]], *predicted: str) -> list[Any]:
        tasks = json.loads(written("label-studio", rows, tuple(rows[0]), predicted))
        found = [task["predictions"][0] for task in tasks]
        return [(each["score"], [result["score"] for result in each["result"]]) for each in found]

    assert scores(CLASSES, "label", "probability", "probabilities") == [(0.75, [0.75]), (1.0, [1.0])]
    assert scores(SETS, "labels", "probabilities") == [(0.6, [0.6]), (0.6, [0.6]), (0.8, [])]
    assert scores([*ROWS], *COLUMNS[4:7])[:2] == [(0.5, [0.75] * 4), (0.5, [])]


@pytest.mark.parametrize("name", TOOLS)
def test_other_predictions_are_refused(name: str) -> None:
    error = refused(ANNOTATIONS[f".{name}"], ("id", "question", "answer"), ("answer", "start"), kind=UsageError)
    assert "answer, start" in error.what


# --- what tools export, by hand -----------------------------------------------------------------------------------------

# 💩 is one character of two UTF-16 units.
HAND = "💩This is an annotation."
LABEL_STUDIO_TASK = {
    "id": 1,
    "annotations": [
        {
            "id": 5,
            "completed_by": 1,
            "was_cancelled": False,
            "ground_truth": False,
            "created_at": "2024-03-01T09:00:00Z",
            "lead_time": 8.4,
            "result": [
                {
                    "value": {"start": 12, "end": 22, "text": "annotation", "labels": ["X"]},
                    "id": "q1",
                    "from_name": "label",
                    "to_name": "text",
                    "type": "labels",
                    "origin": "manual",
                }
            ],
        }
    ],
    "drafts": [],
    "predictions": [],
    "data": {"text": HAND},
    "meta": {},
    "project": 1,
}
DOCCANO_LINE = {"id": 11, "text": HAND, "label": [[13, 23, "X"]], "Comments": []}
RELATIONS_LINE = {
    "id": 11,
    "text": HAND,
    "entities": [{"id": 3, "label": "X", "start_offset": 13, "end_offset": 23}],
    "relations": [],
    "Comments": [],
}
PRODIGY_LINE = {
    "text": HAND,
    "_input_hash": -1,
    "_task_hash": 2,
    "tokens": [{"text": "💩This", "start": 0, "end": 5, "id": 0, "ws": True}],
    "spans": [{"start": 12, "end": 22, "token_start": 3, "token_end": 3, "label": "X"}],
    "_view_id": "ner_manual",
    "answer": "accept",
}
BY_HAND = {
    "label-studio.json": (LABEL_STUDIO, json.dumps([LABEL_STUDIO_TASK])),
    "old-label-studio.json": (LABEL_STUDIO, json.dumps([LABEL_STUDIO_TASK]).replace("12", "13").replace("22,", "23,")),
    "doccano.jsonl": (DOCCANO, json.dumps(DOCCANO_LINE)),
    "relations.jsonl": (DOCCANO, json.dumps(RELATIONS_LINE)),
    "prodigy.jsonl": (PRODIGY, json.dumps(PRODIGY_LINE)),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_offsets_are_in_the_units_of_each_tool(name: str, tmp_path: Path) -> None:
    form, content = BY_HAND[name]
    path = write(tmp_path / name, content)
    assert [recognize(path, formats) for formats in (TAGGED, TEXTS, ANNOTATED)] == [form] * 3
    recipe = filled(TokenClassification())
    examples = recipe.standardize(recipe.read_file(path), labelled=True)
    ((places,), (tags,)) = examples.columns["places"], examples.columns["tags"]
    found = [(HAND[slice(*place)], tag) for place, tag in zip(places, tags, strict=True) if tag != "O"]
    assert found == [("annotation", "B-X")]


def test_a_span_that_cuts_a_character_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", "\n".join(json.dumps(DOCCANO_LINE | {"label": [[at, 23, "X"]]}) for at in (13, 1)))
    error = refused(read_file, path, TAGGED)
    assert (error.where, "cuts a character at 1" in error.what) == (f"{path}:2", True)
    assert read_file(path, TAGGED, on_error="skip").columns == {
        name: [[[12, 22, "X"]] if name == "label" else value, None] for name, value in DOCCANO_LINE.items()
    }
    assert read_file(path, TAGGED, labelled=False).columns["label"] == [[[13, 23, "X"]], [[1, 23, "X"]]]


def test_tasks_that_were_not_accepted_are_counted(tmp_path: Path) -> None:
    answers = [PRODIGY_LINE | {"answer": answer} for answer in ("accept", "reject", "ignore")]
    bare = {name: value for name, value in PRODIGY_LINE.items() if name != "spans"}  # nothing was marked
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(each) + "\n" for each in [*answers, bare]))
    rows = read_file(path, TAGGED)
    assert [len(spans) for spans in rows.columns["entities"]] == [1, 0]
    assert ([*rows.columns], [*rows.lines]) == (["text", "entities"], [1, 4])
    assert rows.remarks.notes == ("skipped 2 tasks that annotators rejected or ignored",)
    write(path, path.read_text(encoding="utf-8") + json.dumps(PRODIGY_LINE | {"answer": "maybe"}))
    error = refused(read_file, path, TAGGED)
    assert (error.where, "'maybe'" in error.what) == (f"{path}:5", True)


def test_without_labels_every_task_is_a_row(tmp_path: Path) -> None:
    """Also those that annotators rejected or skipped, with their numbers; and tasks that nobody has annotated yet."""
    answers = [PRODIGY_LINE | {"text": answer, "answer": answer} for answer in ("accept", "reject", "ignore")]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(each) + "\n" for each in answers))
    rows = read_file(path, TAGGED, labelled=False)
    assert (rows.columns["text"], rows.remarks.notes) == (["accept", "reject", "ignore"], ())
    write(path, path.read_text(encoding="utf-8") + json.dumps({"text": "new"}))
    assert read_file(path, TAGGED, labelled=False).columns["text"][-1] == "new"
    skipped = LABEL_STUDIO_TASK | {"id": 7, "annotations": [{"was_cancelled": True, "result": []}]}
    tasks = [LABEL_STUDIO_TASK | {"id": 5}, skipped, {"id": 9, "data": {"text": "Ann", "id": "own"}}]
    path = write(tmp_path / "x.json", json.dumps(tasks))
    rows = read_file(path, TAGGED, labelled=False)
    assert (rows.columns["id"], rows.columns["text"][-1]) == ([5, 7, "own"], "Ann")
    assert (rows.columns.keys() & {"entities", "label"}, rows.remarks.notes) == (set(), ())
    of_predict = json.loads(written("label-studio", [ROWS[1]] * 2, COLUMNS, COLUMNS[4:7]))
    for bare in ([tasks[2]], [{"data": {"text": "Ann"}}], of_predict):
        path = write(tmp_path / "x.json", json.dumps(bare))
        assert recognize(path, TAGGED) is LABEL_STUDIO
        assert read_file(path, TAGGED, labelled=False).columns["text"] == [task["data"]["text"] for task in bare]
        assert read_file(path, TAGGED).columns["entities"] == [None] * len(bare)
    plain = [{"data": {"source": "web"}, "text": "good", "label": "pos"}]
    path = write(tmp_path / "x.json", json.dumps(plain))
    assert read_file(path, TEXTS).columns == {"data": [{"source": "web"}], "text": ["good"], "label": ["pos"]}


def test_binary_answers_are_classes(tmp_path: Path) -> None:
    rows = [
        {"text": "good", "label": "praise", "answer": "accept", "_task_hash": 1},
        {"text": "bad", "label": "praise", "answer": "reject"},
    ]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(each) + "\n" for each in rows))
    assert read_file(path, TEXTS).columns == {"text": ["good"], "label": ["praise"]}


def test_an_own_column_called_answer_is_no_prodigy(tmp_path: Path) -> None:
    rows = [{"text": "Ann", "answer": "accept"}, {"text": "Bob", "answer": "reject"}]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(each) + "\n" for each in rows))
    assert read_file(path, TEXTS).columns == {"text": ["Ann", "Bob"], "answer": ["accept", "reject"]}


@pytest.mark.parametrize(
    ("form", "text", "row", "column"),
    [
        (DOCCANO, "letter", {"label": [[0, 3, "X"]]}, "label"),
        (PRODIGY, "html", {"spans": [], "answer": "accept"}, "entities"),
    ],
)
def test_a_text_under_another_name(form: Any, text: str, row: dict[str, Any], column: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", (json.dumps({text: "Ann is here"} | row) + "\n") * 2)
    assert recognize(path, TAGGED) is form
    assert read_file(path, TAGGED).columns == {text: ["Ann is here"] * 2, column: [row.get("label", [])] * 2}


# The same line by a user who counts characters; in older exports of doccano the text is `data`.
@pytest.mark.parametrize("name", ["text", "data"])
@pytest.mark.parametrize(("start", "unit"), [(12, "characters"), (13, "UTF-16 units")])
def test_bounds_of_words_tell_how_offsets_count(start: int, unit: str, name: str, tmp_path: Path) -> None:
    no_word = {name: "👍👍 👍", "label": [[3, 4, "Y"]]}  # tells nothing by itself
    rows = [no_word, {name: HAND, "label": [[start, start + 10, "X"]]}]
    path = write(tmp_path / "x.jsonl", "".join(json.dumps(each) + "\n" for each in rows if each is not no_word or start == 12))
    found = read_file(path, TAGGED)
    assert found.columns["label"][-1] == [[12, 22, "X"]]
    assert found.columns["label"][:-1] == ([[[3, 4, "Y"]]] if start == 12 else [])
    assert found.remarks.notes == (f"read as doccano's export, offsets in {unit}",)


def test_offsets_that_count_alike_need_no_note(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", json.dumps({"text": "Ünal is here", "label": [[0, 4, "X"]]}))
    assert read_file(path, TAGGED).remarks.notes == ()


@pytest.mark.parametrize("choices", [None, 3, "spam", ["a", 1]])
def test_choices_are_a_list_of_texts(choices: Any, tmp_path: Path) -> None:
    task = LABEL_STUDIO_TASK | {"annotations": [{"result": [{"value": {"choices": choices}}]}]}
    error = refused(read_file, write(tmp_path / "x.json", json.dumps([task])), TEXTS)
    assert (error.where, error.what) == (f"{tmp_path / 'x.json'}:1", f"the choices are {choices!r}; expected a list of texts")


def test_a_span_of_label_studio_keeps_its_offsets_if_none_fit(tmp_path: Path) -> None:
    value = {"start": 1, "end": 2, "text": "💩", "labels": ["X"]}  # as UTF-16 units, 1 is inside the character
    task = LABEL_STUDIO_TASK | {"annotations": [{"result": [{"value": value}]}]}
    (spans,) = read_file(write(tmp_path / "x.json", json.dumps([task])), TAGGED).columns["entities"]
    assert spans == [value]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-3, 40))
def test_offsets_of_utf16(text: str, place: int) -> None:
    units = text.encode("utf-16-le")
    at = [len(text[:end].encode("utf-16-le")) // 2 for end in range(len(text) + 1)]
    assert [to_utf16(text, end) for end in range(len(text) + 1)] == at
    found = from_utf16(text, place)
    if 0 <= place <= len(units) // 2:
        assert found == (at.index(place) if place in at else None)
    else:
        assert found is not None
        assert not 0 <= found <= len(text)

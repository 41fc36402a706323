"""SQuAD's JSON: every question a row, every error by its place in the file."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from file_contents import content_of, parsed
from file_contents import refused as refused_by
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.errors import UserError
from bertkit.readers.formats import SQUAD, read_file
from bertkit.readers.parsers.squad import looks_like_squad, parse_squad

CONTEXT = "Normandy lies in France, \u2028and \U0001f600 so does Paris."
FILE: dict[str, Any] = {
    "version": "1.1",
    "data": [
        {
            "title": "Normandy",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "56be4db0",
                            "question": "Where is Normandy?",
                            "answers": [
                                {"text": "France", "answer_start": 17},
                                {"text": "in France", "answer_start": 14},
                            ],
                        },
                        {"id": "56be4db1", "question": "And Paris?", "answers": [{"text": "France", "answer_start": 17.0}]},
                    ],
                },
                {"context": "Rollo.", "qas": [{"id": 7, "question": "Who?", "answers": []}]},
            ],
        },
        {"title": "Empty", "paragraphs": []},
    ],
}
ANSWERS = [
    {"text": ["France", "in France"], "answer_start": [17, 14]},
    {"text": ["France"], "answer_start": [17]},
    {"text": [], "answer_start": []},
]


def refused(text: str) -> UserError:
    return refused_by(parsed, parse_squad, text, "dev.json")


def at(content: Any, *path: str | int) -> Any:
    for step in path:
        content = content[step]
    return content


QAS = ("data", 0, "paragraphs", 0, "qas")


def changed(*path: str | int, **fields: Any) -> dict[str, Any]:
    """A copy of FILE in which the object at `path` has other fields; those that are ... are gone."""
    content = copy.deepcopy(FILE)
    target = at(content, *path)
    for name, value in fields.items():
        target.pop(name, None) if value is ... else target.update({name: value})
    return content


def test_the_list_of_articles_alone_is_read_too() -> None:
    assert parsed(parse_squad, json.dumps(FILE["data"]), "f") == parsed(parse_squad, json.dumps(FILE), "f")
    assert looks_like_squad(content_of(json.dumps([{"title": 'the "x" y', "paragraphs": []}])))
    broken = refused_by(parsed, parse_squad, json.dumps(changed(*QAS, 1, question=...)["data"]), "f")
    assert broken.what == "[0].paragraphs[0].qas[1] has no 'question'"


@pytest.mark.parametrize("ascii", [True, False])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_question_a_row_as_the_hub_has_them(ascii, indent):
    examples = parsed(parse_squad, json.dumps(FILE, ensure_ascii=ascii, indent=indent), "dev.json")
    assert examples.columns == {
        "id": ["56be4db0", "56be4db1", "7"],
        "title": ["Normandy"] * 3,
        "context": [CONTEXT, CONTEXT, "Rollo."],
        "question": ["Where is Normandy?", "And Paris?", "Who?"],
        "answers": ANSWERS,
    }
    assert type(examples.columns["answers"][1]["answer_start"][0]) is int
    assert [examples.where(row) for row in range(3)] == ["dev.json:56be4db0", "dev.json:56be4db1", "dev.json:7"]
    assert examples.select([2, 0]).where(1) == "dev.json:56be4db0"


def test_impossible_questions_need_no_answers():
    content = changed(*QAS, 0, is_impossible=True, plausible_answers=[{"text": "x", "answer_start": 0}], answers=...)
    examples = parsed(parse_squad, json.dumps(content), "f")
    assert examples.columns["is_impossible"] == [True, False, False]
    assert examples.columns["answers"] == [{"text": [], "answer_start": []}, *ANSWERS[1:]]


def test_answers_may_lack_their_starts():
    content = changed(*QAS, 0, answers=[{"text": "France"}, {"text": "in France"}])
    assert parsed(parse_squad, json.dumps(content), "f").columns["answers"] == [{"text": ["France", "in France"]}, *ANSWERS[1:]]


def test_rows_in_place_of_paragraphs_are_named():
    error = refused(json.dumps({"version": "1.1", "data": [{"question": "Who?", "context": "Rollo.", "answers": []}]}))
    assert "--rows data" in str(error.hint)


def test_a_test_set_has_no_answers_and_a_title_may_lack():
    content = changed("data", 0, title=...)
    for paragraph in content["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            del question["answers"]
    examples = parsed(parse_squad, json.dumps(content), "f")
    assert set(examples.columns) == {"id", "title", "context", "question"}
    assert examples.columns["title"] == [""] * 3


def test_an_answer_need_not_stand_where_it_says():
    content = changed(*QAS, 0, answers=[{"text": "Spain", "answer_start": -1}, {"text": "", "answer_start": 10**6}])
    assert parsed(parse_squad, json.dumps(content), "f").columns["answers"][0] == {
        "text": ["Spain", ""],
        "answer_start": [-1, 10**6],
    }


ANSWER = (*QAS, 0, "answers", 1)
SPOT = "data[0].paragraphs[0].qas[0]"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([], ""),
        ({}, "'data'"),
        ({"data": {}}, "data is"),
        ({"data": []}, ""),
        (changed("data", 0, paragraphs=[]), ""),
        ({"data": ["x"]}, "data[0] is"),
        (changed("data", 0, title=5), "data[0].title is"),
        (changed("data", 1, paragraphs=...), "data[1] has no 'paragraphs'"),
        (changed("data", 0, "paragraphs", 1, context=...), "data[0].paragraphs[1] has no 'context'"),
        (changed("data", 0, "paragraphs", 1, context=None), "data[0].paragraphs[1].context is"),
        (changed("data", 0, "paragraphs", 1, qas=...), "data[0].paragraphs[1] has no 'qas'"),
        (changed(*QAS, 1, question=...), "data[0].paragraphs[0].qas[1] has no 'question'"),
        (changed(*QAS, 0, id=...), f"{SPOT} has no 'id'"),
        (changed(*QAS, 0, id=""), f"{SPOT}.id is"),
        (changed(*QAS, 0, id=True), f"{SPOT}.id is"),
        (changed(*QAS, 0, answers=...), f"{SPOT} has no 'answers'"),
        (changed(*QAS, 0, answers="France"), f"{SPOT}.answers is"),
        (changed(*QAS, 0, is_impossible="no"), f"{SPOT}.is_impossible is"),
        (changed(*ANSWER, text=...), f"{SPOT}.answers[1] has no 'text'"),
        (changed(*ANSWER, text=1990), f"{SPOT}.answers[1].text is"),
        (changed(*ANSWER, answer_start=...), f"{SPOT}.answers[1] has no 'answer_start'"),
        (changed(*ANSWER, answer_start="14"), f"{SPOT}.answers[1].answer_start is"),
        (changed(*ANSWER, answer_start=14.5), f"{SPOT}.answers[1].answer_start is"),
        (changed(*ANSWER, answer_start=True), f"{SPOT}.answers[1].answer_start is"),
        (changed(*ANSWER, answer_start=None), f"{SPOT}.answers[1].answer_start is"),
        (changed(*ANSWER, answer_start=float("nan")), f"{SPOT}.answers[1].answer_start is"),
        (changed(*QAS, 0, id="7"), f"{SPOT} and data[0].paragraphs[1].qas[0]"),
        (changed(*QAS, 0, question="\ud83d"), SPOT),
    ],
)
def test_errors_by_their_place(content, place):
    error = refused(json.dumps(content))
    assert place in error.what
    assert error.where == ("dev.json:56be4db0" if place == SPOT else "dev.json")


TEXT = json.dumps(FILE, indent=1)


@pytest.mark.parametrize(
    ("text", "line", "is_cut_off"),
    [
        ("", "", False),
        (" \n", "", False),
        (TEXT[:300], ":15", True),
        (TEXT.rstrip()[:-1], f":{TEXT.count(chr(10)) + 1}", True),
        ('{"data": [\n  {"title": "open', ":2", True),
        ('{"data": [\n  {"title" 1}]}', ":2", False),
        (TEXT + "\n{}", f":{TEXT.count(chr(10)) + 2}", False),
        ("[" * 100_000, "", False),
    ],
)
def test_what_is_not_json_by_line(text, line, is_cut_off):
    error = refused(text)
    assert error.where == f"dev.json{line}"
    assert ("cut off" in str(error.hint)) is is_cut_off


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_file_cut_off_anywhere_is_refused(data):
    refused(TEXT[: data.draw(st.integers(0, len(TEXT) - 1))])


@settings(max_examples=50, deadline=None)
@given(
    contexts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=4),
    counts=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_what_is_written_comes_back(contexts, counts):
    paragraphs, rows = [], []
    for i, (context, count) in enumerate(zip(contexts, [1, *counts])):
        qas = [{"id": f"{i}-{k}", "question": context[:k], "answers": []} for k in range(count)]
        paragraphs.append({"context": context, "qas": qas})
        rows += [(question["id"], context, question["question"]) for question in qas]
    content = {"data": [{"title": "t", "paragraphs": [paragraph]} for paragraph in paragraphs]}
    columns = parsed(parse_squad, json.dumps(content), "f").columns
    assert [*zip(columns["id"], columns["context"], columns["question"])] == rows


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TEXT, True),
        (json.dumps(FILE), True),
        (json.dumps(FILE["data"]), True),
        (json.dumps([{"text": "a", "paragraphs": []}]), False),
        (TEXT[:200], True),  # cut off: the error is the reader's to give
        ('\n{"data" :[ {"paragraphs": []}], "version": 1}', True),
        ("[" + TEXT + "]", False),
        ('{"text": "a"}\n{"text": "b"}\n', False),
        ('{"data": [1, 2]}\n{"paragraphs": []}\n', False),
        ('{"paragraphs": [{"data": [{}]}]}', False),
        (json.dumps({"text": '{"data": [{"paragraphs": []}]}'}), False),
        ('{"data": [{"text": "a", "label": 1}]}', False),
        ('{"version": "1.1", "data": []}', True),  # without a question: the error is the reader's too
        ('{"version": 2, "data": [{"title": "a"}]}', True),
        ("plain text", False),
        ("", False),
    ],
)
def test_the_form_is_seen_without_parsing(text, found):
    assert looks_like_squad(content_of(text)) is found


# --- real files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "articles", "paragraphs", "questions", "answers", "impossible", "astray"),
    [
        ("SQuAD/dev-v1.1.rebuilt.json.gz", 48, 2067, 10570, 34726, None, 0),
        ("SQuAD/dev-v2.0.half.json.gz", 16, 646, 6078, 10052, 3168, 0),
        ("CMRC2018/cmrc2018_dev.json.gz", 848, 848, 3219, 9657, None, 200),
        ("CMRC2018/cmrc2018_trial.json.gz", 256, 256, 1002, None, None, 5),
    ],
)
def test_public_files_have_their_official_counts(data_dir, name, articles, paragraphs, questions, answers, impossible, astray):
    examples = read_file(data_dir / name, (SQUAD,))
    columns = examples.columns
    assert {len(values) for values in columns.values()} == {len(set(columns["id"]))} == {questions}
    assert len(set(columns["context"])) in range(paragraphs - 9, paragraphs + 1)  # a few contexts stand twice
    assert len(set(columns["title"])) <= articles
    assert answers in (None, sum(len(its["text"]) for its in columns["answers"]))
    assert ("is_impossible" in columns) is (impossible is not None)
    if impossible:
        assert sum(columns["is_impossible"]) == impossible
        assert [not its["text"] for its in columns["answers"]] == columns["is_impossible"]
    wrong = sum(
        context[start : start + len(text)] != text
        for context, its in zip(columns["context"], columns["answers"])
        for text, start in zip(its["text"], its["answer_start"], strict=True)
    )
    assert wrong == astray
    assert examples.where(0) == f"{data_dir / name}:{columns['id'][0]}"


def test_real_json_of_other_forms_is_told_apart(data_dir):
    for name in ("SQuAD/dev-v2.0.half.json.gz", "CMRC2018/cmrc2018_dev.json.gz"):
        assert looks_like_squad(content_of((data_dir / name).read_bytes()))
    for name in ("C3/dev.json.gz", "OCNLI/dev.json.gz", "LingNLI/val.jsonl.gz"):
        assert not looks_like_squad(content_of((data_dir / name).read_bytes()))

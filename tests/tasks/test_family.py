"""The task family that data is for: guessed if unambiguous, reported by finetune, and otherwise asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from file_contents import write

from bertkit.tasks import FAMILIES
from bertkit.tasks.family import guess_family

CONLL = "EU B-ORG\nrejects O\n\nBerlin B-LOC\n"
SQUAD = '{"version": "1", "data": []}'


@pytest.mark.parametrize(
    ("name", "text", "options", "family"),
    [
        ("a.csv", "question,context,answers\nq,c,a\n", {}, "question-answering"),
        ("a.csv", "id;question;context;answer\n1;q;c;a\n", {}, "question-answering"),
        ("a.json", SQUAD, {}, "question-answering"),
        (
            "a.json",
            '{"version": 1, "data": {"train": [["a", "x"]]}}',
            {"rows": "data.train", "columns": "text,label"},
            "text-classification",
        ),
        ("a.csv", "premise,choice1,choice2,label\np,a,b,0\n", {}, "multiple-choice"),
        ("a.csv", "question,A,B,C,D,answer\nq,a,b,c,d,A\n", {}, "multiple-choice"),
        ("a.csv", "context,question,answerA,answerB,answerC,label\nc,q,a,b,c,1\n", {}, "multiple-choice"),
        ("a.jsonl", '{"article": "a", "question": "q", "options": ["x", "y"], "answer": "A"}', {}, "multiple-choice"),
        (
            "a.json",
            '{"data": [{"question": "q", "choices": ["x", "y"], "answerKey": "A"}]}',
            {"rows": "data"},
            "multiple-choice",
        ),
        ("a.json", '[[["a"], [{"question": "q", "choice": ["x"]}], "1"]]', {}, "multiple-choice"),
        ("a.conll", CONLL, {}, "token-classification"),
        ("a", CONLL, {}, "token-classification"),
        ("a.csv", "tokens,ner_tags\na b,O O\n", {}, "token-classification"),
        ("a.jsonl", '{"text": "a", "entities": []}', {}, "token-classification"),
        ("a.csv", "Sentence #,Word,POS,Tag\nSentence: 1,EU,NNP,B-ORG\n,rejects,VB,O\n", {}, "token-classification"),
        ("a.json", '[["EU rejects", {"entities": [[0, 2, "ORG"]]}]]', {}, "token-classification"),
        ("a.jsonl", '{"text": "EU", "label": []}\n{"text": "EU", "label": [[0, 2, "ORG"]]}', {}, "token-classification"),
        (
            "a.json",
            '[{"data": {"text": "EU"}, "annotations": [{"result": [{"value": {"start": 0, "end": 2, "labels": ["ORG"]}}]}]}]',
            {},
            "token-classification",
        ),
        ("a.json", '[{"id": 0, "words": ["EU", "rejects"], "ner": ["B-ORG", "O"]}]', {}, "token-classification"),
        ("a.jsonl", '{"text": "EU", "spans": [{"start": 0, "end": 2, "label": "ORG"}]}', {}, "token-classification"),
        ("a.csv", "Question,Paragraph,Answer\nq,c,a\n", {}, "question-answering"),
        ("a.csv", "paragraph,question,answer,label\nc,q,a,1\n", {}, None),
        ("a.csv", "text,label\na,1\n", {}, "text-classification"),
        ("a.jsonl", '{"text": "EU", "label": ["a", "b"]}', {}, "text-classification"),
        ("a.csv", "sentence1;sentence2;label\na;b;1\n", {}, "text-classification"),
        ("a.txt", "__label__x some words\n", {}, "text-classification"),
        ("a.txt", "x some words\n", {"separator": " "}, "text-classification"),
        ("a.csv", "a film,1\n", {"columns": "text,label"}, "text-classification"),
        ("a.csv", "text,label\nété,1\n".encode("latin-1"), {"encoding": "latin-1"}, "text-classification"),
        ("a.csv", "a,b\n1,2\n", {"regression": True}, "text-classification"),  # an option of one family alone
        ("a.csv", "a,b\n1,2\n", {"choices": "a,b"}, "multiple-choice"),
        ("a.csv", "a,b\n1,2\n", {"text": "a", "label": "b", "max_steps": 1}, "text-classification"),
        ("a.csv", "text,b,choices\n1,2,3\n", {"text": "text", "label": "b"}, "multiple-choice"),
        ("a.csv", "text,b,tags\n1,2,3\n", {"label": "b"}, None),
        ("a.csv", "a,b\n1,2\n", {}, None),
        ("a.csv", "text,title\n1,2\n", {}, None),
        ("a.csv", "text,other\n1,2\n", {}, None),
        ("a.csv", "question,context,label\nq,c,1\n", {}, None),  # of pairs, or with the answers elsewhere
        ("a.csv", "query,passage,label\nq,p,1\n", {}, None),
        ("a.csv", "sentence,context,label\ns,c,1\n", {}, None),
        ("a.csv", "query,passage,label\nq,p,1\n", {"text": "query"}, "text-classification"),
        ("a.csv", "paragraph,text,label\n3,a,1\n", {}, "text-classification"),
        ("a.jsonl", '{"text": "a", "label": "x", "entities": []}', {}, None),  # an intent, or entities
        ("a.csv", "text,label\na,1\n", {"choices": "a,b"}, "multiple-choice"),
    ],
)
def test_family_of_a_file(tmp_path: Path, name: str, text: str | bytes, options: dict[str, Any], family: str | None) -> None:
    assert guess_family(write(tmp_path / name, text), options).family == family


def test_options_that_decide_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\n1,2\n")
    assert guess_family(path, {"regression": True, "max_steps": 1, "train": "a.csv"}).why == "--regression"


def test_family_of_a_folder(tmp_path: Path) -> None:
    assert guess_family(tmp_path, {}).family is None
    write(tmp_path / "quiz_dev.csv", "question,context,answers\nq,c,a\n")
    assert guess_family(tmp_path, {}).family == "question-answering"
    (tmp_path / "train").mkdir()
    write(tmp_path / "train" / "seq.in", "a\n")
    assert [guess_family(path, {}).family for path in (tmp_path, tmp_path / "train")] == ["token-classification"] * 2


def test_finetune_says_what_it_takes_the_data_for(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = [
        {"question": "who run", "choices": {"label": ["A", "B"], "text": ["the man", "no"]}, "answerKey": key} for key in "ABBA"
    ]
    write(tmp_path / "quiz.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    options = ("--model", tiny_model_dir, "--max-steps", 1, "--device", "cpu", "--validation", "quiz.jsonl")
    ran = run_bertkit("finetune", "--train", "quiz.jsonl", *options, "--output-dir", "run")
    assert ran.code == 0, ran.err
    assert [line for line in ran.err.splitlines() if "multiple-choice" in line][:1] == [
        "treating the data as multiple-choice, judging by columns question, choices, answerKey"
    ]
    ran = run_bertkit("predict", "run", "quiz.jsonl")
    assert (ran.code, len(ran.out.splitlines())) == (0, 4)


def test_finetune_asks_where_there_is_doubt(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "left,right\na,b\n")
    ran = run_bertkit("finetune", "--train", "a.csv", "--model", tiny_model_dir, "--output-dir", "run")
    error, hint = ran.err.splitlines()
    assert ran.code == 2
    assert "left, right" in error
    assert "bertkit finetune FAMILY --train a.csv" in hint
    assert all(family in hint for family in FAMILIES)


def test_data_in_an_options_file_is_one_path(run_bertkit, tmp_path: Path) -> None:
    write(tmp_path / "options.yaml", "train: [a.csv, b.csv]\n")
    ran = run_bertkit("finetune", "--config", "options.yaml", "--model", "minilm", "--output-dir", "out")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error: --train is ['a.csv', 'b.csv']; expected text")

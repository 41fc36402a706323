"""Multiple choice from files to scores: features by hand, the loss by torch's cross_entropy, rows as published, bad input."""

from __future__ import annotations

import csv
import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from file_contents import content_of, parsed
from recipe_rows import fit
from recipe_rows import load as rows_of

from bertkit.errors import DataError, UsageError
from bertkit.features import Features, Ragged
from bertkit.metrics.classification import accuracy
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.readers import Examples, refused_rows
from bertkit.readers.formats import read_file
from bertkit.readers.parsers.c3 import looks_like_c3, parse_c3
from bertkit.tasks import MultipleChoice, MultipleChoiceTask
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.counts import lines_of
from bertkit.tasks.multiple_choice.recipe import guess_choices
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import collate

CLS, SEP = "[CLS]", "[SEP]"
QUIZ = """story,ask,end0,end1,end2,right
the man play,he say,good movie,bad film,,1
the river run,,one two three,good,the city,0
a bank open late,who,yes,no,,yes
"""
NAMED = {"text": "story", "question": "ask", "choices": "end0,end1,end2", "label": "right"}
TASK = MultipleChoiceTask(recipe=MultipleChoice(metrics=(accuracy,)))


def recipe_of(folder: Path, content: str, name: str = "rows.csv", **options: Any) -> MultipleChoice:
    (folder / name).write_text(content, encoding="utf-8")
    return MultipleChoice().overridden({"train": str(folder / name), "validation": str(folder / name), **options})


def load(folder: Path, content: str, name: str = "rows.csv", *, labelled: bool = True, **options: Any) -> Examples:
    return rows_of(recipe_of(folder, content, name, **options), labelled=labelled)


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def quiz(tmp_path: Path) -> Examples:
    return load(tmp_path, QUIZ, **NAMED)


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


# --- rows ------------------------------------------------------------------------------------------------------------------


def test_empty_choices_are_left_out_and_numbers_are_places_in_the_data(quiz: Examples, tmp_path: Path) -> None:
    assert quiz.columns == {
        "text": ["the man play", "the river run", "a bank open late"],
        "question": ["he say", "", "who"],
        "choices": [["good movie", "bad film"], ["one two three", "good", "the city"], ["yes", "no"]],
        "places": [[0, 1], [0, 1, 2], [0, 1]],
        "label": [1, 0, 0],
    }
    assert quiz.where(2).endswith("rows.csv:4")
    recipe = MultipleChoice()
    assert recipe.texts_of(quiz)[0] == ("the man play", "he say", "good movie", "bad film")
    assert recipe.labels_of(quiz) == [("1",), ("0",), ("0",)]
    gap = load(tmp_path, "story,ask,end0,end1,end2,right\nx,,good,,bad,2\ny,,a,b,,0\n", **NAMED)
    assert [gap.columns[name][0] for name in ("choices", "places", "label")] == [["good", "bad"], [0, 2], 2]
    nan = Examples({"text": ["x"], "choices": [["a", float("nan"), "b"]], "label": ["b"]}, "rows.parquet", [0])
    assert recipe.standardize(nan, labelled=True).columns["places"] == [[0, 2]]


def test_a_list_of_choices_and_a_list_of_lines(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"context": ["one", "two"], "question": "q", "choices": ["a", "b", "c"], "answer": "c"},
        {"context": "three", "question": "q", "choices": ["a", None, "b"], "answer": 2},
    ]
    assert load(tmp_path, jsonl(*rows), "rows.jsonl").columns == {
        "text": ["one\ntwo", "three"],
        "question": ["q", "q"],
        "choices": [["a", "b", "c"], ["a", "b"]],
        "places": [[0, 1, 2], [0, 2]],
        "label": [2, 2],
    }


@pytest.mark.parametrize(
    ("rows", "expected", "warns"),  # choices and label of each row, and the labels as numbers
    [
        ([(["a", "b"], 1), (["a", "b"], 0)], [1, 0], False),
        ([(["a", "b"], "1"), (["a", "b"], "0")], [1, 0], False),
        ([(["a", "b"], 1.0), (["a", "b"], 0.0)], [1, 0], False),
        ([(["a", "b", "c"], 1), (["a", "b", "c"], 3)], [0, 2], False),  # counted from 1
        ([(["a", "b"], "2"), (["a", "b", "c"], "2")], [1, 1], False),
        ([(["x", "y", "z"], "C"), (["x", "y"], " a")], [2, 0], False),  # letters
        ([(["B", "A"], "A"), (["C", "A", "B"], "B")], [1, 2], False),  # letters that are the choices themselves: texts
        ([({"label": ["A", "B"], "text": ["x", "y"]}, "B"), ({"label": ["1", "2"], "text": ["x", "y"]}, "1")], [1, 0], False),
        ([([{"label": "A", "text": "x"}, {"label": "B", "text": "y"}], "B")], [1], False),
        ([({"text": ["x", "y"]}, "y")], [1], False),
        ([({"label": [], "text": ["x", "y"]}, "b")], [1], False),
        ([([{"label": n, "text": t} for n, t in ((0, "x"), (0, "y"), (1, "z"))], place) for place in (2, 0)], [2, 0], False),
        ([(["a", "b"], " b ")], [1], False),
        ([(["3", "2", "1"], "1")], [2], True),
        ([(["3", "2", "1"], 1), (["3", "2", "1"], 0)], [1, 0], False),  # a number among texts is a number
        ([([7, 5, 3], 3)], [2], False),
        ([(["-1", "1"], "-1")], [0], False),
        ([(["35", "29"], "29")], [1], False),
        ([(["a", "a", "b"], "a")], [0], False),
        ([(["18", "35"], "35"), (["2", "3", "1"], "2")], [1, 0], False),  # 35 is no place: texts
        ([(["a", "b"], "0"), (["2", "3", "1"], "2")], [0, 2], False),  # 0 is no text: places
        ([(["a", "b"], "b"), (["a", "b"], "0"), (["2", "3", "1"], "2")], [1, 0, 0], False),  # both: a text first
        ([(["2", "3", "1"], "2"), (["2", "3", "1"], "1")], [0, 2], True),
        ([(["2", "3", "1"], "1.0"), (["2", "3", "1"], "0.0")], [1, 0], False),  # as tables with gaps write numbers
    ],
)
def test_labels_are_numbers_or_texts_of_choices(tmp_path: Path, rows: list[Any], expected: list[int], warns: bool) -> None:
    content = jsonl(*({"text": "x", "choices": choices, "label": label} for choices, label in rows))
    recipe = recipe_of(tmp_path, content, "rows.jsonl")
    assert rows_of(recipe).columns["label"] == expected
    assert [str(tmp_path / "rows.jsonl") in warning for warning in fit(recipe).remarks.warnings] == [True] * warns


@pytest.mark.parametrize(
    ("labels", "kind", "dev"),
    [(("A", "C"), "letters", "B"), (("1", "3"), "numbers from 1", "2"), (("0", "2"), "numbers", "1")],
)
def test_the_model_keeps_how_labels_count(tmp_path: Path, labels: tuple[str, ...], kind: str, dev: str) -> None:
    """The label of the dev row alone would not tell."""
    header = "text,choice0,choice1,choice2,label\n"
    (tmp_path / "dev.csv").write_text(f"{header}x,r,s,t,{dev}\n", encoding="utf-8")
    content = header + "".join(f"x{label},r,s,t,{label}\n" for label in labels)
    recipe = recipe_of(tmp_path, content, validation=str(tmp_path / "dev.csv"))
    task = fit(recipe)
    assert task.to_json()["labels_are"] == kind
    assert any("count from 1" in note for note in task.remarks.notes) == (kind == "numbers from 1")
    restored = Task.restore(task.configure(BertConfig()))
    rows = read_splits(recipe.resolved(), ["validation"]).rows["validation"]
    assert restored.examples(rows, labelled=True).columns["label"] == [1]


@pytest.mark.parametrize(
    ("dev", "says", "hint"),
    [
        (
            "12331",
            "seem to count from 1: none is 0, and line 4 has the last one",
            "the training labels count from 0: subtract 1",
        ),
        ("3", "label 3 is out of range; expected 0 to 2", "the training labels count from 0"),
        ("1203", "label 3 is out of range; expected 0 to 2", "the training labels count from 0"),
        ("AB", "the label is 'A'; expected a number, as in training", "write 0 for the first choice"),
    ],
)
def test_labels_that_count_otherwise_than_in_training(tmp_path: Path, dev: str, says: str, hint: str) -> None:
    header = "text,choice0,choice1,choice2,label\n"
    (tmp_path / "dev.csv").write_text(header + "".join(f"x,r,s,t,{label}\n" for label in dev), encoding="utf-8")
    recipe = recipe_of(tmp_path, header + "x,r,s,t,0\ny,r,s,t,2\n", validation=str(tmp_path / "dev.csv"))
    task = fit(recipe)
    rows = read_splits(recipe.resolved(), ["validation"]).rows["validation"]
    with pytest.raises(DataError) as error:
        task.examples(rows, labelled=True)
    assert says in error.value.what
    assert str(error.value.hint).startswith(hint)


def test_only_rows_with_labels_out_of_range_are_skipped(tmp_path: Path) -> None:
    """But not of a file that counts from 1: its other rows would be read wrongly."""
    header = "text,choice0,choice1,choice2,label\n"
    task = fit(recipe_of(tmp_path, header + "x,r,s,t,0\ny,r,s,t,2\n"))

    def refused(labels: str) -> list[int]:
        (tmp_path / "dev.csv").write_text(header + "".join(f"x,r,s,t,{label}\n" for label in labels), encoding="utf-8")
        rows = task.recipe.read_file(str(tmp_path / "dev.csv"))
        return sorted(refused_rows(rows, lambda part: task.examples(part, labelled=True)))

    assert refused("0133321") == [2, 3, 4]
    with pytest.raises(DataError, match="seem to count from 1"):
        refused("133321")


@pytest.mark.parametrize(
    ("columns", "choices"),
    [
        ("context,question,answerA,answerB,answerC,label", ("answerA", "answerB", "answerC")),
        ("question,A,B,C,D,answer", ("A", "B", "C", "D")),
        ("question,option_b,option_a,answerKey", ("option_a", "option_b")),
        ("question,choice10,choice9,choice2,label", ("choice2", "choice9", "choice10")),
        ("question,1,2,label", None),
        ("a,b,c,label", None),
    ],
)
def test_columns_of_choices_are_found(columns: str, choices: tuple[str, ...] | None) -> None:
    assert guess_choices(columns.split(",")) == choices


def test_columns_of_the_text_are_joined(tmp_path: Path) -> None:
    content = "title,story,choice0,choice1,label\n" + "".join(f"t{n},s{n},a,b,{n}\n" for n in range(2))
    examples = load(tmp_path, content, text="title,story")
    assert (examples.columns["text"], "question" in examples.columns) == (["t0 s0", "t1 s1"], False)
    recipe = fit(recipe_of(tmp_path, content, text="title,story")).recipe
    assert recipe.columns_read(read_splits(recipe.resolved()).rows["train"], labelled=True) == {
        *content.partition("\n")[0].split(",")
    } | {None}


def test_places_of_choices_get_no_advice_on_classes(tmp_path: Path, run_bertkit) -> None:
    content = "text,choice0,choice1,choice2,label\n" + "".join(f"x{n},r{n},s,t,{n % 3}\n" for n in range(6))
    (tmp_path / "quiz.csv").write_text(content, encoding="utf-8")
    ran = run_bertkit("check", "quiz.csv", "--recipe", "multiple-choice")
    assert (ran.code, "merge" in ran.err, "fewer than" in ran.err) == (0, False, False), ran.err


@pytest.mark.parametrize(("train", "kind", "dev"), [("0", "numbers", [1, 0]), ("3", "texts", [0, 0])])
def test_training_rows_decide_what_labels_are(tmp_path: Path, train: str, kind: str, dev: list[int]) -> None:
    """The dev rows alone could be read either way."""
    header = "story,end1,end2,end3,right\n"
    second = "d,0,2,3,0" if kind == "numbers" else "d,2,1,3,2"
    (tmp_path / "train.csv").write_text(f"{header}a,1,2,3,{train}\nb,1,2,3,2\n", encoding="utf-8")
    (tmp_path / "dev.csv").write_text(f"{header}c,1,2,3,1\n{second}\n", encoding="utf-8")
    files = {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "dev.csv")}
    recipe = MultipleChoice(**files, text="story", choices=("end1", "end2", "end3"), label="right")
    task = fit(recipe)
    config = task.configure(BertConfig(extra={"architectures": ["BertForMultipleChoice"]}))
    rows = read_splits(recipe.resolved(), ["validation"]).rows["validation"]
    for known in (task, Task.restore(config, recipe)):
        assert known.recipe.labels_are == kind
        assert known.examples(rows, labelled=True).columns["label"] == dev


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("Unnamed: 0,video-id,startphrase,sent1,sent2,ending0,ending1,label", ("sent1", "sent2", "ending0,ending1", "label")),
        ("id,context,question,answer1,answer0,label", ("context", "question", "answer0,answer1", "label")),
        ("premise,question,choice1,choice2,label", ("premise", "question", "choice1,choice2", "label")),
        ("question,option_2,option_10,option_1,answer", ("question", None, "option_1,option_2,option_10", "answer")),
        ("category,prompt,ending0,ending1,ending,option1,label", ("prompt", None, "ending0,ending1", "label")),
    ],
)
def test_columns_are_guessed_by_their_usual_names(tmp_path: Path, names: str, found: tuple[str | None, ...]) -> None:
    (tmp_path / "rows.csv").write_text(f"{names}\n{'x,' * names.count(',')}0\n", encoding="utf-8")
    columns = MultipleChoice().find_columns(read_file(tmp_path / "rows.csv"))
    roles = columns.named
    assert (roles["text"], roles["question"], ",".join(roles["choices"]), roles["label"]) == found
    assert len(columns.remarks.notes) == 1


def test_a_named_text_without_a_named_question_means_none(tmp_path: Path) -> None:
    content = "context,question,choice0,choice1,label\nx,y,a,b,0\n"
    assert "question" not in load(tmp_path, content, text="context").columns
    assert load(tmp_path, content, text="question", question="context").columns["question"] == ["x"]


def test_predicting_needs_no_label_and_no_text(tmp_path: Path) -> None:
    found = load(tmp_path, "context,choice0,choice1,label\n,a,b,9\n", labelled=False)
    assert found.columns == {"text": [""], "choices": [["a", "b"]], "places": [[0, 1]]}
    assert MultipleChoice().labels_of(found) == [()]


@pytest.mark.parametrize(
    ("rows", "together", "labels"),
    [
        ([("x", "p", 0), ("y", "p", "1.0"), ("y", "p", -1)], ("text",), [(0,), ("1.0",), (-1,)]),
        ([("x", "p", "a"), ("x", "q", "b")], ("question",), None),  # a shared instruction; texts of choices are no classes
        ([("x", "p", 0), ("x", "p", 1)], ("a", "b"), [(0,), (1,)]),
    ],
)
def test_rows_are_held_out_by_the_text_that_distinguishes_them(rows: list[Any], together: Any, labels: Any) -> None:
    columns = dict(zip(("text", "question", "label"), map(list, zip(*rows, strict=True)), strict=True))
    examples = Examples(columns | {"a": ["a"] * len(rows), "b": ["b"] * len(rows)}, "f", range(len(rows)))
    recipe = MultipleChoice(text="text", question="question", choices=("a", "b"), label="label")
    assert recipe.split_by(examples) == (together, labels)


def test_answers_that_are_numbers_are_no_classes(tmp_path: Path) -> None:
    rows = "".join(f"{row} + 1 is?,{row + 1},{row + 2},{row + 1}\n" for row in range(40))
    (tmp_path / "a.csv").write_text(f"question,opt1,opt2,answer\n{rows}", encoding="utf-8")
    recipe = MultipleChoice(train=str(tmp_path / "a.csv"), choices=("opt1", "opt2")).resolved()
    assert {split: len(part) for split, part in read_splits(recipe).rows.items()} == {"train": 36, "validation": 4}


def test_accuracy_is_the_only_score() -> None:
    def share(predictions: Any, references: Any) -> float:
        return 1.0

    assert MultipleChoice(train="f").resolved().metrics == (accuracy,)
    assert MultipleChoice(train="f", metrics=(share, accuracy)).resolved().metrics == (share, accuracy)
    with pytest.raises(UsageError):
        MultipleChoice(train="f").overridden({"metric": "f1"}).resolved()


# --- features --------------------------------------------------------------------------------------------------------------


def test_features_by_hand(quiz: Examples, tokenizer: Tokenizer) -> None:
    features, remarks = TASK.encode(quiz, tokenizer, max_length=32)
    names = {number: token for token, number in tokenizer.vocab.items()}
    assert [[names[number] for number in features.input_ids[row]] for row in range(5)] == [
        [CLS, "the", "man", "play", SEP, "he", "say", "good", "movie", SEP],
        [CLS, "the", "man", "play", SEP, "he", "say", "bad", "film", SEP],
        [CLS, "the", "river", "run", SEP, "one", "two", "three", SEP],
        [CLS, "the", "river", "run", SEP, "good", SEP],
        [CLS, "the", "river", "run", SEP, "the", "city", SEP],
    ]
    assert features.token_type_ids[0].tolist() == [0] * 5 + [1] * 5
    assert (features.sequences.tolist(), features.examples.tolist()) == ([0, 2, 5, 7], [0, 1, 2])
    assert (features.rows.values.tolist(), features.rows.lengths.tolist()) == ([0] * 7, [1] * 7)
    labels = features.labels["labels"]
    assert (labels.values.tolist(), labels.lengths.tolist(), lines_of(remarks)) == ([1, 0, 0], [1, 1, 1], [])
    assert [TASK.describe_targets(features, at) for at in (0, 1)] == [[{}, {0: "right"}], [{0: "right"}, {}, {}]]


def test_a_gap_among_the_choices_moves_the_target_and_not_the_label(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = load(tmp_path, "story,ask,end0,end1,end2,right\nthe man,,,good,bad,2\nx,,a,b,,0\n", **NAMED)
    examples = rows.select([0])
    features, _ = TASK.encode(examples, tokenizer, max_length=32)
    assert features.labels["labels"].values.tolist() == [1]
    (found,) = TASK.decode({"logits": [np.array([[0.0], [np.log(3)]])]}, features, examples)
    assert (found.value, found.details["answer"], found.probability) == (2, "bad", pytest.approx(0.75))
    assert found.probabilities == pytest.approx([0.0, 0.25, 0.75])
    assert [TASK.score([found], truth) for truth in ([2], [1])] == [{"accuracy": 1.0}, {"accuracy": 0.0}]
    assert TASK.truth(examples) == [2]
    assert TASK.format_truth(2, examples, 0) == "bad"
    assert (TASK.error(found, 2), TASK.error(found, 1)) == (0, pytest.approx(0.75))


def test_truncated_rows_are_counted_once_each(quiz: Examples, tokenizer: Tokenizer) -> None:
    features, remarks = TASK.encode(quiz, tokenizer, max_length=9, labelled=False)
    assert (features.input_ids.lengths.max(), features.labels) == (9, {})
    lengths = TASK.encode(quiz, tokenizer, max_length=math.inf)[0].input_ids.lengths
    assert [row for row, length in enumerate(lengths) if length > 9] == [0, 1]  # both of the first row
    assert lines_of(remarks)[0].split()[0] == "1"


def test_the_loss_is_that_of_torch(quiz: Examples, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Each question's own softmax, over as many choices as it has."""
    features, _ = TASK.encode(quiz, tokenizer, max_length=32)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=64, initializer_range=0.5, **sizes)
    task = fit(recipe_of(tmp_path, QUIZ, **NAMED))
    module = task.build(task.configure(config))
    initialize(module, config, seed=3)
    module.eval()
    alone = []
    with torch.no_grad():
        losses, logits = module(collate(features, np.array([2, 0, 1])))
        for row in range(7):  # a sequence at a time, so that nothing knows of the others
            ids, types = (each.take(np.array([row])) for each in (features.input_ids, features.token_type_ids))
            one = Features(ids, types, np.array([0]), rows=Ragged.column([0]))
            alone.append(module(collate(one, np.array([0]))).logits["logits"][0, 0])
    scores = torch.stack(alone)
    assert scores.std() > 0.01
    assert logits["logits"][:, 0].numpy() == pytest.approx(scores[[5, 6, 0, 1, 2, 3, 4]].numpy(), abs=1e-5)
    parts = [(scores[0:2], 1), (scores[2:5], 0), (scores[5:7], 0)]
    expected = sum(torch.nn.functional.cross_entropy(row, torch.tensor(right)) for row, right in parts)
    assert float(losses["labels"]) == pytest.approx(float(expected), abs=1e-5)
    found = TASK.decode({"logits": [row.numpy()[:, None] for row, _ in parts]}, features, quiz)
    for prediction, (row, _), texts in zip(found, parts, quiz.columns["choices"], strict=True):
        assert prediction.probabilities == pytest.approx(torch.softmax(row, 0).tolist(), abs=1e-5)
        assert prediction.value == int(row.argmax())
        assert prediction.details == {"answer": texts[prediction.value]}
        assert prediction.probability == max(prediction.probabilities)


def test_logits_that_overflow_exp_and_a_prediction_as_shown() -> None:
    columns = {"text": ["[bold]x\x1b"], "question": ["y?"], "choices": [["a", "b"]], "places": [[0, 1]], "label": [1]}
    examples = Examples(columns, "f", [1])
    features = Features(Ragged.of([[1], [1]]), Ragged.of([[0], [0]]), np.array([0]), sequences=np.array([0, 2]))
    (found,) = TASK.decode({"logits": [np.array([[900.0], [901.0]])]}, features, examples)
    assert found.probabilities == pytest.approx([1 / (1 + np.e), 1 / (1 + 1 / np.e)])
    own = {"choice": 1, "answer": "b", "probability": found.probability, "probabilities": found.probabilities}
    assert TASK.row(found, examples, 0) == {"text": "[bold]x\x1b", "question": "y?", **own}
    shown = TASK.format_prediction(found, examples, 0)
    assert shown.plain == "[bold]x\\x1b\ny?\n    27%  a\n->  73%  b\n"
    assert [shown.plain[span.start : span.end] for span in shown.spans if "bold" in str(span.style)] == ["->  73%  b"]


# --- commands --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trained_here", [False, True])
def test_probabilities_are_those_of_transformers(run_bertkit, make_model_dir, tmp_path: Path, trained_here: bool) -> None:
    """Of its own model, whose class says the family, and of a run; padded there."""
    folder = make_model_dir("BertForMultipleChoice", seed=5, initializer_range=0.5)
    rows = [("the man play", "a good movie", "he see the river", "no"), ("who run", "yes", "the bank open", "a printer late")]
    table = "text,choice0,choice1,choice2,label\n" + "".join(",".join(row) + f",{n}\n" for n, row in enumerate(rows))
    (tmp_path / "rows.csv").write_text(table, encoding="utf-8")
    options = ("--max-length", 32, "--precision", "fp32", "--device", "cpu")
    if trained_here:
        files = ("--train", "rows.csv", "--validation", "rows.csv", "-m", folder, "-o", "run", "--max-steps", 1)
        ran = run_bertkit("finetune", "multiple-choice", *files, *options)
        assert ran.code == 0, ran.err
        folder = tmp_path / "run"
    ran = run_bertkit("predict", folder, "rows.csv", *options)
    assert ran.code == 0, ran.err
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for (text, *choices), line in zip(rows, ran.out.splitlines(), strict=True):
        padded = tokenizer([text] * 3, choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = theirs(**{name: values[None] for name, values in padded.items()}).logits[0]
        assert json.loads(line)["probabilities"] == pytest.approx(torch.softmax(logits, 0).tolist(), abs=1e-5)
    (tmp_path / "new.csv").write_text("text,choice0,choice1,choice2\nwe,a,b,c\n,a,b,c\n \t,a,b,\n", encoding="utf-8")
    ran = run_bertkit("predict", folder, "new.csv", *options)
    assert (ran.code, "3 rows, 2 without text" in ran.err.splitlines()) == (0, True), ran.err


# --- real data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"), [("SWAG-sample/swag.csv", 11), ("PLU-tr-goal-inference/val.csv.gz", 5000)], ids=["swag", "plu"]
)
def test_files_in_swags_format(data_dir: Path, name: str, count: int) -> None:
    path = data_dir / name
    found = rows_of(load_recipe("swag").overridden({"validation": str(path)}), "validation").columns
    with (gzip.open if name.endswith(".gz") else open)(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count
    assert found["label"] == [int(row["label"]) for row in rows]
    assert (found["text"], found["question"]) == ([row["sent1"] for row in rows], [row["sent2"] for row in rows])
    assert found["choices"] == [[row[f"ending{at}"] for at in range(4)] for row in rows]


def test_codah_and_its_folds(data_dir: Path, tmp_path: Path) -> None:
    path = data_dir / "CODAH" / "full_data.tsv.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").rstrip("\n").split("\n")
    codah = load_recipe("codah")
    whole = rows_of(codah.overridden({"validation": str(path)}), "validation")
    assert len(whole) == len(lines) == 2776
    assert Counter(whole.columns["label"]) == {0: 689, 1: 684, 2: 697, 3: 706}
    assert (whole.columns["text"][0], *whole.columns["choices"][0]) == tuple(lines[0].split("\t")[1:6])
    recipe = codah.overridden({"train": str(path), "validation": "2/5"}).resolved()
    train, held_out = (recipe.standardize(rows, labelled=True) for rows in read_splits(recipe).rows.values())
    assert len(train) + len(held_out) == 2776
    assert not {text.casefold() for text in train.columns["text"]} & {text.casefold() for text in held_out.columns["text"]}
    assert len(held_out) in range(545, 571)  # a fifth, but for the 164 rows that share their prompt with others
    counts = Counter(held_out.columns["label"])
    assert all(abs(counts[label] - whole.columns["label"].count(label) / 5) < 7 for label in range(4))
    # To predict, the recipe knows that its own file has no header; columns that are typed win.
    assert len(rows_of(codah.with_file(str(path), (), codah), "test", labelled=False)) == 2776
    names = "prompt,ending0,ending1,ending2,ending3"
    (tmp_path / "mine.csv").write_text(f"{names}\na,b,c,d,e\n", encoding="utf-8")
    mine = codah.overridden({"columns": names}).with_file(str(tmp_path / "mine.csv"), {"columns"}, codah)
    assert rows_of(mine, "test", labelled=False).columns["text"] == ["a"]


def test_c3_rows_are_those_of_the_source(data_dir: Path) -> None:
    path = data_dir / "C3" / "dev.json.gz"
    documents = json.loads(gzip.decompress(path.read_bytes()))
    found = rows_of(load_recipe("c3").overridden({"data": str(path.parent)}), "validation")
    questions = [(lines, question) for lines, own, _ in documents for question in own]
    assert (len(documents), len(found), len(questions)) == (2674, 3816, 3816)
    assert Counter(map(len, found.columns["choices"])) == {4: 3181, 3: 465, 2: 170}
    assert found.columns["text"] == ["\n".join(lines) for lines, _ in questions]
    assert found.columns["question"] == [question["question"] for _, question in questions]
    right = [texts[number] for texts, number in zip(found.columns["choices"], found.columns["label"], strict=True)]
    assert right == [question["answer"] for _, question in questions]
    assert found.where(0) == f"{path}:47-275#1"


C3 = [[["m: a", "w: b"], [{"question": "q", "choice": ["x", "y"], "answer": "y"}, {"question": "r", "choice": ["z"]}], "1-2"]]


def test_c3_by_hand() -> None:
    found = parsed(parse_c3, json.dumps(C3), "c3.json")
    assert found.columns == {
        "id": ["1-2", "1-2"],
        "context": [["m: a", "w: b"]] * 2,
        "question": ["q", "r"],
        "choice": [["x", "y"], ["z"]],
        "answer": ["y", None],
    }
    assert list(found.lines) == ["1-2#1", "1-2#2"]
    assert looks_like_c3(content_of(json.dumps(C3)))
    assert not looks_like_c3(content_of('[{"text": "[[a"}]'))


# --- bad input -------------------------------------------------------------------------------------------------------------


def table(rows: str) -> str:
    return "text,choice0,choice1,choice2,label\n" + rows


def row(**values: Any) -> str:
    return jsonl({"text": "x", "choices": ["a", "b"], "label": 0} | values)


@pytest.mark.parametrize(
    ("content", "name", "place", "options"),
    [
        (table("x,a,b,c,0\ny,a,b,c,3\n"), "rows.csv", ":3", {}),  # out of range
        (table("x,a,b,c,3\ny,a,b,c,4\n"), "rows.csv", ":3", {}),  # counted from 1
        (table("x,a,b,c,2\ny,a,b,c,1\n"), "rows.csv", "", {}),  # from 0 or from 1
        (table("x,A1,b,c,A\ny,A1,b,c,D\n"), "rows.csv", ":3", {}),  # no such letter
        (row(choices={"label": ["A", "B"], "text": ["a", "b"]}, label="C"), "rows.jsonl", ":1", {}),
        (table("x,a,b,c,-2\n"), "rows.csv", ":2", {}),
        (table("x,a,b,,2\ny,a,b,c,0\n"), "rows.csv", ":2", {}),  # an empty choice
        (table("x,a1,b,c,A\ny,a1,b,,C\n"), "rows.csv", ":3", {}),
        (table("x,a,b,c,0\ny,a,b,c,-1\n"), "rows.csv", ":3", {}),
        (table("x,a,b,c,dd\n"), "rows.csv", ":2", {}),
        (table("x,a,b,c,0\ny,a,b,c,\n"), "rows.csv", ":3", {}),
        (table("x,a,b,c,\ny,a,b,c,-1\n"), "rows.csv", "", {}),  # no label at all
        (table("x,a,b,c,0\ny,a,, ,0\n"), "rows.csv", ":3", {}),  # one choice
        (table(" ,a,b,c,0\n"), "rows.csv", ":2", {}),
        (row(text=None), "rows.jsonl", ":1", {}),
        (row(choices="a"), "rows.jsonl", ":1", {}),
        (row(choices=None), "rows.jsonl", ":1", {}),
        (row(choices=["a", ["b"]]), "rows.jsonl", ":1", {}),
        (row(choices=["a", True]), "rows.jsonl", ":1", {}),
        (row(label=True), "rows.jsonl", ":1", {}),
        (row() + row(label=2), "rows.jsonl", ":2", {}),
        (row() + row(label="9" * 400), "rows.jsonl", ":2", {}),
        (row(label=1) + row(label=2) + row(label=4), "rows.jsonl", ":3", {}),  # counted from 1: the wrong one is named
        (row(label=1) + row(label=2) + row(label=-2), "rows.jsonl", ":3", {}),
        (row(choices={"label": ["A"], "text": ["x", "y"]}, label="A"), "rows.jsonl", ":1", {}),
        (row(choices={"label": ["A", "A"], "text": ["x", "y"]}, label="A"), "rows.jsonl", ":1", {}),
        (row(label=[0]), "rows.jsonl", ":1", {}),
        (jsonl({"x": "x", "choices": ["a", "b"]}), "rows.jsonl", "", {}),  # which is the text?
        (jsonl({"text": "x", "a": "y", "b": "z"}), "rows.jsonl", "", {}),  # which are the choices?
        (jsonl({"text": "x", "choices": ["a", "b"], "options": ["c", "d"], "label": 0}), "rows.jsonl", "", {}),
        (jsonl({"text": "x", "choices": ["a", "b"]}), "rows.jsonl", "", {}),  # which is the label?
        (jsonl({"text": "x", "a": "y", "b": "z"}), "rows.jsonl", "", {"choices": "a,c"}),
        (row(), "rows.jsonl", "", {"question": "ask"}),
        ("[[[", "c3.json", ":1", {}),
        ("[[[\n1 2", "c3.json", ":2", {}),
        ('[[["a"], [], "1"], [["a"], [{"question": "q", "choice": ["\\ud83d", "y"]}], "2"]]', "c3.json", ":[1]", {}),
        ("[[1, 2]]", "c3.json", ":[0]", {}),
        ('[[["a"], [], "1"], [["a"], [7], "2"]]', "c3.json", ":2#1", {}),
        ('[[["a"], [{"question": "q"}], "2"]]', "c3.json", ":2#1", {}),
        ('[[["a"], [], "1"]]', "c3.json", "", {}),
    ],
)
def test_faults_of_data_are_named_by_row(tmp_path: Path, content: str, name: str, place: str, options: dict[str, str]) -> None:
    with pytest.raises(DataError) as error:
        load(tmp_path, content, name, **options)
    assert error.value.where == f"{tmp_path / name}{place}"
    assert error.value.hint or name == "c3.json"
    assert "--labels" not in (error.value.hint or "")

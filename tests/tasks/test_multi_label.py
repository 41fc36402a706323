"""Several labels a text: how files may have them, the loss, the thresholds, and what comes out; transformers is the oracle."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from file_contents import refused
from parity import NO_DROPOUT, TINY, packed, padded, random_rows
from recipe_rows import load
from sklearn.metrics import f1_score
from trained import train

from bertkit.config import filled
from bertkit.errors import DataError
from bertkit.features import Ragged
from bertkit.metrics.classification import accuracy, macro_f1, micro_f1
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertForSequenceClassification
from bertkit.readers import FIX_ROW, Examples
from bertkit.tasks import Prediction, TextClassification, TextClassificationTask
from bertkit.tasks.class_report import describe_classes
from bertkit.tasks.task import Task
from bertkit.tasks.text_classification.label_sets import guess_separator, split_sets
from bertkit.tasks.text_classification.targets import AnyOf, best_f1_threshold

TEXTS = ("good movie", "bad film", "great story", "poor plot", "good book", "bad story", "printer", "old phone")
NAMES = (("film", "praise"), ("film",), ("praise",), (), ("praise",), (), ("device",), ("device", "old"))
ALL = ("device", "film", "old", "praise")
MARKS = [[int(name in names) for name in ALL] for names in NAMES]


def rows_of(*labels: Any, **columns: list[Any]) -> Examples:
    columns = columns or {"label": list(labels)}
    count = len(next(iter(columns.values())))
    return Examples({"text": list(TEXTS[:count]), **columns}, "my.csv", range(2, 2 + count))


def fit(rows: Examples, **options: Any) -> TextClassificationTask:
    return Task.fit(filled(TextClassification(multi_label=True, **options)), rows)


def task_of(*labels: str, **fitted: Any) -> TextClassificationTask:
    recipe = TextClassification(multi_label=True, metrics=(micro_f1, macro_f1, accuracy))
    return TextClassificationTask(recipe=recipe, labels=labels, **fitted)


# --- the files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"label": [list(names) for names in NAMES]}, {}),
        ({"label": ["|".join(names) for names in NAMES]}, {}),
        ({"label": ["; ".join(names) for names in NAMES]}, {}),
        ({"label": [", ".join(names) for names in NAMES]}, {}),
        ({"label": [" and ".join(names) for names in NAMES]}, {"label_separator": " and "}),
        ({"label": [json.dumps(names) for names in NAMES]}, {}),
        ({"label": [str(list(names)) for names in NAMES]}, {}),  # as pandas writes them
        ({"label": [str(names) for names in NAMES]}, {}),
        ({"label": [str({*names}) if names else "[]" for names in NAMES]}, {}),
        ({"kinds": MARKS}, {"label": "kinds", "labels": ALL}),
        ({"kinds": [str(list(marks)) for marks in MARKS]}, {"label": "kinds", "labels": ALL}),  # of a table
        ({"kinds": [["no yes".split()[mark] for mark in marks] for marks in MARKS]}, {"label": "kinds", "labels": ALL}),
        ({name: [marks[at] for marks in MARKS] for at, name in enumerate(ALL)}, {"label": ",".join(ALL)}),
        (
            {name: ["yes" if marks[at] else "No" for marks in MARKS] for at, name in enumerate(ALL)},
            {"label": "device,film, old,praise"},
        ),
        (  # as pandas writes columns with an empty cell
            {
                name: ["" if not (marks[at] or row) else f"{marks[at]:.1f}" for row, marks in enumerate(MARKS)]
                for at, name in enumerate(ALL)
            },
            {"label": ",".join(ALL)},
        ),
    ],
)
def test_every_form_of_several_labels(columns: dict[str, list[Any]], options: dict[str, Any]) -> None:
    rows = rows_of(**columns)
    task = fit(rows, **options)
    assert task.labels == ALL
    assert task.truth(task.examples(rows, labelled=True)) == list(NAMES)
    assert task.configure(BertConfig()).problem_type == "multi_label_classification"


@pytest.mark.parametrize(
    ("rows", "options", "where"),
    [
        (rows_of(["a"], ["c"]), {"labels": ("a", "b")}, "my.csv:3"),
        (rows_of(None, ["b"]), {"labels": ("a", "b")}, "my.csv:2"),
        (rows_of(["a"], [["b"]]), {}, "my.csv:3"),
        (rows_of("['a', 'b']", "['a' 'b']"), {}, "my.csv:3"),  # as numpy writes them
        (rows_of("['a', 'b']", "['a', None]"), {}, "my.csv:3"),
        (rows_of("['a', 'b']", "['a', nan]"), {}, "my.csv:3"),
        (rows_of("a|b", '[{"start": 0, "end": 1, "labels": ["a"]}]'), {}, "my.csv:3"),  # entities in Label Studio's CSV
        (rows_of([], []), {}, "my.csv"),
        (rows_of(None, None), {}, "my.csv"),
        (rows_of(*MARKS), {}, "my.csv"),  # which label is which?
        (rows_of(*map(str, MARKS)), {}, "my.csv"),
        (rows_of(*MARKS), {"labels": ("a", "b")}, "my.csv"),
        (rows_of(x=["1", "2"], y=["0", "1"]), {"label": "x,y"}, "my.csv:3"),
        (rows_of(x=["1", ""], y=["0", ""]), {"label": "x,y"}, "my.csv:3"),
        (rows_of(x=["1", "0"]), {"label": "x,y"}, "my.csv"),
    ],
)
def test_labels_that_cannot_be_used(rows: Examples, options: dict[str, Any], where: str) -> None:
    with pytest.raises(DataError) as raised:
        fit(rows, **options).examples(rows, labelled=True)
    assert raised.value.where == where


def test_entities_are_no_classes() -> None:
    cell = '[{"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]}]'
    error = refused(Task.fit, filled(TextClassification()), rows_of(cell, cell.replace("0", "1")))
    assert (error.where, "--entities label" in (error.hint or "")) == ("my.csv:2", True)
    for cell in ('{"start" : 0, "end" : 4}', [[0, 4, "PER"]], '[[0, 4, "PER"]]', "[(0, 4, 'PER')]", [{"start_offset": 0}]):
        assert "--entities label" in str(refused(Task.fit, filled(TextClassification()), rows_of(cell, cell)).hint)
    assert "--multi-label" in str(refused(Task.fit, filled(TextClassification()), rows_of(["start", "b"], ["c"])).hint)


def test_a_model_that_changes_between_one_label_and_several_says_so() -> None:
    one, several = rows_of("device", "film"), rows_of("device|film", "film")
    first = {False: Task.fit(filled(TextClassification()), one), True: fit(several)}
    for had, now, said in (
        (True, False, "any number of labels; it now learns to give one label"),
        (False, True, "one label; it now learns to give any number of labels"),
    ):
        kept, rows = first[had].configure(BertConfig()), {True: several, False: one}
        (warning,) = Task.fit(first[now].recipe, rows[now], kept).remarks.warnings
        assert said in warning
        assert not Task.fit(first[had].recipe, rows[had], kept).remarks.warnings


@pytest.mark.parametrize(
    ("values", "names", "labels", "sets"),
    [
        ([[1, 0], [0, 1]], None, ("good", "bad"), [("good",), ("bad",)]),  # marks, though no row has both or none
        ([[1, 0], [0, 1]], None, ("0", "1", "2"), [("1", "0"), ("0", "1")]),  # 0 and 1 are names in training
        ([[1, 0], [0, 1]], None, ("joy", "anger", "fear"), [("1", "0"), ("0", "1")]),
        ([[1, 0], [0, 1]], ("good", "bad"), None, [("bad", "good"), ("good", "bad")]),  # numbers, as the source says
        ([[0, 1, 1], [1, 0, 0]], None, ("a", "b", "c"), [("b", "c"), ("a",)]),  # in a set nothing stands twice
        ([[0, 1], [1], [0]], None, None, [("0", "1"), ("1",), ("0",)]),
        (['["a", "b, c"]', "[]", '["d"]', "[sic]", None], None, None, [("a", "b, c"), (), ("d",), ("[sic]",), None]),
        ([math.nan, -1, "-1", "", "a"], None, None, [None, None, None, (), ("a",)]),
        ([[0, 1, 1], math.nan, -1], None, ("a", "b", "c"), [("b", "c"), None, None]),
        ([-1, [0]], ("a", "b"), None, [None, ("a",)]),
        (["-1", "0"], None, ("-1", "0"), [("-1",), ("0",)]),
        (['["1", "0", "0"]', "['0', '0', '1']"], None, ("a", "b", "c"), [("a",), ("c",)]),
        (["[1.0, 0.0, 0.0]", "(0, 0, 1)", "[True, True, False]"], None, ("a", "b", "c"), [("a",), ("c",), ("a", "b")]),
        (["['True', 'False', 'False']", "[0, 0, 1]"], None, ("a", "b", "c"), [("a",), ("c",)]),
        ([[0, 0, 1, 0], [1, 0, 0, 0]], None, ("0", "1", "2", "3"), [("2",), ("0",)]),  # no labels, as they are repeated
        ([{"choices": ["a", "c"]}, "b"], None, None, [("a", "c"), ("b",)]),  # of Label Studio
        ([[0, 2], [1]], None, ("a", "b", "c"), [("a", "c"), ("b",)]),  # the numbers of classes
        ([[0], [0, 1], [1]], None, ("a", "b", "c"), [("a",), ("a", "b"), ("b",)]),
        ([[0, 1], [0], [1]], None, ("a", "b", "c"), [("a", "b"), ("a",), ("b",)]),
        ([[1, 0, 0], [0, 1, 0]], None, ("yes", "no", "unclear"), [("yes",), ("no",)]),  # labels that are marks elsewhere
        (['["yes"]', '["no", "yes"]'], None, ("yes", "no", "unclear"), [("yes",), ("no", "yes")]),
        (['{"choices":["a","b"]}', "c"], None, None, [("a", "b"), ("c",)]),
        (["{'a'}", "set()", "()"], None, None, [("a",), (), ()]),  # as pandas writes sets and tuples
    ],
)
def test_lists_are_sets_of_names_or_a_mark_for_each_label(values: list, names, labels, sets: list) -> None:
    rows = Examples({"label": values}, "my.jsonl", range(len(values)))
    assert guess_separator(rows, "label")[0] is None
    assert split_sets(rows, "label", None, names, labels) == sets


@pytest.mark.parametrize("labels", [("a", "b", "c"), ("yes", "no", "unclear"), None])
@pytest.mark.parametrize("bad", [[1, 1], [1, 1, 2], [1, 0, math.nan], [], "[1. 0. 0.]", ["yes"], ["no", "unclear"]])
def test_a_list_unlike_other_marks_is_named(bad: Any, labels: tuple[str, ...] | None) -> None:
    rows = rows_of([1, 0, 0], [0, 0, 1], bad, [0, 0, 0])
    with pytest.raises(DataError) as error:
        split_sets(rows, "label", None, None, labels)
    assert error.value.where == rows.where(2)


@pytest.mark.parametrize("separator", ["|", ","])
def test_marks_in_a_cell_without_brackets_are_marks(separator: str) -> None:
    """As names of labels, every row would have the labels 0 and 1."""
    rows = rows_of(*(separator.join(marks) for marks in (("0", "0", "1"), ("1", " 1 ", "0"), "000", "101")), "")
    assert split_sets(rows, "label", separator, None, ("a", "b", "c")) == [("c",), ("a", "b"), (), ("a", "c"), ()]
    with pytest.raises(DataError, match="have a 0 or 1 for each of 3 labels"):
        split_sets(rows, "label", separator, None)
    rows = rows_of(separator.join("010"), separator.join("100"), separator.join("110"), "-1", "  ")
    assert split_sets(rows, "label", separator, None, ("a", "b", "c")) == [("b",), ("a",), ("a", "b"), None, ()]
    rows = rows_of(*(separator.join(marks) for marks in ("010", "0x0", "100", "111")))
    with pytest.raises(DataError, match=r"the list is \['0', 'x', '0'\]; expected a 0 or 1 for each of 3") as error:
        split_sets(rows, "label", separator, None, ("a", "b", "c"))
    assert (error.value.where, error.value.hint) == (rows.where(1), FIX_ROW)
    classes = rows_of("0,1", "2", "1,2", "0,2", "1")
    assert split_sets(classes, "label", ",", None) == [("0", "1"), ("2",), ("1", "2"), ("0", "2"), ("1",)]


def test_marks_are_no_numbers_of_classes() -> None:
    rows = rows_of([1, 1, 0], [0, 2], [1, 2], [0])
    assert split_sets(rows, "label", None, None, ("a", "b", "c"))[0] == ("1", "0")
    with pytest.raises(DataError, match="unknown label '1'; expected one of a, b, c") as error:
        fit(rows, labels=("a", "b", "c")).examples(rows, labelled=True)
    assert error.value.where == rows.where(0)


def test_another_separator_than_in_training_is_named() -> None:
    rows = rows_of("a; c", "b")
    with pytest.raises(DataError, match="unknown label 'a; c'") as error:
        fit(rows, labels=("a", "b", "c"), label_separator="|").examples(rows, labelled=True)
    assert str(error.value.hint).endswith("--label-separator ';'")


def test_a_list_that_cannot_be_read_is_skipped() -> None:
    rows = rows_of("['a', 'b']", "['a' 'b']", "['b']")
    recipe = fit(rows.select([0, 2])).recipe
    assert replace(recipe, on_error="skip").standardize(rows, labelled=True).columns["label"] == [("a", "b"), ("b",)]


def test_a_list_unlike_other_marks_is_skipped() -> None:
    """By itself it could be a set of names."""
    rows = rows_of([1, 0, 0], ["a"], [0, 0, 1], [1, 1], [0, 1, 0])
    recipe = TextClassification(text="text", multi_label=True, labels=("a", "b", "c"), on_error="skip")
    found = recipe.standardize(rows, labelled=True)
    assert found.columns["label"] == [("a",), ("c",), ("b",)]
    assert [rows.where(row) in why for row, why in zip((1, 3), found.remarks.left_out, strict=True)] == [True, True]


@pytest.mark.parametrize("odd", [[], ["a"], [1], [0, 1, 0]])
def test_one_row_does_not_turn_marks_of_two_labels_into_sets(odd: list[Any]) -> None:
    """As sets of numbers of classes, every other row would have both labels."""
    rows = rows_of([0, 1], [1, 0], odd, [0, 1], [1, 0])
    recipe = TextClassification(text="text", multi_label=True, labels=("a", "b"))
    with pytest.raises(DataError, match="expected a 0 or 1 for each of 2 labels, as in other rows") as error:
        recipe.standardize(rows, labelled=True)
    assert error.value.where == rows.where(2)
    found = replace(recipe, on_error="skip").standardize(rows, labelled=True)
    assert found.columns["label"] == [("b",), ("a",), ("b",), ("a",)]
    with pytest.raises(DataError, match="expected a 0 or 1 for each of 2 labels") as error:
        split_sets(rows, "label", None, None, None)
    assert ("--labels 0,1,..." in error.value.hint) == (odd in ([1], [0, 1, 0])), "only numbers can be classes"


def test_not_many_lists_unlike_other_marks_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are read again for each."""
    monkeypatch.setattr("bertkit.readers.MOST_UNLIKE", 2)
    marks = [[1, 0, 0], [0, 0, 1]] * 4
    recipe = TextClassification(text="text", multi_label=True, labels=("a", "b", "c"), on_error="skip")
    assert len(recipe.standardize(rows_of(text=[*"abcdefghij"], label=[*marks, *[["a"]] * 2]), labelled=True)) == 8
    with pytest.raises(DataError, match="expected a 0 or 1 for each of 3 labels"):
        recipe.standardize(rows_of(text=[*"abcdefghijk"], label=[*marks, *[["a"]] * 3]), labelled=True)


def test_empty_cells_among_marks_are_counted() -> None:
    rows = rows_of(text=list(TEXTS[:4]), x=[1, None, None, 0], y=["0", "1", "", "1"])
    (warning,) = TextClassification(text="text", label="x,y", multi_label=True).find_columns(rows).remarks.warnings
    assert warning == f"1 row has empty cells in the columns of labels, which are read as 0 ({rows.where(1)})"


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("columns", "options", "labels"),
    [
        ({"x": [-1, 1], "y": ["-1", 0]}, {"multi_label": True, "label": "x,y"}, [None, ("x",)]),
        ({"x": [2, 1], "y": [0, 0]}, {"multi_label": True, "label": "x,y"}, None),
        ({"label": [["a"], [["b"]]]}, {"multi_label": True}, None),
        ({"label": [7, 1]}, {}, None),
        ({"label": [-1, 1]}, {}, [None, "b"]),
    ],
)
def test_to_predict_labels_that_cannot_be_read_are_left_out(columns: dict, options: dict, labels: Any, on_error: str) -> None:
    rows = rows_of(**columns)
    rows = replace(rows, label_names={"label": ("a", "b")} if not options else {})
    examples = TextClassification(text="text", on_error=on_error, **options).standardize(rows, labelled=False)
    assert examples.columns["text"] == list(TEXTS[:2])
    assert examples.columns.get("label") == labels


def test_few_rows_do_not_decide_what_lists_of_numbers_are() -> None:
    """[0, 1] alone might mark the second of two labels; all rows of the training data say that it is two of four."""
    rows = rows_of(text=[*"abcdefgh", ""], label=[*[[0, 1], [2, 3], [0], [1]] * 2, [0]])
    task = fit(rows, on_error="skip")
    assert (task.labels, [*task.examples(rows, labelled=True).columns["text"]]) == (("0", "1", "2", "3"), [*"abcdefgh"])
    few = task.examples(rows_of([0, 1], [1, 0]), labelled=True)
    assert few.columns["label"] == [("0", "1")] * 2
    with pytest.raises(DataError, match="a 0 or 1 for each of 2 labels"):
        fit(rows_of(["a", "b"], ["c"])).examples(rows_of([0, 1], [1, 0]), labelled=True)


def test_a_label_of_one_row_is_not_held_out(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    rows = "".join(f"text {n},{'common' if n % 2 else 'usual'}{f';rare{n}' if n < 10 else ''}\n" for n in range(200))
    path.write_text("text,kinds\n" + rows, encoding="utf-8")
    for seed in range(5):
        recipe = TextClassification(train=str(path), label="kinds", multi_label=True, split_seed=seed)
        held = {name for its in load(recipe, "validation").columns["label"] for name in its}
        assert held == {"common", "usual"}


def test_rows_without_any_label_are_counted() -> None:
    rows = rows_of(["a"], [], ["b", "a"], [])
    assert fit(rows).examples(rows, labelled=True).remarks.notes == ("2 of 4 rows have no label",)
    rows = rows_of(["a"], ["b"])
    assert fit(rows).examples(rows, labelled=True).remarks.notes == ()


def test_columns_of_marks_need_the_switch() -> None:
    rows = rows_of(x=["1", "0"], y=["0", "1"])
    with pytest.raises(DataError) as raised:
        Task.fit(filled(TextClassification(text="text", label="x,y")), rows)
    assert "--label x,y names 2 columns" in raised.value.what
    assert "--multi-label" in (raised.value.hint or "")


def test_a_guessed_separator_is_reported() -> None:
    rows = rows_of("a,b", "b")
    assert any("','" in note for note in fit(rows).remarks.notes)
    assert not any("','" in note for note in fit(rows, label_separator=",").remarks.notes)


def test_cells_without_a_separator_are_told() -> None:
    for cells, told in ((["a#b", "b"], True), (["a|b", "b"], False), ([["a"], ["b"]], False), (["['a']", "[]"], False)):
        notes = TextClassification(text="text", label="label", multi_label=True).find_columns(rows_of(*cells)).remarks.notes
        assert any("--label-separator names another one" in note for note in notes) is told


def test_other_separators_in_cells_are_a_warning() -> None:
    (warning,) = fit(rows_of("a|b", "b,c", "c;a", "a; b, c", "c")).remarks.warnings
    assert warning == "3 cells of column 'label' also have ';' or ',', which stays in the names of labels"
    assert not fit(rows_of("a,b", "b", "a, c")).remarks.warnings
    assert not fit(rows_of("a|b", "b,c", "c"), label_separator="|").remarks.warnings


# --- loss and scores -------------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_transformers() -> None:
    sizes = {**TINY, **NO_DROPOUT, "problem_type": "multi_label_classification", "num_labels": 3}
    config = transformers.BertConfig(**sizes, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = transformers.BertForSequenceClassification(config).double()
        targets = torch.randint(0, 2, (5, 3))
    ours = BertForSequenceClassification(BertConfig.from_dict(config.to_dict())).double()
    ours.load_state_dict(theirs.state_dict())
    rows = random_rows(np.random.default_rng(3), [9, 1, 5, 12, 4], TINY["vocab_size"], TINY.get("type_vocab_size", 2))
    labels = Ragged(targets.numpy().astype(np.float32).ravel(), np.arange(6) * 3)
    batch = packed(rows, labels={"labels": labels}, read=Ragged.column(np.zeros(5)))
    outputs = ours(batch)
    expected = theirs(**padded(rows), labels=targets.double())
    torch.testing.assert_close(outputs.logits["logits"], expected.logits)
    torch.testing.assert_close(outputs.loss_sums["labels"] / batch.weights["labels"], expected.loss)


def test_scores_by_hand() -> None:
    predicted, gold = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]]), np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0]])
    assert accuracy(predicted, gold) == pytest.approx(2 / 3)
    assert micro_f1(predicted, gold) == pytest.approx(2 * 2 / (3 + 3))
    assert macro_f1(predicted, gold) == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_one_label_is_scored_by_its_ones() -> None:
    """Of a single column scikit-learn takes the zeros for a class of their own."""
    predicted, gold = np.array([[1], [1], [0], [0], [0]]), np.array([[1], [0], [1], [0], [0]])
    assert micro_f1(predicted, gold) == macro_f1(predicted, gold) == pytest.approx(2 * 1 / (2 + 2))
    assert accuracy(predicted, gold) == pytest.approx(3 / 5)
    assert describe_classes(("odd",), predicted, gold).rows == [["odd", 0.5, 0.5, 0.5, 2, 2]]
    nothing = np.zeros_like(gold)
    assert micro_f1(nothing, gold) == macro_f1(nothing, gold) == 0


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_scikit_learns(seed: int) -> None:
    predicted, gold = np.random.default_rng(seed).integers(0, 2, (2, 20, 3))
    for average, metric in (("micro", micro_f1), ("macro", macro_f1)):
        assert metric(predicted, gold) == pytest.approx(f1_score(gold, predicted, average=average, zero_division=0))
    by_class = describe_classes(("a", "b", "c"), predicted, gold).rows
    assert [row[3] for row in by_class] == pytest.approx(f1_score(gold, predicted, average=None, zero_division=0))


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_by_trying_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities, gold = rng.integers(0, 10, 30) / 10 + 0.01, rng.integers(0, 2, 30)

    def f1(threshold: float) -> float:
        predicted = probabilities >= threshold
        return 2 * (predicted & (gold == 1)).sum() / max(1, predicted.sum() + gold.sum())

    tried = np.linspace(0, 1.1, 400)
    best = max(map(f1, tried))
    found = best_f1_threshold(probabilities, gold)
    assert f1(found) == pytest.approx(best)
    nearest = min(abs(threshold - 0.5) for threshold in tried if f1(threshold) > best - 1e-9)
    assert abs(found - 0.5) <= nearest + 0.06, "of several the nearest to one half"


def test_a_label_that_never_occurs_keeps_one_half() -> None:
    assert best_f1_threshold(np.array([0.2, 0.9]), np.array([0, 0])) == 0.5


def logits_of(probabilities: list[list[float]]) -> np.ndarray:
    return -np.log(1 / np.array(probabilities) - 1)


def test_while_it_trains_scores_are_those_of_the_tuned_thresholds() -> None:
    """Rare labels have probabilities far below one half for long: at one half all evaluations would look alike."""
    truth = [("a",), ("b",), (), ("a", "b")] * 5
    at_half = task_of("a", "b")
    said = at_half._target.decode(logits_of([[0.2, 0.01], [0.1, 0.03], [0.1, 0.01], [0.2, 0.03]] * 5))
    assert at_half.score(said, truth) == {"micro_f1": 0, "macro_f1": 0, "accuracy": 0.25}
    assert at_half.distinct(said) == 1
    tuned = at_half.tuned(said, truth)
    assert tuned.thresholds_tuned() == pytest.approx({"threshold_a": 0.15, "threshold_b": 0.02})
    decided = tuned.decide(said)
    assert tuned.score(decided, truth) == {"micro_f1": 1, "macro_f1": 1, "accuracy": 1}
    assert tuned.distinct(decided) == 4, "its predictions differ"
    restored = Task.restore(tuned.configure(BertConfig()))
    assert (restored.labels, restored.thresholds) == (tuned.labels, tuned.thresholds)
    spelled = Task.restore(tuned.configure(BertConfig()), TextClassification(multi_label=True, labels=("B", "A")))
    assert spelled.thresholds_tuned() == pytest.approx({"threshold_A": 0.15, "threshold_B": 0.02})
    assert [found.value for found in restored.decide(said)] == [found.value for found in decided]


@pytest.mark.parametrize(("positive", "negative", "tuned"), [(10, 10, True), (9, 30, False), (30, 9, False), (0, 20, False)])
def test_thresholds_are_tuned_on_enough_rows_alone(positive: int, negative: int, tuned: bool) -> None:
    """Label a has as many rows as the case says; every second one has b."""
    rows = [("a",)] * positive + [()] * negative
    truth = [(*names, *("b",) * (at % 2)) for at, names in enumerate(rows)]
    task = task_of("a", "b")
    said = task._target.decode(logits_of([[0.2 if "a" in names else 0.1, 0.2 if "b" in names else 0.1] for names in truth]))
    found = task.tuned(said, truth).thresholds
    enough_b = min(sum("b" in names for names in truth), sum("b" not in names for names in truth)) >= 10
    assert found == pytest.approx({"a": 0.15 if tuned else 0.5, "b": 0.15 if enough_b else 0.5})
    few = [name for name, is_tuned in (("a", tuned), ("b", enough_b)) if not is_tuned]
    remarks = task.remarks_on_tuning(truth)
    assert [line.endswith(f": {', '.join(few)}") for line in remarks] == ([True] if few else [])


def test_a_model_without_thresholds_is_used_at_one_half() -> None:
    extra = {"architectures": ["BertForSequenceClassification"]}
    config = BertConfig(id2label={0: "a", 1: "b"}, problem_type="multi_label_classification", extra=extra)
    assert Task.restore(config).thresholds == {"a": 0.5, "b": 0.5}


def test_thresholds_follow_their_labels_into_another_order() -> None:
    target = AnyOf(("c", "a", "b"), {"a": 0.9, "b": 0.5, "c": 0.1})
    (found,) = target.decode(logits_of([[0.2, 0.8, 0.6]]))
    assert found.value == ["c", "b"]
    assert target.as_array([found.value]).tolist() == [[1, 0, 1]]
    assert target.encode([("a", "c")]).values.tolist() == [1, 1, 0]


def test_an_error_is_as_large_as_its_probabilities_are_far_off() -> None:
    task = task_of("a", "b")
    found = Prediction(["a"], probabilities=np.array([0.9, 0.2]))
    assert task.error(found, ("a",)) == 0
    assert task.error(found, ("b",)) == pytest.approx(0.9 + 0.8)
    assert [task.format_truth(truth, rows_of(), 0) for truth in (("a", "b"), ())] == ["a, b", "none"]


# --- a run -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bertkit.cli import main

    folder = tmp_path_factory.mktemp("labels")
    lines = [f"{text},{'|'.join(names)}\n" for text, names in zip(TEXTS, NAMES, strict=True)] * 10
    (folder / "my.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    data = ["--train", folder / "my.csv", "--validation", folder / "my.csv", "--multi-label", "-m", tiny_model_dir]
    how = ["--max-length", 16, "--precision", "fp32", "--num-epochs", 5, "--eval-steps", 50, "--learning-rate", 5e-3]
    how += ["--batch-size", 8, "--dropout", 0, "-o", folder / "run"]
    assert main([str(part) for part in ("finetune", "text-classification", *data, *how)]) == 0
    return folder / "run"


def test_a_run_learns_and_its_thresholds_stay_with_the_model(run: Path, run_bertkit, tmp_path: Path) -> None:
    best = json.loads((run / "run.json").read_text(encoding="utf-8"))["best"]["scores"]
    assert best["validation/micro_f1"] > 0.7
    assert {f"validation/threshold_{name}" for name in ALL} <= set(best)
    scores = json.loads(run_bertkit("eval", run, "--json", "--intervals").out)
    for name in ("micro_f1", "macro_f1", "accuracy"):
        assert scores[f"validation/{name}"] == best[f"validation/{name}"], "one name has one value"
    assert not any("threshold" in name for name in scores)
    low, high = scores["intervals"]["validation/micro_f1"]
    assert 0 < low < scores["validation/micro_f1"] < high <= 1
    # The folder alone, without run.json, has them too.
    shutil.copytree(run, tmp_path / "alone", ignore=shutil.ignore_patterns("run.json", "checkpoint-*"))
    how = ("--recipe", "text-classification", "--validation", run.parent / "my.csv", "--max-length", 16, "--json")
    assert json.loads(run_bertkit("eval", "alone", *how).out)["validation/micro_f1"] == scores["validation/micro_f1"]
    lines = run_bertkit("predict", "alone", "--max-length", 16, stdin="\n".join(TEXTS).encode() + b"\n").out.splitlines()
    found = [set(json.loads(line)["labels"]) for line in lines]
    right = sum(len(its & set(names)) for its, names in zip(found, NAMES, strict=True))
    f1 = 2 * right / (sum(map(len, found)) + sum(map(len, NAMES)))
    assert f1 == pytest.approx(scores["validation/micro_f1"])


def test_a_run_names_the_labels_whose_threshold_stays(tiny_model_dir: Path, tmp_path: Path, capsys) -> None:
    table = tmp_path / "my.csv"
    table.write_text("text,label\n" + "good,usual\nbad,usual|often\n" * 10 + "poor,rare\n" * 9 + "old,\n", encoding="utf-8")
    run = train(tmp_path / "run", tiny_model_dir, table, multi_label=True)
    (note,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("validation: the threshold")]
    assert ("rare" in note, "usual" in note, "often" in note) == (True, False, False)
    thresholds = json.loads((run / "config.json").read_text(encoding="utf-8"))["bertkit"]["thresholds"]
    assert [name for name, value in thresholds.items() if value == 0.5] == ["rare"]


def test_the_pipeline_gives_the_same_probabilities(run: Path, run_bertkit) -> None:
    classify = transformers.pipeline("text-classification", model=str(run), top_k=None)
    lines = run_bertkit("predict", run, "--precision", "fp32", stdin="\n".join(TEXTS).encode() + b"\n").out.splitlines()
    for text, line in zip(TEXTS, lines, strict=True):
        theirs = {found["label"]: found["score"] for found in classify([text])[0]}
        assert json.loads(line)["probabilities"] == pytest.approx(theirs, abs=1e-5)

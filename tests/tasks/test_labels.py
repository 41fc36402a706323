"""Labels: names to numbers; and a model whose labels stand in another order than the data's scores the same."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.config import filled
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.model.config import BertConfig
from bertkit.readers import Examples
from bertkit.tasks import Prediction, Task, TextClassification
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.class_loss import class_weights
from bertkit.tasks.labels import (
    FRESH_HEAD,
    class_name,
    derive_labels,
    in_model_order,
    is_missing,
    label_ids,
    label_name,
    refuse_one_number,
    scores_of,
    spelling_warnings,
    unknown_label,
)
from bertkit.tasks.splits import read_splits

NAN = float("nan")
CLASSIFIER = "BertForSequenceClassification"


def examples(values: list[Any]) -> Examples:
    return Examples({"label": values}, "data.csv", range(2, len(values) + 2))


# --- names and numbers -----------------------------------------------------------------------------------------------------


def test_missing_labels() -> None:
    assert all(map(is_missing, (None, "", -1, "-1", -1.0, NAN)))
    assert not any(map(is_missing, (1.0, 0, "0", False, "None", " ", 0.5)))


def test_a_number_has_one_name_however_it_is_written() -> None:
    assert [label_name(value) for value in (1, 1.0, "1", 1.5, True)] == ["1", "1", "1", "1.5", "True"]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["b", "a", "b", "c"], ("a", "b", "c")),
        (["10", "9", "2", "10"], ("2", "9", "10")),  # in the order of numbers, not of digits
        ([2, 0, 1, 0], ("0", "1", "2")),
        ([1.0, 0.0], ("0", "1")),
        ([True, False], ("False", "True")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["\u00b2", "1"], ("1", "\u00b2")),  # a digit that is no number
        (["1", "01", "001", "0"], ("0", "001", "01", "1")),  # equal numbers, in any process
        (["b", "a", "", None, "-1"], ("a", "b")),
        (["no", NAN, "yes", None], ("no", "yes")),
        ([f"t{i:02}" for i in range(20)], tuple(f"t{i:02}" for i in range(20))),
        ([f"t{i % 21:02}" for i in range(42)], tuple(f"t{i:02}" for i in range(21))),
        ([f"class {i % 150:03}" for i in range(400)], tuple(f"class {i:03}" for i in range(150))),
    ],
)
def test_labels_derived_from_training_data(values: list[Any], labels: tuple[str, ...]) -> None:
    assert derive_labels(examples(values), "label") == labels


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (["", "-1", None], "(data.csv)"),
        (["a", "a"], "'a'"),
        (["1", 0], "'1' (data.csv:2) and 0 (data.csv:3)"),
        (["a", ["b"]], "(data.csv:3)"),
        (["a", {"b": 1}], "(data.csv:3)"),
    ],
)
def test_columns_that_hold_no_labels(values: list[Any], part: str) -> None:
    with pytest.raises(DataError) as error:
        derive_labels(examples(values), "label")
    assert part in str(error.value)
    assert "data.csv" in str(error.value)


@pytest.mark.parametrize(
    ("values", "where"),
    [
        (["1", "2", "2.5", "2.5", "3.5"] * 5, "data.csv:4"),
        ([0.0, 1.0, 0.5] * 5, "data.csv:4"),
        ([".5", "-1", "", "1e0"], "data.csv:2"),
        ([str(n % 21) for n in range(420)], "data.csv"),
        ([n % 21 for n in range(420)], "data.csv"),
    ],
)
def test_numbers_are_classes_only_if_the_user_insists(values: list[Any], where: str) -> None:
    with pytest.raises(DataError) as error:
        derive_labels(examples(values), "label")
    assert (error.value.where, "--regression" in str(error.value.hint), "--classes" in str(error.value.hint)) == (
        where,
        True,
        True,
    )
    expected = {label_name(value) for value in values if not is_missing(value)}
    assert set(derive_labels(examples(values), "label", are_classes=True)) == expected


@pytest.mark.parametrize("distinct", [28, 40])
def test_labels_that_hardly_repeat_are_judged_before_any_are_held_out(tmp_path: Path, distinct: int) -> None:
    """Of 28 labels in 60 rows each keeps one row at least, so they seem to repeat even less in the 32 rows that are left."""
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"lamp {row},t{row % distinct}\n" for row in range(60)))
    recipe = TextClassification(train=str(tmp_path / "a.csv")).resolved()
    of_file = replace(recipe, validation=recipe.train)
    set_aside = (replace(each, set_aside="20%") for each in (recipe, of_file))
    for own in (recipe, of_file, replace(recipe, classes=True), *set_aside):
        refused = distinct == 40 and not own.classes
        with pytest.raises(DataError, match="40 distinct values in 60 rows") if refused else nullcontext():
            assert len(Task.fit(own, read_splits(own).rows["train"]).labels) == distinct


@pytest.mark.parametrize(
    ("cell", "part"),
    [("{}", "60 different numbers"), ("'[{{\"start\": {}}}]'", "expected one label"), ("t{}", "60 distinct values")],
)
@pytest.mark.parametrize("held_out", [True, False])
def test_what_is_wrong_with_many_labels_is_told(tmp_path: Path, cell: str, part: str, held_out: bool) -> None:
    labels = [cell.format(row).strip("'") for row in range(60)]
    rows = "".join(json.dumps({"text": f"lamp {row}", "label": label}) + "\n" for row, label in enumerate(labels))
    (tmp_path / "a.jsonl").write_text(rows, encoding="utf-8")
    path = str(tmp_path / "a.jsonl")
    recipe = TextClassification(train=path, validation=None if held_out else path).resolved()
    with pytest.raises(DataError, match=part):
        Task.fit(recipe, read_splits(recipe).rows["train"])


@pytest.mark.parametrize("values", [[n % 20 for n in range(100)], ["1.0", "2.0"], ["1.5", "2.5", "other"], ["v1.5", "v2.5"]])
def test_whole_numbers_and_names_are_classes(values: list[Any]) -> None:
    assert set(derive_labels(examples(values), "label")) == set(map(label_name, values))


@settings(max_examples=30)
@given(st.data())
def test_a_name_has_the_number_of_its_place(data: st.DataObject) -> None:
    labels = tuple(data.draw(st.lists(st.text(min_size=1), min_size=1, unique=True).filter(lambda names: "-1" not in names)))
    values = data.draw(st.lists(st.sampled_from(labels), min_size=1))
    ids = label_ids(examples(values), "label", labels)
    assert [labels[i] for i in ids] == values


@pytest.mark.parametrize(
    ("values", "labels", "ids"),
    [
        (["0", 2, 1.0, "b"], ("a", "b", "c"), [0, 2, 1, 1]),
        (["1", 2, "1"], ("1", "2"), [0, 1, 0]),  # where names are numbers, a number is a name
        (["-1", "1"], ("-1", "1"), [0, 1]),
    ],
)
def test_numbers_count_from_0_unless_they_are_names(values: list[Any], labels: tuple[str, ...], ids: list[int]) -> None:
    assert label_ids(examples(values), "label", labels).tolist() == ids


@pytest.mark.parametrize(
    ("values", "labels", "by_number", "part", "place"),
    [
        (["a", "d"], "ab", True, "'d'", "data.csv:3"),
        (["a", "2"], "ab", True, "0 to 1", "data.csv:3"),
        (["1", "0"], "12", True, "'0'", "data.csv:3"),
        (["a", "-2"], "ab", True, "-2", "data.csv:3"),
        (["a", 0.5], "ab", True, "'0.5'", "data.csv:3"),
        (["a", "0"], "ab", False, "'0'", "data.csv:3"),  # labels that were derived have no numbers in the data
        (["a", ["b"]], "ab", True, "['b']", "data.csv:3"),
        (["a", {"b": 1}], "ab", True, "{'b': 1}", "data.csv:3"),
        (["a", None, ""], "ab", True, "2 of 3", "data.csv:3"),
        ([-1, -1], "ab", True, "", "data.csv"),
    ],
)
def test_unknown_and_missing_labels(values: list[Any], labels: str, by_number: bool, part: str, place: str) -> None:
    with pytest.raises(DataError) as error:
        label_ids(examples(values), "label", tuple(labels), by_number=by_number)
    assert (part in error.value.what, error.value.where) == (True, place)


def test_classes_that_the_source_declares() -> None:
    assert [class_name(value, ("a", "b"), "x:1") for value in (0, 1, -1, None)] == ["a", "b", None, None]
    for value in (2, -2, True, "a"):
        with pytest.raises(DataError) as error:
            class_name(value, ("a", "b"), "x:1")
        assert error.value.where == "x:1"


def test_class_weights() -> None:
    ids, labels = np.array([0, 0, 0, 1]), ("a", "b", "c=d")
    assert class_weights(("balanced",), ids, ("a", "b")) == {"a": 4 / (2 * 3), "b": 4 / (2 * 1)}
    assert class_weights(("1", ".5"), ids, ("a", "b")) == {"a": 1, "b": 0.5}
    assert class_weights(("b=2",), ids, labels) == {"a": 1, "b": 2, "c=d": 1}
    assert class_weights(("c=d=0.5", " a = 0"), ids, labels) == {"a": 0, "b": 1, "c=d": 0.5}
    for wrong in ("1", "1,-1", "1,x", "0,0", "1,2,3", "a=1,2", "a=", "a=x", "a=-1", "a=1,a=2", "a=0,b=0", "=1", "A=1"):
        with pytest.raises(UsageError):
            class_weights(tuple(wrong.split(",")), ids, ("a", "b"))
    with pytest.raises(UsageError) as error:
        class_weights(("prise=2",), ids, ("praise", "blame"))
    assert error.value.hint == "did you mean praise?"


def test_numbers_to_regress_to() -> None:
    assert scores_of(examples(["1.5", 2, 3.25, "-1"]), "label").tolist() == [1.5, 2.0, 3.25, -1.0]
    for value in ("", None, "high", "nan", float("inf"), True, 10**309):
        with pytest.raises(DataError) as error:
            scores_of(examples([1, value]), "label")
        assert (repr(value) in error.value.what, error.value.where) == (True, "data.csv:3")
    for values, hint in (
        (["1,5", "2,0"], "write 1.5 for 1,5"),
        (["1,5", "good"], None),
        (["1,5", "good", 2.5], "write 1.5 for 1,5"),
        ([1.5, "good"], None),
        (["1;5", "2;0"], None),
        (["950.5", "2,630.00"], "write 2630.00 for 2,630.00"),
        (["950.5", "1,200", "2,630.00"], "write 2630.00 for 2,630.00"),
        (["950.5", "1,200"], "write 1200 for 1,200, or 1.200 if the comma is decimal"),
        (["951", "0,123"], "write 0.123 for 0,123"),
    ):
        with pytest.raises(DataError) as error:
            scores_of(examples(values), "label")
        found = str(error.value.hint)
        assert found == hint if hint else "write" not in found


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["1", "1.0"], True),
        (["01", "1"], True),
        (["1", "10", "v1"], False),
        (["12345678901234567", "12345678901234568"], False),
        (["1234567890123456789012345678901234567890", "1234567890123456789012345678901234567891"], False),
        (["1e9999999", "1e9999998"], False),  # as hexadecimal ids may look
        (["1e99999999999999999999", "2e99999999999999999999"], False),
    ],
)
def test_a_number_in_two_forms_is_told(names: list[str], told: bool) -> None:
    warnings = spelling_warnings(names)
    assert [repr(names[0]) in warning and repr(names[1]) in warning for warning in warnings] == [True] * told


# --- a model's order of labels ---------------------------------------------------------------------------------------------

NAMES = ("entailment", "neutral", "contradiction")  # the order of the recipe mnli
ORDERS = [
    ("contradiction", "entailment", "neutral"),
    ("NEUTRAL", "Contradiction", "ENTAILMENT"),
    ("LABEL_0", "LABEL_1", "LABEL_2"),
]
TEXTS = ("good movie", "bad book about a river", "the", "open the new ticket", "no phone", "one two three", "why", "a bank")
PAIRS = list(itertools.product(TEXTS[:4], TEXTS[4:]))
HOW = ("--max-length", 64, "--precision", "fp32", "--device", "cpu", "--validation")


@pytest.fixture(params=ORDERS, ids=lambda names: names[0])
def nli(request, make_model_dir, tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    """A model and its labels; beside it pairs labelled as transformers' model does, but for every fourth."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = make_model_dir(CLASSIFIER, seed=11, initializer_range=0.5, labels=request.param)
    names = tuple(name.lower() for name in request.param) if request.param != ORDERS[-1] else NAMES
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        predicted = [names[model(**tokenizer(a, b, return_tensors="pt")).logits.argmax()] for a, b in PAIRS]
    assert len(set(predicted)) == 3, "with one class missing, one order could not be told from another"
    numbers = [(NAMES.index(name) + (i % 4 == 0)) % 3 for i, name in enumerate(predicted)]
    for file, spelled in (("names", NAMES), ("numbers", (0, 1, 2)), ("others", (2, 0, 1))):
        rows = "".join(f"{a}\t{b}\t{spelled[label]}\n" for (a, b), label in zip(PAIRS, numbers, strict=True))
        (tmp_path / f"{file}.tsv").write_text("premise\thypothesis\tlabel\n" + rows, encoding="utf-8")
    return folder, names


def test_any_order_of_labels_scores_the_same(run_bertkit, nli) -> None:
    other_order = ("others.tsv", "--labels", "neutral,contradiction,entailment")
    for data in (("names.tsv",), ("numbers.tsv",), other_order if nli[1] != NAMES else ("names.tsv",)):
        ran = run_bertkit("eval", nli[0], "--recipe", "mnli", "--json", *HOW, *data)
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["validation/accuracy"] == 0.75


@pytest.mark.parametrize("data", ["numbers.tsv", "names.tsv"])
def test_fine_tuning_keeps_the_models_order(run_bertkit, nli, tmp_path: Path, data: str) -> None:
    """A step with learning rate 0 leaves the model as it is: its scores are the model's, and so is the loss."""
    own = ("--train", data, "-m", nli[0], "-o", "run", "--max-steps", 1, "--learning-rate", 0, "--dropout", 0, "--no-baselines")
    ran = run_bertkit("finetune", "mnli", *own, *HOW, data)
    assert ran.code == 0, ran.err
    config, run = (json.loads((tmp_path / "run" / name).read_text(encoding="utf-8")) for name in ("config.json", "run.json"))
    assert tuple(config["id2label"].values()) == nli[1]
    best = run["best"]["scores"]
    assert best["validation/accuracy"] == 0.75
    log = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(log[0])["loss"] == pytest.approx(best["validation/loss"], rel=1e-5)
    assert json.loads(run_bertkit("eval", "run", "--json").out) == pytest.approx(best, rel=1e-5)


def test_f1_counts_the_datas_class_1_in_any_order() -> None:
    from sklearn.metrics import f1_score

    config = BertConfig(id2label={0: "equivalent", 1: "not_equivalent"}, extra={"architectures": [CLASSIFIER]})
    task = Task.restore(config, load_recipe("mrpc").overridden({"train": "f"}).resolved())
    rows = [("equivalent", "equivalent"), ("equivalent", "not_equivalent"), ("not_equivalent",) * 2, ("not_equivalent",) * 2]
    predicted, truth = (list(names) for names in zip(*rows, strict=True))
    scores = task.score([Prediction(name) for name in predicted], truth)
    assert scores["f1"] == pytest.approx(f1_score(truth, predicted, pos_label="equivalent"))
    assert scores["f1"] != pytest.approx(f1_score(truth, predicted, pos_label="not_equivalent"))


@pytest.mark.parametrize(
    ("values", "where", "words"),
    [
        (["1.5", "2.5", "n/a", "3.5", "4"], "data.csv:4", ["1 cell: 'n/a' (line 4)"]),
        ([*map(str, range(40)), "x", "y"], "data.csv:42", ["2 cells: 'x' (line 42), 'y' (line 43)"]),
        ([*(n / 2 for n in range(30)), "a", "b", "c", "d", "e"], "data.csv:32", ["5 cells", "and 2 more"]),
    ],
)
def test_a_column_of_numbers_with_a_bad_cell_hints_at_regression(values: list[Any], where: str, words: list[str]) -> None:
    with pytest.raises(DataError) as error:
        derive_labels(examples(values), "label")
    assert error.value.where == where
    assert [word for word in words if word not in error.value.what] == []
    assert "--regression" in str(error.value.hint)


def test_names_with_a_few_numbers_are_classes() -> None:
    assert derive_labels(examples(["1.5", "a", "b", "a"]), "label") == ("1.5", "a", "b")
    assert derive_labels(examples(["1", "2", "3", "other"]), "label") == ("1", "2", "3", "other")


def test_all_bad_cells_of_regression_are_counted() -> None:
    with pytest.raises(DataError) as error:
        scores_of(examples([1.5, "x", None, "y", "z", 2, float("inf")]), "label")
    assert error.value.where == "data.csv:3"
    assert "5 of 7 rows" in error.value.what
    assert "'x' (line 3), None (line 4), 'y' (line 5), and 2 more" in error.value.what


def named(*names: str) -> BertConfig:
    return BertConfig(vocab_size=8, id2label=dict(enumerate(names)))


@pytest.mark.parametrize(
    ("labels", "model", "some", "expected"),
    [
        (("B", "a"), ("a", "B"), False, ("a", "B")),
        (("b", "A"), ("a", "B"), False, ("A", "b")),  # spelled as given
        (("b",), ("a", "B", "c"), True, ("a", "b", "c")),
        (("a",), ("a", "A"), True, ("a", "A")),  # names of a model that differ only in case
        (("A",), ("a", "A"), True, ("a", "A")),
        (("a", "A"), ("a", "A", "b"), True, ("a", "A", "b")),
    ],
)
def test_the_order_is_the_models(
    labels: tuple[str, ...], model: tuple[str, ...], some: bool, expected: tuple[str, ...]
) -> None:
    found, warning = in_model_order(labels, named(*model), some=some)
    assert found == expected
    assert (warning is not None) == (len(labels) < len(model))


@pytest.mark.parametrize(
    ("labels", "model", "some", "says", "hint"),
    [
        (("a", "b"), ("a", "b", "c"), False, "the model has 3 labels and the data 2: a, b", "fresh-head"),
        (("a", "b", "c"), ("a", "b"), True, "the model has 2 labels and the data 3: a, b, c", "fresh-head"),
        (("a", "x"), ("a", "b"), False, "the model has no label 'x'; its labels are a, b", "correct the data"),
        (("a", "x"), ("a", "b", "c"), True, "the model has no label 'x'; its labels are a, b, c", "correct the data"),
        (("x", "y"), ("a", "b"), False, "the model's labels are a, b; the data's are x, y", "id2label"),
        (("x", "y"), ("a", "b", "c"), True, "the model's labels are a, b, c; the data's are x, y", FRESH_HEAD),
        (("a", "A"), ("A", "b"), False, "the model's labels are A, b; the data's are a, A", "id2label"),
    ],
)
def test_other_labels_than_the_models(
    labels: tuple[str, ...], model: tuple[str, ...], some: bool, says: str, hint: str
) -> None:
    with pytest.raises(ModelError) as error:
        in_model_order(labels, named(*model), some=some)
    assert error.value.what == says
    assert hint in (error.value.hint or "")
    assert hint != FRESH_HEAD or error.value.hint == FRESH_HEAD


def test_a_model_without_names_asks_for_them() -> None:
    error = unknown_label("0", ("LABEL_0", "LABEL_1"), "dev.csv:2", by_number=False)
    assert error.hint == "the model does not name its labels: give them in its order, --labels A,B,..."
    error = unknown_label("maybe", ("LABEL_0", "yes"), "dev.csv:2", by_number=False)
    hint = "correct or remove the row; if the label is right, name all labels when you train: --labels A,B,..."
    assert error.hint == hint
    error = unknown_label("plantcare", ("billing", "Plant care"), "dev.csv:2", by_number=False)
    assert error.hint == f"did you mean Plant care? {hint}"
    for name, labels in (("entailment", ("not_entailment", "x")), ("class_12", ("class_1", "class_2")), ("a", ("b", "c"))):
        assert unknown_label(name, labels, "dev.csv:2", by_number=False).hint == hint


def test_names_with_commas_are_in_quotes() -> None:
    error = unknown_label("praise, honest", ("praise", "honest", "new"), "a.csv:2", by_number=False)
    assert str(error.hint).endswith("""if it is one, put it in double quotes: --labels '"praise, honest",B,...'""")
    assert "--multi-label" not in str(unknown_label("praise, x", ("praise", "new"), "a.csv:2", by_number=False).hint)
    error = unknown_label("x", ("praise, honest", "new"), "a.csv:2", by_number=False)
    assert error.what == "unknown label 'x'; expected one of 'praise, honest', 'new'"


@pytest.mark.parametrize("cells", [["0|1|0", "1|1|0"], ["0;1", "1;0", None], ["0,1,0", "1, 0, 0"], ["0,1,0,1", "1,1,0,0"]])
def test_marks_of_several_labels_are_no_classes(cells: list[Any]) -> None:
    with pytest.raises(DataError, match="are a 0 or 1 for each of several labels, such as") as error:
        derive_labels(examples(cells), "label")
    assert "--multi-label" in str(error.value.hint)
    assert len(derive_labels(examples(cells), "label", are_classes=True)) == 2
    assert len(derive_labels(examples([*cells, "no"]), "label")) == 3


def test_one_number_in_all_rows_is_refused() -> None:
    with pytest.raises(DataError, match="every row has the number 2 in column 'label'; expected different numbers"):
        refuse_one_number(examples(["2", 2.0, 2]), "label")
    refuse_one_number(examples([2]), "label")
    refuse_one_number(examples([2, 2, 3]), "label")
    refuse_one_number(examples(["x", "x"]), "label")  # which is no number
    rows = Examples({"text": ["a", "b"], "label": ["2", "2"]}, "train.csv", [2, 3])
    with pytest.raises(DataError, match=r"every row has the number 2 .*train.csv"):
        Task.fit(filled(TextClassification(regression=True)), rows)


def test_numbers_with_a_decimal_comma_are_named() -> None:
    for names in ([f"{number},5" for number in range(60)], ["0,5", "1", "2,0"] * 20):
        with pytest.raises(DataError, match=f"is '{names[0]}', a number with a comma") as error:
            derive_labels(examples(names), "label")
        assert f"write 0.5 for {names[0]}, and add --regression" in str(error.value.hint)
        assert set(derive_labels(examples(names), "label", are_classes=True)) == set(names)

"""Labels: names to numbers, and a model whose order differs from the data's scores the same (number 4 of the bad inputs)."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DataError
from bertkit.readers import Examples
from bertkit.tasks.labels import derive_labels, is_missing, label_ids, label_name, scores_of


def examples(values: list[Any]) -> Examples:
    return Examples({"label": values}, "data.csv", range(2, len(values) + 2))


def test_numbers_mean_nothing_to_names_that_were_derived() -> None:
    """The data's own 0 may be any of the names, whose order is alphabetical."""
    with pytest.raises(DataError) as error:
        label_ids(examples(["neg", "0"]), "label", ("neg", "pos"), by_number=False)
    assert error.value.where == "data.csv:3"


@pytest.mark.parametrize("value", [["a"], {"a": 1}])
def test_a_label_that_is_a_list_or_an_object(value: Any) -> None:
    for check in (lambda rows: derive_labels(rows, "label"), lambda rows: label_ids(rows, "label", ("a", "b"))):
        with pytest.raises(DataError) as error:
            check(examples(["a", value]))
        assert error.value.where == "data.csv:3"


def test_digits_that_are_no_numbers() -> None:
    assert derive_labels(examples(["\u00b2", "1"]), "label") == ("1", "\u00b2")


# --- names and numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        (None, True),
        ("", True),
        (-1, True),
        ("-1", True),
        (-1.0, True),
        (float("nan"), True),
        (1.0, False),
        (0, False),
        ("0", False),
        (False, False),
        ("None", False),
        (" ", False),
    ],
)
def test_what_is_missing(value: Any, missing: bool) -> None:
    assert is_missing(value) is missing


def test_a_number_is_one_name_however_it_is_written() -> None:
    assert {label_name(value) for value in (1, 1.0, "1")} == {"1"}
    assert label_name(1.5) == "1.5"
    assert label_name(True) == "True"


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["b", "a", "b", "c"], ("a", "b", "c")),
        (["10", "9", "2", "10"], ("2", "9", "10")),  # numbers in their order, not in that of their digits
        ([2, 0, 1, 0], ("0", "1", "2")),
        ([1.0, 0.0], ("0", "1")),
        ([True, False], ("False", "True")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["b", "a", "", None, "-1"], ("a", "b")),
    ],
)
def test_labels_of_the_training_data(values: list[Any], labels: tuple[str, ...]) -> None:
    assert derive_labels(examples(values), "label") == labels


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (["", "-1", None], "(data.csv)"),
        (["a", "a"], "'a'"),
        ([f"t{i}" for i in range(30)], "'label' has 30 "),
        (["1", 0], "'1' (data.csv:2) and 0 (data.csv:3)"),
    ],
)
def test_columns_that_are_no_labels(values: list[Any], part: str) -> None:
    with pytest.raises(DataError) as error:
        derive_labels(examples(values), "label")
    assert part in str(error.value)
    assert "data.csv" in str(error.value)


def test_a_missing_label_is_of_no_kind() -> None:
    assert derive_labels(examples(["no", float("nan"), "yes", None]), "label") == ("no", "yes")


def test_many_classes_that_repeat_are_classes() -> None:
    assert len(derive_labels(examples([f"class {i % 150}" for i in range(400)]), "label")) == 150


@given(st.data())
def test_names_have_the_number_of_their_place(data: st.DataObject) -> None:
    labels = tuple(data.draw(st.lists(st.text(min_size=1), min_size=1, unique=True).filter(lambda names: "-1" not in names)))
    values = data.draw(st.lists(st.sampled_from(labels), min_size=1))
    ids = label_ids(examples(values), "label", labels)
    assert [labels[i] for i in ids] == values


def test_numbers_count_from_0_where_they_are_no_names() -> None:
    assert label_ids(examples(["0", 2, 1.0, "b"]), "label", ("a", "b", "c")).tolist() == [0, 2, 1, 1]
    # Where the names are numbers, a number is its name and not its place.
    assert label_ids(examples(["1", 2, "1"]), "label", ("1", "2")).tolist() == [0, 1, 0]
    assert label_ids(examples(["-1", "1"]), "label", ("-1", "1")).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "labels", "said", "place"),
    [
        (["a", "d"], "ab", "'d'", "data.csv:3"),
        (["a", "2"], "ab", "2 is out of range; expected 0 to 1", "data.csv:3"),
        (["1", "0"], "12", "'0'", "data.csv:3"),
        (["a", "-2"], "ab", "-2 is out of range", "data.csv:3"),
        (["a", 0.5], "ab", "'0.5'", "data.csv:3"),
        (["a", None, ""], "ab", "2 of 3 rows", "data.csv:3"),
        ([-1, -1], "ab", "no row has a label", "data.csv"),
    ],
)
def test_labels_that_are_none_of_these(values: list[Any], labels: str, said: str, place: str) -> None:
    with pytest.raises(DataError) as error:
        label_ids(examples(values), "label", tuple(labels))
    assert (said in error.value.what, error.value.where) == (True, place)


def test_numbers_to_regress_to() -> None:
    assert scores_of(examples(["1.5", 2, 3.25, "-1"]), "label").tolist() == [1.5, 2.0, 3.25, -1.0]


@pytest.mark.parametrize("value", ["", None, "high", "nan", float("inf"), True])
def test_what_is_no_number_to_regress_to(value: Any) -> None:
    with pytest.raises(DataError) as error:
        scores_of(examples([1, value]), "label")
    assert (repr(value) in error.value.what, error.value.where) == (True, "data.csv:3")


# --- a model's order of labels -----------------------------------------------------------------------------------------

NAMES = ("entailment", "neutral", "contradiction")  # the order of the recipe mnli
TEXTS = ("good movie", "bad book about a river", "the", "open the new ticket", "no phone", "one two three", "why", "a bank")
PAIRS = list(itertools.product(TEXTS[:4], TEXTS[4:]))


def with_labels(source: Path, folder: Path, names: tuple[str, ...] | None, order: tuple[int, ...] = (0, 1, 2)) -> Path:
    """A copy of a model whose outputs stand in another order under other names; what it says of a text stays the same."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][list(order)]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = names or tuple(f"LABEL_{i}" for i in range(len(order)))
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def nli_model(make_model_dir: Callable[..., Path]) -> Path:
    """A model that answers in the recipe's order."""
    named = dict(enumerate(NAMES))
    label2id = {name: i for i, name in named.items()}
    return make_model_dir("BertForSequenceClassification", seed=11, initializer_range=0.5, id2label=named, label2id=label2id)


@pytest.fixture
def nli_data(nli_model: Path, tmp_path: Path) -> Path:
    """Pairs labelled as the model would, but for every fourth, once by names and once by the recipe's numbers."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(nli_model).eval(),
        AutoTokenizer.from_pretrained(nli_model),
    )
    with torch.no_grad():
        said = [int(model(**tokenizer(a, b, return_tensors="pt")).logits.argmax()) for a, b in PAIRS]
    assert len(set(said)) == 3, "each class must be said of some pair, or an order could not be told from another"
    gold = [(number + 1) % 3 if i % 4 == 0 else number for i, number in enumerate(said)]
    for name, labels in (("names", [NAMES[g] for g in gold]), ("numbers", gold)):
        rows = "".join(f"{a}\t{b}\t{label}\n" for (a, b), label in zip(PAIRS, labels, strict=True))
        (tmp_path / f"{name}.tsv").write_text("premise\thypothesis\tlabel\n" + rows, encoding="utf-8")
    return tmp_path


def scores(run_bertkit, model: Path, data: str, *options: str) -> dict[str, float]:
    common = ("--recipe", "mnli", "--validation", data, "--max-length", 64, "--precision", "fp32", "--device", "cpu", "--json")
    ran = run_bertkit("eval", model, *common, *options)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


ORDERS = [
    (("contradiction", "entailment", "neutral"), (2, 0, 1)),
    (("NEUTRAL", "Contradiction", "ENTAILMENT"), (1, 2, 0)),
    (("entailment", "neutral", "contradiction"), (0, 1, 2)),
]


@pytest.mark.parametrize("data", ["names.tsv", "numbers.tsv"])
@pytest.mark.parametrize(("names", "order"), ORDERS)
def test_any_order_scores_the_same(run_bertkit, nli_model, nli_data, names, order, data: str) -> None:
    model = with_labels(nli_model, nli_data / "model", names, order)
    found = scores(run_bertkit, model, data)
    assert found["validation/accuracy"] == 0.75
    assert found == pytest.approx(scores(run_bertkit, nli_model, data), abs=1e-5)


def test_the_comparison_sees_names_that_are_wrong(run_bertkit, nli_model: Path, nli_data: Path) -> None:
    model = with_labels(nli_model, nli_data / "model", ORDERS[0][0])  # other names for outputs in their old order
    assert scores(run_bertkit, model, "names.tsv")["validation/accuracy"] < 0.5


@pytest.mark.parametrize("data", ["names.tsv", "numbers.tsv"])
def test_a_model_without_names_is_taken_in_the_recipes_order_and_that_is_said(run_bertkit, nli_model, nli_data, data) -> None:
    model = with_labels(nli_model, nli_data / "model", None)
    assert scores(run_bertkit, model, data)["validation/accuracy"] == 0.75
    err = run_bertkit("eval", model, "--recipe", "mnli", "--validation", data, "--max-length", 64).err
    assert "the model does not name its labels" in err


def test_labels_typed_say_the_order_of_the_numbers_in_the_data(run_bertkit, nli_model: Path, nli_data: Path) -> None:
    rows = (nli_data / "numbers.tsv").read_text(encoding="utf-8").splitlines()
    other = {"0": "2", "1": "0", "2": "1"}
    rows = [rows[0], *(row[:-1] + other[row[-1]] for row in rows[1:])]
    (nli_data / "other.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    found = scores(run_bertkit, nli_model, "other.tsv", "--labels", "neutral,contradiction,entailment")
    assert found["validation/accuracy"] == 0.75


@pytest.mark.parametrize(
    ("names", "said"), [(("yes", "maybe", "no"), "yes, maybe, no"), (("entailment", "neutral"), "2 labels")]
)
def test_other_names_are_refused(run_bertkit, nli_model: Path, nli_data: Path, names: tuple[str, ...], said: str) -> None:
    model = with_labels(nli_model, nli_data / "model", names, tuple(range(len(names))))
    train = ("finetune", "mnli", "--train", "names.tsv", "-m", model, "-o", "run", "--max-steps", 1)
    for command in (("eval", model, "--recipe", "mnli"), train):
        ran = run_bertkit(*command, "--validation", "names.tsv", "--max-length", 64)
        (error,) = (line for line in ran.err.splitlines() if line.startswith("error: "))
        assert (ran.code, said in error, error.endswith(f"({model})")) == (4, True, True), error
    assert not (nli_data / "run").exists()


@pytest.mark.parametrize("data", ["names.tsv", "numbers.tsv"])
@pytest.mark.parametrize(("names", "order"), ORDERS)
def test_fine_tuning_keeps_the_models_order(run_bertkit, nli_model, nli_data, names, order, data: str) -> None:
    """A step with learning rate 0 leaves the model as it is: its scores must be those of the model, and so its loss."""
    model = with_labels(nli_model, nli_data / "model", names, order)
    settings = ("--max-steps", 1, "--learning-rate", 0, "--max-length", 64, "--precision", "fp32", "--device", "cpu")
    ran = run_bertkit(
        "finetune", "mnli", "--train", data, "--validation", data, "-m", model, "-o", "run", *settings, "--dropout", 0
    )
    assert ran.code == 0, ran.err
    config = json.loads((nli_data / "run" / "config.json").read_text(encoding="utf-8"))
    assert tuple(config["id2label"].values()) == tuple(name.lower() for name in names)
    run = json.loads((nli_data / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["best"]["scores"]["validation/accuracy"] == 0.75
    # The loss in training, on the same rows in one batch, is that of the evaluation.
    log = [json.loads(line) for line in (nli_data / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[0]["loss"] == pytest.approx(run["best"]["scores"]["validation/loss"], rel=1e-5)
    # And eval, which knows the run alone, takes names and numbers for what they were.
    again = json.loads(run_bertkit("eval", "run", "--json").out)
    assert again == pytest.approx(run["best"]["scores"], rel=1e-5)


def test_fine_tuning_from_labels_without_names_says_so(run_bertkit, nli_model: Path, nli_data: Path) -> None:
    model = with_labels(nli_model, nli_data / "model", None)
    options = ("-m", model, "-o", "run", "--max-steps", 1, "--max-length", 64)
    ran = run_bertkit("finetune", "mnli", "--train", "names.tsv", "--validation", "names.tsv", *options)
    assert ran.code == 0, ran.err
    assert "the model does not name its labels" in ran.err
    assert "fresh weights" not in ran.err


def test_f1_is_that_of_the_datas_class_1_whatever_the_models_order(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    from sklearn.metrics import f1_score

    named = {0: "equivalent", 1: "not_equivalent"}  # the recipe: not_equivalent, equivalent
    label2id = {name: i for i, name in named.items()}
    model = make_model_dir("BertForSequenceClassification", seed=4, initializer_range=0.5, id2label=named, label2id=label2id)
    gold = [i % 3 % 2 for i in range(len(PAIRS))]
    rows = "".join(f"{g}\t{a}\t{b}\n" for (a, b), g in zip(PAIRS, gold, strict=True))
    (tmp_path / "dev.tsv").write_text("label\tsentence1\tsentence2\n" + rows, encoding="utf-8")
    common = ("--recipe", "mrpc", "--max-length", 64, "--precision", "fp32")
    ran = run_bertkit("predict", model, "dev.tsv", *common)
    said = np.array([json.loads(line)["label"] == "equivalent" for line in ran.out.splitlines()])
    assert 0 < said.sum() < len(said)
    found = json.loads(run_bertkit("eval", model, "--validation", "dev.tsv", *common, "--json").out)
    assert found["validation/f1"] == pytest.approx(f1_score(gold, said))
    assert found["validation/f1"] != pytest.approx(f1_score(np.array(gold) == 0, ~said)), "else the test could not tell"

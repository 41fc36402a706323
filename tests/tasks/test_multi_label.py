"""Several labels a text: how files may have them, the loss, the thresholds, and what comes out; transformers is the oracle."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from recipe_rows import load
from test_head_parity import packed, random_rows
from test_parity import NO_DROPOUT, TINY, padded

from bertkit.errors import DataError
from bertkit.features import Ragged
from bertkit.metrics.classification import accuracy, macro_f1, micro_f1
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertForSequenceClassification
from bertkit.readers import Examples
from bertkit.tasks import TextClassification, TextClassificationTask
from bertkit.tasks.class_report import describe_classes
from bertkit.tasks.task import Task
from bertkit.tasks.text_classification.label_sets import find_separator, split_sets
from bertkit.tasks.text_classification.targets import AnyOf, best_threshold

TEXTS = ("good movie", "bad film", "great story", "poor plot", "good book", "bad story", "printer", "old phone")
NAMES = (("film", "praise"), ("film",), ("praise",), (), ("praise",), (), ("device",), ("device", "old"))
ALL = ("device", "film", "old", "praise")


def rows_of(*names: Any) -> Examples:
    return Examples({"text": ["a"] * len(names), "label": list(names)}, "my.csv", range(2, 2 + len(names)))


# --- the files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], list[Any]]:
    """A function that writes the rows in a form, and gives the options that name them."""

    def write(form: str) -> list[Any]:
        path = tmp_path / f"my{'.jsonl' if form == 'lists' else '.csv'}"
        with path.open("w", encoding="utf-8", newline="") as file:
            if form == "lists":
                file.writelines(json.dumps({"text": t, "label": list(n)}) + "\n" for t, n in zip(TEXTS, NAMES))
                return ["--train", path, "--validation", path]
            writer = csv.writer(file)
            if form == "columns":
                writer.writerow(["text", *ALL])
                writer.writerows([text, *(int(name in names) for name in ALL)] for text, names in zip(TEXTS, NAMES))
                return ["--train", path, "--validation", path, "--label", ",".join(ALL)]
            writer.writerow(["text", "label"])
            writer.writerows([text, form.join(names)] for text, names in zip(TEXTS, NAMES))
        return ["--train", path, "--validation", path]

    return write


@pytest.mark.parametrize("form", ["lists", "columns", "|", "; ", ", "])
def test_every_form_of_several_labels(write, form: str, run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    data = write(form)
    common = ["--multi-label", "--model", tiny_model_dir, "--output-dir", "run", "--max-steps", 1, "--max-length", 16]
    ran = run_bertkit("finetune", "text-classification", *data, *common)
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["task"]["labels"] == list(ALL)
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["problem_type"] == "multi_label_classification"
    assert set(config["bertkit"]["thresholds"]) == set(ALL) == set(config["id2label"].values())
    ran = run_bertkit("eval", "run", "--output", "out", "--json")
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [tuple(row["gold"]) for row in rows] == list(NAMES)


def task_of(*labels: str, **fitted: Any) -> TextClassificationTask:
    recipe = TextClassification(multi_label=True, metrics=(micro_f1, macro_f1, accuracy))
    return TextClassificationTask(recipe=recipe, labels=labels, **fitted)


@pytest.mark.parametrize(("names", "row"), [((["a"], ["c"]), 3), ((None, ["b"]), 2)], ids=["unknown", "missing"])
def test_what_is_no_label_is_named_by_its_row(names: tuple, row: int) -> None:
    with pytest.raises(DataError) as error:
        task_of("a", "b").examples(rows_of(*names), labelled=True)
    assert error.value.where == f"my.csv:{row}"


def test_lists_of_0_and_1_have_a_place_each(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    marks = [[0, 1, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    path = tmp_path / "my.jsonl"
    path.write_text("".join(json.dumps({"text": f"good {n}", "kinds": its}) + "\n" for n, its in enumerate(marks * 2)))
    typed = ["--train", path, "--validation", path, "--label", "kinds", "--multi-label", "-m", tiny_model_dir, "-o", "run"]
    how = ["--max-length", 16, "--max-steps", 2, "--device", "cpu"]
    ran = run_bertkit("finetune", "text-classification", *typed, *how)
    assert ran.code == 3
    error, hint = ran.err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert error.endswith(f"4 labels ({path})")
    assert "--labels" in hint
    ran = run_bertkit("finetune", "text-classification", *typed, *how, "--labels", ",".join(ALL))
    assert ran.code == 0, ran.err
    ran = run_bertkit("eval", "run", "--output", "out")
    assert ran.code == 0, ran.err
    gold = [json.loads(line)["gold"] for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert gold == [[name for name, mark in zip(ALL, its) if mark] for its in marks * 2]


def test_two_places_are_places_though_no_row_has_both_or_none() -> None:
    rows = Examples({"label": [[1, 0], [0, 1], [0, 1]]}, "my.jsonl", range(3))
    assert split_sets(rows, "label", None, None, ("good", "bad")) == [("good",), ("bad",), ("bad",)]
    with pytest.raises(DataError):
        split_sets(rows, "label", None, None)
    assert split_sets(rows, "label", None, None, ("0", "1", "2"))[0] == ("1", "0"), "0 and 1 are names in training"
    assert split_sets(rows, "label", None, ("good", "bad"))[0] == ("bad", "good"), "the source says that they are numbers"
    places = Examples({"label": [[0, 1, 1], [1, 0, 0]]}, "my.jsonl", range(2))
    assert split_sets(places, "label", None, ("a", "b", "c")) == [("b", "c"), ("a",)], "in a set nothing stands twice"
    assert split_sets(rows, "label", None, None, ("joy", "anger", "fear"))[0] == ("1", "0")


def test_a_table_of_predictions_is_read_back() -> None:
    rows = Examples({"label": ['["a", "b, c"]', "[]", '["d"]', "[sic]"]}, "my.csv", range(4))
    assert find_separator(rows, "label") is None
    assert split_sets(rows, "label", None, None) == [("a", "b, c"), (), ("d",), ("[sic]",)]


def test_a_label_of_one_row_is_held_out_of_what_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "my.csv"
    rows = "".join(f"text {n},{'common' if n % 2 else 'usual'}{f';rare{n}' if n < 10 else ''}\n" for n in range(200))
    path.write_text("text,kinds\n" + rows, encoding="utf-8")
    for seed in range(10):
        recipe = TextClassification(train=str(path), label="kinds", multi_label=True, split_seed=seed)
        held = {name for its in load(recipe, "validation").columns["label"] for name in its}
        assert held == {"common", "usual"}


def test_sets_of_numbers_are_no_places() -> None:
    columns = {"label": [[0, 1], [1], [0]]}
    assert split_sets(Examples(columns, "my.jsonl", range(3)), "label", None, None) == [("0", "1"), ("1",), ("0",)]


def test_a_guessed_separator_is_said(run_bertkit, write, tiny_model_dir: Path) -> None:
    common = ["--multi-label", "--model", tiny_model_dir, "--max-length", 16, "--dry-run", "--device", "cpu"]
    said = "labels in a cell are separated by ',' (--label-separator says otherwise)"
    assert said in run_bertkit("finetune", "text-classification", *write(","), *common).err.splitlines()
    ran = run_bertkit("finetune", "text-classification", *write(","), *common, "--label-separator", ",")
    assert (ran.code, "--label-separator says otherwise" in ran.err) == (0, False)


def test_marks_that_are_neither_0_nor_1(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("text,x,y\ngood,1,0\nbad,2,1\n", encoding="utf-8")
    data = ["--train", "my.csv", "--validation", "my.csv", "--label", "x,y", "--multi-label", "--max-length", 16]
    ran = run_bertkit("finetune", "text-classification", *data, "--model", tiny_model_dir, "--output-dir", "run")
    assert ran.code == 3
    assert "column 'x' holds '2'" in ran.err
    assert ran.err.splitlines()[0].endswith("my.csv:3)")
    assert "my.csv:3" in ran.err


@pytest.mark.parametrize("option", ["--regression", "--class-weights balanced", "--label-smoothing 0.1"])
def test_what_means_nothing_for_several_labels(write, option: str, run_bertkit, tiny_model_dir: Path) -> None:
    common = ["--multi-label", "--model", tiny_model_dir, "--output-dir", "run", "--max-length", 16, *option.split()]
    ran = run_bertkit("finetune", "text-classification", *write("|"), *common)
    assert ran.code == 2
    assert option.split()[0] in ran.err


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
    from sklearn.metrics import f1_score

    predicted, gold = np.random.default_rng(seed).integers(0, 2, (2, 20, 3))
    for average, metric in (("micro", micro_f1), ("macro", macro_f1)):
        assert metric(predicted, gold) == pytest.approx(f1_score(gold, predicted, average=average, zero_division=0))


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_by_trying_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities, gold = rng.integers(0, 10, 30) / 10 + 0.01, rng.integers(0, 2, 30)

    def f1(threshold: float) -> float:
        predicted = probabilities >= threshold
        return 2 * (predicted & (gold == 1)).sum() / max(1, predicted.sum() + gold.sum())

    found = best_threshold(probabilities, gold)
    assert f1(found) == pytest.approx(max(map(f1, np.linspace(0, 1.1, 400))))


def logits_of(probabilities: list[list[float]]) -> np.ndarray:
    return -np.log(1 / np.array(probabilities) - 1)


def test_while_it_trains_scores_are_those_of_the_tuned_thresholds() -> None:
    """Rare labels have probabilities far below one half for long: at one half all evaluations would look alike."""
    truth = [("a",), ("b",), (), ("a", "b")]
    at_half = task_of("a", "b")
    said = at_half._target.decode(logits_of([[0.2, 0.01], [0.1, 0.03], [0.1, 0.01], [0.2, 0.03]]))
    assert at_half.score(said, truth) == {"micro_f1": 0, "macro_f1": 0, "accuracy": 0.25}
    assert at_half.distinct(said) == 1
    tuned = at_half.tuned(said, truth)
    assert tuned.thresholds_tuned() == pytest.approx({"threshold_a": 0.15, "threshold_b": 0.02})
    decided = tuned.decide(said)
    assert tuned.score(decided, truth) == {"micro_f1": 1, "macro_f1": 1, "accuracy": 1}
    assert tuned.distinct(decided) == 4, "its predictions differ"
    config = BertConfig()
    restored = Task.restore(tuned.configure(config))
    assert (restored.labels, restored.thresholds) == (tuned.labels, tuned.thresholds)
    assert [found.value for found in restored.decide(said)] == [found.value for found in decided]


def test_a_model_without_thresholds_is_used_at_one_half(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    model = make_model_dir("BertForSequenceClassification", num_labels=2, problem_type="multi_label_classification")
    rows = [json.dumps({"text": "good movie", "label": ["LABEL_0"]}), json.dumps({"text": "a bad book", "label": []})]
    (tmp_path / "dev.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    typed = ["--recipe", "text-classification", "--validation", "dev.jsonl", "--max-length", 16]
    ran = run_bertkit("eval", model, *typed, "--json")
    assert ran.code == 0, ran.err
    assert not any("threshold" in name for name in json.loads(ran.out))


def test_the_best_step_is_that_of_the_tuned_thresholds(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    """A label of few rows, hardly trained: nothing reaches one half, and yet the evaluations are not alike."""
    rows = [
        {"text": f"{'broken' if at % 12 == 0 else 'good'} phone {at}", "label": ["odd"] * (at % 12 == 0)} for at in range(60)
    ]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = ["--train", "my.jsonl", "--validation", "my.jsonl", "--multi-label", "-m", tiny_model_dir, "-o", "run"]
    how = ["--max-steps", 24, "--eval-steps", 6, "--learning-rate", 1e-3, "--max-length", 16, "--device", "cpu"]
    ran = run_bertkit("finetune", "text-classification", *data, *how)
    assert ran.code == 0, ran.err
    best = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["best"]["scores"]
    assert best["validation/micro_f1"] > 2 * 5 / (5 + 60), "more than to say so of every row"
    assert best["validation/threshold_odd"] < 0.5
    assert "validation/constant_predictions" not in best


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--regression", "--metric", "accuracy"), "the metric accuracy does not score numbers (--regression)"),
        (("--multi-label", "--metric", "f1"), "the metric f1 does not score several labels a text (--multi-label)"),
        (("--multi-label", "--metric", "micro_f1,matthews_correlation"), "the metric matthews_correlation does not score"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_at_once(
    run_bertkit, write, tiny_model_dir: Path, tmp_path: Path, options: tuple[str, ...], what: str
) -> None:
    ran = run_bertkit("finetune", "text-classification", *write("|"), *options, "-m", tiny_model_dir, "-o", "run")
    assert (ran.code, f"error: {what}" in ran.err) == (2, True), ran.err
    assert not (tmp_path / "run").exists()


def test_a_label_that_never_occurs_keeps_one_half() -> None:
    assert best_threshold(np.array([0.2, 0.9]), np.array([0, 0])) == 0.5


def test_thresholds_follow_their_labels_into_another_order() -> None:
    target = AnyOf(("c", "a", "b"), {"a": 0.9, "b": 0.5, "c": 0.1})
    (found,) = target.decode(logits_of([[0.2, 0.8, 0.6]]))
    assert found.value == ["c", "b"]
    assert target.as_array([found.value]).tolist() == [[1, 0, 1]]
    assert target.encode([("a", "c")]).values.tolist() == [1, 1, 0]


# --- a run -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(write, run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> Path:
    common = ["--multi-label", "--model", tiny_model_dir, "--output-dir", "run", "--max-length", 16, "--precision", "fp32"]
    how = ["--num-epochs", 80, "--eval-steps", 80, "--learning-rate", 5e-3, "--batch-size", 8, "--dropout", 0]
    ran = run_bertkit("finetune", "text-classification", *write("|"), *common, *how)
    assert ran.code == 0, ran.err
    return tmp_path / "run"


def test_a_run_learns_and_its_thresholds_stay_with_the_model(run: Path, run_bertkit, tmp_path: Path) -> None:
    best = json.loads((run / "run.json").read_text(encoding="utf-8"))["best"]["scores"]
    assert best["validation/micro_f1"] > 0.9
    ran = run_bertkit("eval", run, "--json", "--intervals")
    scores = json.loads(ran.out)
    for name in ("micro_f1", "macro_f1", "accuracy"):
        assert scores[f"validation/{name}"] == best[f"validation/{name}"], "one name has one value"
    assert not any("threshold" in name for name in scores)
    low, high = scores["intervals"]["validation/micro_f1"]
    assert 0 < low < scores["validation/micro_f1"] < high <= 1
    # The folder alone, without run.json, knows them too.
    (run / "run.json").unlink()
    alone = run_bertkit("eval", run, "--recipe", "text-classification", "--validation", "my.csv", "--max-length", 16, "--json")
    assert json.loads(alone.out)["validation/micro_f1"] == scores["validation/micro_f1"]
    lines = run_bertkit("predict", run, "--max-length", 16, stdin="\n".join(TEXTS).encode() + b"\n").out.splitlines()
    found = [set(json.loads(line)["labels"]) for line in lines]
    right = sum(len(its & set(names)) for its, names in zip(found, NAMES))
    f1 = 2 * right / (sum(map(len, found)) + sum(map(len, NAMES)))
    assert f1 == pytest.approx(scores["validation/micro_f1"])


def test_the_pipeline_gives_the_same_probabilities(run: Path, run_bertkit) -> None:
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(run), top_k=None)
    lines = run_bertkit("predict", run, "--precision", "fp32", stdin="\n".join(TEXTS).encode() + b"\n").out.splitlines()
    for text, line in zip(TEXTS, lines, strict=True):
        theirs = {found["label"]: found["score"] for found in classify([text])[0]}
        assert json.loads(line)["probabilities"] == pytest.approx(theirs, abs=1e-5)

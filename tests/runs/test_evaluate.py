"""The report of eval: classes and calibration against scikit-learn and by hand, the order of labels, errors, intervals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.text import Text
from trained import predictions_of

from bertkit.errors import UsageError
from bertkit.report import Finding, Table
from bertkit.runs.evaluation.evaluate import Evaluated, evaluate_target, report_scores
from bertkit.runs.scoring import Scored
from bertkit.runs.target import open_target
from bertkit.tasks import Prediction, TokenClassification, TokenClassificationTask
from bertkit.tasks.class_report import calibration_error, describe_classes, describe_confusions, label_order_warning
from bertkit.tasks.token_classification.task import Tagged

pytestmark = pytest.mark.all_draws

LABELS = ("a", "b", "c")
RNG = np.random.default_rng(0)
GOLD = RNG.integers(0, 3, 200)
TAKEN = np.where(RNG.random(200) < 0.7, GOLD, RNG.integers(0, 3, 200))


def test_classes_are_scikit_learns() -> None:
    from sklearn.metrics import classification_report

    report = classification_report(GOLD, TAKEN, target_names=LABELS, output_dict=True)
    table = describe_classes(LABELS, TAKEN, GOLD)
    assert [row[0] for row in table.rows] == list(LABELS)
    for label, precision, recall, f1, rows, predicted in table.rows:
        expected = report[label]
        assert [precision, recall, f1, rows] == pytest.approx(
            [expected[name] for name in ("precision", "recall", "f1-score", "support")]
        )
        assert predicted == list(TAKEN).count(LABELS.index(label))


def test_of_many_classes_the_worst_are_shown() -> None:
    names = [f"class {number}" for number in range(50)]
    gold = np.arange(50).repeat(2)
    found = np.where(np.arange(100) < 40, gold, (gold + 1) % 50)
    table = describe_classes(names, found, gold)
    assert len(table.rows) == 30
    assert all(row[3] < 1 for row in table.rows)
    assert "30 of 50" in table.title


def test_classes_without_a_row_come_last() -> None:
    names = [f"class {number}" for number in range(60)]
    gold = np.arange(25).repeat(2)
    found = np.where(np.arange(50) % 2, gold, 50)
    table = describe_classes(names, found, gold)
    assert [row[4] for row in table.rows] == [2] * 25 + [0] * 5
    assert table.title == "by class: the 30 of 60 with the lowest F1, the 35 without rows last"
    assert table.rows[0] == ["class 0", 1.0, 0.5, pytest.approx(2 / 3), 2, 1]


def test_tags_have_a_table_by_tag_or_with_a_scheme_by_type() -> None:
    task = TokenClassificationTask(recipe=TokenClassification(), labels=("NOUN", "VERB", "X"))
    truth = [Tagged(["NOUN", "VERB"]), Tagged(["NOUN", "X", "X"])]
    predictions = [Prediction(["NOUN", "NOUN"]), Prediction(["NOUN", "VERB", "NOUN"])]
    by_tag, confusions, remark = task.report(predictions, truth)
    assert isinstance(by_tag, Table)
    assert by_tag.columns[-2:] == ["words", "predicted"]
    assert by_tag.rows[0] == ["NOUN", 0.5, 1.0, pytest.approx(2 / 3), 2, 4]
    assert by_tag.rows[2] == ["X", 0.0, 0.0, 0.0, 2, 0]
    assert isinstance(confusions, Table)
    assert confusions.rows == [["NOUN", 2, 0, 0], ["VERB", 1, 0, 0], ["X", 1, 1, 0]]
    assert remark == Finding("note", "tags that are never predicted: X")
    scored = Scored({}, {"dev": predictions}, {"dev": truth}, None, task)
    parts = report_scores("title", Evaluated(None, "", scored, {}, {})).parts
    assert parts[0].title == "dev: by tag"
    assert parts[-1].what == "dev: tags that are never predicted: X"
    assert len(task.report([Prediction(each.tags) for each in truth], truth)) == 2
    chunks = TokenClassificationTask(recipe=TokenClassification(), labels=("O", "B-X"), scheme="iob2")
    (by_type,) = chunks.report([Prediction(["O", "B-X"])], [Tagged(["O", "O"])])
    assert isinstance(by_type, Table)
    assert (by_type.title, by_type.rows) == ("by type", [["X", 0.0, 0.0, 0.0, 0, 1, 0, 0, 0, 0, 1]])
    assert chunks.report([Prediction(["O", "O"])], [Tagged(["O", "O"])]) == []


def test_confusions_by_hand() -> None:
    matrix = describe_confusions(("x", "y"), np.array([0, 1, 1, 1]), np.array([0, 0, 0, 1]))
    assert matrix.rows == [["x", 1, 2], ["y", 0, 1]]
    names = [f"n{number}" for number in range(20)]
    commonest = describe_confusions(names, np.array([3, 3, 3, 5, 7]), np.array([4, 4, 4, 6, 7]))
    assert commonest.rows == [["n4", "n3", 3], ["n6", "n5", 1]]


def test_calibration_by_hand() -> None:
    # Two bins of fifteen: 0.9 and 0.95 lie in 13 and 14 (0.867 to 0.933, and above).
    probability, right = np.array([0.9, 0.9, 0.95, 1.0]), np.array([True, False, True, True])
    assert calibration_error(probability, right) == pytest.approx((2 * abs(0.9 - 0.5) + 2 * abs(0.975 - 1.0)) / 4)
    assert calibration_error(np.array([1.0, 1.0]), np.array([True, True])) == 0.0


def test_another_order_of_labels_is_found_and_chance_is_not() -> None:
    moved, names = (TAKEN + 1) % 3, ("a", "b", "c")
    said = label_order_warning(names, moved, GOLD, ("c", "a", "b"))
    # What is called a should be called c, b a, and c b; the model's outputs are c, a and b.
    assert 'with "id2label": {"0": "b", "1": "c", "2": "a"} in its config.json' in said
    assert f"accuracy {(moved == GOLD).mean():.3f} as they are named, {(TAKEN == GOLD).mean():.3f} with" in said
    assert label_order_warning(names, TAKEN, GOLD, names) is None
    assert label_order_warning(names, RNG.integers(0, 3, 200), GOLD, names) is None
    assert label_order_warning(("a", "b"), [1, 0, 1], [0, 1, 0], ("a", "b")) is None, "three rows prove nothing"


def test_tags_of_a_model_without_names_are_told() -> None:
    tags = [(["O", "B-X", "I-X", "O"] * 10)] * 5
    own = {"O": "LABEL_2", "B-X": "LABEL_0", "I-X": "LABEL_1"}
    names = ("LABEL_0", "LABEL_1", "LABEL_2")
    task = TokenClassificationTask(recipe=TokenClassification(), labels=names)
    predictions = [Prediction([own[tag] for tag in sentence]) for sentence in tags]
    said = task.label_order_warning(predictions, [Tagged(sentence) for sentence in tags])
    assert "accuracy 0.000 as they are named, 1.000 with" in said
    assert '{"0": "B-X", "1": "I-X", "2": "O"}' in said
    same = TokenClassificationTask(recipe=TokenClassification(), labels=("O", "B-X", "I-X"), scheme="iob2")
    assert same.label_order_warning([Prediction(row) for row in tags], [Tagged(row) for row in tags]) is None


# --- the report ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertForSequenceClassification", seed=5, num_labels=2, initializer_range=0.5)


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose labels are the contrary of what the model predicts, but for every tenth row."""
    words, rng = "good bad movie book old new one two three city river bank play run walk".split(), np.random.default_rng(2)
    folder = tmp_path_factory.mktemp("data")
    texts = [" ".join(rng.choice(words, 6)) for _ in range(100)]
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    predictions = predictions_of(open_target(str(model), None, {"max_length": 32}, to_predict=True), str(folder / "texts.txt"))
    numbers = [int(found.value[-1]) for found in predictions]
    assert 25 < sum(numbers) < 75, "nearly all predictions are the same"
    names = [("no", "yes")[number if row % 10 == 0 else 1 - number] for row, number in enumerate(numbers)]
    lines = [f"{text},{name}" for text, name in zip(texts, names, strict=True)]
    (folder / "dev.csv").write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return folder / "dev.csv"


def evaluate(model: Path, data: Path) -> Evaluated:
    options = {"validation": str(data), "labels": "no,yes", "max_length": 32}
    return evaluate_target(open_target(str(model), "text-classification", options))


def test_training_rows_are_no_substitute_for_rows_to_evaluate_on(model: Path, data: Path) -> None:
    target = open_target(str(model), "text-classification", {"validation": str(data), "labels": "no,yes"})
    recipe = replace(target.task.recipe, validation=None, data=str(data.parent), eval_splits=())
    with pytest.raises(UsageError, match="no split to evaluate on"):
        evaluate_target(target.with_recipe(recipe))


def test_a_model_with_unnamed_labels_in_another_order(model: Path, data: Path, tmp_path: Path) -> None:
    found = report_scores("title", evaluate(model, data))
    accuracy = found.json["validation/accuracy"]
    assert accuracy == pytest.approx(0.1)  # as it is named, not as it would be best
    (warning,) = [part.what for part in found.parts if isinstance(part, Finding)]
    assert f"accuracy {accuracy:.3f} as they are named, {1 - accuracy:.3f} with" in warning
    # What the line says to do works.
    names = json.loads(warning.partition('"id2label": ')[2].partition(" in its")[0])
    shutil.copytree(model, tmp_path / "renamed")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config |= {"id2label": names, "label2id": {name: int(number) for number, name in names.items()}}
    (tmp_path / "renamed" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = report_scores("title", evaluate(tmp_path / "renamed", data))
    assert found.json["validation/accuracy"] == pytest.approx(1 - accuracy)
    assert not [part for part in found.parts if isinstance(part, Finding)]


def test_worst_errors_intervals_and_published_scores(model: Path, data: Path) -> None:
    evaluated = evaluate(model, data)
    scored = evaluated.scored
    task = replace(scored.task, recipe=replace(scored.task.recipe, reference={"them": {"validation/accuracy": 90.0}}))
    published = evaluated._replace(scored=scored._replace(task=task), trained_from="a/folder/of/them")
    found = report_scores("title", published, errors=3, intervals=True)
    rows = list(zip(scored.predictions["validation"], scored.truth["validation"], strict=True))
    names = scored.task.labels
    # The less probable the right label, the worse the error.
    probability = {row: each.probabilities[names.index(label)] for row, (each, label) in enumerate(rows) if each.value != label}
    worst = sorted(probability, key=lambda row: probability[row])[:3]
    shown = [str(part) for part in found.parts if isinstance(part, Text)]
    assert [line.partition(": expected ")[0] for line in shown] == [f"{data}:{row + 2}" for row in worst]
    (note,) = [part.what for part in found.parts if isinstance(part, Finding) and part.what.startswith("validation: the worst")]
    assert f"3 of {len(probability)} errors" in note
    for prediction, _ in rows:
        assert sum(prediction.probabilities) == pytest.approx(1)
        assert prediction.probability == max(prediction.probabilities)
    low, high = found.json["intervals"]["validation/accuracy"]
    half = 1.96 * (0.1 * 0.9 / 100) ** 0.5
    assert (low, high) == pytest.approx((0.1 - half, 0.1 + half), abs=0.02)
    *tables, scores = [part for part in found.parts if isinstance(part, Table)]
    own = scored.task.report(scored.predictions["validation"], scored.truth["validation"])
    assert [(table.title, table.rows) for table in tables] == [(f"validation: {table.title}", table.rows) for table in own]
    assert scores.columns == ["score", "value", "95% interval", "published, a/folder/of/them"]
    accuracy = scored.scores["validation/accuracy"]
    assert scores.rows[0] == ["validation/accuracy", accuracy, f"{low:.4f} to {high:.4f}", 0.9]
    assert "intervals" not in report_scores("title", evaluated).json


def test_a_hundred_thousand_labels_need_no_matrix() -> None:
    count = 100_000  # whose confusion matrix would be of 80 GB, and whose best order would take days
    names, numbers = [f"label {number}" for number in range(count)], np.arange(500)
    shown = describe_confusions(names, np.concatenate([numbers + 1, [7, 7]]), np.concatenate([numbers, [3, 3]]))
    assert shown.rows[0] == ["label 3", "label 7", 2]
    assert len(shown.rows) == 10
    assert label_order_warning(names, numbers + 1, numbers, names) is None

"""What eval says beside the scores: classes and calibration against scikit-learn and by hand, doubts, errors, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bertkit.tasks import Prediction, TokenClassification, TokenClassificationTask
from bertkit.tasks.class_report import calibration_error, describe_classes, describe_confusions, warn_of_label_order
from bertkit.tasks.token_classification.task import Tagged

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
    said = warn_of_label_order(names, moved, GOLD, ("c", "a", "b"))
    # What is called a should be called c, b a, and c b; the model's outputs are c, a and b.
    assert 'with "id2label": {"0": "b", "1": "c", "2": "a"} in its config.json' in said
    assert f"accuracy {(moved == GOLD).mean():.3f} as they are named, {(TAKEN == GOLD).mean():.3f} with" in said
    assert warn_of_label_order(names, TAKEN, GOLD, names) is None
    assert warn_of_label_order(names, RNG.integers(0, 3, 200), GOLD, names) is None
    assert warn_of_label_order(("a", "b"), [1, 0, 1], [0, 1, 0], ("a", "b")) is None, "three rows prove nothing"


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


# --- the command -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertForSequenceClassification", seed=5, num_labels=2, initializer_range=0.5)


@pytest.fixture
def data(tmp_path: Path, model: Path) -> Path:
    """A file whose labels are the contrary of what the model says of each text, but for every tenth."""
    from transformers import pipeline

    words = "good bad movie book old new one two three city river bank play run walk".split()
    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice(words, 6)) for _ in range(400)]
    said = [int(found["label"][-1]) for found in pipeline("text-classification", model=str(model))(texts)]
    assert 100 < sum(said) < 300, "the model says one thing of nearly all"
    lines = [
        f"{text},{('no', 'yes')[number if at % 10 == 0 else 1 - number]}" for at, (text, number) in enumerate(zip(texts, said))
    ]
    (tmp_path / "dev.csv").write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "dev.csv"


def evaluate(run_bertkit, model: Path, *options: object):
    how = ["--recipe", "text-classification", "--validation", "dev.csv", "--labels", "no,yes", "--max-length", 32]
    ran = run_bertkit("eval", model, *how, "--json", *options)
    assert ran.code == 0, ran.err
    return ran


def test_a_model_with_unnamed_labels_in_another_order(run_bertkit, model: Path, data: Path) -> None:
    ran = evaluate(run_bertkit, model)
    scores = json.loads(ran.out)
    assert scores["validation/accuracy"] == pytest.approx(0.1, abs=0.02)  # as it is named, not as it would be best
    (said,) = [line for line in ran.err.splitlines() if "another order" in line]
    assert (
        f"accuracy {scores['validation/accuracy']:.3f} as they are named, {1 - scores['validation/accuracy']:.3f} with" in said
    )
    # What the line says to do works.
    names = json.loads(said.partition('"id2label": ')[2].partition(" in its")[0])
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    renamed = model.parent / "renamed"
    renamed.mkdir()
    for file in model.iterdir():
        (renamed / file.name).write_bytes(file.read_bytes())
    config |= {"id2label": names, "label2id": {name: int(number) for number, name in names.items()}}
    (renamed / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = evaluate(run_bertkit, renamed)
    assert json.loads(ran.out)["validation/accuracy"] == pytest.approx(1 - scores["validation/accuracy"])
    assert "another order" not in ran.err


def test_the_worst_errors_and_the_probabilities(run_bertkit, model: Path, data: Path, tmp_path: Path) -> None:
    ran = evaluate(run_bertkit, model, "--errors", 3, "--output", "out", "--intervals")
    rows = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    wrong = {at: row["probabilities"][row["gold"]] for at, row in enumerate(rows) if row["label"] != row["gold"]}
    worst = sorted(wrong, key=lambda at: wrong[at])[:3]
    shown = [line for line in ran.err.splitlines() if ": expected " in line]
    assert [int(line.partition("dev.csv:")[2].partition(":")[0]) for line in shown] == [at + 2 for at in worst]
    assert f"the worst 3 of {len(wrong)} errors" in ran.err
    for row in rows:
        assert sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["probability"] == max(row["probabilities"].values())
    low, high = json.loads(ran.out)["intervals"]["validation/accuracy"]
    assert low <= json.loads(ran.out)["validation/accuracy"] <= high
    assert 0.02 < high - low < 0.1
    for title in ("by class", "confusion matrix", "calibration", "95% interval"):
        assert title in ran.err, title


def test_intervals_are_there_when_they_are_asked_for(run_bertkit, model: Path, data: Path) -> None:
    ran = evaluate(run_bertkit, model)
    assert "intervals" not in json.loads(ran.out)
    assert "95% interval" not in ran.err

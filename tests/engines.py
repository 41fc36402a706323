"""Shared by tests of engines: the engines, a tiny model and rows for each family, and one process's predictions for them."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import bertkit
from bertkit.tasks.presentation import Prediction

COUNT = 150  # rows
WORDS = "the good bad movie was a great poor story you like [MASK]".split()
FP32 = ("cpu", "fp32")
MARKS = [
    pytest.mark.engines,
    pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning:ray.data.context"),  # Ray's own defaults
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@contextmanager
def ray_cluster() -> Iterator[Any]:
    """Two CPUs for actors, and one to read the data; in a folder of a short name, as the names of sockets are."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-") as folder:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it leaves a token in the user's home
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def spark_session() -> Iterator[Any]:
    """Two tasks at a time, in batches of 16 rows."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="spark-") as folder:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": folder,
            "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
            "spark.sql.warehouse.dir": folder,
            "spark.ui.enabled": "false",
        }
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            yield session
        finally:
            session.stop()


class Case(NamedTuple):
    """architecture, config: of the model. row: what the model reads of a row, whose words are given. read: a predicted value
    and probabilities from the columns of a row.
    """

    architecture: str
    config: dict[str, Any]
    row: Callable[[list[str]], dict[str, Any]]
    read: Callable[[Mapping[str, Any]], tuple[Any, list[float]]]


def text_of(words: list[str]) -> dict[str, Any]:
    return {"text": " ".join(words)}


ABC, TAGS = ("a", "b", "c"), ("O", "B-X", "I-X")
CASES = {
    "classes": Case(
        "BertForSequenceClassification", {"labels": ABC}, text_of, lambda row: (row["label"], [row["probability"]])
    ),
    "labels": Case(
        "BertForSequenceClassification",
        {"labels": ABC, "problem_type": "multi_label_classification"},
        text_of,
        lambda row: (row["labels"], [dict(row["probabilities"])[label] for label in ABC]),
    ),
    "number": Case(
        "BertForSequenceClassification",
        {"num_labels": 1, "problem_type": "regression"},
        lambda words: text_of(words) | {"text_pair": words[0]},
        lambda row: (None, [row["prediction"]]),
    ),
    "tags": Case(
        "BertForTokenClassification",
        {"labels": TAGS},
        lambda words: {"tokens": words},
        lambda row: (row["tags"], row["probabilities"]),
    ),
    "answers": Case(
        "BertForQuestionAnswering",
        {},
        lambda words: {"question": words[0], "context": " ".join(words[1:])},  # now and then an empty one
        lambda row: ((row["answer"], row["start"], row["end"]), [row["probability"]]),
    ),
    "choices": Case(
        "BertForMultipleChoice",
        {},
        lambda words: {"context": words[0], "choices": [*dict.fromkeys([words[-1], "no", *words[:2]])]},
        lambda row: ((row["choice"], row["answer"]), row["probabilities"]),
    ),
    "masks": Case(
        "BertForMaskedLM",
        {},
        text_of,
        lambda row: (
            [[fill["token"] for fill in mask] for mask in row["fills"]],
            [fill["probability"] for mask in row["fills"] for fill in mask],
        ),
    ),
}


def model_of(case: Case, make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir(case.architecture, seed=4, initializer_range=0.5, **case.config)


def rows_of(case: Case) -> list[dict[str, Any]]:
    """Rows of many lengths, each with an id, beyond the whole numbers that a float holds, a label that is not the model's, and
    a column with gaps.
    """
    rng = random.Random(0)
    rows = [case.row(rng.choices(WORDS, k=rng.choice((1, 3, 9, 30)))) for _ in range(COUNT)]
    ids = rng.sample(range(2**53, 2**53 + 10 * COUNT), COUNT)
    return [
        {"id": number, **row, "label": f"gold {number}", "gap": None if number % 3 else number}
        for number, row in zip(ids, rows)
    ]


def expected(case: Case, prediction: Prediction) -> tuple[Any, list[float]]:
    """What `Case.read` should find, from `predict`."""
    value, details = prediction.value, prediction.details
    if case is CASES["number"]:
        return None, [value]
    if case is CASES["answers"]:
        return (value, details["start"], details["end"]), [prediction.probability]
    if case is CASES["masks"]:
        return case.read(details)
    if case is CASES["classes"]:
        return value, [prediction.probability]
    return (value, details["answer"]) if case is CASES["choices"] else value, [*prediction.probabilities]


def assert_predicted(case: Case, model: Path, found: Iterable[Mapping[str, Any]]) -> None:
    """Every row is there once, as it was, with the decision of one process and its probabilities."""
    rows = rows_of(case)
    by_id = {row["id"]: row for row in found}
    assert sorted(by_id) == sorted(row["id"] for row in rows)
    said = bertkit.load(model, *FP32).predict(rows)
    decisions = set()
    for row, prediction in zip(rows, said):
        own = by_id[row["id"]]
        gold = "input_label" if case is CASES["classes"] else "label"
        assert {name: own[gold if name == "label" else name] for name in row} == row
        (value, probabilities), (right, exact) = case.read(own), expected(case, prediction)
        assert value == right
        assert probabilities == pytest.approx(exact, abs=1e-5)
        decisions.add(repr(value))
    assert len(decisions) > 1 or case is CASES["number"]

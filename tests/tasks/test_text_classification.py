"""The family on real data, from file to scores: rows as published, metrics as scikit-learn and scipy have them."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recipe_rows import load
from sklearn.utils.class_weight import compute_class_weight

from bertkit.config import filled
from bertkit.errors import DataError, UsageError
from bertkit.features import Features, Ragged
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertForSequenceClassification
from bertkit.readers import Examples
from bertkit.runs.scoring import published_scores
from bertkit.tasks import TextClassification, TextClassificationTask
from bertkit.tasks.baselines import BAG_OF_WORDS, MAJORITY
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import micro_batches_for_rank

FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "rte": "RTE", "qqp": "QQP", "wnli": "WNLI"}

# Rows and classes by split, as published; None: a split without labels.
ROWS: dict[str, dict[str, tuple[int, dict[str, int] | None]]] = {
    "cola": {"train": (8551, {"1": 6023, "0": 2528}), "validation": (1043, {"1": 721, "0": 322}), "test": (1063, None)},
    "sst2": {"train": (67349, {"1": 37569, "0": 29780}), "validation": (872, {"1": 444, "0": 428}), "test": (1821, None)},
    "mrpc": {"train": (3668, {"1": 2474, "0": 1194}), "validation": (408, {"1": 279, "0": 129}), "test": (1725, None)},
    "stsb": {"train": (5749, None), "validation": (1500, None), "test": (1379, None)},
    "rte": {
        "train": (2490, {"entailment": 1249, "not_entailment": 1241}),
        "validation": (277, {"entailment": 146, "not_entailment": 131}),
        "test": (3000, None),
    },
    "wnli": {"train": (635, {"0": 323, "1": 312}), "validation": (71, {"0": 40, "1": 31}), "test": (146, None)},
    # 23,496 rows of it
    "qqp": {"train": (20000, {"0": 12577, "1": 7423}), "validation": (3496, {"0": 2172, "1": 1324})},
    "qnli": {"validation": (5463, {"entailment": 2702, "not_entailment": 2761}), "test": (5463, None)},
    "ax": {"test": (1104, {"entailment": 460, "neutral": 386, "contradiction": 258})},
}


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    """An encoder whose output differs from text to text, so that a fresh head says more than one thing."""
    return make_model_dir("BertModel", seed=21, initializer_range=0.5)


def rows_of(path: Path, columns: tuple[str, ...] | None = None) -> list[dict[str, str]]:
    """A tab-separated file, read without any of ours."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    lines = [line.split("\t") for line in text.replace("\r\n", "\n").rstrip("\n").split("\n")]
    if columns is None:
        columns, lines = tuple(lines[0]), lines[1:]
    return [dict(zip(columns, line, strict=True)) for line in lines]


def finetune(run_bertkit, recipe: str, model: Path, *data: Any) -> dict[str, Any]:
    settings = "--max-steps 2 --batch-size 16 --max-length 32 --precision fp32 --device cpu --no-baselines".split()
    ran = run_bertkit("finetune", recipe, *data, "-m", model, "-o", "run", *settings)
    assert ran.code == 0, ran.err
    return json.loads(Path("run/run.json").read_text(encoding="utf-8"))


def predictions(run_bertkit, *arguments: Any, key: str = "label") -> list[Any]:
    ran = run_bertkit("predict", *arguments)
    assert ran.code == 0, ran.err
    return [json.loads(line)[key] for line in ran.out.splitlines()]


# --- GLUE ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_of_the_source(data_dir: Path, name: str) -> None:
    folder = FOLDERS.get(name) or {"qnli": "QNLI", "ax": "diagnostic"}[name]
    recipe = load_recipe(name).overridden({"data": str(data_dir / "GLUE" / folder)})
    for split, (rows, labels) in ROWS[name].items():
        examples = load(recipe, split, labelled=labels is not None)
        assert len(examples) == rows, split
        if labels is not None:
            assert Counter(map(str, examples.columns["label"])) == labels, split
        assert all(isinstance(text, str) for text in examples.columns["text"])
        assert ("text_pair" in examples.columns) == (name not in ("cola", "sst2"))
    if name == "stsb":
        for split, mean in (("train", 2.701), ("validation", 2.364)):
            assert np.mean([float(score) for score in load(recipe, split).columns["label"]]) == pytest.approx(mean, abs=5e-4)


def test_qqp_as_glue_publishes_it(tmp_path: Path) -> None:
    """Questions broken over two lines, and pairs that lack one: rows of the first are left out, those of the second stay."""
    header = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    rows = [[str(number), "1", "2", f"question {number}?", "" if number == 7 else "another?", "0"] for number in range(3000)]
    lines = ["\t".join(row) for row in (header, *rows)]
    lines[5:5] = ["9000\t1\t2\tWas it", "so?\tor not?\t0"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("\n".join(lines[:10]) + "\n", encoding="utf-8")
    recipe = load_recipe("qqp").overridden({"data": str(tmp_path)})
    columns = load(recipe).columns
    assert (columns["text"], columns["text_pair"]) == ([row[3] for row in rows], [row[4] for row in rows])
    own = load_recipe("qqp").overridden({"train": str(tmp_path / "train.tsv"), "validation": "10%"})
    for refused, split, file in ((recipe, "validation", "dev.tsv"), (own, "train", "train.tsv")):
        with pytest.raises(DataError) as error:  # too many to be those of GLUE; a file of one's own can be mended
            load(refused, split)
        assert error.value.where == f"{tmp_path / file}:6"


def test_labels_are_those_of_all_rows_though_few_are_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text("text,label\n" + "".join(f"text {at},kind{at % 20:02}\n" for at in range(200)), encoding="utf-8")
    recipe = TextClassification(train=str(path), max_train_samples=5).resolved()
    rows, training_rows = read_splits(recipe)
    assert len(rows["train"]) == 5
    assert Task.fit(recipe, training_rows).labels == tuple(f"kind{at:02}" for at in range(20))


def test_a_held_out_share_is_reported_where_it_is_not_what_was_asked_for(run_bertkit, tiny_model_dir, tmp_path: Path) -> None:
    def said(rows: list[str]) -> str:
        (tmp_path / "my.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
        data = ("--train", "my.csv", "--validation", "10%", "--max-length", 16, "--max-steps", 1)
        ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run", "--overwrite")
        assert ran.code == 0, ran.err
        return " ".join(ran.err.split())

    plain = [f"text {at},{'ab'[at % 2]}" for at in range(100)]
    found = said([*plain, "x,A", "y,A"])
    assert "held out: " not in found.replace("held out: no row has the label A;", "")
    assert "'A', 'a'" in found  # which differ only in case
    found = said([*plain, *["thanks,auto"] * 60, *["bye,auto"] * 60, *["buy now,spam"] * 30])
    assert "held out: 28% of the rows instead of 10%, because rows with the same text stay together" in found
    assert "held out: no row has the label spam; the scores do not cover it" in found
    found = said([f"text {at},kind{at % 15}" for at in range(105)])
    assert "held out: 14% of the rows instead of 10%, because at least one row of each label is held out" in found


def test_evaluated_texts_that_are_trained_on_are_reported(run_bertkit, tiny_model_dir, tmp_path: Path) -> None:
    def said(dev: list[str], task: str = "text-classification") -> str:
        (tmp_path / "dev.csv").write_text("\n".join(["text,label", *dev]), encoding="utf-8")
        data = ("--train", "train.csv", "--validation", "dev.csv", "--max-length", 16, "--max-steps", 1)
        ran = run_bertkit("finetune", task, *data, "-m", tiny_model_dir, "-o", "run", "--overwrite")
        assert ran.code == 0, ran.err
        return " ".join(ran.err.split())

    rows = [f"text {at},{'ab'[at % 2]}" for at in range(30)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    assert "also in" not in said(["y,a", "text 31,b"])
    found = said(["TEXT  3,b", "text 3,a", "x,a"])  # case, white space and labels do not matter
    places = f"({tmp_path / 'dev.csv'}:2, {tmp_path / 'dev.csv'}:3)"
    assert f"warning: validation: 2 of 3 rows also in train, 1 of them with another label {places}" in found
    found = said(["text 3,b", *(f"another {at},a" for at in range(99))])
    assert " validation: 1 of 100 rows also in train (" in found
    assert "warning: validation: 1 of" not in found


def test_copies_of_training_rows_are_reported_in_each_evaluated_split(run_bertkit, tiny_model_dir, tmp_path: Path) -> None:
    names = {"train": "train", "validation_matched": "dev_matched", "validation_mismatched": "dev_mismatched"}
    for split, file in names.items():
        first = "one" if split != "validation_matched" else "another"
        lines = [f"{first} {at},two,{('entailment', 'neutral', 'contradiction')[at % 3]}" for at in range(6)]
        (tmp_path / f"{file}.csv").write_text("\n".join(["premise,hypothesis,label", *lines]), encoding="utf-8")
    how = ("--data", ".", "--max-length", 16, "--max-steps", 1, "-m", tiny_model_dir, "-o", "run")
    ran = run_bertkit("finetune", "mnli", *how)
    assert ran.code == 0, ran.err
    said = [line for line in " ".join(ran.err.split()).split("warning: ") if "also in" in line]
    assert ["validation_mismatched: 6 of 6 rows also in train (" in line for line in said] == [True], ran.err


def test_a_vocabulary_of_another_language_is_reported(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "zh.csv").write_text("text,label\n好看 的 书,a\n不 好看,b\n", encoding="utf-8")
    data = ("--train", "zh.csv", "--validation", "zh.csv", "--max-length", 16, "--max-steps", 1)
    ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    assert "[UNK]" in ran.err


def test_pairs_need_a_model_of_two_segments(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    model = make_model_dir("BertForSequenceClassification", type_vocab_size=1)
    (tmp_path / "pairs.csv").write_text("text,text_pair,label\na,b,LABEL_0\nc,d,LABEL_1\n", encoding="utf-8")
    data = ("--validation", "pairs.csv", "--max-length", 16)
    train = ("finetune", "text-classification", "--train", "pairs.csv", *data, "-m", model, "-o", "run", "--max-steps", 1)
    how = ("--recipe", "text-classification", "--text-pair", "text_pair")
    for command in (train, ("eval", model, *how, *data), ("predict", model, "pairs.csv", *how, "--max-length", 16)):
        ran = run_bertkit(*command)
        assert (ran.code, "type_vocab_size is 1" in ran.err) == (4, True), ran.err
    assert run_bertkit(*train, "--text", "text").code == 0, "one text has one segment"


def sliced(source: Path, target: Path, rows: int) -> Path:
    """The first rows of a file, unpacked."""
    data = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(b"".join(data.splitlines(keepends=True)[: rows + 1]))
    return target


# By recipe the column of the label in the dev file, and the names of its values.
GLUE: dict[str, tuple[str, dict[str, str]]] = {
    "cola": ("label", {"0": "unacceptable", "1": "acceptable"}),
    "sst2": ("label", {"0": "negative", "1": "positive"}),
    "mrpc": ("Quality", {"0": "not_equivalent", "1": "equivalent"}),
    "stsb": ("score", {}),
    "rte": ("label", {"entailment": "entailment", "not_entailment": "not_entailment"}),
    "qqp": ("is_duplicate", {"0": "not_duplicate", "1": "duplicate"}),
    "wnli": ("label", {"0": "not_entailment", "1": "entailment"}),
}


@pytest.mark.parametrize("name", GLUE)
def test_glue_from_files_to_scores(run_bertkit, data_dir: Path, model: Path, tmp_path: Path, name: str) -> None:
    from scipy import stats
    from sklearn import metrics

    column, names = GLUE[name]
    for split in ("train", "dev"):
        (source,) = (data_dir / "GLUE" / FOLDERS[name]).glob(f"{split}.tsv*")
        dev = sliced(source, tmp_path / "data" / f"{split}.tsv", 200)
    run = finetune(run_bertkit, name, model, "--data", "data")
    found = run["best"]["scores"]
    assert run["total_steps"] == run["last"]["step"] == 2
    columns = ("source", "label", "mark", "sentence") if name == "cola" else None  # cola's file has no header
    gold = [row[column] for row in rows_of(dev, columns)]
    options = {"cola": ("--columns", "source,label,mark,sentence"), "mrpc": ("--text", "#1 String", "--text-pair", "#2 String")}
    said = predictions(run_bertkit, "run", dev, *options.get(name, ()), key="prediction" if name == "stsb" else "label")
    assert len(said) == run["data"]["validation"]["rows"]
    assert len(set(said)) > 1, "constant predictions would hide mistakes"
    if name == "stsb":
        numbers = [float(score) for score in gold]
        expected = {"pearson": stats.pearsonr(said, numbers).statistic, "spearmanr": stats.spearmanr(said, numbers).statistic}
        expected["loss"] = metrics.mean_squared_error(numbers, said)
    else:
        labels = [names[label] for label in gold]
        expected = {"accuracy": metrics.accuracy_score(labels, said)}
        if name == "cola":
            expected = {"matthews_correlation": metrics.matthews_corrcoef(labels, said)}
        if name in ("mrpc", "qqp"):
            expected["f1"] = metrics.f1_score(labels, said, pos_label=names["1"])
    for metric, value in expected.items():
        assert found[f"validation/{metric}"] == pytest.approx(value, rel=1e-6, abs=1e-6), metric
    assert json.loads(run_bertkit("eval", "run", "--json").out) == pytest.approx(found, rel=1e-6, abs=1e-5)


def test_lingnli_to_mnli(run_bertkit, data_dir: Path, model: Path, tmp_path: Path) -> None:
    """Trained on one set, evaluated on another in another format and order of columns."""
    files = {split: data_dir / "LingNLI" / f"{name}.jsonl.gz" for split, name in (("train", "train"), ("validation", "val"))}
    whole = load_recipe("mnli").overridden({split: str(file) for split, file in files.items()})
    assert [len(load(whole, split)) for split in files] == [14996, 2425]
    train, dev = (sliced(file, tmp_path / f"{split}.jsonl", 200) for split, file in files.items())
    run = finetune(run_bertkit, "mnli", model, "--train", train, "--validation", dev)
    assert list(run["best"]["scores"]) == ["validation/accuracy", "validation/loss"]
    for split in ("matched", "mismatched"):
        columns = ("label", "premise", "hypothesis")
        path = sliced(data_dir / "MNLI-1k" / f"mnli_{split}.tsv", tmp_path / f"{split}.tsv", 200)
        options = ("--columns", ",".join(columns))
        ran = run_bertkit("eval", "run", "--validation", path, *options, "--json")
        assert ran.code == 0, ran.err
        gold = [row["label"] for row in rows_of(path, columns)]
        said = predictions(run_bertkit, "run", path, *options)
        assert len(set(said)) > 1
        assert json.loads(ran.out)["validation/accuracy"] == np.mean(np.array(said) == gold)

    from sklearn.metrics import matthews_corrcoef

    path = sliced(data_dir / "GLUE" / "diagnostic" / "diagnostic-full.tsv.gz", tmp_path / "ax" / "diagnostic-full.tsv", 300)
    ran = run_bertkit("eval", "run", "--recipe", "ax", "--data", "ax", "--max-length", 32, "--precision", "fp32", "--json")
    assert ran.code == 0, ran.err
    said = predictions(run_bertkit, "run", path, "--text", "Premise", "--text-pair", "Hypothesis")
    expected = matthews_corrcoef([row["Label"] for row in rows_of(path)], said)
    assert json.loads(ran.out)["test/matthews_correlation"] == pytest.approx(expected, abs=1e-9)


def test_a_spam_file_without_header_dev_set_or_names(run_bertkit, data_dir: Path, model: Path, tmp_path: Path) -> None:
    path = sliced(data_dir / "SMSSpam" / "SMSSpamCollection.gz", tmp_path / "spam.txt", 400)
    run = finetune(run_bertkit, "text-classification", model, "--train", path, "--columns", "label,text", "--validation", "10%")
    assert run["task"]["labels"] == ["ham", "spam"]
    rows = [run["data"][split]["rows"] for split in ("train", "validation")]
    assert sum(rows) == 401
    assert 0.09 < rows[1] / 401 < 0.11
    # Predictions for the whole file as it stands.
    said = predictions(run_bertkit, "run", path, "--columns", "label,text")
    assert set(said) <= {"ham", "spam"}
    ran = run_bertkit("predict", "run", path, "--columns", "label,text", "--output", "out.csv")
    assert ran.code == 0, ran.err
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["label"] for row in written] == said
    assert [row["text"] for row in written] == [row["text"] for row in rows_of(path, ("label", "text"))]


# --- the family's own parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "options", "columns"),
    [
        (
            *("id,question,kind\n7,Where?,a\n8,Who?,b\n", {"text": "question", "label": "kind"}),
            {"text": ["Where?", "Who?"], "label": ["a", "b"]},
        ),
        ("id,Sentence 1,sentence_2,gold_label\n7,x,y,a\n", {}, {"text": ["x"], "text_pair": ["y"], "label": ["a"]}),
        ("sentence1,sentence2,label\nx,y,a\n", {"text": "sentence2"}, {"text": ["y"], "label": ["a"]}),  # one text is no pair
        ("text,label\n7,a\n1.5,b\n", {}, {"text": ["7", "1.5"], "label": ["a", "b"]}),
    ],
)
def test_standard_columns_whatever_they_are_called(tmp_path: Path, content: str, options: dict, columns: dict) -> None:
    (tmp_path / "rows.csv").write_text(content, encoding="utf-8")
    file = str(tmp_path / "rows.csv")
    assert load(TextClassification(train=file, validation=file, **options)).columns == columns


def rows_in(**columns: list[Any]) -> Examples:
    return Examples(columns, "rows.csv", range(2, 2 + len(next(iter(columns.values())))))


def test_columns_found_are_reported_and_stay_with_the_model() -> None:
    reviews = rows_in(review=["good", "bad"], stars=["1", "2"])
    assert len(Task.fit(TextClassification(), reviews).remarks.notes) == 1
    assert Task.fit(TextClassification(text="review", label="stars"), reviews).remarks.notes == ()
    pairs = rows_in(sentence1=["good", "bad"], sentence2=["x", "y"], label=["a", "b"])
    restored = Task.restore(Task.fit(TextClassification(), pairs).configure(BertConfig()))
    assert restored.examples(pairs, labelled=True).columns["text_pair"] == ["x", "y"]
    with pytest.raises(DataError) as raised:  # a model of pairs takes no single texts
        restored.examples(rows_in(text=["one text"]), labelled=False)
    assert raised.value.where == "rows.csv"


@pytest.mark.parametrize(
    ("columns", "options", "where"),
    [
        ({"a": ["x"], "b": ["y"]}, {}, "rows.csv"),
        ({"text": ["x"], "b": ["y"]}, {}, "rows.csv"),
        ({"text": ["x"], "label": ["y"]}, {"text": "sentence"}, "rows.csv"),
        ({"text": ["x"], "label": ["y"]}, {"text_pair": "other"}, "rows.csv"),
        ({"text": ["x"], "label": ["y"]}, {"label": "kind"}, "rows.csv"),
        ({"text": ["x", " "], "label": ["y", "z"]}, {}, "rows.csv:3"),
        ({"text": ["x", None], "label": ["y", "z"]}, {}, "rows.csv:3"),
        ({"text": ["x", "y"], "label": ["a", ["b", "c"]]}, {}, "rows.csv:3"),
        ({"text": ["x", "y"], "label": ["a", "a"]}, {"labels": ("a",)}, "rows.csv"),
    ],
)
def test_rows_that_cannot_be_used(columns: dict[str, list[Any]], options: dict[str, str], where: str) -> None:
    with pytest.raises(DataError) as raised:
        Task.fit(TextClassification(**options), rows_in(**columns))
    assert raised.value.where == where


def test_published_scores_do_not_stand_beside_those_of_other_data(tmp_path: Path) -> None:
    recipe = load_recipe("sst2")
    assert published_scores(recipe.resolved(), "google/bert-base-uncased") == {"validation/accuracy": 0.927}
    own = recipe.overridden({"validation": str(tmp_path / "own.csv")}).resolved()
    assert published_scores(own, "google/bert-base-uncased") == {}


def test_probabilities_are_the_softmax_of_the_logits() -> None:
    task = TextClassificationTask(recipe=TextClassification(), labels=("c", "a", "b"))
    logits = np.array([[1.0, 2.0, 0.5], [900.0, -900.0, 899.0]])
    features = Features(Ragged.of([[1], [2]]), Ragged.of([[0], [0]]), np.arange(2))
    found = task.decode({"logits": [row[None] for row in logits]}, features, rows_in(text=["one", "two"]))
    assert [prediction.value for prediction in found] == ["a", "c"]
    exponentials = np.exp(logits[0])
    assert found[0].probability == pytest.approx(exponentials[1] / exponentials.sum())
    assert found[1].probability == pytest.approx(1 / (1 + np.exp(-1)))


@pytest.mark.parametrize(
    ("options", "labels", "logits", "truth", "shown", "described", "row"),
    [
        ({}, ("a", "b"), [0, 2.2], "a", "b 90%", "a", {"label": "b", "gold": "a", "probability": pytest.approx(0.9, abs=1e-3)}),
        ({"multi_label": True}, ("a", "b"), [2.2, -9], ("b",), "a 90%", "b", {"labels": ["a"], "gold": ["b"]}),
        ({"multi_label": True}, ("a", "b"), [-9, -9], (), "none", "none", {"labels": [], "gold": []}),
        ({"regression": True}, (), [1.25], 2.5, "1.25", "2.5", {"prediction": 1.25, "gold": 2.5}),
    ],
)
def test_a_prediction_for_people_and_files(
    options: dict, labels: tuple, logits: list, truth: Any, shown: str, described: str, row: dict
) -> None:
    task = TextClassificationTask(recipe=TextClassification(**options), labels=labels)
    rows = rows_in(text=["one"])
    targets = Ragged.of([task._target.encode([truth])[0].tolist()], dtype=np.float32 if options else np.int64)
    features = Features(Ragged.of([[1]]), Ragged.of([[0]]), np.arange(1), labels={"labels": targets})
    (found,) = task.decode({"logits": [np.array([logits], dtype=np.float32)]}, features, rows)
    assert task.format_prediction(found, rows, 0).plain == f"{shown}  one"
    assert task.format_truth(truth, rows, 0) == described == task.describe_targets(features, 0)[0][0]
    written = task.evaluated_row(found, truth, rows, 0)
    assert written | {"text": "one"} | row == written
    assert ("probabilities" in written) == (not options.get("regression"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data": "x", "train": "y"},
        {"train": "-"},  # read more than once
        {"train": "a.csv", "regression": True, "multi_label": True},
        {"train": "a.csv", "regression": True, "classes": True},
        {"train": "a.csv", "multi_label": True, "classes": True},
        {"train": "a.csv", "regression": True, "labels": ("a", "b")},
        {"train": "a.csv", "label_separator": ";"},  # of several labels
        {"train": "a.csv", "regression": True, "class_weights": ("balanced",)},
        {"train": "a.csv", "regression": True, "label_smoothing": 0.1},
        {"train": "a.csv", "multi_label": True, "class_weights": ("balanced",)},
        {"train": "a.csv", "multi_label": True, "label_smoothing": 0.1},
        {"train": "a.csv", "regression": True, "metric": ("accuracy",)},
        {"train": "a.csv", "metric": ("pearson",)},
        {"train": "a.csv", "metric": ("accuracy", "mean_squared_error")},
        {"train": "a.csv", "multi_label": True, "metric": ("f1",)},
        {"train": "a.csv", "multi_label": True, "metric": ("micro_f1", "matthews_correlation")},
        *({"train": "a.csv", "validation": share} for share in ("0.1", "10", ".5")),  # without a percent sign
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        TextClassification(**options).resolved()


@pytest.mark.parametrize("text", ["title", "title,body"])
def test_rows_that_cannot_be_read_are_left_out_of_a_prediction(tmp_path: Path, text: str) -> None:
    """Of joined columns each may be empty, but a broken row is no text."""
    lines = ['{"title": "one", "body": "x"}', "{broken", '{"title": "two", "body": "y"}', '{"title": null, "body": null}']
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    recipe = TextClassification(text=text, test=str(path), on_error="skip").resolved()
    found = recipe.standardize(read_splits(recipe, ["test"]).rows["test"], labelled=False)
    assert found.columns["text"] == (["one", "two"] if text == "title" else ["one x", "two y"])
    assert [why.rpartition("(")[2] for why in found.remarks.left_out] == [f"{path}:{line})" for line in (2, 4)]


def test_a_file_that_is_given_replaces_a_tenth(tmp_path: Path) -> None:
    recipe = TextClassification(train="a.csv").resolved()
    assert (recipe.validation, recipe.eval_splits) == ("10%", ("validation",))
    recipe = TextClassification(train="a.csv", validation="b.csv").resolved()
    assert recipe.validation == str(Path("b.csv").resolve())


# --- what counts for how much ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, (0.5, 3.0, 1.25)])
def test_the_loss_is_torchs_with_weights_and_smoothing(weights: tuple[float, ...] | None, smoothing: float) -> None:
    """A step's loss in micro-batches is torch's weighted mean over all of its rows at once."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 30}
    config = BertConfig(**sizes, id2label=dict(enumerate("abc")), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    module = BertForSequenceClassification(config, class_weights=weights, label_smoothing=smoothing).double()
    rng, count = np.random.default_rng(0), 11
    ids = [rng.integers(5, 30, rng.integers(1, 9)).tolist() for _ in range(count)]
    labels = rng.integers(0, 3, count)
    features = Features(
        Ragged.of(ids),
        Ragged.of([[0] * len(row) for row in ids], dtype=np.uint8),
        np.arange(count),
        rows=Ragged.column(np.zeros(count)),
        labels={"labels": Ragged.column(labels)},
        class_weights={} if weights is None else {"labels": np.array(weights)},
    )
    batches = micro_batches_for_rank(features, np.arange(count), 12)
    assert len(batches) > 2
    total = sum(batch.weights["labels"] for batch in batches)
    found = sum(module(batch).loss_sums["labels"] for batch in batches) / total
    logits = torch.zeros(count, 3, dtype=torch.float64)
    for batch in batches:
        logits[batch.features] = module(batch).logits["logits"].detach()
    weight = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    wanted = F.cross_entropy(logits, torch.from_numpy(labels), weight, label_smoothing=smoothing)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    module.eval()
    found = sum(module(batch).loss_sums["labels"] for batch in batches) / total
    assert found.item() == pytest.approx(F.cross_entropy(logits, torch.from_numpy(labels), weight).item(), rel=1e-12)


def test_balanced_weights_are_scikit_learns(tiny_tokenizer_dir: Path) -> None:
    labels = ["b"] * 12 + ["c"] * 3 + ["a"] * 5
    rows = rows_in(text=[f"the movie {at}" for at in range(20)], label=labels)
    wanted = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=labels)
    task = Task.fit(filled(TextClassification(class_weights=("balanced",))), rows)
    assert task.weights == pytest.approx(dict(zip("abc", wanted, strict=True)))
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    for each in (task, Task.restore(task.configure(BertConfig(id2label=dict(enumerate("abc")))))):
        features = each.encode(each.examples(rows, labelled=True), tokenizer, max_length=16).features
        assert features.class_weights["labels"].tolist() == pytest.approx(wanted.tolist())


def test_class_weights_follow_their_labels_into_the_models_order() -> None:
    recipe = filled(TextClassification(labels=("x", "y"), class_weights=("1", "5")))
    config = BertConfig(num_hidden_layers=0, id2label={0: "y", 1: "x"})
    fitted = Task.fit(recipe, rows_in(text=["a", "b"], label=["x", "y"]), config)
    for task in (fitted, Task.restore(fitted.configure(config))):
        assert task.labels == ("y", "x")
        assert task.build(config).class_weights == (5.0, 1.0)
    spelled = Task.restore(fitted.configure(config), TextClassification(labels=("X", "Y")))
    assert spelled.weights == {"X": 1.0, "Y": 5.0}


def test_the_class_that_f1_counts_is_the_datas_second() -> None:
    extra = {"architectures": ["BertForSequenceClassification"]}
    config = BertConfig(id2label={0: "yes", 1: "no"}, extra=extra)
    task = Task.fit(filled(TextClassification(labels=("no", "yes"))), rows_in(text=["a", "b"], label=["no", "yes"]), config)
    assert (task.labels, task.positive) == (("yes", "no"), "yes")
    trained = task.configure(config)
    assert Task.restore(trained).positive == "yes"
    assert Task.restore(trained, TextClassification(labels=("yes", "no"))).positive == "no"
    assert Task.restore(config).positive == "no"
    assert Task.restore(BertConfig(id2label=dict(enumerate("abc")), extra=extra)).positive is None


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"text": ["!", "?", ""]}, {MAJORITY}),
        ({"text": ["good film", "bad film", "good"], "text_pair": ["?", "?", "?"]}, {MAJORITY, BAG_OF_WORDS}),
    ],
)
def test_columns_without_a_word_are_left_out_of_the_words_to_count(texts: dict[str, list[str]], found: set[str]) -> None:
    rows = rows_in(**texts, label=["a", "b", "a"])
    task = TextClassificationTask(recipe=filled(TextClassification()), labels=("a", "b"))
    predicted = task.baselines(rows, rows, None)
    assert {*predicted} == found
    assert [prediction.value for prediction in predicted[MAJORITY]] == ["a", "a", "a"]


@pytest.mark.parametrize("weights", ["1", "1,2,3", "1,x", "-1,2", "0,0", "balance"])
def test_class_weights_that_are_refused(weights: str) -> None:
    recipe = filled(TextClassification().overridden({"class_weights": weights}))
    with pytest.raises(UsageError):
        Task.fit(recipe, rows_in(text=["a", "b"], label=["x", "y"]))


def test_what_a_comma_in_a_name_does_to_class_weights_is_hinted_at() -> None:
    rows = rows_in(text=["a", "b"], label=["x, z", "y"])
    with pytest.raises(UsageError) as error:
        Task.fit(filled(TextClassification().overridden({"class_weights": "x, z=2"})), rows)
    assert error.value.hint == """a name with a comma goes in quotes: --class-weights '"x, z=2"'"""
    for weights in ('"x, z=2"', ["x, z=2"]):
        task = Task.fit(filled(TextClassification().overridden({"class_weights": weights})), rows)
        assert task.output_weights == (2.0, 1.0)


def test_a_text_inside_an_object_gets_a_hint() -> None:
    rows = rows_in(text=["a", {"body": "b"}], label=["x", "y"])
    with pytest.raises(DataError) as error:
        TextClassification().standardize(rows, labelled=True)
    assert "fields inside an object" in str(error.value.hint)

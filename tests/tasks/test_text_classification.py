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

from bertkit.errors import DataError, UsageError
from bertkit.features import Features, Ragged
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertForSequenceClassification
from bertkit.readers import Examples
from bertkit.tasks import TextClassification, TextClassificationTask
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.recipe import published_scores
from bertkit.tasks.task import Task
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
    settings = ("--max-steps", 2, "--batch-size", 16, "--max-length", 32, "--precision", "fp32", "--device", "cpu")
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


def test_labels_are_those_of_all_rows_though_few_are_trained_on(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = "".join(f"text {at},kind{at % 20:02}\n" for at in range(200))
    (tmp_path / "many.csv").write_text("text,label\n" + rows, encoding="utf-8")
    data = ("--train", "many.csv", "--max-train-samples", 5, "--max-length", 16, "--max-steps", 1)
    ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["task"]["labels"] == [f"kind{at:02}" for at in range(20)]
    assert run["data"]["train"]["rows"] == 5


def test_what_is_held_out_is_said_where_it_is_not_what_was_asked_for(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    def said(rows: list[str]) -> str:
        (tmp_path / "my.csv").write_text("text,label\n" + "\n".join(rows), encoding="utf-8")
        data = ("--train", "my.csv", "--validation", "10%", "--max-length", 16, "--max-steps", 1)
        ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run", "--overwrite")
        assert ran.code == 0, ran.err
        return " ".join(ran.err.split())

    plain = [f"text {at},{'ab'[at % 2]}" for at in range(100)]
    assert "held out: " not in said(plain)
    canned = [*["thanks,auto"] * 60, *["bye,auto"] * 60, *["buy now,spam"] * 30]
    found = said([*plain, *canned])
    assert "warning: held out: 28% of the rows instead of 10%, because equal texts stay together" in found
    assert "held out: no row has spam: the scores do not cover them" in found
    assert "learned separately: 'A', 'a'" in said([*plain, "x,A", "y,A"])


def test_another_language_s_vocabulary_is_said(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "zh.csv").write_text("text,label\n好看 的 书,a\n不 好看,b\n", encoding="utf-8")
    data = ("--train", "zh.csv", "--validation", "zh.csv", "--max-length", 16, "--max-steps", 1)
    ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    assert "of the tokens are [UNK]" in ran.err.replace("\n", " ")
    ran = run_bertkit("predict", "run", stdin=b"good movie\n\n")
    assert "1 without text" in ran.err


def test_pairs_need_a_model_of_two_segments(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    model = make_model_dir("BertForSequenceClassification", type_vocab_size=1)
    (tmp_path / "pairs.csv").write_text("text,text_pair,label\na,b,LABEL_0\nc,d,LABEL_1\n", encoding="utf-8")
    data = ("--validation", "pairs.csv", "--max-length", 16)
    train = ("finetune", "text-classification", "--train", "pairs.csv", *data, "-m", model, "-o", "run", "--max-steps", 1)
    how = ("--recipe", "text-classification", "--text-pair", "text_pair")
    for command in (train, ("eval", model, *how, *data), ("predict", model, "pairs.csv", *how, "--max-length", 16)):
        ran = run_bertkit(*command)
        assert ran.code == 4, ran.err
        assert "error: the model's type_vocab_size is 1, and the data has pairs, of 2 segments" in ran.err.splitlines()
    assert run_bertkit(*train, "--text", "text").code == 0, "one text has one segment"


def gold_and_options(name: str, path: Path) -> tuple[list[str], tuple[str, ...]]:
    """The labels in a dev file as they stand there, and what predict must be told to read that file."""
    if name == "cola":
        columns = ("source", "label", "mark", "sentence")
        return [row["label"] for row in rows_of(path, columns)], ("--columns", ",".join(columns))
    column = {"mrpc": "Quality", "stsb": "score", "qqp": "is_duplicate"}.get(name, "label")
    options = ("--text", "#1 String", "--text-pair", "#2 String") if name == "mrpc" else ()
    return [row[column] for row in rows_of(path)], options


@pytest.mark.parametrize("name", FOLDERS)
def test_glue_from_files_to_scores(run_bertkit, data_dir: Path, model: Path, name: str) -> None:
    from scipy import stats
    from sklearn import metrics

    folder = data_dir / "GLUE" / FOLDERS[name]
    dev = folder / ("dev.tsv.gz" if name in ("stsb", "qqp") else "dev.tsv")
    run = finetune(run_bertkit, name, model, "--data", folder)
    found = run["best"]["scores"]
    assert run["total_steps"] == run["last"]["step"] == 2
    assert {split: data["rows"] for split, data in run["data"].items()} == {
        split: ROWS[name][split][0] for split in ("train", "validation")
    }

    gold, options = gold_and_options(name, dev)
    if name == "stsb":
        said = predictions(run_bertkit, "run", dev, key="prediction")
        numbers = [float(score) for score in gold]
        assert np.std(said) > 0
        expected = {
            "pearson": stats.pearsonr(said, numbers).statistic,
            "spearmanr": stats.spearmanr(said, numbers).statistic,
            "loss": metrics.mean_squared_error(numbers, said),
        }
    else:
        names = {
            "cola": {"0": "unacceptable", "1": "acceptable"},
            "sst2": {"0": "negative", "1": "positive"},
            "mrpc": {"0": "not_equivalent", "1": "equivalent"},
            "rte": {"entailment": "entailment", "not_entailment": "not_entailment"},
            "qqp": {"0": "not_duplicate", "1": "duplicate"},
            "wnli": {"0": "not_entailment", "1": "entailment"},
        }[name]
        labels = [names[label] for label in gold]
        said = predictions(run_bertkit, "run", dev, *options)
        assert len(set(said)) == 2, "constant predictions would hide mistakes"
        if name == "cola":
            expected = {"matthews_correlation": metrics.matthews_corrcoef(labels, said)}
        else:
            expected = {"accuracy": metrics.accuracy_score(labels, said)}
        if name in ("mrpc", "qqp"):
            expected["f1"] = metrics.f1_score(labels, said, pos_label=names["1"])
    assert len(said) == ROWS[name]["validation"][0]
    for metric, value in expected.items():
        assert found[f"validation/{metric}"] == pytest.approx(value, rel=1e-6, abs=1e-6), metric
    assert json.loads(run_bertkit("eval", "run", "--json").out) == pytest.approx(found, rel=1e-6, abs=1e-5)


def test_lingnli_to_mnli(run_bertkit, data_dir: Path, model: Path) -> None:
    """Trained on one set, evaluated on another in another format and order of columns."""
    files = [str(data_dir / "LingNLI" / f"{name}.jsonl.gz") for name in ("train", "val")]
    run = finetune(run_bertkit, "mnli", model, "--train", files[0], "--validation", files[1])
    assert {split: data["rows"] for split, data in run["data"].items()} == {"train": 14996, "validation": 2425}
    assert list(run["best"]["scores"]) == ["validation/accuracy", "validation/loss"]
    for split in ("matched", "mismatched"):
        columns, path = ("label", "premise", "hypothesis"), data_dir / "MNLI-1k" / f"mnli_{split}.tsv"
        options = ("--columns", ",".join(columns))
        ran = run_bertkit("eval", "run", "--validation", path, *options, "--json")
        assert ran.code == 0, ran.err
        gold = [row["label"] for row in rows_of(path, columns)]
        said = predictions(run_bertkit, "run", path, *options)
        assert len(said) == 1000
        assert len(set(said)) > 1
        assert json.loads(ran.out)["validation/accuracy"] == np.mean(np.array(said) == gold)

    from sklearn.metrics import matthews_corrcoef

    path = data_dir / "GLUE" / "diagnostic" / "diagnostic-full.tsv.gz"
    ran = run_bertkit(
        "eval", "run", "--recipe", "ax", "--data", path.parent, "--max-length", 32, "--precision", "fp32", "--json"
    )
    assert ran.code == 0, ran.err
    said = predictions(run_bertkit, "run", path, "--text", "Premise", "--text-pair", "Hypothesis")
    expected = matthews_corrcoef([row["Label"] for row in rows_of(path)], said)
    assert json.loads(ran.out)["test/matthews_correlation"] == pytest.approx(expected, abs=1e-9)


def test_a_spam_file_without_header_dev_set_or_names(run_bertkit, data_dir: Path, model: Path, tmp_path: Path) -> None:
    path = data_dir / "SMSSpam" / "SMSSpamCollection.gz"
    run = finetune(run_bertkit, "text-classification", model, "--train", path, "--columns", "label,text", "--validation", "10%")
    assert run["task"]["labels"] == ["ham", "spam"]
    rows = [run["data"][split]["rows"] for split in ("train", "validation")]
    assert sum(rows) == 5574
    assert 0.095 < rows[1] / 5574 < 0.105
    recipe = TextClassification().overridden({"train": str(path), "columns": "label,text", "validation": "10%"})
    train, held_out = (load(recipe, split) for split in ("train", "validation"))
    assert not {text.casefold() for text in train.columns["text"]} & {text.casefold() for text in held_out.columns["text"]}
    assert Counter(held_out.columns["label"])["spam"] / len(held_out) == pytest.approx(747 / 5574, abs=0.005)
    # Predictions for the whole file as it stands.
    said = predictions(run_bertkit, "run", path, "--columns", "label,text")
    assert len(said) == 5574
    assert set(said) <= {"ham", "spam"}
    ran = run_bertkit("predict", "run", path, "--columns", "label,text", "--output", "out.csv")
    assert ran.code == 0, ran.err
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["label"] for row in written] == said
    assert [row["text"] for row in written] == [row["text"] for row in rows_of(path, ("label", "text"))]


# --- the family's own parts ------------------------------------------------------------------------------------------------


def columns_of(tmp_path: Path, content: str, name: str = "rows.csv", **options: Any) -> dict[str, list[Any]]:
    (tmp_path / name).write_text(content, encoding="utf-8")
    return load(TextClassification(train=str(tmp_path / name), validation=str(tmp_path / name), **options)).columns


def test_standard_columns_whatever_they_are_called(tmp_path: Path) -> None:
    found = columns_of(tmp_path, "id,question,kind\n7,Where?,a\n8,Who?,b\n", text="question", label="kind")
    assert found == {"text": ["Where?", "Who?"], "label": ["a", "b"]}
    found = columns_of(tmp_path, "id,Sentence 1,sentence_2,gold_label\n7,x,y,a\n")
    assert found == {"text": ["x"], "text_pair": ["y"], "label": ["a"]}
    # Who names one text means one.
    found = columns_of(tmp_path, "sentence1,sentence2,label\nx,y,a\n", text="sentence2")
    assert found == {"text": ["y"], "label": ["a"]}


def test_numbers_are_texts_too(tmp_path: Path) -> None:
    found = columns_of(tmp_path, '{"text": 7, "label": "a"}\n{"text": 1.5, "label": "b"}\n', "rows.jsonl")
    assert found["text"] == ["7", "1.5"]


def test_columns_guessed_are_said(run_bertkit, tmp_path: Path, model: Path) -> None:
    (tmp_path / "rows.csv").write_text("review,stars\ngood,1\nbad,2\n", encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-steps", 1, "--max-length", 16)
    ran = run_bertkit("finetune", "text-classification", *data, "-m", model, "-o", "run")
    assert "columns by their names: text = review, label = stars" in ran.err.splitlines()
    ran = run_bertkit(
        "finetune", "text-classification", *data, "-m", model, "-o", "run2", "--text", "review", "--label", "stars"
    )
    assert ran.code == 0
    assert "by their names" not in ran.err


def test_columns_found_stay_with_the_run(run_bertkit, tmp_path: Path, model: Path) -> None:
    (tmp_path / "pairs.csv").write_text("sentence1,sentence2,label\ngood,good,a\nbad,good,b\n", encoding="utf-8")
    data = ("--train", "pairs.csv", "--validation", "pairs.csv", "--max-steps", 1, "--max-length", 16)
    assert run_bertkit("finetune", "text-classification", *data, "-m", model, "-o", "run").code == 0
    ran = run_bertkit("predict", "run", stdin=b"one text\n")
    assert ran.code == 3, "a run on pairs does not take single texts"
    assert ran.err.startswith("error: no column 'sentence1'")


def test_published_scores_do_not_stand_beside_those_of_other_data(tmp_path: Path) -> None:
    recipe = load_recipe("sst2")
    assert published_scores(recipe.resolved(), "google/bert-base-uncased") == {"validation/accuracy": 0.927}
    own = recipe.overridden({"validation": str(tmp_path / "own.csv")}).resolved()
    assert published_scores(own, "google/bert-base-uncased") == {}


def test_regression_from_ones_own_file(run_bertkit, tmp_path: Path, model: Path) -> None:
    rows = "".join(f"{'good ' * (i + 1)}movie,{i / 2}\n" for i in range(8))
    (tmp_path / "rows.csv").write_text("text,score\n" + rows, encoding="utf-8")
    run = finetune(run_bertkit, "text-classification", model, "--train", "rows.csv", "--validation", "rows.csv", "--regression")
    assert list(run["best"]["scores"]) == ["validation/pearson", "validation/spearmanr", "validation/loss"]
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["problem_type"] == "regression"
    said = predictions(run_bertkit, "run", "rows.csv", key="prediction")
    expected = np.corrcoef(said, np.arange(8) / 2)[0, 1]
    assert run["best"]["scores"]["validation/pearson"] == pytest.approx(expected, abs=1e-5)


def test_probabilities_are_the_softmax_of_the_logits() -> None:
    task = TextClassificationTask(recipe=TextClassification(), labels=("c", "a", "b"))
    logits = np.array([[1.0, 2.0, 0.5], [900.0, -900.0, 899.0]])
    features = Features(Ragged.of([[1], [2]]), Ragged.of([[0], [0]]), np.arange(2))
    rows = Examples({"text": ["one", "two"]}, "rows.csv", range(2, 4))
    found = task.decode({"logits": [row[None] for row in logits]}, features, rows)
    assert [prediction.value for prediction in found] == ["a", "c"]
    exponentials = np.exp(logits[0])
    assert found[0].probability == pytest.approx(exponentials[1] / exponentials.sum())
    assert found[1].probability == pytest.approx(1 / (1 + np.exp(-1)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data": "x", "train": "y"},
        {"train": "-"},  # read more than once
        {"train": "a.csv", "regression": True, "multi_label": True},
        {"train": "a.csv", "regression": True, "labels": ("a", "b")},
        {"train": "a.csv", "label_separator": ";"},  # of several labels
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        TextClassification(**options).resolved()


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


def test_balanced_weights_are_scikit_learns(run_bertkit, model: Path, tmp_path: Path) -> None:
    labels = ["b"] * 12 + ["c"] * 3 + ["a"] * 5
    rows = "".join(f"{label},the movie {at}\n" for at, label in enumerate(labels))
    (tmp_path / "rows.csv").write_text("label,text\n" + rows, encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--overwrite")
    run = finetune(run_bertkit, "text-classification", model, *data, "--class-weights", "balanced")
    wanted = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=labels)
    assert run["recipe"]["class_weights"] == ["balanced"]
    assert run["task"]["class_weights"] == pytest.approx(dict(zip("abc", wanted, strict=True)))
    # The held-out loss is weighted too, and read again the run says the same.
    scores = json.loads(run_bertkit("eval", "run", "--json", "--precision", "fp32").out)
    assert scores["validation/loss"] == pytest.approx(run["best"]["scores"]["validation/loss"], rel=1e-5)
    plain = finetune(run_bertkit, "text-classification", model, *data)
    assert plain["best"]["scores"]["validation/loss"] != pytest.approx(run["best"]["scores"]["validation/loss"], rel=1e-3)
    # A model that has its labels in another order: each keeps its weight.
    recipe = TextClassification(train="rows.csv", labels=("x", "y"), class_weights=("1", "5")).resolved()
    config = BertConfig(num_hidden_layers=0, id2label={0: "y", 1: "x"})
    fitted = Task.fit(recipe, Examples({"text": ["a", "b"], "label": ["x", "y"]}, "f", range(2)), config)
    for task in (fitted, Task.restore(fitted.configure(config))):
        assert task.labels == ("y", "x")
        assert task.build(config).class_weights == (5.0, 1.0)


def test_options_that_are_refused(run_bertkit, model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "label,text\n" + "".join(f"{at % 2 + 1},text {at}\n" for at in range(60)), encoding="utf-8"
    )
    data = ("--train", "rows.csv", "-m", model, "-o", "run", "--max-length", 16)
    refused = [[f"--class-weights={given}"] for given in ("1", "1,2,3", "1,x", "-1,2", "0,0", "balance")]
    refused += [["--regression", "--class-weights=balanced"], ["--regression", "--label-smoothing=0.1"]]
    refused += [[f"--validation={share}"] for share in ("0.1", "10", ".5")]  # shares without a percent sign
    for typed in refused:
        ran = run_bertkit("finetune", "text-classification", *data, *typed)
        assert (ran.code, f"error: {typed[-1].replace('=', ' is ')[:9]}" in ran.err) == (2, True), ran.err
        assert not (tmp_path / "run").exists()

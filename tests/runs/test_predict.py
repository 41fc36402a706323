"""Evaluating and predicting with runs and with models that transformers saved; transformers is the oracle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.runs.predict import open_target

NAMES = ("contradiction", "neutral", "entailment")  # not the recipe's order
PREMISES = ("good movie", "the river is on the bank", "open the new ticket", "why", "we love a poor story")
HYPOTHESES = ("bad movie", "no", "one two three people", "where is the invoice", "you hate it")


@pytest.fixture(scope="module")
def nli_model(make_model_dir: Callable[..., Path]) -> Path:
    named = dict(enumerate(NAMES))
    label2id = {name: i for i, name in named.items()}
    return make_model_dir("BertForSequenceClassification", seed=8, initializer_range=0.5, id2label=named, label2id=label2id)


def said_by_transformers(model: Path, pairs: list[tuple[str, ...]], max_length: int = 64) -> list[str]:
    """The label of each text or pair, one at a time."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    network, tokenizer = AutoModelForSequenceClassification.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    labels = []
    for pair in pairs:
        tokens = tokenizer(*pair, return_tensors="pt", truncation=True, max_length=max_length)
        with torch.no_grad():
            labels.append(network.config.id2label[int(network(**tokens).logits[0].argmax())])
    return labels


@pytest.fixture
def mnli(tmp_path: Path) -> dict[str, list[tuple[str, str, str]]]:
    """A folder ./MNLI as GLUE's, with rows (premise, hypothesis, label) by split."""
    rng = np.random.default_rng(0)
    splits = {}
    for split, names in (("matched", ("entailment", "neutral")), ("mismatched", ("entailment", "neutral", "contradiction"))):
        splits[split] = [(a, b, str(rng.choice(names))) for a in PREMISES for b in HYPOTHESES]
    (tmp_path / "MNLI").mkdir()
    for split, rows in splits.items():
        lines = ["index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label"]
        lines += [f"{i}\t{i * 7}\t{a}\t{b}\tneutral\t{label}" for i, (a, b, label) in enumerate(rows)]
        (tmp_path / "MNLI" / f"dev_{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return splits


def scores_of(ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


# --- any model of transformers ---------------------------------------------------------------------------------------------


def test_a_model_of_transformers_on_mnlis_own_files(run_bertkit, nli_model: Path, mnli) -> None:
    options = ("--recipe", "mnli", "--data", "MNLI", "--max-length", 64, "--precision", "fp32", "--json")
    found = scores_of(run_bertkit("eval", nli_model, *options))
    losses = {f"validation_{split}/loss" for split in mnli}
    assert set(found) == {f"validation_{split}/accuracy" for split in mnli} | losses
    for split, rows in mnli.items():
        said = said_by_transformers(nli_model, [(a, b) for a, b, _ in rows])
        assert len(set(said)) == 3
        expected = np.mean([name == label for name, (_, _, label) in zip(said, rows, strict=True)])
        assert found[f"validation_{split}/accuracy"] == pytest.approx(expected)
        assert 0 < expected < 1
    # One split alone, and each of two asked for.
    alone = scores_of(run_bertkit("eval", nli_model, *options, "--split", "validation_mismatched"))
    assert alone == {name: value for name, value in found.items() if "mismatched" in name}
    both = scores_of(
        run_bertkit("eval", nli_model, *options, "--split", "validation_mismatched", "--split", "validation_matched")
    )
    assert both == found
    assert next(iter(both)) == "validation_mismatched/accuracy"


def test_the_loss_is_that_of_transformers(run_bertkit, nli_model: Path, mnli) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    options = ("--recipe", "mnli", "--data", "MNLI", "--max-length", 64, "--precision", "fp32", "--json")
    found = scores_of(run_bertkit("eval", nli_model, *options, "--split", "validation_matched"))
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(nli_model).eval(),
        AutoTokenizer.from_pretrained(nli_model),
    )
    losses = []
    for premise, hypothesis, label in mnli["matched"]:
        with torch.no_grad():
            tokens = tokenizer(premise, hypothesis, return_tensors="pt")
            losses.append(float(model(**tokens, labels=torch.tensor([NAMES.index(label)])).loss))
    assert found["validation_matched/loss"] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("change", ["max_length", "micro_batch_tokens", "precision"])
def test_options_of_evaluation(run_bertkit, nli_model: Path, mnli, change: str) -> None:
    options = {"max_length": 64, "micro_batch_tokens": 8192, "precision": "fp32"}
    arguments = ("--recipe", "mnli", "--data", "MNLI", "--split", "validation_matched", "--json")

    def evaluate() -> dict[str, float]:
        typed = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), value)]
        return scores_of(run_bertkit("eval", nli_model, *arguments, *typed))

    before = evaluate()
    options[change] = {"max_length": 8, "micro_batch_tokens": 20, "precision": "bf16"}[change]
    after = evaluate()
    loss = "validation_matched/loss"
    if change == "micro_batch_tokens":  # cut otherwise, the result stays the same
        assert after == pytest.approx(before, rel=1e-5)
    else:
        assert after[loss] != pytest.approx(before[loss], rel=1e-5)
    if change == "precision":
        assert after[loss] == pytest.approx(before[loss], rel=0.1)
    if change == "max_length":
        rows = mnli["matched"]
        said = said_by_transformers(nli_model, [(a, b) for a, b, _ in rows], max_length=8)
        expected = np.mean([name == label for name, (_, _, label) in zip(said, rows, strict=True)])
        assert after["validation_matched/accuracy"] == pytest.approx(expected)


def test_predictions_of_a_bare_model_have_its_own_names(run_bertkit, nli_model: Path, tmp_path: Path) -> None:
    pairs = [(a, b) for a in PREMISES for b in HYPOTHESES]
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"premise": a, "hypothesis": b}) + "\n" for a, b in pairs), encoding="utf-8"
    )
    ran = run_bertkit("predict", nli_model, "pairs.jsonl", "--max-length", 64, "--precision", "fp32")
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["text"], row["text_pair"]) for row in rows] == pairs
    assert [row["label"] for row in rows] == said_by_transformers(nli_model, pairs)


def test_predictions_of_a_bare_regression_model(run_bertkit, make_model_dir) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = make_model_dir("BertForSequenceClassification", seed=8, num_labels=1, initializer_range=0.3)
    ran = run_bertkit("predict", folder, "--max-length", 64, "--precision", "fp32", stdin=b"good movie\nwhy\n")
    assert ran.code == 0, ran.err
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for line, text in zip(ran.out.splitlines(), ("good movie", "why"), strict=True):
        with torch.no_grad():
            expected = float(model(**tokenizer(text, return_tensors="pt")).logits)
        assert json.loads(line) == {"text": text, "prediction": pytest.approx(expected, abs=1e-5)}


# --- runs ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> Path:
    rows = "".join(f"{text},{'ab'[i % 2]}\n" for i, text in enumerate(PREMISES * 2))
    (tmp_path / "train.csv").write_text("text,label\n" + rows, encoding="utf-8")
    (tmp_path / "dev.csv").write_text("text,label\n" + rows, encoding="utf-8")
    data = ("--train", "train.csv", "--validation", "dev.csv", "--test", "dev.csv")
    options = ("--max-steps", 1, "--max-length", 32, "--precision", "fp32")
    ran = run_bertkit("finetune", "text-classification", *data, "-m", tiny_model_dir, "-o", "run", *options)
    assert ran.code == 0, ran.err
    return tmp_path / "run"


def test_eval_of_a_run_repeats_its_scores_from_anywhere(run: Path, run_bertkit, tmp_path: Path, monkeypatch) -> None:
    expected = json.loads((run / "run.json").read_text(encoding="utf-8"))["best"]["scores"]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert scores_of(run_bertkit("eval", "../run", "--json")) == pytest.approx(expected, rel=1e-5)
    found = scores_of(run_bertkit("eval", "../run", "--split", "test", "--json"))
    assert {name.replace("test/", "validation/"): value for name, value in found.items()} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("held_out", ["1/5", "20%", "rows.csv"])
def test_rows_that_changed_since_the_training_are_said(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path, held_out: str
) -> None:
    """A row more deals folds anew, and what is held out then was trained on."""
    table = tmp_path / "rows.csv"
    table.write_text("text,label\n" + "".join(f"text {at},{'ab'[at % 2]}\n" for at in range(40)), encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", held_out, "--max-length", 16, "--max-steps", 1, "-m", tiny_model_dir)
    assert run_bertkit("finetune", "text-classification", *data, "-o", "run").code == 0
    said = "warning: validation: the rows have changed since training"
    for more in ((), ("--truncate", "tail"), ("--max-length", 8)):
        ran = run_bertkit("eval", "run", *more)
        assert (ran.code, said in ran.err.replace("\n", " ")) == (0, False), ran.err
    with table.open("a", encoding="utf-8") as file:
        file.write("text 40,a\n")
    ran = run_bertkit("eval", "run")
    assert (ran.code, said in ran.err.replace("\n", " ")) == (0, held_out != "20%"), ran.err
    shutil.copy(table, tmp_path / "others.csv")
    assert said not in run_bertkit("eval", "run", "--validation", "others.csv").err.replace("\n", " ")


def test_other_data_replaces_the_runs_own(run: Path, run_bertkit, tmp_path: Path) -> None:
    said = [json.loads(line)["label"] for line in run_bertkit("predict", "run", "dev.csv").out.splitlines()]
    rows = [(text, label) for text, label in zip(PREMISES * 2, said, strict=True)]
    (tmp_path / "more.tsv").write_text("kind\tsentence\n" + "".join(f"{b}\t{a}\n" for a, b in rows), encoding="utf-8")
    assert run_bertkit("eval", "run", "--validation", "more.tsv").code == 3, "the run's columns have other names"
    named = ("--text", "sentence", "--label", "kind", "--json")
    found = scores_of(run_bertkit("eval", "run", "--validation", "more.tsv", *named))
    assert found["validation/accuracy"] == 1.0
    found = scores_of(run_bertkit("eval", "run", "--test", "more.tsv", *named))
    assert found["test/accuracy"] == 1.0
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "more.tsv", tmp_path / "folder" / "dev.tsv")
    assert scores_of(run_bertkit("eval", "run", "--data", "folder", *named))["validation/accuracy"] == 1.0


def test_predictions_do_not_depend_on_the_other_rows(run: Path, run_bertkit) -> None:
    texts = [*PREMISES, *HYPOTHESES]
    together = [json.loads(line) for line in run_bertkit("predict", "run", stdin="\n".join(texts).encode()).out.splitlines()]
    assert [row["text"] for row in together] == texts
    for row in together:
        (alone,) = run_bertkit("predict", "run", stdin=row["text"].encode()).out.splitlines()
        assert json.loads(alone) == {**row, "probability": pytest.approx(row["probability"], abs=1e-6)}


def test_a_checkpoint_is_a_model_too(run: Path, run_bertkit) -> None:
    expected = run_bertkit("predict", "run", stdin=b"good movie\n")
    found = run_bertkit("predict", "run/checkpoint-1", "--max-length", 32, "--precision", "fp32", stdin=b"good movie\n")
    assert (found.code, found.out) == (0, expected.out)


# --- what cannot be used ---------------------------------------------------------------------------------------------------


def test_a_model_needs_to_be_told_what_it_does(nli_model: Path) -> None:
    with pytest.raises(UsageError) as error:
        open_target(str(nli_model), None, {})
    assert (str(nli_model) in error.value.what, "--recipe" in str(error.value.hint)) == (True, True)


def test_a_model_without_a_trained_head(run_bertkit, tiny_model_dir: Path, make_model_dir, mnli, tmp_path: Path) -> None:
    options = ("--recipe", "mnli", "--data", "MNLI", "--max-length", 64)
    ran = run_bertkit("eval", tiny_model_dir, *options)
    error, hint = ran.err.splitlines()
    assert (ran.code, ran.out, error.endswith(f"({tiny_model_dir})"), "bertkit finetune" in hint) == (4, "", True, True)
    # One that calls itself a classifier, and has no classifier in its file.
    shutil.copytree(tiny_model_dir, tmp_path / "claims")
    config = json.loads((tmp_path / "claims" / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {str(i): n for i, n in enumerate(NAMES)}}
    (tmp_path / "claims" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = run_bertkit("eval", "claims", *options)
    error = ran.err.splitlines()[-2]
    assert (ran.code, error.endswith("classifier.weight, classifier.bias (claims)"), ran.err.endswith(f"{hint}\n")) == (
        4,
        True,
        True,
    )


def test_a_run_without_a_model_yet(run: Path) -> None:
    (run / "config.json").unlink()
    with pytest.raises(ModelError) as error:
        open_target(str(run), None, {})
    assert str(error.value) == f"the run has no model yet ({run})"


def test_longer_texts_than_the_model_takes(nli_model: Path) -> None:
    with pytest.raises(UsageError) as error:
        open_target(str(nli_model), "mnli", {})  # the recipe says 128
    assert str(error.value) == "--max-length is 128; the model has 64 positions"


def test_a_split_that_the_run_has_not(run: Path, run_bertkit) -> None:
    ran = run_bertkit("eval", "run", "--split", "trial")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-2] == "error: no file is named for split 'trial'"

"""The family from file to scores and predictions: schemes, windows, heads, formats, bad input, and the real data."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from file_contents import read_conll
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities

from bertkit.cli import main
from bertkit.config import filled
from bertkit.errors import DataError, ModelError
from bertkit.features import IGNORED
from bertkit.metrics.classification import mean_squared_error
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import save_model
from bertkit.readers import Examples
from bertkit.runs.evaluate import predict
from bertkit.runs.predict import build, open_target
from bertkit.tasks import Prediction, Task, TokenClassification, TokenClassificationTask
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.token_classification.output import as_conll, as_row, as_text
from bertkit.tasks.token_classification.sentences import standard_columns
from bertkit.tasks.token_classification.tags import convert, count_illegal, detect_scheme
from bertkit.tasks.token_classification.task import Tagged
from bertkit.text.tokenizer import Tokenizer
from bertkit.training import loop as training
from bertkit.training.batching import evaluation_batches

Sentences = list[list[tuple[str, str]]]

# Products, some of two words, some next to each other; people; the rest is outside.
NAMED = {"printer": "THING", "screen": "THING", "phone": "THING", "woman": "WHO", "man": "WHO"}
FILLER = "the is broken and late good bad movie with for when".split()


def made_sentences(count: int, seed: int, scheme: str = "iob2") -> Sentences:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        words = rng.choice([*NAMED, *FILLER], int(rng.integers(3, 9))).tolist()
        tags = ["O" if word not in NAMED else "B-" + NAMED[word] for word in words]
        for at in range(1, len(words)):  # "printer screen" is one chunk, "screen printer" two
            if tags[at][2:] == tags[at - 1][2:] != "" and words[at - 1] == "printer":
                tags[at] = "I" + tags[at][1:]
        made.append(list(zip(words, convert(tags, scheme), strict=True)))
    return made


def as_columns(sentences: Sentences, separator: str = " ", row: str = "{word}{sep}{tag}\n") -> str:
    return "\n".join("".join(row.format(word=w, tag=t, sep=separator) for w, t in sentence) for sentence in sentences)


def as_tokens(sentences: Sentences) -> str:
    rows = ({"tokens": [w for w, _ in sentence], "tags": [t for _, t in sentence]} for sentence in sentences)
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_entities(sentences: Sentences) -> str:
    lines = []
    for sentence in sentences:
        words, ends = [w for w, _ in sentence], []
        for word in words:
            ends.append((ends[-1] + 1 if ends else 0) + len(word))
        found = get_entities([t for _, t in sentence])
        entities = [[ends[first] - len(words[first]), ends[last], kind] for kind, first, last in found]
        lines.append(json.dumps({"text": " ".join(words), "entities": entities}) + "\n")
    return "".join(lines)


def as_conllu(sentences: Sentences) -> str:
    def line(at: int, word: str, tag: str) -> str:
        return f"{at}\t{word}\t_\t{'NOUN' if tag != 'O' else 'X'}\t{tag}\t_\t_\t_\t_\t_\n"

    return "\n".join("# text\n" + "".join(line(i, *pair) for i, pair in enumerate(s, 1)) for s in sentences) + "\n"


def tags_in(sentences: Sentences) -> list[list[str]]:
    return [[tag for _, tag in sentence] for sentence in sentences]


def words_in(sentences: Sentences) -> list[list[str]]:
    return [[word for word, _ in sentence] for sentence in sentences]


TRAIN, DEV = made_sentences(40, 0), made_sentences(12, 1)
COMMON = ("--batch-size", 8, "--max-length", 24, "--precision", "fp32", "--device", "cpu", "--learning-rate", 3e-3)


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertModel", seed=21, initializer_range=0.3)


def command(*argv: object) -> None:
    assert main([str(part) for part in argv]) == 0


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned the made sentences well enough to name most things."""
    folder = tmp_path_factory.mktemp("tagger")
    for name, rows in (("train", made_sentences(200, 0)), ("dev", DEV)):
        (folder / f"{name}.conll").write_text(as_columns(rows), encoding="utf-8")
    data = ("--train", folder / "train.conll", "--validation", folder / "dev.conll", "--max-steps", 60)
    command(
        "finetune", "token-classification", *data, "-m", tiny_model_dir, "-o", folder / "run", *COMMON, "--learning-rate", 5e-3
    )
    return folder / "run"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write(name: str, content: str | bytes) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return write


@pytest.fixture
def finetune(run_bertkit, model: Path, tmp_path: Path):
    def finetune(*options: object, recipe: str = "token-classification", steps: int = 2) -> tuple[dict[str, Any], str]:
        ran = run_bertkit("finetune", recipe, *options, "-m", model, "-o", "run", "--max-steps", steps, *COMMON)
        assert ran.code == 0, ran.err
        return json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8")), ran.err

    return finetune


def predicted(run_bertkit, *arguments: object, stdin: bytes = b"") -> list[dict[str, Any]]:
    ran = run_bertkit("predict", *arguments, stdin=stdin)
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def task_of(*labels: str, scheme: str | None = None, intents: tuple[str, ...] = (), **options: Any) -> TokenClassificationTask:
    recipe = filled(TokenClassification(intent=bool(intents), **options))
    return TokenClassificationTask(recipe=recipe, labels=labels, scheme=scheme, intents=intents)


def read(path: Path, **options: Any) -> dict[str, list[Any]]:
    """The columns of a file to train on."""
    recipe = filled(TokenClassification(**options))
    return recipe.standardize(recipe.read_file(path), labelled=True).columns


def fitted(recipe: Recipe, train: str = "train") -> tuple[TokenClassificationTask, dict[str, Examples]]:
    """The task that a recipe's training rows give, and the examples of all its splits."""
    recipe = recipe.resolved()
    rows = read_splits(recipe).rows
    task = Task.fit(recipe, rows[train])
    return task, {split: task.examples(each, labelled=True) for split, each in rows.items()}


def scores_of(task: TokenClassificationTask, tags: list[list[str]], examples: Examples) -> dict[str, float | None]:
    return task.score([Prediction(row) for row in tags], task.truth(examples))


# --- every format ----------------------------------------------------------------------------------------------------------

FORMATS: dict[str, tuple[Callable[[Sentences], str], str, tuple[str, ...]]] = {
    "spaces": (as_columns, ".conll", ()),
    "tabs, by their look": (lambda s: as_columns(s, "\t"), ".txt", ()),
    "a column": (lambda s: as_columns(s, " ", "{word}{sep}{tag}{sep}x\n"), ".conll", ("--column", "2")),
    "a separator": (lambda s: as_columns(s, "|"), ".conll", ("--separator", "|")),
    "a separator, in a text": (lambda s: as_columns(s, "|"), ".txt", ("--separator", "|")),
    "CoNLL-U": (as_conllu, ".conllu", ("--column", "xpos")),
    "tokens and tags": (as_tokens, ".jsonl", ()),
    "named columns": (lambda s: as_tokens(s).replace('"tags"', '"gold"'), ".jsonl", ("--tokens", "tokens", "--tags", "gold")),
    "entities": (as_entities, ".jsonl", ()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_from_a_file_to_scores_and_back(run_bertkit, finetune, write, name: str) -> None:
    form, ending, options = FORMATS[name]
    files = [write(f"{split}{ending}", form(rows)) for split, rows in (("train", TRAIN), ("dev", DEV))]
    found, err = finetune("--train", files[0], "--validation", files[1], *options, steps=6)
    assert found["task"]["labels"] == ["O", "B-THING", "B-WHO", "I-THING"]
    assert {split: data["rows"] for split, data in found["data"].items()} == {"train": len(TRAIN), "validation": len(DEV)}
    assert "tag scheme of the training data: iob2" in err.splitlines()

    rows = predicted(run_bertkit, "run", files[1], *(options if options[:1] == ("--separator",) else ()))
    assert [row["tokens"] for row in rows] == words_in(DEV)
    tags = [row["tags"] for row in rows]
    assert list(map(len, tags)) == list(map(len, DEV))
    scores = found["best"]["scores"]
    assert scores["validation/f1"] == pytest.approx(f1_score(tags_in(DEV), tags, zero_division=0))
    right = [p == g for one, other in zip(tags, tags_in(DEV), strict=True) for p, g in zip(one, other, strict=True)]
    assert scores["validation/accuracy"] == pytest.approx(np.mean(right))
    ran = run_bertkit("eval", "run", "--json")
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5, abs=1e-6)


def test_a_wrong_intent_is_an_error() -> None:
    rows = Examples({"tokens": [["a"], ["b"]], "tags": [["O"], ["B-X"]], "intent": ["ask", "tell"]}, "my.jsonl", [1, 2])
    found = [Prediction(["O"], details={"intent": "tell"}), Prediction(["O"], details={"intent": "ask"})]
    for task, errors in ((task_of(intents=("ask", "tell")), [1, 2]), (task_of(), [0, 1])):
        truth = task.truth(rows)
        assert [task.error(*pair) for pair in zip(found, truth, strict=True)] == errors
        shown = ["a (ask)", "b[B-X] (tell)"] if task.intents else ["a", "b[B-X]"]
        assert [task.format_truth(known, rows, row) for row, known in enumerate(truth)] == shown


def test_texts_that_are_named_come_before_words_that_are_guessed() -> None:
    columns = {"text": ["Ann lives"], "entities": [[[0, 3, "PER"]]], "tokens": [["Ann", "lives"]], "tags": [["NN", "VB"]]}
    rows = Examples(columns, "my.jsonl", [1])
    named = dict.fromkeys(("tokens", "tags", "text", "entities"))
    how = {"intent": None, "to_predict": False}
    assert standard_columns(rows, named=named, **how).columns["tags"] == [["NN", "VB"]]
    for typed in ({"text": "text", "entities": "entities"}, {"entities": "entities"}):
        assert standard_columns(rows, named=named | typed, **how).columns["tags"] == [["B-PER", "O"]]


def test_options_that_would_say_nothing_are_refused(run_bertkit, write, tiny_model_dir: Path) -> None:
    path = write("three.conll", "Ann NN B-PER\nruns VB O\n\n" * 4)
    task = ("finetune", "token-classification", "--train", path, "--validation", path, "-m", tiny_model_dir, "-o", "run")
    for typed in (("--tags", "pos"), ("--intent-column", "scene")):
        assert run_bertkit(*task, *COMMON, *typed).code == 2
    assert run_bertkit(*task, *COMMON, "--max-steps", 1, "--tags", "2").code == 0


def test_folders_with_an_intent(run_bertkit, finetune, write, tmp_path: Path) -> None:
    def intent(words: list[str]) -> str:
        return "buy" if "late" in words else "sell"

    for split, rows in (("train", TRAIN), ("valid", DEV), ("test", DEV)):
        write(f"data/{split}/seq.in", "".join(" ".join(words) + "\n" for words in words_in(rows)))
        write(f"data/{split}/seq.out", "".join(" ".join(tags) + "\n" for tags in tags_in(rows)))
        write(f"data/{split}/label", "".join(intent(words) + "\n" for words in words_in(rows)))
    found, _ = finetune("--data", tmp_path / "data", "--intent", recipe="snips", steps=8)
    scores = found["best"]["scores"]
    assert {f"validation/{name}" for name in ("f1", "intent_accuracy", "sentence_accuracy", "loss", "intent_loss")} <= set(
        scores
    )
    rows = predicted(run_bertkit, "run", tmp_path / "data" / "valid")
    assert [row["tokens"] for row in rows] == words_in(DEV)
    right = [row["intent"] == intent(row["tokens"]) for row in rows]
    assert scores["validation/intent_accuracy"] == pytest.approx(np.mean(right))
    both = [ok and row["tags"] == tags for ok, row, tags in zip(right, rows, tags_in(DEV), strict=True)]
    assert scores["validation/sentence_accuracy"] == pytest.approx(np.mean(both))
    ran = run_bertkit("eval", "run", "--split", "test", "--json")
    assert json.loads(ran.out) == pytest.approx(
        {k.replace("validation", "test"): v for k, v in scores.items()}, rel=1e-5, abs=1e-6
    )
    shown = run_bertkit("predict", "run", "--format", "text", stdin=b"the printer is late\n").out
    assert re.search(r"\((buy|sell)\)\n$", shown)
    # The intent belongs to the model, and another recipe finds it there.
    ran = run_bertkit("eval", "run", "--recipe", "snips", "--data", "data", "--intent", "--json", "--precision", "fp32")
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5, abs=1e-6), ran.err
    # So does the model without its run.
    shutil.copytree(tmp_path / "run", tmp_path / "alone", ignore=shutil.ignore_patterns("run.json", "checkpoint-*"))
    ran = run_bertkit("eval", "alone", "--recipe", "snips", "--data", "data", "--json", "--precision", "fp32")
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5, abs=1e-6), ran.err
    rows = predicted(run_bertkit, "alone", tmp_path / "data" / "valid", "--max-length", 64)
    assert [row["intent"] == intent(row["tokens"]) for row in rows] == right
    write("data/train/label", "other\n" * len(TRAIN))
    ran = run_bertkit("finetune", "snips", "--data", "data", "--intent", "-m", "run", "-o", "run2", "--max-steps", 1, *COMMON)
    assert ran.code == 4, ran.err


def test_a_share_held_out(finetune, write) -> None:
    for path, options in ((write("a.conll", as_columns(TRAIN)), ()), (write("b.jsonl", as_entities(TRAIN)), ())):
        found, _ = finetune("--train", path, "--validation", "25%", *options, "--overwrite")
        rows = [found["data"][split]["rows"] for split in ("train", "validation")]
        assert sum(rows) == len(TRAIN)
        assert 5 <= rows[1] <= 15
    path = write("c.jsonl", as_tokens(TRAIN).replace('"tokens"', '"words"'))  # found by its usual name
    found, _ = finetune("--train", path, "--validation", "25%", "--overwrite")
    assert found["data"]["validation"]["rows"] == rows[1]


@pytest.mark.parametrize("head", ["linear", "bilstm", "crf"])
def test_stopped_and_resumed_it_is_the_same_run(
    run_bertkit, model: Path, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    write("train.conll", as_columns(TRAIN))
    more = ("--head", head, "--dropout", 0.1, "--max-steps", 6, "--eval-steps", 2)
    data = ("token-classification", "--train", "train.conll", "--validation", "train.conll", "-m", model, *COMMON, *more)
    assert run_bertkit("finetune", *data, "-o", "whole").code == 0
    seed_dropout = training.seed_dropout

    def stopping(module: Any, seed: int, step: int, *place: int) -> None:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        seed_dropout(module, seed, step, *place)

    with monkeypatch.context() as patch:
        patch.setattr(training, "seed_dropout", stopping)
        assert run_bertkit("finetune", *data, "-o", "again").code != 0
    ran = run_bertkit("finetune", *data, "-o", "again")
    assert ran.code == 0, ran.err
    assert "resuming from again/checkpoint-" in ran.err
    models = [(tmp_path / name / "checkpoint-6" / "model.safetensors").read_bytes() for name in ("whole", "again")]
    assert models[0] == models[1]
    runs = [json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8")) for name in ("whole", "again")]
    assert (runs[0]["best"], runs[0]["last"]) == (runs[1]["best"], runs[1]["last"])


# --- predictions -----------------------------------------------------------------------------------------------------------

LINES = [
    "The printer screen is broken.",
    "",
    "A woman's phone, (and  the screens) \u2014 100%!",
    "\u200b \u4e2d\u6587 man\U0001f600",
]


@pytest.mark.parametrize("way", ["file", "stdin"])
def test_text_keeps_its_characters(run: Path, run_bertkit, write, way: str) -> None:
    text = "\n".join(LINES) + "\n"
    source = write("news.txt", text) if way == "file" else "-"
    rows = predicted(run_bertkit, run, source, stdin=text.encode())
    assert [row["text"] for row in rows] == LINES
    chunks = 0
    for row in rows:
        assert "".join(row["tokens"]) == re.sub(r"\s", "", row["text"])
        assert len(row["tags"]) == len(row["probabilities"]) == len(row["tokens"])
        assert all(0 < probability <= 1 for probability in row["probabilities"])
        entities = [(kind, "".join(row["tokens"][a : b + 1])) for kind, a, b in get_entities(row["tags"])]
        assert [(e["label"], re.sub(r"\s", "", e["text"])) for e in row["entities"]] == entities
        assert all(row["text"][e["start"] : e["end"]] == e["text"] for e in row["entities"])
        chunks += len(entities)
    assert chunks >= 3

    shown = run_bertkit("predict", run, source, "--format", "text", stdin=text.encode()).out
    assert len(re.findall(r"\[(?:THING|WHO) ", shown)) == chunks
    unmarked = re.sub(r"\[(?:THING|WHO) ([^]]+) [01]\.\d\d\]", r"\1", shown).split("\n")[:-1]
    assert unmarked == [line.replace("\u200b", "\\u200b") for line in LINES]


def test_an_entitys_probability_is_that_of_its_least_certain_word(run: Path, run_bertkit) -> None:
    (row,) = predicted(run_bertkit, run, stdin=b"the printer screen is late\n")
    for entity in row["entities"]:
        words = [at for at, word in enumerate(row["tokens"]) if word in entity["text"].split()]
        assert entity["probability"] == min(row["probabilities"][at] for at in words)


@pytest.mark.parametrize("labelled", [True, False])
def test_columns_in_and_out(run: Path, run_bertkit, write, tmp_path: Path, labelled: bool) -> None:
    """With labels (even those that no training has) or without; long sentences in windows; the same words in the same order."""
    rows = [*DEV, [pair for sentence in DEV for pair in sentence] * 2, [("Never-seen", "B-ELSE")]]
    path = write("new.conll", as_columns(rows, row="{word}{sep}{tag}\n" if labelled else "{word}\n"))
    ran = run_bertkit("predict", run, path, "--output", "out.conll")
    assert ran.code == 0, ran.err
    assert f"{len(rows)} rows, 1 longer than 24 in overlapping windows" in ran.err
    blocks = [block.split("\n") for block in (tmp_path / "out.conll").read_text(encoding="utf-8").rstrip("\n").split("\n\n")]
    written = [[line.split("\t") for line in block] for block in blocks]
    assert [[word for word, _, _ in block] for block in written] == words_in(rows)
    said = predicted(run_bertkit, run, path)
    assert [[tag for _, _, tag in block] for block in written] == [row["tags"] for row in said]
    assert read_conll(tmp_path / "out.conll").columns["tags"] == [row["tags"] for row in said], "read back as it was said"
    assert [row["entities"] for row in said] == [
        [
            {"start": start, "end": start + len(text), "label": kind, "text": text, "probability": p}
            for kind, a, b in get_entities(row["tags"])
            for p in [min(row["probabilities"][a : b + 1])]
            for start in [sum(len(word) + 1 for word in row["tokens"][:a])]
            for text in [" ".join(row["tokens"][a : b + 1])]
        ]
        for row in said
    ]
    for row in said:
        assert row["text"] == " ".join(row["tokens"])
        assert [row["text"][start:end] for start, end in row["offsets"]] == row["tokens"]
    ran = run_bertkit("predict", run, path, "--output", "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines() == [
        json.dumps(r, ensure_ascii=False) for r in said
    ]


def test_what_it_learned_it_finds(run: Path, run_bertkit) -> None:
    (row,) = predicted(run_bertkit, run, stdin=b"the phone is late and the man is good\n")
    assert [(entity["text"], entity["label"]) for entity in row["entities"]] == [("phone", "THING"), ("man", "WHO")]


def test_nothing_but_empty_lines(run: Path, run_bertkit) -> None:
    rows = predicted(run_bertkit, run, stdin=b"\n\n")
    assert [row["tags"] for row in rows] == [[], []]


def test_eval_writes_predictions_and_a_file_without_tags_predicts(run: Path, run_bertkit, write, tmp_path: Path) -> None:
    ran = run_bertkit("eval", run, "--output", "said")
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in (tmp_path / "said" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["tokens"] for row in rows] == words_in(DEV)
    assert [row["gold"] for row in rows] == tags_in(DEV)
    path = write("bare.jsonl", "".join(json.dumps({"tokens": words}) + "\n" for words in words_in(DEV)))
    assert [row["tags"] for row in predicted(run_bertkit, run, path)] == [row["tags"] for row in rows]
    ran = run_bertkit("eval", run, "--validation", path)
    assert ran.code == 3, ran.err


def test_parts_of_speech_are_words_and_accuracy(run_bertkit, finetune, write) -> None:
    path = write("train.conllu", as_conllu(TRAIN))
    found, err = finetune("--train", path, "--validation", path)
    assert "tag scheme" not in err
    assert found["task"]["scheme"] is None
    assert set(found["best"]["scores"]) == {f"validation/{name}" for name in ("accuracy", "sentence_accuracy", "loss")}
    (row,) = predicted(run_bertkit, "run", stdin=b"the phone is late\n")
    assert "entities" not in row
    assert set(row["tags"]) <= {"NOUN", "X"}
    shown = run_bertkit("predict", "run", "--format", "text", stdin=b"the phone is late\n").out
    assert re.fullmatch("".join(rf"{word}/(NOUN|X) [01]\.\d\d  " for word in ("the", "phone", "is", "late")) + "\n", shown)
    assert [row["text"][start:end] for start, end in row["offsets"]] == row["tokens"] == ["the", "phone", "is", "late"]


# --- entities in characters --------------------------------------------------------------------------------------------------


def test_entities_split_the_words_that_they_cut(write) -> None:
    row = {"text": "Berlin-based  Siemens, Lyon.", "entities": [[0, 6, "LOC"], {"start": 14, "end": 21, "label": "ORG"}]}
    path = write("x.jsonl", json.dumps(row) + "\n")
    found = read(path)
    assert found["tokens"] == [["Berlin", "-based", "Siemens", ",", "Lyon", "."]]
    assert found["tags"] == [["B-LOC", "O", "B-ORG", "O", "O", "O"]]
    assert [row["text"][start:end] for start, end in found["places"][0]] == found["tokens"][0]


def test_entities_next_to_each_other_and_with_white_space_at_their_ends(write) -> None:
    row = {"text": "in New York City", "entities": [[2, 12, "A"], [12, 16, "A"]]}
    found = read(write("x.jsonl", json.dumps(row)))
    assert found["tags"] == [["O", "B-A", "I-A", "B-A"]]


# --- schemes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [None, "iob2", "iob1", "iobes"])
@pytest.mark.parametrize("data", ["iob2", "iob1", "iobes"])
def test_data_in_one_scheme_trained_in_another(finetune, write, run_bertkit, data: str, scheme: str | None) -> None:
    files = [write(f"{i}.conll", as_columns(made_sentences(30, i, data))) for i in (0, 1)]
    found, err = finetune("--train", files[0], "--validation", files[1], *(("--scheme", scheme) if scheme else ()), steps=1)
    final = scheme or data
    tags = [tag for i in (0, 1) for row in tags_in(made_sentences(30, i, final)) for tag in row]
    assert set(found["task"]["labels"]) <= set(tags)
    assert set(found["task"]["labels"]) == {tag for row in tags_in(made_sentences(30, 0, final)) for tag in row}
    turned = f", converted to {final}" if final != data else ""
    assert f"tag scheme of the training data: {data}{turned}" in err.splitlines()
    assert (f"tags converted from {data} to {final}" in err) == (data != final)
    rows = [row["tags"] for row in predicted(run_bertkit, "run", files[1])]
    expected = f1_score(tags_in(made_sentences(30, 1, final)), rows, zero_division=0)
    assert found["best"]["scores"]["validation/f1"] == pytest.approx(expected)


@pytest.mark.parametrize(("train", "dev"), [("iob2", "iob1"), ("iob1", "iob2"), ("iobes", "iob2"), ("iob2", "iobes")])
def test_dev_data_in_another_scheme_is_converted_and_said(write, tiny_tokenizer_dir: Path, train: str, dev: str) -> None:
    files = [str(write(f"{s}.conll", as_columns(made_sentences(40, 5, s)))) for s in (train, dev)]
    task, examples = fitted(TokenClassification(train=files[0], validation=files[1]))
    assert task.scheme == train
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    one, other = (task.encode(each, tokenizer, max_length=64) for each in examples.values())
    notes = [each.remarks.notes for each in examples.values()]
    assert (notes, one.remarks, other.remarks) == ([(), (f"tags converted from {dev} to {train}",)], (), ())
    assert one.features.labels["labels"].values.tolist() == other.features.labels["labels"].values.tolist()
    scores = scores_of(task, examples["train"].columns["tags"], examples["validation"])
    assert scores["f1"] == scores["strict_f1"] == scores["accuracy"] == 1.0


def test_illegal_tags_are_counted_and_said(finetune, write) -> None:
    slips = [[("the", "O"), ("man", "I-WHO")], [("a", "B-THING"), ("b", "I-WHO")]]
    for options in ((), ("--head", "crf", "--constrained")):
        files = [write("a.conll", as_columns([*TRAIN, *slips])), write("b.conll", as_columns(DEV))]
        _, err = finetune("--train", files[0], "--validation", files[1], *options, "--overwrite")
        assert re.search(r"^train: 42 rows, .*, 2 tags in places where iob2 does not allow them$", err, re.MULTILINE), err
        assert not re.search(r"^validation: .* does not allow", err, re.MULTILINE)
    log = [json.loads(line) for line in Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(event["loss"] < 20 for event in log if "loss" in event), "a chain is not asked for what it forbids"
    assert "predicted tags that" not in err


def test_predicted_tags_that_are_illegal_are_said() -> None:
    task = task_of("O", "B-A", "I-A", scheme="iob2")
    examples = Examples({"tokens": [["a", "b"]], "tags": [["O", "B-A"]]}, "f", [1])
    assert scores_of(task, [["O", "I-A"]], examples)["f1"] == 1.0
    [remark] = task.remarks_on([Prediction(["O", "I-A"])])
    assert remark.startswith("1 predicted tags that iob2 does not allow")
    assert task.remarks_on([Prediction(["O", "B-A"])]) == ()


LABELS = {
    "iob2": ("O", "B-A", "I-A", "B-B", "I-B"),
    "iob1": ("O", "I-A", "B-A", "I-B"),
    "iobes": ("O", "B-A", "I-A", "E-A", "S-A", "S-B", "B-B", "E-B"),
}


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(LABELS)),
    st.sampled_from(["linear", "bilstm", "crf"]),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(0, 2**16),
    st.booleans(),
)
@example("iobes", "crf", [90, 0, 1], 1, True)
def test_constrained_predictions_are_legal(tiny_tokenizer_dir, scheme, head, lengths, seed, intent) -> None:
    labels = LABELS[scheme]
    task = task_of(*labels, scheme=scheme, intents=("x", "y") if intent else (), head=head, constrained=True)
    examples = Examples({"tokens": [["the"] * n for n in lengths]}, "f", range(len(lengths)))
    features, _ = task.encode(examples, Tokenizer.load(tiny_tokenizer_dir), max_length=12, labelled=False)
    rng = np.random.default_rng(seed)
    logits = [rng.normal(scale=4, size=(len(features.rows[at]), len(labels))) for at in range(len(features))]
    outputs = {"logits": logits, "intent": [rng.normal(size=(1, 2)) for _ in logits]}
    if head == "crf":
        outputs["path"] = [rng.integers(0, len(labels), len(rows)) for rows in logits]
    found = [prediction.value for prediction in task.decode(outputs, features, examples)]
    assert list(map(len, found)) == lengths
    assert count_illegal(found, scheme) == 0
    if head == "crf":  # a path that is legal as it is stays as it is
        flat = np.concatenate([np.zeros(0, int), *(path[int(intent) :] for path in outputs["path"])])
        own = np.split(flat, np.cumsum(lengths)[:-1])
        for tags, path in zip(found, own, strict=True):
            said = [labels[at] for at in path]
            assert tags == said or count_illegal([said], scheme)


@pytest.mark.parametrize("intent", [False, True])
@pytest.mark.parametrize("head", ["linear", "crf"])
def test_a_constrained_model_is_legal_over_windows(tiny_tokenizer_dir: Path, head: str, intent: bool) -> None:
    labels = LABELS["iobes"]
    task = task_of(*labels, scheme="iobes", intents=("x", "y") if intent else (), head=head, constrained=True)
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = task.configure(BertConfig(vocab_size=tokenizer.vocab_size, initializer_range=0.5, **sizes))
    module = task.build(config)
    initialize(module, config, seed=4)
    if head == "crf":
        with torch.no_grad():
            for parameter in module.head["crf"].parameters():
                parameter.normal_(std=2, generator=torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    examples = Examples({"tokens": [rng.choice([*NAMED, *FILLER], n).tolist() for n in (70, 3, 1, 0, 25)]}, "f", range(5))
    features, _ = task.encode(examples, tokenizer, max_length=12, labelled=False)
    assert len(features) > 15
    found = predict(module, evaluation_batches(features, 100), start_accelerator("cpu"), num_features=len(features))
    tags = [prediction.value for prediction in task.decode(found.outputs, features, examples)]
    assert list(map(len, tags)) == [70, 3, 1, 0, 25]
    assert count_illegal(tags, "iobes") == 0
    assert len({tag for row in tags for tag in row}) > 2
    free = replace(task, recipe=replace(task.recipe, constrained=False))
    if head == "linear":
        assert count_illegal([p.value for p in free.decode(found.outputs, features, examples)], "iobes") > 0


@pytest.mark.parametrize(
    ("scheme", "labels"),
    [
        (None, ("O", "B-N", "E-N", "M-N", "S-N")),
        ("iob2", ("O", "B-N", "I-N")),
        ("iobes", ("O", "B-N", "E-N", "I-N", "S-N")),
    ],
)
def test_bmes_keeps_its_letters_unless_converted(scheme: str | None, labels: tuple[str, ...]) -> None:
    rows = Examples({"tokens": [list("abcde")], "tags": [["B-N", "M-N", "E-N", "S-N", "O"]]}, "x.bmes", [1])
    assert Task.fit(filled(TokenClassification(scheme=scheme)), rows).labels == labels


LETTERS = {"BMES": "BMES", "BIOES": "BIES", "BILOU": "BILU"}


@pytest.mark.parametrize("train", LETTERS)
@pytest.mark.parametrize("dev", LETTERS)
def test_the_same_chunks_in_other_letters_score_alike(write, tiny_tokenizer_dir: Path, train: str, dev: str) -> None:
    def written(letters: str, tag: str) -> str:
        return tag if tag == "O" else letters["BIES".index(tag[0])] + tag[1:]

    def source(letters: str) -> str:
        rows = [[(word, written(LETTERS[letters], tag)) for word, tag in s] for s in made_sentences(12, 1, "iobes")]
        return str(write(f"{letters}.conll", as_columns(rows)))

    task, examples = fitted(TokenClassification(train=source(train), validation=source(dev)))
    assert {label[0] for label in task.labels} <= {"O", *LETTERS[train]}
    gold, other = examples.values()
    encoding = task.encode(other, Tokenizer.load(tiny_tokenizer_dir), max_length=24)
    assert (other.remarks.notes, encoding.remarks) == ((), ())
    assert (encoding.features.labels["labels"].values != IGNORED).all()
    scores = scores_of(task, gold.columns["tags"], other)
    assert (scores["f1"], scores["accuracy"], scores["sentence_accuracy"]) == (1.0, 1.0, 1.0)


# --- transformers opens it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intent", [False, True])
def test_transformers_opens_a_linear_head(finetune, write, tmp_path: Path, intent: bool) -> None:
    import transformers

    rows = [json.loads(line) | {"intent": "ab"[at % 2]} for at, line in enumerate(as_tokens(TRAIN).splitlines())]
    path = write("train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    finetune("--train", path, "--validation", path, *(("--intent",) if intent else ()), steps=3)
    theirs, info = transformers.AutoModelForTokenClassification.from_pretrained("run", output_loading_info=True)
    assert not info["missing_keys"]
    assert {name.split(".")[0] for name in info["unexpected_keys"]} == ({"head"} if intent else set())
    tokenizer = transformers.AutoTokenizer.from_pretrained("run")
    target = open_target("run", None, {}, to_predict=True)
    ours = build(target, start_accelerator("cpu")).eval()
    inputs = tokenizer([" ".join(words) for words in words_in(DEV)], padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted, found = theirs.eval()(**inputs).logits, ours(**inputs).logits["logits"]
    attended = inputs["attention_mask"].bool()
    assert torch.allclose(found[attended], wanted[attended], atol=1e-5)
    assert theirs.config.id2label == dict(enumerate(target.task.labels))
    tagger = transformers.pipeline("token-classification", model="run", device="cpu")
    said = tagger("the phone is late")
    (ours_said,) = main_predictions(target, ["the phone is late"], tmp_path)
    named = {word["word"]: word["entity"] for word in said}
    assert [named.get(word, "O") for word in ours_said["tokens"]] == ours_said["tags"]


def main_predictions(target, lines: list[str], folder: Path) -> list[dict[str, Any]]:
    from bertkit.runs.predict import predict_file

    (folder / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    examples, found = predict_file(target, str(folder / "lines.txt"))
    return target.task.rows(found, examples)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("head", ["bilstm", "crf"])
def test_heads_of_our_own_are_saved_and_transformers_takes_the_encoder(
    finetune, write, run_bertkit, tmp_path: Path, head: str, precision: str
) -> None:
    import transformers

    path = write("train.conll", as_columns(TRAIN))
    found, err = finetune("--train", path, "--validation", path, "--head", head, "--precision", precision, steps=3)
    assert "the head is bertkit's own: transformers opens the folder as an encoder only" in err.splitlines()
    ran = run_bertkit("eval", "run", "--json", "--precision", precision)  # loaded again it says the same
    assert ran.code == 0, ran.err
    tolerance = 1e-5 if precision == "fp32" else 0.05
    assert json.loads(ran.out)["validation/loss"] == pytest.approx(found["best"]["scores"]["validation/loss"], rel=tolerance)
    if precision == "bf16":
        return
    first = [sha256((tmp_path / "run" / "model.safetensors").read_bytes()).hexdigest()]
    theirs = transformers.AutoModel.from_pretrained("run", add_pooling_layer=False).eval()
    ours = build(open_target("run", None, {}, to_predict=True), start_accelerator("cpu")).eval()
    ids = torch.tensor([[2, 90, 91, 92, 3]])
    with torch.no_grad():
        assert torch.allclose(theirs(ids).last_hidden_state, ours.bert(ids).last_hidden_state, atol=1e-5)
    _, info = transformers.AutoModelForTokenClassification.from_pretrained("run", output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}
    # From the seed alone.
    finetune("--train", path, "--validation", path, "--head", head, "--overwrite", steps=3)
    first.append(sha256((tmp_path / "run" / "model.safetensors").read_bytes()).hexdigest())
    assert first[0] == first[1]


def test_another_head_than_the_models(finetune, write, run_bertkit) -> None:
    path = write("train.conll", as_columns(TRAIN))
    finetune("--train", path, "--validation", path, "--head", "crf", steps=1)
    ran = run_bertkit("eval", "run", "--head", "linear")
    assert (ran.code, "--head crf" in ran.err, "(run)" in ran.err, "Traceback" in ran.err) == (4, True, True, False)


# --- bad input (the numbers are those of the list) --------------------------------------------------------------------------


@pytest.fixture
def refused(run_bertkit, write, tiny_model_dir: Path, tmp_path: Path):
    """A function that trains on a good file and another, and asserts the one error, where it is, and that nothing is made."""
    write("good.conll", as_columns(TRAIN))

    def refused(
        name: str,
        content: str | bytes,
        *options: object,
        line: str = "",
        as_dev: bool = False,
        code: int = 3,
        at_file: bool = True,
    ) -> str:
        path = write(name, content)
        files = ("good.conll", path) if as_dev else (path, "good.conll")
        data = ("--train", files[0], "--validation", files[1], "-m", tiny_model_dir, "-o", "run", "--max-length", 24)
        ran = run_bertkit("finetune", "token-classification", *data, *options)
        [error] = [said for said in ran.err.splitlines() if said.startswith("error:")]
        assert (ran.code, error.endswith(f"({path}{line})")) == (code, at_file), ran.err
        assert "Traceback" not in ran.err
        assert not (tmp_path / "run").exists()
        return "".join(said for said in ran.err.splitlines(keepends=True) if said.startswith(("error:", "hint:")))

    return refused


def entity_row(*entities: object, text: Any = "the phone is late") -> str:
    return '{"text": "a man", "entities": [[2, 5, "WHO"]]}\n' + json.dumps({"text": text, "entities": list(entities)}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        # 12, tokens and tags of different length, and 30, a tag missing
        ("x.conll", "a B-WHO\nb O\n\nc\n", ":4"),
        ("x.conll", "a\tB-WHO\nb\t\n", ":2"),
        ("x.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", "b"], "tags": ["O"]}\n', ":2"),
        ("x.jsonl", '{"tokens": ["a"], "tags": null}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a"], "tags": [null]}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a", 3], "tags": ["O", "O"]}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a"]}\n', ""),
        ("x.jsonl", '{"text": "a"}\n', ""),
        ("x.conll", "a\nb\n", ""),
        ("x.jsonl", '{"id": "a"}\n', ""),
        # 28 and 29
        ("x.conll", "", ""),
        ("x.conll", "\n\n", ""),
        ("x.conll", "-DOCSTART- -X- O\n\n", ""),
        ("x.jsonl", '{"tokens": [], "tags": []}\n', ""),
        ("x.conll", "a O\n\nb O\n", ""),
        ("x.jsonl", as_tokens(DEV)[:-9], f":{len(DEV)}"),
        # entities
        ("x.jsonl", entity_row([4, 99, "A"]), ":2"),
        ("x.jsonl", '{"text": "a", "entities": null}\n', ":1"),
    ],
)
def test_rows_that_cannot_be_used(refused, name: str, content: str, line: str) -> None:
    refused(name, content, line=line)


@pytest.mark.parametrize(
    "entities",
    [
        *([[4, 99, "A"]], [[-1, 3, "A"]], [[5, 5, "A"]], [[0, 9, "A"], [4, 9, "B"]], [[3, 4, "A"]], [["the", "A"]]),
        *([[0, 3.5, "A"]], [[False, 3, "A"]], ["A"], [{"start": 0, "end": 3}]),
    ],
)
def test_entities_that_cannot_be_used(write, entities: list[Any]) -> None:
    path = write("x.jsonl", entity_row(*entities))
    with pytest.raises(DataError) as raised:
        read(path)
    assert raised.value.where == f"{path}:2"
    with pytest.raises(DataError) as raised:
        read(write("x.jsonl", entity_row(text=None)))
    assert raised.value.where == f"{path}:2"


def test_02_longer_than_the_model_is_read_in_windows_and_a_max_length_beyond_it_refused(
    finetune, write, run_bertkit, tiny_model_dir: Path
) -> None:
    path = write("long.conll", "".join(f"{word} {tag}\n" for sentence in TRAIN for word, tag in sentence))
    _, err = finetune("--train", path, "--validation", path)
    assert "train: 1 row" in err
    assert "1 longer than 24 in overlapping windows" in err
    data = ("--train", path, "--validation", path, "-m", tiny_model_dir, "-o", "run2")
    ran = run_bertkit("finetune", "token-classification", *data, "--max-length", 65)
    assert (ran.code, ran.err.splitlines()[-2][:6]) == (2, "error:")
    ran = run_bertkit("finetune", "token-classification", *data, "--max-length", 2)
    assert (ran.code, "error: --max-length" in ran.err) == (2, True), ran.err


def test_13_schemes_of_words_that_have_none(refused) -> None:
    pos = "a NOUN\nb VERB\n\nc NOUN\n"
    for option in (("--scheme", "iobes"), ("--constrained",)):
        assert option[0] in refused("x.conll", pos, *option, code=2, at_file=False)
    assert "--column" in refused("x.conll", pos, as_dev=True, line=":1")


def test_18_columns_that_are_not_there(refused) -> None:
    refused("x.conll", "a O\nb B-WHO\n", "--column", 5, line=":1", code=2)
    row = '{"tokens": ["a"], "tags": ["O"], "scenario": "x"}\n'
    for options, hint in (
        (("--tags", "tag_s"), "did you mean tags? set it with --tags tags"),
        (("--intent",), "--intent-column NAME"),
        (("--intent", "--intent-column", "scene"), "did you mean scenario? set it with --intent-column scenario"),
    ):
        assert hint in refused("x.jsonl", row, *options)
    assert "--no-intent" in refused("x.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n', "--intent")


@pytest.mark.parametrize(("name", "form"), [("x.conll", as_columns), ("x.jsonl", as_tokens)])
def test_26_byte_order_mark_and_carriage_returns(write, name: str, form: Callable[[Sentences], str]) -> None:
    path = write(name, b"\xef\xbb\xbf" + form(DEV).replace("\n", "\r\n").encode())
    assert read(path) == {"tokens": words_in(DEV), "tags": tags_in(DEV)}


def test_31_tags_that_training_lacks_are_counted_and_said(finetune, write, run_bertkit) -> None:
    dev = [*DEV, [("EU", "B-ELSE"), ("x", "I-ELSE"), ("man", "B-WHO")]]
    files = write("a.conll", as_columns(TRAIN)), write("b.conll", as_columns(dev))
    found, err = finetune("--train", files[0], "--validation", files[1])
    assert re.search(r"^validation: .*, 2 words with tags that training does not have \(B-ELSE, I-ELSE\)$", err, re.MULTILINE)
    tags = [row["tags"] for row in predicted(run_bertkit, "run", files[1])]
    expected = f1_score(tags_in(dev), tags, zero_division=0)  # they count, as chunks that are not found
    assert found["best"]["scores"]["validation/f1"] == pytest.approx(expected)
    assert found["best"]["scores"]["validation/f1_ELSE"] == 0


def test_31_intents_that_training_lacks_are_counted_and_said(finetune, write, refused) -> None:
    def rows(*intents: str) -> str:
        return "".join(json.dumps({"tokens": ["a"], "tags": ["B-X"], "intent": intent}) + "\n" for intent in intents) + (
            json.dumps({"tokens": ["b"], "tags": ["O"], "intent": intents[0]}) + "\n"
        )

    files = write("a.jsonl", rows("book", "ask")), write("b.jsonl", rows("askk", "sell", "book"))
    found, err = finetune("--train", files[0], "--validation", files[1], "--intent")
    assert "validation: 4 rows" in err
    assert "3 with intents that training does not have (askk, sell)" in err
    assert found["best"]["scores"]["validation/intent_accuracy"] <= 0.25
    write("b.jsonl", rows("ask", "Book"))
    task, examples = fitted(TokenClassification(train=str(files[0]), validation=str(files[1]), intent=True))
    with pytest.raises(DataError, match="'Book'") as raised:
        task._unknown_intents(examples["validation"])
    assert raised.value.where == f"{files[1]}:2"


def test_the_column_of_the_intent_is_named(finetune, write) -> None:
    row = {"tokens": ["a", "b"], "tags": ["B-X", "O"], "label": "no", "scene": "x"}
    path = write("a.jsonl", json.dumps(row) + "\n" + json.dumps(row | {"scene": "y"}) + "\n")
    finetune("--train", path, "--validation", path, "--intent", "--intent-column", "scene")
    assert json.loads((path.parent / "run" / "config.json").read_text(encoding="utf-8"))["bertkit"]["intents"] == ["x", "y"]


def test_31_tags_in_another_case(refused) -> None:
    text = "a O\n\nb B-Who\n"
    assert "'B-WHO'" in refused("x.conll", text, as_dev=True, line=":3")
    assert "did you mean B-WHO?" in refused("x.conll", text, "--labels", "O,B-WHO", line=":3")
    refused("x.conll", text, "--labels", "O,O", code=2, at_file=False)


def test_a_model_with_other_labels(write, finetune, run_bertkit) -> None:
    finetune("--train", write("a.conll", as_columns(TRAIN)), "--validation", "a.conll", steps=1)
    path = write("b.conll", "a B-X\nb O\n")
    ran = run_bertkit(
        "finetune", "token-classification", "--train", path, "--validation", path, "-m", "run", "-o", "run2", *COMMON
    )
    assert ran.code == 4, ran.err
    labels = ("O", "B-THING", "B-WHO", "I-THING")
    extra = {"architectures": ["BertForTokenClassification"]}
    config = BertConfig(id2label=dict(enumerate(labels)), extra=extra)
    restored = Task.restore(config, TokenClassification(labels=("I-THING", "B-WHO", "O", "B-THING")))
    assert restored.labels == labels
    with pytest.raises(ModelError):
        Task.restore(config, TokenClassification(labels=("O", "B-A")))
    assert Task.restore(config).scheme == "iob2"


# --- real data ---------------------------------------------------------------------------------------------------------------

# Recipe, folder, rows by split, scheme, labels.
REAL = {
    "conll2003": ("CoNLL2003", (14041, 3250, 3453), "iob2", 9),
    "ud_pos": ("UD_English-EWT", (12544, 2001, 2077), None, 17),
    "atis": ("ATIS", (4478, 500, 893), "iob2", 120),
    "snips": ("SNIPS", (13084, 700, 700), "iob2", 72),
    "weibo_ner": ("WeiboNER", (1350, 270, 270), "iob2", 17),
    "resume_ner": ("ResumeNER", (3821, 463, 477), "iobes", 28),
}
ENTITIES = {"LOC": 7140, "PER": 6600, "ORG": 6321, "MISC": 3438}
CHINESE = ("weibo_ner", "resume_ner", "msra_ner")


@pytest.fixture(scope="session")
def chinese_tokenizer(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("chinese")
    packed = (data_dir.parent / "vocab" / "bert-base-chinese" / "vocab.txt.gz").read_bytes()
    (folder / "vocab.txt").write_bytes(gzip.decompress(packed))
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", REAL)
def test_real_data_through_the_recipes(data_dir: Path, minilm: Path, chinese_tokenizer: Tokenizer, name: str) -> None:
    folder, rows, scheme, num_labels = REAL[name]
    recipe = load_recipe(name).overridden({"data": str(data_dir / folder)})
    recipe = replace(recipe, training=filled(recipe.training), eval_splits=("validation", "test"))
    task, splits = fitted(recipe)
    assert tuple(map(len, splits.values())) == rows
    assert (task.scheme, len(task.labels)) == (scheme, num_labels)
    tokenizer = chinese_tokenizer if name in CHINESE else Tokenizer.load(minilm)
    for split, examples in splits.items():
        tokens, tags = examples.columns["tokens"], examples.columns["tags"]
        assert all(len(words) == len(its) > 0 for words, its in zip(tokens, tags, strict=True))
        features, remarks = task.encode(examples, tokenizer)
        assert sorted(set(features.examples.tolist())) == list(range(len(examples)))
        assert len(features.rows.values) == sum(map(len, tokens))
        assert features.input_ids.lengths.max() <= recipe.training.max_length
        targets = features.labels["labels"].values
        assert len(targets) == len(features.rows.values)
        names = np.array(task.labels, dtype=object)[targets]
        flat = [tag for its in tags for tag in its]
        unknown = [tag not in task.labels for tag in flat]
        assert all(missing or given == tag for missing, given, tag in zip(unknown, names, flat, strict=True))
        assert ((targets == -100) == unknown).all()
        assert any("training does not have" in remark for remark in remarks) == any(unknown)
        assert split != "train" or not any(unknown)
    if name == "conll2003":
        chunks = Counter(kind for its in splits["train"].columns["tags"] for kind, _, _ in get_entities(its))
        assert chunks == ENTITIES
    if name == "weibo_ner":
        words = [word for examples in splits.values() for its in examples.columns["tokens"] for word in its]
        assert {word for word in words if len(word) > 1} <= {"\ufffd\ufffd"}  # what is left of emoji


@pytest.mark.parametrize(("name", "intents"), [("atis", 21), ("snips", 7)])
def test_real_intents(data_dir: Path, name: str, intents: int) -> None:
    recipe = load_recipe(name).overridden({"data": str(data_dir / REAL[name][0]), "intent": True})
    task, splits = fitted(recipe)
    assert len(task.intents) == intents
    assert set(task.intents) == set(splits["train"].columns["intent"])


def test_real_data_in_another_scheme(data_dir: Path) -> None:
    recipe = load_recipe("resume_ner").overridden({"data": str(data_dir / "ResumeNER"), "scheme": "iob2"}).resolved()
    rows = read_splits(recipe, ["train"]).rows["train"]
    task = Task.fit(recipe, rows)
    assert {label[0] for label in task.labels} == set("OBI")
    given = recipe.standardize(rows, labelled=True).columns["tags"]
    gold = [get_entities([re.sub("^M", "I", tag) for tag in its]) for its in given]
    assert [get_entities(its) for its in task.examples(rows, labelled=True).columns["tags"]] == gold


@pytest.mark.parametrize("name", CHINESE)
def test_chinese_recipes_train_and_evaluate(
    run_bertkit, data_dir: Path, chinese_tokenizer: Tokenizer, tmp_path: Path, name: str
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=chinese_tokenizer.vocab_size, max_position_embeddings=256, **sizes)
    encoder = task_of("a", "b").build(config).bert
    initialize(encoder, config, seed=0)
    state = encoder.state_dict()
    save_model(tmp_path / "model", state_dict=state, config=config, tokenizer=chinese_tokenizer, architecture="BertModel")
    if name == "msra_ner":
        files = [data_dir / "MSRA-NER" / f"{split}.tsv.gz" for split in ("dev", "test")]
        data, rows = ("--train", files[0], "--validation", files[1], "--tokens", "text_a", "--tags", "label"), (2318, 4636)
    else:
        data, rows = ("--data", data_dir / REAL[name][0]), REAL[name][1][:2]
    options = ("--max-steps", 3, "--batch-size", 16, "--precision", "fp32", "--device", "cpu", "--learning-rate", 1e-2)
    ran = run_bertkit("finetune", name, *data, "-m", "model", "-o", "run", *options)
    assert ran.code == 0, ran.err
    found = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert tuple(split["rows"] for split in found["data"].values()) == rows
    losses = [
        json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if '"loss"' in line
    ]
    assert np.isfinite(losses).all()
    assert {"validation/f1", "validation/strict_f1", "validation/accuracy"} <= set(found["best"]["scores"])
    assert found["task"]["scheme"] == ("iobes" if name == "resume_ner" else "iob2")
    if name != "weibo_ner":
        return
    ran = run_bertkit("eval", "run", "--split", "test", "--json")
    assert set(json.loads(ran.out)) >= {"test/f1", "test/f1_PER.NAM"}
    (row,) = predicted(run_bertkit, "run", stdin="\u79d1\u6280\u516c\u53f8 ABC\u3002\n".encode())
    assert row["tokens"] == ["\u79d1", "\u6280", "\u516c", "\u53f8", "ABC", "\u3002"]


def test_msra_as_its_folder_has_it(data_dir: Path, tmp_path: Path, chinese_tokenizer: Tokenizer) -> None:
    for split in ("dev", "test"):
        (tmp_path / f"{split}.tsv.gz").symlink_to(data_dir / "MSRA-NER" / f"{split}.tsv.gz")
    recipe = load_recipe("msra_ner").overridden({"data": str(tmp_path)})
    task, splits = fitted(replace(recipe, train_split="validation", eval_splits=("test",)), "validation")
    assert tuple(map(len, splits.values())) == (2318, 4636)
    assert task.scheme == "iob2"
    assert set(task.labels) == {"O", *(f"{p}-{kind}" for p in "BI" for kind in ("PER", "LOC", "ORG"))}
    features, _ = task.encode(splits["test"], chinese_tokenizer, max_length=256)
    assert len(features.rows.values) == sum(map(len, splits["test"].columns["tokens"]))


def test_the_embedded_mentions(tiny_tokenizer_dir: Path) -> None:
    task, splits = fitted(replace(load_recipe("helpdesk_mentions"), eval_splits=("test",)))
    assert task.scheme == "iob2"
    assert {label[2:] for label in task.labels} - {""} == {"PRODUCT", "PERSON", "ORDER", "DATE", "PRICE"}
    _, remarks = task.encode(splits["test"], Tokenizer.load(tiny_tokenizer_dir), max_length=96)
    assert not any("training does not have" in remark for remark in remarks)
    assert detect_scheme(splits["train"].columns["tags"]) == "iob2"


def test_a_dry_run_shows_tags_and_intent_at_their_words(run_bertkit, write, model: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) | {"intent": "ab"[at % 2]} for at, line in enumerate(as_tokens(TRAIN).splitlines())]
    path = write("train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    data = ("--train", path, "--validation", path, "--intent", "--dry-run")
    ran = run_bertkit("finetune", "token-classification", *data, "-m", model, "-o", "run", *COMMON)
    assert ran.code == 0, ran.err
    shown = next(line for line in ran.err.splitlines() if "[CLS]" in line)
    assert re.findall(r"(\S+)\[([^\]]*)\]", shown) == [("[CLS]", "a"), *TRAIN[0]]
    assert not (tmp_path / "run").exists()


def test_a_metric_of_the_recipes_own_decides() -> None:
    def wrong(predictions: np.ndarray, references: np.ndarray) -> float:
        return float(np.mean(predictions != references))

    task = task_of("O", "B-A", scheme="iob2", metrics=(wrong,))
    assert next(iter(task.score([Prediction(["O", "O"])], [Tagged(["O", "B-A"])]).items())) == ("wrong", 0.5)
    assert task.recipe.greater_is_better
    assert not replace(task.recipe, metrics=(mean_squared_error,)).greater_is_better


# --- which column, which form: what the words and tags are --------------------------------------------------------------------


@pytest.mark.parametrize(("column", "options"), [("2", ()), ("upos", ("as CoNLL-U",))])
def test_a_run_trained_on_some_column_predicts_text(
    finetune, run_bertkit, write, tmp_path: Path, column: str, options: tuple[str, ...]
) -> None:
    """The column says where the tags of training stood, and nothing about what is to be predicted."""
    path = write(f"train.conll{'u' if options else ''}", as_conllu(TRAIN) if options else as_columns(TRAIN))
    finetune("--train", path, "--validation", path, "--column", column)
    lines = ["Grace paid for the lamp", "Alan sold a good old chair to you"]
    for source in ("-", write("page.txt", "\n".join(lines) + "\n")):
        rows = predicted(run_bertkit, "run", source, stdin="\n".join(lines).encode())
        assert [row["text"] for row in rows] == lines
        assert [row["tokens"] for row in rows] == [line.split() for line in lines]
    columns = write("new.conll", "Grace x y z\npaid x y z\n\n")
    assert [row["tokens"] for row in predicted(run_bertkit, "run", columns)] == [["Grace", "paid"]]


def test_the_named_column_is_the_one_that_is_learned(finetune, write) -> None:
    path = write("train.conllu", as_conllu(TRAIN))
    for options, labels in ((("--tags", "xpos"), {"O", "B-THING"}), ((), {"NOUN", "X"})):
        values, _ = finetune("--train", path, "--validation", path, *options, "--overwrite")
        assert labels <= set(values["task"]["labels"])
    rows = [{"tokens": ["a", "b"], "tags": ["N", "V"], "label": ["B-WHO", "O"]}] * 4
    path = write("both.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    values, _ = finetune("--train", path, "--validation", path, "--tags", "label", "--overwrite")
    assert values["task"]["labels"] == ["O", "B-WHO"]


def test_what_cannot_be_the_tags_is_refused(refused) -> None:
    for options in (("--column", "2"), ("--tokens", "tags")):
        refused("x.jsonl", as_tokens(TRAIN), *options, code=2)
    words = "".join(f"word{number} word{number}\n" for number in range(99))
    assert "--column" in refused("x.conll", words)


def test_entities_that_cut_words_are_said(finetune, write) -> None:
    rows = [{"text": "the good lamp", "entities": [[4, 7, "WHAT"]]}, {"text": "the lamp", "entities": [[4, 8, "WHAT"]]}]
    path = write("x.jsonl", "".join(json.dumps(row) + "\n" for row in rows * 3))
    _, said = finetune("--train", path, "--validation", path)
    for split in ("train", "validation"):
        assert f"warning: {split}: 3 of 6 entities begin or end inside a word, such as [4, 7, 'WHAT'] ({path}:1)" in said


def test_a_stray_tag_that_hides_the_scheme_is_said(finetune, write) -> None:
    path = write("x.conll", as_columns([*TRAIN, [("thing", "THING")]]))
    values, said = finetune("--train", path, "--validation", path)
    assert f"no tag scheme: 'THING' ({path}:" in said
    assert next(iter(values["best"]["scores"])) == "validation/accuracy"


def test_a_scheme_that_the_model_does_not_have_is_refused(run: Path, run_bertkit) -> None:
    ran = run_bertkit("eval", run, "--scheme", "iobes")
    assert (ran.code, ran.err.splitlines()[0].endswith(f"({run})")) == (2, True), ran.err


def test_numbers_of_tags_beyond_their_names_are_refused() -> None:
    columns = {"tokens": [["a", "b"]], "ner_tags": [[0, -100]]}
    examples = Examples(columns, "set/train", [7], label_names={"ner_tags": ("O", "B-X")})
    named = dict.fromkeys(("tokens", "tags", "text", "entities"))
    with pytest.raises(DataError) as raised:
        standard_columns(examples, named=named, intent=None, to_predict=False)
    assert raised.value.where == "set/train:7"


def test_words_that_a_recipe_changed_come_back_as_they_were() -> None:
    rows = Examples({"tokens": [["A0", "2019"]]}, "x", [1])
    found = TokenClassification().standardize(load_recipe("weibo_ner").prepare(rows, "test"), labelled=False)
    assert found.columns["tokens"] == [["A", "2"]]
    prediction = Prediction(["O", "B-X"], probabilities=[1.0, 0.5])
    assert as_row(prediction, found, 0, chunks=True)["tokens"] == ["A0", "2019"]
    assert as_conll([prediction], found) == "A0\t1.0000\tO\n2019\t0.5000\tB-X\n"
    assert as_text(prediction, found, 0, chunks=True).plain == "A0 [X 2019 0.50]"


def test_an_intent_is_shown_with_or_without_chunks() -> None:
    examples = Examples({"tokens": [["go"]]}, "x", [1])
    for chunks, tags, shown in ((True, ["O"], "go  (ask)"), (False, ["V"], "go/V 1.00    (ask)")):
        prediction = Prediction(tags, probabilities=[1.0], details={"intent": "ask"})
        assert as_text(prediction, examples, 0, chunks=chunks).plain == shown


# --- lists in tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        ("EU rejects", "B-ORG O"),
        ("['EU', 'rejects']", "['B-ORG', 'O']"),  # as pandas writes lists
        ('["EU", "rejects"]', '["B-ORG", "O"]'),
        ("EU rejects", "['B-ORG', 'O']"),
    ],
)
def test_lists_in_the_cells_of_a_table(write, words: str, tags: str) -> None:
    frame = pd.DataFrame({"tokens": [words, "He said"], "ner_tags": [tags, "O O"]})
    path = write("x.csv", frame.to_csv(index=False))
    assert read(path) == {"tokens": [["EU", "rejects"], ["He", "said"]], "tags": [["B-ORG", "O"], ["O", "O"]]}


@pytest.mark.parametrize("cell", ["['EU' 'rejects']", "[3 0]"])  # as numpy writes arrays
def test_lists_that_cannot_be_read_are_refused(write, cell: str) -> None:
    path = write("x.csv", pd.DataFrame({"tokens": ["EU rejects"], "tags": [cell]}).to_csv(index=False))
    with pytest.raises(DataError) as raised:
        read(path)
    assert raised.value.where == f"{path}:2"


def test_words_in_brackets_are_words(write) -> None:
    path = write("x.csv", "tokens,tags\n[ see below ],O O O O\n")
    assert read(path)["tokens"] == [["[", "see", "below", "]"]]


def test_a_table_of_a_word_a_row_is_refused(write) -> None:
    path = write("x.csv", "sentence,word,tag\n" + "".join(f"{i // 4},w{i},O\n" for i in range(12)))
    with pytest.raises(DataError, match="single word") as raised:
        read(path, tokens="word", tags="tag")
    assert "CoNLL columns" in str(raised.value.hint)


def test_the_csv_that_predict_writes_is_read_back_as_the_same_words(run: Path, run_bertkit, write) -> None:
    rows = [{"tokens": ["New", "York", "is", "it's"]}, {"tokens": ['"', "[", "]", "a,b"]}]
    path = write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert run_bertkit("predict", run, path, "--output", "out.csv").code == 0
    assert [row["tokens"] for row in predicted(run_bertkit, run, "out.csv")] == [row["tokens"] for row in rows]


@pytest.mark.parametrize("word", ["a\tb", "", "a\nb"])
def test_words_that_columns_cannot_hold_are_refused(run: Path, run_bertkit, write, word: str) -> None:
    path = write("in.jsonl", json.dumps({"tokens": ["good"]}) + "\n" + json.dumps({"tokens": ["a", word]}) + "\n")
    ran = run_bertkit("predict", run, path, "--format", "conll")
    assert (ran.code, ran.out) == (3, "")
    assert f"({path}:2)" in ran.err
    assert "hint: write .jsonl" in ran.err
    assert [row["tokens"] for row in predicted(run_bertkit, run, path)] == [["good"], ["a", word]]

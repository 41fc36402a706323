"""The family from files to scores and predictions: forms, schemes, windows, heads, bad input, and the real data."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from file_contents import read_conll
from hypothesis import example, given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from seqeval.metrics.sequence_labeling import get_entities
from trained import predictions_of

import bertkit
from bertkit.config import TrainConfig, filled
from bertkit.errors import DataError, ModelError, UsageError, UserError
from bertkit.features import IGNORED
from bertkit.metrics.classification import mean_squared_error
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import save_model
from bertkit.readers import Examples
from bertkit.runs.forward import outputs_of
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.target import open_target
from bertkit.tasks import Prediction, Task, TokenClassification, TokenClassificationTask
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.counts import lines_of
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.token_classification.output import as_conll, as_row, as_text
from bertkit.tasks.token_classification.tags import SCHEMES, convert, count_illegal, scheme_of
from bertkit.tasks.token_classification.task import Tagged
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import micro_batches_for_rank

Sentences = list[list[tuple[str, str]]]
Write = Callable[[str, str], Path]

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


def words_in(sentences: Sentences) -> list[list[str]]:
    return [[word for word, _ in sentence] for sentence in sentences]


def tags_in(sentences: Sentences) -> list[list[str]]:
    return [[tag for _, tag in sentence] for sentence in sentences]


def as_columns(sentences: Sentences, separator: str = " ", row: str = "{word}{sep}{tag}\n") -> str:
    return "\n".join("".join(row.format(word=w, tag=t, sep=separator) for w, t in sentence) for sentence in sentences)


def as_conllu(sentences: Sentences) -> str:
    line = "{at}\t{word}\t_\t{pos}\t{tag}\t_\t_\t_\t_\t_\n".format
    return "".join(
        "# text\n" + "".join(line(at=i, word=w, tag=t, pos="X" if t == "O" else "NOUN") for i, (w, t) in enumerate(s, 1)) + "\n"
        for s in sentences
    )


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_tokens(sentences: Sentences, tokens: str = "tokens", tags: str = "tags") -> str:
    return jsonl([{tokens: [w for w, _ in sentence], tags: [t for _, t in sentence]} for sentence in sentences])


def as_entities(sentences: Sentences) -> str:
    rows = []
    for words, tags in zip(words_in(sentences), tags_in(sentences), strict=True):
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        found = [[int(ends[a]) - len(words[a]), int(ends[b]), kind] for kind, a, b in get_entities(tags)]
        rows.append({"text": " ".join(words), "entities": found})
    return jsonl(rows)


TRAIN, DEV = made_sentences(40, 0), made_sentences(12, 1)
COMMON = "--batch-size 8 --max-length 24 --precision fp32 --device cpu --learning-rate 3e-3 --no-baselines".split()
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer_dir)


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned the made sentences well enough to name most things."""
    from bertkit.cli import main

    folder = tmp_path_factory.mktemp("tagger")
    for name, rows in (("train", made_sentences(200, 0)), ("dev", DEV)):
        (folder / f"{name}.conll").write_text(as_columns(rows), encoding="utf-8")
    data = ("--train", folder / "train.conll", "--validation", folder / "dev.conll", "-m", tiny_model_dir, "-o", folder / "run")
    how = ("--max-steps", 50, "--learning-rate", 5e-3)
    assert main([str(part) for part in ("finetune", "token-classification", *data, *COMMON, *how)]) == 0
    return folder / "run"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content.encode())
        return tmp_path / name

    return write


def predicted(run_bertkit, *arguments: object, stdin: bytes = b"") -> list[dict[str, Any]]:
    ran = run_bertkit("predict", *arguments, stdin=stdin)
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def task_of(*labels: str, scheme: str | None = None, intents: tuple[str, ...] = (), **options: Any) -> TokenClassificationTask:
    recipe = filled(TokenClassification(intent=bool(intents), training=filled(TrainConfig(precision="fp32")), **options))
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


def fit_files(train: Path, validation: object = None, **options: Any) -> tuple[TokenClassificationTask, dict[str, Examples]]:
    files = {"train": str(train), "validation": str(validation or train)}
    return fitted(TokenClassification().overridden(files | options))


def read_to_predict(task: TokenClassificationTask, path: Path, *typed: str) -> dict[str, list[Any]]:
    """The columns of a file for the task to predict; typed: options that the user gives again."""
    recipe = task.recipe.with_file(str(path), typed).resolved()
    return replace(task, recipe=recipe).examples(read_splits(recipe, ["test"]).rows["test"], labelled=False).columns


def scores_of(task: TokenClassificationTask, tags: list[list[str]], examples: Examples) -> dict[str, float | None]:
    return task.score([Prediction(row) for row in tags], task.truth(examples))


def save(task: TokenClassificationTask, folder: Path, tokenizer: Tokenizer) -> torch.nn.Module:
    """Write a model folder of random weights; returns the module."""
    config = task.configure(BertConfig(vocab_size=tokenizer.vocab_size, initializer_range=0.5, **SMALL))
    module = task.build(config)
    initialize(module, config, seed=4)
    state = module.state_dict()
    save_model(folder, state_dict=state, config=config, tokenizer=tokenizer, architecture=task.architecture(config))
    return module.eval()


# --- files to train on and to predict --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "form", "options"),
    [
        (".conll", as_columns, {}),
        (".txt", lambda rows: as_columns(rows, "\t"), {}),
        (".conll", lambda rows: as_columns(rows, row="{word}{sep}{tag}{sep}x\n"), {"column": "2"}),
        (".conll", lambda rows: as_columns(rows, "|"), {"separator": "|"}),
        (".txt", lambda rows: as_columns(rows, "|"), {"separator": "|"}),
        (".conllu", as_conllu, {"column": "xpos"}),
        (".jsonl", as_tokens, {}),
        (".jsonl", lambda rows: as_tokens(rows, "words"), {}),
        (".jsonl", lambda rows: as_tokens(rows, tags="gold"), {"tokens": "tokens", "tags": "gold"}),
        (".jsonl", as_entities, {}),
    ],
)
def test_every_form_of_a_file_gives_the_same_rows(write: Write, ending: str, form, options: dict[str, str]) -> None:
    files = [write(f"{split}{ending}", form(rows)) for split, rows in (("train", TRAIN), ("dev", DEV))]
    task, splits = fit_files(*files, **options)
    assert (task.labels, task.scheme) == (("O", "B-THING", "B-WHO", "I-THING"), "iob2")
    assert task.remarks.notes == ("tag scheme of the training data: iob2",)
    for examples, rows in zip(splits.values(), (TRAIN, DEV), strict=True):
        assert (examples.columns["tokens"], examples.columns["tags"]) == (words_in(rows), tags_in(rows))
    assert read_to_predict(task, files[1], *options.keys() & {"separator"})["tokens"] == words_in(DEV)
    text = read_to_predict(task, write("page.txt", "Grace paid\nAlan sold\n"))  # no column says anything of it
    assert (text["text"], text["tokens"]) == (["Grace paid", "Alan sold"], [["Grace", "paid"], ["Alan", "sold"]])
    _, parts = fit_files(files[0], "25%", **options)
    assert len(parts["train"]) + len(parts["validation"]) == len(TRAIN)
    assert 5 <= len(parts["validation"]) <= 15


@pytest.mark.parametrize(
    ("name", "content", "options", "labels"),
    [
        ("x.conllu", as_conllu(TRAIN), {"tags": "xpos"}, ("O", "B-THING", "B-WHO", "I-THING")),
        ("x.conllu", as_conllu(TRAIN), {}, ("NOUN", "X")),
        ("x.conll", "Ann NN B-PER\nruns VB O\n\n" * 4, {"tags": "2"}, ("NN", "VB")),
        ("x.jsonl", '{"tokens": ["a", "b"], "tags": ["N", "V"], "label": ["B-WHO", "O"]}\n', {"tags": "label"}, ("O", "B-WHO")),
    ],
)
def test_the_named_column_is_learned(write: Write, name: str, content: str, options, labels: tuple[str, ...]) -> None:
    assert fit_files(write(name, content), **options)[0].labels == labels


@pytest.mark.parametrize(
    ("row", "option"),
    [({"text": "Ann ran", "entities": []}, "--entities"), ({"tokens": ["Ann", "ran"], "tags": ["O", "O"]}, "--tags")],
)
def test_data_with_one_tag_asks_for_another_column(write: Write, row: dict[str, Any], option: str) -> None:
    with pytest.raises(DataError, match="every word has the tag 'O'") as error:
        fit_files(write("x.jsonl", jsonl([row] * 4)))
    assert f"{option} chooses another one" in str(error.value.hint)


def test_texts_that_are_named_come_before_words_that_are_guessed() -> None:
    columns = {"text": ["Ann lives"], "entities": [[[0, 3, "PER"]]], "tokens": [["Ann", "lives"]], "tags": [["NN", "VB"]]}
    rows = Examples(columns, "my.jsonl", [1])
    for named, tags in (
        ({}, ["NN", "VB"]),
        ({"text": "text", "entities": "entities"}, ["B-PER", "O"]),
        ({"entities": "entities"}, ["B-PER", "O"]),
    ):
        assert TokenClassification(**named).standardize(rows, labelled=True).columns["tags"] == [tags]


@pytest.mark.parametrize(
    ("text", "entities", "tokens", "tags"),
    [
        (
            *("Berlin-based  Siemens, Lyon.", [[0, 6, "LOC"], {"start": 14, "end": 21, "label": "ORG"}]),
            *("Berlin -based Siemens , Lyon .", "B-LOC O B-ORG O O O"),
        ),
        ("in New York City", [[2, 12, "A"], [12, 16, "A"]], "in New York City", "O B-A I-A B-A"),
    ],
)
def test_entities_split_the_words_that_they_cut(write: Write, text: str, entities: list, tokens: str, tags: str) -> None:
    found = read(write("x.jsonl", jsonl([{"text": text, "entities": entities}])))
    assert (found["tokens"], found["tags"]) == ([tokens.split()], [tags.split()])
    assert [text[start:end] for start, end in found["places"][0]] == tokens.split()


def test_entities_that_cut_words_are_reported(write: Write) -> None:
    rows = [{"text": "the good lamp", "entities": [[4, 7, "WHAT"]]}, {"text": "the lamp", "entities": [[4, 8, "WHAT"]]}]
    path = write("x.jsonl", jsonl(rows * 3))
    [warning] = fit_files(path)[1]["train"].remarks.warnings
    assert warning.startswith("3 of 6 entities")
    assert f"[4, 7, 'WHAT'] ({path}:1)" in warning


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        ("EU rejects", "B-ORG O"),
        ("['EU', 'rejects']", "['B-ORG', 'O']"),  # as pandas writes lists
        ('["EU", "rejects"]', '["B-ORG", "O"]'),
        ("EU rejects", "['B-ORG', 'O']"),
    ],
)
def test_lists_in_the_cells_of_a_table(write: Write, words: str, tags: str) -> None:
    path = write("x.csv", pd.DataFrame({"tokens": [words, "He said"], "ner_tags": [tags, "O O"]}).to_csv(index=False))
    assert read(path) == {"tokens": [["EU", "rejects"], ["He", "said"]], "tags": [["B-ORG", "O"], ["O", "O"]]}


def test_words_in_brackets_are_words(write: Write) -> None:
    assert read(write("x.csv", "tokens,tags\n[ see below ],O O O O\n"))["tokens"] == [["[", "see", "below", "]"]]


# --- bad input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("x.conll", "a B-WHO\nb O\n\nc\n", ":4"),
        ("x.conll", "a\tB-WHO\nb\t\n", ":2"),
        ("x.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", "b"], "tags": ["O"]}\n', ":2"),
        ("x.jsonl", '{"tokens": ["a"], "tags": null}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a"], "tags": 3}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a"], "tags": [null]}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a"], "tags": [true]}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a"], "tags": [""]}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a", 3], "tags": ["O", "O"]}\n', ":1"),
        ("x.jsonl", '{"tokens": ["a"]}\n', ""),
        ("x.jsonl", '{"text": "a"}\n', ""),
        ("x.txt", "a text\n", ""),
        ("x.conll", "a\nb\n", ""),
        ("x.jsonl", '{"id": "a"}\n', ""),
        ("x.conll", "", ""),
        ("x.conll", "\n\n", ""),
        ("x.conll", "-DOCSTART- -X- O\n\n", ""),
        ("x.jsonl", '{"tokens": [], "tags": []}\n', ""),
        ("x.conll", "a O\n\nb O\n", ""),
        ("x.conll", "".join(f"word{number} word{number}\n" for number in range(99)), ""),
        ("x.jsonl", as_tokens(DEV)[:-9], f":{len(DEV)}"),
        ("x.jsonl", '{"text": "a", "entities": null}\n', ":1"),
        ("x.csv", "tokens,tags\nEU rejects,['EU' 'rejects']\n", ":2"),  # as numpy writes arrays
        ("x.csv", "tokens,tags\nEU rejects,\"['O', {[]: 1}, 'O']\"\n", ":2"),  # which Python cannot evaluate
        ("x.csv", "tokens,tags\nEU rejects,[3 0]\n", ":2"),
        ("x.csv", "tokens,tags\n" + "".join(f"w{i},O\n" for i in range(12)), ""),  # a word a row
    ],
)
def test_rows_that_cannot_be_used(write: Write, name: str, content: str, line: str) -> None:
    path = write(name, content)
    with pytest.raises(DataError) as raised:
        fit_files(path, write("good.conll", as_columns(TRAIN)))
    assert raised.value.where == f"{path}{line}"


@pytest.mark.parametrize(
    "entities",
    [
        *([[4, 99, "A"]], [[-1, 3, "A"]], [[5, 5, "A"]], [[0, 9, "A"], [4, 9, "B"]], [[3, 4, "A"]], [["the", "A"]]),
        *([[0, 3.5, "A"]], [[False, 3, "A"]], [[0, 3, ""]], ["A"], [{"start": 0, "end": 3}], None),
    ],
)
def test_entities_that_cannot_be_used(write: Write, entities: list[Any] | None) -> None:
    text = "the phone is late" if entities is not None else None
    rows = [{"text": "a man", "entities": [[2, 5, "WHO"]]}, {"text": text, "entities": entities or []}]
    path = write("x.jsonl", jsonl(rows))
    with pytest.raises(DataError) as raised:
        read(path)
    assert raised.value.where == f"{path}:2"


POS, ANY_CASE = "a NOUN\nb VERB\n\nc NOUN\n", "a O\n\nb B-Who\n"
SCENARIO = '{"tokens": ["a"], "tags": ["O"], "scenario": "x"}\n'


@pytest.mark.parametrize(
    ("name", "content", "options", "error", "line", "said"),
    [
        ("x.conll", POS, {"scheme": "iobes"}, UsageError, None, "iobes"),
        ("x.conll", POS, {"constrained": True}, UsageError, None, "constrained"),
        ("x.conll", POS, {"tags": "pos"}, UsageError, "", "'pos' for the tags"),
        ("x.conll", POS, {"intent_column": "scene"}, UsageError, None, "--intent"),
        ("x.conll", "a O\nb B-WHO\n", {"column": "5"}, UsageError, ":1", "no column '5'"),
        ("x.conll", ANY_CASE, {"labels": "O,B-WHO"}, DataError, ":3", "B-Who"),
        ("x.conll", ANY_CASE, {"labels": "O,O"}, UsageError, None, "twice"),
        ("x.conll", as_columns(TRAIN), {"labels": "O,B-THING,B-WHO,I-THING,PAD"}, UsageError, None, "PAD"),
        ("x.conll", ANY_CASE, {"class_weights": "b-who=2"}, UsageError, None, "b-who"),
        ("x.conll", POS, {"head": "crf", "class_weights": "NOUN=2"}, UsageError, None, "--class-weights"),
        ("x.conll", POS, {"head": "crf", "label_smoothing": 0.1}, UsageError, None, "--label-smoothing"),
        ("x.jsonl", as_tokens(TRAIN), {"column": "2"}, UsageError, "", "--column"),
        ("x.jsonl", as_tokens(TRAIN), {"tokens": "tags"}, UsageError, "", "for both the words and the tags"),
        ("x.jsonl", SCENARIO, {"tags": "tag_s"}, DataError, "", "tag_s"),
        ("x.jsonl", SCENARIO, {"intent": True}, DataError, "", "intent"),
        ("x.jsonl", SCENARIO, {"intent": True, "intent_column": "scene"}, DataError, "", "scene"),
        (
            "x.jsonl",
            SCENARIO.replace('"x"', "null"),
            {"intent": True, "intent_column": "scenario"},
            DataError,
            ":1",
            "the intent is None",
        ),
        ("x.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n', {"intent": True}, DataError, "", "intent"),
    ],
)
def test_options_that_do_not_fit_the_data(
    write: Write, name: str, content: str, options: dict[str, Any], error: type[UserError], line: str | None, said: str
) -> None:
    path = write(name, content)
    with pytest.raises(error) as raised:
        fit_files(path, **options)
    assert said in raised.value.what
    assert raised.value.where == (None if line is None else f"{path}{line}")


def test_a_table_of_texts_to_predict_names_both_options(write: Write) -> None:
    task, _ = fit_files(write("good.conll", as_columns(TRAIN)))
    path = write("x.csv", "Meldung,Art\nSara lives in Oslo,x\n")
    with pytest.raises(DataError, match="no column 'tokens' or 'text'; columns: Meldung, Art") as raised:
        task.recipe.standardize(task.recipe.read_file(path), labelled=False)
    assert "--text NAME, or --tokens NAME for lists of words" in str(raised.value.hint)


@pytest.mark.parametrize(("content", "line"), [(POS, 1), (ANY_CASE, 3)])
def test_dev_rows_that_do_not_fit_training(write: Write, tokenizer: Tokenizer, content: str, line: int) -> None:
    task, _ = fit_files(write("good.conll", as_columns(TRAIN)))
    path = write("x.conll", content)
    with pytest.raises(DataError) as raised:
        task.encode(task.examples(task.recipe.read_file(path), labelled=True), tokenizer, max_length=24)
    assert raised.value.where == f"{path}:{line}"


def test_dev_rows_with_numbers_of_tags_can_be_named(write: Write) -> None:
    task, _ = fit_files(write("good.conll", as_columns(TRAIN)))
    path = write("x.jsonl", json.dumps({"tokens": ["a", "b"], "ner_tags": [0, 1]}) + "\n")
    with pytest.raises(DataError, match="not all tags are chunk tags such as B-PER, as in training: 0, 1") as raised:
        task.examples(task.recipe.read_file(path), labelled=True)
    assert str(raised.value.hint).endswith("--labels O,B-PER,...")
    named = replace(task, recipe=replace(task.recipe, labels=("O", task.labels[1])))
    assert named.examples(named.recipe.read_file(path), labelled=True).columns["tags"] == [["O", task.labels[1]]]


def test_numbers_of_tags_beyond_their_names_are_refused() -> None:
    examples = Examples({"tokens": [["a", "b"]], "ner_tags": [[0, -100]]}, "set", [7], label_names={"ner_tags": ("O", "B-X")})
    with pytest.raises(DataError) as raised:
        TokenClassification().standardize(examples, labelled=True)
    assert raised.value.where == "set:7"
    numbered = replace(examples, columns=examples.columns | {"ner_tags": [[0, 1]]})
    assert TokenClassification().standardize(numbered, labelled=True).columns["tags"] == [["O", "B-X"]]


@pytest.mark.parametrize("word", ["a\tb", "", "a\nb"])
def test_words_that_conll_columns_cannot_hold_are_refused(word: str) -> None:
    rows = Examples({"tokens": [["good"], ["a", word]]}, "in.jsonl", [1, 2])
    with pytest.raises(DataError) as raised:
        as_conll([Prediction(["O"], probabilities=[1.0]), Prediction(["O", "O"], probabilities=[1.0, 1.0])], rows)
    assert raised.value.where == "in.jsonl:2"


# --- tags, schemes and intents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, *SCHEMES])
@pytest.mark.parametrize(
    ("train", "dev"),
    [("iob2", "iob2"), ("iob1", "iob1"), ("iobes", "iobes"), ("iob2", "iob1"), ("iob1", "iob2"), ("iobes", "iob2")],
)
def test_tags_are_converted_to_one_scheme(write: Write, tokenizer: Tokenizer, train: str, dev: str, asked: str | None) -> None:
    files = [write(f"{scheme}-{at}.conll", as_columns(made_sentences(30, 5, scheme))) for at, scheme in enumerate((train, dev))]
    task, splits = fit_files(*files, **({"scheme": asked} if asked else {}))
    final = asked or train
    wanted = tags_in(made_sentences(30, 5, final))
    assert (task.scheme, set(task.labels)) == (final, {tag for row in wanted for tag in row})
    turned = f", converted to {final}" if final != train else ""
    assert task.remarks.notes == (f"tag scheme of the training data: {train}{turned}",)
    for scheme, examples in zip((train, dev), splits.values(), strict=True):
        assert examples.columns["tags"] == wanted
        assert examples.remarks.notes == ((f"tags converted from {scheme} to {final}",) if scheme != final else ())
        features, remarks = task.encode(examples, tokenizer, max_length=64)
        assert [task.labels[target] for target in features.labels["labels"].values] == [tag for row in wanted for tag in row]
        assert lines_of(remarks) == []
        scores = scores_of(task, wanted, examples)
        assert scores["f1"] == scores["strict_f1"] == scores["accuracy"] == 1.0


@pytest.mark.parametrize("head", ["linear", "crf"])
def test_illegal_tags_are_reported_and_not_asked_of_a_constrained_crf(write: Write, tokenizer: Tokenizer, head: str) -> None:
    slips = [[("the", "O"), ("man", "I-WHO")], [("a", "B-THING"), ("b", "I-WHO")]]
    task, splits = fit_files(write("a.conll", as_columns([*TRAIN, *slips])), head=head, constrained=True)
    features, remarks = task.encode(splits["train"], tokenizer, max_length=24)
    [remark] = lines_of(remarks)
    lines = (sum(len(sentence) + 1 for sentence in [*TRAIN, *slips[:at]]) + 1 for at in range(2))
    assert remark.startswith("2 tags in places where iob2 does not allow them")
    assert all(f"a.conll:{line}" in remark for line in lines)
    flat = [task.labels[target] for target in features.labels["labels"].values]
    ends = np.cumsum([*map(len, splits["train"].columns["tokens"])])
    targets = [row.tolist() for row in np.split(np.array(flat, dtype=object), ends[:-1])]
    assert targets[:-2] == tags_in(TRAIN)
    assert count_illegal(targets, "iob2") == (0 if head == "crf" else 2)


@pytest.mark.parametrize("letters", ["BMES", "BILU"])
def test_a_constrained_crf_learns_legal_tags_in_the_letters_of_its_labels(tokenizer: Tokenizer, letters: str) -> None:
    begin, inside, end, single = (f"{letter}-A" for letter in letters)
    task = task_of("O", begin, inside, end, single, scheme="iobes", head="crf", constrained=True)
    tags = [[begin, "O", "O"], [inside, inside, end]]
    features, _ = task.encode(Examples({"tokens": [["a", "b", "c"]] * 2, "tags": tags}, "f", [1, 2]), tokenizer, max_length=9)
    found = [task.labels[target] for target in features.labels["labels"].values]
    assert found == [single, "O", "O", begin, inside, end]


def test_predicted_tags_that_are_illegal_are_reported() -> None:
    task = task_of("O", "B-A", "I-A", scheme="iob2")
    [remark] = lines_of(task.counts_of([Prediction(["O", "I-A"])]))
    assert remark.startswith("1 predicted tag that iob2 does not allow")
    assert lines_of(task.counts_of([Prediction(["O", "B-A"])])) == []


def test_parts_of_speech_have_accuracy_and_no_entities(write: Write) -> None:
    task, splits = fit_files(write("train.conllu", as_conllu(TRAIN)))
    assert (task.scheme, task.labels, task.remarks.notes) == (None, ("NOUN", "X"), ())
    tags = splits["train"].columns["tags"]
    assert scores_of(task, tags, splits["train"]) == {"accuracy": 1.0, "sentence_accuracy": 1.0}
    prediction = Prediction(tags[0], probabilities=[0.5] * len(tags[0]))
    row = task.row(prediction, splits["train"], 0)
    assert "entities" not in row
    assert [row["text"][start:end] for start, end in row["offsets"]] == row["tokens"] == words_in(TRAIN)[0]
    shown = task.format_prediction(prediction, splits["train"], 0).plain
    assert shown == "  ".join(f"{word}/{tag} 0.50" for word, tag in zip(row["tokens"], tags[0], strict=True))


def test_a_stray_tag_that_hides_the_scheme_is_reported(write: Write) -> None:
    path = write("x.conll", as_columns([*TRAIN, [("thing", "THING")]]))
    task, _ = fit_files(path)
    [warning] = task.remarks.warnings
    assert "'THING'" in warning
    assert f"{path}:{sum(map(len, TRAIN)) + len(TRAIN) + 1}" in warning
    assert task.scheme is None


def test_a_few_tags_of_another_scheme_are_converted(write: Write) -> None:
    """As labels they would make the scheme of the model, which is told by its labels, another one than that of the task."""
    sentences = [*made_sentences(30, 5, "iob2"), [("Bad", "B-PER"), ("Tölz", "E-PER")], [("Ulm", "S-PER")]]
    task, splits = fit_files(write("x.conll", as_columns(sentences)))
    assert task.remarks.warnings == ("2 tags of the scheme iobes, such as E-PER, converted to iob2",)
    assert (task.scheme, scheme_of(task.labels)) == ("iob2", "iob2")
    restored = Task.restore(task.configure(BertConfig()), task.recipe)
    assert (restored.scheme, restored.labels) == (task.scheme, task.labels)
    assert task.examples(splits["train"], labelled=True).columns["tags"][-2:] == [["B-PER", "I-PER"], ["B-PER"]]


OTHER_FORMS = {"bare": "{1}", "underscore": "{0}_{1}", "suffix": "{1}-{0}"}


@pytest.mark.parametrize("train", OTHER_FORMS)
@pytest.mark.parametrize("dev", [None, *OTHER_FORMS])
def test_other_forms_of_chunk_tags_are_scored_by_chunk(write: Write, tokenizer: Tokenizer, train: str, dev: str | None) -> None:
    def source(form: str | None) -> Path:
        how = OTHER_FORMS.get(form or "", "{0}-{1}")
        rows = [[(w, t if t == "O" else how.format(*t.split("-"))) for w, t in row] for row in made_sentences(30, 5)]
        return write(f"{form}.conll", as_columns(rows))

    bare = [[("O" if t == "O" else "I" + t[1:]) for t in row] for row in tags_in(made_sentences(30, 5))]
    task, splits = fit_files(source(train), source(dev))
    labels = ("O", *(f"{prefix}-{kind}" for prefix in ("I" if train == "bare" else "BI") for kind in ("THING", "WHO")))
    assert set(task.labels) == set(labels) - ({"I-WHO"} if train != "bare" else set())
    assert splits["train"].columns["tags"] == (bare if train == "bare" else tags_in(made_sentences(30, 5)))
    assert len(task.remarks.notes) == 2, "the form and the scheme"
    scores = scores_of(task, splits["train"].columns["tags"], splits["train"])
    assert (next(iter(scores)), scores["f1"]) == ("f1", 1.0)
    encoded = task.encode(splits["validation"], tokenizer, max_length=64)
    assert not any("not seen in training" in remark for remark in lines_of(encoded.counts)) or "bare" in (train, dev)
    restored = Task.restore(task.configure(BertConfig()), TokenClassification(labels=task.labels))
    assert restored.labels == task.labels


def test_tags_without_a_form_stay_where_the_model_has_them_so() -> None:
    rows = Examples({"tokens": [["a", "b", "c"]], "tags": [["O", "PER", "LOC"]]}, "f", [1])
    own = filled(TokenClassification(labels=("O", "PER", "LOC")))
    task = Task.fit(own, rows)
    assert (task.labels, task.scheme) == (("O", "I-PER", "I-LOC"), "iob1")
    extra = {"architectures": ["BertForTokenClassification"]}
    assert Task.restore(replace(task.configure(BertConfig()), extra=extra), own).labels == task.labels
    config = BertConfig(id2label=dict(enumerate(("O", "PER", "LOC"))), extra=extra)
    for kept in (Task.fit(own, rows, config), Task.restore(config), Task.restore(config, own)):
        assert (kept.labels, kept.scheme, kept.examples(rows, labelled=True).columns["tags"]) == (
            ("O", "PER", "LOC"),
            None,
            rows.columns["tags"],
        )


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


LETTERS = ("BMES", "BIES", "BILU")


@pytest.mark.parametrize("train", LETTERS)
@pytest.mark.parametrize("dev", LETTERS)
def test_the_same_chunks_in_other_letters_score_alike(write: Write, tokenizer: Tokenizer, train: str, dev: str) -> None:
    def source(letters: str) -> Path:
        spelled = str.maketrans("BIES", letters)
        rows = [[(w, t if t == "O" else t[0].translate(spelled) + t[1:]) for w, t in s] for s in made_sentences(12, 1, "iobes")]
        return write(f"{letters}.conll", as_columns(rows))

    task, examples = fit_files(source(train), source(dev))
    assert {label[0] for label in task.labels} <= {"O", *train}
    gold, other = examples.values()
    encoding = task.encode(other, tokenizer, max_length=24)
    assert (other.remarks.notes, lines_of(encoding.counts)) == ((), [])
    assert (encoding.features.labels["labels"].values != IGNORED).all()
    scores = scores_of(task, gold.columns["tags"], other)
    assert (scores["f1"], scores["accuracy"], scores["sentence_accuracy"]) == (1.0, 1.0, 1.0)


def test_tags_that_training_lacks_are_reported_and_score_as_not_found(write: Write, tokenizer: Tokenizer) -> None:
    dev = [*DEV, [("EU", "B-ELSE"), ("x", "I-ELSE"), ("man", "B-WHO")]]
    task, splits = fit_files(write("a.conll", as_columns(TRAIN)), write("b.conll", as_columns(dev)))
    features, remarks = task.encode(splits["validation"], tokenizer, max_length=24)
    assert lines_of(remarks) == ["2 words with tags not seen in training (B-ELSE, I-ELSE)"]
    assert (features.labels["labels"].values == IGNORED).sum() == 2
    said = [*tags_in(DEV), ["O", "O", "B-WHO"]]
    scores = scores_of(task, said, splits["validation"])
    assert scores["f1"] == pytest.approx(f1_score(tags_in(dev), said))
    assert scores["f1_ELSE"] == 0


def test_sentences_without_words_are_counted_in_training_too(write: Write, tokenizer: Tokenizer) -> None:
    texts = ("", "EU", " ", "we like it")
    rows = [{"text": text, "entities": [[0, 2, "X"]] if text == "EU" else []} for text in texts]
    task, splits = fit_files(write("a.jsonl", jsonl(rows)), write("b.jsonl", jsonl(rows[1:2])))
    features, remarks = task.encode(splits["train"], tokenizer, max_length=24)
    assert (len(features), lines_of(remarks)) == (2, ["2 without text"])
    assert lines_of(task.encode(splits["validation"], tokenizer, max_length=24).counts) == []


def test_intents_that_training_lacks_are_reported(write: Write, tokenizer: Tokenizer) -> None:
    def rows(name: str, *intents: str) -> Path:
        return write(name, jsonl([{"tokens": ["a", "b"], "tags": ["B-X", "O"], "intent": intent} for intent in intents]))

    train = rows("a.jsonl", "book", "ask")
    task, splits = fit_files(train, rows("b.jsonl", "askk", "sell", "book"), intent=True)
    features, remarks = task.encode(splits["validation"], tokenizer, max_length=24)
    assert lines_of(remarks) == ["2 with intents not seen in training (askk, sell)"]
    assert features.labels["intent"].values.tolist() == [IGNORED, IGNORED, 1]
    dev = rows("b.jsonl", "ask", "Book")
    task, splits = fit_files(train, dev, intent=True)
    with pytest.raises(DataError) as raised:
        task.encode(splits["validation"], tokenizer, max_length=24)
    assert raised.value.where == f"{dev}:2"


def test_the_column_of_the_intent_is_named(write: Write) -> None:
    row = {"tokens": ["a", "b"], "tags": ["B-X", "O"], "label": "no", "scene": "x"}
    path = write("a.jsonl", jsonl([row, row | {"scene": "y"}]))
    assert fit_files(path, intent=True, intent_column="scene")[0].intents == ("x", "y")
    assert fit_files(path, intent=True)[0].intents == ("no",)


def test_intents_by_number_have_the_names_that_the_source_declares() -> None:
    recipe = TokenClassification(intent=True)
    names = {"intent": ("ask", "tell")}
    rows = Examples({"tokens": [["a"], ["b"]], "tags": [["O"]] * 2, "intent": [1, "ask"]}, "set", [7, 8], label_names=names)
    assert recipe.standardize(rows, labelled=True).columns["intent"] == ["tell", "ask"]
    for number in (2, -1):
        with pytest.raises(DataError) as raised:
            recipe.standardize(replace(rows, columns=rows.columns | {"intent": [0, number]}), labelled=True)
        assert raised.value.where == "set:8"


def test_intents_belong_to_the_model(write: Write, tmp_path: Path) -> None:
    intents = {
        split: ["buy" if "late" in words else "sell" for words in words_in(rows)]
        for split, rows in (("train", TRAIN), ("valid", DEV))
    }
    for split, rows in (("train", TRAIN), ("valid", DEV)):
        for file, lines in (("seq.in", words_in(rows)), ("seq.out", tags_in(rows)), ("label", [[it] for it in intents[split]])):
            write(f"data/{split}/{file}", "".join(" ".join(line) + "\n" for line in lines))
    recipe = load_recipe("snips").overridden({"data": str(tmp_path / "data")})
    task, splits = fitted(recipe.overridden({"intent": True}))
    assert task.intents == ("buy", "sell")
    assert splits["validation"].columns["intent"] == intents["valid"]
    predictions = [Prediction(tags, details={"intent": "buy"}) for tags in tags_in(DEV)]
    scores = task.score(predictions, task.truth(splits["validation"]))
    assert scores["intent_accuracy"] == scores["sentence_accuracy"] == pytest.approx(intents["valid"].count("buy") / len(DEV))
    config = task.configure(BertConfig())
    for asked in (None, recipe, recipe.overridden({"intent": True})):
        assert Task.restore(config, asked).intents == task.intents
    some = replace(splits["train"], columns=splits["train"].columns | {"intent": ["buy"] * len(TRAIN)})
    assert Task.fit(recipe.overridden({"intent": True}).resolved(), some, config).intents == task.intents
    other = replace(splits["train"], columns=splits["train"].columns | {"intent": ["other"] * len(TRAIN)})
    with pytest.raises(ModelError):
        Task.fit(recipe.overridden({"intent": True}).resolved(), other, config)


def test_a_wrong_intent_is_an_error() -> None:
    rows = Examples({"tokens": [["a"], ["b"]], "tags": [["O"], ["B-X"]], "intent": ["ask", "tell"]}, "my.jsonl", [1, 2])
    found = [Prediction(["O"], details={"intent": "tell"}), Prediction(["O"], details={"intent": "ask"})]
    for task, errors in ((task_of(intents=("ask", "tell")), [1, 2]), (task_of(), [0, 1])):
        truth = task.truth(rows)
        assert [task.error(*pair) for pair in zip(found, truth, strict=True)] == errors
        for scheme, shown in ((None, ["a/O", "b/B-X"]), ("iob2", ["a", "[X b]"])):
            shown = [f"{text}  ({known.intent})" if task.intents else text for text, known in zip(shown, truth, strict=True)]
            said = replace(task, scheme=scheme)
            assert [said.format_truth(known, rows, row) for row, known in enumerate(truth)] == shown


def test_the_labels_of_a_row_are_its_tags_and_its_intent() -> None:
    columns = {"tokens": [["a"]], "tags": [["O"]], "intent": ["ask"]}
    for names, labels in ((("tokens", "tags", "intent"), ("O", "ask")), (("tokens", "tags"), ("O",)), (("tokens",), ())):
        rows = Examples({name: columns[name] for name in names}, "f", [1])
        assert TokenClassification().labels_of(rows) == [labels]


def test_targets_are_described_at_their_words(tokenizer: Tokenizer) -> None:
    rows = {"tokens": [["walking", "man"]], "tags": [["O", "B-WHO"]], "intent": ["ask"]}
    task = task_of("O", "B-WHO", intents=("tell", "ask"))
    features = task.encode(Examples(rows, "f", [1]), tokenizer, max_length=9).features
    assert task.describe_targets(features, 0) == [{0: "ask", 1: "O", 3: "B-WHO"}]


def test_a_model_with_other_labels_or_another_head_is_refused() -> None:
    labels = ("O", "B-THING", "B-WHO", "I-THING")
    config = BertConfig(id2label=dict(enumerate(labels)), extra={"architectures": ["BertForTokenClassification"]})
    rows = Examples({"tokens": [["a", "b"]], "tags": [["B-X", "O"]]}, "f", [1])
    with pytest.raises(ModelError):
        Task.fit(TokenClassification(), rows, config)
    assert Task.restore(config, TokenClassification(labels=("I-THING", "B-WHO", "O", "B-THING"))).labels == labels
    assert Task.restore(config).scheme == "iob2"
    given = TokenClassification(labels=("I-THING", "B-WHO", "O", "B-THING"), constrained=True)
    assert Task.restore(config, given).scheme == "iob2"
    unnamed = replace(config, id2label={number: f"LABEL_{number}" for number in range(3)})
    assert Task.restore(unnamed, TokenClassification(labels=("O", "B-A", "I-A"), constrained=True)).scheme == "iob2"
    crf = task_of(*labels, scheme="iob2", head="crf").configure(replace(config, extra={"architectures": ["BertModel"]}))
    for asked, of_model, error in (
        (TokenClassification(labels=("O", "B-A")), config, ModelError),
        (TokenClassification(head="linear"), crf, ModelError),
        (TokenClassification(intent=True), crf, ModelError),
        (TokenClassification(scheme="iobes"), crf, UsageError),
        (TokenClassification(constrained=True), replace(config, id2label=dict(enumerate(("NN", "VB")))), UsageError),
    ):
        with pytest.raises(error) as raised:
            Task.restore(of_model, asked, where="run")
        assert raised.value.where == "run"


LETTERS = {"iob2": "O B-A I-A", "iobes": "O B-A I-A E-A S-A", "bmes": "O B-A M-A E-A S-A", "bilou": "O B-A I-A L-A U-A"}
TAUGHT = {
    "iob2": ["B-A I-A O", "B-A"],
    "iobes": ["B-A E-A O", "S-A"],
    "bmes": ["B-A E-A O", "S-A"],
    "bilou": ["B-A L-A O", "U-A"],
}


@pytest.mark.parametrize("head", [*LETTERS])
def test_a_head_that_is_kept_has_tags_in_its_own_scheme(head: str) -> None:
    """Those of IOB2 are all among those of IOBES, and mean something else."""
    labels = LETTERS[head].split()
    config = task_of(*labels, scheme=scheme_of(labels)).configure(BertConfig())
    columns = {"text": ["New York is", "Ann"], "entities": [[[0, 8, "A"]], [[0, 3, "A"]]]}
    rows = Examples(columns, "f", [1, 2])
    task = Task.fit(TokenClassification(), rows, config)
    assert (task.labels, task.scheme) == (tuple(labels), scheme_of(labels))
    tags = task.examples(rows, labelled=True).columns["tags"]
    assert [" ".join(row) for row in tags] == TAUGHT[head]
    assert count_illegal(tags, scheme_of(labels)) == 0


def test_class_weights_belong_to_a_label_however_it_is_spelled() -> None:
    config = replace(task_of("O", "B-A", scheme="iob2"), weights={"O": 1.0, "B-A": 3.0}).configure(BertConfig())
    assert Task.restore(config, TokenClassification(labels=("B-a", "O"))).weights == {"O": 1.0, "B-a": 3.0}


@pytest.mark.parametrize("head", ["linear", "bilstm"])
@pytest.mark.parametrize("intent", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"class_weights": "B-WHO=3,O=0.5"}, {"class_weights": "balanced", "label_smoothing": 0.3}, {"label_smoothing": 0.1}],
)
def test_the_loss_of_a_step_is_torchs_with_weights_and_smoothing(
    write: Write, tokenizer: Tokenizer, options: dict[str, Any], intent: bool, head: str
) -> None:
    """In micro-batches, and in windows; of all targets at once torch takes the weighted mean."""
    rows = [
        {"tokens": [word for word, _ in row], "tags": [tag for _, tag in row], "label": "ab"[at % 2]}
        for at, row in enumerate(made_sentences(9, 1))
    ]
    task, splits = fit_files(write("x.jsonl", jsonl(rows)), intent=intent, head=head, **options)
    counts = Counter(tag for row in rows for tag in row["tags"])
    expected = {
        "B-WHO=3,O=0.5": {"B-WHO": 3.0, "O": 0.5},
        "balanced": {tag: counts.total() / len(counts) / count for tag, count in counts.items()},
    }.get(options.get("class_weights", ""))
    weight = expected and torch.tensor([expected.get(label, 1.0) for label in task.labels], dtype=torch.float64)
    small = SMALL | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = task.configure(BertConfig(vocab_size=tokenizer.vocab_size, initializer_range=0.5, **small))
    for each in (task, Task.restore(config)):
        module = each.build(config).double()
        initialize(module, config, seed=4)
        features = each.encode(splits["train"], tokenizer, max_length=12).features
        batches = micro_batches_for_rank(features, np.arange(len(features)), 24)
        assert len(batches) > 2
        outputs = [module(batch) for batch in batches]
        found = sum(out.loss_sums["labels"] for out in outputs) / sum(batch.weights["labels"] for batch in batches)
        logits = torch.cat([out.logits["logits"] for out in outputs])
        targets = torch.cat([batch.labels["labels"] for batch in batches])
        smoothing = options.get("label_smoothing", 0.0) if each is task else 0.0
        wanted = F.cross_entropy(logits, targets, weight, label_smoothing=smoothing)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-12)


def test_a_metric_of_the_recipes_own_decides() -> None:
    def wrong(predictions: np.ndarray, references: np.ndarray) -> float:
        return float(np.mean(predictions != references))

    task = task_of("O", "B-A", scheme="iob2", metrics=(wrong,))
    pair = [Prediction(["O", "O"]), Prediction(["B-A"])], [Tagged(["O", "B-A"]), Tagged(["B-A"])]
    scorer = task.scorer(*pair)
    assert task.score(*pair) == scorer(np.arange(2))
    for rows, share in (([0, 1], 1 / 3), ([0, 0], 1 / 2), ([1, 0, 1], 1 / 4)):
        assert next(iter(scorer(np.array(rows)).items())) == ("wrong", pytest.approx(share))
    assert task.recipe.greater_is_better
    assert not replace(task.recipe, metrics=(mean_squared_error,)).greater_is_better
    with pytest.raises(UsageError):
        replace(task.recipe, train="a.conll", metrics=(mean_squared_error,)).resolved()


# --- heads -----------------------------------------------------------------------------------------------------------------

LABELS = {
    "iob2": ("O", "B-A", "I-A", "B-B", "I-B"),
    "iob1": ("O", "I-A", "B-A", "I-B"),
    "iobes": ("O", "B-A", "I-A", "E-A", "S-A", "S-B", "B-B", "E-B"),
}


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(LABELS)),
    st.sampled_from(["linear", "bilstm", "crf"]),
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(0, 2**16),
    st.booleans(),
)
@example("iobes", "crf", [90, 0, 1], 1, True)
def test_constrained_predictions_are_legal(tokenizer, scheme, head, lengths, seed, intent) -> None:
    labels = LABELS[scheme]
    task = task_of(*labels, scheme=scheme, intents=("x", "y") if intent else (), head=head, constrained=True)
    examples = Examples({"tokens": [["the"] * n for n in lengths]}, "f", range(len(lengths)))
    features, _ = task.encode(examples, tokenizer, max_length=12, labelled=False)
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
        for tags, path in zip(found, np.split(flat, np.cumsum(lengths)[:-1]), strict=True):
            said = [labels[at] for at in path]
            assert tags == said or count_illegal([said], scheme)


@pytest.mark.parametrize("intent", [False, True])
@pytest.mark.parametrize("head", ["linear", "crf"])
def test_a_constrained_model_is_legal_over_windows(tokenizer: Tokenizer, tmp_path: Path, head: str, intent: bool) -> None:
    task = task_of(*LABELS["iobes"], scheme="iobes", intents=("x", "y") if intent else (), head=head, constrained=True)
    module = save(task, tmp_path, tokenizer)
    if head == "crf":
        with torch.no_grad():
            for parameter in module.head["crf"].parameters():
                parameter.normal_(std=2, generator=torch.Generator().manual_seed(0))
    rng, lengths = np.random.default_rng(0), [70, 3, 1, 0, 25]
    examples = Examples({"tokens": [rng.choice([*NAMED, *FILLER], n).tolist() for n in lengths]}, "f", range(5))
    features, _ = task.encode(examples, tokenizer, max_length=12, labelled=False)
    assert len(features) > 15
    found = outputs_of(module, features, 100, start_accelerator("cpu"))
    tags = [prediction.value for prediction in task.decode(found.outputs, features, examples)]
    assert list(map(len, tags)) == lengths
    assert count_illegal(tags, "iobes") == 0
    assert len({tag for row in tags for tag in row}) > 2
    free = replace(task, recipe=replace(task.recipe, constrained=False))
    if head == "linear":
        assert count_illegal([p.value for p in free.decode(found.outputs, features, examples)], "iobes") > 0


@pytest.mark.parametrize("intent", [False, True])
def test_transformers_gives_the_tags_of_a_linear_head(tokenizer: Tokenizer, tmp_path: Path, intent: bool) -> None:
    import transformers

    task = task_of("O", "B-THING", "B-WHO", "I-THING", scheme="iob2", intents=("a", "b") if intent else ())
    save(task, tmp_path / "model", tokenizer)
    theirs, info = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not info["missing_keys"]
    assert {name.split(".")[0] for name in info["unexpected_keys"]} == ({"head"} if intent else set())
    assert theirs.config.id2label == dict(enumerate(task.labels))
    target = open_target(str(tmp_path / "model"), None, {}, to_predict=True)
    ours = TaskPredictor(target, start_accelerator("cpu")).model
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    inputs = their_tokenizer([" ".join(words) for words in words_in(DEV)], padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted, found = theirs.eval()(**inputs).logits, ours(**inputs).logits["logits"]
    attended = inputs["attention_mask"].bool()
    assert torch.allclose(found[attended], wanted[attended], atol=1e-5)
    lines = [" ".join(words) for words in words_in(DEV)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    predictions = predictions_of(target, str(tmp_path / "lines.txt"))
    pipeline = transformers.pipeline("token-classification", model=str(tmp_path / "model"), device="cpu")
    said = [{word["index"]: word["entity"] for word in found} for found in pipeline(lines)]
    tags = [[of.get(at, "O") for at in range(1, 1 + len(words))] for of, words in zip(said, words_in(DEV), strict=True)]
    assert [prediction.value for prediction in predictions] == tags
    assert len({tag for row in tags for tag in row}) > 1


@pytest.mark.parametrize("head", ["bilstm", "crf"])
def test_of_a_head_of_our_own_transformers_takes_the_encoder(tokenizer: Tokenizer, tmp_path: Path, head: str) -> None:
    import transformers

    module = save(task_of("O", "B-A", "I-A", scheme="iob2", head=head), tmp_path, tokenizer)
    ours = TaskPredictor(open_target(str(tmp_path), None, {}, to_predict=True), start_accelerator("cpu")).model
    assert {name: tensor.tolist() for name, tensor in ours.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in module.state_dict().items()
    }
    theirs = transformers.AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    ids = torch.tensor([[2, 90, 91, 92, 3]])
    with torch.no_grad():
        assert torch.allclose(theirs(ids).last_hidden_state, ours.bert(ids).last_hidden_state, atol=1e-5)
    _, info = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {"classifier.weight", "classifier.bias"}


# --- whole commands --------------------------------------------------------------------------------------------------------


def test_scores_are_seqevals_of_the_predictions(run: Path, run_bertkit, write: Write, tmp_path: Path) -> None:
    scores = json.loads((run / "run.json").read_text(encoding="utf-8"))["best"]["scores"]
    rows = predicted(run_bertkit, run, run.parent / "dev.conll")
    assert [row["tokens"] for row in rows] == words_in(DEV)
    tags = [row["tags"] for row in rows]
    assert scores["validation/f1"] == pytest.approx(f1_score(tags_in(DEV), tags, zero_division=0))
    right = [p == g for one, other in zip(tags, tags_in(DEV), strict=True) for p, g in zip(one, other, strict=True)]
    assert scores["validation/accuracy"] == pytest.approx(np.mean(right))
    ran = run_bertkit("eval", run, "--json", "--output", "said")
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5, abs=1e-6)
    written = [json.loads(line) for line in (tmp_path / "said" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["tokens"], row["tags"], row["gold"]) for row in written] == [
        *zip(words_in(DEV), tags, tags_in(DEV), strict=True)
    ]
    bare = write("bare.jsonl", jsonl([{"tokens": words} for words in words_in(DEV)]))
    assert [row["tags"] for row in predicted(run_bertkit, run, bare)] == tags
    assert run_bertkit("eval", run, "--validation", bare).code == 3


@pytest.mark.parametrize("head", ["bilstm", "crf"])
def test_in_bf16_a_head_is_loaded_as_it_was_trained(
    run_bertkit, tiny_model_dir: Path, write: Write, tmp_path: Path, head: str
) -> None:
    path = write("train.conll", as_columns(TRAIN))
    data = ("--train", path, "--validation", path, "-m", tiny_model_dir, "-o", "run", "--max-steps", 2)
    assert run_bertkit("finetune", "token-classification", *data, *COMMON, "--head", head, "--precision", "bf16").code == 0
    loss = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["best"]["scores"]["validation/loss"]
    assert json.loads(run_bertkit("eval", "run", "--json").out)["validation/loss"] == pytest.approx(loss, rel=0.05)


LINES = [
    "The printer screen is broken.",
    "",
    "A woman's phone, (and  the screens) \u2014 100%!",
    "\u200b \u4e2d\u6587 man\U0001f600",
]


def test_text_keeps_its_characters(run: Path, run_bertkit) -> None:
    text = "\n".join(LINES).encode() + b"\n"
    rows = predicted(run_bertkit, run, stdin=text)
    assert [row["text"] for row in rows] == LINES
    chunks = 0
    for row in rows:
        assert "".join(row["tokens"]) == re.sub(r"[\s\u200b]", "", row["text"])  # what nobody sees is no word
        assert len(row["tags"]) == len(row["probabilities"]) == len(row["tokens"])
        assert all(0 < probability <= 1 for probability in row["probabilities"])
        entities = [(kind, "".join(row["tokens"][a : b + 1])) for kind, a, b in get_entities(row["tags"])]
        assert [(e["label"], re.sub(r"\s", "", e["text"])) for e in row["entities"]] == entities
        assert all(row["text"][e["start"] : e["end"]] == e["text"] for e in row["entities"])
        chunks += len(entities)
    assert chunks >= 3
    shown = run_bertkit("predict", run, "-", "--format", "text", stdin=text).out
    assert len(re.findall(r"\[(?:THING|WHO) ", shown)) == chunks
    unmarked = re.sub(r"\[(?:THING|WHO) ([^]]+) [01]\.\d\d\]", r"\1", shown).split("\n")[:-1]
    assert unmarked == [line.replace("\u200b", "\\u200b") for line in LINES]


def test_a_text_beside_the_words_is_kept_under_another_name(run: Path, run_bertkit, tmp_path: Path) -> None:
    row = {"text": "Men(PhD) like  screens", "tokens": ["Men", "(", "PhD", ")", "like", "screens"], "offsets": "mine"}
    (tmp_path / "new.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    ran = run_bertkit("predict", run, "new.jsonl", "--keep", "all")
    written = json.loads(ran.out)
    batch = bertkit.load(run)({name: [value] for name, value in row.items()})
    for found in (written, {name: values[0] for name, values in batch.items()}):
        assert (found["input_text"], found["input_offsets"]) == (row["text"], "mine")
        assert [found["text"][begin:end] for begin, end in found["offsets"]] == row["tokens"]


@pytest.mark.parametrize("labelled", [True, False])
def test_columns_in_and_out(run: Path, run_bertkit, write: Write, tmp_path: Path, labelled: bool) -> None:
    """With labels (even those that no training has) or without; long sentences in windows; the same words in the same order."""
    rows = [*DEV, [pair for sentence in DEV for pair in sentence] * 2, [("Never-seen", "B-ELSE")]]
    path = write("new.conll", as_columns(rows, row="{word}{sep}{tag}\n" if labelled else "{word}\n"))
    ran = run_bertkit("predict", run, path, "--output", "out.conll")
    assert ran.code == 0, ran.err
    assert re.search(rf"{len(rows)} rows, \d+ words, 1 longer than 24 split into overlapping windows\n", ran.err)
    blocks = (tmp_path / "out.conll").read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    written = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    said = predicted(run_bertkit, run, path)
    assert [[word for word, _, _ in block] for block in written] == words_in(rows) == [row["tokens"] for row in said]
    tags = [row["tags"] for row in said]
    assert [[tag for _, _, tag in block] for block in written] == tags
    assert read_conll(tmp_path / "out.conll").columns["tags"] == tags, "read back as it was said"
    for row in said:
        assert row["text"] == " ".join(row["tokens"])
        assert [row["text"][start:end] for start, end in row["offsets"]] == row["tokens"]
        assert row["entities"] == [
            {"start": start, "end": end, "label": kind, "text": row["text"][start:end], "probability": least}
            for kind, a, b in get_entities(row["tags"])
            for start, end, least in [(row["offsets"][a][0], row["offsets"][b][1], min(row["probabilities"][a : b + 1]))]
        ]


def test_what_it_learned_it_finds(run: Path, run_bertkit) -> None:
    row, empty = predicted(run_bertkit, run, stdin=b"the phone is late and the man is good\n\n")
    assert [(entity["text"], entity["label"]) for entity in row["entities"]] == [("phone", "THING"), ("man", "WHO")]
    assert empty["tags"] == empty["entities"] == []


def test_entities_that_cut_words_count_as_missed(run: Path, run_bertkit, write: Write, tmp_path: Path) -> None:
    """The scores of eval are those of predict's entities, compared by their characters."""
    rows = [json.loads(line) for line in as_entities(DEV).splitlines()]
    for row in rows[::2]:
        for entity in reversed(row["entities"]):
            row["text"] = row["text"][: entity[1]] + ".x" + row["text"][entity[1] :]
            for later in row["entities"]:
                if later[0] > entity[0]:
                    later[:2] = later[0] + 2, later[1] + 2
    ran = run_bertkit("eval", run, "--validation", write("cut.jsonl", jsonl(rows)), "--json", "--output", "said")
    assert ran.code == 0, ran.err
    gold = {(number, *entity) for number, row in enumerate(rows) for entity in row["entities"]}
    said = predicted(run_bertkit, run, write("bare.jsonl", jsonl([{"text": row["text"]} for row in rows])))
    found = {(n, each["start"], each["end"], each["label"]) for n, row in enumerate(said) for each in row["entities"]}
    assert {each[3] for each in found - gold}, "some are wrong"
    f1 = 2 * len(found & gold) / (len(found) + len(gold))
    assert 0.2 < f1 < 0.9
    assert json.loads(ran.out)["validation/f1"] == pytest.approx(f1)
    written = [json.loads(line) for line in (tmp_path / "said" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    shown = {(n, each["start"], each["end"], each["label"]) for n, row in enumerate(written) for each in row["entities"]}
    assert shown == found


def test_tasks_of_annotators_are_predicted_by_their_ids(run: Path, run_bertkit, write: Write) -> None:
    tasks = [{"id": 5, "annotations": [{"result": []}]}, {"id": 7, "annotations": [{"was_cancelled": True}]}, {"id": 9}]
    path = write("x.json", json.dumps([{**task, "data": {"text": "the phone is late"}} for task in tasks]))
    assert [row["id"] for row in predicted(run_bertkit, run, path)] == [5, 7, 9]


def test_corrected_rows_with_some_of_the_labels_train_the_head_on(run: Path, run_bertkit, write: Write) -> None:
    rows = write("corrected.jsonl", as_tokens([[("the", "O"), ("phone", "B-THING"), ("is", "O")]] * 4))
    how = ("--train", rows, "--validation", rows, "-m", run, "-o", "next", *COMMON, "--learning-rate", 0.0, "--max-steps", 1)
    ran = run_bertkit("finetune", "token-classification", *how)
    assert ran.code == 0, ran.err
    assert "the data has 2 of the model's 4 labels; the model keeps the others" in ran.err
    (row,) = predicted(run_bertkit, "next", stdin=b"the phone is late and the man is good\n")
    assert [(entity["text"], entity["label"]) for entity in row["entities"]] == [("phone", "THING"), ("man", "WHO")]


def test_a_csv_of_predictions_is_read_back_as_the_same_words(run: Path, run_bertkit, write: Write) -> None:
    rows = [{"tokens": ["New", "York", "is", "it's"]}, {"tokens": ['"', "[", "]", "a,b"]}]
    assert run_bertkit("predict", run, write("in.jsonl", jsonl(rows)), "--output", "out.csv").code == 0
    assert [row["tokens"] for row in predicted(run_bertkit, run, "out.csv")] == [row["tokens"] for row in rows]


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
    for chunks, tags, shown in ((True, ["O"], "go  (ask)"), (False, ["V"], "go/V 1.00  (ask)")):
        prediction = Prediction(tags, probabilities=[1.0], details={"intent": "ask"})
        assert as_text(prediction, examples, 0, chunks=chunks).plain == shown


# --- real data -------------------------------------------------------------------------------------------------------------

# Recipe, folder, rows by split, scheme, labels, intents.
REAL = {
    "conll2003": ("CoNLL2003", (14041, 3250, 3453), "iob2", 9, 0),
    "ud_pos": ("UD_English-EWT", (12544, 2001, 2077), None, 17, 0),
    "atis": ("ATIS", (4478, 500, 893), "iob2", 120, 21),
    "snips": ("SNIPS", (13084, 700, 700), "iob2", 72, 7),
    "weibo_ner": ("WeiboNER", (1350, 270, 270), "iob2", 17, 0),
    "resume_ner": ("ResumeNER", (3821, 463, 477), "iobes", 28, 0),
}
ENTITIES = {"LOC": 7140, "PER": 6600, "ORG": 6321, "MISC": 3438}  # of CoNLL-2003's training rows, as published


@pytest.fixture(scope="module")
def chinese_tokenizer(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("chinese")
    packed = (data_dir.parent / "vocab" / "bert-base-chinese" / "vocab.txt.gz").read_bytes()
    (folder / "vocab.txt").write_bytes(gzip.decompress(packed))
    return Tokenizer.load(folder)


@pytest.mark.parametrize("name", REAL)
def test_real_data_through_the_recipes(data_dir: Path, minilm: Path, chinese_tokenizer: Tokenizer, name: str) -> None:
    folder, rows, scheme, num_labels, num_intents = REAL[name]
    recipe = load_recipe(name).overridden({"data": str(data_dir / folder), "intent": bool(num_intents)})
    task, splits = fitted(replace(recipe, training=filled(recipe.training), eval_splits=("validation", "test")))
    assert tuple(map(len, splits.values())) == rows
    assert (task.scheme, len(task.labels), len(task.intents)) == (scheme, num_labels, num_intents)
    tokenizer = chinese_tokenizer if name in ("weibo_ner", "resume_ner") else Tokenizer.load(minilm)
    for split, examples in splits.items():
        assert all(
            len(words) == len(its) > 0 for words, its in zip(examples.columns["tokens"], examples.columns["tags"], strict=True)
        )
        some = examples.select(range(200))
        features, remarks = task.encode(some, tokenizer)
        assert sorted(set(features.examples.tolist())) == list(range(len(some)))
        assert features.input_ids.lengths.max() <= recipe.training.max_length
        targets = features.labels["labels"].values
        if num_intents:
            targets = np.delete(targets, features.labels["labels"].offsets[:-1])  # [CLS] has none
        flat = [tag for its in some.columns["tags"] for tag in its]
        names = [task.labels[target] if target != IGNORED else None for target in targets]
        assert names == [tag if tag in task.labels else None for tag in flat]
        assert any("not seen in training (" in remark for remark in lines_of(remarks)) == (None in names)
        assert split != "train" or None not in names
    if name == "conll2003":
        assert Counter(kind for its in splits["train"].columns["tags"] for kind, _, _ in get_entities(its)) == ENTITIES
    if name == "weibo_ner":
        words = [word for examples in splits.values() for its in examples.columns["tokens"] for word in its]
        assert {word for word in words if len(word) > 1} <= {"\ufffd\ufffd"}  # what is left of emoji


def test_a_chinese_recipe_trains_and_evaluates(run_bertkit, data_dir: Path, tiny_chinese_dir: Path, tmp_path: Path) -> None:
    options = ("--max-steps", 2, "--max-train-samples", 100, "--batch-size", 16, "--precision", "fp32", "--device", "cpu")
    ran = run_bertkit("finetune", "weibo_ner", "--data", data_dir / "WeiboNER", "-m", tiny_chinese_dir, "-o", "run", *options)
    assert ran.code == 0, ran.err
    found = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert tuple(split["rows"] for split in found["data"].values()) == (100, 270)
    assert {"validation/f1", "validation/strict_f1", "validation/accuracy"} <= set(found["best"]["scores"])
    ran = run_bertkit("eval", "run", "--split", "test", "--json")
    assert set(json.loads(ran.out)) >= {"test/f1", "test/f1_PER.NAM"}
    (row,) = predicted(run_bertkit, "run", stdin="\u79d1\u6280\u516c\u53f8 ABC\u3002\n".encode())
    assert row["tokens"] == ["\u79d1", "\u6280", "\u516c", "\u53f8", "ABC", "\u3002"]


def test_msra_from_its_folder_and_its_files(data_dir: Path, tmp_path: Path, chinese_tokenizer: Tokenizer) -> None:
    files = {split: data_dir / "MSRA-NER" / f"{split}.tsv.gz" for split in ("dev", "test")}
    for split, file in files.items():
        (tmp_path / f"{split}.tsv.gz").symlink_to(file)
    recipe = load_recipe("msra_ner").overridden({"data": str(tmp_path)})
    task, splits = fitted(replace(recipe, train_split="validation", eval_splits=("test",)), "validation")
    assert tuple(map(len, splits.values())) == (2318, 4636)
    assert task.scheme == "iob2"
    assert set(task.labels) == {"O", *(f"{p}-{kind}" for p in "BI" for kind in ("PER", "LOC", "ORG"))}
    some = splits["test"].select(range(200))
    assert len(task.encode(some, chinese_tokenizer, max_length=256).features.rows.values) == sum(
        map(len, some.columns["tokens"])
    )
    own = load_recipe("msra_ner").overridden({"train": str(files["dev"]), "tokens": "text_a", "tags": "label"})
    _, parts = fitted(own)
    assert sum(map(len, parts.values())) == 2318


def test_folds_that_know_other_tags_are_scored_together_but_not_averaged() -> None:
    """A tag of one sentence is unknown to the fold that holds it out; scores compare names."""
    few, more = task_of("B-PER", "O", scheme="iob2"), task_of("B-LOC", "B-PER", "O", scheme="iob2")
    score = few.scored_with([more]).scorer([Prediction(["B-LOC", "O"])], [Tagged(["B-LOC", "O"], None)])
    assert score(np.arange(1))["f1"] == 1.0
    for refused in (few.averaged_with, task_of("NOUN", "VERB").scored_with):
        with pytest.raises(ModelError, match="the runs have different labels"):
            refused([more])

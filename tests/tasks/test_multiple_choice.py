"""The family from files to scores: features by hand, the loss by torch's cross_entropy, rows as published, bad input."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from file_contents import content_of, parsed
from recipe_rows import fit
from recipe_rows import load as rows_of

from bertkit.errors import DataError, UserError
from bertkit.features import Features, Ragged
from bertkit.metrics.classification import accuracy
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.readers import Examples
from bertkit.readers.c3 import looks_like_c3, parse_c3
from bertkit.readers.formats import read_file
from bertkit.tasks import MultipleChoice, MultipleChoiceTask
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import collate, evaluation_batches, split_by_feature

CLS, SEP = "[CLS]", "[SEP]"
QUIZ = """story,ask,end0,end1,end2,right
the man play,he say,good movie,bad film,,1
the river run,,one two three,good,the city,0
a bank open late,who,yes,no,,yes
"""


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    """An encoder whose output differs from text to text, so that a fresh head says more than one thing."""
    return make_model_dir("BertModel", seed=21, initializer_range=0.5)


TASK = MultipleChoiceTask(recipe=MultipleChoice(metrics=(accuracy,)))


def recipe_of(folder: Path, content: str, name: str = "rows.csv", **options: Any) -> MultipleChoice:
    (folder / name).write_text(content, encoding="utf-8")
    return MultipleChoice().overridden({"train": str(folder / name), "validation": str(folder / name), **options})


def load(folder: Path, content: str, name: str = "rows.csv", *, labelled: bool = True, **options: Any) -> Examples:
    return rows_of(recipe_of(folder, content, name, **options), labelled=labelled)


def quiz(folder: Path, content: str = QUIZ, **options: Any) -> Examples:
    named = {"text": "story", "question": "ask", "choices": "end0,end1,end2", "label": "right"}
    return load(folder, content, **named | options)


def tokens_of(features: Features, tokenizer: Tokenizer) -> list[list[str]]:
    names = {number: token for token, number in tokenizer.vocab.items()}
    return [[names[number] for number in features.input_ids[row]] for row in range(len(features.input_ids))]


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# --- rows ------------------------------------------------------------------------------------------------------------------


def test_ragged_choices_and_labels_as_numbers_and_texts(tmp_path: Path) -> None:
    found = quiz(tmp_path)
    assert found.columns == {
        "text": ["the man play", "the river run", "a bank open late"],
        "question": ["he say", "", "who"],
        "choices": [["good movie", "bad film"], ["one two three", "good", "the city"], ["yes", "no"]],
        "places": [[0, 1], [0, 1, 2], [0, 1]],
        "label": [1, 0, 0],
    }
    assert found.where(2).endswith("rows.csv:4")


def test_numbers_are_places_in_the_data(tmp_path: Path) -> None:
    """A choice that is empty has a number and is none of the choices."""
    found = quiz(tmp_path, "story,ask,end0,end1,end2,right\nx,,good,,bad,2\n")
    assert (found.columns["choices"], found.columns["places"], found.columns["label"]) == ([["good", "bad"]], [[0, 2]], [2])


def test_a_list_of_choices_and_a_list_of_lines(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"context": ["one", "two"], "question": "q", "choices": ["a", "b", "c"], "answer": "c"},
        {"context": "three", "question": "q", "choices": ["a", None, "b"], "answer": 2},
    ]
    found = load(tmp_path, jsonl(rows), "rows.jsonl")
    assert found.columns == {
        "text": ["one\ntwo", "three"],
        "question": ["q", "q"],
        "choices": [["a", "b", "c"], ["a", "b"]],
        "places": [[0, 1, 2], [0, 2]],
        "label": [2, 2],
    }


@pytest.mark.parametrize(
    ("choices", "label", "right"),
    [
        (["a", "b"], 1, 1),
        (["a", "b"], "1", 1),
        (["a", "b"], 1.0, 1),
        (["a", "b"], " b ", 1),
        (["3", "2", "1"], "1", 2),
        (["3", "2", "1"], 1, 1),  # a number among texts is a number
        ([7, 5, 3], 3, 2),
        (["-1", "1"], "-1", 0),
        (["35", "29"], "29", 1),
        (["a", "a", "b"], "a", 0),
    ],
)
def test_what_a_label_means(tmp_path: Path, choices: list[Any], label: Any, right: int) -> None:
    rows = [{"text": "x", "choices": choices, "label": label}]
    assert load(tmp_path, jsonl(rows), "rows.jsonl").columns["label"] == [right]


def test_the_column_says_whether_a_label_is_a_text(tmp_path: Path) -> None:
    def labels(*rows: tuple[list[str], str], warned: bool = False) -> list[int]:
        content = jsonl([{"text": "x", "choices": choices, "label": label} for choices, label in rows])
        recipe = recipe_of(tmp_path, content, "rows.jsonl")
        warnings = fit(recipe).remarks.warnings
        assert [str(tmp_path / "rows.jsonl") in warning for warning in warnings] == [True] * warned
        return rows_of(recipe).columns["label"]

    digits = ["2", "3", "1"]
    assert labels((["18", "35"], "35"), (digits, "2")) == [1, 0]  # 35 is no place: texts
    assert labels((["a", "b"], "0"), (digits, "2")) == [0, 2]  # 0 is no text: places
    assert labels((["a", "b"], "b"), (["a", "b"], "0"), (digits, "2")) == [1, 0, 0]  # both: each for itself, a text first
    assert labels((digits, "2"), (digits, "1"), warned=True) == [0, 2]
    assert labels((digits, "1.0"), (digits, "0.0")) == [1, 0]  # as tables with gaps write numbers


@pytest.mark.parametrize(("train", "kind", "dev"), [("0", "numbers", [1, 0]), ("3", "texts", [0, 0])])
def test_what_labels_are_is_settled_on_training_data(tmp_path: Path, train: str, kind: str, dev: list[int]) -> None:
    """The dev rows alone could be read either way."""
    header = "story,end1,end2,end3,right\n"
    for name, rows in (
        ("train", [f"a,1,2,3,{train}", "b,1,2,3,2"]),
        ("dev", ["c,1,2,3,1", f"d,{'0,2' if kind == 'numbers' else '2,1'},3,{'0' if kind == 'numbers' else '2'}"]),
    ):
        (tmp_path / f"{name}.csv").write_text(header + "\n".join(rows) + "\n", encoding="utf-8")
    files = {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "dev.csv")}
    recipe = MultipleChoice(**files, text="story", choices=("end1", "end2", "end3"), label="right")
    config = BertConfig(extra={"architectures": ["BertForMultipleChoice"]})
    task = fit(recipe)
    for known in (task, Task.restore(task.configure(config), recipe)):
        assert known.recipe.labels_are == kind
        rows = read_splits(recipe.resolved(), ["validation"]).rows["validation"]
        assert known.examples(rows, labelled=True).columns["label"] == dev


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("Unnamed: 0,video-id,startphrase,sent1,sent2,ending0,ending1,label", ("sent1", "sent2", "ending0,ending1", "label")),
        ("id,context,question,answer1,answer0,label", ("context", "question", "answer0,answer1", "label")),
        ("premise,question,choice1,choice2,label", ("premise", "question", "choice1,choice2", "label")),
        ("question,option_2,option_10,option_1,answer", ("question", None, "option_1,option_2,option_10", "answer")),
        ("category,prompt,ending0,ending1,label", ("prompt", None, "ending0,ending1", "label")),
    ],
)
def test_columns_by_their_usual_names(tmp_path: Path, names: str, found: tuple[str | None, ...]) -> None:
    width = names.count(",")
    (tmp_path / "rows.csv").write_text(f"{names}\n{'x,' * width}0\n", encoding="utf-8")
    columns = MultipleChoice().find_columns(read_file(tmp_path / "rows.csv"))
    roles = columns.named
    assert (roles["text"], roles["question"], ",".join(roles["choices"]), roles["label"]) == found
    assert len(columns.remarks.notes) == 1


def test_who_names_the_text_alone_means_no_question(tmp_path: Path) -> None:
    content = "context,question,choice0,choice1,label\nx,y,a,b,0\n"
    assert "question" not in load(tmp_path, content, text="context").columns
    assert load(tmp_path, content, text="question", question="context").columns["question"] == ["x"]


def test_predicting_needs_no_label_and_no_text(tmp_path: Path) -> None:
    found = load(tmp_path, "context,choice0,choice1\n,a,b\n", labelled=False)
    assert found.columns == {"text": [""], "choices": [["a", "b"]], "places": [[0, 1]]}
    assert "label" not in load(tmp_path, "context,choice0,choice1,label\nx,a,b,9\n", labelled=False).columns


# --- features --------------------------------------------------------------------------------------------------------------


def test_features_by_hand(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    features, remarks = TASK.encode(quiz(tmp_path), tokenizer, max_length=32)
    river = [CLS, "the", "river", "run", SEP]
    assert tokens_of(features, tokenizer)[:5] == [
        [CLS, "the", "man", "play", SEP, "he", "say", "good", "movie", SEP],
        [CLS, "the", "man", "play", SEP, "he", "say", "bad", "film", SEP],
        [*river, "one", "two", "three", SEP],
        [*river, "good", SEP],
        [*river, "the", "city", SEP],
    ]
    assert features.token_type_ids[0].tolist() == [0] * 5 + [1] * 5
    assert features.sequences is not None
    assert features.sequences.tolist() == [0, 2, 5, 7]
    assert features.rows is not None
    assert features.rows.values.tolist() == [0] * 7
    assert features.rows.lengths.tolist() == [1] * 7
    assert features.labels["labels"].values.tolist() == [1, 0, 0]
    assert features.labels["labels"].lengths.tolist() == [1, 1, 1]
    assert features.examples.tolist() == [0, 1, 2]
    assert remarks == ()
    assert TASK.describe_targets(features, 0) == [{}, {0: "right"}]
    assert TASK.describe_targets(features, 1) == [{0: "right"}, {}, {}]


def test_a_gap_among_the_choices_moves_the_target_and_not_the_label(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    examples = quiz(tmp_path, "story,ask,end0,end1,end2,right\nthe man,,,good,bad,2\n")
    features, _ = TASK.encode(examples, tokenizer, max_length=32)
    assert features.labels["labels"].values.tolist() == [1]
    (found,) = TASK.decode({"logits": [np.array([[0.0], [np.log(3)]])]}, features, examples)
    assert (found.value, found.details["answer"], found.probability) == (2, "bad", pytest.approx(0.75))
    assert found.probabilities == pytest.approx([0.0, 0.25, 0.75])
    assert TASK.score([found], TASK.truth(examples)) == {"accuracy": 1.0}
    assert TASK.format_truth(2, examples, 0) == "bad"
    assert (TASK.error(found, 2), TASK.error(found, 1)) == (0, pytest.approx(0.75))


def test_what_is_cut_is_counted_by_example(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    features, remarks = TASK.encode(quiz(tmp_path), tokenizer, max_length=9, labelled=False)
    # Only the two sequences of the first row, of 10 tokens, and one of the second are longer.
    assert features.input_ids.lengths.max() == 9
    lengths = TASK.encode(quiz(tmp_path), tokenizer, max_length=math.inf)[0].input_ids.lengths
    expected = sum(bool((lengths[start:end] > 9).any()) for start, end in ((0, 2), (2, 5), (5, 7)))
    assert 0 < expected < (lengths > 9).sum(), "the rows no longer tell sequences from examples"
    assert remarks == (f"{expected} longer than 9 truncated",)
    assert features.labels == {}


def test_the_loss_is_that_of_torch(tmp_path: Path, tiny_tokenizer_dir: Path) -> None:
    """Each question's own softmax, over as many choices as it has."""
    tokenizer = Tokenizer.load(tiny_tokenizer_dir)
    examples = quiz(tmp_path)
    features, _ = TASK.encode(examples, tokenizer, max_length=32)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    task = fit(recipe_of(tmp_path, QUIZ, text="story", question="ask", choices="end0,end1,end2", label="right"))
    module = task.build(task.configure(config))
    initialize(module, config, seed=3)
    module.eval()
    with torch.no_grad():
        losses, logits = module(collate(features, np.array([2, 0, 1])))
        alone = []
        for row in range(7):  # a sequence at a time, so that nothing knows of the others
            one = Features(
                features.input_ids.take(np.array([row])), features.token_type_ids.take(np.array([row])), np.array([0])
            )
            alone.append(module(collate(replace(one, rows=Ragged.column([0])), np.array([0]))).logits["logits"][0, 0])
    scores = torch.stack(alone)
    assert logits["logits"][:, 0].numpy() == pytest.approx(scores[[5, 6, 0, 1, 2, 3, 4]].numpy(), abs=1e-5)
    parts = [(scores[0:2], 1), (scores[2:5], 0), (scores[5:7], 0)]
    expected = sum(torch.nn.functional.cross_entropy(row, torch.tensor(right)) for row, right in parts)
    assert float(losses["labels"]) == pytest.approx(float(expected), abs=1e-5)
    assert scores.std() > 0.01

    outputs: dict[int, Any] = {}
    with torch.no_grad():
        for batch in evaluation_batches(features, 12):
            outputs |= split_by_feature(batch, module(batch).logits["logits"].numpy())
    found = TASK.decode({"logits": [outputs[at] for at in range(3)]}, features, examples)
    for prediction, (logit, _), texts in zip(found, parts, examples.columns["choices"], strict=True):
        probabilities = torch.softmax(logit, 0)
        assert prediction.probabilities == pytest.approx(probabilities.tolist(), abs=1e-5)
        assert prediction.value == int(logit.argmax())
        assert prediction.details == {"answer": texts[int(logit.argmax())]}
        assert prediction.probability == max(prediction.probabilities)


def test_logits_that_overflow_exp_and_what_a_person_sees(tmp_path: Path) -> None:
    examples = Examples(
        {"text": ["[bold]x\x1b"], "question": ["y?"], "choices": [["a", "b"]], "places": [[0, 1]], "label": [1]}, "f", [1]
    )
    features = Features(Ragged.of([[1], [1]]), Ragged.of([[0], [0]]), np.array([0]), sequences=np.array([0, 2]))
    (found,) = TASK.decode({"logits": [np.array([[900.0], [901.0]])]}, features, examples)
    assert found.probabilities == pytest.approx([1 / (1 + np.e), 1 / (1 + 1 / np.e)])
    said = {"choice": 1, "answer": "b", "probability": found.probability, "probabilities": found.probabilities}
    assert TASK.rows([found], examples) == [{"text": "[bold]x\x1b", "question": "y?", **said}]
    shown = TASK.format_prediction(found, examples, 0)
    assert shown.plain == "[bold]x\\x1b\ny?\n    27%  a\n->  73%  b\n"
    bold = [shown.plain[span.start : span.end] for span in shown.spans if "bold" in str(span.style)]
    assert bold == ["->  73%  b"]


# --- commands --------------------------------------------------------------------------------------------------------------


def finetune(run_bertkit, recipe: str, model: Path, *options: Any, max_length: int = 32, steps: int = 2) -> dict[str, Any]:
    settings = ("--max-steps", steps, "--batch-size", 8, "--max-length", max_length, "--precision", "fp32", "--device", "cpu")
    ran = run_bertkit("finetune", recipe, *options, "-m", model, "-o", "run", *settings)
    assert ran.code == 0, ran.err
    return json.loads(Path("run/run.json").read_text(encoding="utf-8"))


def predictions(run_bertkit, *arguments: Any) -> list[dict[str, Any]]:
    ran = run_bertkit("predict", *arguments)
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_swag_from_files_to_scores(run_bertkit, data_dir: Path, model: Path) -> None:
    path = data_dir / "SWAG-sample" / "swag.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11
    run = finetune(run_bertkit, "swag", model, "--train", path, "--validation", path)
    assert {split: data["rows"] for split, data in run["data"].items()} == {"train": 11, "validation": 11}
    said = predictions(run_bertkit, "run", path)
    for row, found in zip(rows, said, strict=True):
        assert (found["text"], found["question"]) == (row["sent1"], row["sent2"])
        assert found["answer"] == row[f"ending{found['choice']}"]
        assert found["choice"] == int(np.argmax(found["probabilities"]))
        assert sum(found["probabilities"]) == pytest.approx(1)
    assert len({found["choice"] for found in said}) > 1, "constant predictions would hide mistakes"
    expected = np.mean([found["choice"] == int(row["label"]) for row, found in zip(rows, said, strict=True)])
    scores = run["best"]["scores"]
    assert scores["validation/accuracy"] == pytest.approx(expected)
    loss = -np.mean([np.log(found["probabilities"][int(row["label"])]) for row, found in zip(rows, said, strict=True)])
    assert scores["validation/loss"] == pytest.approx(loss, abs=1e-4)
    ran = run_bertkit("eval", "run", "--json", "--output", "said")
    assert json.loads(ran.out) == pytest.approx(scores, abs=1e-5)
    lines = Path("said/predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["gold"] for line in lines] == [int(row["label"]) for row in rows]

    ran = run_bertkit("predict", "run", path, "--output", "out.csv")
    assert ran.code == 0, ran.err
    written = list(csv.DictReader(io.StringIO(Path("out.csv").read_text(encoding="utf-8"))))
    assert [row["answer"] for row in written] == [found["answer"] for found in said]
    assert [json.loads(row["probabilities"]) for row in written] == [found["probabilities"] for found in said]
    assert json.loads(Path("run/config.json").read_text(encoding="utf-8"))["architectures"] == ["BertForMultipleChoice"]


def test_a_model_of_transformers_predicts_as_it_does_there(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    """The logits of BertForMultipleChoice, padded there; and its family is known by its class."""
    import transformers

    folder = make_model_dir("BertForMultipleChoice", seed=5, initializer_range=0.5)
    rows = [("the man play", "a good movie", "he see the river", "no"), ("who run", "yes", "the bank open", "a printer late")]
    (tmp_path / "rows.csv").write_text("text,choice0,choice1,choice2\n" + "".join(",".join(row) + "\n" for row in rows))
    said = predictions(run_bertkit, folder, "rows.csv", "--max-length", 32, "--precision", "fp32", "--device", "cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(folder).eval()
    for (text, *choices), found in zip(rows, said, strict=True):
        padded = tokenizer([text] * 3, choices, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = theirs(**{name: values[None] for name, values in padded.items()}).logits[0]
        assert found["probabilities"] == pytest.approx(torch.softmax(logits, 0).tolist(), abs=1e-5)


def test_a_run_of_ones_own_opens_in_transformers(run_bertkit, model: Path, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "quiz.csv").write_text(QUIZ, encoding="utf-8")
    columns = ("--text", "story", "--question", "ask", "--choices", "end0,end1,end2", "--label", "right")
    finetune(run_bertkit, "multiple-choice", model, "--train", "quiz.csv", "--validation", "quiz.csv", *columns)
    said = predictions(run_bertkit, "run", "quiz.csv")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained("run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("run")
    padded = tokenizer(["the man play"] * 2, ["he say good movie", "he say bad film"], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**{name: values[None] for name, values in padded.items()}).logits[0]
    assert said[0]["probabilities"] == pytest.approx(torch.softmax(logits, 0).tolist(), abs=1e-4)


def test_plu_is_read_in_swag_s_format(run_bertkit, data_dir: Path, model: Path) -> None:
    folder = data_dir / "PLU-tr-goal-inference"
    recipe = load_recipe("swag").overridden({"data": str(folder)})
    examples = {split: rows_of(recipe, split) for split in ("validation", "test")}
    assert {split: len(rows) for split, rows in examples.items()} == {"validation": 5000, "test": 837}
    with gzip.open(folder / "val.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = examples["validation"].columns
    assert found["label"] == [int(row["label"]) for row in rows]
    assert found["question"] == [row["sent2"] for row in rows]
    assert found["choices"] == [[row[f"ending{at}"] for at in range(4)] for row in rows]
    run = finetune(run_bertkit, "swag", model, "--train", folder / "test.csv", "--validation", "10%")
    assert run["data"]["train"]["rows"] + run["data"]["validation"]["rows"] == 837
    assert 75 <= run["data"]["validation"]["rows"] <= 92


def test_codah_in_five_folds(run_bertkit, data_dir: Path, model: Path, tmp_path: Path) -> None:
    path = data_dir / "CODAH" / "full_data.tsv.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").rstrip("\n").split("\n")
    recipe = load_recipe("codah").overridden({"train": str(path)})
    whole = rows_of(recipe.overridden({"validation": str(path)}))
    assert len(whole) == len(lines) == 2776
    assert Counter(whole.columns["label"]) == {0: 689, 1: 684, 2: 697, 3: 706}
    first = lines[0].split("\t")
    assert (whole.columns["text"][0], whole.columns["choices"][0]) == (first[1], first[2:6])
    held: list[int | str] = []
    for number in range(1, 6):
        fold = recipe.overridden({"validation": f"{number}/5"})
        kept, out = rows_of(fold, "train"), rows_of(fold, "validation")
        assert len(kept) + len(out) == 2776
        assert not {text.casefold() for text in kept.columns["text"]} & {text.casefold() for text in out.columns["text"]}
        assert len(out) in range(545, 571)  # a fifth, but for the 164 rows that share their prompt with others
        counts = Counter(out.columns["label"])
        assert all(abs(counts[label] - whole.columns["label"].count(label) / 5) < 7 for label in range(4))
        held += out.lines
    assert sorted(map(int, held)) == list(range(1, 2777))

    run = finetune(run_bertkit, "codah", model, "--train", path, "--validation", "2/5")
    assert run["recipe"]["validation"] == "2/5"
    assert run["data"]["validation"]["rows"] in range(545, 571)
    ran = run_bertkit("eval", "run", "--json")
    assert json.loads(ran.out) == pytest.approx(run["best"]["scores"], abs=1e-5)
    assert len(predictions(run_bertkit, "run", path)) == 2776  # the recipe knows that its file has no header
    names = "prompt,ending0,ending1,ending2,ending3"
    (tmp_path / "mine.csv").write_text(f"{names}\na,b,c,d,e\n", encoding="utf-8")
    assert [found["text"] for found in predictions(run_bertkit, "run", "mine.csv", "--columns", names)] == ["a"]


# --- C3 --------------------------------------------------------------------------------------------------------------------


def test_c3_rows_are_those_of_the_source(data_dir: Path) -> None:
    path = data_dir / "C3" / "dev.json.gz"
    documents = json.loads(gzip.decompress(path.read_bytes()))
    assert len(documents) == 2674
    recipe = load_recipe("c3").overridden({"data": str(path.parent)})
    found = rows_of(recipe, "validation")
    questions = [(lines, question) for lines, its, _ in documents for question in its]
    assert len(found) == len(questions) == 3816
    assert Counter(map(len, found.columns["choices"])) == {4: 3181, 3: 465, 2: 170}
    assert found.columns["text"] == ["\n".join(lines) for lines, _ in questions]
    assert found.columns["question"] == [question["question"] for _, question in questions]
    right = [texts[number] for texts, number in zip(found.columns["choices"], found.columns["label"], strict=True)]
    assert right == [question["answer"] for _, question in questions]
    assert found.where(0) == f"{path}:47-275#1"


def test_c3_trains_and_evaluates_on_real_rows(run_bertkit, data_dir: Path, tiny_chinese_dir: Path, tmp_path: Path) -> None:
    documents = json.loads(gzip.decompress((data_dir / "C3" / "dev.json.gz").read_bytes()))[:40]
    for name, part in (("train", documents[:25]), ("dev", documents[25:])):
        (tmp_path / f"c3-d-{name}.json").write_text(json.dumps(part, ensure_ascii=False), encoding="utf-8")
    run = finetune(run_bertkit, "c3", tiny_chinese_dir, "--data", tmp_path, max_length=128)
    rows = {split: data["rows"] for split, data in run["data"].items()}
    assert rows == {"train": sum(len(d[1]) for d in documents[:25]), "validation": sum(len(d[1]) for d in documents[25:])}
    said = predictions(run_bertkit, "run", "c3-d-dev.json")
    gold = [question["answer"] for document in documents[25:] for question in document[1]]
    expected = np.mean([found["answer"] == answer for found, answer in zip(said, gold, strict=True)])
    assert run["best"]["scores"]["validation/accuracy"] == pytest.approx(expected)
    assert json.loads(run_bertkit("eval", "run", "--json").out) == pytest.approx(run["best"]["scores"], abs=1e-5)


def test_c3_can_be_split_though_no_two_answers_are_alike(data_dir: Path) -> None:
    path = data_dir / "C3" / "dev.json.gz"
    recipe = load_recipe("c3").overridden({"train": str(path), "validation": "10%"})
    assert len(rows_of(recipe, "train")) + len(rows_of(recipe, "validation")) == 3816
    assert 370 <= len(rows_of(recipe, "validation")) <= 394


def test_questions_about_one_text_stay_on_one_side(tmp_path: Path) -> None:
    documents = [
        [[f"text {n}"], [{"question": f"q{k}", "choice": [f"a{n}", f"b{k}"], "answer": f"a{n}"} for k in range(4)], f"{n}"]
        for n in range(20)
    ]
    (tmp_path / "c3.json").write_text(json.dumps(documents), encoding="utf-8")
    recipe = load_recipe("c3").overridden({"train": str(tmp_path / "c3.json"), "validation": "20%"})
    kept, held = (rows_of(recipe, split).columns["text"] for split in ("train", "validation"))
    assert len(kept) + len(held) == 80
    assert 12 <= len(held) <= 20
    assert not set(kept) & set(held)


def test_an_instruction_that_all_rows_share_does_not_hinder_a_split(tmp_path: Path) -> None:
    for question in ("q{}", "what?"):
        rows = [
            {"text": "Choose.", "question": question.format(n // 2), "choices": ["a", f"{n // 2}"], "label": 1}
            for n in range(40)
        ]
        (tmp_path / "rows.jsonl").write_text(jsonl(rows), encoding="utf-8")
        recipe = MultipleChoice().overridden({"train": str(tmp_path / "rows.jsonl"), "validation": "1/4"}).resolved()
        kept, held = (
            {choices[1] for choices in rows_of(recipe, split).columns["choices"]} for split in ("train", "validation")
        )
        assert (len(kept), len(held)) == (15, 5)
        assert not kept & held


C3 = [[["m: a", "w: b"], [{"question": "q", "choice": ["x", "y"], "answer": "y"}, {"question": "r", "choice": ["z"]}], "1-2"]]


def test_c3_by_hand() -> None:
    found = parsed(parse_c3, json.dumps(C3), "c3.json")
    assert found.columns == {
        "id": ["1-2", "1-2"],
        "context": [["m: a", "w: b"]] * 2,
        "question": ["q", "r"],
        "choice": [["x", "y"], ["z"]],
        "answer": ["y", None],
    }
    assert list(found.lines) == ["1-2#1", "1-2#2"]
    assert looks_like_c3(content_of(json.dumps(C3)))
    assert not looks_like_c3(content_of('[{"text": "[[a"}]'))


@pytest.mark.parametrize(
    ("content", "what", "where"),
    [
        ("[[[", "the JSON ends too early: Expecting value at character 4", ":1"),
        ("[[[\n1 2", "this is not JSON: Expecting ',' delimiter at character 3", ":2"),
        (
            '[[["a"], [], "1"], [["a"], [{"question": "q", "choice": ["\\ud83d", "y"]}], "2"]]',
            "half of a surrogate pair in a document; expected a whole character",
            ":[1]",
        ),
        ("[[1, 2]]", "a document is [1, 2]", ":[0]"),
        ('[[["a"], [], "1"], [["a"], [7], "2"]]', "a question is 7", ":2#1"),
        ('[[["a"], [{"question": "q"}], "2"]]', 'a question is {"question": "q"}', ":2#1"),
        ('[[["a"], [], "1"]]', "the file holds no questions", ""),
    ],
)
def test_what_is_not_c3(tmp_path: Path, content: str, what: str, where: str) -> None:
    (tmp_path / "c3.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as error:
        MultipleChoice().read_file(tmp_path / "c3.json")
    assert (error.value.what, error.value.where) == (what, f"{tmp_path / 'c3.json'}{where}")


# --- bad input -------------------------------------------------------------------------------------------------------------

HEADER = "text,choice0,choice1,choice2,label\n"


@pytest.mark.parametrize(
    ("content", "said", "place"),
    [
        ("x,a,b,c,2\ny,a,b,c,3\n", "label 3 ", "rows.csv:3"),
        ("x,a,b,c,-2\n", "label -2 ", "rows.csv:2"),
        ("x,a,b,,2\n", "label 2 points at an empty choice", "rows.csv:2"),
        ("x,a,b,c,d\n", "'d'", "rows.csv:2"),
        ("x,a,b,c,0\ny,a,b,c,\n", "1 of 2 rows", "rows.csv:3"),
        ("x,a,b,c,\ny,a,b,c,-1\n", "no row has a label", "rows.csv"),
        ("x,a,b,c,0\ny,a,, ,0\n", "1 choice", "rows.csv:3"),
        (" ,a,b,c,0\n", "'text' is empty", "rows.csv:2"),
    ],
)
def test_bad_rows_are_named_before_any_work(
    run_bertkit, tmp_path: Path, model: Path, content: str, said: str, place: str
) -> None:
    (tmp_path / "rows.csv").write_text(HEADER + content, encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16)
    ran = run_bertkit("finetune", "multiple-choice", *data, "-m", model, "-o", "run")
    error, hint = ran.err.splitlines()[-2:]
    assert (ran.code, said in error, error.endswith(f"({tmp_path}/{place})")) == (3, True, True), error
    assert hint.startswith("hint: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("row", "options", "what"),
    [
        ({"text": None, "choices": ["a", "b"], "label": 0}, {}, "column 'text' holds nothing; expected text"),
        ({"text": "x", "choices": "a", "label": 0}, {}, "column 'choices' holds 'a'; expected a list of choices"),
        ({"text": "x", "choices": None, "label": 0}, {}, "column 'choices' holds nothing; expected a list of choices"),
        ({"text": "x", "choices": ["a", ["b"]], "label": 0}, {}, "a choice in column 'choices' is ['b']; expected text"),
        ({"text": "x", "choices": ["a", "b"], "label": True}, {}, "the label True is none of the choices: a, b"),
        ({"text": "x", "choices": ["a", "b"], "label": 2}, {}, "label 2 is out of range; expected 0 to 1, for 2 choices"),
        ({"x": "x", "choices": ["a", "b"]}, {}, "it is not clear which column is the text; columns: x, choices"),
        ({"text": "x", "a": "y", "b": "z"}, {}, "it is not clear which columns are the choices; columns: text, a, b"),
        ({"text": "x", "choices": ["a", "b"]}, {}, "it is not clear which column is the label; columns: text, choices"),
        ({"text": "x", "a": "y", "b": "z"}, {"choices": "a,c"}, "no column 'c'; columns: text, a, b"),
        ({"text": "x", "choices": ["a"]}, {"question": "ask"}, "no column 'ask'; columns: text, choices"),
    ],
)
def test_bad_objects(tmp_path: Path, row: dict[str, Any], options: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError) as error:
        load(tmp_path, jsonl([row]), "rows.jsonl", **options)
    assert error.value.what == what
    assert str(error.value.where).startswith(str(tmp_path / "rows.jsonl"))

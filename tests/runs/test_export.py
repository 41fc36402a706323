"""bertkit export: the graph, and predict.py in a process without torch, against `bertkit predict`."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import transformers
from conftest import Ran, run_command
from traced import write_graph

import bertkit
from bertkit.errors import MachineError, ModelError
from bertkit.features import Ragged
from bertkit.runs.export import graph, onnx_predict
from bertkit.runs.export.quantized import Verdict
from bertkit.tasks.token_classification.features import encode_words
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.truncation import TRUNCATIONS, cut_texts

pytestmark = pytest.mark.e2e
# As if neither were installed.
ALONE = """
import runpy, sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "bertkit"]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LONG = "the good movie was a great story, but we did not like the plot of it: the actor was bad and poor and old. " * 2
TEXTS = ["the good movie", "a bad book, broken", "no", "we like the story of a river bank", "open the new ticket", LONG]
WORDS = [text.split() for text in TEXTS]
MASKS = {"seed": 4, "initializer_range": 0.5}
PAIRS = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))


@pytest.fixture(autouse=True)
def _traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertkit.runs.export.folder.write_graph", write_graph)


class Case(NamedTuple):
    """rows: to train on and to predict. options: of finetune. keys: of predictions, that must be equal or nearly so."""

    family: str
    rows: list[dict[str, Any]]
    keys: tuple[str, ...]
    options: tuple[str, ...] = ()
    layers: int = 2


def texts(labels: list[Any], name: str = "label", **columns: list[Any]) -> list[dict[str, Any]]:
    columns = {"text": TEXTS, **columns, name: labels}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def tagged(**columns: list[Any]) -> list[dict[str, Any]]:
    chunks = ["B-PER", "I-PER", "O", "B-LOC"]
    tags = [[chunks[place % 4] for place, _ in enumerate(words)] for words in WORDS]
    return [
        dict(zip(["tokens", "tags", *columns], row, strict=True)) for row in zip(WORDS, tags, *columns.values(), strict=True)
    ]


ABC = ["a", "b", "c"] * 2
QUESTIONS = [
    {
        "id": str(n),
        "question": "what is it",
        "context": f"{text} {n}",
        "answers": {"text": [text.split()[-1]] * (n % 2), "answer_start": [text.rindex(text.split()[-1])] * (n % 2)},
    }
    for n, text in enumerate(TEXTS)
]
CHOICES = [
    {"text": a, "question": "why", "end1": b, "end2": "no", "end3": "" if n == 2 else a, "right": n % 2}
    for n, (a, b) in enumerate(PAIRS)
]
CLASS, TAGS = ("label", "probability"), ("tags", "probabilities")
PAIR = {"text_pair": [b for _, b in PAIRS]}
COLUMNS = ("--text", "text", "--label", "label")
CHOSEN = ("--text", "text", "--question", "question", "--choices", "end1,end2,end3", "--label", "right")
CASES = {
    "classes-mean-windows": Case(
        "text-classification", texts(ABC), CLASS, (*COLUMNS, "--pooling", "mean", "--truncate", "windows")
    ),
    "pairs-cls-mix": Case(
        "text-classification", texts(ABC, **PAIR), CLASS, (*COLUMNS, "--text-pair", "text_pair", "--pooling", "cls-mix")
    ),
    "labels": Case(
        "text-classification", texts([["a"], [], ["a", "b"]] * 2), ("labels", "probabilities"), (*COLUMNS, "--multi-label")
    ),
    "numbers": Case("text-classification", texts([0.5, 1.5, 3.0] * 2), ("prediction",), (*COLUMNS, "--regression")),
    "tags": Case("token-classification", tagged(), TAGS),
    "tags-constrained-intent": Case(
        "token-classification", tagged(intent=ABC), (*TAGS, "intent", "intent_probability"), ("--constrained", "--intent")
    ),
    "tags-mix": Case("token-classification", tagged(), TAGS, ("--layers", "mix")),
    "tags-crf": Case("token-classification", tagged(), TAGS, ("--head", "crf", "--constrained")),
    "answers": Case(
        "question-answering",
        QUESTIONS,
        ("answer", "start", "end", "null_odds"),
        ("--unanswerable", "--doc-stride", "8", "--null-threshold", "0"),
    ),
    "choices": Case("multiple-choice", CHOICES, ("choice", "answer", "probability"), CHOSEN),
}


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trained(case: Case, folder: Path, make_model_dir: Callable[..., Path]) -> Path:
    model = make_model_dir("BertModel", seed=5, initializer_range=0.5, num_hidden_layers=case.layers)
    data = jsonl(folder / "rows.jsonl", case.rows)
    how = [
        "--max-length",
        24,
        "--max-steps",
        2,
        "--device",
        "cpu",
        "--precision",
        "fp32",
        "--learning-rate",
        1e-3,
        "--no-baselines",
    ]
    argv = ["finetune", case.family, "--train", data, "--validation", data, "--model", model, "--output-dir", folder / "run"]
    ran = run_command([*argv, *how, *case.options])
    assert ran.code == 0, ran.err[-400:]
    return folder / "run"


def exported(*argv: object) -> Ran:
    return run_command(["export", *argv])


def predicted_alone(folder: Path, file: Path, *options: str) -> list[dict[str, Any]]:
    """What predict.py writes in a process without torch, transformers and bertkit."""
    command = [sys.executable, "-c", ALONE, folder / "predict.py", *options, file]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def assert_near(found: Any, expected: Any) -> None:
    """Equal, floats nearly so."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_near(*pair)
    elif isinstance(expected, dict):
        assert_near([*found.values()], [*expected.values()])
        assert [*found] == [*expected]
    else:
        assert found == expected


OTHERS = {"classes-mean-windows", "numbers", "tags", "tags-mix"}  # parts of which are in the cases before


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in OTHERS)) for name in CASES])
def test_predict_py_decides_as_bertkit_does(name: str, tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    case = CASES[name]
    run = trained(case, tmp_path, make_model_dir)
    ran = exported(run, "--output-dir", tmp_path / "exported")
    assert ran.code == 0, ran.err[-400:]
    rows = case.rows
    if case.family == "multiple-choice":
        rows = [{**row, "choices": [row["end1"], row["end2"], row["end3"]]} for row in rows]
    found = predicted_alone(tmp_path / "exported", jsonl(tmp_path / "alone.jsonl", rows))
    said = run_command(["predict", run, tmp_path / "rows.jsonl", "--format", "jsonl", "--precision", "fp32"])
    expected = [json.loads(line) for line in said.out.splitlines()]
    assert len(found) == len(expected) == len(rows)
    for one, other in zip(found, expected, strict=True):
        for key in case.keys:
            assert_near(one[key], other[key])
    decided = [repr(row[case.keys[0]]) for row in expected]
    assert len(set(decided)) > 1, f"one decision for all proves little: {expected}"


def made_alone(kind: str = "", **values: Any) -> onnx_predict.Model:
    """predict.py's model with these parts, without a graph."""
    model = object.__new__(onnx_predict.Model)
    vars(model).update(values, kind=kind)
    return model


def test_predict_py_averages_windows_and_applies_thresholds() -> None:
    of_window = {(1, 2, 3): [1.0, -1.0], (3, 4, 5): [2.0, -2.0]}  # means 1.5 and -1.5, which are 0.82 and 0.18
    parts = {
        "labels": ["a", "b"],
        "how": {"max_length": 5, "truncate": "windows", "thresholds": {"a": 0.9, "b": 0.15}},
        "pieces": lambda text: [1, 2, 3, 4, 5],
        "run": lambda texts: [np.array([of_window[tuple(texts[0])]])],
    }
    found = made_alone("multi_label_classification", **parts).classify({"text": "x"})
    assert found["labels"] == ["b"]
    assert [*found["probabilities"].values()] == pytest.approx([1 / (1 + np.exp(-1.5)), 1 / (1 + np.exp(1.5))])
    assert made_alone("regression", **parts).classify({"text": "x"}) == {"prediction": 1.5}


def test_predict_py_limits_answers_and_questions() -> None:
    asked: list[int] = []

    def run(sequence: list[list[int]]) -> list[Any]:
        question, part = sequence
        asked.append(len(question))
        start, end = np.zeros((2, 1, len(question) + len(part) + 3))
        first = len(question) + 2
        start[0, first], end[0, first + 1], end[0, first + 3] = 5, 3, 5  # four tokens are best, two are permitted
        return [start, end]

    context = SimpleNamespace(ids=[7] * 4, offsets=[(0, 1), (2, 3), (4, 5), (6, 7)])
    model = made_alone(
        how={"max_length": 16, "max_query_length": 2, "doc_stride": 9, "max_answer_length": 2},
        pieces=lambda text: [8] * 5,
        run=run,
        tokenizer=SimpleNamespace(encode=lambda text, add_special_tokens: context),
    )
    assert (model.answer({"question": "q", "context": "a b c d"})["answer"], asked) == ("a b", [2])
    model.how |= {"max_length": 5}
    with pytest.raises(ValueError, match="a question of 2 tokens leaves no room"):
        model.answer({"question": "q", "context": "a b c d"})


def test_predict_py_takes_no_table() -> None:
    with pytest.raises(SystemExit, match=r"error: .*rows.CSV is a table; expected .txt or .jsonl"):
        onnx_predict.main(["--int8", "rows.CSV"])


@pytest.mark.parametrize("arguments", [["a.jsonl", "b.jsonl"], ["--in8", "a.jsonl"]])
def test_predict_py_ignores_no_argument(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"usage: python predict.py \[--int8\] \[FILE\]"):
        onnx_predict.main(arguments)


def test_predict_py_shows_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for asked in ("-h", "--help"):
        onnx_predict.main([asked])
        assert capsys.readouterr().out == "usage: python predict.py [--int8] [FILE]\n"


PAIR_MODEL = {"family": "text-classification", "text": "a", "text_pair": "b"}
TEXT_MODEL = {"family": "text-classification", "text": "a", "text_pair": None}


@pytest.mark.parametrize(
    ("how", "line", "said"),
    [
        (TEXT_MODEL, '{"text": 5}', "line 2: text is 5; expected a string"),
        (TEXT_MODEL, '{"name": "a"}', 'line 2: the row has no text; expected a row such as {"text": "..."}'),
        (TEXT_MODEL, '[{"text": "a"}, {"text": "b"}]', "line 2 is a list; expected one object on each line"),
        (TEXT_MODEL, '{"text": "a"', "line 2 is not JSON: Expecting ',' delimiter at character 13"),
        (PAIR_MODEL, "one text", 'the row has no text_pair; expected a row such as {"text": "...", "text_pair": "..."}'),
        ({"family": "text-classification"}, '{"text": "a", "text_pair": 5}', "text_pair is 5; expected a string"),
        ({"family": "token-classification"}, "a text", 'the row has no tokens; expected a row such as {"tokens": ["..."]}'),
        ({"family": "token-classification"}, '{"tokens": "Grüße"}', 'tokens is "Grüße"; expected a list of strings'),
        ({"family": "question-answering"}, '{"question": "a"}', "line 2: the row has no context"),
        (
            {"family": "multiple-choice"},
            '{"text": "a", "choices": ["b", 1]}',
            'choices is ["b", 1]; expected a list of strings',
        ),
        ({"family": "multiple-choice"}, '{"text": "a", "choices": ["b", " "]}', "line 2: there are fewer than two choices"),
        (
            {"family": "multiple-choice", "text": "a", "question": "b"},
            '{"text": "a", "choices": ["b", "c"]}',
            "line 2: the row has no question",
        ),
    ],
)
def test_predict_py_names_a_bad_line(
    how: dict[str, Any], line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    good = {"text": "a", "text_pair": "b", "tokens": ["a"], "question": "a", "context": "b", "choices": ["c", "d"], "id": 7}
    model, read = object.__new__(onnx_predict.Model), []
    model.columns = onnx_predict.columns_of(how)
    monkeypatch.setattr(model, "decide", lambda row: read.append([*row]) or {"label": "no"}, raising=False)
    monkeypatch.setattr(onnx_predict, "Model", lambda graph: model)
    (tmp_path / "rows.txt").write_text(f"{json.dumps(good)}\n{line}\n", encoding="utf-8")
    with pytest.raises(SystemExit) as error:
        onnx_predict.main([str(tmp_path / "rows.txt")])
    assert said in str(error.value)
    assert json.loads(capsys.readouterr().out) == {**good, "label": "no"}
    assert read == [[*model.columns]], "no other column"


def test_predict_py_reads_json_after_a_byte_order_mark_or_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = object.__new__(onnx_predict.Model)
    model.columns = onnx_predict.columns_of({"family": "text-classification"})
    monkeypatch.setattr(model, "decide", lambda row: {"read": row["text"]}, raising=False)
    monkeypatch.setattr(onnx_predict, "Model", lambda graph: model)
    (tmp_path / "rows.jsonl").write_text('\ufeff{"text": "a"}\n  {"text": "b"}\n', encoding="utf-8")
    onnx_predict.main([str(tmp_path / "rows.jsonl")])
    assert [json.loads(line)["read"] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
    monkeypatch.setattr("sys.stdin", io.StringIO("c\r\nd", newline=""))  # standard input keeps Windows' line ends
    onnx_predict.main([])
    assert [json.loads(line)["read"] for line in capsys.readouterr().out.splitlines()] == ["c", "d"]


def test_predict_py_reads_a_pair_only_for_a_model_of_pairs(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    pair = jsonl(tmp_path / "pair.jsonl", [{"text": "the good film", "text_pair": "a bad book"}])
    alone = jsonl(tmp_path / "alone.jsonl", [{"text": "the good film"}])
    for family, reads_pairs in (("pairs-cls-mix", True), ("numbers", False)):
        folder = tmp_path / family
        folder.mkdir()
        run = trained(CASES[family], folder, make_model_dir)
        assert exported(run, "--output-dir", folder / "exported").code == 0
        command = [sys.executable, folder / "exported" / "predict.py"]
        ran = [subprocess.run([*command, file], capture_output=True, encoding="utf-8") for file in (pair, alone)]
        assert [each.returncode for each in ran] == [0, int(reads_pairs)]
        if reads_pairs:
            assert "line 1: the row has no text_pair" in ran[1].stderr
            absent = subprocess.run([*command, "--int8", pair], capture_output=True, encoding="utf-8")
            assert (absent.returncode, absent.stderr[:19]) == (1, "error: there is no ")
            assert absent.stderr.endswith("model_quantized.onnx; bertkit export --int8 writes it\n")
        else:
            one, other = (json.loads(each.stdout)["prediction"] for each in ran)
            assert one == other


# --- predict.py, part by part --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", TRUNCATIONS)
def test_texts_are_cut_as_in_training(how: str) -> None:
    lengths = [*range(0, 30, 3), 100]
    for columns in [[a] for a in lengths] + [[a, b] for a in lengths for b in lengths]:
        given = [[*range(100 * n, 100 * n + length)] for n, length in enumerate(columns)]
        for room in (1, 7, 20):
            expected = cut_texts([np.array([length]) for length in columns], room, how)
            parts = [np.split(part.places(np.zeros_like(part.kept)), np.cumsum(part.kept)[:-1]) for part in expected.parts]
            windows = [[(own + 100 * n).tolist() for n, own in enumerate(window)] for window in zip(*parts, strict=True)]
            assert onnx_predict.cut(given, room, how) == windows, (columns, room)


def test_words_are_read_in_the_windows_of_training() -> None:
    def pieces(words: list[str]) -> Ragged:
        return Ragged.of([[len(word)] * len(word) for word in words])

    tokenizer: Any = SimpleNamespace(pieces=pieces, cls_token_id=101, sep_token_id=102, unk_token_id=100)
    tokenizer.with_special_tokens = partial(Tokenizer.with_special_tokens, tokenizer)
    rng = np.random.default_rng(0)
    for room in (1, 5, 9, 16):
        for count in range(1, 40):
            words = ["x" * length for length in rng.integers(1, 4, count)]
            found, _, _, _, _ = encode_words([words], tokenizer, room + 2, read_cls=False)
            begins = np.cumsum([0, *(min(len(word), room) for word in words)]).tolist()
            windows = onnx_predict.windows_of(begins, room)
            assert found.rows is not None
            assert found.input_ids.lengths.tolist() == [begins[last] - begins[first] + 2 for first, last, _, _ in windows]
            rows = [[begins[word] - begins[first] + 1 for word in range(*read)] for first, _, *read in windows]
            assert [found.rows[window].tolist() for window in range(len(found))] == rows


# --- other folders, and what is refused ------------------------------------------------------------------------------------


def test_masks_are_filled(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    model = make_model_dir("BertForMaskedLM", **MASKS)
    assert exported(model, "--output-dir", tmp_path / "exported").code == 0
    rows = [{"text": "the [MASK] movie was [MASK]."}, {"text": "no mask"}, {"text": "[MASK]"}]
    found = predicted_alone(tmp_path / "exported", jsonl(tmp_path / "rows.jsonl", rows))
    for one, prediction in zip(found, bertkit.load(model, "cpu", "fp32").predict([row["text"] for row in rows]), strict=True):
        assert_near(one["fills"], prediction.details["fills"])


def test_other_tools_find_their_names(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    """A plain Hugging Face folder; names of inputs and outputs, dynamic axes, and the tokenizer."""
    model = make_model_dir("BertForQuestionAnswering", initializer_range=0.5)
    assert exported(model, "--output-dir", tmp_path / "exported").code == 0
    session = onnxruntime.InferenceSession(tmp_path / "exported" / "onnx" / "model.onnx")
    assert [each.name for each in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [each.name for each in session.get_outputs()] == ["start_logits", "end_logits"]
    assert all(isinstance(axis, str) for each in session.get_inputs() for axis in each.shape)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    inputs = tokenizer([("why", TEXTS[0]), ("what is it", TEXTS[1])], padding=True, return_tensors="pt")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "exported")
    assert config.architectures == ["BertForQuestionAnswering"]
    expected = transformers.BertForQuestionAnswering.from_pretrained(model)(**inputs)
    start, end = session.run(None, {name: inputs[name].numpy() for name in ("input_ids", "attention_mask", "token_type_ids")})
    np.testing.assert_allclose(start, expected.start_logits.detach(), atol=1e-4)
    np.testing.assert_allclose(end, expected.end_logits.detach(), atol=1e-4)


@pytest.mark.parametrize("moved", [2, *(pytest.param(moved, marks=pytest.mark.slow) for moved in (1, 4))])
def test_a_killed_export_is_swept_by_the_same_command(
    moved: int, tmp_path: Path, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between two files: those that are there, and the others aside."""
    command = ("export", make_model_dir("BertForSequenceClassification", num_labels=2), "--output-dir", tmp_path / "out")
    real, count = shutil.move, 0

    class Killed(BaseException):
        pass

    def move(source: Path, target: Path) -> None:
        nonlocal count
        count += 1
        if count > moved:
            raise Killed
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "move", move)
        patch.setattr(tempfile, "TemporaryDirectory", lambda **how: nullcontext(tempfile.mkdtemp(**how)))  # nothing cleans up
        with pytest.raises(Killed):
            run_command(command)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert "onnx" in left
    assert "README.md" not in left
    (tmp_path / "out" / "paths.json").write_text("of another model", encoding="utf-8")
    assert run_command(command).code == 0
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert found[0] == "README.md", "nothing is left aside"
    assert {"onnx", "config.json", "predict.py"} < {*found} - {"paths.json"} == {*found}
    assert [path.name for path in (tmp_path / "out" / "onnx").iterdir()] == ["model.onnx"]
    again = run_command(command)
    assert (again.code, "holds a finished exported model" in again.err) == (2, True)


def test_an_export_without_a_card_that_no_kill_has_left_stays(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"mine")
    model = make_model_dir("BertForSequenceClassification", num_labels=2)
    assert run_command(("export", model, "--output-dir", tmp_path)).code == 2
    assert (tmp_path / "onnx" / "model.onnx").read_bytes() == b"mine"


def test_a_head_without_a_graph_is_refused(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    run = trained(Case("token-classification", tagged(), (), ("--head", "bilstm")), tmp_path, make_model_dir)
    ran = exported(run, "--output-dir", tmp_path / "exported")
    assert ran.code == ModelError.exit_code
    assert "error: models with a BiLSTM head cannot" in ran.err
    assert not (tmp_path / "exported").exists()


def test_a_graph_with_other_logits_is_not_written(
    tmp_path: Path, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model_dir("BertForSequenceClassification", num_labels=2)
    raw = graph.Graph.raw
    monkeypatch.setattr(graph.Graph, "raw", lambda of, batch: {n: x + 2e-4 for n, x in raw(of, batch).items()})
    ran = exported(model, "--output-dir", tmp_path / "exported")
    assert ran.code == ModelError.exit_code
    assert "differ by 0.0002" in ran.err
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_missing_packages_are_one_line(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ran = exported(tmp_path, "--output-dir", tmp_path / "exported")
    assert ran.code == MachineError.exit_code
    expected = [f"error: export needs the package {package}", 'hint: python -m pip install "bertkit[export]"']
    assert ran.err.splitlines() == expected


def test_int8_of_a_model_without_rows_asks_for_texts(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    for architecture in ("BertForSequenceClassification", "BertForMaskedLM"):
        ran = exported(make_model_dir(architecture), "--int8", "--output-dir", tmp_path / "exported")
        assert (ran.code, "--texts FILE" in ran.err) == (2, True), ran.err
    for file, content, said in (
        ("blank.txt", "\n\n", "no text has a token"),
        ("other.csv", "said,by\nfine,her\n", "no column 'text'; columns: said, by"),
        ("null.jsonl", '{"text": "fine"}\n{"text": null}\n', "'text' contains null"),
    ):
        (tmp_path / file).write_text(content, encoding="utf-8")
        ran = exported(
            make_model_dir("BertForMaskedLM", **MASKS),
            "--int8",
            "--texts",
            tmp_path / file,
            "--output-dir",
            tmp_path / "exported",
        )
        assert (ran.code, said in ran.err) == (3, True), ran.err
        assert file == "blank.txt" or "float32" not in ran.err, "before any work"


# --- int8 --------------------------------------------------------------------------------------------------------------------


def test_int8_is_compared_and_the_card_says_how(
    tmp_path: Path, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(CASES["labels"], tmp_path, make_model_dir)
    folder = tmp_path / "exported"
    monkeypatch.chdir(run)
    ran = exported(".", "--int8", "--output-dir", folder, "--force")  # a tiny random model may well lose
    assert ran.code == 0, ran.err[-400:]
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"# {run.name}, as ONNX" in card
    assert "decisions agree on 12 texts" in card
    assert "95%" in card
    assert "compared on only 12 texts; 5000" in ran.err
    assert len(predicted_alone(folder, tmp_path / "rows.jsonl", "--int8")) == len(TEXTS)
    sizes = [(folder / "onnx" / name).stat().st_size for name in ("model.onnx", "model_quantized.onnx")]
    assert sizes[1] < sizes[0]
    again = exported(run, "--output-dir", folder)
    assert again.code == 2
    assert "a finished exported model" in again.err


def test_int8_that_loses_is_refused(
    tmp_path: Path, make_model_dir: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(CASES["numbers"], tmp_path, make_model_dir)
    monkeypatch.setattr("bertkit.runs.export.quantized.AGREEMENT", 1.01)
    folder = tmp_path / "exported"
    ran = exported(run, "--int8", "--output-dir", folder)
    assert ran.code == ModelError.exit_code
    assert "int8 is not accurate enough" in ran.err
    assert not folder.exists()
    assert exported(run, "--int8", "--force", "--output-dir", folder).code == 0
    assert "It was forced: only" in (folder / "README.md").read_text(encoding="utf-8")


def test_masks_are_compared_on_texts(tmp_path: Path, make_model_dir: Callable[..., Path]) -> None:
    model = make_model_dir("BertForMaskedLM", **MASKS)
    ran = exported(model, "--int8", "--output-dir", tmp_path / "exported")
    assert (ran.code, "--texts FILE" in ran.err) == (2, True)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    ran = exported(model, "--int8", "--force", "--texts", tmp_path / "texts.txt", "--output-dir", tmp_path / "exported")
    assert ran.code == 0, ran.err[-400:]
    assert "agree on 6 texts" in ran.err
    assert "masked_accuracy" in ran.err


def verdict(**changes: Any) -> Verdict:
    passes = Verdict(5000, 5000, 0.99, ("accuracy", 0.9, 0.895), (-0.01, 0.002), (100.0, 200.0))
    return replace(passes, **changes)


def test_what_passes() -> None:
    assert verdict().faults == verdict().warnings == []
    assert "98.98%" in verdict(agreement=0.9898).faults[0]
    assert verdict(agreement=float("nan")).faults != [], "of no decisions"
    (fall,) = verdict(score=("accuracy", 0.9, 0.894)).faults
    assert "0.9000 to 0.8940" in fall
    assert "-0.0100 to +0.0020" in fall
    assert verdict(score=("accuracy", 0.8, 0.9)).faults == []
    assert verdict(score=("f1", 0.9, float("nan"))).faults != []
    lower = partial(verdict, greater_is_better=False)
    (rise,) = lower(score=("mean_squared_error", 40.0, 42.01)).faults
    assert rise == "mean_squared_error rises from 40.0000 to 42.0100, by more than 5% (95% interval -0.0100 to +0.0020)"
    assert [lower(score=("mse", 40.0, each)).faults for each in (42.0, 30.0)] == [[], []]
    assert lower(score=("mse", 0.01, 0.0149)).faults != [], "less than half a point, but half as much again"
    assert lower(score=("mse", 40.0, float("nan"))).faults != []
    assert "slower" in verdict(speeds=(100.0, 90.0)).warnings[0]
    assert "only 4999 texts" in verdict(texts=4999).warnings[0]
    assert "no dev score" in verdict(score=None, interval=None).warnings[0]

"""Bad input that users bring: the exit code, one line of error with its place, at most one of hint, and nothing written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

GOOD = "text,label\ngood movie,pos\nbad movie,neg\ngreat film,pos\npoor plot,neg\n"
FROM_ONE = "text,label\ngood movie,1\nbad movie,2\n"
DECIMALS = "text,score\n" + "".join(f"movie {n},{n + 0.5}\n" for n in range(8))
MANY = "text,label\n" + "".join(f"movie {n},{n % 21}\n" for n in range(63))
NULL = "".join(f'{{"text": "a", "label": {label}}}\n' for label in ('"pos"', '"neg"', "null"))
BARE = "good movie,pos\nbad movie,neg\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """A function that writes a file in the folder in which commands run."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    write("good.csv", GOOD)
    return write


@pytest.fixture
def bertkit(run_bertkit, write, tiny_model_dir: Path) -> Callable[..., Any]:
    """A function that fine-tunes the tiny model for a step on two files: bertkit(train="my.csv", recipe="sst2")."""

    def finetune(*options: object, train="good.csv", validation="good.csv", model=tiny_model_dir, recipe="text-classification"):
        data = [] if train is None else ["--train", train, "--validation", validation]
        common = ["--model", model, "--output-dir", "run", "--max-steps", 1, "--max-length", 16, "--device", "cpu"]
        return run_bertkit("finetune", recipe, *data, *common, *options)

    return finetune


@pytest.fixture
def refused(tmp_path: Path):
    """A function that asserts what the first line of this file says; words: the place, and values where they are the point."""

    def contents() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in tmp_path.rglob("*")}

    def refused(run: Callable[[], Any], code: int, *words: str) -> None:
        before = contents()
        ran = run()
        lines = ran.err.splitlines()
        last = lines[-2:] if lines[-1].startswith("hint: ") else lines[-1:]
        assert last[0].startswith("error: "), ran.err
        assert sum(line.startswith(("error:", "hint:")) for line in lines) == len(last)
        assert (ran.code, ran.out) == (code, ""), ran.err
        assert [word for word in words if word not in "\n".join(last)] == []
        assert contents() == before

    return refused


def trained(ran, tmp_path: Path) -> dict[str, Any]:
    """The run.json of a command that must have ended well."""
    assert ran.code == 0, ran.err
    return json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))


def with_larger_tokenizer(folder: Path) -> None:
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    values["model"]["vocab"]["zebra"] = len(values["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")


def with_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")

    return change


def with_half_of_its_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_three_labels(folder: Path) -> None:
    with_config(architectures=["BertForSequenceClassification"], id2label={"0": "a", "1": "b", "2": "c"})(folder)
    from safetensors.torch import load_file, save_file

    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights |= {"classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(3)}
    save_file(weights, folder / "model.safetensors")


def with_pickled_weights(folder: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch hostile",)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Hostile()}))


def with_a_word_twice(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text(encoding="utf-8") + "movie\n", encoding="utf-8")


# --- one row for each kind of bad input --------------------------------------------------------------------------------------


def squad(count: int = 1, **changes: Any) -> str:
    asked = {"id": "1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]} | changes
    return json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "Ann ran.", "qas": [asked] * count}]}]}
    )


TRAIN = "finetune text-classification --validation good.csv --model MODEL --output-dir out --max-steps 1 --device cpu --train "
TAGS = TRAIN.replace("text-classification --validation good.csv", "token-classification --validation bad.conll")
ANSWERS = TRAIN.replace("text-classification --validation good.csv", "question-answering --max-length 32 --validation bad.json")
OTHER = "finetune text-classification --train good.csv --validation good.csv --output-dir out --max-steps 1 --device cpu "


class Row(NamedTuple):
    """A kind of bad input by its number, as a command line. files: their contents by name. change: of a copy of a tiny model in
    `model`. words: of its one line of error and the hint."""

    number: int
    command: str
    code: int
    words: tuple[str, ...]
    files: Mapping[str, str | bytes] = MappingProxyType({})
    change: Callable[[Path], None] | None = None
    environment: Mapping[str, str] = MappingProxyType({})


def rows() -> list[Row]:
    def file(
        number: int, content: str | bytes, words: Sequence[str], *options: str, name: str = "bad.csv", how: str = TRAIN
    ) -> Row:
        return Row(number, f"{how}{name} {' '.join(options)}", 3, ("bad.", *words), {name: content})

    def model(number: int, change: Callable[[Path], None], *words: str, options: str = "") -> Row:
        return Row(number, f"{OTHER} --model model {options}", 4, words, {}, change)

    def option(
        number: int, command: str, code: int, *words: str, files: dict[str, str | bytes] | None = None, **more: str
    ) -> Row:
        return Row(number, command, code, words, files or {}, None, more)

    return [
        file(1, FROM_ONE, [":3", "labels"], "--labels no,yes"),
        option(2, TRAIN + "good.csv --max-length 65", 2, "--max-length is 65", "64"),
        file(3, '{"text": "a", "label": "1"}\n{"text": "b", "label": 0}\n', [":2"], name="bad.jsonl"),
        file(5, "text,label\na,-1\nb,-1\n", ["no row has a label"]),
        model(6, with_larger_tokenizer, "tokens"),
        option(7, OTHER + "--model no-one/no-model", 5, "no-one/no-model", "HF_HUB_OFFLINE"),
        option(
            11,
            "finetune text-classification --train na.csv --validation na.csv --model MODEL --output-dir out",
            3,
            "na.csv",
            files={"na.csv": "text,label\nNA,null\nnan,null\n"},
        ),
        file(12, "good O\nmovie\n\nbad O\n", [":2"], name="bad.conll", how=TAGS),
        file(14, 'text,label\ngood,pos\n"bad,neg\nfine,pos\n', [":3", "never closes"]),
        file(
            17, squad(answers=[{"text": "Bob", "answer_start": 0}]), ["none of 1 answer is found"], name="bad.json", how=ANSWERS
        ),
        file(18, "text,other\na,pos\nb,neg\n", ["text, other", "--label"]),
        file(18, BARE, ["good movie, pos", "--columns text,label"]),
        file(18, BARE, ["--columns text,label"], "--validation 10%"),
        file(18, "Where is it?,pos\nbad,neg\n", ["'text'", "--columns text,label"], "--text text"),
        file(18, "text;label\na,pos\nb,neg\n", [":1", "--separator ';'"]),
        model(20, with_three_labels, "--fresh-head"),
        model(21, with_config(model_type="roberta"), "roberta", "config.json"),
        model(22, with_config(num_hidden_layers=3), "encoder.layer.2", "11 more"),
        model(22, with_config(num_hidden_layers=10**6), "1,000,000 num_hidden_layers"),
        model(22, with_config(hidden_size=2 * 10**5), "parameters"),
        model(23, with_half_of_its_weights, "model.safetensors"),
        model(23, lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors"),
        file(25, "text,label\ncaf\xe9,pos\n".encode("latin-1"), [":2", "--encoding windows-1252"]),
        file(25, "text,label\na,pos\n".encode("utf-16"), ["UTF-16"]),
        file(26, "text,label\ngood\0 movie,pos\n", [":2", "NUL", "byte 5"]),
        file(27, "text,label\na,pos\nb,c,neg\n", [":3", "3 fields"]),
        file(28, '{"text": "a", "label": "p"}\n{"text": "b", "la', [":2", "cut off"], name="bad.jsonl"),
        file(29, "", ["empty"]),
        file(29, "text,label\n", ["no rows"]),
        file(30, "text,label\na,pos\nb,neg\nc,\n", [":4", "'label'"]),
        file(30, "text,label\na,pos\n,neg\n", [":3", "'text'"]),
        file(30, NULL, [":3", "'label'"], name="bad.jsonl"),
        file(30, '{"text": "a", "label": "p"}\n{"label": "n"}\n', [":2", "'text'"], name="bad.jsonl"),
        file(31, "text,label\na,pos\nb,Neg\n", [":3", "did you mean neg"], "--labels pos,neg"),
        option(32, OTHER + "--model MODEL --output-dir taken", 2, "not empty", files={"taken/mine.txt": "x"}),
        option(33, OTHER + "--model MODEL --config c.yaml", 2, "c.yaml", files={"c.yaml": "schedule: no\n"}),
        model(34, with_config(num_attention_heads=3), "num_attention_heads"),
        model(34, with_config(hidden_act="swoosh"), "hidden_act"),
        option(
            35, OTHER + "--model MODEL", 2, "several processes but started only one", ACCELERATE_USE_CPU="1", MASTER_PORT="1"
        ),
        option(35, OTHER + "--model MODEL", 2, "MASTER_ADDR", WORLD_SIZE="2"),
        model(37, with_pickled_weights, "pytorch_model.bin"),
        file(38, squad(2), ["'1'"], name="bad.json", how=ANSWERS),
        file(39, "text,label\na,1\nb,nan\n", [":3"], "--regression"),
        file(39, "text,label\na,x\nb,x\n", ["'x'"]),
        file(30, '"text"\t"label"\n"a"\t"p"\n', [":1", "in quotes", "name the file .csv"], name="bad.tsv"),
        file(39, "text,label\na,1\nb,2\n", ["'text' is named as a text and as the label"], "--label text"),
        file(39, DECIMALS, [":2", "--regression", "--classes"], "--label score"),
        file(39, DECIMALS, [":2", "--regression", "--classes"], "--label score --validation 10%"),
        file(39, DECIMALS, [":2", "--regression", "--classes"], "--label score --validation 1/5"),
        file(39, MANY, ["--regression", "--classes"]),
        model(41, with_a_word_twice, "'movie'", "again in line"),
        option(42, OTHER + "--model MODEL --output-dir good.csv", 2, "good.csv", "is a file"),
        option(42, OTHER + "--model MODEL --output-dir /proc/out", 5, "/proc/out"),
        file(43, "text,label\n\x1b[31ma,[/red]\x1b[2J\nb,\x1b]0;t\x07\n", ["\\x1b[2J"], "--labels a,b"),
    ]


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.number}-{at}") for at, row in enumerate(rows())])
def test_bad_input_is_one_line(
    run_bertkit, write, refused, make_model_dir, tiny_model_dir, tmp_path: Path, monkeypatch, row: Row
) -> None:
    for name, content in row.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(name, content)
    for name, value in row.environment.items():
        monkeypatch.setenv(name, value)
    if row.change:
        shutil.copytree(tiny_model_dir, tmp_path / "model")
        row.change(tmp_path / "model")
    refused(lambda: run_bertkit(*row.command.replace("MODEL", str(tiny_model_dir)).split()), row.code, *row.words)


# By its number: a command that only tells of it, what it says, and the content of its file.
TOLD = [
    (13, "check bad.conll", "scheme", "".join(f"w{n} I-PER\nb S-LOC\n\nv{n} B-PER\nb E-PER\n\n" for n in range(10))),
    (40, "check bad.csv", "duplicate", "text,label\n" + "".join(f"w{n},p\nv{n},n\n" for n in range(10)) * 2),
    (40, "check bad.csv", "empty", "text,label\na,p\n,n\n"),
    (43, "check bad.csv --model MODEL", "\\x1b[2J", "text,label\n\x1b[31ma [/red],p\x1b[2J\nb,n\n"),
]


@pytest.mark.parametrize(("number", "command", "words", "content"), TOLD)
def test_bad_input_that_check_tells(
    run_bertkit, write, tiny_model_dir: Path, number: int, command: str, words: str, content: str
) -> None:
    write(command.split()[1], content)
    ran = run_bertkit(*command.replace("MODEL", str(tiny_model_dir)).split())
    assert (words in ran.err, "\x1b" in ran.err, "is a bug" in ran.err) == (True, False, False), ran.err


# --- data ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "content", "line", "words"),
    [
        (FROM_ONE, "text,label\ngood movie,1\nbad movie,0\n", ":3", ["'0'", "remove the row"]),
        (GOOD, "text,label\ngood,pos\nbad,Neg\n", ":3", ["'Neg'", "did you mean neg?"]),
        (GOOD, "text,label\ngood,pos\nbad,mixed\n", ":3", ["'mixed'"]),
        (GOOD, "text,label\ngood movie,-1\nbad movie,-1\n", "", ()),
    ],
)
def test_validation_file_with_other_labels_is_refused(bertkit, write, refused, train, content, line, words) -> None:
    write("train.csv", train)
    path = write("dev.csv", content)
    refused(lambda: bertkit(train="train.csv", validation="dev.csv"), 3, f"({path}{line})", *words)


def test_labels_that_a_recipe_does_not_have_are_refused(bertkit, write, refused) -> None:
    path = write("one.csv", FROM_ONE)
    refused(lambda: bertkit("--text", "text", train="one.csv", recipe="sst2"), 3, f"({path}:3)")
    path = write("xnli.tsv", "premise\thypothesis\tlabel\na\tb\tcontradictory\n")
    refused(lambda: bertkit(recipe="mnli", train="xnli.tsv", validation="xnli.tsv"), 3, f"({path}:2)")


def test_numbers_are_classes_where_the_user_insists(bertkit, write, tmp_path: Path) -> None:
    write("many.csv", MANY)
    run = trained(bertkit("--classes", train="many.csv", validation="1/3"), tmp_path)
    assert (run["task"]["labels"], run["data"]["validation"]["rows"]) == ([str(number) for number in range(21)], 21)


@pytest.mark.parametrize(
    ("content", "options", "labels"),
    [
        (FROM_ONE, (), ["1", "2"]),
        (FROM_ONE.replace("1", "1.5"), ("--classes",), ["1.5", "2"]),
        ("text;label\ngood movie;pos\nbad movie;neg\n", ("--separator", ";"), ["neg", "pos"]),
        ("text;label\ngood movie;pos\nbad movie;neg\n", (), ["neg", "pos"]),
        ("text,label\ncafé noir,pos\nbad movie,neg\n".encode("latin-1"), ("--encoding", "latin-1"), ["neg", "pos"]),
        ("pos,good movie\nneg,bad movie\n", ("--columns", "label,text"), ["neg", "pos"]),
    ],
)
def test_what_the_hints_say_works(bertkit, write, tmp_path: Path, content: str | bytes, options, labels: list[str]) -> None:
    write("rows.csv", content)
    run = trained(bertkit(*options, train="rows.csv", validation="rows.csv"), tmp_path)
    assert (run["task"]["labels"], run["data"]["train"]["rows"]) == (labels, 2)


@pytest.mark.parametrize(
    ("name", "texts", "labels"),
    [
        ("na.csv", ["NA", "null", "None", "nan"], ["null", "None", "null", "None"]),
        ("quotes.tsv", ['"good movie', "bad", '"fine film', 'bad "story'], ["n", "p", "n", "p"]),
    ],
)
def test_words_for_missing_values_and_unbalanced_quotes_are_text(
    bertkit, run_bertkit, write, tmp_path: Path, name: str, texts: list[str], labels: list[str]
) -> None:
    between = "\t" if name.endswith(".tsv") else ","
    write(name, "".join(between.join(row) + "\n" for row in [("text", "label"), *zip(texts, labels, strict=True)]))
    run = trained(bertkit(train=name, validation=name), tmp_path)
    assert (run["task"]["labels"], run["data"]["train"]["rows"]) == (sorted(set(labels)), 4)
    ran = run_bertkit("predict", "run", name)
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == texts


def test_test_split_without_labels_is_predicted_and_not_evaluated(bertkit, run_bertkit, write, refused, tmp_path: Path) -> None:
    trained(bertkit(), tmp_path)
    for content in ("text,label\ngood movie,-1\nbad movie,-1\n", "id,text\n1,good movie\n2,bad movie\n"):
        path = write("test.csv", content)
        refused(lambda: run_bertkit("eval", "run", "--test", "test.csv"), 3, f"({path})")
        ran = run_bertkit("predict", "run", "test.csv")
        assert (ran.code, len(ran.out.splitlines())) == (0, 2)


def test_equal_targets_give_no_score_of_nan(bertkit, write, tmp_path: Path) -> None:
    write("same.csv", "text,label\n" + "good movie,1.5\nbad movie,1.5\n" * 4)
    write("others.csv", "text,label\n" + "good film,1.5\nbad film,2.5\n" * 4)
    run = trained(bertkit("--regression", train="others.csv", validation="same.csv"), tmp_path)
    assert run["best"]["scores"]["validation/pearson"] is None  # JSON has no nan
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")


def test_markup_and_control_characters_are_shown_and_not_obeyed(bertkit, run_bertkit, write, tmp_path: Path) -> None:
    write("marks.csv", "text,label\n[bold]good[/nope] \x1b[31mred,[red]pos\nbad [/] movie,neg\n")
    ran = bertkit(train="marks.csv", validation="marks.csv")
    assert trained(ran, tmp_path)["task"]["labels"] == ["[red]pos", "neg"]
    dry = bertkit("--dry-run", "-o", "dry", train="marks.csv", validation="marks.csv")
    for shown in (dry.err, run_bertkit("eval", "run", "--errors", 2).err):
        assert "[red]pos" in shown
        assert "\x1b[31m" not in shown
    ran = run_bertkit("predict", "run", "marks.csv", "--format", "text")
    assert "[bold]good[/nope] \\x1b[31mred" in ran.out
    assert "\x1b[31m" not in ran.out + ran.err


# --- models ----------------------------------------------------------------------------------------------------------------


def test_model_with_the_labels_in_another_order_is_scored_by_names(run_bertkit, make_model_dir, write) -> None:
    from transformers import pipeline

    names = ("contradiction", "entailment", "neutral")  # the recipe: entailment, neutral, contradiction
    model = make_model_dir("BertForSequenceClassification", seed=3, initializer_range=1.0, labels=names)
    texts = (
        ("good movie", "bad book"),
        ("the river", "a bank"),
        ("i love you", "we hate this"),
        ("open", "close"),
        ("one", "two"),
    )
    classify = pipeline("text-classification", model=str(model), device="cpu")
    said = [classify({"text": a, "text_pair": b})["label"] for a, b in texts]
    assert len(set(said)) > 1
    references = [*said[:3], *("neutral" if name == "entailment" else "entailment" for name in said[3:])]
    numbers = {"entailment": "0", "neutral": "1", "contradiction": "2"}
    for labels in (references, [numbers[name] for name in references]):
        rows = "".join(f"{a}\t{b}\t{label}\n" for (a, b), label in zip(texts, labels, strict=True))
        write("rows.tsv", "premise\thypothesis\tlabel\n" + rows)
        options = ("--validation", "rows.tsv", "--max-length", 64, "--precision", "fp32", "--json")
        assert json.loads(run_bertkit("eval", model, "--recipe", "mnli", *options).out)["validation/accuracy"] == 3 / 5


def test_loss_that_is_not_finite_at_an_evaluation_keeps_the_last_checkpoint(bertkit, tmp_path: Path) -> None:
    options = ("--learning-rate", "1e38", "--warmup-ratio", 0.5, "--max-steps", 4, "--eval-steps", 1, "--precision", "fp32")
    ran = bertkit(*options)  # the first step is of warm-up, and changes nothing
    assert (ran.code, ran.out) == (2, "")
    *_, error, hint = ran.err.splitlines()
    assert error == "error: the loss on validation is nan"
    assert "--learning-rate" in hint
    run = tmp_path / "run"
    assert [path.name for path in run.glob("*checkpoint-*")] == ["checkpoint-1"]
    weights = [(folder / "model.safetensors").read_bytes() for folder in (run, run / "checkpoint-1")]
    assert weights[0] == weights[1]
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "running"


def test_hub_names_need_a_network(bertkit, refused) -> None:
    refused(lambda: bertkit(recipe="sst2", train=None), 5, "(nyu-mll/glue)", "--data DIR")
    refused(lambda: bertkit(model="no-one/no-model"), 5, "no-one/no-model", "HF_HUB_OFFLINE")


# --- options and folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"), [("schedule: no\n", ["False"]), ("labels: [no, yes]\n", []), ("learning_rate: fast\n", ["'fast'"])]
)
def test_options_file_with_values_of_another_type_is_refused(bertkit, write, refused, content: str, words: list[str]) -> None:
    write("run.yaml", content)
    refused(lambda: bertkit("--config", "run.yaml"), 2, "(run.yaml)", *words)


def test_output_folder_that_cannot_be_made_is_refused(
    bertkit, write, refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("taken", "")
    refused(lambda: bertkit("--output-dir", "taken/run"), 2, f"({path})")
    if Path("/proc/self").exists():  # a folder that not even the superuser can write into
        refused(lambda: bertkit("--output-dir", "/proc/run"), 5, "(/proc/run)")
    folder = read_only(tmp_path, monkeypatch)
    refused(lambda: bertkit("--output-dir", "others/run"), 5, f"({folder})")


def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "others"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):  # the superuser may write everywhere, and is told otherwise here
        allowed = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and allowed(path, mode))
    return folder


@pytest.mark.parametrize(
    "command",
    [
        *("eval nowhere --output-dir others/scores", "report nowhere --output others/page.html"),
        *("predict nowhere good.csv --output others/out.csv", "predict nowhere good.csv --output-dir others/out"),
    ],
)
def test_output_that_cannot_be_written_is_refused_before_a_model_is_opened(
    run_bertkit, write, refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    folder = read_only(tmp_path, monkeypatch)
    refused(lambda: run_bertkit(*command.split()), 5, f"({folder})")


def test_ctrl_c_before_the_training_writes_nothing(bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    monkeypatch.setattr("bertkit.tasks.recipe.read_blocks", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    ran = bertkit()
    signal.signal(signal.SIGINT, before)
    assert (ran.code, ran.out, ran.err) == (130, "", "stopped\n")
    assert not (tmp_path / "run").exists()

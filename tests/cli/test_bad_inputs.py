"""Bad input that users bring (the numbers are those of the list): one line that says what is wrong, and nothing written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

GOOD = "text,label\ngood movie,pos\nbad movie,neg\ngreat film,pos\npoor plot,neg\n"
HINT_HEAD = "bertkit finetune --fresh-head puts a new head on the encoder"


def files_of(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, with the content of its files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


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

    def finetune(
        *options: object,
        train="good.csv",
        validation="good.csv",
        model: Path | str = tiny_model_dir,
        recipe="text-classification",
    ):
        data = [] if train is None else ["--train", train, "--validation", validation]
        common = ["--model", model, "--output-dir", "run", "--max-steps", 1, "--max-length", 16, "--device", "cpu"]
        return run_bertkit("finetune", recipe, *data, *common, *options)

    return finetune


@pytest.fixture
def refused(tmp_path: Path):
    """A function that runs a command and asserts that it exits with this code, writes nothing, and ends with one line of error
    and at most one of hint, which have these words: the place, and values where they are the point.
    """

    def refused(run: Callable[[], Any], code: int, *words: str) -> None:
        before = files_of(tmp_path)
        ran = run()
        lines = ran.err.splitlines()
        last = lines[-2:] if lines[-1].startswith("hint: ") else lines[-1:]
        assert last[0].startswith("error: "), ran.err
        assert sum(line.startswith(("error:", "hint:")) for line in lines) == len(last)
        assert ran.code == code, ran.err
        assert [word for word in words if word not in "\n".join(last)] == [], last
        assert "Traceback" not in ran.err
        assert ran.out == ""
        assert files_of(tmp_path) == before, "something was written"

    return refused


@pytest.fixture
def model_copy(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that copies the tiny model and changes keys of its config.json."""

    def copy(source: Path = tiny_model_dir, **changes: Any) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(source, folder)
        config = folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text(encoding="utf-8")) | changes), encoding="utf-8")
        return folder

    return copy


def trained(ran, tmp_path: Path) -> dict[str, Any]:
    """The run.json of a command that must have ended well."""
    assert ran.code == 0, ran.err
    return json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))


# --- 1 to 7 ----------------------------------------------------------------------------------------------------------------


def test_01_labels_that_start_at_1(bertkit, write, refused, tmp_path: Path) -> None:
    write("one.csv", "text,label\ngood movie,1\nbad movie,2\n")
    refused(lambda: bertkit("--labels", "no,yes", train="one.csv"), 3, f"({tmp_path}/one.csv:3)")
    refused(lambda: bertkit("--text", "text", train="one.csv", recipe="sst2"), 3, f"({tmp_path}/one.csv:3)")
    # Without names of their own they are classes like any other.
    assert trained(bertkit(train="one.csv", validation="one.csv"), tmp_path)["task"]["labels"] == ["1", "2"]


def test_01_a_number_that_train_has_not(bertkit, write, refused, tmp_path: Path) -> None:
    write("one.csv", "text,label\ngood movie,1\nbad movie,2\n")
    write("zero.csv", "text,label\ngood movie,1\nbad movie,0\n")
    refused(lambda: bertkit(train="one.csv", validation="zero.csv"), 3, f"({tmp_path}/zero.csv:3)", "'0'", "--labels")


def test_02_more_tokens_than_the_model_has_positions(bertkit, write, refused, tmp_path: Path) -> None:
    refused(lambda: bertkit("--max-length", 65), 2, "--max-length is 65", "64")
    # A long text is cut at max_length, and that is said.
    write("long.csv", f"text,label\n{'good movie ' * 600},pos\nbad movie,neg\n")
    ran = bertkit("--max-length", 64, train="long.csv")
    assert trained(ran, tmp_path)["data"]["train"]["rows"] == 2
    assert "train: 2 rows, 34 tokens on average, 1 longer than 64 truncated" in ran.err.splitlines()  # (64 + 4) / 2


def test_03_labels_of_text_and_of_mixed_types(bertkit, write, refused, tmp_path: Path) -> None:
    write("mixed.jsonl", '{"text": "good movie", "label": "1"}\n{"text": "bad movie", "label": 0}\n')
    refused(lambda: bertkit(train="mixed.jsonl"), 3, f"({tmp_path}/mixed.jsonl:2)")
    assert trained(bertkit(), tmp_path)["task"]["labels"] == ["neg", "pos"]


def test_04_a_model_with_the_labels_in_another_order(run_bertkit, make_model_dir, write, tmp_path: Path) -> None:
    """The accuracy must be that of the model's own names, whatever the order of the recipe, names or numbers in the data."""
    from transformers import pipeline

    names = ("contradiction", "entailment", "neutral")  # the recipe: entailment, neutral, contradiction
    model = make_model_dir(
        "BertForSequenceClassification",
        seed=3,
        initializer_range=1.0,
        id2label=dict(enumerate(names)),
        label2id={n: i for i, n in enumerate(names)},
    )
    pairs = [
        ("good movie", "bad book"),
        ("the river", "a bank"),
        ("i love you", "we hate this"),
        ("open", "close"),
        ("one", "two"),
    ]
    classify = pipeline("text-classification", model=str(model), device="cpu")
    said = [classify({"text": a, "text_pair": b})["label"] for a, b in pairs]
    assert len(set(said)) > 1
    gold = [*said[:3], *("neutral" if name == "entailment" else "entailment" for name in said[3:])]
    numbers = {"entailment": "0", "neutral": "1", "contradiction": "2"}
    for file, labels in (("names.tsv", gold), ("numbers.tsv", [numbers[name] for name in gold])):
        rows = "".join(f"{a}\t{b}\t{label}\n" for (a, b), label in zip(pairs, labels, strict=True))
        write(file, "premise\thypothesis\tlabel\n" + rows)
        ran = run_bertkit(
            "eval", model, "--recipe", "mnli", "--validation", file, "--max-length", 64, "--precision", "fp32", "--json"
        )
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["validation/accuracy"] == 3 / 5, file


def test_05_an_unlabelled_test_split(bertkit, run_bertkit, write, refused, tmp_path: Path) -> None:
    write("test.csv", "text,label\ngood movie,-1\nbad movie,-1\n")
    refused(lambda: bertkit(validation="test.csv"), 3, f"({tmp_path}/test.csv)")
    trained(bertkit(), tmp_path)
    refused(lambda: run_bertkit("eval", "run", "--test", "test.csv"), 3, f"({tmp_path}/test.csv)")
    write("bare.csv", "id,text\n1,good movie\n")
    refused(lambda: run_bertkit("eval", "run", "--test", "bare.csv"), 3, f"({tmp_path}/bare.csv)")
    ran = run_bertkit("predict", "run", "test.csv")
    assert (ran.code, len(ran.out.splitlines())) == (0, 2)


def test_06_a_tokenizer_larger_than_the_embedding(bertkit, model_copy, refused) -> None:
    folder = model_copy()
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    count = len(values["model"]["vocab"])
    values["model"]["vocab"]["zebra"] = count
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    refused(lambda: bertkit(model=folder), 4, f"{count + 1} tokens", f"only {count}")


def test_07_hub_names_without_a_network(bertkit, refused) -> None:
    refused(lambda: bertkit(recipe="sst2", train=None), 5, "(nyu-mll/glue)", "--data DIR")
    refused(lambda: bertkit(model="no-one/no-model"), 5, "no-one/no-model", "HF_HUB_OFFLINE")


def test_07_a_data_set_that_needs_a_script(bertkit, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found glue.py")  # as datasets 5 says it

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    refused(lambda: bertkit(recipe="sst2", train=None), 3, "(nyu-mll/glue)", "script")


# --- 11 to 18 --------------------------------------------------------------------------------------------------------------


def test_11_words_that_others_take_for_missing_values(bertkit, run_bertkit, write, tmp_path: Path) -> None:
    write("na.csv", "text,label\nNA,null\nnull,None\nNone,null\nnan,None\n")
    values = trained(bertkit(train="na.csv", validation="na.csv"), tmp_path)
    assert values["task"]["labels"] == ["None", "null"]
    assert values["data"]["train"]["rows"] == 4
    ran = run_bertkit("predict", "run", "na.csv")
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == ["NA", "null", "None", "nan"]


def test_14_a_table_with_unbalanced_quotes(bertkit, run_bertkit, write, tmp_path: Path) -> None:
    texts = ['"good movie', "bad", '"fine film', 'bad "story']
    write("quotes.tsv", "text\tlabel\n" + "".join(f"{text}\t{'np'[i % 2]}\n" for i, text in enumerate(texts)))
    assert trained(bertkit(train="quotes.tsv", validation="quotes.tsv"), tmp_path)["data"]["train"]["rows"] == 4
    ran = run_bertkit("predict", "run", "quotes.tsv")
    assert [json.loads(line)["text"] for line in ran.out.splitlines()] == texts


def test_14_an_open_quote_in_csv_is_named_by_its_line(bertkit, write, refused, tmp_path: Path) -> None:
    write("open.csv", 'text,label\ngood movie,pos\n"bad movie,neg\nfine film,pos\n')
    refused(lambda: bertkit(train="open.csv"), 3, f"({tmp_path}/open.csv:3)")


def test_15_a_loss_that_is_not_finite(bertkit, tmp_path: Path) -> None:
    options = ("--learning-rate", "1e38", "--warmup-ratio", 0, "--max-steps", 40, "--precision", "fp32")
    ran = bertkit(*options, "--logging-steps", 7, "--eval-steps", 40)
    assert ran.code == 2
    *_, error, hint = ran.err.splitlines()
    assert error == "error: the loss is nan at step 2"
    assert "--learning-rate" in hint
    assert "Traceback" not in ran.err
    # At an evaluation too, before a model of NaN is saved as the best.
    shutil.rmtree(tmp_path / "run")
    ran = bertkit(*options, "--eval-steps", 1)
    assert (ran.code, ran.err.splitlines()[-2]) == (2, "error: the loss on validation is nan")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.jsonl", "run.json"]


@pytest.mark.parametrize(
    ("content", "options", "line", "words"),
    [
        (GOOD, ("--label", "Lable"), "", ["'Lable'", "did you mean label?"]),
        (GOOD, ("--text", "Text"), "", ["'Text'", "did you mean text?"]),
        ("text,other\ngood movie,pos\nbad movie,neg\n", (), "", ["text, other", "--label"]),
        ("good movie,pos\nbad movie,neg\n", (), "", ["good movie, pos", "--columns label,text"]),
        ("Where is it?,pos\nbad movie,neg\n", ("--text", "text"), "", ["'text'", "--columns label,text"]),
        ("text;label\ngood movie;pos\nbad movie;neg\n", (), ":1", ["--separator ';'"]),
    ],
    ids=["label", "text", "no label", "no header", "header asked for", "semicolon"],
)
@pytest.mark.parametrize("validation", ["good.csv", "10%"])
def test_18_columns_and_separators(
    bertkit, write, refused, content: str, options: tuple, line: str, words: list[str], validation: str
) -> None:
    path = write("odd.csv", content)
    refused(lambda: bertkit(*options, train="odd.csv", validation=validation), 3, f"({path}{line})", *words)


def test_18_what_the_hints_say_works(bertkit, write, tmp_path: Path) -> None:
    write("semicolon.csv", "text;label\ngood movie;pos\nbad movie;neg\n")
    ran = bertkit("--separator", ";", train="semicolon.csv", validation="semicolon.csv")
    assert trained(ran, tmp_path)["data"]["train"]["rows"] == 2
    shutil.rmtree(tmp_path / "run")
    write("bare.csv", "pos,good movie\nneg,bad movie\n")
    assert (
        trained(bertkit("--columns", "label,text", train="bare.csv", validation="bare.csv"), tmp_path)["data"]["train"]["rows"]
        == 2
    )


# --- 20 to 26 --------------------------------------------------------------------------------------------------------------


def test_20_another_number_of_labels_than_the_head(bertkit, make_model_dir, refused, tmp_path: Path) -> None:
    named = {0: "a", 1: "b", 2: "c"}
    model = make_model_dir("BertForSequenceClassification", id2label=named, label2id={name: i for i, name in named.items()})
    refused(lambda: bertkit(model=model), 4, f"({model})", "--fresh-head")
    unnamed = make_model_dir("BertForSequenceClassification", num_labels=3)
    refused(lambda: bertkit(model=unnamed), 4, f"({unnamed})", "--fresh-head")
    assert trained(bertkit("--fresh-head", model=model), tmp_path)["model"]["fresh_head"] is True


def test_21_another_architecture(bertkit, model_copy, refused) -> None:
    folder = model_copy(model_type="roberta")
    refused(lambda: bertkit(model=folder), 4, f"({folder}/config.json)")


def test_21_weights_of_another_architecture(bertkit, model_copy, refused) -> None:
    from safetensors.torch import load_file, save_file

    folder = model_copy()
    weights = load_file(folder / "model.safetensors")
    save_file({f"roberta.{name}": tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    refused(lambda: bertkit(model=folder), 4, f"({folder})", "roberta.", f"{len(weights) - 5} more")


def test_22_more_layers_than_the_file(bertkit, model_copy, refused) -> None:
    folder = model_copy(num_hidden_layers=3)
    refused(
        lambda: bertkit(model=folder),
        4,
        f"({folder})",
        "3 layers",
        "bert.encoder.layer.2.attention.self.query.weight",
        "11 more",
    )


def test_23_a_truncated_or_empty_weights_file(bertkit, model_copy, refused) -> None:
    model = model_copy()
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:4]):
        weights.write_bytes(content)
        refused(lambda: bertkit(model=model), 4, f"({weights})")
    weights.write_bytes(b"")
    refused(lambda: bertkit(model=model), 4, f"empty ({weights})")


def test_25_latin_1_and_utf_16(bertkit, write, refused) -> None:
    path = write("latin.csv", "text,label\ncafé noir,pos\nbad,neg\n".encode("latin-1"))
    refused(lambda: bertkit(train="latin.csv"), 3, f"({path}:2)", f"iconv -f ISO-8859-1 -t UTF-8 {path}")
    path = write("utf16.csv", b"\xff\xfe" + GOOD.encode("utf-16-le"))
    refused(lambda: bertkit(train="utf16.csv"), 3, f"({path}:1)", f"iconv -f UTF-16 -t UTF-8 {path}")


def test_26_byte_order_mark_and_carriage_returns(bertkit, write, tmp_path: Path) -> None:
    write("windows.csv", b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    data = trained(bertkit(train="windows.csv", validation="good.csv"), tmp_path)["data"]
    assert data["train"]["sha256"] == data["validation"]["sha256"]  # the same features as the file without them


def test_26_nul_bytes(bertkit, write, refused) -> None:
    path = write("nul.csv", "text,label\ngood\0 movie,pos\nbad movie,neg\n")
    refused(lambda: bertkit(train="nul.csv"), 3, f"({path}:2)", "NUL", "byte 5")


# --- 29 to 36, 42 ----------------------------------------------------------------------------------------------------------


def test_27_a_row_with_too_many_or_too_few_fields(bertkit, write, refused, tmp_path: Path) -> None:
    write("more.csv", "text,label\ngood movie,pos\nbad,movie,neg\n")
    refused(lambda: bertkit(train="more.csv"), 3, f"({tmp_path}/more.csv:3)")
    write("less.tsv", "text\tlabel\ngood movie\tpos\nbad\n")
    refused(lambda: bertkit(train="less.tsv"), 3, f"({tmp_path}/less.tsv:3)")


def test_28_a_line_of_json_that_is_cut_off(bertkit, write, refused, tmp_path: Path) -> None:
    write("cut.jsonl", '{"text": "good", "label": "a"}\n\n{"text": "bad", "la')
    refused(lambda: bertkit(train="cut.jsonl"), 3, f"({tmp_path}/cut.jsonl:3)")


def test_29_an_empty_file_and_a_header_alone(bertkit, write, refused) -> None:
    path = write("empty.csv", "")
    refused(lambda: bertkit(train="empty.csv"), 3, f"empty ({path})")
    path = write("header.csv", "text,label\n")
    refused(lambda: bertkit(validation="header.csv"), 3, f"({path})", "--columns")


@pytest.mark.parametrize(
    ("name", "content", "line", "column"),
    [
        ("no-label.csv", "text,label\ngood,pos\nbad,neg\nfilm,\nplot,\n", 4, "label"),
        (
            "no-label.jsonl",
            '{"text": "good", "label": "pos"}\n{"text": "bad", "label": "neg"}\n{"text": "film", "label": null}\n',
            3,
            "label",
        ),
        ("no-text.csv", "text,label\ngood,pos\n,neg\n", 3, "text"),
        ("no-text.jsonl", '{"text": "good", "label": "pos"}\n{"label": "neg"}\n', 2, "text"),
    ],
)
def test_30_rows_without_a_label_or_without_text(
    bertkit, write, refused, name: str, content: str, line: int, column: str
) -> None:
    path = write(name, content)
    refused(lambda: bertkit(train=name), 3, f"({path}:{line})", f"'{column}'")


def test_31_a_label_only_in_the_dev_set_or_spelt_otherwise(bertkit, write, refused) -> None:
    path = write("dev.csv", "text,label\ngood,pos\nbad,Neg\n")
    refused(lambda: bertkit(validation="dev.csv"), 3, f"({path}:3)", "'Neg'", "did you mean neg?")
    path = write("dev.csv", "text,label\ngood,pos\nbad,mixed\n")
    refused(lambda: bertkit(validation="dev.csv"), 3, f"({path}:3)", "'mixed'")


def test_31_contradictory(bertkit, write, refused) -> None:
    path = write("xnli.tsv", "premise\thypothesis\tlabel\na\tb\tcontradictory\n")
    refused(lambda: bertkit(recipe="mnli", train="xnli.tsv", validation="xnli.tsv"), 3, f"({path}:2)")


def test_32_an_output_folder_that_is_not_empty(bertkit, refused, tmp_path: Path) -> None:
    trained(bertkit(), tmp_path)
    refused(bertkit, 2, "finished run (run)", "--overwrite")
    first = files_of(tmp_path / "run")
    ran = bertkit("--seed", 7, "--overwrite")
    assert trained(ran, tmp_path)["training"]["seed"] == 7
    assert "moved the old content of run to run.old-1" in ran.err.splitlines()
    assert files_of(tmp_path / "run.old-1") == first
    (tmp_path / "run" / "rows.csv").write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    for read in ({"model": "run"}, {"validation": "run/rows.csv"}):
        refused(partial(bertkit, "--overwrite", **read), 2, next(iter(read.values())), "(run)")


def test_32_a_folder_of_someone_else(bertkit, refused, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine", encoding="utf-8")
    for overwrite in ((), ("--overwrite",)):
        refused(partial(bertkit, *overwrite), 2, "(run)")


def test_33_numbers_and_switches_in_a_yaml_file(bertkit, write, refused, tmp_path: Path) -> None:
    write("run.yaml", "schedule: no\n")
    refused(lambda: bertkit("--config", "run.yaml"), 2, "--schedule is False", "(run.yaml)", "quotes")
    write("run.yaml", "labels: [no, yes]\n")
    refused(lambda: bertkit("--config", "run.yaml"), 2, "(run.yaml)")
    write("run.yaml", "learning_rate: fast\n")
    refused(lambda: bertkit("--config", "run.yaml"), 2, "(run.yaml)")
    write("run.yaml", "learning_rate: 1e-5\nlabels: ['neg', 'pos']\n")
    values = trained(bertkit("--config", "run.yaml"), tmp_path)
    assert values["training"]["learning_rate"] == 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelux"}, ["hidden_act is 'gelux'", "did you mean gelu?"]),
        ({"num_attention_heads": 3}, ["num_attention_heads", "hidden_size"]),
    ],
)
def test_34_unknown_activation_and_heads_that_do_not_divide(bertkit, model_copy, refused, changes, words: list[str]) -> None:
    folder = model_copy(**changes)
    refused(lambda: bertkit(model=folder), 4, f"({folder}/config.json)", *words)


def test_36_ctrl_c_in_mid_step(bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertkit.training.optimizer import Optimizer

    steps = []

    def interrupted(optimizer: Optimizer, learning_rate: float) -> Any:
        steps.append(learning_rate)
        if len(steps) == 3:  # its gradients are there, its update is not
            os.kill(os.getpid(), signal.SIGINT)
        return step(optimizer, learning_rate)

    step = Optimizer.step
    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", interrupted)
        ran = bertkit("--max-steps", 9, "--eval-steps", 9)
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == "stopped after step 3; the same command (without --overwrite) resumes from there"
    assert "Traceback" not in ran.err
    assert (tmp_path / "run" / "checkpoint-3" / "manifest.json").is_file()
    ran = bertkit("--max-steps", 9, "--eval-steps", 9)
    assert "resuming from run/checkpoint-3" in ran.err.splitlines()
    assert trained(ran, tmp_path)["last"]["step"] == 9


def test_36_ctrl_c_before_the_training(bertkit, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    monkeypatch.setattr("bertkit.tasks.recipe.read_file", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    ran = bertkit()
    signal.signal(signal.SIGINT, before)
    assert (ran.code, ran.out, ran.err) == (130, "", "stopped\n")
    assert not (tmp_path / "run").exists()


class Hostile:
    """What runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_37_pickled_weights_old_and_hostile(bertkit, model_copy, refused, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    model = model_copy()
    state, pickled = load_file(model / "model.safetensors"), model / "pytorch_model.bin"
    expected = trained(bertkit(), tmp_path)["best"]
    (model / "model.safetensors").unlink()
    for zipped in (True, False):  # the form of today, and that of the first BERTs
        shutil.rmtree(tmp_path / "run")
        torch.save(state, pickled, _use_new_zipfile_serialization=zipped)
        assert trained(bertkit(model=model), tmp_path)["best"] == expected
    shutil.rmtree(tmp_path / "run")
    torch.save({"weight": Hostile(f"touch {tmp_path}/taken")}, pickled)
    refused(lambda: bertkit(model=model), 4, f"({pickled})")
    assert not (tmp_path / "taken").exists()
    pickled.write_bytes(b"no weights")
    refused(lambda: bertkit(model=model), 4, f"({pickled})")


def test_39_constant_predictions_are_said_and_no_score_is_nan(bertkit, write, tmp_path: Path) -> None:
    write("same.csv", "text,label\n" + "good movie,1.5\nbad movie,1.5\n" * 4)
    run = trained(bertkit("--regression", train="same.csv", validation="same.csv"), tmp_path)
    assert run["best"]["scores"]["validation/pearson"] is None  # and JSON has no word for nan
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    shutil.rmtree(tmp_path / "run")
    many = "text,label\n" + "the same text,pos\nthe same text,neg\n" * 4
    write("equal.csv", many)
    run = trained(bertkit(train="equal.csv", validation="equal.csv"), tmp_path)
    assert run["best"]["scores"]["validation/constant_predictions"] == 1.0


def test_39_one_class_and_a_target_that_is_no_number(bertkit, write, refused, tmp_path: Path) -> None:
    write("one.csv", "text,label\ngood,a\nbad,a\n")
    refused(lambda: bertkit(train="one.csv"), 3, f"({tmp_path}/one.csv)")
    write("nan.csv", "text,label\ngood,1\nbad,nan\n")
    refused(lambda: bertkit("--regression", train="nan.csv"), 3, f"({tmp_path}/nan.csv:3)")


def test_40_what_is_silent_elsewhere_is_found_by_check(run_bertkit, write, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write("data/train.csv", "text,label\ngood movie,pos\ngood movie,pos\nbad movie,neg\nwhy \u00e9,neg\n\u4f60,pos\n")
    write("data/dev.csv", "text,label\nBad  movie,neg\ngood movie,neg\n")
    ran = run_bertkit("check", "data", "--model", tiny_model_dir, "--max-length", 16, "--json")
    found = [finding["what"] for finding in json.loads(ran.out)["findings"]]
    for what in (
        "train: 1 duplicate row",
        "validation: 2 of 2 rows also in train, 1 of them with another label",
        "train: 1 row with nothing but [UNK]",
    ):
        assert what in found, found


def test_41_a_vocabulary_with_a_token_twice(bertkit, model_copy, refused) -> None:
    model = model_copy()
    (model / "tokenizer.json").unlink()
    vocabulary = model / "vocab.txt"
    tokens = vocabulary.read_text(encoding="utf-8").splitlines()
    vocabulary.write_text("\n".join([*tokens, "the"]) + "\n", encoding="utf-8")
    lines = tokens.index("the") + 1, len(tokens) + 1
    refused(lambda: bertkit(model=model), 4, f"({vocabulary}:{lines[1]})", "'the'", str(lines[0]))


def test_42_a_path_that_is_a_file(bertkit, refused, write) -> None:
    path = write("taken", "")
    refused(lambda: bertkit("--output-dir", "taken"), 2, "(taken)", "--output-dir")
    refused(lambda: bertkit("--output-dir", "taken/run"), 2, f"({path})")


def test_42_a_read_only_output_folder(bertkit, refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "others"
    folder.mkdir(mode=0o555)
    with monkeypatch.context() as patch:
        if os.access(folder, os.W_OK):  # the superuser may write everywhere, and is told otherwise here
            allowed = os.access
            patch.setattr(os, "access", lambda path, mode: Path(path) != folder and allowed(path, mode))
        refused(lambda: bertkit("--output-dir", "others/run"), 5, f"({folder})")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that not even the superuser can write into")
def test_42_an_output_folder_that_cannot_be_made(bertkit, refused) -> None:
    refused(lambda: bertkit("--output-dir", "/proc/run"), 5, "(/proc/run)")


def test_43_markup_and_control_characters_are_shown_and_not_obeyed(bertkit, run_bertkit, write, tmp_path: Path) -> None:
    write("marks.csv", "text,label\n[bold]good[/nope] \x1b[31mred,[red]pos\nbad [/] movie,neg\n")
    data = {"train": "marks.csv", "validation": "marks.csv"}
    ran = bertkit("--dry-run", **data)
    assert ran.code == 0, ran.err
    assert "[[red]pos]" in ran.err
    assert trained(bertkit(**data), tmp_path)["task"]["labels"] == ["[red]pos", "neg"]
    ran = run_bertkit("eval", "run", "--errors", 2)
    assert ran.code == 0, ran.err
    assert "[red]pos" in ran.err
    ran = run_bertkit("predict", "run", "marks.csv", "--format", "text")
    assert ran.code == 0, ran.err
    assert "[bold]good[/nope] \\x1b[31mred" in ran.out
    assert "\x1b[31m" not in ran.out + ran.err

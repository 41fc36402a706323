"""Bad input that users bring (the numbers are those of the list): one line that says what is wrong, and nothing written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
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
    """A function that runs a command and asserts that it ends with exactly this message and code, and writes nothing."""

    def refused(run: Callable[[], Any], code: int, error: str, hint: str | None = None) -> None:
        before = files_of(tmp_path)
        ran = run()
        lines = ran.err.splitlines()
        said = [f"error: {error}", *([f"hint: {hint}"] if hint else [])]
        assert lines[-len(said) :] == said
        assert ran.code == code
        assert sum(line.startswith(("error:", "hint:")) for line in lines) == len(said)
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
    what = f"label 2 is out of range; expected 0 to 1 (no, yes) ({tmp_path}/one.csv:3)"
    hint = "labels count from 0; --labels names them in the order of their numbers"
    refused(lambda: bertkit("--labels", "no,yes", train="one.csv"), 3, what, hint)
    what = f"label 2 is out of range; expected 0 to 1 (negative, positive) ({tmp_path}/one.csv:3)"
    refused(lambda: bertkit("--text", "text", train="one.csv", recipe="sst2"), 3, what, hint)
    # Without names of their own they are classes like any other.
    assert trained(bertkit(train="one.csv", validation="one.csv"), tmp_path)["recipe"]["labels"] == ["1", "2"]


def test_01_a_number_that_train_has_not(bertkit, write, refused, tmp_path: Path) -> None:
    write("one.csv", "text,label\ngood movie,1\nbad movie,2\n")
    write("zero.csv", "text,label\ngood movie,1\nbad movie,0\n")
    what = f"unknown label '0'; expected one of 1, 2 ({tmp_path}/zero.csv:3)"
    refused(lambda: bertkit(train="one.csv", validation="zero.csv"), 3, what, "known: 1, 2 (--labels sets the names)")


def test_02_more_tokens_than_the_model_has_positions(bertkit, write, refused, tmp_path: Path) -> None:
    hint = "give --max-length 64 or less"
    refused(lambda: bertkit("--max-length", 65), 2, "--max-length is 65; the model has 64 positions", hint)
    # A long text is cut at max_length, and that is said.
    write("long.csv", f"text,label\n{'good movie ' * 600},pos\nbad movie,neg\n")
    ran = bertkit("--max-length", 64, train="long.csv")
    assert trained(ran, tmp_path)["data"]["train"]["rows"] == 2
    assert "train: 2 rows, 34 tokens on average, 1 longer than 64 truncated" in ran.err.splitlines()  # (64 + 4) / 2


def test_03_labels_of_text_and_of_mixed_types(bertkit, write, refused, tmp_path: Path) -> None:
    write("mixed.jsonl", '{"text": "good movie", "label": "1"}\n{"text": "bad movie", "label": 0}\n')
    what = f"column 'label' mixes types of label: '1' ({tmp_path}/mixed.jsonl:1) and 0 ({tmp_path}/mixed.jsonl:2)"
    refused(lambda: bertkit(train="mixed.jsonl"), 3, what, "write every label as text, or every one as a number")
    assert trained(bertkit(), tmp_path)["recipe"]["labels"] == ["neg", "pos"]


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
    what = f"no row has a label in column 'label': this is a test split without labels ({tmp_path}/test.csv)"
    hint = "evaluate on a split with labels; `bertkit predict` needs none"
    refused(lambda: bertkit(validation="test.csv"), 3, what, hint)
    trained(bertkit(), tmp_path)
    refused(lambda: run_bertkit("eval", "run", "--test", "test.csv"), 3, what, hint)
    write("bare.csv", "id,text\n1,good movie\n")
    what = f"no column 'label'; columns: id, text ({tmp_path}/bare.csv)"
    refused(lambda: run_bertkit("eval", "run", "--test", "bare.csv"), 3, what, "say which column it is: --label NAME")
    ran = run_bertkit("predict", "run", "test.csv")
    assert (ran.code, len(ran.out.splitlines())) == (0, 2)


def test_06_a_tokenizer_larger_than_the_embedding(bertkit, model_copy, refused) -> None:
    folder = model_copy()
    values = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    count = len(values["model"]["vocab"])
    values["model"]["vocab"]["zebra"] = count
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    what = f"the tokenizer has {count + 1} tokens, the model's embedding only {count}"
    refused(lambda: bertkit(model=folder), 4, what, "take tokenizer and weights from the same model")


def test_07_hub_names_without_a_network(bertkit, refused) -> None:
    what = "the data set is not in the cache, and the hub cannot be reached (nyu-mll/glue)"
    refused(lambda: bertkit(recipe="sst2", train=None), 5, what, "give a folder that holds the data set: --data DIR")
    what = "no-one/no-model is neither a folder nor whole in the hub's cache, and HF_HUB_OFFLINE is set"
    refused(lambda: bertkit(model="no-one/no-model"), 5, what, "unset HF_HUB_OFFLINE, or give --model a folder")


def test_07_a_data_set_that_needs_a_script(bertkit, refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found glue.py")  # as datasets 5 says it

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    what = "the data set needs a loading script, which datasets no longer runs (nyu-mll/glue)"
    hint = 'revision="refs/convert/parquet" may have it without; or give a folder that holds the data set: --data DIR'
    refused(lambda: bertkit(recipe="sst2", train=None), 3, what, hint)


# --- 11 to 18 --------------------------------------------------------------------------------------------------------------


def test_11_words_that_others_take_for_missing_values(bertkit, run_bertkit, write, tmp_path: Path) -> None:
    write("na.csv", "text,label\nNA,null\nnull,None\nNone,null\nnan,None\n")
    values = trained(bertkit(train="na.csv", validation="na.csv"), tmp_path)
    assert values["recipe"]["labels"] == ["None", "null"]
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
    what = f"a quoted field opens here and never closes ({tmp_path}/open.csv:3)"
    hint = 'close it, and double each quote that belongs to the text: ""'
    refused(lambda: bertkit(train="open.csv"), 3, what, hint)


def test_15_a_loss_that_is_not_finite(bertkit, tmp_path: Path) -> None:
    options = ("--learning-rate", "1e38", "--warmup-ratio", 0, "--max-steps", 40, "--precision", "fp32")
    ran = bertkit(*options, "--logging-steps", 7, "--eval-steps", 40)
    assert ran.code == 2
    *_, error, hint = ran.err.splitlines()
    assert error == "error: the loss is nan at step 2"
    assert hint == "hint: lower --learning-rate, raise --warmup-ratio, or try --precision fp32"
    assert "Traceback" not in ran.err
    # At an evaluation too, before a model of NaN is saved as the best.
    shutil.rmtree(tmp_path / "run")
    ran = bertkit(*options, "--eval-steps", 1)
    assert (ran.code, ran.err.splitlines()[-2]) == (2, "error: the loss on validation is nan")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["metrics.jsonl", "run.json"]


@pytest.mark.parametrize(
    ("content", "options", "what", "hint"),
    [
        (
            GOOD,
            ("--label", "Lable"),
            "no column 'Lable'; columns: text, label ({file})",
            "did you mean label? set it with --label label",
        ),
        (
            GOOD,
            ("--text", "Text"),
            "no column 'Text'; columns: text, label ({file})",
            "did you mean text? set it with --text text",
        ),
        (
            "text,other\ngood movie,pos\nbad movie,neg\n",
            (),
            "no telling which column is the label; columns: text, other ({file})",
            "name it: --label NAME",
        ),
        (
            "good movie,pos\nbad movie,neg\n",
            (),
            "no telling which column is the text; columns: good movie, pos ({file})",
            "name it: --text good movie; for files without a header --columns label,text",
        ),
        (
            "Where is it?,pos\nbad movie,neg\n",
            ("--text", "text"),
            "no column 'text'; columns: Where is it?, pos ({file})",
            "the first row looks like data: if the file has no header, name its columns: --columns label,text",
        ),
        (
            "text;label\ngood movie;pos\nbad movie;neg\n",
            (),
            "one column, 'text;label', whose name holds ';' ({file}:1)",
            "say what separates the columns: --separator ';'",
        ),
    ],
    ids=["label", "text", "no label", "no header", "header asked for", "semicolon"],
)
@pytest.mark.parametrize("validation", ["good.csv", "10%"])
def test_18_columns_and_separators(
    bertkit, write, refused, content: str, options: tuple, what: str, hint: str, validation: str
) -> None:
    path = write("odd.csv", content)
    refused(lambda: bertkit(*options, train="odd.csv", validation=validation), 3, what.format(file=path), hint)


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
    refused(lambda: bertkit(model=model), 4, f"the model has 3 labels and the data 2: neg, pos ({model})", HINT_HEAD)
    unnamed = make_model_dir("BertForSequenceClassification", num_labels=3)
    what = f"the model's head has 3 labels, this task has 2 ({unnamed})"
    refused(lambda: bertkit(model=unnamed), 4, what, "give --fresh-head to train a new head in its place")
    assert trained(bertkit("--fresh-head", model=model), tmp_path)["model"]["fresh_head"] is True


def test_21_another_architecture(bertkit, model_copy, refused) -> None:
    folder = model_copy(model_type="roberta")
    what = f"this is a roberta model; expected model_type bert ({folder}/config.json)"
    refused(lambda: bertkit(model=folder), 4, what, "bertkit trains BERT alone: choose a BERT checkpoint")


def test_21_weights_of_another_architecture(bertkit, model_copy, refused) -> None:
    from safetensors.torch import load_file, save_file

    folder = model_copy()
    weights = load_file(folder / "model.safetensors")
    save_file({f"roberta.{name}": tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    listed = ", ".join(f"roberta.{name}" for name in sorted(weights)[:5])
    what = (
        f"the weights are of another architecture: {listed}, and {len(weights) - 5} more; expected bert.embeddings.* and so on"
    )
    refused(lambda: bertkit(model=folder), 4, f"{what} ({folder})", "choose a BERT checkpoint")


def test_22_more_layers_than_the_file(bertkit, model_copy, refused) -> None:
    folder = model_copy(num_hidden_layers=3)
    self = "bert.encoder.layer.2.attention.self"
    lacking = [f"{self}.{name}" for name in ("query.weight", "query.bias", "key.weight", "key.bias", "value.weight")]
    what = f"the configuration has 3 layers, the weights have 2; they lack {', '.join(lacking)}, and 11 more ({folder})"
    refused(lambda: bertkit(model=folder), 4, what, "take config.json and the weights from the same model")


def test_23_a_truncated_or_empty_weights_file(bertkit, model_copy, refused) -> None:
    model = model_copy()
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    for content, said in (
        (whole[: len(whole) // 2], "incomplete metadata, file not fully covered"),
        (whole[:4], "header too small"),
    ):
        weights.write_bytes(content)
        reason = f"(Error while deserializing header: {said})"
        what = f"the weight file is truncated or not a safetensors file {reason} ({weights})"
        refused(lambda what=what: bertkit(model=model), 4, what, "copy or download it again")
    weights.write_bytes(b"")
    refused(lambda: bertkit(model=model), 4, f"the weight file is empty ({weights})", "copy or download it again")


def test_25_latin_1_and_utf_16(bertkit, write, refused) -> None:
    path = write("latin.csv", "text,label\ncafé noir,pos\nbad,neg\n".encode("latin-1"))
    what = f"byte 0xe9, byte 4 of its line, is not UTF-8; the file looks like Latin-1 ({path}:2)"
    refused(lambda: bertkit(train="latin.csv"), 3, what, f"convert it: iconv -f ISO-8859-1 -t UTF-8 {path} > utf8.txt")
    path = write("utf16.csv", b"\xff\xfe" + GOOD.encode("utf-16-le"))
    what = f"the file looks like UTF-16 (it starts with the bytes 0xff 0xfe); expected UTF-8 ({path}:1)"
    refused(lambda: bertkit(train="utf16.csv"), 3, what, f"convert it: iconv -f UTF-16 -t UTF-8 {path} > utf8.txt")


def test_26_byte_order_mark_and_carriage_returns(bertkit, write, tmp_path: Path) -> None:
    write("windows.csv", b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    data = trained(bertkit(train="windows.csv", validation="good.csv"), tmp_path)["data"]
    assert data["train"]["sha256"] == data["validation"]["sha256"]  # the same features as the file without them


def test_26_nul_bytes(bertkit, write, refused) -> None:
    path = write("nul.csv", "text,label\ngood\0 movie,pos\nbad movie,neg\n")
    hint = f"is this a text file? remove such bytes with: tr -d '\\000' < {path} > clean.txt"
    refused(lambda: bertkit(train="nul.csv"), 3, f"a NUL byte, byte 5 of its line; expected text ({path}:2)", hint)


# --- 29 to 36, 42 ----------------------------------------------------------------------------------------------------------


def test_27_a_row_with_too_many_or_too_few_fields(bertkit, write, refused, tmp_path: Path) -> None:
    write("more.csv", "text,label\ngood movie,pos\nbad,movie,neg\n")
    what = f"found 3 fields, expected 2: 'text, label' ({tmp_path}/more.csv:3)"
    refused(lambda: bertkit(train="more.csv"), 3, what, "put a text that holds ',' in quotes: \"...\"")
    write("less.tsv", "text\tlabel\ngood movie\tpos\nbad\n")
    what = f"found 1 field, expected 2: 'text, label' ({tmp_path}/less.tsv:3)"
    refused(lambda: bertkit(train="less.tsv"), 3, what, "is a field missing, or a text broken over two lines?")


def test_28_a_line_of_json_that_is_cut_off(bertkit, write, refused, tmp_path: Path) -> None:
    write("cut.jsonl", '{"text": "good", "label": "a"}\n\n{"text": "bad", "la')
    what = f"the JSON ends too early: Unterminated string starting at character 17 ({tmp_path}/cut.jsonl:3)"
    hint = "expected one object a line, or one list of objects; is the file cut off? copy or download it again"
    refused(lambda: bertkit(train="cut.jsonl"), 3, what, hint)


def test_29_an_empty_file_and_a_header_alone(bertkit, write, refused) -> None:
    path = write("empty.csv", "")
    refused(lambda: bertkit(train="empty.csv"), 3, f"the file is empty ({path})")
    path = write("header.csv", "text,label\n")
    hint = "if the file has no header, name its columns: --columns label,text"
    refused(lambda: bertkit(validation="header.csv"), 3, f"the file holds a header and no rows ({path})", hint)


@pytest.mark.parametrize(
    ("name", "content", "what", "hint"),
    [
        (
            "no-label.csv",
            "text,label\ngood,pos\nbad,neg\nfilm,\nplot,\n",
            "2 of 4 rows have no label in column 'label'; the first is here ({file}:4)",
            "remove these rows or give them a label",
        ),
        (
            "no-label.jsonl",
            '{"text": "good", "label": "pos"}\n{"text": "bad", "label": "neg"}\n{"text": "film", "label": null}\n',
            "1 of 3 rows have no label in column 'label'; the first is here ({file}:3)",
            "remove these rows or give them a label",
        ),
        (
            "no-text.csv",
            "text,label\ngood,pos\n,neg\n",
            "the text in column 'text' is empty ({file}:3)",
            "mend or remove the row",
        ),
        (
            "no-text.jsonl",
            '{"text": "good", "label": "pos"}\n{"label": "neg"}\n',
            "column 'text' holds nothing; expected text ({file}:2)",
            "mend or remove the row",
        ),
    ],
)
def test_30_rows_without_a_label_or_without_text(
    bertkit, write, refused, name: str, content: str, what: str, hint: str
) -> None:
    path = write(name, content)
    refused(lambda: bertkit(train=name), 3, what.format(file=path), hint)


def test_31_a_label_only_in_the_dev_set_or_spelt_otherwise(bertkit, write, refused) -> None:
    path = write("dev.csv", "text,label\ngood,pos\nbad,Neg\n")
    what = f"unknown label 'Neg'; expected one of neg, pos ({path}:3)"
    refused(lambda: bertkit(validation="dev.csv"), 3, what, "did you mean neg? (--labels sets the names)")
    path = write("dev.csv", "text,label\ngood,pos\nbad,mixed\n")
    what = f"unknown label 'mixed'; expected one of neg, pos ({path}:3)"
    refused(lambda: bertkit(validation="dev.csv"), 3, what, "known: neg, pos (--labels sets the names)")


def test_31_contradictory(bertkit, write, refused) -> None:
    path = write("xnli.tsv", "premise\thypothesis\tlabel\na\tb\tcontradictory\n")
    what = f"unknown label 'contradictory'; expected one of entailment, neutral, contradiction ({path}:2)"
    hint = "did you mean contradiction? (--labels sets the names)"
    refused(lambda: bertkit(recipe="mnli", train="xnli.tsv", validation="xnli.tsv"), 3, what, hint)


def test_32_an_output_folder_that_is_not_empty(bertkit, refused, tmp_path: Path) -> None:
    hint = "give another --output-dir, or --overwrite, which moves it aside"
    trained(bertkit(), tmp_path)
    refused(bertkit, 2, "the output folder holds a finished run (run)", hint)
    first = files_of(tmp_path / "run")
    ran = bertkit("--seed", 7, "--overwrite")
    assert trained(ran, tmp_path)["training"]["seed"] == 7
    assert "moved the old content of run to run.old-1" in ran.err.splitlines()
    assert files_of(tmp_path / "run.old-1") == first


def test_32_a_folder_of_someone_else(bertkit, refused, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine", encoding="utf-8")
    hint = "give another --output-dir, or --overwrite, which moves it aside"
    refused(bertkit, 2, "the output folder is not empty and holds no run of bertkit (run)", hint)


def test_33_numbers_and_switches_in_a_yaml_file(bertkit, write, refused, tmp_path: Path) -> None:
    hint = "in YAML, no, yes, off and on mean false and true: put them in quotes"
    write("run.yaml", "schedule: no\n")
    refused(lambda: bertkit("--config", "run.yaml"), 2, "--schedule is False; expected text (run.yaml)", hint)
    write("run.yaml", "labels: [no, yes]\n")
    what = "--labels is [False, True]; expected a list of text (run.yaml)"
    refused(lambda: bertkit("--config", "run.yaml"), 2, what, hint)
    write("run.yaml", "learning_rate: fast\n")
    what = "--learning-rate is 'fast'; expected a number (run.yaml)"
    refused(lambda: bertkit("--config", "run.yaml"), 2, what, "peak learning rate")
    write("run.yaml", "learning_rate: 1e-5\nlabels: ['neg', 'pos']\n")
    values = trained(bertkit("--config", "run.yaml"), tmp_path)
    assert values["training"]["learning_rate"] == 1e-5


@pytest.mark.parametrize(
    ("changes", "what", "hint"),
    [
        (
            {"hidden_act": "gelux"},
            "hidden_act is 'gelux'; expected one of gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish, tanh",
            "did you mean gelu?",
        ),
        (
            {"num_attention_heads": 3},
            "num_attention_heads 3 does not divide hidden_size 32",
            "choose a hidden_size that is a multiple of num_attention_heads (the paper's heads are 64 wide)",
        ),
    ],
)
def test_34_unknown_activation_and_heads_that_do_not_divide(
    bertkit, model_copy, refused, changes, what: str, hint: str
) -> None:
    folder = model_copy(**changes)
    refused(lambda: bertkit(model=folder), 4, f"{what} ({folder}/config.json)", hint)


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
    assert "going on from run/checkpoint-3" in ran.err.splitlines()
    assert trained(ran, tmp_path)["last"]["step"] == 9


def test_36_ctrl_c_before_the_training(bertkit, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    monkeypatch.setattr("bertkit.tasks.text_classification.task.read_file", interrupted)
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
    what = f"the file pickles objects other than weights, which could run any code; it is not opened ({pickled})"
    refused(lambda: bertkit(model=model), 4, what, "take the model in safetensors format")
    assert not (tmp_path / "taken").exists()
    pickled.write_bytes(b"no weights")
    refused(lambda: bertkit(model=model), 4, f"the weight file is not a PyTorch file ({pickled})", "copy or download it again")


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
    what = f"every row has the label 'a'; expected two or more labels ({tmp_path}/one.csv)"
    refused(lambda: bertkit(train="one.csv"), 3, what)
    write("nan.csv", "text,label\ngood,1\nbad,nan\n")
    what = f"'nan' in column 'label' is not a finite number, as regression needs ({tmp_path}/nan.csv:3)"
    hint = "mend the row, or leave out --regression for classes"
    refused(lambda: bertkit("--regression", train="nan.csv"), 3, what, hint)


def test_40_what_is_silent_elsewhere_is_found_by_check(run_bertkit, write, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write("data/train.csv", "text,label\ngood movie,pos\ngood movie,pos\nbad movie,neg\nwhy \u00e9,neg\n\u4f60,pos\n")
    write("data/dev.csv", "text,label\nBad  movie,neg\ngood movie,neg\n")
    ran = run_bertkit("check", "data", "--model", tiny_model_dir, "--max-length", 16, "--json")
    found = [finding["what"] for finding in json.loads(ran.out)["findings"]]
    for what in (
        "train: 1 rows repeat another",
        "validation: 2 of 2 rows stand in train too, 1 of them with another label",
        "train: 1 rows are [UNK] alone",
    ):
        assert what in found, found


def test_41_a_vocabulary_with_a_token_twice(bertkit, model_copy, refused) -> None:
    model = model_copy()
    (model / "tokenizer.json").unlink()
    vocabulary = model / "vocab.txt"
    tokens = vocabulary.read_text(encoding="utf-8").splitlines()
    vocabulary.write_text("\n".join([*tokens, "the"]) + "\n", encoding="utf-8")
    lines = tokens.index("the") + 1, len(tokens) + 1
    what = f"token 'the' stands in line {lines[0]} and again in line {lines[1]}; all numbers after it would shift"
    refused(
        lambda: bertkit(model=model),
        4,
        f"{what} ({vocabulary}:{lines[1]})",
        "take the vocab.txt that the model was trained with",
    )


def test_42_a_path_that_is_a_file(bertkit, refused, write) -> None:
    path = write("taken", "")
    hint = "choose another --output-dir"
    refused(lambda: bertkit("--output-dir", "taken"), 2, "the output folder is a file (taken)", hint)
    refused(lambda: bertkit("--output-dir", "taken/run"), 2, f"the output folder is a file ({path})", hint)


def test_42_a_read_only_output_folder(bertkit, refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "others"
    folder.mkdir(mode=0o555)
    what = f"the output folder cannot be written ({folder})"
    with monkeypatch.context() as patch:
        if os.access(folder, os.W_OK):  # the superuser may write everywhere, and is told otherwise here
            allowed = os.access
            patch.setattr(os, "access", lambda path, mode: Path(path) != folder and allowed(path, mode))
        refused(lambda: bertkit("--output-dir", "others/run"), 5, what, "choose another --output-dir")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that not even the superuser can write into")
def test_42_an_output_folder_that_cannot_be_made(bertkit, refused) -> None:
    what = "the output folder cannot be written: No such file or directory (/proc/run)"
    refused(lambda: bertkit("--output-dir", "/proc/run"), 5, what, "choose another --output-dir")


def test_43_markup_and_control_characters_are_shown_and_not_obeyed(bertkit, run_bertkit, write, tmp_path: Path) -> None:
    write("marks.csv", "text,label\n[bold]good[/nope] \x1b[31mred,[red]pos\nbad [/] movie,neg\n")
    data = {"train": "marks.csv", "validation": "marks.csv"}
    ran = bertkit("--dry-run", **data)
    assert ran.code == 0, ran.err
    assert "[[red]pos]" in ran.err
    assert trained(bertkit(**data), tmp_path)["recipe"]["labels"] == ["[red]pos", "neg"]
    ran = run_bertkit("eval", "run", "--errors", 2)
    assert ran.code == 0, ran.err
    assert "[red]pos" in ran.err
    ran = run_bertkit("predict", "run", "marks.csv", "--format", "text")
    assert ran.code == 0, ran.err
    assert "[bold]good[/nope] \\x1b[31mred" in ran.out
    assert "\x1b[31m" not in ran.out + ran.err

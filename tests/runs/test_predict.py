"""Evaluating and predicting with runs and with models that transformers saved; transformers is the oracle."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from trained import predictions_of, train

from bertkit.errors import DataError, MachineError, ModelError, UsageError, UserError
from bertkit.readers import columns_of
from bertkit.readers.formats import read_file
from bertkit.runs.evaluation.evaluate import evaluate_target
from bertkit.runs.finetuning.finetune import finetune
from bertkit.runs.prediction.writers import Csv
from bertkit.runs.request import Request
from bertkit.runs.target import open_target
from bertkit.tasks.catalog import load_recipe

pytestmark = pytest.mark.e2e
NAMES = ("contradiction", "neutral", "entailment")  # not the recipe's order
PREMISES = ("good movie", "the river is on the bank", "open the new ticket", "why", "we love a poor story")
HYPOTHESES = ("bad movie", "no", "one two three people", "where is the invoice", "you hate it")
PAIRS = [(premise, hypothesis) for premise in PREMISES for hypothesis in HYPOTHESES]
FP32 = {"max_length": 64, "precision": "fp32"}


@pytest.fixture(scope="module")
def nli_model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertForSequenceClassification", seed=8, initializer_range=0.5, labels=NAMES)


def logits_of_transformers(model: Path, texts: list[Any], max_length: int = 64) -> np.ndarray:
    """The logits of each text or pair, one at a time."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    network, tokenizer = AutoModelForSequenceClassification.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    with torch.no_grad():
        batches = [tokenizer(*text, return_tensors="pt", truncation=True, max_length=max_length) for text in texts]
        return np.concatenate([network(**tokens).logits.numpy() for tokens in batches])


@pytest.fixture(scope="module")
def mnli(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """A folder as GLUE's MNLI, and the labels by split."""
    folder, rng = tmp_path_factory.mktemp("data") / "MNLI", np.random.default_rng(0)
    splits = {"matched": ("entailment", "neutral"), "mismatched": ("entailment", "neutral", "contradiction")}
    labels = {split: [str(rng.choice(names)) for _ in PAIRS] for split, names in splits.items()}
    folder.mkdir()
    for split, names in labels.items():
        lines = ["index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label"]
        lines += [f"{i}\t{i * 7}\t{a}\t{b}\tneutral\t{name}" for i, ((a, b), name) in enumerate(zip(PAIRS, names, strict=True))]
        (folder / f"dev_{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder, labels


def scores_of(model: Path | str, *splits: str, recipe: str | None = None, **options: Any) -> dict[str, Any]:
    return evaluate_target(open_target(str(model), recipe, options), splits).scored.scores


# --- any model of transformers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_length", "micro_batch_tokens"), [(64, 8192), (64, 20), (8, 8192)])
def test_scores_of_a_model_are_those_of_transformers(nli_model: Path, mnli, max_length: int, micro_batch_tokens: int) -> None:
    folder, labels = mnli
    options = {"data": str(folder), **FP32, "max_length": max_length, "micro_batch_tokens": micro_batch_tokens}
    found = scores_of(nli_model, recipe="mnli", **options)
    logits = logits_of_transformers(nli_model, PAIRS, max_length)
    assert len(set(logits.argmax(-1))) > 1
    expected = {}
    for split, names in labels.items():
        references = np.array([NAMES.index(name) for name in names])
        losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(PAIRS)), references]
        expected[f"validation_{split}/accuracy"] = (logits.argmax(-1) == references).mean()
        expected[f"validation_{split}/loss"] = losses.mean()
    assert found == pytest.approx(expected, rel=1e-5)
    assert all(0 < expected[f"validation_{split}/accuracy"] < 1 for split in labels)


def test_splits_to_evaluate_and_precision(nli_model: Path, mnli) -> None:
    given: dict[str, Any] = {"recipe": "mnli", "data": str(mnli[0]), **FP32}
    both = scores_of(nli_model, "validation_mismatched", "validation_matched", **given)
    assert next(iter(both)) == "validation_mismatched/accuracy"
    alone = scores_of(nli_model, "validation_mismatched", **given)
    assert alone == {name: value for name, value in both.items() if "mismatched" in name}
    rounded = scores_of(nli_model, "validation_mismatched", **given | {"precision": "bf16"})["validation_mismatched/loss"]
    exact = alone["validation_mismatched/loss"]
    assert (rounded == pytest.approx(exact, rel=1e-5), rounded == pytest.approx(exact, rel=0.1)) == (False, True)


def test_predictions_of_a_plain_model_have_its_own_names(nli_model: Path, tmp_path: Path) -> None:
    rows = "".join(json.dumps({"premise": a, "hypothesis": b}) + "\n" for a, b in PAIRS)
    (tmp_path / "pairs.jsonl").write_text(rows, encoding="utf-8")
    predictions = predictions_of(open_target(str(nli_model), None, FP32, to_predict=True), str(tmp_path / "pairs.jsonl"))
    logits = logits_of_transformers(nli_model, PAIRS)
    assert [found.value for found in predictions] == [NAMES[row] for row in logits.argmax(-1)]


def test_predictions_of_a_plain_regression_model(make_model_dir, tmp_path: Path) -> None:
    model = make_model_dir("BertForSequenceClassification", seed=8, num_labels=1, initializer_range=0.3)
    (tmp_path / "new.txt").write_text("good movie\nwhy\n", encoding="utf-8")
    predictions = predictions_of(open_target(str(model), None, FP32, to_predict=True), str(tmp_path / "new.txt"))
    expected = logits_of_transformers(model, [("good movie",), ("why",)])[:, 0]
    assert [found.value for found in predictions] == pytest.approx(expected, abs=1e-5)


def test_predictions_that_are_no_numbers_are_refused(make_model_dir, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(make_model_dir("BertForSequenceClassification", seed=8), model)
    state = load_file(model / "model.safetensors")
    state["classifier.bias"][0] = float("nan")
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "new.txt").write_text("good movie\nwhy\n", encoding="utf-8")
    with pytest.raises(ModelError):
        predictions_of(open_target(str(model), None, FP32, to_predict=True), str(tmp_path / "new.txt"))


# --- runs ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run; copy it before changing it."""
    folder = tmp_path_factory.mktemp("run")
    rows = "".join(f"{text},{'ab'[i % 2]}\n" for i, text in enumerate(PREMISES * 2))
    (folder / "dev.csv").write_text("text,label\n" + rows, encoding="utf-8")
    return train(folder / "run", tiny_model_dir, folder / "dev.csv", test=str(folder / "dev.csv"), max_length=32)


def test_a_split_to_a_folder(run: Path, run_bertkit, tmp_path: Path) -> None:
    command = ("predict", run, "--split", "test", "--device", "cpu", "-o", "out")
    for named in ("out.jsonl", "out.csv.gz"):
        ran = run_bertkit(*command[:-1], named)
        assert (ran.code, "--output-dir names a file; expected a folder" in ran.err) == (2, True), ran.err
    assert run_bertkit(*command).code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"_SUCCESS", "_settings.json", "test.jsonl"}
    again = run_bertkit(*command)
    assert (again.code, "already exists" in again.err) == (0, True)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("id,text,lang", "1 column not in the output: lang"),
        ("text,label", "1 column not in the output: label"),
        ("text", ""),
    ],
)
def test_columns_that_are_not_in_the_output_are_named(run: Path, run_bertkit, tmp_path: Path, header: str, told: str) -> None:
    values = {"id": "7", "text": "the good movie", "lang": "en", "label": "a"}
    (tmp_path / "new.csv").write_text(f"{header}\n{','.join(values[name] for name in header.split(','))}\n", encoding="utf-8")
    ran = run_bertkit("predict", run, "new.csv", "--output", "out.csv", "--device", "cpu")
    assert ran.code == 0
    assert "not in the output" not in ran.err if not told else told in ran.err


def test_columns_that_a_run_was_given_are_not_kept_for_other_files(
    tiny_model_dir: Path, tmp_path: Path, run_bertkit, capsys
) -> None:
    """A note says so; a recipe file other than the run's own is noted too."""
    (tmp_path / "rows.csv").write_text("".join(f"{'ab'[row % 2]},text {row}\n" for row in range(40)), encoding="utf-8")
    run = train(tmp_path / "run", tiny_model_dir, tmp_path / "rows.csv", columns=("label", "text"), text="text", label="label")
    assert "add --columns label,text" in run_bertkit("eval", run, "--validation", "rows.csv").err
    for more, said in (((), True), (("--columns", "text"), False)):
        ran = run_bertkit("predict", run, *more, stdin=b"text 1\n")
        assert (ran.code, "for others like them, add --columns label,text" in ran.err) == (0, said)
    assert "--columns" not in run_bertkit("eval", run).err, "its own file is read as in training"
    values = json.loads((run / "run.json").read_text(encoding="utf-8"))
    values["recipe"]["name"] = str(tmp_path / "own.py")
    (run / "run.json").write_text(json.dumps(values), encoding="utf-8")
    for name in ("own.py", "other.py"):
        (tmp_path / name).write_text("from bertkit.tasks import TextClassification\nrecipe = TextClassification(metrics=())\n")
    how = ("--validation", "rows.csv", "--columns", "label,text")
    own, other = (run_bertkit("eval", run, "--recipe", name, *how) for name in ("own.py", "other.py"))
    assert own.code == 0, own.err
    assert "was trained with" not in own.err
    assert f"was trained with {tmp_path / 'own.py'}, not other.py" in " ".join(other.err.split())


def test_a_run_and_its_checkpoint_repeat_their_results_from_anywhere(run: Path, run_bertkit) -> None:
    expected = json.loads((run / "run.json").read_text(encoding="utf-8"))["best"]["scores"]
    assert scores_of(run) == pytest.approx(expected, rel=1e-5)
    assert scores_of(run, "test") == pytest.approx({name.replace("validation/", "test/"): expected[name] for name in expected})
    texts = [*PREMISES, *HYPOTHESES]
    together = run_bertkit("predict", run, stdin="\n".join(texts).encode())
    how = ("--max-length", 32, "--precision", "fp32")
    assert run_bertkit("predict", run / "checkpoint-1", *how, stdin="\n".join(texts).encode()) == together
    rows = [json.loads(line) for line in together.out.splitlines()]
    assert [row["text"] for row in rows] == texts
    with_header = run_bertkit("predict", run, stdin="\n".join(["text", *texts]).encode())
    assert (with_header.out, "the first line, 'text', is the name of the column" in with_header.err) == (together.out, True)
    for row in rows[::4]:  # no row depends on the others
        (alone,) = run_bertkit("predict", run, stdin=row["text"].encode()).out.splitlines()
        assert json.loads(alone) == {**row, "id": 0, "probability": pytest.approx(row["probability"], abs=1e-6)}


@pytest.mark.parametrize("held_out", ["1/5", "20%", "rows.csv"])
def test_rows_that_changed_since_the_training_are_reported(tiny_model_dir: Path, tmp_path: Path, held_out: str, capsys) -> None:
    """One more row gives other folds, and rows held out then were trained on."""
    table = tmp_path / "rows.csv"
    table.write_text("text,label\n" + "".join(f"text {at},{'ab'[at % 2]}\n" for at in range(40)), encoding="utf-8")
    validation = {} if held_out == "rows.csv" else {"validation": held_out}
    run = train(tmp_path / "run", tiny_model_dir, table, split_seed=1, **validation)

    def warned(**options: Any) -> bool:
        capsys.readouterr()
        scores_of(run, **options)
        return f"warning: validation: {run} used other rows of {table}" in capsys.readouterr().err

    assert [warned(), warned(truncate="tail"), warned(max_length=8)] == [False] * 3
    with table.open("a", encoding="utf-8") as file:
        file.write("text 40,a\n")
    assert warned() == (held_out != "20%")
    shutil.copy(table, tmp_path / "others.csv")
    assert not warned(validation=str(tmp_path / "others.csv"))
    if held_out != "rows.csv":
        table.write_text("".join(table.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
        shutil.copy(table, tmp_path / "copy.csv")
        for copy in ("copy.csv", table.name):
            scores_of(run, validation=str(tmp_path / copy), split_seed=0)  # the run's own counts
            assert f"{run} was trained on some of these rows: {tmp_path / copy} is" in capsys.readouterr().err
    copied = f"warning: validation: {run} did not hold out these rows; if {tmp_path / 'others.csv'} is a copy of"
    scores_of(run, train=str(tmp_path / "others.csv"), validation="50%")
    assert copied in capsys.readouterr().err
    if held_out == "20%":  # which one more row did not change
        scores_of(run, train=str(tmp_path / "others.csv"), validation=held_out)
        assert "warning" not in capsys.readouterr().err
    table.unlink()
    with pytest.raises(DataError) as gone:
        scores_of(run)
    copy = "--validation COPY" if held_out == "rows.csv" else f"--train COPY --validation {held_out}"
    assert gone.value.line == f"no such file ({table}); {run} used it: put it back, or give `bertkit eval` a copy: {copy}"


@pytest.mark.parametrize("option", ["max_train_samples", "set_aside"])
def test_a_copy_of_the_training_file_is_recognized_whatever_was_left_out(
    option: str, tiny_model_dir: Path, tmp_path: Path, capsys
) -> None:
    rows = "".join(f"text {at},{'ab'[at % 2]}\n" for at in range(60))
    for name in ("rows.csv", "copy.csv"):
        (tmp_path / name).write_text("text,label\n" + rows, encoding="utf-8")
    how = {"train": str(tmp_path / "rows.csv"), "validation": "20%", "max_steps": 1, "max_length": 16, "device": "cpu"}
    recipe = load_recipe("text-classification").overridden(how)
    recipe = replace(recipe, **{option: {"max_train_samples": 20, "set_aside": "20%"}[option]})
    finetune(Request(recipe, "text-classification", str(tiny_model_dir)), tmp_path / "run")
    capsys.readouterr()
    scores_of(tmp_path / "run", validation=str(tmp_path / "copy.csv"))
    assert "was trained on some of these rows" in capsys.readouterr().err


def test_other_data_replaces_the_runs_own(run: Path, tmp_path: Path) -> None:
    predictions = predictions_of(open_target(str(run), None, {}), str(run.parent / "dev.csv"))
    rows = "".join(f"{found.value}\t{text}\n" for text, found in zip(PREMISES * 2, predictions, strict=True))
    more = tmp_path / "dev.tsv"
    more.write_text("kind\tsentence\n" + rows, encoding="utf-8")
    with pytest.raises(DataError):  # the run's columns have other names
        scores_of(run, validation=str(more))
    named = {"text": "sentence", "label": "kind"}
    for data, split in (("validation", "validation"), ("test", "test"), ("data", "validation")):
        place = tmp_path if data == "data" else more
        assert scores_of(run, **named, **{data: str(place)})[f"{split}/accuracy"] == 1.0


def test_a_model_of_pairs_says_what_a_row_lacks(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    table = tmp_path / "rows.tsv"
    table.write_text("kind\tsaid\tmeant\n" + "".join(f"{'ab'[n % 2]}\t{a}\t{b}\n" for n, (a, b) in enumerate(PAIRS)))
    run = train(tmp_path / "run", make_model_dir("BertModel"), table, text="said", text_pair="meant", label="kind")
    for name, lines in {"lines.txt": "one text\n", "other.tsv": "a\tb\nc\td\n"}.items():
        (tmp_path / name).write_text(lines, encoding="utf-8")
        ran = run_bertkit("predict", run, tmp_path / name)
        told = " ".join(ran.err.split())
        assert (ran.code, "no columns 'said' and 'meant' for the two texts of a pair" in told) == (3, True), told
        assert "--columns said,meant" in told
    (tmp_path / "half.tsv").write_text("said\tmeant\na\tb\n\tb\na\t\n\t\n", encoding="utf-8")
    ran = run_bertkit("predict", run, tmp_path / "half.tsv")
    assert (ran.code, len(ran.out.splitlines())) == (0, 4), ran.err
    assert "4 rows, 1 without text, 2 with one of two texts empty" in ran.err


# --- what cannot be used ---------------------------------------------------------------------------------------------------


def test_a_model_without_a_trained_head(tiny_model_dir: Path, mnli, tmp_path: Path) -> None:
    claims = tmp_path / "claims"  # to be a classifier, and has no classifier in its file
    shutil.copytree(tiny_model_dir, claims)
    config = json.loads((claims / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {str(i): n for i, n in enumerate(NAMES)}}
    (claims / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for model in (tiny_model_dir, claims):
        with pytest.raises(ModelError) as error:
            scores_of(model, recipe="mnli", data=str(mnli[0]), max_length=64)
        assert (error.value.where, "bertkit finetune" in str(error.value.hint)) == (str(model), True)
    assert "classifier.weight, classifier.bias" in error.value.what


@pytest.mark.parametrize(
    ("kind", "recipe", "splits", "error_class", "value"),
    [
        ("model", None, (), UsageError, "{0}"),
        ("model", "mnli", (), UsageError, "--max-length is 128"),  # as the recipe says; the model has 64 positions
        ("run", None, ("trial",), UsageError, "'trial'"),
        ("bare run", None, (), ModelError, "{0}"),
        ("runs", None, (), UsageError, "{0}"),
    ],
)
def test_what_cannot_be_opened(
    nli_model: Path, run: Path, tmp_path: Path, kind: str, recipe: str | None, splits: tuple, error_class: type, value: str
) -> None:
    folder = {"model": nli_model, "run": run}.get(kind, tmp_path)
    if folder == tmp_path:
        bare = tmp_path if kind == "bare run" else tmp_path / "seed-1"
        bare.mkdir(exist_ok=True)
        shutil.copy(run / "run.json", bare)
    with pytest.raises(UserError) as error:
        scores_of(folder, *splits, recipe=recipe)
    assert (type(error.value), value.format(folder) in str(error.value)) == (error_class, True)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("command", ["predict run rows.txt --output out.csv --overwrite", "eval run --output scores"])
def test_damaged_weights_are_an_error_and_nothing_is_written(
    command: str, large: bool, run: Path, run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are compared in the background, while the model already predicts."""
    if large:
        monkeypatch.setattr("bertkit.manifest.LARGE", 0)
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "rows.txt").write_text("\n".join(PREMISES), encoding="utf-8")
    (tmp_path / "out.csv").write_text("good", encoding="utf-8")
    weights = bytearray((tmp_path / "run" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "run" / "model.safetensors").write_bytes(weights)
    ran = run_bertkit(*command.split())
    assert (ran.code, "model.safetensors of the model is damaged" in ran.err) == (4, True), ran.err
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == "good"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "rows.txt", "run"]
    (tmp_path / "run" / "manifest.json").unlink()  # as in runs of older versions
    assert run_bertkit(*command.split()).code == 0
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") != "good" or (tmp_path / "scores").is_dir()


def test_scores_are_shown_although_the_predictions_cannot_be_written(
    run: Path, run_bertkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MachineError("cannot write: the disk is full")

    monkeypatch.setattr("bertkit.runs.evaluation.evaluate.write_files", full)
    ran = run_bertkit("eval", run, "--output-dir", "scores", "--json")
    assert (ran.code, "accuracy" in ran.out, "accuracy" in ran.err) == (5, True, True), ran.err


def test_a_config_that_was_edited_is_a_warning(run: Path, run_bertkit, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(config | {"id2label": {"0": "left", "1": "right"}, "label2id": {"left": 0, "right": 1}})
    (tmp_path / "run" / "config.json").write_text(text, encoding="utf-8")
    ran = run_bertkit("predict", "run", stdin=b"good movie")
    assert (ran.code, json.loads(ran.out)["label"] in ("left", "right")) == (0, True)
    assert "warning: run/config.json has changed since bertkit wrote it" in ran.err
    assert "warning" not in run_bertkit("predict", run, stdin=b"good movie").err


def as_csv(rows: list[dict[str, Any]], *, safe: bool = False) -> str:
    writer = Csv([*rows[0]], safe=safe)
    return (writer.begin() + writer.write(rows)).decode("utf-8-sig")


def test_a_spreadsheet_takes_no_text_for_a_formula() -> None:
    texts = ["=1+1", "+1", "-1", "@a", "\tb", "plain", "a=b", ""]
    rows = [{"text": text, "=score": -0.5, "tags": ["=x"]} for text in texts]
    header, *cells = csv.reader(io.StringIO(as_csv(rows, safe=True), newline=""))
    assert header == ["text", "'=score", "tags"]
    assert [row[0] for row in cells] == [f"'{text}" if number < 5 else text for number, text in enumerate(texts)]
    assert {tuple(row[1:]) for row in cells} == {("-0.5", '["=x"]')}
    assert "'" not in as_csv(rows)
    assert as_csv([{"text": "\rc"}], safe=True).partition("\n")[2] == '"\'\rc"\n'


@pytest.mark.parametrize("safe", [False, True])
def test_csv_is_read_as_it_was_written(safe: bool, tmp_path: Path) -> None:
    texts = ["a\rb", "a\nb", "a\r\nb", "ends\r", 'a "quoted", text', "plain", ""]
    rows = [{"text": text, "number": str(number)} for number, text in enumerate(texts)]
    (tmp_path / "out.csv").write_text(as_csv(rows, safe=safe), encoding="utf-8", newline="")
    assert read_file(tmp_path / "out.csv").columns == columns_of(rows)
    assert [*csv.DictReader(io.StringIO(as_csv(rows, safe=safe), newline=""))] == rows
    assert as_csv(rows[-2:]) == "text,number\nplain,5\n,6\n", "unquoted where that is enough"


def test_safe_csv_is_written_on_demand(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n=1+1,pos\nbad movie,neg\n", encoding="utf-8")
    train(tmp_path / "run", tiny_model_dir, tmp_path / "rows.csv")
    plain, safe = (run_bertkit("predict", "run", "rows.csv", "--format", "csv", *how).out for how in ((), ("--safe-csv",)))
    assert safe.startswith("\ufeff"), "by which spreadsheets know UTF-8"
    assert safe.removeprefix("\ufeff").replace("'=1+1", "=1+1") == plain
    assert "'=1+1" in safe
    assert run_bertkit("predict", "run", "rows.csv", "--format", "jsonl", "--safe-csv").code == 2

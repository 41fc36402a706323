"""What a run leaves: its files and their modes, run.json, and a model that transformers opens with equal logits."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertkit.config import TrainConfig, filled
from bertkit.errors import ModelError, UsageError
from bertkit.model.devices import start_accelerator
from bertkit.runs.directory import RunFolder, changed_settings, describe_run, read_recipe, read_run_file, write_run_file
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.saved import to_json

ROWS = [
    ("good movie", "praise"),
    ("bad movie", "blame"),
    ("the river", "other"),
    ("a great new book", "praise"),
    ("no", "blame"),
]
MODEL_FILES = {
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
}


@pytest.fixture(params=["one text", "pair", "regression"])
def run(request: pytest.FixtureRequest, run_bertkit, make_model_dir: Callable[..., Path], tmp_path: Path) -> str:
    """A run in ./run of two steps that change the weights much; returns what it was trained for."""
    kind = request.param
    rows = [{"text": text, "label": i / 2 if kind == "regression" else label} for i, (text, label) in enumerate(ROWS)]
    if kind == "pair":
        rows = [{**row, "text_pair": row["text"][::-1]} for row in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = make_model_dir("BertModel", seed=2, initializer_range=0.3)
    data = ("--train", "rows.jsonl", "--validation", "rows.jsonl", *(["--regression"] if kind == "regression" else []))
    settings = ("--max-steps", 2, "--learning-rate", 0.01, "--warmup-ratio", 0, "--max-length", 24, "--precision", "fp32")
    before = os.umask(0o027)
    try:
        ran = run_bertkit("finetune", "text-classification", *data, "-m", model, "-o", "run", *settings)
    finally:
        os.umask(before)
    assert ran.code == 0, ran.err
    return kind


def test_what_is_saved_opens_in_transformers(run: str, run_bertkit, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    from bertkit.model.devices import start_accelerator
    from bertkit.runs.predict import build, open_target

    folder = tmp_path / "run"
    theirs, loading = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert type(theirs).__name__ == "BertForSequenceClassification"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = theirs.config
    if run == "regression":
        assert (config.problem_type, config.num_labels) == ("regression", 1)
    else:
        assert (config.problem_type, config.id2label) == ("single_label_classification", {0: "blame", 1: "other", 2: "praise"})
        assert config.label2id == {"blame": 0, "other": 1, "praise": 2}

    texts = [text for text, _ in ROWS]
    pairs = [text[::-1] for text in texts] if run == "pair" else None
    tokens = tokenizer(texts, pairs, return_tensors="pt", padding=True)
    ours = build(open_target(str(folder), None, {}), start_accelerator("cpu")).eval()
    with torch.no_grad():
        expected = theirs.eval()(**tokens).logits
        found = ours(**tokens).logits["logits"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert expected.std(0).max() > 1e-3, "logits that do not depend on the text would hide a mistake"

    # And predict, which tokenizes itself, says the same as the pipeline.
    rows = [json.loads(line) for line in run_bertkit("predict", "run", "rows.jsonl").out.splitlines()]
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    inputs: list[Any] = [{"text": a, "text_pair": b} for a, b in zip(texts, pairs, strict=True)] if pairs else texts
    for row, said in zip(rows, classify(inputs), strict=True):
        if run == "regression":
            assert row["prediction"] == pytest.approx(said["score"], abs=1e-5)
        else:
            assert (row["label"], row["probability"]) == (said["label"], pytest.approx(said["score"], abs=1e-5))


def test_files_and_modes(run: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} == {*MODEL_FILES, "README.md", "run.json", "metrics.jsonl", "checkpoint-2"}
    assert {path.name for path in (folder / "checkpoint-2").iterdir()} == {*MODEL_FILES, "training", "manifest.json"}
    for path in folder.rglob("*"):
        expected = 0o750 if path.is_dir() else 0o640
        assert stat.S_IMODE(path.stat().st_mode) == expected, f"{path.name}: umask 027"
    start = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()[:5]
    assert start == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_run_json_says_all_that_the_run_was(run: str, tmp_path: Path, make_model_dir) -> None:
    values = read_run_file(tmp_path / "run")
    assert values is not None
    model = make_model_dir("BertModel", seed=2, initializer_range=0.3)
    assert values["status"] == "finished"
    expected = filled(TrainConfig(max_steps=2, learning_rate=0.01, warmup_ratio=0, max_length=24, precision="fp32"))
    recipe = read_recipe(values, tmp_path / "run")
    assert recipe.training == expected
    assert values["model"]["name"] == str(model)
    assert values["model"]["sha256"] == hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert values["data"]["train"]["source"] == str(tmp_path / "rows.jsonl")
    assert [values["data"][split]["rows"] for split in ("train", "validation")] == [5, 5]
    assert values["num_processes"] == 1
    for package in ("torch", "transformers", "accelerate"):
        assert values["versions"][package] == __import__(package).__version__
    log = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = {event["step"]: event for event in log if "validation/loss" in event}
    for which in ("best", "last"):
        event = scores[values[which]["step"]]
        assert values[which]["scores"] == {name: event[name] for name in event if name != "step"}
    first = next(iter(values["best"]["scores"]))
    assert values["best"]["scores"][first] == max(event[first] for event in scores.values())


def test_the_card_has_the_scores_and_valid_front_matter(run: str, tmp_path: Path) -> None:
    import yaml

    text = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    values = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    card = yaml.safe_load(front)
    assert (card["library_name"], card["pipeline_tag"]) == ("transformers", "text-classification")
    for name, value in values["best"]["scores"].items():
        assert f"| {name} | {value:.4f} |" in body
    code = body.partition("```python\n")[2].partition("```")[0]
    exec(compile(code.replace("path/to/this/folder", str(tmp_path / "run")), "README.md", "exec"), {})


# --- who may write into a folder -------------------------------------------------------------------------------------------


def a_run(folder: Path, **changes: Any) -> dict[str, Any]:
    recipe = load_recipe("sst2").overridden({"data": "glue/SST-2"})
    model = {"name": "bert", "sha256": "0" * 64, "fresh_head": True}
    data = {"train": {"source": "train.tsv", "rows": 5, "sha256": "1" * 64}}
    values = (
        describe_run(
            recipe=to_json(recipe, name="sst2"),
            training=filled(recipe.training),
            model=model,
            data=data,
            num_processes=1,
            total_steps=5,
        )
        | changes
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_run_file(folder, values)
    return values


def test_run_json_is_plain_json_and_comes_back(tmp_path: Path) -> None:
    values = a_run(tmp_path)
    assert read_run_file(tmp_path) == values
    assert replace(read_recipe(values, tmp_path), training=TrainConfig()) == replace(
        load_recipe("sst2").overridden({"data": "glue/SST-2"}), training=TrainConfig()
    )
    # A setting of a later version is passed over.
    values["training"]["of_tomorrow"] = 1
    assert read_recipe(values, tmp_path).training == filled(load_recipe("sst2").training)


def test_no_run_and_a_damaged_one(tmp_path: Path) -> None:
    assert read_run_file(tmp_path) is None
    (tmp_path / "run.json").write_text('{"status": "fin', encoding="utf-8")
    with pytest.raises(ModelError) as error:
        read_run_file(tmp_path)
    assert str(error.value).startswith("run.json is damaged: ")
    assert str(error.value).endswith(f"({tmp_path}/run.json)")


def test_an_unfinished_run_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    values = a_run(tmp_path)
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    found = RunFolder.prepare(tmp_path)
    assert found.resume_from == tmp_path / "checkpoint-10"
    found.refuse_other_settings(values)
    assert RunFolder.prepare(tmp_path, resume=str(tmp_path / "checkpoint-9")).resume_from == tmp_path / "checkpoint-9"


def test_other_settings_are_named(tmp_path: Path) -> None:
    values = a_run(tmp_path)
    other = json.loads(json.dumps(values))
    other["training"]["learning_rate"] = 1.0
    other["data"]["train"]["rows"] = 6
    other["versions"]["torch"] = "another"  # is allowed
    with pytest.raises(UsageError) as error:
        RunFolder.prepare(tmp_path).refuse_other_settings(other)
    listed = "learning_rate was 2e-05, is 1.0; train.rows was 5, is 6"
    assert str(error.value).endswith(f": {listed} ({tmp_path})")


def test_what_the_older_run_did_not_know_is_no_change() -> None:
    new = {
        "recipe": {"text": "a", "truncate": "head", "labels_are": None},
        "training": {"seed": 1},
        "data": {"train": {"rows": 5, "rows_sha256": "1"}},
    }
    old = {"recipe": {"text": "a"}, "training": {"seed": 1}, "data": {"train": {"rows": 5}}}
    assert changed_settings(old, new) == ""
    assert changed_settings(old, new | {"recipe": {"text": "a", "truncate": "tail"}}) == "truncate was 'head', is 'tail'"
    other = {"train": {"rows": 5, "rows_sha256": "2"}}
    assert changed_settings(new, new | {"data": other}) == "train.rows_sha256 was '1', is '2'"


def test_an_option_that_the_older_run_did_not_know_had_its_default(tmp_path: Path) -> None:
    values = a_run(tmp_path)
    assert values["training"]["reinit_layers"] == 0
    for name in ("reinit_layers", "schedule", "early_stopping_patience"):
        values["training"].pop(name)
    write_run_file(tmp_path, values)
    now = a_run(tmp_path / "now")
    RunFolder.prepare(tmp_path).refuse_other_settings(now)
    now["training"]["reinit_layers"] = 2
    with pytest.raises(UsageError, match="reinit_layers was 0, is 2"):
        RunFolder.prepare(tmp_path).refuse_other_settings(now)


@pytest.mark.parametrize("status", ["finished", "running"])
def test_what_may_not_be_gone_on_with(tmp_path: Path, status: str) -> None:
    a_run(tmp_path, status=status)
    with pytest.raises(UsageError) as error:
        RunFolder.prepare(tmp_path, resume="never")
    said = {"finished": "a finished run", "running": "an unfinished run, and --resume is never"}[status]
    assert str(error.value) == f"the output folder holds {said} ({tmp_path})"


def test_a_checkpoint_of_another_run_does_not_go_into_an_unfinished_one(tmp_path: Path) -> None:
    a_run(tmp_path / "one")
    a_run(tmp_path / "two")
    (tmp_path / "two" / "checkpoint-3").mkdir()
    with pytest.raises(UsageError, match="--resume"):
        RunFolder.prepare(tmp_path / "one", resume=str(tmp_path / "two" / "checkpoint-3"))


def test_a_run_that_went_on_from_another_goes_on(tmp_path: Path) -> None:
    """By the same command, with --resume or without it, stopped before or after its own first checkpoint."""
    values = a_run(tmp_path / "one")
    origin = tmp_path / "one" / "checkpoint-3"
    origin.mkdir()
    (tmp_path / "one" / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    run, accelerator = RunFolder.prepare(tmp_path / "two", resume=str(origin)), start_accelerator("cpu")
    with run.open(values, accelerator):
        assert (tmp_path / "two" / "metrics.jsonl").is_file()
    for resume in ("auto", str(origin)):
        assert RunFolder.prepare(tmp_path / "two", resume=resume).resume_from == origin
    (tmp_path / "two" / "checkpoint-9").mkdir()
    for resume in ("auto", str(origin)):
        again = RunFolder.prepare(tmp_path / "two", resume=resume)
        assert again.resume_from == tmp_path / "two" / "checkpoint-9"
        with again.open(dict(values), accelerator):
            assert json.loads((tmp_path / "two" / "run.json").read_text(encoding="utf-8"))["resumed_from"] == str(origin)
    (tmp_path / "two" / "checkpoint-9").rmdir()
    origin.rmdir()
    with pytest.raises(UsageError, match="checkpoint-3"):
        RunFolder.prepare(tmp_path / "two")


@pytest.mark.parametrize("content", ["[]", "{}", '{"status": "running"}'])
def test_a_run_json_that_is_not_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError) as error:
        RunFolder.prepare(tmp_path)
    assert error.value.where == str(tmp_path / "run.json")


@pytest.mark.parametrize(("name", "value"), [("micro_batch_tokens", 64), ("device", "cpu"), ("logging_steps", 3)])
def test_what_may_change_between_stop_and_resume(tmp_path: Path, name: str, value: object) -> None:
    values = a_run(tmp_path)
    RunFolder.prepare(tmp_path).refuse_other_settings({**values, "training": {**values["training"], name: value}})
    with pytest.raises(UsageError, match="seed was 42, is 7"):
        RunFolder.prepare(tmp_path).refuse_other_settings({**values, "training": {**values["training"], "seed": 7}})


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        RunFolder.prepare(tmp_path / "run", resume="checkpoint-7")
    assert str(error.value) == "--resume is 'checkpoint-7'; expected auto, never, or the folder of a checkpoint"

"""A finished run: its files and their modes, run.json, a model that transformers opens with equal logits; and its folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trained import before_step, log_of, predictions_of, read_json, train

from bertkit.config import TrainConfig, filled
from bertkit.errors import ModelError, UsageError
from bertkit.model.devices import start_accelerator
from bertkit.runs.directory import RunFolder
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.run_file import changed_settings, describe_run, is_recipe_of, read_recipe, read_run_file, write_run_file
from bertkit.runs.target import open_target
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.saved import to_json

ROWS = [
    ("good movie", "praise"),
    ("bad movie", "blame"),
    ("the river", "other"),
    ("a great new book", "praise"),
    ("no", "blame"),
]
MODEL_FILES = "config.json model.safetensors special_tokens_map.json tokenizer.json tokenizer_config.json vocab.txt".split()
TRAINING = {
    "max_steps": 2,
    "batch_size": 32,
    "learning_rate": 0.01,
    "warmup_ratio": 0,
    "max_length": 24,
    "precision": "fp32",
    "device": "cpu",
}


@pytest.fixture(scope="module")
def model(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertModel", seed=2, initializer_range=0.3)


@pytest.fixture(scope="module", params=["one text", "pair", "regression"])
def run(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a run was trained for, and its folder; two steps changed the weights much."""
    kind, place = request.param, tmp_path_factory.mktemp("run")
    rows = [{"text": text, "label": i / 2 if kind == "regression" else label} for i, (text, label) in enumerate(ROWS)]
    if kind == "pair":
        rows = [{**row, "text_pair": row["text"][::-1]} for row in rows]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    before = os.umask(0o027)
    try:
        options = TRAINING | ({"regression": True} if kind == "regression" else {})
        return kind, train(place / "run", model, place / "rows.jsonl", **options)
    finally:
        os.umask(before)


def test_a_run_opens_in_transformers_with_equal_logits(run) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    kind, folder = run
    theirs, loading = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    assert type(theirs).__name__ == "BertForSequenceClassification"
    config = theirs.config
    if kind == "regression":
        assert (config.problem_type, config.num_labels) == ("regression", 1)
    else:
        assert (config.problem_type, config.id2label) == ("single_label_classification", {0: "blame", 1: "other", 2: "praise"})
        assert config.label2id == {"blame": 0, "other": 1, "praise": 2}

    texts = [text for text, _ in ROWS]
    pairs = [text[::-1] for text in texts] if kind == "pair" else None
    tokens = AutoTokenizer.from_pretrained(folder)(texts, pairs, return_tensors="pt", padding=True)
    target = open_target(str(folder), None, {})
    ours = TaskPredictor(target, start_accelerator("cpu")).model
    with torch.no_grad():
        expected = theirs.eval()(**tokens).logits
        found = ours(**tokens).logits["logits"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert expected.std(0).max() > 1e-3, "logits that do not depend on the text would hide a mistake"

    # Predictions, whose texts are tokenized by bertkit, equal those of the pipeline.
    predictions = predictions_of(target, str(folder.parent / "rows.jsonl"))
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    inputs: list[Any] = [{"text": a, "text_pair": b} for a, b in zip(texts, pairs, strict=True)] if pairs else texts
    for prediction, said in zip(predictions, classify(inputs), strict=True):
        if kind == "regression":
            assert prediction.value == pytest.approx(said["score"], abs=1e-5)
        else:
            assert (prediction.value, prediction.probability) == (said["label"], pytest.approx(said["score"], abs=1e-5))


def test_files_of_a_run_and_their_modes(run) -> None:
    _, folder = run
    assert {path.name for path in folder.iterdir()} == {
        *MODEL_FILES,
        *("README.md", "run.json", "metrics.jsonl", "manifest.json", "checkpoint-2"),
    }
    assert {path.name for path in (folder / "checkpoint-2").iterdir()} == {*MODEL_FILES, "manifest.json"}
    for path in folder.rglob("*"):
        expected = 0o750 if path.is_dir() else 0o640
        assert stat.S_IMODE(path.stat().st_mode) == expected, f"{path.name}: umask 027"
    start = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()[:5]
    assert start == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_run_json_describes_the_whole_run(run, model: Path) -> None:
    _, folder = run
    values = read_run_file(folder)
    assert values is not None
    assert read_recipe(values, folder).training == filled(TrainConfig(**TRAINING))
    sha256 = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    config = values["model"].pop("config")
    assert values["model"] == {"name": str(model), "sha256": sha256, "fresh_head": True}
    assert config["hidden_act"] == json.loads((model / "config.json").read_text(encoding="utf-8"))["hidden_act"]
    assert values["data"]["train"]["source"] == str(folder.parent / "rows.jsonl")
    assert [values["data"][split]["rows"] for split in ("train", "validation")] == [5, 5]
    assert (values["status"], values["num_processes"]) == ("finished", 1)
    for package in ("torch", "transformers", "accelerate"):
        assert values["versions"][package] == __import__(package).__version__
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = {event.pop("step"): event for event in log if "validation/loss" in event}
    for which in ("best", "last"):
        assert values[which]["scores"] == scores[values[which]["step"]]
    first = next(iter(values["best"]["scores"]))
    assert values["best"]["scores"][first] == max(event[first] for event in scores.values())


@pytest.mark.parametrize(("metric", "better"), [("pearson", max), ("mean_squared_error", min)])
def test_the_best_checkpoint_is_that_of_the_best_score(
    metric: str, better: Callable[..., int], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{text},{i / 2}\n" for i, (text, _) in enumerate(ROWS)))
    options = TRAINING | {"max_steps": 6, "eval_steps": 1, "regression": True, "metric": (metric,)}
    folder = train(tmp_path / "run", model, tmp_path / "rows.csv", **options)
    scores = {event["step"]: event[name] for event in log_of(folder) if (name := f"validation/{metric}") in event}
    assert len({*scores.values()}) == 6
    assert read_json(folder / "run.json")["best"]["step"] == better(scores, key=scores.get)


def test_without_evaluation_the_last_step_counts_as_the_best(run_bertkit, model: Path, tmp_path: Path) -> None:
    rows = "text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.csv").write_text(rows, encoding="utf-8")
    recipe = "from bertkit.tasks import TextClassification\nrecipe = TextClassification(eval_splits=())\n"
    (tmp_path / "task.py").write_text(recipe, encoding="utf-8")
    how = "--max-steps 4 --eval-steps 1 --early-stopping-patience 1 --precision fp32 --device cpu --max-length 24".split()
    ran = run_bertkit("finetune", "./task.py", "--data", "rows", "-m", model, "-o", "run", *how)
    assert ran.code == 0, ran.err
    assert read_json(tmp_path / "run" / "run.json")["best"] == {"step": 4, "scores": {}}
    assert "These are the weights of step 4, the last one." in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    config = json.loads((tmp_path / "run" / "checkpoint-4" / "config.json").read_text(encoding="utf-8"))
    assert config == json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))


def test_the_card_has_the_scores_and_valid_front_matter(run) -> None:
    import yaml

    _, folder = run
    _, front, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    card = yaml.safe_load(front)
    assert (card["library_name"], card["pipeline_tag"]) == ("transformers", "text-classification")
    for name, value in json.loads((folder / "run.json").read_text(encoding="utf-8"))["best"]["scores"].items():
        assert f"| {name} | {value:.4f} |" in body
    code = body.partition("```python\n")[2].partition("```")[0]
    exec(compile(code.replace("path/to/this/folder", str(folder)), "README.md", "exec"), {})


# --- who may write into a folder -------------------------------------------------------------------------------------------


def a_run(folder: Path, **changes: Any) -> dict[str, Any]:
    recipe = load_recipe("sst2").overridden({"data": "glue/SST-2"})
    training, described = filled(recipe.training), to_json(recipe, name="sst2")
    model = {"name": "bert", "sha256": "0" * 64, "fresh_head": True}
    data = {"train": {"source": "train.tsv", "rows": 5, "sha256": "1" * 64}}
    values = describe_run(recipe=described, training=training, model=model, data=data, num_processes=1, total_steps=5) | changes
    folder.mkdir(parents=True, exist_ok=True)
    write_run_file(folder, values)
    return values


def test_run_json_is_plain_json_and_comes_back(tmp_path: Path) -> None:
    assert read_run_file(tmp_path) is None
    values = a_run(tmp_path)
    assert read_run_file(tmp_path) == values
    recipe = load_recipe("sst2").overridden({"data": "glue/SST-2"})
    values["training"]["of_tomorrow"] = 1  # a setting of a later version is ignored
    assert read_recipe(values, tmp_path) == replace(recipe, training=filled(recipe.training))


def test_the_file_of_a_runs_recipe_is_known_by_its_place_or_once_it_has_moved_by_its_name(tmp_path: Path) -> None:
    recorded, other = tmp_path / "mine.py", tmp_path / "other" / "mine.py"
    run = {"recipe": {"name": str(recorded)}}
    assert [is_recipe_of(run, str(path)) for path in (recorded, other, tmp_path / "x.py")] == [True, True, False]
    recorded.touch()
    assert [is_recipe_of(run, str(path)) for path in (recorded, other)] == [True, False]
    assert not is_recipe_of({"recipe": {"name": "mnli"}}, "mnli")


@pytest.mark.parametrize("content", ['{"status": "fin', "[]", "{}", '{"status": "running"}'])
def test_a_run_json_that_is_damaged_or_not_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError) as error:
        RunFolder.prepare(tmp_path)
    assert error.value.where == str(tmp_path / "run.json")


def test_an_unfinished_run_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    values = a_run(tmp_path)
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    found = RunFolder.prepare(tmp_path)
    assert found.resume_from == tmp_path / "checkpoint-10"
    found.refuse_other_settings(values)
    assert RunFolder.prepare(tmp_path, resume=str(tmp_path / "checkpoint-9")).resume_from == tmp_path / "checkpoint-9"


def test_training_from_an_unfinished_run_says_so_and_names_a_checkpoint(run_bertkit, model: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS))
    data = ["--train", "rows.jsonl", "--validation", "rows.jsonl"]
    options = ["text-classification", *data, "--max-steps", 3, "--eval-steps", 3, "--device", "cpu"]
    with before_step(1):
        assert run_bertkit("finetune", *options, "--model", model, "--output-dir", "run").code == 143
    ran = run_bertkit("finetune", *options, "--model", "run", "--output-dir", "again")
    assert (ran.code, "the run is not finished, and has no model yet (run)" in ran.err) == (4, True), ran.err
    assert "repeat its command, or give a checkpoint: run/checkpoint-2" in ran.err
    assert run_bertkit("finetune", *options, "--model", "run/checkpoint-2", "--output-dir", "again").code == 0


OLD: dict[str, Any] = {
    "recipe": {"text": "a"},
    "training": {"seed": 1},
    "data": {"train": {"rows": 5, "rows_sha256": "1", "sha256": "f"}},
}
CORPUS = {"tokenizer": {"fingerprint": "1", "vocab_hash": "2", "vocab_size": 8}, "hashes": "3", "entities": "4"}
OTHER_CORPUS = {"tokenizer": {"fingerprint": "5", "vocab_hash": "6", "vocab_size": 8}, "hashes": "7", "entities": "8"}


@pytest.mark.parametrize(
    ("changes", "changed"),
    [
        ({}, ""),
        ({"training": {"seed": 7, "reinit_layers": 2}}, "reinit_layers was 0, now 2; seed was 1, now 7"),
        # settings that the older run lacks had their defaults
        ({"recipe": {"text": "a", "truncate": "head", "labels": None}, "training": {"seed": 1, "schedule": "linear"}}, ""),
        ({"recipe": {"text": "a", "truncate": "tail"}}, "truncate was 'head', now 'tail'"),
        # memory, device and what is logged may change
        ({"training": {"seed": 1, "micro_batch_tokens": 64, "device": "cpu", "logging_steps": 3, "track": ["x"]}}, ""),
        (
            {"data": {"train": {"rows": 6, "rows_sha256": "2", "sha256": "g"}}},
            "train.rows was 5, now 6; the rows of train have changed",
        ),
        ({"data": {"train": OLD["data"]["train"], "dev": {"rows_sha256": "3"}}}, ""),
        # other features alone: labels, or a tokenizer
        ({"data": {"train": OLD["data"]["train"] | {"sha256": "g"}}}, "train has changed"),
        ({"training": {"seed": 2}, "data": {"train": OLD["data"]["train"] | {"sha256": "g"}}}, "seed was 1, now 2"),
    ],
)
def test_settings_that_changed(changes: dict[str, Any], changed: str) -> None:
    assert changed_settings(OLD, OLD | changes) == changed


def test_corpora_that_changed() -> None:
    assert changed_settings({"data": {"corpus": CORPUS}}, {"data": {"corpus": OTHER_CORPUS}}) == (
        "the tokenizer has changed; the documents of corpus have changed; the entities to mask in corpus have changed"
    )


def test_other_settings_are_refused(tmp_path: Path) -> None:
    values = a_run(tmp_path)
    same = values | {"versions": {"torch": "another"}}
    RunFolder.prepare(tmp_path).refuse_other_settings(same)
    for part in ("recipe", "training", "model", "data"):
        with pytest.raises(UsageError) as error:
            RunFolder.prepare(tmp_path).refuse_other_settings(same | {part: {**values[part], "another": 1}})
        assert (error.value.where, "another was None, now 1" in error.value.what) == (str(tmp_path), True)


def test_a_run_resumed_by_another_number_of_processes_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for processes in (1, 3):
        values = a_run(tmp_path, num_processes=processes)
        (tmp_path / "checkpoint-9").mkdir(exist_ok=True)
        with RunFolder.prepare(tmp_path).open(values | {"num_processes": 1}, start_accelerator("cpu")):
            assert ("warning: the run started with 3 processes" in capsys.readouterr().err) == (processes == 3)


def test_a_resumed_run_still_tells_how_it_began(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = a_run(tmp_path, num_processes=1)
    for step, processes in ((3, 2), (6, 2), (9, 1)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        with RunFolder.prepare(tmp_path).open(values | {"num_processes": processes}, start_accelerator("cpu")):
            warned = "the run started with 1 process:" in capsys.readouterr().err
            assert warned == (processes == 2), "although it was resumed with 2 before"
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (run["num_processes"], run["versions"]) == (1, values["versions"])
    assert [(each["checkpoint"], each["num_processes"]) for each in run["resumes"]] == [
        ("checkpoint-3", 2),
        ("checkpoint-6", 2),
    ]


@pytest.mark.parametrize("seeds", [None, 2])
def test_overwrite_does_not_move_what_a_run_reads(
    seeds: int | None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    run = folder if seeds is None else folder / "seed-1"
    a_run(run, status="finished")
    rows = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS)
    for place in (tmp_path, run):
        (place / "rows.jsonl").write_text(rows, encoding="utf-8")
    inside = shutil.copytree(model, run / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    rows_outside, rows_inside, from_home = tmp_path / "rows.jsonl", run / "rows.jsonl", Path("~") / inside.relative_to(tmp_path)
    given_and_read = {(inside, rows_outside): inside, (model, rows_inside): rows_inside, (from_home, rows_outside): inside}
    for given, read in given_and_read.items():
        with pytest.raises(UsageError) as error:
            train(folder, *given, seeds=seeds, overwrite=True)
        assert f"would move {read}," in error.value.what
    assert not (tmp_path / "run.old-1").exists()


@pytest.mark.parametrize("status", ["finished", "running"])
def test_a_run_is_not_resumed_if_never_is_asked_for(tmp_path: Path, status: str) -> None:
    a_run(tmp_path, status=status)
    with pytest.raises(UsageError) as error:
        RunFolder.prepare(tmp_path, resume="never")
    assert error.value.where == str(tmp_path)


@pytest.mark.parametrize("resume", ["two/checkpoint-3", "none/checkpoint-3", "three/checkpoint-3"])
def test_a_checkpoint_that_does_not_fit(tmp_path: Path, resume: str) -> None:
    a_run(tmp_path / "one")
    a_run(tmp_path / "two")
    for name in ("two", "three"):  # of which one is a run
        (tmp_path / name / "checkpoint-3").mkdir(parents=True)
    with pytest.raises(UsageError) as error:
        RunFolder.prepare(tmp_path / "one", resume=str(tmp_path / resume))
    assert "--resume" in error.value.what


def test_a_run_that_resumed_from_another_resumes(tmp_path: Path) -> None:
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
    with pytest.raises(UsageError) as error:
        RunFolder.prepare(tmp_path / "two")
    assert (error.value.where, str(origin) in error.value.what) == (str(tmp_path / "two"), True)

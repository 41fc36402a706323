"""The options of transformers' run_glue.py: what each means here, and a run by them that equals the run by bertkit's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit import progress
from bertkit.cli.options import recipe_options
from bertkit.cli.run_glue import _OURS, translate
from bertkit.errors import UsageError

RENAMED = dict(
    pair.split(":")
    for pair in """
    model_name_or_path:model output_dir:output-dir max_seq_length:max-length num_train_epochs:num-epochs max_steps:max-steps
    learning_rate:learning-rate lr_scheduler_type:schedule warmup_ratio:warmup-ratio weight_decay:weight-decay
    adam_beta1:adam-beta1 adam_beta2:adam-beta2 adam_epsilon:adam-epsilon max_grad_norm:max-grad-norm eval_steps:eval-steps
    label_smoothing_factor:label-smoothing logging_steps:logging-steps max_train_samples:max-train-samples train_file:train
    validation_file:validation test_file:test resume_from_checkpoint:resume
    save_steps:save-steps save_total_limit:keep-checkpoints
    """.split()
)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.mark.parametrize(("theirs", "ours"), RENAMED.items())
def test_an_option_is_renamed(theirs: str, ours: str) -> None:
    assert translate(["finetune", "mrpc", f"--{theirs}", "x"]) == ["finetune", "mrpc", f"--{ours}", "x"]
    assert translate(["finetune", "mrpc", f"--{theirs}=a=b"]) == ["finetune", "mrpc", f"--{ours}", "a=b"]


def test_every_name_is_an_option() -> None:
    assert set(_OURS) | {"lr_scheduler_type"} == set(RENAMED)
    own = {"model", "output-dir", "resume"}  # parameters of the command itself
    assert set(RENAMED.values()) <= own | {option.flag[2:] for _, option in recipe_options("finetune").values()}


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("mrpc --lr_scheduler_type linear", "mrpc --schedule linear"),
        # theirs never warms up; where ours does, theirs has another name
        ("mrpc --lr_scheduler_type constant", "mrpc --schedule constant --warmup-ratio 0"),
        ("mrpc --lr_scheduler_type constant_with_warmup", "mrpc --schedule constant"),
        (
            "mrpc --lr_scheduler_type constant --warmup_ratio 0.1",
            "mrpc --schedule constant --warmup-ratio 0.1 --warmup-ratio 0",  # the last one counts
        ),
        (
            "mrpc --warmup_ratio 0.1 --lr_scheduler_type constant",
            "mrpc --warmup-ratio 0.1 --schedule constant --warmup-ratio 0",
        ),
        # a file of one's own
        (
            "--model_name_or_path m --train_file my.csv --per_device_eval_batch_size 8 --do_train",
            "text-classification --model m --train my.csv",
        ),
        ("ner --train_file my.csv", "ner --train my.csv"),
        # switches, which may have a value
        ("rte --overwrite_output_dir", "rte --overwrite"),
        ("rte --overwrite_output_dir True -o run", "rte --overwrite -o run"),
        ("rte --ignore_mismatched_sizes true", "rte --ignore-mismatched-sizes"),
        ("rte --bf16", "rte --precision bf16"),
        ("rte --bf16=True", "rte --precision bf16"),
        ("rte --bf16=false", "rte"),
        ("rte --bf16 False --seed 1", "rte --seed 1"),
        ("rte --no_cuda", "rte --device cpu"),
        ("rte --use_cpu", "rte --device cpu"),
        ("rte --pad_to_max_length false --overwrite_cache --do_eval", "rte"),
        ("rte --report_to none", "rte"),
        ("rte --report_to=tensorboard", "rte --track tensorboard"),
        # the task is the recipe
        ("--task_name mrpc", "mrpc"),
        ("--task_name=STS-B", "stsb"),
        ("--seed 1 --task_name SST-2", "sst2 --seed 1"),
        # the batch is that of a whole step
        ("cola --per_device_train_batch_size 8", "cola --batch-size 8"),
        ("cola --per_device_train_batch_size 8 --gradient_accumulation_steps 4", "cola --batch-size 32"),
        # other words stay as they are
        *[("mrpc -m max_steps --max-length 8 --text=max_steps --unknown_flag=1",) * 2],
    ],
)
def test_options_are_translated(typed: str, ours: str) -> None:
    assert translate(["finetune", *typed.split()]) == ["finetune", *ours.split()]


@pytest.mark.parametrize(
    "argv", ["", "--version", "predict --max_seq_length 8 --task_name x --bf16", "eval run --do_train false"]
)
def test_other_commands_stay_as_they_are(argv: str) -> None:
    assert translate(argv.split()) == argv.split()


@pytest.mark.parametrize(("processes", "batch_size"), [("", 8), ("1", 8), ("3", 24)])
def test_the_batch_is_multiplied_by_the_processes(monkeypatch, processes: str, batch_size: int) -> None:
    monkeypatch.setenv("WORLD_SIZE", processes)
    typed = ["finetune", "cola", "--gradient_accumulation_steps=2", "--per_device_train_batch_size=4"]
    assert translate(typed) == ["finetune", "cola", "--batch-size", str(batch_size)]


@pytest.mark.parametrize(
    ("typed", "processes", "value"),
    [
        ("--do_train false", "1", "--do_train"),
        ("--per_device_train_batch_size 0", "1", "'0'"),
        ("--per_device_train_batch_size=8.5", "1", "'8.5'"),
        ("--per_device_train_batch_size", "1", "''"),
        ("--gradient_accumulation_steps -2", "1", "'-2'"),
        ("--gradient_accumulation_steps 2", "1", "--per_device_train_batch_size"),  # which it multiplies
        ("--bf16=yes", "1", "'yes'"),
        *[("--per_device_train_batch_size 8", processes, f"{processes!r}") for processes in ("two", "0", "-1")],
    ],
)
def test_bad_values_are_refused(monkeypatch: pytest.MonkeyPatch, typed: str, processes: str, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(UsageError) as error:
        translate(["finetune", "mrpc", *typed.split()])
    assert value in error.value.what


def test_options_without_effect_are_named() -> None:
    with progress.console.capture() as said:
        argv = translate(["finetune", "cola", "--save_strategy", "steps", "--eval_strategy=steps", "--seed", "3"])
    assert argv == ["finetune", "cola", "--seed", "3"]
    assert "--save_strategy, --eval_strategy;" in said.get()


def test_a_head_of_another_size_is_replaced_and_one_that_fits_stays(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    for name, kinds in (("two", "ab"), ("three", "abc")):
        rows = "".join(f"text {kind},{kind}\n" for kind in kinds)
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")

    def train(data: str, model: object, output: str) -> bool:
        how = f"--train {data}.csv --validation {data}.csv -m {model} -o {output} --max-length 16 --max-steps 1"
        ran = run_bertkit("finetune", "text-classification", *how.split(), "--ignore_mismatched_sizes", "true")
        assert ran.code == 0, ran.err
        return "not in the model: classifier.weight, classifier.bias" in ran.err

    train("two", tiny_model_dir, "first")
    assert (train("two", "first", "same"), train("three", "first", "other")) == (False, True)


def test_a_run_by_their_options_is_the_run_by_ours(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{text} {word}\t{word}\n" for text in ("movie", "book", "plot") for word in ("good", "bad"))
    (tmp_path / "rows.tsv").write_text(f"sentence1\tsentence2\tlabel\n{rows}", encoding="utf-8")
    both = "--text sentence1 --text-pair sentence2 --labels good,bad --device cpu --seed 3"
    ours = f"""rte {both} -m {tiny_model_dir} -o ours --train rows.tsv --validation rows.tsv --max-length 16 --batch-size 4
        --learning-rate 0.001 --num-epochs 2 --warmup-ratio 0.25 --schedule cosine --weight-decay 0.02
        --label-smoothing 0.1 --logging-steps 1 --precision bf16"""
    theirs = f"""{both} --task_name RTE --model_name_or_path={tiny_model_dir} --output_dir theirs --train_file rows.tsv
        --validation_file rows.tsv --max_seq_length 16 --per_device_train_batch_size 2 --gradient_accumulation_steps 2
        --learning_rate 0.001 --num_train_epochs=2.0 --warmup_ratio 0.25 --lr_scheduler_type cosine --weight_decay 0.02
        --label_smoothing_factor 0.1 --logging_steps 1 --bf16"""
    runs: dict[str, dict[str, Any]] = {}
    for name, argv in (("ours", ours), ("theirs", theirs)):
        ran = run_bertkit("finetune", *argv.split())
        assert ran.code == 0, ran.err
        runs[name] = json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8")) | {"seconds": 0}
    run = runs["theirs"]
    assert run == runs["ours"]
    assert (run["total_steps"], run["recipe"]["name"], run["recipe"]["label_smoothing"]) == (4, "rte", 0.1)  # 6 rows, twice
    wanted = {"batch_size": 4, "max_length": 16, "schedule": "cosine", "precision": "bf16", "num_epochs": 2.0}
    assert wanted.items() <= run["training"].items()

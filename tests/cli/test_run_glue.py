"""The spellings of transformers' run_glue.py: what each means here, and a run by them that is the run by our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit import progress
from bertkit.cli.run_glue import translate


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("model_name_or_path", "model"),
        ("output_dir", "output-dir"),
        ("max_seq_length", "max-length"),
        ("num_train_epochs", "num-epochs"),
        ("max_steps", "max-steps"),
        ("learning_rate", "learning-rate"),
        ("lr_scheduler_type", "schedule"),
        ("warmup_ratio", "warmup-ratio"),
        ("weight_decay", "weight-decay"),
        ("adam_beta1", "adam-beta1"),
        ("adam_beta2", "adam-beta2"),
        ("adam_epsilon", "adam-epsilon"),
        ("max_grad_norm", "max-grad-norm"),
        ("label_smoothing_factor", "label-smoothing"),
        ("eval_steps", "eval-steps"),
        ("logging_steps", "logging-steps"),
        ("max_train_samples", "max-train-samples"),
        ("train_file", "train"),
        ("validation_file", "validation"),
        ("test_file", "test"),
    ],
)
def test_an_option_has_our_name(theirs: str, ours: str) -> None:
    assert translate(["finetune", "mrpc", f"--{theirs}", "x"]) == ["finetune", "mrpc", f"--{ours}", "x"]
    assert translate(["finetune", "mrpc", f"--{theirs}=a=b"]) == ["finetune", "mrpc", f"--{ours}", "a=b"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("linear", ["--schedule", "linear"]),
        (
            "constant",
            ["--schedule", "constant", "--warmup-ratio", "0"],
        ),  # which never warms up: where ours warms up, theirs has another name
        ("constant_with_warmup", ["--schedule", "constant"]),
    ],
)
def test_a_schedule_is_theirs(theirs: str, ours: list[str]) -> None:
    assert translate(["finetune", "mrpc", "--lr_scheduler_type", theirs]) == ["finetune", "mrpc", *ours]


@pytest.mark.parametrize("order", [1, -1])
def test_their_constant_never_warms_up(order: int) -> None:
    typed = [["--lr_scheduler_type", "constant"], ["--warmup_ratio", "0.1"]][::order]
    found = translate(["finetune", "mrpc", *typed[0], *typed[1]])
    assert found[-2:] == ["--warmup-ratio", "0"], "the last one counts"


def test_what_does_not_train_is_refused(run_bertkit) -> None:
    ran = run_bertkit("finetune", "mrpc", "-m", "x", "-o", "run", "--do_train", "false")
    assert (ran.code, "--do_train" in ran.err) == (2, True)


def test_their_form_for_a_file_of_ones_own() -> None:
    theirs = ["--model_name_or_path", "m", "--train_file", "my.csv", "--per_device_eval_batch_size", "8", "--do_train"]
    assert translate(["finetune", *theirs]) == ["finetune", "text-classification", "--model", "m", "--train", "my.csv"]
    assert translate(["finetune", "ner", "--train_file", "my.csv"]) == ["finetune", "ner", "--train", "my.csv"]


def test_every_name_of_ours_is_an_option(run_bertkit) -> None:
    from bertkit.cli.run_glue import _OURS

    shown = run_bertkit("finetune", "--help").out
    for ours in _OURS.values():
        assert f"--{ours}" in shown, ours


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (["--overwrite_output_dir"], ["--overwrite"]),
        (["--overwrite_output_dir", "True", "-o", "run"], ["--overwrite", "-o", "run"]),
        (["--ignore_mismatched_sizes", "true"], ["--ignore-mismatched-sizes"]),
        (["--bf16"], ["--precision", "bf16"]),
        (["--bf16=True"], ["--precision", "bf16"]),
        (["--bf16=false"], []),
        (["--bf16", "False", "--seed", "1"], ["--seed", "1"]),
    ],
)
def test_a_switch_may_have_a_value(typed: list[str], ours: list[str]) -> None:
    assert translate(["finetune", "rte", *typed]) == ["finetune", "rte", *ours]


@pytest.mark.parametrize(
    ("typed", "recipe"),
    [
        (["--task_name", "mrpc"], "mrpc"),
        (["--task_name=STS-B"], "stsb"),
        (["--seed", "1", "--task_name", "SST-2"], "sst2"),
    ],
)
def test_the_task_is_the_recipe(typed: list[str], recipe: str) -> None:
    assert translate(["finetune", *typed])[:2] == ["finetune", recipe]


@pytest.mark.parametrize(
    ("typed", "processes", "batch"),
    [
        (["--per_device_train_batch_size", "8"], None, 8),
        (["--per_device_train_batch_size=8"], "", 8),
        (["--per_device_train_batch_size", "8"], "3", 24),
        (["--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "4"], None, 32),
        (["--gradient_accumulation_steps=4", "--per_device_train_batch_size=8"], "2", 64),
    ],
)
def test_the_batch_is_that_of_a_whole_step(monkeypatch, typed: list[str], processes: str | None, batch: int) -> None:
    if processes is not None:
        monkeypatch.setenv("WORLD_SIZE", processes)
    assert translate(["finetune", "cola", *typed]) == ["finetune", "cola", "--batch-size", str(batch)]


@pytest.mark.parametrize(
    "typed",
    [
        ["--per_device_train_batch_size", "0"],
        ["--per_device_train_batch_size=8.5"],
        ["--per_device_train_batch_size"],
        ["--gradient_accumulation_steps", "-2"],
        ["--gradient_accumulation_steps", "2"],  # without the batch that it multiplies
        ["--bf16=yes"],
    ],
)
def test_bad_values(run_bertkit, typed: list[str]) -> None:
    ran = run_bertkit("finetune", "mrpc", "-m", "x", "-o", "run", *typed)
    assert (ran.code, ran.out, ran.err.startswith(f"error: {typed[0].partition('=')[0]} ")) == (2, "", True), ran.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (["--report_to", "none"], []),
        (["--report_to=tensorboard"], ["--track", "tensorboard"]),
        (["--no_cuda"], ["--device", "cpu"]),
        (["--resume_from_checkpoint", "a/checkpoint-3"], ["--resume", "a/checkpoint-3"]),
        (["--pad_to_max_length", "false", "--overwrite_cache"], []),
    ],
)
def test_their_other_options(typed: list[str], ours: list[str]) -> None:
    assert translate(["finetune", "cola", *typed]) == ["finetune", "cola", *ours]


def test_what_has_no_effect_is_said() -> None:
    with progress.console.capture() as said:
        argv = translate(["finetune", "cola", "--save_steps", "500", "--eval_strategy=steps", "--seed", "3"])
    assert argv == ["finetune", "cola", "--seed", "3"]
    assert said.get().startswith("ignored, without effect here: --save_steps, --eval_strategy; ")


def test_a_head_of_another_size_gives_way_and_one_that_fits_stays(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    for name, kinds in (("two", "ab"), ("three", "abc")):
        rows = "".join(f"text {kind},{kind}\n" for kind in kinds)
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")

    def train(data: str, model: object, output: str) -> str:
        files = ("--train", f"{data}.csv", "--validation", f"{data}.csv", "--max-length", 16, "--max-steps", 1)
        task = ("finetune", "text-classification", *files, "-m", model, "-o", output)
        ran = run_bertkit(*task, "--ignore_mismatched_sizes", "true")
        assert ran.code == 0, ran.err
        return ran.err

    assert "fresh weights" in train("two", tiny_model_dir, "first")
    assert "fresh weights" not in train("two", "first", "same")
    assert "not in the model: classifier.weight, classifier.bias" in train("three", "first", "other")


@pytest.mark.parametrize("processes", ["two", "0", "-1"])
def test_a_number_of_processes_that_is_none(run_bertkit, monkeypatch, processes: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", processes)
    ran = run_bertkit("finetune", "mrpc", "-m", "x", "-o", "run", "--per_device_train_batch_size", "8")
    assert (ran.code, f"WORLD_SIZE is {processes!r}" in ran.err) == (2, True)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--version"],
        ["predict", "--max_seq_length", "8", "--task_name", "x", "--bf16"],
        ["eval", "run", "--per_device_train_batch_size", "none"],
        ["finetune", "mrpc", "-m", "max_steps", "--max-length", "8", "--text=max_steps", "--unknown_flag=1"],
    ],
)
def test_other_words_stay_as_they_are(argv: list[str]) -> None:
    assert translate(argv) == argv


def test_other_commands_do_not_know_them(run_bertkit) -> None:
    ran = run_bertkit("eval", "run", "--max_seq_length", 8)
    assert ran.code == 2
    assert "--max_seq_length" in ran.err.splitlines()[0]


def test_the_help_does_not_show_them(run_bertkit) -> None:
    shown = run_bertkit("finetune", "--help").out
    assert "--max-length" in shown
    assert "max_seq_length" not in shown


def run_of(folder: str) -> dict[str, Any]:
    """What run.json says, without how long it took and where it lies."""
    run = json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))
    return {name: value for name, value in run.items() if name != "seconds"}


def test_a_run_by_their_spelling_is_the_run_by_ours(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{text} {word}\t{word}\n" for text in ("movie", "book", "plot") for word in ("good", "bad"))
    (tmp_path / "rows.tsv").write_text(f"sentence1\tsentence2\tlabel\n{rows}", encoding="utf-8")
    ours = "--text sentence1 --text-pair sentence2 --labels good,bad --device cpu".split()
    ours += f"-m {tiny_model_dir} -o ours --train rows.tsv --validation rows.tsv --max-length 16 --batch-size 4".split()
    ours += "--learning-rate 0.001 --num-epochs 2 --warmup-ratio 0.25 --schedule cosine --weight-decay 0.02".split()
    ours += "--label-smoothing 0.1 --logging-steps 1 --precision bf16 --seed 3".split()
    theirs = "--text sentence1 --text-pair sentence2 --labels good,bad --device cpu --task_name RTE".split()
    theirs += f"--model_name_or_path={tiny_model_dir} --output_dir theirs --train_file rows.tsv".split()
    theirs += "--validation_file rows.tsv --max_seq_length 16 --per_device_train_batch_size 2".split()
    theirs += "--gradient_accumulation_steps 2 --learning_rate 0.001 --num_train_epochs=2.0 --warmup_ratio 0.25".split()
    theirs += "--lr_scheduler_type cosine --weight_decay 0.02 --label_smoothing_factor 0.1 --logging_steps 1".split()
    theirs += "--bf16 --seed 3".split()
    for argv in (["rte", *ours], theirs):
        ran = run_bertkit("finetune", *argv)
        assert ran.code == 0, ran.err
    run = run_of("theirs")
    assert run == run_of("ours")
    assert run["total_steps"] == 4  # 6 rows in steps of 4, twice
    assert run["recipe"]["name"] == "rte"
    assert run["recipe"]["label_smoothing"] == 0.1
    wanted = {"batch_size": 4, "max_length": 16, "schedule": "cosine", "precision": "bf16", "num_epochs": 2.0}
    assert wanted.items() <= run["training"].items()
    ran = run_bertkit("finetune", *theirs, "--overwrite_output_dir")
    assert ran.code == 0, ran.err
    assert (tmp_path / "theirs.old-1").is_dir()

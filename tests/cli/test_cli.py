"""Commands run in this process: exit codes, streams, what a command passes on, and predictions row for row."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trained import train

from bertkit import __version__
from bertkit.cli import main
from bertkit.cli.finetune import finetune
from bertkit.cli.option_files import read_options
from bertkit.cli.options import recipe_names
from bertkit.config import TrainConfig, options_for
from bertkit.errors import UsageError
from bertkit.runs.finetuning.finetune import try_finetuning
from bertkit.runs.request import Request
from bertkit.tasks import FAMILIES, QuestionAnswering, TextClassification
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.saved import options_of_run

GOOD = "text,label\ngood movie,pos\nbad movie,neg\ngreat film,pos\npoor plot,neg\n"


@pytest.fixture(scope="module")
def run_dir(make_model_dir: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step that began from a head whose predictions differ from text to text."""
    folder = tmp_path_factory.mktemp("run")
    model = make_model_dir("BertForSequenceClassification", seed=5, initializer_range=0.4, labels=("neg", "pos"))
    (folder / "good.csv").write_text(GOOD, encoding="utf-8")
    return train(folder / "run", model, folder / "good.csv", max_length=32)


# --- mistakes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "shown", "hidden"),
    [
        ("finetune conll2003", {"--tags", "--labels", "--learning-rate"}, {"--choices", "--text-pair", "--doc-stride"}),
        ("tune question-answering", {"--doc-stride", "--question"}, {"--tags", "--choices"}),
        ("check mrpc", {"--text-pair"}, {"--tags"}),
        ("finetune my.csv", {"--tags", "--choices", "--text-pair", "--doc-stride"}, set()),  # no recipe
    ],
)
def test_help_after_a_recipe_has_the_options_of_its_family(
    command: str, shown: set[str], hidden: set[str], run_bertkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = set(re.findall(r"^. (--[\w-]+)", run_bertkit(*command.split(), "--help").out, re.MULTILINE))
    assert shown <= listed
    assert not hidden & listed


def test_help_of_a_family_has_its_own_words(run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    found = {family: run_bertkit("finetune", family, "--help").out for family in FAMILIES}
    for family, recipe in FAMILIES.items():
        for option in options_for("finetune", recipe).values():
            words = option.help.split("[")[0].split(" <")[0]
            assert words[:80] in found[family], (family, option.flag)


def test_help_in_a_narrow_terminal_names_each_option_in_full(run_bertkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = run_bertkit("finetune", "--help").out
    owners = (*FAMILIES.values(), TrainConfig)
    declared = [option.flag for owner in owners for option in options_for("finetune", owner).values()]
    listed = set(re.findall(r"^│ (--[\w-]+) ", said, re.MULTILINE))
    assert len(declared) > 60
    assert {*declared} <= listed
    assert "default on; off with" in said
    assert "--no-adam-bias-correction" in said
    assert "duplicates and contradictions within and across splits, empty texts, broken" in run_bertkit("check", "--help").out


def test_version_and_short_help(run_bertkit) -> None:
    assert run_bertkit("--version") == (0, f"bertkit {__version__}\n", "")
    for command in ("finetune", "eval", "predict", "recipes"):
        assert run_bertkit(command, "-h") == run_bertkit(command, "--help")


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        ("finetune sst2", ["--model"]),
        ("finetune ./nothing.py -m x -o y", ["(nothing.py)"]),
        ("finetune sst2 -m x -o y --max-steps 0", ["--max-steps is 0"]),
        ("finetune sst2 -m x -o y --batch-size 2.5", ["--batch-size is 2.5"]),
        ("finetune sst2 -m x -o y --schedule linaer", ["--schedule", "linear?"]),
        ("finetune sst2 -m x -o y --preset stabel", ["--preset", "stable?"]),
        ("finetune sst2 -m x -o y --tasks rte", ["--tasks", "sst2"]),
        ("finetune text-classification -m x -o y --config wrong.yaml", ["(wrong.yaml)", "--learning-rate?"]),
        ("finetune glue -m x -o y --dry-run", ["--dry-run"]),
        ("finetune glue -m x -o y --seeds 2 --seed 3", ["--seed is"]),
        ("finetune sst2 -m x -o y --seeds 2 --resume never", ["--resume never"]),
        ("finetune sst2 -m x -o y --folds 2 --resume never", ["--resume never"]),
        ("finetune sst2 -m x -o y --folds 2 --dry-run", ["--dry-run"]),
        ("finetune sst2 -m x -o y --folds 2 --seeds 2", ["--folds", "--seeds"]),
        ("finetune text-classification --train z --validation 10% -m x -o y --folds 2", ["--folds", "--validation"]),
        ("finetune glue -m x -o y --folds 2", ["--folds", "glue"]),
        ("eval x --output-dir wrong.yaml", ["--output-dir", "(wrong.yaml)"]),
        ("eval x --output-dir scores.csv", ["--output-dir", "(scores.csv)"]),
        ("eval x --recipe sst2 --corpus c", ["--corpus"]),
        ("predict x --output no/out.csv", ["--output", "(no)"]),
        ("predict x --format xml", ["--format is 'xml'"]),
        ("predict x wrong.yaml --split test", ["--split"]),
        ("predict x --data d", ["--data", "--split"]),
        ("predict x --top-k 0", ["--top-k"]),
        ("predict x --output a.csv --format jsonl", ["--output", "--format"]),
        ("recipes sst", ["'sst'", "sst2?"]),
        ("pretrain wrong.yaml --model-size tiny -o y", ["this is a file, not a corpus", "(wrong.yaml)"]),
        ("check", ["bertkit check my.csv"]),
        ("check no/such", ["(no/such)", "recipes"]),
        ("finetune no/such -m x -o y", ["(no/such)", "recipes"]),
        ("finetune ./wrong.yaml -m x -o y", ["--train ./wrong.yaml"]),
        ("recipes text-classification", ["'text-classification'"]),
        ("recipes --copy wrong.yaml", ["--copy", "(wrong.yaml)"]),
    ],
)
def test_mistakes_end_with_2_and_name_the_option(run_bertkit, tmp_path: Path, argv: str, values: list[str]) -> None:
    (tmp_path / "wrong.yaml").write_text("learning_rat: 1\n", encoding="utf-8")
    code, out, err = run_bertkit(*argv.split())
    assert (code, out) == (2, "")
    assert [line.partition(": ")[0] for line in err.splitlines()] in (["error", "hint"], ["error"])
    assert [value for value in values if value not in err] == [], err
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.yaml"]


def test_a_second_file_for_an_option_is_told(run_bertkit, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("text,label\n" + "good,a\nbad,b\n" * 9, encoding="utf-8")
    ran = run_bertkit("check", "--train", "a.csv", "--max-length", 8, "--max-length", 9, "--train", "b.csv")
    assert "b.csv" in ran.err.partition("times")[2]
    (told,) = [line for line in ran.err.splitlines() if "times" in line]
    assert told == "warning: --train is given 2 times; only the last one counts: to read several files, join them"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("check --train a.csv --validation 10% --validation 20%", "--validation is given 2 times; only the last one counts"),
        ("corpus build a.txt --output-dir x --output-dir y", "--output-dir is given 2 times; only the last one counts"),
        ("corpus build a.txt --include .md --include .rst", None),
        ("check --train a.csv --train b.csv --help", None),
        ("check --train a.csv --train b.csv -h", None),
    ],
)
def test_which_repeated_options_are_told(run_bertkit, argv: str, told: str | None) -> None:
    ran = run_bertkit(*argv.split())
    assert [line for line in ran.err.splitlines() if "times" in line] == ([f"warning: {told}"] if told else [])


def test_completion_writes_no_warning(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COMP_WORDS", "bertkit check --train a.csv --train b.csv --mo")
    monkeypatch.setenv("COMP_CWORD", "6")
    monkeypatch.setenv("_BERTKIT_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit):
        main([])
    found = capsys.readouterr()
    assert "--model" in found.out
    assert "times" not in found.err


@pytest.mark.parametrize(
    ("series", "named"), [("--folds", "cannot be combined with --validation"), ("--seeds", "but --seed is")]
)
def test_options_of_a_file_conflict_as_those_of_the_command_line(run_bertkit, tmp_path: Path, series: str, named: str) -> None:
    (tmp_path / "run.yaml").write_text("validation: dev.csv\nseed: 7\n", encoding="utf-8")
    data = ("--train", "z.csv", "--config", "run.yaml")
    ran = run_bertkit("finetune", "text-classification", *data, "-m", "x", "-o", "y", series, 2)
    assert (ran.code, named in ran.err) == (2, True), ran.err
    (tmp_path / "run.yaml").write_text("validation: null\nseed: null\n", encoding="utf-8")
    ran = run_bertkit("finetune", "text-classification", *data, "-m", "x", "-o", "y", series, 2)
    assert named not in ran.err


@pytest.mark.parametrize(
    ("error", "code", "value"),
    [
        (RuntimeError("first\nsecond"), 1, "error: RuntimeError: first second"),
        (OSError(errno.EIO, "I/O error", "file"), 5, "the disk or network"),
        (OSError(errno.ENOSPC, "No space left", "file"), 5, "(file)"),
        (torch.OutOfMemoryError("CUDA out of memory"), 5, "--micro-batch-tokens"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 5, "--micro-batch-tokens"),
        (KeyboardInterrupt(), 130, "stopped"),
        (KeyboardInterrupt("stopped after step 3"), 130, "stopped after step 3"),
    ],
)
def test_exit_codes_of_failures(run_bertkit, monkeypatch, error: BaseException, code: int, value: str) -> None:
    def broken() -> None:
        raise error

    monkeypatch.setattr("bertkit.tasks.catalog.list_recipes", broken)
    ran = run_bertkit("recipes")
    assert (ran.code, ran.out, value in ran.err, "Traceback" in ran.err) == (code, "", True, False), ran.err
    monkeypatch.setenv("RANK", "1")  # the main process knows nothing of it
    assert run_bertkit("recipes").err.startswith("error: rank 1: ") == (code != 130)
    monkeypatch.setenv("BERTKIT_DEBUG", "1")
    assert (", in broken" in run_bertkit("recipes").err) == (code != 130)


def test_a_device_that_is_missing(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "good.csv").write_text(GOOD, encoding="utf-8")
    how = ("-m", tiny_model_dir, "-o", "run", "--device", "mps" if torch.cuda.is_available() else "cuda")
    ran = run_bertkit("finetune", "text-classification", "--train", "good.csv", *how)
    assert (ran.code, ran.err.count("error: "), (tmp_path / "run").exists()) == (5, 1, False)


def test_a_process_other_than_the_main_one_is_silent(run_bertkit, run_dir: Path, tmp_path: Path, monkeypatch) -> None:
    assert run_bertkit("recipes").out
    monkeypatch.setenv("RANK", "1")
    for argv, code in (
        (("recipes",), 0),
        (("recipes", "sst"), 2),
        (("predict", run_dir, "--output", "out.csv"), 0),
        (("eval", run_dir, "--json"), 0),
    ):
        assert run_bertkit(*argv, stdin=b"good\n") == (code, "", "")
    assert not (tmp_path / "out.csv").exists()
    monkeypatch.delenv("RANK")
    assert run_bertkit("recipes").out, "silence must end with the command"


def test_the_script_ends_with_the_exit_code() -> None:
    command = [sys.executable, "-m", "bertkit", "recipes", "sst"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["error", "hint"]


# --- finetune: options in a file, and what is passed on --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.yaml", "train: my.csv\nlearning-rate: 1e-5\nmax_steps: 1\nlabels: [pos, neg]\nseed: 3\n"),
        ("run.json", '{"train": "my.csv", "learning_rate": 1e-5, "max-steps": 1, "labels": "pos,neg", "seed": 3}'),
    ],
)
def test_options_of_a_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    options, run = read_options(tmp_path / name, finetune, {"seed": 8})
    assert (set(options), run) == ({"train", "learning_rate", "max_steps", "labels", "seed"}, None)
    recipe = load_recipe("text-classification").overridden(options)
    assert (recipe.train, recipe.labels) == ("my.csv", ("pos", "neg"))
    assert (recipe.training.learning_rate, recipe.training.max_steps, recipe.training.seed) == (1e-5, 1, 3)


@pytest.mark.parametrize(
    ("saved", "typed", "left"),
    [
        ({"max_steps": 2, "seed": 1}, {"num_epochs": 1}, {"seed"}),
        ({"num_epochs": 2, "hours": 1}, {"max_steps": 1}, {"num_epochs"}),
        ({"max_steps": 9}, {"hours": 1}, set()),
        ({"max_length": 16, "phases": "16:90%,32:10%"}, {"max_length": 32}, {"max_length"}),
        ({"data": "a"}, {"train": "b.csv"}, set()),
        ({"train": "b.csv", "validation": "10%", "label": "kind"}, {"data": "a"}, {"label"}),
        ({"train": "b.csv", "validation": "10%"}, {"train": "c.csv"}, {"train", "validation"}),
        ({"max_steps": 2, "train": "b.csv"}, {"learning_rate": 1}, {"max_steps", "train"}),
    ],
)
def test_an_option_replaces_those_that_it_excludes(
    tmp_path: Path, saved, typed, left: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "options.json").write_text(json.dumps(saved), encoding="utf-8")
    assert set(read_options(tmp_path / "options.json", finetune, typed).options) == left
    flags = ["--" + name.replace("_", "-") for name in saved if name not in left]
    told = f"options.json: {', '.join(flags)} not used, replaced by the command line\n" if flags else ""
    assert capsys.readouterr().err.endswith(told)


@pytest.mark.parametrize(
    ("name", "content", "row", "told"),
    [
        ("run.yaml", "seed: 1\na: [1\nb: 2\n", ":3", ""),
        ("run.yaml", "- 1\n", "", ""),
        ("run.yaml", "seed: &a 1\nmax_steps: *a\n", ":2", ""),  # a few such lines can stand for gigabytes
        ("run.yaml", "!!map [a]", ":1", ""),
        ("run.yaml", "seed: 1\nmax_steps: 1\nseed: 2\n", ":3", ""),  # which of the two?
        ("run.json", '{"seed": 1, "seed": 2}', "", "seed occurs twice"),
        ("run.yaml", "learning-rate: 1\nlearning_rate: 2\n", "", "learning_rate occurs twice, also as learning-rate"),
        ("run.json", '{"learning-rate": 1, "learning_rate": 2}', "", "learning_rate occurs twice, also as learning-rate"),
        ("run.yaml", "seed: 1\nmax_steps: !!int ''\n", ":2", "'' is not a whole number"),
        ("run.yaml", "max_steps: !!float '-'\n", ":1", "'-' is not a number"),
        ("run.yaml", "fresh_head: !!bool maybe\n", ":1", "'maybe' is not true or false"),
        ("run.yaml", "metric: !!timestamp foo\n", ":1", "'foo' is not a date"),
        ("run.yaml", f"seed: {':'.join('1' * 300)}.0\n", ":1", ""),
        ("run.yaml", "seed: 1\nrecipe:\n  a: 1\n  1: 2\n", ":4", "option names must be text: write '1' in quotes"),
        ("run.yaml", "[a]: 1\n", ":1", "option names must be text, not a list or mapping"),
        ("run.yaml", "seed: 1\non: 2\n", ":2", "write 'on' in quotes"),  # YAML's true
        ("run.yaml", "caf\xe9: 1\n", "", ""),
        ("run.yaml", "output-dir: run\n", "", ""),
        ("run.json", "{'a': 1}", "", ""),
    ],
)
def test_a_file_of_options_that_cannot_be_used(tmp_path: Path, name: str, content: str, row: str, told: str) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError) as error:
        read_options(tmp_path / name, finetune, {})
    assert (error.value.where, told in error.value.what) == (f"{tmp_path / name}{row}", True), error.value.what


def test_pretrain_refuses_the_options_of_a_fine_tuning_run(run_bertkit, run_dir: Path) -> None:
    ran = run_bertkit("pretrain", "corpus", "--config", run_dir / "run.json", "-o", "out")
    assert (ran.code, "this is a fine-tuning run, not a pre-training run" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("part", ["recipe", "model"])
def test_a_run_json_without_a_name_is_no_traceback(run_bertkit, run_dir: Path, tmp_path: Path, part: str) -> None:
    values = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    del values[part]["name"]
    (tmp_path / "run.json").write_text(json.dumps(values), encoding="utf-8")
    ran = run_bertkit("finetune", "--config", "run.json", "-o", "out")
    assert (ran.code, f"the run.json lacks {part}.name" in ran.err) == (2, True), ran.err


TYPED = {"question_column": "q", "null_threshold": 1.5}


@pytest.mark.parametrize(
    ("family", "saved", "options"),
    [
        (QuestionAnswering, {**TYPED, "question": None, "threshold_tuned": True}, {"question": "q"}),
        (QuestionAnswering, TYPED, {"question": "q", "null_threshold": 1.5}),
        (TextClassification, {"class_weights": ["0.5", "2"], "weights_balanced": True}, {"class_weights": ["balanced"]}),
        (TextClassification, {"class_weights": ["0.5", "2"]}, {"class_weights": ["0.5", "2"]}),
        (TextClassification, {"labels": ["a", "b"], "labels_derived": True, "thresholds": [0.5]}, {}),
    ],
)
def test_values_that_bertkit_0_1_resolved_are_not_asked_for_again(family, saved: dict, options: dict) -> None:
    run = {"recipe": {"family": family.family, **saved}, "training": {"seed": 3, "dropout": None}}
    assert options_of_run(run) == {**options, "seed": 3}


@pytest.mark.parametrize(("dtype", "precision"), [("bfloat16", "bf16"), ("float32", "fp32"), ("float16", "fp16")])
def test_a_repeated_run_computes_in_the_same_precision(dtype: str, precision: str) -> None:
    """On another machine, "auto" might choose another."""
    run = {"recipe": {"family": "text-classification"}, "training": {"precision": "auto"}, "dtype": dtype}
    assert options_of_run(run) == {"precision": precision}
    assert options_of_run(run | {"training": {"precision": "tf32"}}) == {"precision": "tf32"}


@pytest.mark.parametrize(
    ("typed", "model", "fresh_head"),
    [
        ("", "base", True),
        ("-m base", "base", True),
        ("-m other", "other", False),  # which keeps its own head
        ("-m other --fresh-head", "other", True),
        ("-m other --ignore_mismatched_sizes true", "other", None),
    ],
)
def test_a_run_gives_model_recipe_and_options(
    run_bertkit, run_dir: Path, tmp_path: Path, monkeypatch, typed: str, model: str, fresh_head: bool | None
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("bertkit.runs.finetuning.finetune.finetune", lambda *values, **named: given.extend([*values, named]))
    run = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    run["model"] |= {"name": "base", "fresh_head": True}
    (tmp_path / "run.json").write_text(json.dumps(run), encoding="utf-8")
    argv = ("--config", "run.json", "-o", "again", "--seed", 7, "--resume", "never", "--overwrite", *typed.split())
    assert run_bertkit("finetune", *argv).code == 0
    request, folder, named = given
    recipe = request.recipe
    assert (recipe.family, recipe.train, recipe.training.max_steps, recipe.training.seed) == (
        *("text-classification", run["recipe"]["train"], 1, 7),
    )
    assert (request.name, request.model, request.fresh_head) == ("text-classification", model, fresh_head)
    assert (folder, named) == (Path("again"), {"resume": "never", "overwrite": True, "baselines": True})


def test_a_dry_run_measures_and_writes_nothing(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "good.csv").write_text(GOOD + GOOD.partition("\n")[2] * 9, encoding="utf-8")  # 40 rows
    data = dict.fromkeys(("train", "validation"), str(tmp_path / "good.csv"))
    recipe = load_recipe("text-classification").overridden({**data, "batch_size": 8, "num_epochs": 5, "max_length": 16})
    measured = try_finetuning(Request(recipe, "text-classification", str(tiny_model_dir)))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tiny_model_dir)
    assert measured["parameters"] == sum(p.numel() for p in theirs.parameters())
    assert (measured["steps"], 50 < measured["peak memory, MiB"] < 20_000, measured["tokens per second"] > 0) == (
        25,
        True,
        True,
    )
    files = ("--train", "good.csv", "--validation", "good.csv", "--max-length", 16, "-o", "run")
    assert run_bertkit("finetune", "text-classification", *files, "-m", tiny_model_dir, "--dry-run").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["good.csv"]


# --- recipes ---------------------------------------------------------------------------------------------------------------


def test_recipes_are_listed_and_none_is_executed(run_bertkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = '"""{0}: what is it?\n\nMore."""\nfrom bertkit.tasks import TextClassification\n'
    for name in ("zeta", "alpha", "_template"):
        text = head.format(name.title()) + "recipe = TextClassification()\nraise SystemExit\n"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr("bertkit.tasks.catalog.recipe_folder", lambda: tmp_path)
    code, out, err = run_bertkit("recipes")
    assert (code, err) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    assert rows == [[name, "text-classification", f"{name.title()}: what is it?"] for name in ("alpha", "zeta")]


def test_a_recipe_is_printed_or_copied_as_it_is(run_bertkit, tmp_path: Path) -> None:
    source = (Path(__file__).parents[2] / "recipes" / "mnli.py").read_text(encoding="utf-8")
    assert run_bertkit("recipes", "mnli") == (0, source, "")
    assert run_bertkit("recipes", "mrpc", "--copy", "mine").code == 0
    assert load_recipe(str(tmp_path / "mine" / "mrpc.py")) == load_recipe("mrpc")
    ran = run_bertkit("recipes", "mrpc", "--copy", "mine")
    assert (ran.code, "(mine/mrpc.py)" in ran.err) == (2, True)
    assert run_bertkit("recipes", "--copy", ".").code == 0
    assert load_recipe(str(tmp_path / "template.py")).family == "text-classification"


def test_a_shell_completes_the_names_of_recipes_and_families() -> None:
    assert (recipe_names("mr"), recipe_names("text")) == (["mrpc"], ["text-classification"])
    assert len(recipe_names("")) > 30


# --- eval ------------------------------------------------------------------------------------------------------------------


def test_eval_writes_json_alone_to_stdout(run_bertkit, run_dir: Path) -> None:
    environment = dict(os.environ)
    code, out, err = run_bertkit("eval", run_dir, "--json")
    scores = json.loads(out)
    assert (code, list(scores)) == (0, ["validation/accuracy", "validation/loss"])
    assert f"{scores['validation/loss']:.4f}" in err
    assert run_bertkit("eval", run_dir) == (0, "", err)
    assert dict(os.environ) == environment


def test_published_scores_are_of_the_model_that_was_trained(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    (tmp_path / "bert-base-uncased").symlink_to(make_model_dir("BertModel"))
    (tmp_path / "SST-2").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\ngood movie\t1\nbad movie\t0\n", encoding="utf-8")
    how = ("--data", "SST-2", "-m", "bert-base-uncased", "-o", "run", "--max-steps", 1, "--max-length", 16)
    for ran in (run_bertkit("finetune", "sst2", *how), run_bertkit("eval", "run")):
        assert (ran.code, "0.9270" in ran.err) == (0, True), ran.err
    assert "0.9270" not in run_bertkit("eval", "run", "--validation", "SST-2/dev.tsv").err


def test_eval_warns_of_rows_that_were_or_may_have_been_trained_on(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    rows = [f"{label},{word} {thing}\n" for word, label in (("good", 1), ("bad", 0)) for thing in ("movie", "book", "story")]
    for name, chosen in (("train", rows[::2]), ("dev", rows[1::2]), ("copy", rows[::2])):
        (tmp_path / f"{name}.csv").write_text("label,text\n" + "".join(chosen), encoding="utf-8")
    how = ("--train", "train.csv", "--validation", "dev.csv", "-m", make_model_dir("BertModel"), "--max-steps", 1, "-o", "run")
    assert run_bertkit("finetune", "text-classification", *how, "--max-length", 16).code == 0

    def warned(*options: str) -> list[str]:
        ran = run_bertkit("eval", "run", *options)
        assert ran.code == 0, ran.err
        return [words for words in ("was trained on these rows", "may have been trained on some of these") if words in ran.err]

    assert warned() == []
    assert warned("--validation", "copy.csv") == warned("--split", "train") == ["was trained on these rows"]
    with open(tmp_path / "dev.csv", "a", encoding="utf-8") as file:
        file.write("1,good play\n")
    assert warned() == ["may have been trained on some of these"]
    with open(tmp_path / "train.csv", "a", encoding="utf-8") as file:
        file.write("1,good play\n")
    assert warned("--test", "train.csv", "--split", "test") == ["may have been trained on some of these"]


# --- predict ---------------------------------------------------------------------------------------------------------------

TEXTS = [
    "good movie",
    "",
    "bad book, \"quoted\" 'it'",
    "[/INST] [bold]not markup[/]",
    "ünïcödé 電影 \U0001f600 \x07bell",
    "a very " + "long " * 60 + "text",
    "good movie",
    "   ",
    "NA",
    "x\u2028y\u0085z",
]


@pytest.fixture(scope="module")
def expected(run_dir: Path) -> list[tuple[str, float]]:
    """The label and probability of each of TEXTS, by transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(run_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(run_dir)
    found = []
    for text in TEXTS:
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=32)).logits[0]
        found.append((model.config.id2label[int(logits.argmax())], float(logits.softmax(-1).max())))
    assert len({label for label, _ in found}) == 2, "a constant prediction would hide another order"
    return found


def as_csv(rows: list[dict]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


FORMATS = {
    "txt": "".join(f"{text}\n" for text in TEXTS),
    "jsonl": "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)),
    "json": json.dumps([{"text": text, "label": "unheard of"} for text in TEXTS]),
    "csv": as_csv([{"id": i, "text": text} for i, text in enumerate(TEXTS)]),
    "tsv": "id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(TEXTS)),
    "bare.tsv": "".join(f"{i}\t{text}\n" for i, text in enumerate(TEXTS)),
    "named.csv": as_csv([{"text": "no", "utterance": text} for text in TEXTS]),
}


def read_predictions(text: str, ending: str) -> list[dict[str, str]]:
    if ending == "jsonl":
        return [json.loads(line) for line in text.split("\n")[:-1]]
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter={"csv": ",", "tsv": "\t"}[ending]))


@pytest.mark.parametrize(
    ("content", "argv", "output"),
    [
        ("txt", "", "jsonl"),
        ("txt", "new.txt --output out.jsonl", "out.jsonl"),
        ("jsonl", "-", "jsonl"),
        ("jsonl", "new.jsonl --output out.csv", "out.csv"),
        ("json", "new.json --format csv", "csv"),
        ("csv", "- --separator ,", "jsonl"),
        ("csv", "new.csv --output out.tsv", "out.tsv"),
        ("tsv", "new.tsv --format tsv", "tsv"),
        ("bare.tsv", "new.tsv --columns id,text", "jsonl"),
        ("named.csv", "new.csv --text utterance", "jsonl"),
    ],
)
def test_one_prediction_per_row_in_order(
    run_bertkit, run_dir, expected, tmp_path, content: str, argv: str, output: str
) -> None:
    data = FORMATS[content].encode()
    (tmp_path / f"new.{content.rpartition('.')[2]}").write_bytes(data)
    code, out, err = run_bertkit("predict", run_dir, *argv.split(), stdin=data.removesuffix(b"\n"))
    assert code == 0
    assert f"{len(TEXTS)} rows, 1 longer than 32 truncated, 2 without text" in err.splitlines()
    if "." in output:
        assert (out, err.endswith(f" to {output}\n")) == ("", True)
        out = (tmp_path / output).read_bytes().decode()
    rows = read_predictions(out, output.rpartition(".")[2])
    assert [row["text"] for row in rows] == TEXTS
    assert [row["label"] for row in rows] == [label for label, _ in expected]
    assert [float(row["probability"]) for row in rows] == pytest.approx([p for _, p in expected], abs=1e-5)


def test_tabs_and_line_ends_do_not_break_a_tsv(run_bertkit, run_dir) -> None:
    row = json.dumps({"text": 'a\tgood "movie"\nor two'}).encode()
    _, out, _ = run_bertkit("predict", run_dir, "--format", "tsv", stdin=row)
    assert [line.split("\t")[1] for line in out.splitlines()] == ["text", 'a good "movie" or two']

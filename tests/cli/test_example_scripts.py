"""The options of transformers' example scripts: what each means here, their READMEs' commands, and a run that equals ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit import progress
from bertkit.cli.example_scripts import _TABLE, translate
from bertkit.cli.options import recipe_options
from bertkit.errors import UsageError

RENAMED = dict(
    pair.split(":")
    for pair in """
    model_name_or_path:model output_dir:output-dir max_seq_length:max-length num_train_epochs:num-epochs max_steps:max-steps
    learning_rate:learning-rate lr_scheduler_type:schedule warmup_ratio:warmup-ratio weight_decay:weight-decay
    adam_beta1:adam-beta1 adam_beta2:adam-beta2 adam_epsilon:adam-epsilon max_grad_norm:max-grad-norm eval_steps:eval-steps
    label_smoothing_factor:label-smoothing logging_steps:logging-steps max_train_samples:max-train-samples train_file:train
    validation_file:validation test_file:test resume_from_checkpoint:resume save_steps:save-steps max_length:max-length
    save_total_limit:keep-checkpoints max_train_steps:max-steps metric_name:metric
    doc_stride:doc-stride max_answer_length:max-answer-length n_best_size:n-best-size report_to:track
    null_score_diff_threshold:null-threshold context_column:context question_column:question answer_column:answers
    text_column_name:text text_column_names:text label_column_name:label
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
    assert {name for name, theirs in _TABLE.items() if theirs.ours} | {"lr_scheduler_type"} == set(RENAMED)
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
            "mrpc --warmup-ratio 0.1 --schedule constant --warmup-ratio 0",  # the last one counts
        ),
        (
            "mrpc --warmup_ratio 0.1 --lr_scheduler_type constant",
            "mrpc --warmup-ratio 0.1 --schedule constant --warmup-ratio 0",
        ),
        # a file of one's own
        (
            "--model_name_or_path m --train_file my.csv --per_device_eval_batch_size 8 --do_train",
            "--model m --train my.csv",
        ),
        ("ner --train_file my.csv", "ner --train my.csv"),
        # switches, which may have a value
        ("rte --overwrite_output_dir", "rte --overwrite"),
        ("rte --overwrite_output_dir True -o run", "rte --overwrite -o run"),
        ("rte --ignore_mismatched_sizes true", "rte --ignore-mismatched-sizes"),
        ("rte --bf16", "rte --precision bf16"),
        ("rte --bf16=True", "rte --precision bf16"),
        ("rte --fp16 --tf32 false", "rte --precision fp16"),
        ("rte --tf32 --torch_compile", "rte --precision tf32 --compile"),
        ("rte --bf16=false", "rte"),
        ("rte --bf16 False --seed 1", "rte --seed 1"),
        ("rte --no_cuda", "rte --device cpu"),
        ("rte --use_cpu", "rte --device cpu"),
        ("rte --pad_to_max_length false --overwrite_cache --do_train --do_eval", "rte"),
        ("rte --report_to none", "rte"),
        ("rte --report_to=tensorboard", "rte --track tensorboard"),
        # the task is the recipe
        ("--task_name mrpc", "mrpc"),
        ("--task_name=STS-B", "stsb"),
        ("--seed 1 --task_name SST-2", "sst2 --seed 1"),
        ("mrpc --task_name MRPC --seed 1", "mrpc --seed 1"),
        # the batch is that of a whole step
        ("cola --per_device_train_batch_size 8", "cola --batch-size 8"),
        ("cola --per_device_train_batch_size 8 --gradient_accumulation_steps 4", "cola --batch-size 32"),
        # other words stay as they are
        *[("mrpc -m max_steps --max-length 8 --text=max_steps --unknown=1",) * 2],
        # underscores in ours
        (
            "mrpc --batch_size 8 --class_weights=a_b:1 --fresh_head --no_adam_bias_correction",
            "mrpc --batch-size 8 --class-weights=a_b:1 --fresh-head --no-adam-bias-correction",
        ),
        ("mrpc --warmup_steps 0", "mrpc --warmup-ratio 0"),
        ("mrpc --num_warmup_steps=0", "mrpc --warmup-ratio 0"),
        ("mrpc --warmup_ratio 0.2 --warmup_steps 0", "mrpc --warmup-ratio 0.2"),
        ("mrpc --warmup_steps 0 --warmup-ratio=0.2", "mrpc --warmup-ratio=0.2"),
        ("mrpc --max_steps -1", "mrpc"),
        ("mrpc --max_steps=-1 --max_steps -2", "mrpc --max-steps -2"),
        ("mrpc --gradient_accumulation_steps 1", "mrpc"),
        # the columns of each family
        ("conll2003 --text_column_name words --label_column_name=ner", "conll2003 --tokens words --tags ner"),
        ("run_ner.py --text_column_name words", "token-classification --tokens words"),
        ("mrpc --text_column_names a,b", "mrpc --text a,b"),
        (
            "./x/run_classification.py --label_column_name stars --do_regression",
            "text-classification --label stars --regression",
        ),
        ("run_qa.py --version_2_with_negative", "question-answering --unanswerable"),
        # the recipe of a data set, or of its task
        ("run_ner_no_trainer.py --dataset_name eriktks/conll2003 --task_name pos", "conll2003 --tags pos_tags"),
        ("run_glue.py --dataset_name glue --dataset_config_name stsb", "stsb"),
        ("--dataset_name imdb --dataset_config_name plain_text", "imdb"),
        ("rte --optim adamw_torch --report_to none --fp16 false", "rte"),
    ],
)
def test_options_are_translated(typed: str, ours: str) -> None:
    assert translate(["finetune", *typed.split()]) == ["finetune", *ours.split()]


@pytest.mark.parametrize(
    ("typed", "what", "hint"),
    [
        ("mrpc --fp16_full_eval", "unknown option --fp16_full_eval: neither bertkit nor", "--help"),
        ("mrpc --unknown_flag=1", "unknown option --unknown_flag: ", "--help"),
        ("run_glue.py --max_seq_lenght 64", "unknown option --max_seq_lenght: ", "did you mean --max_seq_length?"),
        ("mrpc --per_device_train_batchsize=8", "unknown option ", "did you mean --per_device_train_batch_size?"),
        ("mrpc --bacth_size 8", "unknown option ", "did you mean --batch_size?"),
        ("mrpc --do_predict", "--do_predict ", "bertkit predict RUN --split test"),
        ("mrpc --warmup_steps 100", "--warmup_steps ", "--warmup-ratio"),
        (
            "mrpc --do_predict --warmup_steps 100 --max_eval_samples 5 --seed 1 --max_predict_samples 5",
            "--do_predict, --max_eval_samples, --max_predict_samples, --warmup_steps are options of transformers'",
            "give a smaller file: --validation FILE; --warmup_steps: --warmup-ratio is the share of all steps, such as 0.1",
        ),
        ("mrpc --do_predict false --optim adafactor", "--optim is an option of transformers'", "see --optimizer"),
        ("mrpc --optim adafactor", "--optim ", "--optimizer"),
        ("mrpc --push_to_hub", "--push_to_hub ", "upload"),
        ("run_classification.py --text_column_delimiter x", "--text_column_delimiter ", "--text-pair B"),
        ("run_qa.py --text_column_name x", "--text_column_name ", "question-answering"),
        ("run_xnli.py --language de", "run_xnli.py ", "finetune xnli"),
        ("run_seq2seq_qa.py", "run_seq2seq_qa.py ", "run_qa.py"),
        (
            "--dataset_name amazon_reviews_multi --dataset_config_name en",
            "amazon_reviews_multi --dataset_config_name en",
            "--train",
        ),
        ("rte --task_name mrpc", "two recipes are named: rte and mrpc", "leave out one"),
        ("run_glue.py mrpc", "two recipes are named: mrpc and text-classification", "leave out one"),
        ("--dataset_name squad --dataset_config_name other", "--dataset_name squad", "bertkit recipes"),
        ("--dataset_name ../../x", "--dataset_name ../../x", "bertkit recipes"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_the_way_to_say_it_here(typed: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        translate(["finetune", *typed.split()])
    assert what in error.value.what
    assert hint in str(error.value.hint)


@pytest.mark.parametrize(
    ("typed", "ignored"),
    [
        (
            "--run_name x --group_by_length --pad_to_max_length true --trust_remote_code false --do_train",
            "--run_name, --group_by_length, --pad_to_max_length",
        ),
        (
            "--greater_is_better true --data_seed 1 --eval_accumulation_steps=2 --remove_unused_columns false --local_rank -1",
            "--greater_is_better, --data_seed, --eval_accumulation_steps, --remove_unused_columns, --local_rank",
        ),
        (
            "--checkpointing_steps 5 --ddp_find_unused_parameters",
            "--checkpointing_steps, --ddp_find_unused_parameters; --eval-steps and --save-steps set when to evaluate and save",
        ),
        ("--eval_strategy no", "--eval_strategy; --eval-steps and --save-steps set when to evaluate and save"),
        ("--do_train --do_eval --bf16 --load_best_model_at_end true --use_fast_tokenizer", None),
    ],
)
def test_what_has_no_effect_is_named(typed: str, ignored: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    translate(["finetune", "rte", *typed.split()])
    assert capsys.readouterr().err == ("" if ignored is None else f"ignored: {ignored}\n")


def test_what_is_always_done_cannot_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert translate(["finetune", "rte", "--do_eval", "false"]) == ["finetune", "rte"]
    assert capsys.readouterr().err == "ignored: --do_eval\n"


def test_other_commands_stay_as_they_are(run_bertkit) -> None:
    ran = run_bertkit("eval", "run", "--do_train", "false")
    assert (ran.code, "No such option: --do_train" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(("processes", "batch_size"), [("", 8), ("1", 8), ("3", 24)])
def test_the_batch_is_multiplied_by_the_processes(monkeypatch, processes: str, batch_size: int) -> None:
    monkeypatch.setenv("WORLD_SIZE", processes)
    typed = ["finetune", "cola", "--gradient_accumulation_steps=2", "--per_device_train_batch_size=4"]
    assert translate(typed) == ["finetune", "cola", "--batch-size", str(batch_size)]


@pytest.mark.parametrize(
    ("typed", "processes", "value"),
    [
        ("--do_train false", "1", "--do_train"),
        ("--do_eval", "1", "only evaluates"),
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
        return "not loaded from the model: classifier.weight, classifier.bias" in ran.err

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


# The commands of the READMEs of transformers' examples/pytorch/text-classification, token-classification and
# question-answering, without the model, data and output, which a test replaces; and the end of what bertkit says.
_GLUE = "--max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 --num_train_epochs 3"
_QA = (
    "--dataset_name squad --do_train --do_eval --learning_rate 3e-5 --num_train_epochs 2 --max_seq_length 384 --doc_stride 128"
)
_REVIEWS = "--shuffle_train_dataset --metric_name accuracy --label_column_name stars --do_train --do_eval --max_seq_length 512"
_TOPICS = "--shuffle_train_dataset --metric_name f1 --text_column_name text --label_column_name topics --do_train --do_eval"
READMES = {
    f"run_glue.py --task_name mrpc --do_train --do_eval {_GLUE}": "",
    f"run_glue.py --task_name mrpc --do_train --do_eval {_GLUE} --fp16": "--precision fp16 needs an NVIDIA or AMD GPU",
    f"run_glue.py --dataset_name imdb --do_train --do_predict {_GLUE}": "predict RUN --split test",
    f"run_glue.py --dataset_name imdb --do_train {_GLUE}": "",
    f"run_glue_no_trainer.py --task_name mrpc {_GLUE.replace('max_seq_', 'max_')}": "",
    f"run_classification.py --dataset_name amazon_reviews_multi --dataset_config_name en {_REVIEWS}": "--train FILE",
    f"run_classification.py --text_column_name title,body,category --text_column_delimiter \\n {_REVIEWS}": "--text-pair B",
    f"run_classification.py --dataset_name reuters21578 --remove_splits unused {_TOPICS}": "--train FILE",
    "run_xnli.py --language de --train_language en --do_train --do_eval --save_steps -1": "--data FOLDER",
    "run_ner.py --dataset_name tomaarsen/conll2003 --do_train --do_eval": "",
    "run_ner.py --do_train --do_eval": "",
    f"run_ner_no_trainer.py --dataset_name tomaarsen/conll2003 --task_name ner {_GLUE.replace('max_seq_', 'max_')}": "",
    f"run_qa.py --per_device_train_batch_size 12 {_QA}": "",
    f"run_qa_beam_search.py {_QA} --save_steps 5000": "run_qa.py",
    f"run_seq2seq_qa.py --context_column context {_QA}": "run_qa.py",
    "run_qa_no_trainer.py --dataset_name squad --max_seq_length 384 --doc_stride 128": "",
}
_ROWS = {
    "mrpc": {"sentence1": "good movie", "sentence2": "bad movie", "label": "0"},
    "imdb": {"text": "good movie", "label": "neg"},
    "run_ner.py": {"tokens": ["good", "movie"], "ner_tags": ["O", "B-PER"]},
    "conll2003": {"tokens": ["good", "movie"], "ner_tags": ["O", "B-PER"]},
    "squad": {"question": "what", "context": "good movie", "answers": {"text": ["movie"], "answer_start": [5]}},
}
_OTHERS = {"mrpc": {"label": "1"}, "imdb": {"label": "pos"}}


@pytest.mark.e2e
@pytest.mark.parametrize("command", READMES)
def test_the_commands_of_their_readmes_run_or_say_how(run_bertkit, make_model_dir, tmp_path: Path, command: str) -> None:
    model = make_model_dir("BertModel", max_position_embeddings=512)
    name = next((name for name in reversed(_ROWS) if name in command), "run_ner.py")
    row = _ROWS[name]
    rows = [row, row | _OTHERS.get(name, {})] * 6
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    files = "--train_file rows.jsonl --validation_file rows.jsonl --output_dir out --max_steps 1 --use_cpu"
    ran = run_bertkit("finetune", *command.split(), "--model_name_or_path", model, *files.split())
    if said := READMES[command]:
        assert (ran.code, len(ran.err.splitlines()), said in ran.err) == (2, 2, True), ran.err
        assert not (tmp_path / "out").exists()
    else:
        assert ran.code == 0, ran.err
        run = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
        families = {"glue": "text-classification", "ner": "token-classification", "qa": "question-answering"}
        assert run["recipe"]["family"] == families[command.split(".")[0].removesuffix("_no_trainer").removeprefix("run_")]
        assert run["training"]["max_length"] == next((int(n) for n in ("128", "384") if f"length {n}" in command), 128)

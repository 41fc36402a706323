"""`bertkit finetune` accepts the options of transformers' example scripts, such as run_glue.py, with their meaning.

They are translated before parsing, by one table: for example, --per_device_train_batch_size is per process, our --batch-size
per step. A first word such as run_ner.py names the family.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertkit import progress
from bertkit.cli.finetune import finetune
from bertkit.errors import UsageError
from bertkit.tasks.catalog import load_builtin

_CLASSES, _TAGS, _ANSWERS = "text-classification", "token-classification", "question-answering"
# Their scripts, also as ..._no_trainer.py: the family, or what to do instead.
_SCRIPTS = {
    "run_glue": _CLASSES,
    "run_classification": _CLASSES,
    "run_ner": _TAGS,
    "run_qa": _ANSWERS,
    "run_swag": "multiple-choice",
}
_OTHER_SCRIPTS = {
    "run_xnli": "bertkit finetune xnli; give its data with --data FOLDER",
    "run_qa_beam_search": "it trains XLNet; for BERT: bertkit finetune run_qa.py",
    "run_seq2seq_qa": "it trains models such as T5; for BERT: bertkit finetune run_qa.py",
    "run_mlm": "bertkit pretrain --objective mlm",
    "run_clm": "bertkit pretrain --objective clm",
}


@dataclass(frozen=True)
class _Theirs:
    """The translation of one of their options.

    ours: our option that takes the same value; for some, by family. words: our arguments, by the option's value. refusal: how
    to express it here instead; with words, for all other values. A switch may have a value, true or false, and only true
    counts. If none of these is set, the option has no effect here.
    note: how the meaning differs.
    """

    ours: str | Mapping[str, str] = ""
    words: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""
    is_switch: bool = False
    note: str = ""


def _switch(words: str = "", refusal: str = "") -> _Theirs:
    return _Theirs(words={"true": words}, refusal=refusal, is_switch=True)


def _refused(hint: str) -> _Theirs:
    return _Theirs(refusal=hint)


_SAME = """
    output_dir learning_rate weight_decay warmup_ratio adam_beta1 adam_beta2 adam_epsilon max_grad_norm eval_steps
    save_steps logging_steps max_train_samples max_length max_answer_length n_best_size
""".split()
# --eval-steps and --save-steps decide when.
_WITHOUT_EFFECT = """
    save_strategy evaluation_strategy eval_strategy logging_strategy logging_dir run_name cache_dir
    dataloader_num_workers preprocessing_num_workers checkpointing_steps remove_splits remove_columns per_device_eval_batch_size
    eval_accumulation_steps data_seed log_level local_rank ddp_backend
""".split()
_ALWAYS_DONE = ("do_train", "do_eval", "load_best_model_at_end", "use_fast_tokenizer")
_SWITCHES_WITHOUT_EFFECT = """
    overwrite_cache pad_to_max_length disable_tqdm
    shuffle_train_dataset return_entity_level_metrics group_by_length logging_first_step trust_remote_code
""".split()
# Their defaults are true, or unknown: either value is noted.
_NOTED_SWITCHES = """
    greater_is_better remove_unused_columns ddp_find_unused_parameters dataloader_pin_memory save_safetensors
""".split()
_OWN_FOLDER = "--model names a folder or hub id with its own configuration and tokenizer"
_WHOLE = "splits are evaluated whole; for fewer rows give a smaller file: --validation FILE"
_JOINED = "--text A,B joins columns with a space; two texts are a pair: --text A --text-pair B"
_TO_SCORE = "bertkit eval scores a model"
_UPLOAD = "upload the run afterwards: bertkit push RUN OWNER/NAME"
_TABLE: dict[str, _Theirs] = {
    **{name: _Theirs(name.replace("_", "-")) for name in _SAME},
    **{name: _Theirs() for name in _WITHOUT_EFFECT},
    **{name: _switch() for name in (*_ALWAYS_DONE, *_SWITCHES_WITHOUT_EFFECT, *_NOTED_SWITCHES)},
    "model_name_or_path": _Theirs("model"),
    "max_seq_length": _Theirs("max-length"),
    "num_train_epochs": _Theirs("num-epochs"),
    "doc_stride": _Theirs(
        "doc-stride", note="the step from one window to the next, as in the paper's code; in transformers it is their overlap"
    ),
    "train_file": _Theirs("train"),
    "validation_file": _Theirs("validation"),
    "test_file": _Theirs("test"),
    "resume_from_checkpoint": _Theirs("resume"),
    "max_steps": _Theirs("max-steps", {"-1": ""}),  # -1 is their default
    "max_train_steps": _Theirs("max-steps"),
    "label_smoothing_factor": _Theirs("label-smoothing"),
    "save_total_limit": _Theirs("keep-checkpoints"),
    "metric_name": _Theirs("metric"),
    "null_score_diff_threshold": _Theirs("null-threshold"),
    "context_column": _Theirs("context"),
    "question_column": _Theirs("question"),
    "answer_column": _Theirs("answers"),
    "text_column_name": _Theirs({_CLASSES: "text", _TAGS: "tokens"}),
    "text_column_names": _Theirs({_CLASSES: "text"}),
    "label_column_name": _Theirs({_CLASSES: "label", _TAGS: "tags"}),
    "overwrite_output_dir": _switch("--overwrite"),
    "ignore_mismatched_sizes": _switch("--ignore-mismatched-sizes"),
    "bf16": _switch("--precision bf16"),
    "no_cuda": _switch("--device cpu"),
    "use_cpu": _switch("--device cpu"),
    "do_regression": _switch("--regression"),
    "version_2_with_negative": _switch("--unanswerable"),
    "report_to": _Theirs("track", {"none": ""}),
    "optim": _Theirs(words=dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), ""), refusal="see --optimizer"),
    "fp16": _switch("--precision fp16"),
    "tf32": _switch("--precision tf32"),
    "torch_compile": _switch("--compile"),
    "do_predict": _switch(refusal="bertkit predict RUN --split test, after training"),
    "max_eval_samples": _refused(_WHOLE),
    "max_predict_samples": _refused(_WHOLE),
    "text_column_delimiter": _refused(_JOINED),
    "label_all_tokens": _switch(refusal="a word has one tag, read at its first piece"),
    "metric_for_best_model": _refused("the first metric decides, on the first evaluation split: --metric NAME"),
    "gradient_checkpointing": _switch("--activation-checkpointing"),
    "config_name": _refused(_OWN_FOLDER),
    "tokenizer_name": _refused(_OWN_FOLDER),
    "model_revision": _refused("download that revision, and give its folder: --model FOLDER"),
    "token": _refused("the hub's library reads the token from HF_TOKEN"),
    "push_to_hub": _switch(refusal=_UPLOAD),
    "hub_model_id": _refused(_UPLOAD),
    "hub_token": _refused(_UPLOAD),
    "with_tracking": _switch(refusal="--track tensorboard, or another dashboard"),
}
# Options that are translated together.
_BATCH, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
_TASK, _DATASET, _CONFIG, _SCHEDULE = "task_name", "dataset_name", "dataset_config_name", "lr_scheduler_type"
_WARMUP_STEPS = ("warmup_steps", "num_warmup_steps")
_TOGETHER = (_BATCH, _ACCUMULATION, _TASK, _DATASET, _CONFIG, _SCHEDULE, *_WARMUP_STEPS)
_SCHEDULES = {"constant_with_warmup": "constant"}  # theirs -> ours; their "constant" never warms up, whatever else is said
_TAG_TASKS = {"ner": "", "pos": "--tags pos_tags", "chunk": "--tags chunk_tags"}  # the task_name of run_ner_no_trainer.py
_BOOLEANS = ("true", "false")


def translate(argv: Sequence[str]) -> list[str]:
    """The arguments of `bertkit finetune`, itself the first, with the options of transformers' scripts translated.

    If no recipe is given, --task_name, --dataset_name or the script decides it. Raises UsageError for options without a
    counterpart here, and for two recipes.
    """
    rest = list(argv[1:])
    family = _family_of_script(rest[0]) if rest else ""
    rest = rest[1:] if family else rest
    given = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    own = load_builtin(given) if given else None
    found = _Translated(family or (own.family if own else _CLASSES))
    while rest:
        word = rest.pop(0)
        flag, has_value, after = word.partition("=")
        value = after if has_value else None
        name = flag.removeprefix("--")
        theirs = _TABLE.get(name)
        if flag.startswith("--") and name in _TOGETHER:
            found.together[name] = _value(value, rest)
        elif not flag.startswith("--") or theirs is None:
            found.keep(word, flag)
        elif theirs.is_switch:
            found.add_switch(flag, _value_of_switch(value, rest), theirs)
        elif theirs.ours and not theirs.words:
            found.add_renamed(flag, value, theirs)
        else:
            found.add_by_value(flag, _value(value, rest), theirs)
    warmup = found.warmup()
    found.refuse()
    if found.switches.get("do_eval") == "true" and "do_train" not in found.switches:
        raise UsageError("--do_eval without --do_train only evaluates, but finetune always trains", hint=_TO_SCORE)
    recipe, more = _recipe(found.together)
    recipe = recipe or family
    if given and recipe not in ("", given):
        raise UsageError(f"two recipes are named: {given} and {recipe}", hint="leave out one of them")
    recipe = given or recipe
    more += [*_schedule(found.together), *_batch_size(found.together), *warmup]
    found.tell()
    return ["finetune", *([recipe] if recipe else []), *found.words, *more]


def _value(given: str | None, rest: list[str]) -> str:
    """The value of an option, given as --option=VALUE or else the next word, which is taken from the rest."""
    if given is not None:
        return given
    return rest.pop(0) if rest and not rest[0].startswith("--") else ""


def _value_of_switch(given: str | None, rest: list[str]) -> str:
    """The value of a switch: as for `_value`, but the next word only if it is true or false; by default true."""
    has_value = given is not None or (rest and rest[0].lower() in _BOOLEANS)
    return _value(given, rest) if has_value else "true"


@dataclass
class _Translated:
    """The words of a command translated so far. family: whose columns their options name. together: the values of options that
    are translated together, at the end. switches: values of theirs, by name. refused: options without a counterpart, with
    how to say it here.
    """

    family: str
    words: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    together: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def keep(self, word: str, flag: str) -> None:
        """A word that stays as it is, or an option of ours with underscores. Raises UsageError for an unknown option with
        underscores.
        """
        name = flag.removeprefix("--")
        if flag.startswith("--") and "_" in name:
            own = {*inspect.signature(finetune).parameters}
            if not {name, name.removeprefix("no_")} & own:
                near = difflib.get_close_matches(name, [*_TABLE, *_TOGETHER, *own], n=1, cutoff=0.9)
                hint = f"did you mean --{near[0]}?" if near else "bertkit finetune --help lists the options"
                what = f"unknown option {flag}: neither bertkit nor its translation of transformers' run_*.py has it"
                raise UsageError(what, hint=hint)
            word = flag.replace("_", "-") + word.removeprefix(flag)
        self.words.append(word)

    def add_switch(self, flag: str, value: str, theirs: _Theirs) -> None:
        """A switch with its value, true or false."""
        name = flag.removeprefix("--")
        self.words += _of_switch(flag, value, theirs)
        if theirs.refusal and value.lower() == "true":
            self.refused[flag] = theirs.refusal
        self.switches[name] = value.lower()
        if name in (*_NOTED_SWITCHES, *(_ALWAYS_DONE if value.lower() == "false" else _SWITCHES_WITHOUT_EFFECT)):
            self.ignored.append(flag)

    def add_renamed(self, flag: str, value: str | None, theirs: _Theirs) -> None:
        """An option that takes the same value here, which may be the next word."""
        ours = theirs.ours if isinstance(theirs.ours, str) else theirs.ours.get(self.family, "")
        if not ours:
            self.refused[flag] = f"{self.family} uses no such column"
        self.words += [f"--{ours}"] if value is None else [f"--{ours}", value]
        if theirs.note:
            self.notes.append(f"{flag} is {theirs.note}")

    def add_by_value(self, flag: str, value: str, theirs: _Theirs) -> None:
        """An option whose value decides what it is here."""
        if value in theirs.words:
            self.words += theirs.words[value].split()
        elif not value and theirs.ours:
            self.words.append(f"--{theirs.ours}")  # an error says that it needs a value
        elif theirs.refusal:
            self.refused[flag] = theirs.refusal
        elif theirs.ours:
            self.words += [f"--{theirs.ours}", value]
        else:
            self.ignored.append(flag)

    def warmup(self) -> list[str]:
        """0 steps mean no warm-up, unless a ratio is given, which transformers prefers. Other numbers are refused."""
        steps = {f"--{name}": self.together[name] for name in _WARMUP_STEPS if name in self.together}
        if others := [flag for flag, value in steps.items() if value != "0"]:
            self.refused |= dict.fromkeys(others, "--warmup-ratio is the share of all steps, such as 0.1")
        has_ratio = any(word.partition("=")[0] == "--warmup-ratio" for word in self.words)
        return ["--warmup-ratio", "0"] if steps and not has_ratio else []

    def refuse(self) -> None:
        """Raise UsageError if there are options without a counterpart: one error for all."""
        flags = [*self.refused]
        if len(flags) == 1:
            what = f"{flags[0]} is an option of transformers' run_*.py that has no counterpart here"
            raise UsageError(what, hint=self.refused[flags[0]])
        if flags:
            what = f"{', '.join(flags)} are options of transformers' run_*.py that have no counterpart here"
            by_hint = {hint: [flag for flag in flags if self.refused[flag] == hint] for hint in self.refused.values()}
            raise UsageError(what, hint="; ".join(f"{', '.join(own)}: {hint}" for hint, own in by_hint.items()))

    def tell(self) -> None:
        """Print how meanings differ, and what has no effect here."""
        for note in self.notes:
            progress.note(note)
        if self.ignored:
            when = "; --eval-steps and --save-steps set when to evaluate and save"
            is_of_times = any(flag.removeprefix("--").endswith(("_strategy", "checkpointing_steps")) for flag in self.ignored)
            progress.note(f"ignored: {', '.join(self.ignored)}{when if is_of_times else ''}")


def _family_of_script(word: str) -> str:
    """The family of one of transformers' scripts, "" for another word. Raises UsageError for a script without a counterpart."""
    path = Path(word)
    script = path.stem.removesuffix("_no_trainer") if path.suffix == ".py" else ""
    if script in _OTHER_SCRIPTS:
        raise UsageError(f"{path.name} has no counterpart here", hint=_OTHER_SCRIPTS[script])
    return _SCRIPTS.get(script, "")


def _of_switch(flag: str, value: str, theirs: _Theirs) -> list[str]:
    if value.lower() not in _BOOLEANS:
        raise UsageError(f"{flag} is {value!r}; expected true or false")
    if value.lower() == "false":
        if flag == "--do_train":
            raise UsageError(f"{flag} is false, but finetune always trains", hint=_TO_SCORE)
        return []
    return theirs.words["true"].split()


def _recipe(given: Mapping[str, str]) -> tuple[str, list[str]]:
    """The recipe that the data set and task options name, "" for none; and more options. Raises UsageError if unknown."""
    task, dataset, config = (given.get(name, "") for name in (_TASK, _DATASET, _CONFIG))
    more = _TAG_TASKS.get(task, "").split()
    task = "" if task in _TAG_TASKS else task.replace("-", "").lower()
    if not dataset:
        return task, more
    name = dataset.rpartition("/")[2].lower().replace("-", "_")
    if name in ("glue", "xtreme", "clue"):  # of several tasks
        name = config.replace("-", "").lower()
    elif config not in ("", "default", "plain_text", name):
        name = ""
    if load_builtin(name) is None:
        what = " ".join([f"--{_DATASET} {dataset}", *([f"--{_CONFIG} {config}"] if config else [])])
        hint = "`bertkit recipes` lists them; or give --train FILE without it, or write a recipe"
        raise UsageError(f"{what}: bertkit has no recipe of that name", hint=hint)
    return name, more


def _schedule(given: Mapping[str, str]) -> list[str]:
    if (value := given.get(_SCHEDULE)) is None:
        return []
    return ["--schedule", _SCHEDULES.get(value, value), *(["--warmup-ratio", "0"] if value == "constant" else [])]


def _batch_size(given: Mapping[str, str]) -> list[str]:
    """The batch size of a whole step: over all processes and accumulation."""
    numbers: dict[str, int] = {}
    for name in (_BATCH, _ACCUMULATION):
        value = given.get(name)
        if value is not None and (not value.isdecimal() or int(value) < 1):
            raise UsageError(f"--{name} is {value!r}; expected a whole number of at least 1")
        if value is not None:
            numbers[name] = int(value)
    if not numbers:
        return []
    if _BATCH not in numbers:
        if numbers[_ACCUMULATION] == 1:
            return []
        hint = "here --batch-size is the whole step, and --micro-batch-tokens bounds its memory"
        raise UsageError(f"--{_ACCUMULATION} multiplies --{_BATCH}, which is missing", hint=hint)
    world_size = os.environ.get("WORLD_SIZE") or "1"
    if not world_size.isdecimal() or int(world_size) < 1:
        what = f"WORLD_SIZE is {world_size!r}; expected the number of processes"
        raise UsageError(what, hint="accelerate launch sets it")
    return ["--batch-size", str(numbers[_BATCH] * numbers.get(_ACCUMULATION, 1) * int(world_size))]

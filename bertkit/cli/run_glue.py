"""`bertkit finetune` accepts the options of transformers' run_glue.py, and keeps their meaning.

They are translated before parsing: --per_device_train_batch_size counts one process, our --batch-size a whole step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from bertkit import progress
from bertkit.errors import UsageError

# Their name -> ours, without dashes. Names that differ only in underscores are in _SAME.
_RENAMED = {
    "model_name_or_path": "model",
    "max_seq_length": "max-length",
    "num_train_epochs": "num-epochs",
    "train_file": "train",
    "validation_file": "validation",
    "test_file": "test",
    "resume_from_checkpoint": "resume",
    "save_total_limit": "keep-checkpoints",
}
_SAME = """
    output_dir learning_rate weight_decay warmup_ratio max_steps adam_beta1 adam_beta2 adam_epsilon max_grad_norm eval_steps
    save_steps logging_steps label_smoothing_factor max_train_samples
""".split()
_SWITCHES: dict[str, list[str]] = {
    "overwrite_output_dir": ["--overwrite"],
    "ignore_mismatched_sizes": ["--ignore-mismatched-sizes"],
    "bf16": ["--precision", "bf16"],
    "no_cuda": ["--device", "cpu"],
    "use_cpu": ["--device", "cpu"],
    "do_train": [],  # the rest is always done, or has no effect here
    "do_eval": [],
    "load_best_model_at_end": [],
    "overwrite_cache": [],
    "use_fast_tokenizer": [],
    "pad_to_max_length": [],
    "disable_tqdm": [],
}
# With a value and no effect here: --eval-steps and --save-steps say when.
_IGNORED = """
    save_strategy evaluation_strategy eval_strategy logging_strategy logging_dir run_name cache_dir
    dataloader_num_workers
""".split()
_BOOLEANS = {"true": True, "false": False}  # the values of their switches
_BATCH, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
_COUNTS = (_BATCH, _ACCUMULATION, "per_device_eval_batch_size")  # the last affects no score
_TASK, _SCHEDULE, _TRACKERS = "task_name", "lr_scheduler_type", "report_to"
_SCHEDULES = {"constant_with_warmup": "constant"}  # theirs -> ours; their "constant" never warms up
_OURS = _RENAMED | {name: name.replace("_", "-") for name in _SAME} | {"label_smoothing_factor": "label-smoothing"}


def translate(argv: Sequence[str]) -> list[str]:
    """The arguments with the options of run_glue.py translated, if the command is `finetune`.

    With --train_file, and neither a recipe nor --task_name, the recipe is text-classification. Raises UsageError.
    """
    if not argv or argv[0] != "finetune":
        return list(argv)
    translated, task, constant = [], [], False
    per_device: dict[str, int] = {}
    ignored: list[str] = []
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        flag, has_value, value = word.partition("=")
        name = flag.removeprefix("--")
        if not flag.startswith("--"):
            translated.append(word)
        elif name in _SWITCHES:
            value = value if has_value else rest.pop(0) if rest and rest[0].lower() in _BOOLEANS else "true"
            if value.lower() not in _BOOLEANS:
                raise UsageError(f"{flag} is {value!r}; expected true or false")
            if name == "do_train" and not _BOOLEANS[value.lower()]:
                raise UsageError("--do_train is false, but finetune always trains", hint="bertkit eval scores a model")
            translated += _SWITCHES[name] if _BOOLEANS[value.lower()] else []
        elif name in _OURS:
            translated += [f"--{_OURS[name]}", *([value] if has_value else [])]
        elif name in (*_COUNTS, _TASK, _SCHEDULE, _TRACKERS, *_IGNORED):
            value = value if has_value else rest.pop(0) if rest else ""
            if name in _IGNORED:
                ignored.append(flag)
            elif name == _TRACKERS:
                translated += [] if value == "none" else ["--track", value]
            elif name == _TASK:
                task = [value.replace("-", "").lower()]
            elif name == _SCHEDULE:
                translated += ["--schedule", _SCHEDULES.get(value, value)]
                constant = value == "constant"
            elif not value.isdecimal() or int(value) < 1:
                raise UsageError(f"{flag} is {value!r}; expected a whole number of at least 1")
            else:
                per_device[name] = int(value)
        else:
            translated.append(word)
    if ignored:
        progress.note(f"ignored, without effect here: {', '.join(ignored)}; --eval-steps and --save-steps say when")
    if argv[1:2] and argv[1].startswith("--") and any(word.startswith("--train_file") for word in argv):
        task = task or ["text-classification"]
    if _BATCH in per_device or _ACCUMULATION in per_device:
        if _BATCH not in per_device:
            hint = "here --batch-size is the whole step, and --micro-batch-tokens bounds its memory"
            raise UsageError(f"--{_ACCUMULATION} multiplies --{_BATCH}, which is missing", hint=hint)
        world_size = os.environ.get("WORLD_SIZE") or "1"
        if not world_size.isdecimal() or int(world_size) < 1:
            what = f"WORLD_SIZE is {world_size!r}; expected the number of processes"
            raise UsageError(what, hint="accelerate launch sets it")
        batch_size = per_device[_BATCH] * per_device.get(_ACCUMULATION, 1) * int(world_size)
        translated += ["--batch-size", str(batch_size)]
    return ["finetune", *task, *translated, *(["--warmup-ratio", "0"] if constant else [])]

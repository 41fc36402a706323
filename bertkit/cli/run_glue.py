"""The spellings of transformers' run_glue.py, which `bertkit finetune` understands, each with its own meaning.

They are translated before the command line is read: --per_device_train_batch_size is of one process, ours of a whole step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from bertkit import progress
from bertkit.errors import UsageError

# Theirs, without the dashes -> ours. A name that is the same but for its underscores stands in _SAME.
_RENAMED = {
    "model_name_or_path": "model",
    "max_seq_length": "max-length",
    "num_train_epochs": "num-epochs",
    "train_file": "train",
    "validation_file": "validation",
    "test_file": "test",
    "resume_from_checkpoint": "resume",
}
_SAME = """
    output_dir learning_rate weight_decay warmup_ratio max_steps adam_beta1 adam_beta2 adam_epsilon max_grad_norm eval_steps
    logging_steps label_smoothing_factor max_train_samples
""".split()
_SWITCHES: dict[str, list[str]] = {
    "overwrite_output_dir": ["--overwrite"],
    "ignore_mismatched_sizes": ["--ignore-mismatched-sizes"],
    "bf16": ["--precision", "bf16"],
    "no_cuda": ["--device", "cpu"],
    "use_cpu": ["--device", "cpu"],
    "do_train": [],  # what is done in any case, or of no effect here
    "do_eval": [],
    "load_best_model_at_end": [],
    "overwrite_cache": [],
    "use_fast_tokenizer": [],
    "pad_to_max_length": [],
    "disable_tqdm": [],
}
# With a value, and of no effect here: when it evaluates it saves, and one checkpoint is kept.
_IGNORED = """
    save_steps save_strategy save_total_limit evaluation_strategy eval_strategy logging_strategy logging_dir run_name cache_dir
    dataloader_num_workers
""".split()
_TRUTH = {"true": True, "false": False}  # a switch may have a value there
_BATCH, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
_COUNTS = (_BATCH, _ACCUMULATION, "per_device_eval_batch_size")  # of which the last has no effect on any score
_TASK, _SCHEDULE, _TRACKERS = "task_name", "lr_scheduler_type", "report_to"
_SCHEDULES = {"constant_with_warmup": "constant"}  # theirs -> ours; their "constant" never warms up
_OURS = _RENAMED | {name: name.replace("_", "-") for name in _SAME} | {"label_smoothing_factor": "label-smoothing"}


def in_our_spelling(argv: Sequence[str]) -> list[str]:
    """The arguments of `bertkit finetune` with the options of run_glue.py translated, others as they are.

    Where they begin with an option and name a --train_file, and no task, it is a text classification. Raises UsageError.
    """
    if not argv or argv[0] != "finetune":
        return list(argv)
    found, task, constant = [], [], False
    per_device: dict[str, int] = {}
    ignored: list[str] = []
    rest = list(argv[1:])
    while rest:
        word = rest.pop(0)
        flag, has_value, value = word.partition("=")
        name = flag.removeprefix("--")
        if not flag.startswith("--"):
            found.append(word)
        elif name in _SWITCHES:
            value = value if has_value else rest.pop(0) if rest and rest[0].lower() in _TRUTH else "true"
            if value.lower() not in _TRUTH:
                raise UsageError(f"{flag} is {value!r}; expected true or false")
            if name == "do_train" and not _TRUTH[value.lower()]:
                raise UsageError("--do_train is false, and finetune trains", hint="bertkit eval scores a model")
            found += _SWITCHES[name] if _TRUTH[value.lower()] else []
        elif name in _OURS:
            found += [f"--{_OURS[name]}", *([value] if has_value else [])]
        elif name in (*_COUNTS, _TASK, _SCHEDULE, _TRACKERS, *_IGNORED):
            value = value if has_value else rest.pop(0) if rest else ""
            if name in _IGNORED:
                ignored.append(flag)
            elif name == _TRACKERS:
                found += [] if value == "none" else ["--track", value]
            elif name == _TASK:
                task = [value.replace("-", "").lower()]
            elif name == _SCHEDULE:
                found += ["--schedule", _SCHEDULES.get(value, value)]
                constant = value == "constant"
            elif not value.isdecimal() or int(value) < 1:
                raise UsageError(f"{flag} is {value!r}; expected a whole number of at least 1")
            else:
                per_device[name] = int(value)
        else:
            found.append(word)
    if ignored:
        progress.note(f"of no effect here: {', '.join(ignored)}; --eval-steps says when to evaluate and save")
    if argv[1:2] and argv[1].startswith("--") and any(word.startswith("--train_file") for word in argv):
        task = task or ["text-classification"]
    if _BATCH in per_device or _ACCUMULATION in per_device:
        if _BATCH not in per_device:
            hint = "a step's memory is --micro-batch-tokens here; --batch-size is the whole step"
            raise UsageError(f"--{_ACCUMULATION} multiplies --{_BATCH}, which is missing", hint=hint)
        world_size = os.environ.get("WORLD_SIZE") or "1"
        if not world_size.isdecimal() or int(world_size) < 1:
            raise UsageError(
                f"WORLD_SIZE is {world_size!r}; expected the number of processes", hint="accelerate launch sets it"
            )
        processes = int(world_size)
        found += ["--batch-size", str(per_device[_BATCH] * per_device.get(_ACCUMULATION, 1) * processes)]
    return ["finetune", *task, *found, *(["--warmup-ratio", "0"] if constant else [])]

"""How a run trains: TrainConfig, and PretrainConfig for pre-training.

An option is declared once, as a dataclass field made by `option`, with its help, unit and choices. The command line, run.json
and recipes all read this one declaration. A field that is not set is None until `filled` gives it a value.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bertkit.errors import UsageError, flag_of, not_a_choice

# --- options -------------------------------------------------------------------------------------------------------

# The commands that take an option: TRAIN and MEASURE for training, DATA for labelled data, USE for how a model is used.
TRAIN = ("finetune",)
MEASURE = ("finetune", "check")
DATA = ("finetune", "check", "eval")
USE = ("finetune", "check", "eval", "predict")
SEQUENCES = ("pretrain", "corpus")  # for options that decide the sequences drawn from a corpus


@dataclass(frozen=True)
class Option:
    """One declared option: the field's name and type, what it does, its unit and its permitted values.

    commands: those that take it. replaces: the options of a recipe or file that it unsets. needs: the switch it depends on.
    """

    name: str
    type: Any
    default: Any
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    commands: tuple[str, ...] = TRAIN
    replaces: tuple[str, ...] = ()
    needs: str | None = None
    chosen: bool = False  # finetune chooses it from model and rows (tasks/defaults.py); without rows, the default holds

    @property
    def flag(self) -> str:
        return flag_of(self.name)


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field that is also an option; None until it is set, or filled by `filled`. more: other fields of Option."""
    return field(default=None, metadata={"default": default, "help": help, **more})


def options_of(owner: Any) -> dict[str, Option]:
    """The options that a dataclass (or an instance of one) declares, by name."""
    return _options_of(owner if isinstance(owner, type) else type(owner))


@cache
def _options_of(cls: type) -> dict[str, Option]:
    hints = typing.get_type_hints(cls)
    return {f.name: Option(f.name, hints[f.name], **f.metadata) for f in dataclasses.fields(cls) if "help" in f.metadata}


def options_for(command: str, owner: Any) -> dict[str, Option]:
    """The options of a dataclass that a command takes, by name."""
    return {name: declared for name, declared in options_of(owner).items() if command in declared.commands}


def filled(owner: Any, *sources: Mapping[str, Any]) -> Any:
    """A dataclass whose options all have a value: its own, else that of the first source that has one, else the default."""
    changes = {}
    for name, declared in options_of(owner).items():
        if getattr(owner, name) is None:
            values = (source[name] for source in sources if source.get(name) is not None)
            changes[name] = next(values, declared.default)
    return dataclasses.replace(owner, **changes)


def convert_values(owner: Any) -> None:
    """Convert every set option to its type; a recipe file can be as wrong as a command line. Raises UsageError."""
    for name, declared in options_of(owner).items():
        if (value := getattr(owner, name)) is not None:
            object.__setattr__(owner, name, convert(declared, value))


def bare_type(kind: Any) -> Any:
    """The type without its `| None`."""
    kinds = typing.get_args(kind)
    return next(each for each in kinds if each is not type(None)) if type(None) in kinds else kind


def convert(option: Option, value: Any) -> Any:
    """Convert `value`, from the command line, YAML or JSON, to the option's type.

    YAML reads 1e-5 as text and no as False: the first becomes the intended number, the second is refused unless the option
    is a switch. Raises UsageError.
    """
    kind = bare_type(option.type)
    if value is None:
        if kind is not option.type:
            return None
        raise UsageError(f"{option.flag} needs a value", hint=option.help)
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, "a list of words")
    wrong = UsageError(f"{option.flag} is {value!r}; expected {expected}", hint=option.help)
    if kind is bool:
        if not isinstance(value, bool):
            raise wrong
        return value
    if isinstance(value, bool) or (isinstance(value, list) and any(isinstance(item, bool) for item in value)):
        hint = "in YAML, no, yes, off and on mean false and true: put them in quotes"
        raise UsageError(wrong.what, hint=hint)
    if kind in (int, float):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):  # of a whole number of 309 digits
            raise wrong from None
        if not math.isfinite(number) or (kind is int and number != int(number)):
            raise wrong
        if option.minimum is not None and number < option.minimum:
            raise UsageError(f"{option.flag} is {number:.10g}; expected at least {option.minimum:.10g}", hint=option.help)
        if option.maximum is not None and number > option.maximum:
            raise UsageError(f"{option.flag} is {number:.10g}; expected at most {option.maximum:.10g}", hint=option.help)
        return kind(number)
    if typing.get_origin(kind) is tuple:
        items = _items(value, option.flag) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or any(isinstance(item, (bool, dict, list)) for item in items):
            raise wrong
        return tuple(map(str, items))
    if not isinstance(value, (str, int, float, Path)):
        raise wrong
    value = str(value)
    if option.choices and value not in option.choices:
        raise not_a_choice(option.flag, value, option.choices)
    return value


_ITEM = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<bare>[^,]*))(?:,|\Z)')


def _items(value: str, flag: str) -> list[str]:
    """The items of a list, between commas; an item with a comma is in double quotes. Raises UsageError."""
    items: list[str] = []
    at, more = 0, True
    while more and (match := _ITEM.match(value, at)):
        items.append(match["bare"].strip() if match["quoted"] is None else match["quoted"].replace('""', '"'))
        if match["quoted"] is None and items[-1].startswith('"'):
            hint = "put an item that has a comma in quotes, and the list too: 'no,\"yes, but\"'"
            raise UsageError(f"{flag} is {value!r}, where a quote is not closed, or not at the end of an item", hint=hint)
        at, more = match.end(), match[0].endswith(",")
    return items


# --- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainConfig:
    """How to train. The defaults are those of Devlin et al. (2019), appendix A.3, for fine-tuning.

    `chosen` options that a fine-tuning run does not set are chosen by its model and its rows: see tasks/defaults.py.
    """

    optimizer: str = option("adamw", "AdamW; or LAMB, for very large batches", choices=("adamw", "lamb"))
    learning_rate: float = option(5e-5, "peak learning rate", minimum=0, chosen=True)
    num_epochs: float = option(
        3.0,
        "passes over the training data",
        unit="epochs",
        minimum=0,
        commands=MEASURE,
        replaces=("max_steps", "hours", "phases"),
        chosen=True,
    )
    max_steps: int | None = option(
        None,
        "stop after this many optimizer steps; --num-epochs is ignored",
        unit="steps",
        minimum=1,
        commands=MEASURE,
        replaces=("hours",),
    )
    batch_size: int = option(
        32,
        "features (examples, or windows of long texts) per optimizer step, over all processes",
        unit="features",
        minimum=1,
        commands=MEASURE,
        chosen=True,
    )
    max_length: int = option(
        128,
        "maximum sequence length; longer texts are truncated and counted, or split into windows for tags and answers",
        unit="tokens",
        minimum=3,
        commands=USE,
        replaces=("phases",),
        chosen=True,
    )
    warmup_ratio: float = option(
        0.1, "share of the steps in which the learning rate rises from 0 to its peak", minimum=0, maximum=1
    )
    schedule: str = option(
        "linear",
        "how the learning rate falls after warm-up; warmup_stable_decay: only at the end, see --decay-ratio",
        choices=("linear", "cosine", "constant", "warmup_stable_decay"),
    )
    decay_ratio: float = option(
        0.2, "share of the steps, at the end, over which warmup_stable_decay lowers the learning rate", minimum=0, maximum=1
    )
    weight_decay: float = option(0.01, "decoupled weight decay; none on biases and LayerNorm", minimum=0)
    adam_beta1: float = option(0.9, "decay of the optimizer's first moment", minimum=0, maximum=0.9999)
    adam_beta2: float = option(0.999, "decay of the optimizer's second moment", minimum=0, maximum=0.99999)
    adam_epsilon: float = option(1e-6, "added to the optimizer's denominator, for numerical stability", minimum=0)
    adam_bias_correction: bool = option(True, "correct the moments' bias towards 0 in early steps; BERT's own code did not")
    layerwise_lr_decay: float = option(
        1.0,
        "multiply the learning rate by this factor from each layer to the one below it; the head uses --learning-rate",
        minimum=0,
        maximum=1,
    )
    freeze: str | None = option(
        None, "what to freeze: embeddings; encoder (with them); or N (embeddings and the N lowest layers)", commands=MEASURE
    )
    reinit_layers: int = option(
        0, "reinitialize this many top layers, and the pooler, before training", unit="layers", minimum=0
    )
    max_grad_norm: float = option(1.0, "clip gradients to this norm; 0 turns clipping off", minimum=0)
    dropout: float | None = option(
        None, "dropout of hidden states, attention and classifier; default: the model's config", minimum=0, maximum=0.99
    )
    attention_dropout: float | None = option(
        None, "dropout of attention probabilities only; default: the same as --dropout", minimum=0, maximum=0.99
    )
    seed: int = option(
        42, "random seed for new weights, data order and dropout", minimum=0, maximum=2**32 - 1, commands=(*MEASURE, "corpus")
    )
    precision: str = option(
        "auto",
        "fp32; bf16, with fp32 master weights; fp16, on a GPU, with loss scaling; tf32, on a GPU: fp32 weights, matrix "
        "products in TF32; int8, on a CPU, for prediction: 8-bit weights and activations, if faster; auto: on a GPU bf16 "
        "(fp16 or fp32 on older ones, fp32 on Apple's); on a CPU bf16 if measured to be 1.2 times as fast as fp32",
        choices=("auto", "fp32", "tf32", "bf16", "fp16", "int8"),
        commands=USE,
    )
    device: str = option("auto", "auto: the GPU if there is one", choices=("auto", "cpu", "cuda", "mps"), commands=USE)
    micro_batch_tokens: int = option(
        8192,
        "maximum tokens per device and forward pass; batches are split to fit. Changes memory, speed, rounding, dropout draws",
        unit="tokens",
        minimum=1,
        commands=USE,
    )
    activation_checkpointing: bool = option(
        False, "keep only the input of each layer and recompute the rest in the backward pass: less memory, but slower"
    )
    compile: bool = option(
        False,
        "compile the activation and LayerNorm of each layer with torch.compile: about half a minute before the first step; "
        "on a CPU, steps are hardly faster",
    )
    eval_steps: int | None = option(
        None, "evaluate and save every this many steps; default: each epoch", unit="steps", minimum=1
    )
    save_steps: int | None = option(
        None, "save every this many steps, each new best and the last; default: at each evaluation", unit="steps", minimum=1
    )
    keep_checkpoints: str = option("1", "how many of the newest checkpoints to keep: a number, or all")
    keep_training_state: bool = option(False, "keep the optimizer's state in the checkpoints of a finished run")
    early_stopping_patience: int | None = option(
        None, "stop after this many evaluations in a row without a new best checkpoint", unit="evaluations", minimum=1
    )
    logging_steps: int = option(
        10, "log loss and learning rate to metrics.jsonl every this many steps, and at each save", unit="steps", minimum=1
    )
    track: tuple[str, ...] | None = option(None, "also report to these dashboards: tensorboard, wandb, trackio, mlflow")

    def __post_init__(self) -> None:
        convert_values(self)
        if self.keep_checkpoints not in (None, "all") and not re.fullmatch(r"[1-9]\d*", self.keep_checkpoints):
            raise UsageError(f"--keep-checkpoints is {self.keep_checkpoints!r}; expected a number of at least 1, or all")
        stable = "warmup_stable_decay"
        if self.schedule not in (None, stable) and self.decay_ratio not in (None, options_of(self)["decay_ratio"].default):
            what = f"--decay-ratio has no effect with --schedule {self.schedule}"
            raise UsageError(what, hint=f"add --schedule {stable}, or leave it out")

    @property
    def longer(self) -> str:
        """What the user can change to make a run longer."""
        return "a higher --max-steps" if self.max_steps else "a higher --num-epochs"


# The names are those in corpus/objectives.py, which defines what each objective draws, predicts and needs.
OBJECTIVE_HELP = {
    "mlm+nsp": "masked tokens and next sentences",
    "mlm+sop": "masked tokens and the order of two segments",
    "mlm": "only masked tokens",
    "clm": "causal: each next token",
}
RENAMED_OBJECTIVES = {"ltr": "clm"}  # in older runs and commands
MASKINGS = ("token", "whole-word", "entities")


@dataclass(frozen=True)
class PretrainConfig(TrainConfig):
    """How to pre-train. The defaults are those of Devlin et al. (2019), appendix A.2, except the length of the run."""

    optimizer: str = option(
        "adamw",
        "AdamW; LAMB, for very large batches; or Muon on the matrices of the encoder, only from scratch",
        choices=("adamw", "lamb", "muon"),
    )
    learning_rate: float = option(1e-4, "peak learning rate", minimum=0)
    num_epochs: float = option(1.0, "passes over the corpus", unit="epochs", minimum=0)
    batch_size: int = option(
        256, "sequences in one optimizer step, over all processes", unit="sequences", minimum=1, commands=SEQUENCES
    )
    max_length: int = option(128, "maximum length, with special tokens", unit="tokens", minimum=8, commands=SEQUENCES)
    warmup_ratio: float = option(
        0.01, "share of the steps in which the learning rate rises from 0 to its peak", minimum=0, maximum=1
    )
    average_ratio: float = option(
        0.0, "average the weights over this last share of the steps; 0: no averaging", minimum=0, maximum=1
    )
    eval_steps: int | None = option(
        None, "evaluate and save every this many steps; default: ten times in the run", unit="steps", minimum=1
    )
    keep_training_state: bool = option(True, "keep the optimizer's state in the checkpoints of a finished run")
    hours: float | None = option(
        None,
        "train for about this long, regardless of --num-epochs; some steps are timed first",
        unit="hours",
        minimum=1e-4,
        replaces=("max_steps",),
    )
    phases: tuple[str, ...] | None = option(
        None,
        "sequence lengths and their shares of the steps, such as 128:90%,512:10%; replaces --max-length, needs "
        "--max-steps or --hours",
    )
    objective: str = option(
        "mlm+nsp",
        "what the model learns: " + "; ".join(f"{name}, {what}" for name, what in OBJECTIVE_HELP.items()),
        choices=tuple(OBJECTIVE_HELP),
        commands=SEQUENCES,
    )
    mlm_probability: str = option(
        "0.15",
        "share of the tokens to predict, or FIRST:LAST for one that changes linearly over the steps, as in 0.3:0.15; "
        "evaluation always uses 0.15",
    )
    rampup_batch_size: str | None = option(
        None, "start with smaller batches and reach --batch-size after a share of the steps, as in 16:20%"
    )
    masking: str = option(
        "token", "what to mask: single tokens, whole words, or whole --entities and words", choices=MASKINGS, commands=SEQUENCES
    )
    entities: str | None = option(None, "file, an entity per line, for --masking entities", unit="file", commands=SEQUENCES)

    @classmethod
    def of(cls, values: dict[str, Any]) -> PretrainConfig:
        """The settings among the values of a command line or of run.json."""
        return filled(cls(**{name: value for name, value in values.items() if name in options_of(cls)}))

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", RENAMED_OBJECTIVES.get(str(self.objective), self.objective))
        super().__post_init__()
        if self.hours is not None and self.max_steps is not None:
            raise UsageError("--hours and --max-steps both say how long to train", hint="leave out one of the two")
        if self.phases is not None and self.max_steps is None and self.hours is None:
            what = "--phases are shares of --max-steps or --hours, but neither is given"
            raise UsageError(
                what, hint="add one of the two, or --max-length in place of --phases (--preset budget sets phases)"
            )
        if (self.masking == "entities") != (self.entities is not None):
            raise UsageError("--masking entities and --entities FILE must be used together", hint="give both, or neither")
        if self.entities is not None:
            object.__setattr__(self, "entities", str(Path(self.entities).absolute()))
        if self.mlm_probability is not None:
            self.mlm_probabilities()
        if self.batch_size is not None:
            self.ramp()

    def mlm_probabilities(self) -> tuple[float, float]:
        """The share of the tokens to predict at the first and at the last step. Raises UsageError for an invalid one."""
        match = re.fullmatch(r"(\d*\.?\d+)(?::(\d*\.?\d+))?", self.mlm_probability)
        first, last = (float(match[1]), float(match[2] or match[1])) if match else (0.0, 0.0)
        if not (0 < first <= 1 and 0 < last <= 1):
            what = f"--mlm-probability is {self.mlm_probability!r}; expected a share of the tokens, or the first and the last"
            raise UsageError(what, hint="as in --mlm-probability 0.15, or 0.3:0.15")
        return first, last

    def ramp(self) -> tuple[int, float]:
        """The size of the first batch, and the share of the steps in which it grows. Raises UsageError for a malformed one."""
        if self.rampup_batch_size is None:
            return self.batch_size, 0.0
        match = re.fullmatch(r"(\d+):(\d+(?:\.\d+)?)%", self.rampup_batch_size)
        if not match or not 1 <= int(match[1]) <= self.batch_size or float(match[2]) > 100:
            what = f"--rampup-batch-size is {self.rampup_batch_size!r}; expected SIZE:SHARE%, SIZE from 1 to {self.batch_size}"
            raise UsageError(what, hint=f"as in {max(1, self.batch_size // 4)}:20%; {self.batch_size} is the --batch-size")
        return int(match[1]), float(match[2]) / 100

    def lengths(self) -> list[tuple[int, float]]:
        """Each phase's max_length and share of the steps. Raises UsageError if malformed, or if shares do not sum to 100%."""
        if self.phases is None:
            return [(self.max_length, 1.0)]
        matches = [re.fullmatch(r"(\d+):(\d+(?:\.\d+)?)%", phase) for phase in self.phases]
        lengths = [(int(match[1]), float(match[2]) / 100) for match in matches if match]
        if None in matches or not math.isclose(sum(share for _, share in lengths), 1.0) or min(lengths)[0] < 8:
            what = f"--phases is {','.join(self.phases)!r}; expected lengths of 8 or more with shares that add up to 100%"
            raise UsageError(what, hint="as in --phases 128:90%,512:10%")
        return lengths

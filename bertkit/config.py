"""What a run is set to: the architecture (BertConfig) and the training settings (TrainConfig).

An option is declared once, as a dataclass field made by `option`: its help, unit and choices stand beside it. The command
line, run.json and `override` all read that one declaration.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, UsageError, did_you_mean

# --- options -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """One declared option: the field's name and type, what it does, its unit and its permitted values."""

    name: str
    type: Any
    default: Any
    help: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


def option(
    default: Any,
    help: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A dataclass field that is also an option of the command line."""
    metadata = {"help": help, "unit": unit, "choices": choices, "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata=metadata)


def options_of(owner: Any) -> dict[str, Option]:
    """The options that a dataclass (or an instance of one) declares, by name."""
    cls = owner if isinstance(owner, type) else type(owner)
    hints = typing.get_type_hints(cls)
    return {
        f.name: Option(name=f.name, type=hints[f.name], default=f.default, **f.metadata)
        for f in dataclasses.fields(cls)
        if "help" in f.metadata
    }


def _is_optional(kind: Any) -> bool:
    return typing.get_origin(kind) in (types.UnionType, typing.Union) and type(None) in typing.get_args(kind)


def bare_type(kind: Any) -> Any:
    """The type without its `| None`."""
    if not _is_optional(kind):
        return kind
    return next(t for t in typing.get_args(kind) if t is not type(None))


def convert(option: Option, value: Any) -> Any:
    """`value`, as the command line, YAML or JSON gave it, in the option's own type.

    YAML reads 1e-5 as text and no as False: the first becomes the number it was meant to be, the second is refused unless
    the option is a switch. Raises UsageError.
    """
    kind = bare_type(option.type)
    if value is None:
        if _is_optional(option.type):
            return None
        raise UsageError(f"{option.flag} needs a value", hint=option.help)
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(kind, "a list of text")
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
        except (TypeError, ValueError):
            raise wrong from None
        if not math.isfinite(number) or (kind is int and number != int(number)):
            raise wrong
        if option.minimum is not None and number < option.minimum:
            raise UsageError(f"{option.flag} is {number:g}; expected at least {option.minimum:g}", hint=option.help)
        if option.maximum is not None and number > option.maximum:
            raise UsageError(f"{option.flag} is {number:g}; expected at most {option.maximum:g}", hint=option.help)
        return kind(number)
    if typing.get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or any(isinstance(item, (bool, dict, list)) for item in items):
            raise wrong
        return tuple(str(item).strip() for item in items)
    if not isinstance(value, (str, int, float, Path)):
        raise wrong
    value = str(value)
    if option.choices and value not in option.choices:
        hint = did_you_mean(value, option.choices)
        raise UsageError(f"{option.flag} is {value!r}; expected {' or '.join(option.choices)}", hint=hint)
    return value


# --- training ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainConfig:
    """How to train. The defaults are those of Devlin et al. (2019), appendix A.3, for fine-tuning."""

    learning_rate: float = option(5e-5, "peak learning rate of AdamW", minimum=0)
    num_epochs: float = option(3.0, "passes over the training data", unit="epochs", minimum=0)
    max_steps: int | None = option(
        None, "stop after this many optimizer steps, whatever num_epochs says", unit="steps", minimum=1
    )
    batch_size: int = option(32, "features in one optimizer step, over all processes", unit="features", minimum=1)
    max_length: int = option(
        128,
        "longest sequence; longer texts are truncated and counted, for tags and answers read in windows",
        unit="tokens",
        minimum=3,
    )
    warmup_ratio: float = option(
        0.1, "share of the steps in which the learning rate rises from 0 to its peak", minimum=0, maximum=1
    )
    schedule: str = option("linear", "how the learning rate falls after the warm-up", choices=("linear", "constant"))
    weight_decay: float = option(0.01, "decoupled weight decay; none on biases and LayerNorm", minimum=0)
    adam_beta1: float = option(0.9, "AdamW's decay of the first moment", minimum=0, maximum=0.9999)
    adam_beta2: float = option(0.999, "AdamW's decay of the second moment", minimum=0, maximum=0.99999)
    adam_epsilon: float = option(1e-6, "AdamW's epsilon", minimum=0)
    max_grad_norm: float = option(1.0, "gradients are scaled down to this norm; 0 turns clipping off", minimum=0)
    dropout: float | None = option(
        None, "dropout of hidden states, attention and classifier; default: as the model's config says", minimum=0, maximum=1
    )
    seed: int = option(42, "decides fresh weights, order and dropout", minimum=0)
    precision: str = option(
        "auto",
        "fp32, or bf16 weights with fp32 masters; auto takes bf16 where the hardware computes in it",
        choices=("auto", "fp32", "bf16"),
    )
    device: str = option("auto", "auto takes the GPU if there is one", choices=("auto", "cpu", "cuda", "mps"))
    micro_batch_tokens: int = option(
        8192,
        "most tokens one device takes at once: the batch is cut to fit. Changes memory, not what is learned",
        unit="tokens",
        minimum=1,
    )
    eval_steps: int | None = option(None, "evaluate and save every so many steps; default: each epoch", unit="steps", minimum=1)
    logging_steps: int = option(
        10, "write loss and learning rate to metrics.jsonl every so many steps", unit="steps", minimum=1
    )

    def __post_init__(self) -> None:
        for name, declared in options_of(self).items():  # a recipe's file is as fallible as a command line
            object.__setattr__(self, name, convert(declared, getattr(self, name)))


OBJECTIVES = ("mlm+nsp", "mlm", "ltr")
MASKINGS = ("token", "whole-word")


@dataclass(frozen=True)
class PretrainConfig(TrainConfig):
    """How to pre-train. The defaults are those of Devlin et al. (2019), appendix A.2, but for the length of the run."""

    learning_rate: float = option(1e-4, "peak learning rate of AdamW", minimum=0)
    num_epochs: float = option(1.0, "passes over the corpus", unit="epochs", minimum=0)
    batch_size: int = option(256, "sequences in one optimizer step, over all processes", unit="sequences", minimum=1)
    max_length: int = option(128, "longest sequence, special tokens among them", unit="tokens", minimum=8)
    warmup_ratio: float = option(
        0.01, "share of the steps in which the learning rate rises from 0 to its peak", minimum=0, maximum=1
    )
    eval_steps: int | None = option(
        None, "evaluate and save every so many steps; default: ten times in the run", unit="steps", minimum=1
    )
    hours: float | None = option(
        None, "train about so long, whatever num_epochs says: some steps are rehearsed first", unit="hours", minimum=1e-4
    )
    phases: tuple[str, ...] | None = option(
        None, "lengths and their shares of the steps, as in 128:90%,512:10%; instead of max_length, with max_steps or hours"
    )
    objective: str = option(
        "mlm+nsp", "masked tokens and next sentences; masked tokens alone; or left to right, the next token", choices=OBJECTIVES
    )
    masking: str = option("token", "what is masked: single tokens, or whole words", choices=MASKINGS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hours is not None and self.max_steps is not None:
            raise UsageError("--hours and --max-steps both say how long to train", hint="leave out one of the two")
        if self.objective == "ltr" and self.masking != "token":
            raise UsageError(f"--masking is {self.masking}, and --objective ltr masks nothing", hint="leave out one of the two")
        if self.phases is not None and self.max_steps is None and self.hours is None:
            raise UsageError("--phases are shares of --max-steps or --hours, and neither is given")

    def lengths(self) -> list[tuple[int, float]]:
        """Each phase's max_length and its share of the steps. Raises UsageError for what is none, or not the whole."""
        if self.phases is None:
            return [(self.max_length, 1.0)]
        found = [re.fullmatch(r"(\d+):(\d+(?:\.\d+)?)%", phase) for phase in self.phases]
        lengths = [(int(match[1]), float(match[2]) / 100) for match in found if match]
        whole = math.isclose(sum(share for _, share in lengths), 1.0)
        if None in found or not whole or min(length for length, _ in lengths) < 8:
            what = f"--phases is {','.join(self.phases)!r}; expected lengths of 8 or more with shares that make 100%"
            raise UsageError(what, hint="as in --phases 128:90%,512:10%")
        return lengths


# --- architecture --------------------------------------------------------------------------------------------------

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")

# L, H, A of Turc et al. (2019) for tiny to medium, and of Devlin et al. (2019), section 3, for base and large.
MODEL_SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

# A key of config.json that changes what the model computes, and the only values of it that we compute.
_HONOURED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute", None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
    "embedding_size": (None,),
    "is_encoder_decoder": (False, None),
    "problem_type": ("single_label_classification", "regression", None),
}

# Keys of config.json by which a head of ours is known again; a head of another task drops them.
OWN_KEYS = ("tagging_head", "intents", "unanswerable", "null_threshold")

# The least whole number, and the most of what is 0 or more, that makes sense.
_LEAST = {
    "vocab_size": 1,
    "hidden_size": 1,
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "max_position_embeddings": 1,
    "type_vocab_size": 1,
    "pad_token_id": 0,
}
_MOST = {
    "hidden_dropout_prob": 1.0,
    "attention_probs_dropout_prob": 1.0,
    "classifier_dropout": 1.0,
    "initializer_range": float("inf"),
    "layer_norm_eps": float("inf"),
}


@dataclass(frozen=True)
class BertConfig:
    """The architecture, with the names and defaults of Hugging Face's config.json for BERT.

    Keys that we do not use are kept in `extra` and written back. Raises ModelError for a value that we could not honour.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    classifier_dropout: float | None = None
    id2label: dict[int, str] | None = None
    problem_type: str | None = None
    is_decoder: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hidden_act not in ACTIVATIONS:
            raise ModelError(
                f"hidden_act is {self.hidden_act!r}; expected one of {', '.join(ACTIVATIONS)}",
                where="config.json",
                hint=did_you_mean(str(self.hidden_act), ACTIVATIONS),
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ModelError(f"{name} is {value!r}; expected a whole number of at least {least}", where="config.json")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is None and name == "classifier_dropout":
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= most:
                raise ModelError(f"{name} is {value!r}; expected a number from 0 to {most:g}", where="config.json")
        if not isinstance(self.is_decoder, bool):
            raise ModelError(f"is_decoder is {self.is_decoder!r}; expected true or false", where="config.json")
        if self.pad_token_id >= self.vocab_size:
            what = f"pad_token_id is {self.pad_token_id}; expected a number below vocab_size {self.vocab_size}"
            raise ModelError(what, where="config.json")
        if self.hidden_size % self.num_attention_heads:
            raise ModelError(
                f"num_attention_heads {self.num_attention_heads} does not divide hidden_size {self.hidden_size}",
                where="config.json",
                hint="choose a hidden_size that is a multiple of num_attention_heads (the paper's heads are 64 wide)",
            )

    @property
    def num_labels(self) -> int:
        return len(self.id2label) if self.id2label else 2

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The labels' names in the order of their numbers, or None where the model only has LABEL_0, LABEL_1 ..."""
        if not self.id2label or all(name == f"LABEL_{i}" for i, name in self.id2label.items()):
            return None
        return tuple(self.id2label[i] for i in range(len(self.id2label)))

    @classmethod
    def of_size(cls, size: str, **changes: Any) -> BertConfig:
        """A named size: tiny, mini, small, medium, base or large."""
        if size not in MODEL_SIZES:
            raise UsageError(f"no model size {size!r}", hint=did_you_mean(size, MODEL_SIZES))
        layers, hidden, heads = MODEL_SIZES[size]
        return cls(
            **{
                "num_hidden_layers": layers,
                "hidden_size": hidden,
                "num_attention_heads": heads,
                "intermediate_size": 4 * hidden,
                **changes,
            }
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str = "config.json") -> BertConfig:
        """The configuration that the keys of a config.json describe."""
        for key, honoured in _HONOURED.items():
            if key in values and values[key] not in honoured:
                if key == "model_type":
                    what = f"this is a {values[key]} model; expected model_type bert"
                    raise ModelError(what, where=where, hint="bertkit trains BERT alone: choose a BERT checkpoint")
                raise ModelError(f"{key} is {values[key]!r}, which bertkit does not compute", where=where)
        own = {f.name for f in dataclasses.fields(cls)} - {"extra"}
        known = {key: value for key, value in values.items() if key in own and value is not None}
        count = values.get("num_labels")
        if id2label := known.pop("id2label", None):
            known["id2label"] = names = _label_names(id2label, where)
            if count is not None and count != len(names):
                what = f"num_labels is {count!r}, but id2label names {len(names)} labels"
                raise ModelError(what, where=where, hint="take one of the two out")
        elif isinstance(count := count or values.get("_num_labels"), int):
            known["id2label"] = {i: f"LABEL_{i}" for i in range(count)}
        derived = own | {"label2id", "num_labels", "_num_labels"}
        known["extra"] = {key: value for key, value in values.items() if key not in derived}
        try:
            return cls(**known)
        except ModelError as error:
            raise ModelError(error.what, where=where, hint=error.hint) from None

    @classmethod
    def read(cls, path: Path) -> BertConfig:
        """The configuration in a config.json, or in Google's bert_config.json."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"the configuration cannot be read: {error.strerror}", where=str(path)) from None
        except ValueError as error:
            raise ModelError(f"the configuration is not valid JSON: {error}", where=str(path)) from None
        if not isinstance(values, dict):
            raise ModelError("the configuration is not a JSON object", where=str(path))
        if "hidden_size" not in values and values.get("model_type") in ("bert", None):
            raise ModelError("the configuration lacks hidden_size; expected that of a BERT model", where=str(path))
        return cls.from_dict(values, where=str(path))

    def to_dict(self) -> dict[str, Any]:
        """The keys and values of Hugging Face's config.json."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "extra"}
        if self.id2label:
            values["id2label"] = {str(i): name for i, name in self.id2label.items()}
            values["label2id"] = {name: i for i, name in self.id2label.items()}
        values = {key: value for key, value in values.items() if value is not None and value is not False}
        return {"model_type": "bert", **self.extra, **values}


def _label_names(id2label: Any, where: str) -> dict[int, str]:
    try:
        names = {int(i): str(name) for i, name in id2label.items()}
    except (AttributeError, TypeError, ValueError):
        raise ModelError(f"id2label is {id2label!r}; expected names by number", where=where) from None
    if sorted(names) != list(range(len(names))):
        raise ModelError(f"id2label numbers its labels {sorted(names)}; expected 0 to {len(names) - 1}", where=where)
    if twice := sorted({name for name in names.values() if list(names.values()).count(name) > 1}):
        raise ModelError(f"id2label names more than one label {twice[0]!r}", where=where)
    return dict(sorted(names.items()))

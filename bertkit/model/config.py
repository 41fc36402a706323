"""The architecture of a BERT: BertConfig, which reads and writes the config.json of a Hugging Face checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, UsageError, did_you_mean

ACTIVATION_NAMES = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")

# L, H, A of Turc et al. (2019) for tiny to medium, and of Devlin et al. (2019), section 3, for base and large.
MODEL_SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

# Keys of config.json that change what the model computes, and the values that we support.
_HONOURED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, None),
    "embedding_size": (None,),
    "is_encoder_decoder": (False, None),
    "problem_type": ("single_label_classification", "multi_label_classification", "regression", None),
}

# Keys of config.json that describe a head of ours; a head of another task drops them.
POOLING_KEY, FAMILY_KEY, THRESHOLDS_KEY = "classifier_pooling", "task_family", "label_thresholds"
BLOCK_KEY = "bertkit"  # all of it, since 0.2
PRETRAINING = "pretraining"  # in place of a task family
OWN_KEYS = ("tagging_head", "intents", "unanswerable", "null_threshold", POOLING_KEY, FAMILY_KEY, THRESHOLDS_KEY, BLOCK_KEY)

# Which of a token's hidden states (of the embeddings and of each layer) a head reads, and how they are combined into one vector
# (Devlin et al., 2019, table 7).
LAYERS = {
    "last": (slice(-1, None), "concat"),
    "last4": (slice(-4, None), "concat"),
    "last4-sum": (slice(-4, None), "sum"),
    "last4-mix": (slice(-4, None), "mix"),
    "sum": (slice(1, None), "sum"),
    "mix": (slice(0, None), "mix"),
}
# What a sequence classifier reads: [CLS] through the pooler, [CLS] itself, the mean or maximum of all tokens; the last two are
# older spellings of "cls" with LAYERS "last4" and "mix".
POOLINGS = ("pooled", "cls", "mean", "max", "cls-last4", "cls-mix")
CLS_LAYERS = {"cls-last4": "last4", "cls-mix": "mix"}

# The minimum of each integer; and, in _MOST, the maximum of each other number, whose minimum is 0.
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
# Far beyond any BERT: building more would take hours, or all memory.
_MOST_LAYERS, _MOST_PARAMETERS, _MOST_LABELS = 1000, 20 * 10**9, 10**6
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
        if self.hidden_act not in ACTIVATION_NAMES:
            what = f"hidden_act is {self.hidden_act!r}; expected one of {', '.join(ACTIVATION_NAMES)}"
            raise ModelError(what, where="config.json", hint=did_you_mean(str(self.hidden_act), ACTIVATION_NAMES))
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
        sizes = {
            "num_hidden_layers": (self.num_hidden_layers, _MOST_LAYERS),
            "parameters": (self._parameters(), _MOST_PARAMETERS),
        }
        for name, (value, most) in sizes.items():
            if value > most:
                what = f"the model has {value:,} {name}; expected at most {most:,}"
                raise ModelError(what, where="config.json", hint="is the file damaged?")
        if self.pad_token_id >= self.vocab_size:
            what = f"pad_token_id is {self.pad_token_id}; expected a number below vocab_size {self.vocab_size}"
            raise ModelError(what, where="config.json")
        if self.hidden_size % self.num_attention_heads:
            what = f"num_attention_heads {self.num_attention_heads} does not divide hidden_size {self.hidden_size}"
            hint = "choose a hidden_size that is a multiple of num_attention_heads (the paper's heads are 64 wide)"
            raise ModelError(what, where="config.json", hint=hint)

    def _parameters(self) -> int:
        """The number of weights in the encoder's matrices."""
        embeddings = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        return self.hidden_size * (embeddings + self.num_hidden_layers * (4 * self.hidden_size + 2 * self.intermediate_size))

    def without_head(self) -> BertConfig:
        """The encoder's configuration, without the keys of a head."""
        extra = {key: value for key, value in self.extra.items() if key not in OWN_KEYS}
        return dataclasses.replace(self, id2label=None, problem_type=None, extra=extra)

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
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        return cls(**{**sizes, "intermediate_size": 4 * hidden, **changes})

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, where: str = "config.json") -> BertConfig:
        """The configuration that the keys of a config.json describe."""
        if (kind := values.get("model_type", "bert")) != "bert":
            what = f"this is a {kind} model; expected model_type bert"
            raise ModelError(what, where=where, hint="bertkit supports only BERT: choose a BERT checkpoint")
        for key, honoured in _HONOURED.items():
            if key in values and values[key] not in honoured:
                raise ModelError(f"{key} is {values[key]!r}, which bertkit does not support", where=where)
        names = values.get("architectures")
        if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
            raise ModelError(f"architectures is {names!r}; expected a list of names", where=where)
        own = {f.name for f in dataclasses.fields(cls)} - {"extra"}
        known = {key: value for key, value in values.items() if key in own and value is not None}
        count = values.get("num_labels")
        if id2label := known.pop("id2label", None):
            known["id2label"] = names = _label_names(id2label, where)
            if count is not None and count != len(names):
                what = f"num_labels is {count!r}, but id2label names {len(names)} labels"
                raise ModelError(what, where=where, hint="remove one of the two")
        elif (count := count or values.get("_num_labels")) is not None:
            if type(count) is not int or not 0 <= count <= _MOST_LABELS:
                what = f"num_labels is {count!r}; expected a whole number of at most {_MOST_LABELS:,}"
                raise ModelError(what, where=where, hint="is the file damaged?")
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
            values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        except OSError as error:
            raise ModelError(f"the configuration cannot be read: {error.strerror}", where=str(path)) from None
        except (ValueError, RecursionError) as error:
            raise ModelError(f"the configuration is not valid JSON: {error}", where=str(path)) from None
        if not isinstance(values, dict):
            raise ModelError("the configuration is not a JSON object", where=str(path))
        if "hidden_size" not in values and values.get("model_type") in ("bert", None):
            raise ModelError("the configuration lacks hidden_size; expected the configuration of a BERT model", where=str(path))
        return cls.from_dict(values, where=str(path))

    def to_dict(self) -> dict[str, Any]:
        """The keys and values of Hugging Face's config.json."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "extra"}
        if self.id2label:
            values["id2label"] = {str(i): name for i, name in self.id2label.items()}
            values["label2id"] = {name: i for i, name in self.id2label.items()}
        values = {key: value for key, value in values.items() if value is not None and value is not False}
        return {"model_type": "bert", **self.extra, **values}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it has the value {name}")


def _label_names(id2label: Any, where: str) -> dict[int, str]:
    try:
        names = {int(i): str(name) for i, name in id2label.items()}
    except (AttributeError, TypeError, ValueError):
        raise ModelError(f"id2label is {id2label!r}; expected names by number", where=where) from None
    if sorted(names) != list(range(len(names))):
        raise ModelError(f"id2label numbers its labels {sorted(names)}; expected 0 to {len(names) - 1}", where=where)
    if twice := sorted(name for name, count in Counter(names.values()).items() if count > 1):
        raise ModelError(f"id2label gives several labels the name {twice[0]!r}", where=where)
    return dict(sorted(names.items()))

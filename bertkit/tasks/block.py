"""config.json["bertkit"]: what a trained model needs besides its labels; derived from other settings if it is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.errors import ModelError
from bertkit.model.config import BLOCK_KEY, FAMILY_KEY, OWN_KEYS, POOLING_KEY, PRETRAINING, THRESHOLDS_KEY, BertConfig

_FAMILY_OF = {
    "BertForSequenceClassification": "text-classification",
    "BertForMultipleChoice": "multiple-choice",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
}

# The options that define a head, with the values of transformers' own heads.
PLAIN_HEAD = {"pooling": "pooled", "layers": "last", "head": "linear", "lstm_layers": 1}


def own_parts(block: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a block that differ from those of transformers' own heads."""
    return {name: block[name] for name, plain in PLAIN_HEAD.items() if block.get(name) not in (None, plain)}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(number, (int, float)) for number in value.values())


LABEL_KINDS = ("numbers", "numbers from 1", "letters", "texts")  # the forms of labels for multiple choice

# Checks of fitted values. Options are checked by the recipe.
_FITTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "family": (" or ".join(_FAMILY_OF.values()), tuple(_FAMILY_OF.values()).__contains__),
    "labels_are": (" or ".join(LABEL_KINDS), LABEL_KINDS.__contains__),
    "question_column": ("text", _is_text),
    "positive_label": ("text", _is_text),
    "numbers": ("a list of text", are_texts),
    "intents": ("a list of text", are_texts),
    "class_weights": ("a number for each label", _are_numbers),
    "thresholds": ("a number for each label", _are_numbers),
}


class KeptHead(NamedTuple):
    """The head of a model that is trained further. config: the model's. block: what `read_block` gives."""

    config: BertConfig
    block: Mapping[str, Any]


def read_block(config: BertConfig, where: str) -> dict[str, Any] | None:
    """A model's description of its head: its block, the flat keys of bertkit 0.1, or a plain head's class and problem_type.

    where: the model's folder, for errors. "family" is None if the model does not tell its family; the result is None for a
    model without a task head. Raises ModelError for a malformed block, or another format, which a later version may write.
    """
    path = str(Path(where) / "config.json")
    architectures = config.extra.get("architectures")
    block = _block_of(config)
    if block is not None:
        if not isinstance(block, Mapping) or block.get("format") != 1:
            what = f'"{BLOCK_KEY}" is of format {block.get("format") if isinstance(block, Mapping) else block!r}; expected 1'
            raise ModelError(what, where=path, hint="if a later version of bertkit wrote it, install that")
        _refuse_wrong_shapes({"family": "", **block}, path)
        if not block_is_stale(config):
            return dict(block)
    flat = {key: config.extra[key] for key in OWN_KEYS if key in config.extra}
    found: dict[str, Any] = {
        "family": next((_FAMILY_OF[name] for name in architectures or () if name in _FAMILY_OF), None),
        "pooling": flat.get(POOLING_KEY, "pooled"),
        "head": flat.get("tagging_head", "linear"),
        "intents": flat.get("intents"),
        "thresholds": flat.get(THRESHOLDS_KEY),
        **{name: flat[name] for name in ("unanswerable", "null_threshold") if name in flat},
    }
    if FAMILY_KEY in flat:
        found["family"] = flat[FAMILY_KEY]
    elif "tagging_head" in flat:
        found["family"] = "token-classification"
    elif architectures and found["family"] is None:
        return None
    if config.problem_type == "multi_label_classification":
        found["multi_label"] = True
    elif config.problem_type == "regression" or (config.num_labels == 1 and found["family"] != "multiple-choice"):
        found["regression"] = True
    found = {name: value for name, value in found.items() if value is not None}
    _refuse_wrong_shapes(found, path)
    return {"family": None} | found


def _refuse_wrong_shapes(values: Mapping[str, Any], path: str) -> None:
    """Raise ModelError for a fitted value of the wrong shape."""
    for name, (expected, is_one) in _FITTED.items():
        if name in values and not is_one(values[name]):
            raise ModelError(f"{name} is {values[name]!r}; expected {expected}", where=path)


def block_is_stale(config: BertConfig) -> bool:
    """Whether class or labels contradict the block, for example because another program has saved the folder again."""
    block = _block_of(config)
    if block is None:
        return False
    architectures = config.extra.get("architectures") or []
    if any(_FAMILY_OF.get(name, block["family"]) != block["family"] for name in architectures):
        return True
    own_head = bool(own_parts(block)) or (config.is_decoder and "pooling" in block)
    if architectures and own_head != (architectures == ["BertModel"]):
        return True
    labels = set((config.id2label or {}).values())
    named = (block[name] for name in ("numbers", "thresholds", "class_weights") if name in block)
    return any(set(names) != labels for names in named) or ("positive_label" in block and block["positive_label"] not in labels)


def _block_of(config: BertConfig) -> Any:
    """The block, unchanged; None without one, or if it is that of a pre-trained model, which only names its objective."""
    block = config.extra.get(BLOCK_KEY)
    return None if isinstance(block, Mapping) and block.get("family") == PRETRAINING else block

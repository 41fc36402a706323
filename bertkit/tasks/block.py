"""config.json["bertkit"]: all that using a trained model needs beside its labels; and what stands for it in other folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.errors import ModelError
from bertkit.model.config import BLOCK_KEY, FAMILY_KEY, OWN_KEYS, POOLING_KEY, POOLINGS, PRETRAINING, THRESHOLDS_KEY, BertConfig

_FAMILY_OF = {
    "BertForSequenceClassification": "text-classification",
    "BertForMultipleChoice": "multiple-choice",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
}


def read_block(config: BertConfig) -> dict[str, Any] | None:
    """What a model says of its head: its block, the flat keys of bertkit 0.1, or the class and problem_type of a plain one.

    "family" is None where a model does not say what it is; the result is None for one without a task's head. Raises ModelError
    for a block of another format or family, as a later version may write it.
    """
    architectures = config.extra.get("architectures")
    block = _block_of(config)
    if block is not None:
        if block.get("format") != 1 or block.get("family") not in _FAMILY_OF.values():
            what = f'config["bertkit"] is of format {block.get("format")!r} for {block.get("family")!r}; expected 1 for a task'
            raise ModelError(what, where="config.json", hint="a later version of bertkit wrote it: install that")
        if _agrees(block, config):
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
    if found["pooling"] not in POOLINGS:
        raise ModelError(f"{POOLING_KEY} is {found['pooling']!r}; expected {' or '.join(POOLINGS)}", where="config.json")
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
    return {name: value for name, value in found.items() if value is not None or name == "family"}


def block_is_stale(config: BertConfig) -> bool:
    """Whether a folder has a block that its class or its labels contradict, as when something else saved it again."""
    block = _block_of(config)
    return block is not None and not _agrees(block, config)


def _block_of(config: BertConfig) -> Mapping[str, Any] | None:
    """The block of a task; that of a pre-trained model names its objective alone."""
    block = config.extra.get(BLOCK_KEY)
    return block if isinstance(block, Mapping) and block.get("family") != PRETRAINING else None


def _agrees(block: Mapping[str, Any], config: BertConfig) -> bool:
    architectures = config.extra.get("architectures") or []
    family = block.get("family")
    if any(_FAMILY_OF.get(name, family) != family for name in architectures):
        return False
    own_head = block.get("pooling", "pooled") != "pooled" or block.get("head", "linear") != "linear"
    own_head = own_head or (config.is_decoder and "pooling" in block)
    if architectures and own_head != (architectures == ["BertModel"]):
        return False
    named = {*block.get("numbers", ()), *block.get("thresholds", {}), *block.get("class_weights", {})}
    return named <= set((config.id2label or {}).values())

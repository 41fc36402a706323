"""The module that pre-training starts from: newly initialized, or with the weights of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.errors import ModelError, UsageError
from bertkit.model.config import BLOCK_KEY, PRETRAINING, BertConfig
from bertkit.model.layerwise import freeze
from bertkit.model.pretrained import start_from
from bertkit.runs.target import open_to_train
from bertkit.text.tokenizer import Tokenizer


def refuse_unclear_size(model: str | None, size: str | None, sizes: dict[str, int], file: Path | None) -> None:
    """Raise UsageError unless one of these, a model, a config.json or sizes, says what to train."""
    if model is not None and (size or file or sizes):
        raise UsageError("--model already sets the size", hint="leave out one of the two")
    if file is not None and (size or sizes):
        raise UsageError("--config-name already sets the sizes", hint="leave out the other sizes, or change the file")
    if not (model or size or file) and not {"num_hidden_layers", "hidden_size"} <= sizes.keys():
        hint = "give --model M, or --model-size small, or --num-hidden-layers and --hidden-size, or --config-name FILE"
        raise UsageError("no model or size to train", hint=hint)


def fresh_architecture(
    meta: dict[str, Any], config: PretrainConfig, size: str | None, sizes: dict[str, int], file: Path | None = None
) -> BertConfig:
    """The architecture of a newly initialized model: from a config.json, or a named size, which explicit sizes override.

    The vocabulary size is the corpus's, or that in the config.json if larger. As in the paper, by default heads are 64 wide and
    the intermediate layer is four times as wide as the hidden size.
    """
    vocab_size = meta["tokenizer"]["vocab_size"]
    if file is not None:
        read = BertConfig.read(file / "config.json" if file.is_dir() else file)
        if (padding := read.vocab_size - vocab_size) > 0:
            progress.note(f"vocab_size is {read.vocab_size} in {file}: {padding} more than the tokenizer has, as padding")
        return replace(read, vocab_size=max(read.vocab_size, vocab_size), id2label=None, problem_type=None, extra={})
    changes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "max_position_embeddings": max(512, *(length for length, _ in config.lengths())),
        **sizes,
    }
    if (hidden := sizes.get("hidden_size")) is not None:
        changes = {"num_attention_heads": max(1, hidden // 64), "intermediate_size": 4 * hidden, **changes}
        if hidden % (heads := changes["num_attention_heads"]):
            hint = "choose a multiple of 64, or --num-attention-heads that divides it"
            raise UsageError(f"--hidden-size is {hidden}; expected a multiple of the {heads} attention heads", hint=hint)
    try:
        return BertConfig.of_size(size, **changes) if size is not None else BertConfig(**changes)
    except ModelError as error:  # which speaks of a config.json
        hint = "change --num-hidden-layers, --hidden-size or --num-attention-heads"
        raise UsageError(f"invalid model size: {error.what}", hint=hint) from None


def build_model(
    config: PretrainConfig,
    objective: Objective,
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    model: str | None,
    architecture: BertConfig | None,
    resuming: bool,
) -> tuple[nn.Module, BertConfig, dict[str, Any]]:
    """The module with its weights, its configuration, and the "model" entry of run.json. resuming: whether the weights of a
    checkpoint will replace these.
    """
    if model is not None and config.optimizer == "muon":
        what = "--optimizer muon is for training from scratch, not for --model"
        raise UsageError(what, hint="add --optimizer adamw (--preset budget sets muon)")
    pretrained = open_to_train(model) if model is not None else None
    if pretrained is None:
        if config.reinit_layers:
            raise UsageError("--reinit-layers needs --model: without it, all weights are fresh")
        assert architecture is not None
        model_config = replace(architecture, is_decoder=objective.causal, pad_token_id=tokenizer.pad_token_id)
        origin: dict[str, Any] = {"name": "fresh", "config": model_config.to_dict()}
    else:
        corpus.refuse_other_tokenizer(pretrained.tokenizer, pretrained.name)
        if pretrained.config.is_decoder and not objective.causal:
            causal = " or ".join(other.name for other in OBJECTIVES.values() if other.causal)
            what = f"{model} is a causal model, but --objective is {objective.name}"
            raise UsageError(what, hint=f"train with --objective {causal}, or start from another model")
        model_config = replace(pretrained.config.without_head(), is_decoder=objective.causal)
        origin = {"name": model, **pretrained.fingerprint()}
    if objective.pair_term is not None and model_config.type_vocab_size < 2:
        what = f"type_vocab_size is {model_config.type_vocab_size}; expected 2 or more, as pairs have two segments"
        raise UsageError(what, hint="choose a model or --config-name with 2 or more, or train with --objective mlm")
    module = objective.head(model_config)
    start_from(pretrained, module, model_config, config, resuming=resuming)
    freeze(module, config)
    block = {"format": 1, "family": PRETRAINING, "objective": objective.name}
    return module, replace(model_config, extra=model_config.extra | {BLOCK_KEY: block}), origin

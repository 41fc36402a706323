"""A model folder or hub id, opened: configuration and tokenizer, checked against each other and against the data."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import nn

from bertkit import progress
from bertkit.config import TrainConfig
from bertkit.errors import ModelError, UsageError
from bertkit.features import Features
from bertkit.manifest import sha256_once, verify
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.directory import CONFIG_FILES, load_weights, read_config, refuse_larger_vocabulary, resolve, weights_hash
from bertkit.model.layerwise import reinitialize
from bertkit.text.tokenizer import TOKENIZER_FILES, Tokenizer

_ENDINGS = (".safetensors", ".bin", ".index", "config.json", "vocab.txt", "tokenizer.json", "tokens.json")  # of its files


@dataclass(frozen=True)
class Pretrained:
    """A model folder, opened."""

    name: str
    folder: Path
    config: BertConfig
    tokenizer: Tokenizer

    def fingerprint(self) -> dict[str, Any]:
        """What a resumed run must find unchanged: the sha256 of its weights, and its configuration."""
        return {"sha256": weights_hash(self.folder), "config": self.config.to_dict()}


def hash_of_model(folder: Path) -> str:
    """sha256 of all files of a model that decide what it predicts: weights, configuration and tokenizer."""
    names = sorted(path for path in folder.iterdir() if path.is_file() and path.name.endswith(_ENDINGS))
    return sha256(" ".join(f"{path.name} {sha256_once(path)}" for path in names).encode()).hexdigest()


def open_pretrained(name: str) -> Pretrained:
    """A model by folder, hub id or the name minilm. Raises ModelError where vocabulary and configuration differ."""
    folder = resolve(name)
    verify(folder, {*CONFIG_FILES, *TOKENIZER_FILES}.__contains__)
    config = read_config(folder)
    tokenizer = Tokenizer.load(folder)
    refuse_larger_vocabulary(tokenizer, config)
    return Pretrained(name, folder, config, tokenizer)


def start_from(
    pretrained: Pretrained | None,
    module: nn.Module,
    architecture: BertConfig,
    config: TrainConfig,
    *,
    fresh_head: bool = False,
    resuming: bool,
) -> None:
    """Give a module the model's weights, and fresh ones where it has none or where config.reinit_layers asks for them.

    pretrained: None to initialize all weights. fresh_head: as in `load_weights`. resuming: whether a checkpoint will replace
    these weights.
    """
    initialize(module, architecture, seed=config.seed)
    if pretrained is None:
        return
    fresh = load_weights(module, pretrained.folder, fresh_head=fresh_head)
    if fresh and not resuming:
        progress.note(f"newly initialized (seed {config.seed}), not loaded from the model: {', '.join(fresh)}")
    reinitialize(module, architecture, config)


def refuse_too_many_segments(features: Features, config: BertConfig) -> None:
    """Raise ModelError for text pairs if the model has too few segment types."""
    segments = 1 + int(features.token_type_ids.values.max(initial=0))
    if segments > config.type_vocab_size:
        what = f"the model's type_vocab_size is {config.type_vocab_size}, but the data has pairs, with {segments} segments"
        raise ModelError(what, hint="choose a model that was trained with pairs, or join the texts in one column")


def refuse_too_long(max_length: int, config: BertConfig, *, option: str = "--max-length") -> None:
    """Raise UsageError where `option` asks for sequences longer than the model has positions."""
    if max_length > config.max_position_embeddings:
        what = f"{option} is {max_length}; the model has {config.max_position_embeddings} positions"
        raise UsageError(what, hint=f"give {option} {config.max_position_embeddings} or less")

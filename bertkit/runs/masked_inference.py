"""Use a pre-trained model directly: fill [MASK] in lines of text, or score it on the held-out documents of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.text import Text

from bertkit import progress
from bertkit.config import PretrainConfig, options_of
from bertkit.corpus.build import read_meta
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.errors import ModelError, UsageError, listed, plural
from bertkit.features import Features, Ragged
from bertkit.model.config import BLOCK_KEY, PRETRAINING
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import load_weights, read_config, resolve
from bertkit.model.precision import resolve_precision
from bertkit.model.pretrained import Pretrained, check_max_length, open_pretrained
from bertkit.progress import plain
from bertkit.readers.content import source_name
from bertkit.readers.formats import LINES, read_file
from bertkit.runs.directory import read_run_file, refuse_folder_of_runs
from bertkit.runs.pretrain import check_tokenizer, held_out_sequences, score_language_model
from bertkit.training.batching import evaluation_batches

_HEADS = {objective.head.__name__ for objective in OBJECTIVES.values()}
_MOST_TOKENS = 512


def is_language_model(name: str) -> bool:
    """Whether this is a pre-training run, or any other model with a pre-training head."""
    refuse_folder_of_runs(Path(name))
    folder = resolve(name)
    values = read_run_file(folder)
    if values is not None:
        return values["recipe"].get("family") == PRETRAINING
    return bool(set(read_config(folder).extra.get("architectures") or ()) & _HEADS)


def fill_masks(name: str, file: str, overrides: Mapping[str, Any], *, top_k: int) -> tuple[list[dict[str, Any]], str]:
    """The lines of a file with the top_k most probable tokens for each [MASK]; and the mask token."""
    pretrained = open_pretrained(name)
    if pretrained.config.is_decoder:
        raise UsageError("a causal model cannot fill masks", where=name, hint="use it in bertkit finetune or bertkit eval")
    longest = min(_MOST_TOKENS, pretrained.config.max_position_embeddings)
    config = _settings({}, {"max_length": longest, **overrides})
    check_max_length(config.max_length, pretrained.config)
    tokenizer = pretrained.tokenizer
    lines: list[str] = read_file(file, (LINES,)).columns["text"]
    encoded = tokenizer.encode(lines, max_length=config.max_length)
    masks = [np.flatnonzero(encoded.input_ids[line] == tokenizer.mask_token_id) for line in range(len(lines))]
    with_masks = np.flatnonzero([len(positions) for positions in masks])
    if encoded.truncated.any():
        progress.note(f"truncated {encoded.truncated.sum()} of {plural(len(lines), 'line')} to {config.max_length} tokens")
    if not len(with_masks):
        what = f"no line has a {tokenizer.special_tokens['mask_token']} to fill"
        if encoded.truncated.any():
            what += f" in its first {config.max_length} tokens"
        hint = 'for example: echo "The [MASK] is closed." | bertkit predict MODEL'
        raise UsageError(what, where=source_name(file), hint=hint)
    input_ids, token_type_ids = encoded.input_ids.take(with_masks), encoded.token_type_ids.take(with_masks)
    features = Features(input_ids, token_type_ids, with_masks, rows=Ragged.of([masks[line].tolist() for line in with_masks]))
    accelerator = start_accelerator(config.device)
    module = _load(pretrained, config, accelerator)
    names = {number: token for token, number in tokenizer.vocab.items()}
    ids = torch.tensor(sorted(names), device=accelerator.device)
    fills_of: list[list[list[dict[str, Any]]]] = [[] for _ in lines]
    with torch.inference_mode(), progress.bar("predict", len(features)) as bar:
        for batch in evaluation_batches(features, config.micro_batch_tokens):
            probabilities, likeliest = module.likeliest(batch.to(accelerator.device), top_k, ids)
            fills = [
                [{"token": names[number], "probability": p} for p, number in zip(*pair, strict=True)]
                for pair in zip(probabilities.tolist(), likeliest.tolist(), strict=True)
            ]
            begins = batch.cu_rows.tolist()
            for feature, begin, end in zip(batch.features.tolist(), begins[:-1], begins[1:], strict=True):
                fills_of[with_masks[feature]] = fills[begin:end]
            bar.advance(len(batch.features))
    filled = [{"text": line, "fills": fills} for line, fills in zip(lines, fills_of, strict=True)]
    return filled, tokenizer.special_tokens["mask_token"]


def format_filled(row: Mapping[str, Any], mask_token: str) -> Text:
    """A line with its masks filled, and below it the most probable tokens of each mask."""
    parts = row["text"].split(mask_token)
    line = plain(parts[0])
    for fills, part in zip(row["fills"], parts[1:], strict=False):
        line += Text(plain(fills[0]["token"]).plain, style="bold green") + plain(part)
    line += plain("".join(mask_token + part for part in parts[1 + len(row["fills"]) :]))
    for fills in row["fills"]:
        likeliest_tokens = "  ".join(f"{fill['token']} {fill['probability']:.2f}" for fill in fills)
        line += Text(f"\n  {plain(likeliest_tokens)}", style="dim")
    return line


def evaluate_corpus(name: str, corpus: Path | None, overrides: Mapping[str, Any]) -> dict[str, float]:
    """Held-out loss, perplexity and accuracies of a model, on its own corpus or another with the same tokenizer."""
    pretrained = open_pretrained(name)
    values = read_run_file(pretrained.folder)
    if corpus is None:
        if values is None:
            raise UsageError(f"{name} is not a bertkit run and has no corpus of its own", hint="choose one: --corpus C")
        corpus = Path(values["data"]["corpus"]["source"])
    block = pretrained.config.extra.get(BLOCK_KEY) or {}  # also where run.json is missing
    asked = {"objective": block["objective"]} if block.get("objective") in OBJECTIVES else {}
    config = _settings(asked | (values or {}).get("training", {}), overrides)
    check_max_length(config.lengths()[-1][0], pretrained.config)
    config = replace(config, objective=_objective_of(pretrained, config.objective).name)
    meta = read_meta(corpus)
    check_tokenizer(pretrained.tokenizer, meta, corpus, name)
    features = held_out_sequences(corpus, meta, pretrained.tokenizer, config)
    if features is None:
        raise UsageError("the corpus has no held-out documents", where=str(corpus), hint="build it with --validation 1%")
    accelerator = start_accelerator(config.device)
    module = _load(pretrained, config, accelerator)
    scores = score_language_model(module, features, config.micro_batch_tokens, accelerator)
    accelerator.wait_for_everyone()
    return {f"validation/{name}": value for name, value in scores.items()}


def refuse_task_options(overrides: Mapping[str, Any]) -> None:
    """Raise UsageError for options that apply to tasks only."""
    for name in overrides:
        if name not in options_of(PretrainConfig):
            hint = "fine-tune it first, or give the task with --recipe"
            raise UsageError(f"--{name.replace('_', '-')} does not apply to a pre-trained model", hint=hint)


def _settings(training: Mapping[str, Any], overrides: Mapping[str, Any]) -> PretrainConfig:
    return PretrainConfig.of({**training, **({"phases": None} if "max_length" in overrides else {}), **overrides})


def _objective_of(pretrained: Pretrained, name: str) -> Objective:
    """The named objective if the model has its head, else the first objective whose head it has. Raises ModelError."""
    architectures = pretrained.config.extra.get("architectures") or []
    for objective in (OBJECTIVES[name], *OBJECTIVES.values()):
        if objective.head.__name__ in architectures:
            return objective
    what = f"the model is {', '.join(architectures) or 'an encoder without a head'}; expected {' or '.join(sorted(_HEADS))}"
    raise ModelError(what, where=pretrained.name)


def _load(pretrained: Pretrained, config: PretrainConfig, accelerator: Any) -> Any:
    """The model with its weights, on the device and in the working dtype."""
    module = _objective_of(pretrained, config.objective).head(pretrained.config)
    if fresh := load_weights(module, pretrained.folder):
        raise ModelError(f"the model has no trained head; missing: {listed(fresh)}", where=str(pretrained.folder))
    precision = resolve_precision(config.precision, pretrained.config, accelerator, training=False)
    return module.to(accelerator.device, precision.dtype).eval()

"""Fine-tuning: a recipe and a model become a run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from bertkit import progress
from bertkit.config import TrainConfig
from bertkit.errors import listed
from bertkit.metrics.classification import check_metrics
from bertkit.model.bert import initialize
from bertkit.model.devices import start_accelerator, working_dtype
from bertkit.model.directory import load_weights, save_model, weights_hash
from bertkit.model.layerwise import freeze, reinitialize
from bertkit.model.pretrained import check_max_length, check_segments, open_pretrained
from bertkit.readers import Examples
from bertkit.readers.splitting import parse_held_out
from bertkit.runs.card import model_card
from bertkit.runs.directory import Claim, claim, describe_end, describe_run, run_folder, show_end, write_run_file
from bertkit.runs.evaluate import read_split, score_splits
from bertkit.tasks.preview import show_examples
from bertkit.tasks.recipe import Recipe, published_scores, to_json
from bertkit.training.batching import Sampler, training_batches
from bertkit.training.loop import read_progress, train
from bertkit.training.tracking import check_trackers, tracked
from bertkit.training.vocabulary import UsedVocabulary

if TYPE_CHECKING:
    from accelerate import Accelerator


def total_steps(config: TrainConfig, sampler: Sampler) -> int:
    """Optimizer steps of the whole run."""
    return config.max_steps or max(1, math.ceil(config.num_epochs * sampler.steps_per_epoch))


def what_is_read(recipe: Recipe, name: str) -> list[str | None]:
    """The files and folders of a recipe's data, and its own file."""
    return [recipe.data, recipe.train, recipe.validation, recipe.test, name if name.endswith(".py") else None]


def finetune(
    recipe: Recipe,
    *,
    name: str,
    model: str,
    output_dir: Path,
    resume: str = "auto",
    overwrite: bool = False,
    fresh_head: bool | None = False,
    dry_run: bool = False,
    shown: int = 3,
) -> dict[str, Any]:
    """Train `model` on the recipe's data; output_dir becomes a run folder. Returns what run.json says at the end.

    Everything that can be wrong with data, model and settings is found before the first step. fresh_head: put a new head on a
    model that has one; None: if that is of another size. With dry_run some examples are shown (so many), the first steps are
    made and measured, and nothing is written.
    """
    accelerator = start_accelerator(recipe.training.device)
    claimed = Claim(output_dir) if dry_run else claim(output_dir, resume=resume, overwrite=overwrite)
    pretrained = open_pretrained(model)
    claimed.check_apart([pretrained.folder, *what_is_read(recipe, name)])
    recipe = recipe.settled_to_train().with_columns_found()
    config = recipe.training
    check_max_length(config.max_length, pretrained.config)
    check_trackers(config.track)
    check_metrics(recipe.metrics)

    examples = {split: recipe.load(split) for split in (recipe.train_split, *recipe.eval_splits)}
    every_row = examples[recipe.train_split]  # a part of them may lack a label
    if recipe.max_train_samples is not None:
        every_row = replace(recipe, max_train_samples=None).load(recipe.train_split)
    _say_what_is_held_out(recipe, examples)
    if fresh_head is None:
        wanted = recipe.with_labels(every_row).model_config(pretrained.config)
        fresh_head = wanted.num_labels != pretrained.config.num_labels
    fresh_head = fresh_head or not recipe.has_head(pretrained.config)
    recipe = recipe.with_labels(every_row, None if fresh_head else pretrained.config)
    if pretrained.config.label_names and not fresh_head:
        recipe.check_head(pretrained.config, str(pretrained.folder))
    splits = {split: read_split(recipe, split, rows, pretrained.tokenizer) for split, rows in examples.items()}
    for split in splits.values():
        check_segments(split.features, pretrained.config)
    if dry_run:
        show_examples(
            recipe, examples[recipe.train_split], splits[recipe.train_split].features, pretrained.tokenizer, count=shown
        )

    model_config = recipe.model_config(pretrained.config)
    module = recipe.build_model(model_config)
    initialize(module, model_config, seed=config.seed)
    if fresh := load_weights(module, pretrained.folder, fresh_head=fresh_head):
        progress.note(f"fresh weights (seed {config.seed}), not in the model: {', '.join(fresh)}")
    reinitialize(module, model_config, config)

    data = {split: rows.describe(recipe) for split, rows in splits.items()}
    num_parameters = sum(p.numel() for p in module.parameters())  # of all rows, before some are put aside
    vocabulary = UsedVocabulary([split.features for split in splits.values()], module, config)
    splits = {name: replace(split, features=vocabulary.narrow(split.features)) for name, split in splits.items()}
    freeze(module, config)
    training = splits.pop(recipe.train_split)
    sampler = Sampler(len(training.features), config.batch_size, config.seed)
    steps = total_steps(config, sampler)
    dtype = str(working_dtype(config.precision, accelerator.device)).removeprefix("torch.")
    progress.note(
        f"{len(training.features)} features / batch_size {config.batch_size} = {sampler.steps_per_epoch} steps an epoch; "
        f"{steps} steps in all; {accelerator.num_processes} process(es) on {accelerator.device}, {dtype}"
    )
    batches = training_batches(
        training.features,
        sampler,
        config.micro_batch_tokens,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
    )
    if dry_run:
        return _dry_run(module, batches, config, accelerator, steps, num_parameters)

    values = describe_run(
        recipe=to_json(recipe, name=name),
        training=config,
        model={"name": model, "sha256": weights_hash(pretrained.folder), "fresh_head": fresh_head},
        data=data,
        dtype=dtype,
        num_processes=accelerator.num_processes,
        total_steps=steps,
    )

    last = read_progress(claimed.resume_from).last_scores if claimed.resume_from is not None else {}

    def evaluate(trained: nn.Module) -> tuple[dict[str, float | None], float | None]:
        nonlocal last
        scored = score_splits(recipe, trained, splits, accelerator)
        last = scored.scores
        return scored.scores, scored.objective

    architecture = recipe.architecture(model_config)

    def save(folder: Path, state_dict: dict[str, Tensor], step: int) -> None:
        save_model(
            folder,
            state_dict=vocabulary.widen(state_dict, step=step, total_steps=steps),
            config=recipe.with_scores(last).model_config(model_config),
            tokenizer=pretrained.tokenizer,
            architecture=architecture,
        )

    with run_folder(claimed, values, accelerator), tracked(accelerator, config.track, output_dir, values["training"]):
        state = train(
            module,
            batches,
            config,
            accelerator,
            total_steps=steps,
            run_dir=output_dir,
            save_model=save,
            evaluate=evaluate,
            eval_every=config.eval_steps or sampler.steps_per_epoch,
            resume_from=claimed.resume_from,
        )
        values |= describe_end(state)
        values["recipe"] = to_json(recipe.with_scores(state.best_scores), name=name)
        if accelerator.is_main_process:
            (output_dir / "README.md").write_text(model_card(values, pretrained.name, architecture), encoding="utf-8")
            write_run_file(output_dir, values)
            show_end(state, output_dir, published_scores(recipe, model))
            if architecture == "BertModel":
                progress.note("its head is bertkit's own: transformers opens the folder as an encoder only")
            progress.note(f"the best model is in {output_dir}; next: bertkit predict {output_dir} FILE")
        accelerator.wait_for_everyone()
    return values


def _say_what_is_held_out(recipe: Recipe, examples: Mapping[str, Examples]) -> None:
    """Where a held-out part is far from the share that was asked for, or without a class: equal texts stay together."""
    asked = parse_held_out(recipe.held_out or recipe.validation or "")
    if asked is None or "validation" not in examples:
        return
    training, held = examples[recipe.train_split], examples["validation"]
    if isinstance(asked, float) and recipe.max_train_samples is None:
        share = len(held) / (len(held) + len(training))
        if not asked / 1.5 - 1 / len(held) < share < asked * 1.5 + 1 / len(held):
            progress.warn(f"held out: {share:.0%} of the rows, where {asked:.0%} was asked for; equal texts stay together")
    known, there = ({name for its in recipe.labels_of(rows) for name in its} for rows in (training, held))
    if (never := sorted(known - there)) and not getattr(recipe, "regression", False):
        progress.note(f"held out: no row has {listed(never, 12)}, of which the scores say nothing")


def _dry_run(
    module: nn.Module, batches: Any, config: TrainConfig, accelerator: Accelerator, steps: int, num_parameters: int
) -> dict[str, Any]:
    import resource
    import sys
    import tempfile

    import torch

    trial = min(3, steps)
    with tempfile.TemporaryDirectory() as folder:
        train(module, batches, replace(config, logging_steps=1), accelerator, total_steps=trial, run_dir=Path(folder))
        log = progress.MetricsLog(Path(folder) / "metrics.jsonl").read()
    if not accelerator.is_main_process:  # the log is the main process's
        accelerator.wait_for_everyone()
        return {}
    tokens_per_second = float(np.median([event["tokens_per_second"] for event in log]))
    tokens = float(np.mean([sum(len(batch.input_ids) for batch in batches(step)) for step in range(min(steps, 50))]))
    if accelerator.device.type == "cuda":
        memory = torch.cuda.max_memory_allocated() / 2**20
    else:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    seconds = steps * tokens * accelerator.num_processes / tokens_per_second
    found = {
        "parameters": num_parameters,
        "peak memory, MiB": round(memory),
        "steps": steps,
        "tokens a second": round(tokens_per_second),
        "training, minutes": round(seconds / 60, 1),
    }
    progress.table("dry run: nothing was written", list(found), [list(found.values())])
    accelerator.wait_for_everyone()
    return found

"""Pre-train on a corpus into a run folder, from scratch or from a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus
from bertkit.corpus.entities import hash_of_entities, read_entities
from bertkit.corpus.mixing import Mix
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.corpus.preview import show_share_read, warn_of_absent_entities
from bertkit.errors import UsageError, plural
from bertkit.model.batch import Batch
from bertkit.model.config import PRETRAINING, BertConfig
from bertkit.model.devices import refuse_differences, start_accelerator
from bertkit.model.precision import Precision, refuse_int8, resolve_precision
from bertkit.model.pretrained import refuse_too_long
from bertkit.runs.directory import SAME, RunFolder
from bertkit.runs.pretraining.course import Course
from bertkit.runs.pretraining.estimate import Phase, estimate
from bertkit.runs.pretraining.gpus import Gpus
from bertkit.runs.pretraining.held_out import unigram_loss
from bertkit.runs.pretraining.sequences import HeldOutSequences, held_out_sequences, micro_batches, mix_of
from bertkit.runs.pretraining.steps import mean_batch_size, steps_of_epochs, steps_of_hours
from bertkit.runs.pretraining.training import PreparedPretraining, time_first_steps, train_into
from bertkit.runs.pretraining.weights import build_model
from bertkit.runs.run_file import changed_settings, describe_run, flat
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.loop import refuse_overlap, refuse_unsupported
from bertkit.training.state import TrainState, read_progress
from bertkit.training.tracking import refuse_unusable_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator

UNIGRAM = "token frequencies"
SHARDS_COUNTED = 8  # of each corpus, for the token frequencies


def pretrain(
    corpora: Sequence[Corpus],
    config: PretrainConfig,
    *,
    output_dir: Path,
    model: str | None = None,
    architecture: BertConfig | None = None,
    continue_with: Sequence[Corpus] = (),
    resume: str = "auto",
    overwrite: bool = False,
    dry_run: bool = False,
    gpus: Gpus | None = None,
    set_by: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Train on a mix of corpora, from scratch with `architecture` or from `model`; returns the final content of run.json.

    Keeps the weights with the best held-out token loss, or the last ones if no corpus has held-out documents. continue_with:
    the mix that a stopped run reads from now on; its held-out loss then decides which weights are best. dry_run: write nothing,
    but show what training would take, by timing its first steps on this machine, or as an estimate for `gpus`. set_by: what set
    each option that is not at its default, for run.json. Raises UsageError for corpora with a different tokenizer than the
    model's, and for continue_with if no run is resumed.
    """
    start = time.perf_counter()
    accelerator = start_accelerator(config.device)
    _refuse_settings(config, continue_with or corpora, gpus, accelerator)
    tokenizer = Tokenizer.load(corpora[0].folder)
    if config.entities is not None:
        read_entities(config.entities, tokenizer)  # raises DataError if they cannot be read
    reads = [*(c.folder for c in (*corpora, *continue_with)), model]
    run = None if dry_run else RunFolder.prepare(output_dir, resume=resume, overwrite=overwrite, reads=reads)
    if run is not None:
        run.refuse_other_folders(accelerator)
    data, read_last = (_describe_corpora(each, config) for each in (corpora, continue_with or corpora))
    read = [*flat(data, "data"), *(flat(read_last, "continue_with") if continue_with else [])]
    refuse_differences({name: value for name, value in read if not name.endswith(".source")}, accelerator, hint=SAME)
    earlier = _Earlier.of(run, read_last if continue_with else {})
    if continue_with:
        continue_with[0].refuse_other_tokenizer(tokenizer, str(corpora[0].folder))
        corpora = continue_with
    objective = OBJECTIVES[config.objective]
    resuming = run is not None and run.resume_from is not None
    module, model_config, started_from = build_model(
        config, objective, corpora[0], tokenizer, model=model, architecture=architecture, resuming=resuming
    )
    lengths = config.lengths()
    longest = max(length for length, _ in lengths)
    refuse_too_long(longest, model_config, option="--phases" if config.phases else "--max-length")
    precision = _precision(config, model_config, gpus, accelerator, earlier.run.get("dtype"))
    in_precision = replace(config, precision=precision.name)
    mixes = [mix_of(corpora, tokenizer, config, length, earlier.place_in(phase)) for phase, (length, _) in enumerate(lengths)]
    _warn_of_single_documents(corpora, objective)
    if run is None or run.resume_from is None:
        _refuse_empty(mixes)
        _show_what_is_read(corpora, mixes)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    validation = held_out_sequences(corpora, tokenizer, config, rank=rank, world_size=world_size)
    _note_what_is_not_held_out(corpora)
    to_beat = None if validation is None else _loss_to_beat(validation, objective, mixes[0], tokenizer, accelerator)
    batches_of = partial(micro_batches, limit=config.micro_batch_tokens, rank=rank, world_size=world_size)
    typical = partial(batches_of, masked=sum(config.mlm_probabilities()) / 2)
    timed = partial(steps_of_hours, in_precision, start, module, typical, mixes, validation, accelerator)
    steps = _steps(config, earlier, corpora, mixes[0], timed)
    # Each phase's steps, counted as if all batches were full.
    whole = [share * steps * mean_batch_size(config) / config.batch_size for _, share in lengths]
    if gpus is not None:
        phases = _phases_on(gpus, typical, whole, mixes)
        averaging = round(config.average_ratio * steps) > 0
        return estimate(partial(objective.head, model_config), phases, in_precision, gpus, steps=steps, averaging=averaging)
    training = PreparedPretraining(
        objective=objective,
        config=in_precision,
        precision=precision,
        model_config=model_config,
        module=module,
        tokenizer=tokenizer,
        mixes=mixes,
        course=Course(config, steps, earlier.since),
        batches_of=batches_of,
        validation=validation,
        to_beat=to_beat,
        accelerator=accelerator,
    )
    most = f"{'up to ' if config.rampup_batch_size else ''}{config.batch_size} sequences"
    progress.note(
        f"{plural(steps, 'step')} of {most} of at most {longest} tokens; "
        f"{plural(accelerator.num_processes, 'process', 'processes')} on {accelerator.device.type}, {precision.recorded}"
    )
    if run is None:
        return time_first_steps(training, whole)
    return train_into(run, training, _describe(training, config, earlier, started_from, data, set_by or {}))


class _Earlier(NamedTuple):
    """What the run to resume has done, nothing if there is none. run: its run.json. state: that of its checkpoint. continued:
    as returned by `_continued_with`.
    """

    run: Mapping[str, Any]
    state: TrainState
    continued: list[dict[str, Any]]

    @classmethod
    def of(cls, run: RunFolder | None, continue_with: dict[str, Any]) -> _Earlier:
        """run: None for a dry run. continue_with: the corpora to read from now on, if they change. Raises UsageError."""
        if run is None:
            return cls({}, TrainState(), [])
        state = TrainState() if run.resume_from is None else read_progress(run.resume_from)
        return cls(run.unfinished or {}, state, _continued_with(run, state.step, continue_with))

    @property
    def since(self) -> int:
        """The step from which the latest corpora are read."""
        return self.continued[-1]["step"] if self.continued else 0

    def place_in(self, phase: int) -> Sequence[int]:
        """The mark in the checkpoint by which the phase's sequences are found faster; empty if it has none."""
        position = self.state.position if self.state.step > self.since else None
        return position[1:] if position and position[0] == phase else ()


def _describe_corpora(corpora: Sequence[Corpus], config: PretrainConfig) -> dict[str, Any]:
    """The "data" entry of run.json: a corpus, or those of a mix by name, with the sha256 of the entities to mask."""
    is_mixed = len(corpora) > 1
    entities = {} if config.entities is None else {"entities": hash_of_entities(config.entities)}
    return {
        corpus.name if is_mixed else "corpus": {
            "source": str(corpus.folder.resolve()),
            **({"share": corpus.share} if is_mixed else {}),
            **{key: corpus.meta[key] for key in ("tokenizer", "documents", "hashes")},
            **({"shards_sha256": shards} if (shards := corpus.shards_sha256) is not None else {}),
            **entities,
        }
        for corpus in corpora
    }


def _continued_with(run: RunFolder, step: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The "continued" entry of run.json: the corpora that a run reads instead of its first ones, and from which step on.

    data: of the corpora that are given now, if any. Raises UsageError if corpora were given before and are missing now, if no
    run is resumed, or if no step is left to read them.
    """
    where = str(run.output.path)
    if data and run.unfinished is None:
        hint = "name the corpus as the first argument; to continue a run from another folder, give --resume CHECKPOINT"
        raise UsageError("--continue-with is for a run that was stopped; there is none here", where=where, hint=hint)
    continued = [each for each in (run.unfinished or {}).get("continued") or [] if each["step"] <= step]
    if not changed_settings({"data": continued[-1]["data"] if continued else {}}, {"data": data}):
        return continued
    if not data:
        sources = [corpus["source"] for corpus in continued[-1]["data"].values()]
        what = f"since step {continued[-1]['step']} the run has been reading {' and '.join(sources)}"
        raise UsageError(
            what, where=where, hint="repeat its command with the same --continue-with, or name another corpus there"
        )
    if run.unfinished is not None and step >= run.unfinished["total_steps"]:
        hint = "to continue from its weights, name the other corpus as the first argument, and the run's folder as --model"
        raise UsageError(f"all {step} steps are done: none is left for --continue-with", where=where, hint=hint)
    return [*(each for each in continued if each["step"] < step), {"step": step, "data": data}]


def _refuse_settings(config: PretrainConfig, corpora: Sequence[Corpus], gpus: Gpus | None, accelerator: Accelerator) -> None:
    """Raise UsageError for settings that cannot be used with these corpora, or on this machine or `gpus`."""
    refuse_unusable_trackers(config.track)
    refuse_int8(config.precision, "training")
    refuse_overlap(config)
    if config.early_stopping_patience is not None and not any(corpus.has_validation for corpus in corpora):
        what = "--early-stopping-patience needs a held-out loss, but the corpus has no held-out documents"
        raise UsageError(what, where=str(corpora[0].folder), hint="build it with --validation 1%")
    if gpus is None:
        refuse_unsupported(config, accelerator.device)
    elif config.hours is not None:
        what = "--hours is planned by timing steps, which is impossible on GPUs that are not available here"
        raise UsageError(what, hint="give --max-steps or --num-epochs")


def _precision(
    config: PretrainConfig, model_config: BertConfig, gpus: Gpus | None, accelerator: Accelerator, recorded: str | None
) -> Precision:
    """The precision to compute in, and a note about it. recorded: the dtype of the run to resume."""
    if gpus is None:
        precision = resolve_precision(config.precision, model_config, accelerator, training=True, recorded=recorded)
    else:
        precision = Precision(gpus.precision(config.precision))
    if line := str(precision):
        progress.note(line)
    return precision


def _steps(config: PretrainConfig, earlier: _Earlier, corpora: Sequence[Corpus], mix: Mix, timed: Callable[[], int]) -> int:
    """The steps of the whole run. timed: finds those that fit into --hours."""
    if config.max_steps is not None:
        return config.max_steps
    if earlier.run:
        return earlier.run["total_steps"]
    return steps_of_epochs(config, corpora, mix) if config.hours is None else timed()


def _describe(
    training: PreparedPretraining,
    config: PretrainConfig,
    earlier: _Earlier,
    started_from: dict[str, Any],
    data: dict[str, Any],
    set_by: Mapping[str, str],
) -> dict[str, Any]:
    """The content of run.json at the start of a run. config: as the user gave it."""
    return describe_run(
        recipe={"name": "pretrain", "family": PRETRAINING},
        training=config,
        model=started_from,
        data=data,
        dtype=training.precision.recorded,
        rates=training.precision.rates or earlier.run.get("rates"),
        continued=earlier.continued or None,
        baselines=None if training.to_beat is None else {UNIGRAM: training.to_beat},
        num_processes=training.accelerator.num_processes,
        num_threads=torch.get_num_threads(),
        total_steps=training.course.steps,
        drawing=training.objective.drawing,
        set_by=set_by,
    )


def _warn_of_single_documents(corpora: Sequence[Corpus], objective: Objective) -> None:
    for corpus in corpora:
        if corpus.meta["train"]["documents"] < objective.min_documents:
            what = f"{corpus.folder} is a single document, so every segment B is {objective.pair_labels[0]}"
            progress.warn(f"{what}: rebuild it with another --layout, or train with --objective mlm")


def _refuse_empty(mixes: Sequence[Mix]) -> None:
    """Raise DataError for a corpus without a sequence."""
    for sampler in chain.from_iterable(mix.parts for mix in mixes):
        sampler.lengths(np.arange(1))


def _show_what_is_read(corpora: Sequence[Corpus], mixes: Sequence[Mix]) -> None:
    """Report how much of each corpus is read."""
    for corpus, sampler in chain.from_iterable(zip(corpora, mix.parts, strict=True) for mix in mixes):
        show_share_read(sampler, corpus.name if len(corpora) > 1 else "")
    warn_of_absent_entities(mixes[0].parts)


def _note_what_is_not_held_out(corpora: Sequence[Corpus]) -> None:
    without = [corpus for corpus in corpora if not corpus.has_validation]
    if len(without) == len(corpora):
        progress.note("the corpus has no held-out documents: no held-out loss, and the last weights are kept")
        return
    for corpus in without:
        progress.note(f"{corpus.name} has no held-out documents: the held-out loss is that of the other text")


def _loss_to_beat(
    validation: HeldOutSequences, objective: Objective, mix: Mix, tokenizer: Tokenizer, accelerator: Accelerator
) -> float:
    """The held-out loss of predicting each token by its frequency in the training text."""
    targets = validation.features.labels[objective.token_term].values
    parts = ((share, islice(part.shards, SHARDS_COUNTED)) for share, part in zip(mix.shares, mix.parts, strict=True))
    return unigram_loss(parts, tokenizer.vocab_size, targets, accelerator)


def _phases_on(gpus: Gpus, batches_of: Callable[..., list[Batch]], steps: Sequence[float], mixes: Sequence[Mix]) -> list[Phase]:
    """Each phase's steps, and what some of the GPUs compute in its first one; all GPUs have about the same work."""
    ranks = sorted({*range(min(gpus.number, 8)), gpus.number - 1})
    times = gpus.number / len(ranks)
    return [
        Phase(times * n, [batches_of(mix, mix.numbers_at(0), rank=rank, world_size=gpus.number) for rank in ranks])
        for n, mix in zip(steps, mixes, strict=True)
    ]

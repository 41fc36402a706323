"""Pre-train on a corpus into a run folder, from fresh weights or from a model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.corpora import Corpus
from bertkit.corpus.entities import read_entities
from bertkit.corpus.mixing import Mix
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.corpus.preview import show_share_read, warn_of_absent_entities
from bertkit.corpus.sampling import COUNTED, WINDOW
from bertkit.errors import UsageError, plural
from bertkit.model.batch import Batch
from bertkit.model.bert import initialize
from bertkit.model.config import BLOCK_KEY, PRETRAINING, BertConfig
from bertkit.model.devices import of_all_processes, of_main_process, refuse_differences, start_accelerator
from bertkit.model.directory import load_weights
from bertkit.model.layerwise import freeze, reinitialize
from bertkit.model.precision import Precision, refuse_int8, resolve_precision
from bertkit.model.pretrained import check_max_length, open_pretrained
from bertkit.readers.content import read_text
from bertkit.runs.directory import SAME, RunFolder
from bertkit.runs.pretraining.course import Course, mean_batch_size, steps_in
from bertkit.runs.pretraining.estimate import Gpus, Phase, estimate
from bertkit.runs.pretraining.held_out import unigram_loss
from bertkit.runs.pretraining.rehearsal import rehearse
from bertkit.runs.pretraining.sequences import HeldOutSequences, held_out_sequences, micro_batches, mix_of
from bertkit.runs.pretraining.training import Training, train_into, try_out
from bertkit.runs.run_file import describe_run, flat
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.loop import TrainState, check_machine, read_progress
from bertkit.training.tracking import check_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator

UNIGRAM = "token frequencies"
SHARDS_COUNTED = 8  # for them


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
    """Train on a mix of corpora, from fresh weights of `architecture` or from `model`; returns the final content of run.json.

    Keeps the weights with the best held-out token loss, or the last ones if no corpus has held-out documents. continue_with:
    the mix that a stopped run reads from now on; its held-out loss then decides which weights are best. dry_run: write nothing,
    but show what training would take, by timing its first steps on this machine, or as an estimate for `gpus`. set_by: what set
    each option that is not at its default, for run.json. Raises UsageError for corpora with a different tokenizer than the
    model's, and for continue_with if no run is resumed.
    """
    start = time.perf_counter()
    accelerator = start_accelerator(config.device)
    check_trackers(config.track)
    refuse_int8(config.precision, "training")
    if gpus is None:
        check_machine(config, accelerator.device)
    tokenizer = Tokenizer.load(corpora[0].folder)
    if config.entities is not None:
        read_entities(config.entities, tokenizer)  # raises DataError if they cannot be read
    if gpus is not None and config.hours is not None:
        what = "--hours is planned by timing steps, which is impossible on GPUs that are not available here"
        raise UsageError(what, hint="give --max-steps or --num-epochs")
    reads = [*(c.folder for c in (*corpora, *continue_with)), model]
    run = None if dry_run else RunFolder.prepare(output_dir, resume=resume, overwrite=overwrite, reads=reads)
    if run is not None:
        run.refuse_other_folders(accelerator)
    data, read_last = _describe(corpora, config), _describe(continue_with or corpora, config)
    read = [*flat(data, "data"), *(flat(read_last, "continue_with") if continue_with else [])]
    same = {name: value for name, value in read if not name.endswith(".source")}
    refuse_differences(same, accelerator, hint=SAME)
    before = (run and run.unfinished) or {}
    resume_from = None if run is None else run.resume_from
    progressed = read_progress(resume_from) if resume_from is not None else TrainState()
    continued = [] if run is None else _continue(run, progressed.step, read_last if continue_with else {})
    since = continued[-1]["step"] if continued else 0  # the step from which the latest corpora are read
    if continue_with:
        continue_with[0].check_tokenizer(tokenizer, str(corpora[0].folder))
        corpora = continue_with
    objective = OBJECTIVES[config.objective]
    module, model_config, started_from = _build(config, objective, corpora[0], tokenizer, model, architecture)
    lengths = config.lengths()
    longest = max(length for length, _ in lengths)
    check_max_length(longest, model_config, option="--phases" if config.phases else "--max-length")
    if gpus is None:
        precision = resolve_precision(config.precision, model_config, accelerator, training=True, recorded=before.get("dtype"))
    else:
        precision = Precision(gpus.precision(config.precision))
    if line := str(precision):
        progress.note(line)
    in_precision = replace(config, precision=precision.name)
    begun: dict[int, list[int]] = {}  # by phase
    if progressed.position is not None and progressed.step > since:
        begun = {progressed.position[0]: progressed.position[1:]}
    mixes = [mix_of(corpora, tokenizer, config, length, begun.get(phase, ())) for phase, (length, _) in enumerate(lengths)]
    _warn_of_single_documents(corpora, objective)
    if resume_from is None:
        _show_what_is_read(corpora, mixes)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    validation = held_out_sequences(corpora, tokenizer, config, rank=rank, world_size=world_size)
    _note_what_is_not_held_out(config, corpora)
    to_beat = None if validation is None else _loss_to_beat(validation, objective, mixes[0], tokenizer, accelerator)
    batches_of = partial(micro_batches, limit=config.micro_batch_tokens, rank=rank, world_size=world_size)
    typical = partial(batches_of, masked=sum(config.mlm_probabilities()) / 2)
    if config.max_steps is not None and config.hours is None:
        steps = config.max_steps
    elif before:
        steps = before["total_steps"]
    elif config.hours is None:
        steps = _steps_of_epochs(config, corpora, mixes[0])
    else:
        steps = _steps_of_hours(in_precision, start, module, typical, mixes, validation, accelerator)
    # Each phase's steps, counted as if all batches were full.
    whole = [share * steps * mean_batch_size(config) / config.batch_size for _, share in lengths]
    if gpus is not None:
        phases = _phases_on(gpus, typical, whole, mixes)
        averaging = round(config.average_ratio * steps) > 0
        return estimate(partial(objective.head, model_config), phases, in_precision, gpus, steps=steps, averaging=averaging)
    training = Training(
        objective=objective,
        config=in_precision,
        precision=precision,
        model_config=model_config,
        module=module,
        tokenizer=tokenizer,
        mixes=mixes,
        course=Course(config, steps, since),
        steps=steps,
        batches_of=batches_of,
        validation=validation,
        to_beat=to_beat,
        accelerator=accelerator,
    )
    most = f"{'up to ' if config.rampup_batch_size else ''}{config.batch_size} sequences"
    progress.note(
        f"{steps} steps of {most} of at most {longest} tokens; "
        f"{plural(accelerator.num_processes, 'process', 'processes')} on {accelerator.device.type}, {precision.recorded}"
    )
    if run is None:
        return try_out(training, whole)
    values = describe_run(
        recipe={"name": "pretrain", "family": PRETRAINING},
        training=config,
        model=started_from,
        data=data,
        dtype=precision.recorded,
        rates=precision.rates or before.get("rates"),
        continued=continued or None,
        baselines=None if to_beat is None else {UNIGRAM: to_beat},
        num_processes=accelerator.num_processes,
        num_threads=torch.get_num_threads(),
        total_steps=steps,
        drawing=objective.drawing,
        set_by=set_by or {},
    )
    return train_into(run, training, values, since)


def fresh_architecture(
    meta: dict[str, Any], config: PretrainConfig, size: str | None, sizes: dict[str, int], file: Path | None = None
) -> BertConfig:
    """The architecture for fresh weights: from a config.json, or a named size, which explicit sizes override.

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
    return BertConfig.of_size(size, **changes) if size is not None else BertConfig(**changes)


def _describe(corpora: Sequence[Corpus], config: PretrainConfig) -> dict[str, Any]:
    """The "data" entry of run.json: a corpus, or those of a mix by name, with the sha256 of the entities to mask."""
    is_mixed = len(corpora) > 1
    entities = {} if config.entities is None else {"entities": sha256(read_text(config.entities).encode()).hexdigest()}
    return {
        corpus.name if is_mixed else "corpus": {
            "source": str(corpus.folder.resolve()),
            **({"share": corpus.share} if is_mixed else {}),
            **{key: corpus.meta[key] for key in ("tokenizer", "documents", "hashes")},
            **entities,
        }
        for corpus in corpora
    }


def _continue(run: RunFolder, step: int, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The "continued" entry of run.json: the corpora that a run reads instead of its first ones, and from which step on.

    data: of the corpora that are given now, if any. Raises UsageError if corpora were given before and are missing now, if no
    run is resumed, or if no step is left to read them.
    """
    where = str(run.output.path)
    if data and run.unfinished is None:
        hint = "name the corpus as the first argument; to continue a run from another folder, give --resume CHECKPOINT"
        raise UsageError("--continue-with is for a run that was stopped; there is none here", where=where, hint=hint)
    continued = [each for each in (run.unfinished or {}).get("continued") or [] if each["step"] <= step]
    if data == (continued[-1]["data"] if continued else {}):
        return continued
    if not data:
        sources = [corpus["source"] for corpus in continued[-1]["data"].values()]
        what = f"from step {continued[-1]['step']} on the run reads {' and '.join(sources)}"
        raise UsageError(what, where=where, hint="repeat its command, with --continue-with; or give another corpus there")
    if run.unfinished is not None and step >= run.unfinished["total_steps"]:
        hint = "to continue from its weights, name the other corpus as the first argument, and the run's folder as --model"
        raise UsageError(f"all {step} steps are done, and none is left for --continue-with", where=where, hint=hint)
    return [*(each for each in continued if each["step"] < step), {"step": step, "data": data}]


def _warn_of_single_documents(corpora: Sequence[Corpus], objective: Objective) -> None:
    for corpus in corpora:
        if corpus.meta["train"]["documents"] < objective.min_documents:
            what = f"{corpus.folder} is a single document, so every segment B is {objective.pair_labels[0]}"
            progress.warn(f"{what}: split it with --layout, or train with --objective mlm")


def _show_what_is_read(corpora: Sequence[Corpus], mixes: Sequence[Mix]) -> None:
    """Report how much of each corpus is read. Raises DataError for a corpus without a sequence."""
    for corpus, sampler in chain.from_iterable(zip(corpora, mix.parts, strict=True) for mix in mixes):
        sampler.lengths(np.arange(1))
        show_share_read(sampler, corpus.name if len(corpora) > 1 else "")
    warn_of_absent_entities(mixes[0].parts)


def _note_what_is_not_held_out(config: PretrainConfig, corpora: Sequence[Corpus]) -> None:
    """Note which corpora have no held-out text. Raises UsageError if none has, but the held-out loss should stop training."""
    without = [corpus for corpus in corpora if not corpus.meta["validation"]["shards"]]
    if len(without) < len(corpora):
        for corpus in without:
            progress.note(f"{corpus.name} has no held-out documents: the held-out loss is that of the other text")
        return
    if config.early_stopping_patience is not None:
        what = "--early-stopping-patience needs a held-out loss, but the corpus has no held-out documents"
        raise UsageError(what, where=str(corpora[0].folder), hint="build it with --validation 1%")
    progress.note("the corpus has no held-out documents: no held-out loss, and the last weights are kept")


def _loss_to_beat(
    validation: HeldOutSequences, objective: Objective, mix: Mix, tokenizer: Tokenizer, accelerator: Accelerator
) -> float:
    """The held-out loss of predicting each token by its frequency in the training text."""
    targets = validation.features.labels[objective.token_term].values
    shards = chain.from_iterable(islice(part.shards, SHARDS_COUNTED) for part in mix.parts)
    return unigram_loss(shards, tokenizer.vocab_size, targets, accelerator)


def _steps_of_epochs(config: PretrainConfig, corpora: Sequence[Corpus], mix: Mix) -> int:
    count, exact = mix.epoch_length([corpus.meta["train"]["tokens"] for corpus in corpora])
    if not exact:
        progress.note(f"an epoch has about {count} sequences, estimated from {COUNTED * WINDOW} shards of a corpus")
    return max(1, math.ceil(config.num_epochs * count / mean_batch_size(config)))


def _steps_of_hours(
    config: PretrainConfig,
    start: float,
    module: nn.Module,
    batches_of: Callable[..., list[Batch]],
    mixes: Sequence[Mix],
    validation: HeldOutSequences | None,
    accelerator: Accelerator,
) -> int:
    """The steps that fit into --hours since `start`, found by timing some steps of each phase."""
    assert config.hours is not None
    progress.note(f"timing steps to plan for {config.hours:g} hours")

    def seconds_a_step(mix: Mix) -> float:
        return rehearse(module, lambda step: batches_of(mix, mix.numbers_at(step)), config, accelerator)

    seconds = [seconds_a_step(mix) for mix in mixes]
    left = of_main_process(start + 3600 * config.hours - time.perf_counter(), accelerator)
    own = 0 if validation is None else len(validation.features)
    held_out = int(of_all_processes(torch.tensor(own, dtype=torch.float64), accelerator))
    return steps_in(config, left, seconds, held_out)


def _phases_on(gpus: Gpus, batches_of: Callable[..., list[Batch]], steps: Sequence[float], mixes: Sequence[Mix]) -> list[Phase]:
    """Each phase's steps, and what some of the GPUs compute in its first one; all GPUs have about the same work."""
    ranks = sorted({*range(min(gpus.number, 8)), gpus.number - 1})
    times = gpus.number / len(ranks)
    return [
        Phase(times * n, [batches_of(mix, mix.numbers_at(0), rank=rank, world_size=gpus.number) for rank in ranks])
        for n, mix in zip(steps, mixes, strict=True)
    ]


def _build(
    config: PretrainConfig,
    objective: Objective,
    corpus: Corpus,
    tokenizer: Tokenizer,
    model: str | None,
    architecture: BertConfig | None,
) -> tuple[nn.Module, BertConfig, dict[str, Any]]:
    """The module with its weights, its configuration, and the "model" entry of run.json."""
    if model is not None and config.optimizer == "muon":
        what = "--optimizer muon is for fresh weights, not for --model"
        raise UsageError(what, hint="add --optimizer adamw, also where --preset sets muon")
    pretrained = open_pretrained(model) if model is not None else None
    if pretrained is None:
        if config.reinit_layers:
            raise UsageError("--reinit-layers needs --model: without it, all weights are fresh")
        assert architecture is not None
        model_config = replace(architecture, is_decoder=objective.causal, pad_token_id=tokenizer.pad_token_id)
        origin: dict[str, Any] = {"name": "fresh", "config": model_config.to_dict()}
    else:
        corpus.check_tokenizer(pretrained.tokenizer, pretrained.name)
        if pretrained.config.is_decoder and not objective.causal:
            causal = " or ".join(other.name for other in OBJECTIVES.values() if other.causal)
            what = f"{model} is a causal model, but --objective is {objective.name}"
            raise UsageError(what, hint=f"train with --objective {causal}, or start from another model")
        model_config = replace(pretrained.config.without_head(), is_decoder=objective.causal)
        origin = {"name": model, **pretrained.fingerprint()}
    if objective.pair_term is not None and model_config.type_vocab_size < 2:
        what = f"type_vocab_size is {model_config.type_vocab_size}; expected 2 or more, as pairs have two segments"
        raise UsageError(what, hint="raise it, or train with --objective mlm")
    module = objective.head(model_config)
    initialize(module, model_config, seed=config.seed)
    if pretrained is not None:
        if fresh := load_weights(module, pretrained.folder):
            progress.note(f"fresh weights (seed {config.seed}), not in the model: {', '.join(fresh)}")
        reinitialize(module, model_config, config)
    freeze(module, config)
    block = {"format": 1, "family": PRETRAINING, "objective": objective.name}
    return module, replace(model_config, extra=model_config.extra | {BLOCK_KEY: block}), origin

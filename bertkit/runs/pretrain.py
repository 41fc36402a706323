"""Pre-train on a corpus into a run folder, from fresh weights or from a model."""

from __future__ import annotations

import copy
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit import progress
from bertkit.config import PretrainConfig
from bertkit.corpus.directory import read_meta
from bertkit.corpus.objectives import OBJECTIVES, Objective
from bertkit.corpus.preview import show_share_read
from bertkit.corpus.sampling import COUNTED, START, WINDOW, CorpusSampler, Mark
from bertkit.corpus.shard import Shard, Shards
from bertkit.errors import DataError, UsageError, plural
from bertkit.features import Features, offsets_of
from bertkit.model.batch import Batch
from bertkit.model.bert import initialize
from bertkit.model.config import BLOCK_KEY, PRETRAINING, BertConfig
from bertkit.model.devices import refuse_differences, start_accelerator
from bertkit.model.directory import load_weights, save_model
from bertkit.model.layerwise import freeze, reinitialize
from bertkit.model.precision import matrix_rate, refuse_int8, resolve_precision
from bertkit.model.pretrained import check_max_length, open_pretrained
from bertkit.runs.card import pretraining_card
from bertkit.runs.directory import SAME, RunFolder, describe_run, flat, scores_table
from bertkit.runs.evaluate import check_finite
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import collate, deal, evaluation_batches
from bertkit.training.loop import read_progress, train
from bertkit.training.tracking import check_trackers, tracked

if TYPE_CHECKING:
    from accelerate import Accelerator

HELD_OUT = 2048  # most sequences of the validation split to evaluate
EVALUATIONS = 10  # per run without eval_steps
UNIGRAM = "token frequencies"
SHARDS_COUNTED = 8  # for them
REHEARSED = 50  # most steps timed to plan for --hours
REHEARSAL = 0.02  # most of the hours to spend on timing, as a share


def pretrain(
    corpus: Path,
    config: PretrainConfig,
    *,
    output_dir: Path,
    model: str | None = None,
    architecture: BertConfig | None = None,
    resume: str = "auto",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train on a corpus, from fresh weights of `architecture` or from `model`; returns the final content of run.json.

    Keeps the weights with the best held-out token loss, or the last ones if the corpus has no held-out documents. Raises
    UsageError for a corpus with a different tokenizer than the model's.
    """
    start = time.perf_counter()
    accelerator = start_accelerator(config.device)
    check_trackers(config.track)
    refuse_int8(config.precision, "training")
    run = RunFolder.prepare(output_dir, resume=resume, overwrite=overwrite, reads=[corpus, model])
    run.refuse_other_folders(accelerator)
    meta = read_meta(corpus)
    same = {name: value for part in ("tokenizer", "hashes") for name, value in flat(meta[part], f"corpus.{part}")}
    refuse_differences(same, accelerator, hint=SAME)
    tokenizer = Tokenizer.load(corpus)
    objective = OBJECTIVES[config.objective]
    module, model_config, started_from = _build(config, objective, meta, corpus, tokenizer, model, architecture)
    lengths = config.lengths()
    longest = max(length for length, _ in lengths)
    check_max_length(longest, model_config, option="--phases" if config.phases else "--max-length")
    before = run.unfinished or {}
    precision = resolve_precision(config.precision, model_config, accelerator, training=True, recorded=before.get("dtype"))
    if line := str(precision):
        progress.note(line)
    in_precision = replace(config, precision=precision.name)
    begun: dict[int, Mark] = {}  # by phase
    if run.resume_from is not None and (position := read_progress(run.resume_from).position) is not None:
        begun = {position[0]: Mark(*position[1:])}
    samplers = [
        sampler_of(corpus, meta, "train", tokenizer, config, length, begun.get(phase, START))
        for phase, (length, _) in enumerate(lengths)
    ]
    if meta["train"]["documents"] < objective.min_documents:
        what = f"the corpus is a single document, so every segment B is {objective.pair_labels[0]}"
        progress.warn(f"{what}: split it with --layout, or train with --objective mlm")
    if run.resume_from is None:
        for sampler in samplers:
            sampler.lengths(np.arange(1))  # raises DataError if there are none
            show_share_read(sampler)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    validation = held_out_sequences(corpus, meta, tokenizer, config, rank=rank, world_size=world_size)
    if validation is None:
        if config.early_stopping_patience is not None:
            what = "--early-stopping-patience needs a held-out loss, but the corpus has no held-out documents"
            raise UsageError(what, where=str(corpus), hint="build it with --validation 1%")
        progress.note("the corpus has no held-out documents: no held-out loss, and the last weights are kept")
    to_beat = None
    if validation is not None:
        targets = validation.labels[objective.token_term].values
        to_beat = unigram_loss(samplers[0].shards, tokenizer.vocab_size, targets, accelerator)
    batches_of = partial(micro_batches_at, limit=config.micro_batch_tokens, rank=rank, world_size=world_size)
    if config.max_steps is not None and config.hours is None:
        steps = config.max_steps
    elif run.unfinished is not None:
        steps = run.unfinished["total_steps"]
    elif config.hours is None:
        count, exact = samplers[0].epoch_length(meta["train"]["tokens"])
        if not exact:
            progress.note(f"an epoch has about {count} sequences, estimated from {COUNTED * WINDOW} shards")
        steps = max(1, math.ceil(config.num_epochs * count / config.batch_size))
    else:
        progress.note(f"timing steps to plan for {config.hours:g} hours")
        seconds = [rehearse(module, partial(batches_of, sampler), in_precision, accelerator) for sampler in samplers]
        left = _of_main_process(start + 3600 * config.hours - time.perf_counter(), accelerator)
        held_out = int(summed(torch.tensor(len(validation or ()), dtype=torch.float64), accelerator))
        steps = steps_in(config, left, seconds, held_out)
    begins = phase_begins([share for _, share in lengths], steps)
    if empty := next((length for (length, _), begin, end in zip(lengths, begins, [*begins[1:], steps]) if begin == end), None):
        what = f"--phases leaves no step for sequences of {empty} tokens; there are {plural(steps, 'step')}"
        raise UsageError(what, hint="train more steps, or raise the share")
    progress.note(
        f"{steps} steps of {config.batch_size} sequences of at most {longest} tokens; "
        f"{plural(accelerator.num_processes, 'process', 'processes')} on {accelerator.device}, {precision.recorded}"
    )
    values = describe_run(
        recipe={"name": "pretrain", "family": PRETRAINING},
        training=config,
        model=started_from,
        data={"corpus": {"source": str(corpus.resolve()), **{key: meta[key] for key in ("tokenizer", "documents", "hashes")}}},
        dtype=precision.recorded,
        rates=precision.rates or before.get("rates"),
        baselines=None if to_beat is None else {UNIGRAM: to_beat},
        num_processes=accelerator.num_processes,
        total_steps=steps,
        drawing=objective.drawing,
    )

    def batches(step: int) -> list[Batch]:
        phase = bisect_right(begins, step) - 1
        return batches_of(samplers[phase], step - begins[phase])

    def position_at(step: int) -> list[int]:
        phase = bisect_right(begins, step) - 1
        return [phase, *samplers[phase].mark_at(step - begins[phase])]

    def evaluate(trained: nn.Module) -> tuple[dict[str, float | None], float | None]:
        assert validation is not None
        scores = score_language_model(trained, validation, config.micro_batch_tokens, accelerator)
        loss = scores[f"{objective.token_term}_loss"]
        check_finite(loss, "the held-out documents")
        return {f"validation/{name}": value for name, value in scores.items()}, -loss

    def save(folder: Path, state_dict: dict[str, Tensor]) -> None:
        architecture = objective.head.__name__
        save_model(folder, state_dict=state_dict, config=model_config, tokenizer=tokenizer, architecture=architecture)

    with run.open(values, accelerator), tracked(accelerator, config.track, output_dir, values["training"]):
        state = train(
            module,
            batches,
            in_precision,
            accelerator,
            total_steps=steps,
            run_dir=output_dir,
            save_model=lambda step: save,
            evaluate=evaluate if validation is not None else None,
            eval_every=config.eval_steps or math.ceil(steps / EVALUATIONS),
            resume_from=run.resume_from,
            position=position_at,
            matrix_rate=matrix_rate(precision, model_config, accelerator),
        )
        run.end(values, state, accelerator, partial(pretraining_card, values))
    if state.best_scores:
        progress.table(str(output_dir), *scores_table(state))
        loss = state.best_scores[f"validation/{objective.token_term}_loss"]
        if to_beat is not None and loss is not None and loss >= to_beat:
            what = f"the model predicts tokens no better than their frequencies do: loss {loss:.2f}, theirs {to_beat:.2f}"
            progress.warn(f"{what}; train more steps: --max-steps or --num-epochs, or a smaller --batch-size")
    progress.note(f"the model is in {output_dir}; next: bertkit finetune RECIPE --model {output_dir} --output-dir ...")
    return values


def fresh_architecture(
    meta: dict[str, Any], config: PretrainConfig, size: str | None, sizes: dict[str, int], file: Path | None = None
) -> BertConfig:
    """The architecture of fresh weights: that of a config.json, or of a named size with explicit sizes, which win.

    The vocabulary size is that of the corpus, or that of the config.json if it is larger. By default heads are 64 wide and the
    intermediate layer is four times as wide as the hidden size, as in the paper.
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


def check_tokenizer(tokenizer: Tokenizer, meta: dict[str, Any], corpus: Path, model: str) -> None:
    """Raise UsageError for a corpus with a different tokenizer than the model's."""
    if tokenizer.fingerprint != meta["tokenizer"]["fingerprint"]:
        what = f"the corpus was built with a different tokenizer than {model}'s"
        if tokenizer.vocab_hash == meta["tokenizer"]["vocab_hash"]:
            what += ": with the same vocabulary, but different treatment of case, accents or Chinese characters"
        hint = f"build it again: bertkit corpus build TEXT... --tokenizer {model} --output-dir ..."
        raise UsageError(what, where=str(corpus), hint=hint)


def _build(
    config: PretrainConfig,
    objective: Objective,
    meta: dict[str, Any],
    corpus: Path,
    tokenizer: Tokenizer,
    model: str | None,
    architecture: BertConfig | None,
) -> tuple[nn.Module, BertConfig, dict[str, Any]]:
    """The module with its weights, its configuration, and the "model" entry of run.json."""
    pretrained = open_pretrained(model) if model is not None else None
    if pretrained is None:
        if config.reinit_layers:
            raise UsageError("--reinit-layers needs --model: without it, all weights are fresh")
        assert architecture is not None
        model_config = replace(architecture, is_decoder=objective.causal, pad_token_id=tokenizer.pad_token_id)
        origin: dict[str, Any] = {"name": "fresh", "config": model_config.to_dict()}
    else:
        check_tokenizer(pretrained.tokenizer, meta, corpus, pretrained.name)
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


def phase_begins(shares: Sequence[float], total_steps: int) -> list[int]:
    """The first step of each phase, from each phase's share of the steps."""
    return [round(sum(shares[:number]) * total_steps) for number in range(len(shares))]


def rehearse(
    module: nn.Module, batches: Callable[[int], list[Batch]], config: PretrainConfig, accelerator: Accelerator
) -> float:
    """Seconds per step, by the main process's clock. Trains a copy: the module is unchanged."""
    assert config.hours is not None
    ends: list[float] = []

    def ended(trained: nn.Module) -> tuple[dict[str, float | None], float]:
        ends.append(time.perf_counter())
        return {}, len(ends)  # better than all before: not stopped early

    def seconds_per_step(steps: int) -> float:
        ends.clear()
        with TemporaryDirectory() as folder:
            run = partial(train, total_steps=steps, run_dir=Path(folder), evaluate=ended, eval_every=1)
            run(copy.deepcopy(module), batches, config, accelerator)
        return _of_main_process(np.diff(ends).mean(), accelerator)

    seconds = seconds_per_step(5)
    affordable = int(REHEARSAL * 3600 * config.hours / seconds)
    return seconds_per_step(min(REHEARSED, affordable)) if affordable > 5 else seconds


def _of_main_process(seconds: float, accelerator: Accelerator) -> float:
    """The main process's value: by their own clocks, processes would plan different numbers of steps."""
    from accelerate.utils import broadcast

    measured = torch.tensor(seconds, dtype=torch.float64, device=accelerator.device)
    return cast(torch.Tensor, broadcast(measured)).item() if accelerator.num_processes > 1 else float(seconds)


def summed(values: Tensor, accelerator: Accelerator) -> Tensor:
    """The sum of each value over all processes."""
    return accelerator.reduce(values.to(accelerator.device), "sum") if accelerator.num_processes > 1 else values


def steps_in(config: PretrainConfig, seconds: float, seconds_per_step: Sequence[float], held_out: int) -> int:
    """How many steps fit into `seconds`, with evaluations of `held_out` sequences. seconds_per_step: of each phase.

    Evaluating a batch, which is only its forward pass, counts as a third of a step. Raises UsageError if no step fits.
    """
    evaluation = held_out / config.batch_size * seconds_per_step[-1] / 3
    step = sum(share * each for (_, share), each in zip(config.lengths(), seconds_per_step, strict=True))
    if config.eval_steps is None:
        seconds -= EVALUATIONS * evaluation
    else:
        step += evaluation / config.eval_steps
    if seconds < step:
        what = f"--hours is {config.hours:g}, too short for one step of {step:.1f} seconds"
        raise UsageError(what, hint="give more hours, or a smaller --batch-size")
    return int(seconds / step)


def sampler_of(
    corpus: Path,
    meta: dict[str, Any],
    split: str,
    tokenizer: Tokenizer,
    config: PretrainConfig,
    max_length: int,
    begin: Mark = START,
) -> CorpusSampler:
    """The sequences of a split of a corpus, of at most max_length tokens. Raises UsageError if the split is empty."""
    shards, objective = Shards(corpus, meta[split]["shards"]), OBJECTIVES[config.objective]
    if not shards:
        raise UsageError(f"the corpus has no text for {split}", where=str(corpus))
    if objective.causal and config.masking != "token":
        what = f"--masking is {config.masking}, but --objective {objective.name} masks nothing"
        raise UsageError(what, hint="leave out one of the two")
    return CorpusSampler(shards, tokenizer, config.batch_size, max_length, config.seed, objective, config.masking, begin)


def micro_batches_at(sampler: CorpusSampler, step: int, *, limit: int, rank: int, world_size: int) -> list[Batch]:
    """This process's share of the sequences of a step, as micro-batches of at most `limit` tokens; no others are made."""
    numbers = sampler.numbers_at(step)
    groups = deal(sampler.lengths(numbers), limit, rank=rank, world_size=world_size)
    chosen = np.concatenate(groups)
    features = sampler.sequences(numbers[chosen] if len(chosen) else numbers[:1])
    return [collate(features, np.arange(*bounds)) for bounds in pairwise(offsets_of(np.array([*map(len, groups)])))]


def held_out_sequences(
    corpus: Path, meta: dict[str, Any], tokenizer: Tokenizer, config: PretrainConfig, *, rank: int = 0, world_size: int = 1
) -> Features | None:
    """This process's share of at most HELD_OUT sequences of the validation split, with the last phase's max_length; None if the
    split is empty."""
    if not meta["validation"]["shards"]:
        return None
    sampler = sampler_of(corpus, meta, "validation", tokenizer, config, config.lengths()[-1][0])
    try:
        return sampler.sequences(np.arange(sampler.in_first_epoch(HELD_OUT))[rank::world_size])
    except DataError as error:
        raise DataError(error.what, where=f"the validation split of {corpus}", hint=error.hint) from None


def unigram_loss(shards: Sequence[Shard], vocab_size: int, targets: NDArray[np.integer], accelerator: Accelerator) -> float:
    """What a model must beat: the mean loss, in nats, of the targets of all processes by how often each is in the text.

    Counts, of the first shards, are raised by one, so that no token is impossible.
    """
    counts = np.ones(vocab_size)
    for shard in islice(shards, SHARDS_COUNTED):
        counts += np.bincount(shard.input_ids, minlength=vocab_size)
    losses = -np.log(counts / counts.sum())[targets]
    total, number = summed(torch.tensor([losses.sum(), losses.size], dtype=torch.float64), accelerator).tolist()
    return total / number


def score_language_model(
    module: nn.Module, features: Features, micro_batch_tokens: int, accelerator: Accelerator
) -> dict[str, float]:
    """Loss and accuracy of each loss term over all processes, and the perplexity of the first term, the tokens.

    features: this process's share; there may be none.
    """
    terms = list(features.labels)
    sums = torch.zeros(len(terms), 3, dtype=torch.float64)  # per term: loss, correct predictions, targets
    was_training = module.training
    module.eval()
    with torch.inference_mode():
        for batch in evaluation_batches(features, micro_batch_tokens):
            on_device = batch.to(accelerator.device)
            losses, logits = module(on_device)
            for row, term in zip(sums, terms, strict=True):
                correct = logits[term][:, 1] if term == terms[0] else logits[term].argmax(dim=-1) == on_device.labels[term]
                row += torch.tensor([float(losses[term]), float(correct.sum()), batch.weights[term]], dtype=torch.float64)
    module.train(was_training)
    scores: dict[str, float] = {}
    for term, (loss, correct, targets) in zip(terms, summed(sums, accelerator).tolist(), strict=True):
        scores[f"{term}_loss"] = loss / targets
        if term == terms[0]:
            scores["perplexity"] = math.exp(min(loss / targets, 700))
        scores[f"{term}_accuracy"] = correct / targets
    return scores

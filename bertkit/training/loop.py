"""The training loop: one plain function for pre-training and for every recipe.

It knows a module that maps a Batch to Outputs, the batches of each step, and a TrainConfig; it knows no recipe. The loss of a
step is the sum over its targets divided by their weight over the whole step: all processes, all micro-batches.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bertkit import progress
from bertkit.config import TrainConfig, filled
from bertkit.errors import ModelError, Stopped, UsageError
from bertkit.manifest import MANIFEST, raise_if_damaged
from bertkit.model import peers
from bertkit.model.batch import Batch
from bertkit.model.bert import compile_layers, refuse_without_compiler, set_activation_checkpointing, use_sparse_lookups
from bertkit.model.devices import peak_memory, sum_over_processes
from bertkit.model.directory import read_state_dict
from bertkit.model.dropout import seed_dropout, set_dropout
from bertkit.model.flops import flop_counter
from bertkit.model.precision import DTYPES, multiplying_in, refuse_without_gpu
from bertkit.training.checkpoint import (
    TRAINING,
    copy_to_root,
    drop_later_checkpoints,
    drop_older_checkpoints,
    has_best,
    newest_checkpoint,
    verify_best,
    verify_checkpoint,
)
from bertkit.training.metrics_log import MetricsLog
from bertkit.training.optimizer import RULES, Optimizer, learning_rate_of
from bertkit.training.prefetch import prefetched
from bertkit.training.state import TrainState, read_progress
from bertkit.training.totals import with_totals
from bertkit.training.writer import OPTIMIZER, CheckpointWriter, WriteModel

if TYPE_CHECKING:
    from accelerate import Accelerator


class Interrupted(Stopped):
    """Training was stopped by the user or the scheduler, after `step`."""

    def __init__(self, step: int, *, saved: bool, number: int) -> None:
        what = "the same command (without --overwrite or --resume) resumes from there" if saved else "nothing was saved"
        super().__init__(f"stopped after step {step}; {what}", number=number)


def train(
    model: nn.Module,
    batches: Callable[[int], list[Batch]],
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    total_steps: int,
    run_dir: Path,
    save_model: Callable[[int], WriteModel] | None = None,
    read_model: Callable[[Path], dict[str, Tensor]] = read_state_dict,
    evaluate: Callable[[nn.Module], tuple[dict[str, float | None], float | None]] | None = None,
    eval_every: int | None = None,
    resume_from: Path | None = None,
    position: Callable[[int], list[int]] | None = None,
    best_since: int = 0,
    matrix_rate: float | None = None,
    average_from: int | None = None,
) -> TrainState:
    """Train `model` (in float32) for `total_steps` optimizer steps; write checkpoints, the best model and metrics.jsonl.

    config.precision must be resolved. batches: step (from 0) -> this process's micro-batches, the same number on each process;
    called in a thread, some steps ahead.
    save_model: step -> a function that writes the model of that step to a folder, every parameter under its name; it is called
    in a thread while training continues. Without it nothing is saved. read_model: reads the weights of such a folder.
    evaluate: module -> scores, and the number that decides which step is best (higher is better); without it, the last one is.
    eval_every: steps between evaluations; there is one at the end too. A checkpoint is written at each evaluation or, with
    config.save_steps, that often, for each new best model and at the end, so that a resumed run's best model is that of its
    checkpoint.
    resume_from: a checkpoint to resume from, bit-exactly on a CPU. position: step -> a mark to keep in the checkpoint, by which
    a resumed run finds that step's batches faster. best_since: evaluations up to this step used other data and are not compared
    with later ones. matrix_rate: GFLOP/s of plain matrix products in one process; metrics.jsonl then has the share reached.
    average_from: from this step (from 0) on, keep the mean of the weights over steps, which is what is evaluated and saved.
    Raises UsageError if the loss or the gradient norm is not finite, Interrupted on SIGINT, SIGTERM and SIGUSR1, once pending
    writes are complete.
    """
    module = model.to(accelerator.device)
    set_dropout(module, config.dropout, config.attention_dropout)
    set_activation_checkpointing(module, config.activation_checkpointing)
    if RULES[config.optimizer].takes_sparse:
        use_sparse_lookups(module)
    torch.backends.cuda.enable_cudnn_sdp(False)  # its attention compiles a plan for each new shape, and a run has many
    if config.compile:
        compile_layers(module)
    optimizer = Optimizer(module, config, dtype=DTYPES[config.precision], num_processes=accelerator.num_processes)
    eval_every = eval_every or total_steps
    main = accelerator.is_main_process
    log = MetricsLog(run_dir)
    state = TrainState()
    saved_step: int | None = None
    clock = time.perf_counter()

    writer: CheckpointWriter | None = None
    if main and save_model is not None:
        writer = CheckpointWriter(run_dir, optimizer, save_model, keep=config.keep_checkpoints)

    def save(*, best: bool) -> None:
        nonlocal saved_step, clock
        now = time.perf_counter()
        state.seconds, clock = state.seconds + now - clock, now
        state.position = None if position is None else position(state.step)
        raise_if_damaged(wait=False)  # so that nothing learned from damaged data is saved
        if writer is not None and state.step != saved_step:  # rewriting a checkpoint would leave none for a moment
            writer.save(dataclasses.asdict(state), best=best)
        saved_step = state.step

    def all_saved() -> None:
        if writer is not None:
            writer.wait()
        accelerator.wait_for_everyone()  # a launcher ends all processes once one has ended

    def interrupted() -> Interrupted:
        number = stop[0] if stop else signal.SIGINT  # another process may have received the signal
        return Interrupted(state.step, saved=save_model is not None, number=number)

    if resume_from is not None:
        state = _resume(resume_from, run_dir, optimizer, read_model, writer, config, accelerator, best_since=best_since)
        if resume_from.resolve().parent == run_dir.resolve():
            saved_step = state.step
    if main:
        log.drop_after(state.step)

    module.train()
    window = _SinceLastLog(accelerator)
    flops = flop_counter(module)

    def record(event: dict[str, Any]) -> None:
        if main:
            log.append(event)
        accelerator.log({name: value for name, value in event.items() if name != "step" and value is not None}, event["step"])

    def report() -> dict[str, float]:
        event = {
            "step": state.step,
            "learning_rate": learning_rate_of(state.step - 1, config, total_steps),
            **window.read(state.step, matrix_rate),
        }
        if optimizer.loss_scale is not None:
            event["loss_scale"] = optimizer.loss_scale.scale
        event["peak_memory_mib"] = peak_memory(accelerator.device)
        record(event)
        return event

    stop_early = should_stop_early(state, config, accelerator)
    with (
        multiplying_in(config.precision),
        _stop_requested() as stop,
        writer or nullcontext(),
        progress.bar("train", total_steps, done=state.step) as bar,
        closing(prefetched(batches, range(state.step, total_steps), accelerator.device)) as ready,
    ):
        steps = with_totals(ready, stop, accelerator.num_processes)
        while state.step < total_steps and not stop_early:
            micro_batches, weights, stopping = next(steps)
            if writer is not None:
                writer.check()
            if stopping:
                peers.stopping()
                if window.losses:
                    report()  # as before each save
                save(best=False)
                all_saved()
                raise interrupted()
            for micro_step, batch in enumerate(micro_batches):
                seed_dropout(module, config.seed, state.step, micro_step, accelerator.process_index)
                outputs = module(batch.to(accelerator.device))
                losses = step_losses(outputs.loss_sums, batch.weights, weights)
                optimizer.backward(losses.sum(), last=micro_step == len(micro_batches) - 1)
                window.add(losses.detach(), len(batch.input_ids), flops(batch), first=micro_step == 0)
            window.terms = sorted(weights)
            window.grad_norm = optimizer.step(learning_rate_of(state.step, config, total_steps))
            if average_from is not None and state.step >= average_from:
                optimizer.average()
            state.step += 1
            evaluating = state.step % eval_every == 0 or state.step == total_steps
            saving = evaluating if config.save_steps is None else state.step % config.save_steps == 0
            if evaluating or saving or state.step % config.logging_steps == 0:
                event = report()  # raises if a loss is not finite: such weights must not be saved
                shown = {"loss": f"{event['loss']:.4f}", "lr": f"{event['learning_rate']:.2e}"}
                bar.advance(0, **shown, tokens=f"{event['tokens_per_second']:.0f}/s")
            bar.advance(1)
            if evaluating:
                if evaluate is not None:
                    with optimizer.averages_in_module():
                        scores, objective = evaluate(module)
                    state.record(scores, objective)
                    stop_early = should_stop_early(state, config, accelerator)
                    record({"step": state.step, **scores})
                    if scores:
                        progress.note(f"step {state.step}: {_summary(scores)}")
                else:
                    state.best_step = state.step  # without scores, the last step counts as the best
            best = evaluating and state.best_step == state.step
            if saving or best or stop_early or state.step == total_steps:
                save(best=best)
            if evaluating:
                window.start = time.perf_counter()  # tokens_per_second covers only training
        all_saved()
        if any_process(bool(stop), accelerator):  # in the last step: what follows the training, such as another seed, stops too
            raise interrupted()
    if state.step < total_steps:
        progress.note(f"stopped early: no better score in {state.evaluations_since_best} evaluations")
    return state


def refuse_overlap(config: TrainConfig) -> None:
    """Raise UsageError if the warm-up would not have ended when the learning rate begins to fall."""
    settings = filled(config)
    if settings.schedule == "warmup_stable_decay" and settings.warmup_ratio + settings.decay_ratio > 1 + 1e-9:  # rounding
        both = f"--warmup-ratio {settings.warmup_ratio} and --decay-ratio {settings.decay_ratio}"
        raise UsageError(f"{both} add up to more than 1")


def refuse_unsupported(config: TrainConfig, device: torch.device) -> None:
    """Raise UsageError or MachineError for settings that cannot be trained with, or not on this machine."""
    refuse_overlap(config)
    refuse_without_gpu(config.precision, device)
    if config.compile:
        refuse_without_compiler(device)


def _summary(scores: dict[str, float | None]) -> str:
    """The first score, and the loss, of each split."""
    shown: dict[tuple[str, bool], str] = {}
    for name, value in scores.items():
        split, _, metric = name.rpartition("/")
        shown.setdefault((split, metric == "loss"), f"{name} {'-' if value is None else format(value, '.4f')}")
    return ", ".join(shown.values())


def step_losses(loss_sums: dict[str, Tensor], weights: dict[str, float], denominators: dict[str, float]) -> Tensor:
    """This micro-batch's share of the step's losses, sorted by term: (sum over targets) / (weight of the whole step). Their sum
    is the loss.

    A micro-batch of weight 0 still runs backward, or the processes would wait for each other; it adds exactly 0.
    """
    return torch.stack([loss_sums[term] * (1 / denominators[term] if weights[term] else 0.0) for term in sorted(loss_sums)])


def should_stop_early(state: TrainState, config: TrainConfig, accelerator: Accelerator) -> bool:
    """Whether early_stopping_patience has run out; if it has on one process, all stop."""
    if config.early_stopping_patience is None:
        return False
    return any_process(state.evaluations_since_best >= config.early_stopping_patience, accelerator)


def any_process(here: bool, accelerator: Accelerator) -> bool:
    """Whether `here` is true on any process."""
    return bool(sum_over_processes(torch.tensor(float(here)), accelerator))


class _SinceLastLog:
    """What happened since the last log event."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.grad_norm = torch.tensor(0.0)
        self.terms: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self.losses: list[Tensor] = []
        self.tokens, self.flops = 0, 0.0
        self.start = time.perf_counter()

    def add(self, losses: Tensor, tokens: int, flops: float, *, first: bool) -> None:
        """losses: (terms,) of a micro-batch."""
        if first:
            self.losses.append(losses)
        else:
            self.losses[-1] = self.losses[-1] + losses
        self.tokens, self.flops = self.tokens + tokens, self.flops + flops

    def read(self, step: int, matrix_rate: float | None) -> dict[str, float]:
        """The mean loss (also of each term, if there are several), the last gradient norm, tokens/s and the share of
        matrix_rate, over all processes.

        Raises UsageError for a loss or a gradient norm that is not finite.
        """
        losses = torch.stack(self.losses)  # (steps, terms)
        counts = torch.tensor([self.tokens, self.flops], dtype=losses.dtype).to(losses.device)
        tokens, flops, *each = sum_over_processes(torch.cat([counts, losses.flatten()]), self.accelerator).tolist()
        by_step = [each[begin : begin + len(self.terms)] for begin in range(0, len(each), len(self.terms))]
        values = [sum(each) for each in by_step]
        norm = float(self.grad_norm)
        for index, value in enumerate([*values, norm]):
            if not math.isfinite(value):
                first = min(step, step - len(values) + 1 + index)
                quantity = "loss" if index < len(values) else "gradient's norm"
                what = f"the {quantity} is {value} at step {first}"
                raise UsageError(what, hint="lower --learning-rate, raise --warmup-ratio, or try --precision fp32")
        seconds = time.perf_counter() - self.start
        self._begin()
        by_term = {f"{term}_loss": math.fsum(each) / len(each) for term, each in zip(self.terms, zip(*by_step), strict=True)}
        loss = {"loss": math.fsum(values) / len(values), **(by_term if len(self.terms) > 1 else {})}
        speed = {"tokens_per_second": tokens / seconds}
        if matrix_rate is not None:
            speed["matrix_share"] = flops / seconds / (1e9 * matrix_rate * self.accelerator.num_processes)
        return {**loss, "grad_norm": norm, **speed}


def _resume(
    checkpoint: Path,
    run_dir: Path,
    optimizer: Optimizer,
    read_model: Callable[[Path], dict[str, Tensor]],
    writer: CheckpointWriter | None,
    config: TrainConfig,
    accelerator: Accelerator,
    *,
    best_since: int,
) -> TrainState:
    """Restore the weights and the optimizer's state; bring run_dir to what it was at the checkpoint, but for metrics.jsonl.

    The arguments are those of `train`. Returns the progress, without a best step up to best_since. Raises ModelError.
    """
    checkpoint = checkpoint.resolve()  # which may have been given by a link
    if is_own := checkpoint.parent == run_dir.resolve():
        checkpoint = run_dir / checkpoint.name
    verified = verify_checkpoint(checkpoint)
    state = _restore(checkpoint, optimizer, read_model, accelerator.device)
    if state.best_step is not None and state.best_step <= best_since:
        state = TrainState(state.step, state.seconds)
    newest = newest_checkpoint(checkpoint.parent) or checkpoint
    of_best = checkpoint if state.best_step == state.step else checkpoint.with_name(f"checkpoint-{state.best_step}")
    if of_best.is_dir():
        if of_best != checkpoint:
            verify_checkpoint(of_best, lambda name: "/" not in name)  # its model
    elif has_best(run_dir) and (newest == checkpoint or (is_own and _best_step(newest) == state.best_step)):
        verify_best(run_dir, verified.files)  # it stays the best if no later step is better
    elif state.best_step is not None:
        progress.warn(f"the best model so far, of step {state.best_step}, is missing: the best is now chosen among later steps")
        state = TrainState(state.step, state.seconds)
        if writer is not None:
            (run_dir / MANIFEST).unlink(missing_ok=True)  # of a later checkpoint's model, which is not this run's best
    accelerator.wait_for_everyone()  # all have decided
    if accelerator.is_main_process:
        if is_own and newest != checkpoint:
            progress.note(f"deleting the checkpoints after {checkpoint.name}")
            drop_later_checkpoints(checkpoint)  # while the model at the root still fits those that a kill leaves
        if of_best.is_dir() and writer is not None:
            copy_to_root(of_best, run_dir)  # run_dir may have an older model after a kill, or a later checkpoint's
        if is_own and newest == checkpoint:
            drop_older_checkpoints(checkpoint, config.keep_checkpoints)  # a kill may have prevented this
    return state


def _best_step(checkpoint: Path) -> int | None:
    with suppress(ModelError):
        return read_progress(checkpoint).best_step
    return None


def _restore(
    checkpoint: Path, optimizer: Optimizer, read_model: Callable[[Path], dict[str, Tensor]], device: torch.device
) -> TrainState:
    from safetensors.torch import load_file

    name = str(device) if device.type == "cuda" else device.type  # safetensors does not know cpu:0
    optimizer.restore(read_model(checkpoint), load_file(checkpoint / TRAINING / OPTIMIZER, device=name))
    return read_progress(checkpoint)


@contextmanager
def _stop_requested() -> Iterator[list[int]]:
    """A list to which SIGINT, SIGTERM or SIGUSR1 adds its number, so that the step can finish; a second signal stops at once.

    Schedulers can be told to send SIGUSR1 shortly before a job's time is over.
    """
    requested: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def ask(number: int, frame: object) -> None:
        if requested:
            raise Stopped(number=number)
        requested.append(number)
        with suppress(RuntimeError):  # the signal came while another line was being printed
            progress.note("stopping after this step; a second signal loses all steps since the last checkpoint")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

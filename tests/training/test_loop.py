"""The training loop against a naive one: every shape of batch, any split of the step, and when checkpoints are saved."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from shapes import MEASURED, SHAPES, TRAINING, Classifier, Trained, logged_losses, oracle_run, sentences, training_run
from torch import Tensor, nn

from bertkit.config import TrainConfig
from bertkit.errors import ModelError, UsageError
from bertkit.features import Ragged
from bertkit.model.batch import Batch, Outputs
from bertkit.model.devices import start_accelerator
from bertkit.model.dropout import Dropout, set_dropout
from bertkit.model.flops import flop_counter
from bertkit.model.precision import multiplying_in
from bertkit.training import loop, loss_scale
from bertkit.training import optimizer as optimizer_module
from bertkit.training.batching import Sampler, training_batches
from bertkit.training.loop import Interrupted, refuse_unsupported, step_losses, train
from bertkit.training.loss_scale import LossScale
from bertkit.training.state import TrainState, worth

SENTENCE = SHAPES["sentence"]
ONE_A_TIME = dataclasses.replace(TRAINING, micro_batch_tokens=1, batch_size=4)  # four micro-batches a step
ALL_AT_ONCE = dataclasses.replace(TRAINING, micro_batch_tokens=10_000)

# What adds the same number to all logits of a softmax, by shape; key.bias does so in each.
NO_GRADIENT = {"windows": ("qa_outputs.bias", "layer.1.output.LayerNorm.bias"), "choices": ("classifier.bias",)}


def with_dropout() -> nn.Module:
    module = Classifier()
    set_dropout(module, 0.3)
    return module


def events(run_dir: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl holds, but for the times."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in event.items() if name not in MEASURED} for event in found]


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """To the last bit."""
    assert found.keys() == expected.keys() != set()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def test_speed_and_memory_are_logged(tmp_path: Path) -> None:
    """The share is that of the operations of the steps since the last event, in the seconds that the tokens took."""
    config = dataclasses.replace(TRAINING, logging_steps=3)
    training_run(SENTENCE, config, 7, tmp_path, matrix_rate=2.0)
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    sampler = Sampler(len(SENTENCE.features), config.batch_size, config.seed)
    batches = training_batches(SENTENCE.features, sampler, config.micro_batch_tokens, rank=0, world_size=1)
    count = flop_counter(SENTENCE.build())
    for event, steps in zip(logged, ([0, 1, 2], [3, 4, 5], [6]), strict=True):
        made = [batch for step in steps for batch in batches(step)]
        seconds = sum(len(batch.input_ids) for batch in made) / event["tokens_per_second"]
        assert event["matrix_share"] * 2e9 * seconds == pytest.approx(sum(map(count, made)), rel=1e-5)
        assert event["peak_memory_mib"] > 100
    training_run(SENTENCE, config, 3, tmp_path / "without")
    assert "matrix_share" not in (tmp_path / "without" / "metrics.jsonl").read_text(encoding="utf-8")


# --- the plain loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_loop_equals_a_plain_one_over_transformers(name: str, tmp_path: Path) -> None:
    losses, parameters = oracle_run(SHAPES[name], TRAINING, 12)
    found = training_run(SHAPES[name], TRAINING, 12, tmp_path)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5, atol=1e-5)
    assert np.ptp(losses) > 0.1  # it learns something
    assert found.parameters.keys() - {"decoder.weight"} == parameters.keys()
    for key, expected in parameters.items():
        # a gradient that is zero in theory: Adam makes steps of what rounding leaves of it
        atol = 5e-4 if key.endswith(("key.bias", *NO_GRADIENT.get(name, ()))) else 1e-5
        message = lambda text, key=key: f"{key}: {text}"  # noqa: E731
        torch.testing.assert_close(found.parameters[key], expected, rtol=1e-5, atol=atol, msg=message)


@pytest.mark.parametrize("name", SHAPES)
def test_any_micro_batch_tokens_gives_the_same_curve(name: str, tmp_path: Path) -> None:
    curves = []
    for tokens in (1, 70, 10_000):  # a feature at a time; a few; the whole step at once
        config = dataclasses.replace(TRAINING, micro_batch_tokens=tokens)
        curves.append(training_run(SHAPES[name], config, 8, tmp_path / str(tokens)).losses)
    assert len(curves[0]) == 8
    assert np.ptp(curves[0]) > 0.1
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [ALL_AT_ONCE, ONE_A_TIME], ids=["one micro-batch", "four"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sparse_gradients_of_embeddings_train_the_same(
    precision: str, config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed_up = precision == "fp32" and config is ONE_A_TIME  # in the parameter's own gradient, which is dense then
    config = dataclasses.replace(config, precision=precision)
    found: dict[bool, dict[str, Tensor]] = {}
    for sparse in (True, False):
        if not sparse:
            monkeypatch.setattr(loop, "use_sparse_lookups", lambda module: None)
        module, seen = SENTENCE.build(), set()
        words = module.get_parameter("bert.embeddings.word_embeddings.weight")
        words.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.add(p.grad.is_sparse))
        found[sparse] = training_run(SENTENCE, config, 6, tmp_path / str(sparse), module=module).parameters
        assert seen == ({True, False} if sparse and summed_up else {sparse})
    if summed_up:  # micro-batches are added up in another order
        torch.testing.assert_close(found[True], found[False], rtol=1e-5, atol=1e-6)
    else:
        assert_equal(found[True], found[False])


@pytest.mark.parametrize("rule", ["adamw", "lamb"])
def test_only_rules_that_take_sparse_gradients_get_them(rule: str, tmp_path: Path) -> None:
    module, seen = SENTENCE.build(), set()
    words = module.get_parameter("bert.embeddings.word_embeddings.weight")
    words.register_post_accumulate_grad_hook(lambda p: seen.add(p.grad.is_sparse))
    training_run(SENTENCE, dataclasses.replace(ALL_AT_ONCE, optimizer=rule), 1, tmp_path, module=module)
    assert seen == {rule == "adamw"}


def test_sums_of_micro_batches_are_dense(tmp_path: Path) -> None:
    """A sum of sparse gradients would hold the rows of all micro-batches, however often they repeat."""
    module, seen = SENTENCE.build(), []
    words = module.get_parameter("bert.embeddings.word_embeddings.weight")
    words.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.is_sparse))
    training_run(SENTENCE, dataclasses.replace(ONE_A_TIME, precision="fp32"), 2, tmp_path, module=module)
    assert seen == [True, False, False, False] * 2


def test_loss_of_a_step_is_not_a_mean_of_means() -> None:
    sums = [{"mlm": torch.tensor(6.0), "nsp": torch.tensor(1.0)}, {"mlm": torch.tensor(1.0), "nsp": torch.tensor(2.0)}]
    weights = [{"mlm": 3.0, "nsp": 1.0}, {"mlm": 1.0, "nsp": 0.0}]
    shares = [step_losses(s, w, {"mlm": 4.0, "nsp": 1.0}).tolist() for s, w in zip(sums, weights, strict=True)]
    assert shares == [[6 / 4, 1 / 1], [1 / 4, 0]]  # what has no weight adds nothing, though its sum is not 0


def test_a_step_without_targets_of_a_term_is_no_nan(tmp_path: Path) -> None:
    shape = SHAPES["pretraining"]
    labels = {**shape.features.labels, "nsp": Ragged.column(np.full(len(shape.features), -100))}
    shape = dataclasses.replace(shape, features=dataclasses.replace(shape.features, labels=labels))
    assert np.isfinite(training_run(shape, TRAINING, 3, tmp_path).losses).all()


# --- dropout, precision ------------------------------------------------------------------------------------------------


def test_dropout_is_drawn_from_seed_and_step_alone(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> list[float]:
        torch.rand(len(name))  # torch's own stream is elsewhere each time
        return training_run(SENTENCE, dataclasses.replace(TRAINING, **changes), 6, tmp_path / name).losses

    first = run("first", dropout=0.3)
    assert run("second", dropout=0.3) == first
    assert run("none") != first
    assert run("seed", dropout=0.3, seed=1) != first
    one_batch = {"batch_size": 25, "micro_batch_tokens": 10_000, "learning_rate": 0.0}
    assert len(set(run("still", dropout=0.3, **one_batch))) == 6, "every step draws anew"
    assert len({round(loss, 4) for loss in run("still-none", dropout=0.0, **one_batch)}) == 1


def test_each_micro_batch_draws_its_own_mask(tmp_path: Path) -> None:
    """The same text four times, one a micro-batch: with one mask for all, all four would have the same logits."""
    one, four = sentences(1), np.zeros(4, dtype=np.int64)
    taken = {name: getattr(one, name).take(four) for name in ("input_ids", "token_type_ids", "rows")}
    features = dataclasses.replace(one, **taken, examples=np.arange(4), labels={"labels": one.labels["labels"].take(four)})
    module = with_dropout()
    seen: set[tuple[float, ...]] = set()
    module.classifier.register_forward_hook(lambda _, __, logits: seen.add(tuple(logits[0].tolist())))
    training_run(dataclasses.replace(SENTENCE, features=features), ONE_A_TIME, 1, tmp_path, module=module)
    assert len(seen) == 4


def test_attention_has_its_own_dropout(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, dropout=0.25, attention_dropout=0.5)
    module = training_run(SENTENCE, config, 1, tmp_path).module
    found = {name: part.p for name, part in module.named_modules() if isinstance(part, Dropout)}
    assert found == {name: 0.5 if name.endswith("attention.self.dropout") else 0.25 for name in found}
    assert {*found.values()} == {0.25, 0.5}


@pytest.mark.parametrize(("precision", "before", "during"), [("fp32", "high", "highest"), ("tf32", "highest", "high")])
def test_how_float32_is_multiplied_is_set_for_the_training_alone(
    precision: str, before: str, during: str, tmp_path: Path
) -> None:
    seen: set[tuple[str, bool]] = set()
    module = Classifier()
    products = lambda: (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)  # noqa: E731
    module.register_forward_pre_hook(lambda *_: seen.add(products()))
    with multiplying_in("tf32" if before == "high" else "fp32"):
        outside = products()
        training_run(SENTENCE, dataclasses.replace(TRAINING, precision=precision), 1, tmp_path, module=module)
        assert products() == outside == (before, before == "high")
    assert seen == {(during, during == "high")}


@pytest.mark.filterwarnings("ignore:Please use the new API")
def test_what_was_set_by_torchs_newer_names_is_restored() -> None:
    """The older ones cannot even be read then."""
    backends = torch.backends
    parts = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    with multiplying_in("fp32"):
        for part in parts:
            part.fp32_precision = "tf32"
        with pytest.raises(RuntimeError, match="mix of the legacy and new"):
            torch.get_float32_matmul_precision()
        with multiplying_in("fp32"):
            assert torch.get_float32_matmul_precision() == "highest"
        assert [part.fp32_precision for part in parts] == ["tf32"] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sentence", "pretraining"])
def test_16_bits_are_computed_in_and_float32_masters_saved(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    config = dataclasses.replace(TRAINING, precision=precision, learning_rate=1e-6, warmup_ratio=0.0, schedule="constant")
    module = SHAPES[name].build()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    found = training_run(SHAPES[name], config, 8, tmp_path, module=module)
    assert {p.dtype for p in found.module.parameters()} == {dtype}
    assert {tensor.dtype for tensor in found.parameters.values()} == {torch.float32}
    assert found.parameters.keys() == before.keys()
    for key, value in found.parameters.items():
        assert (value - before[key]).abs().max() < 2e-5, key
        if value.shape != (1,):
            assert not torch.equal(value, value.to(dtype).float()), f"{key} is rounded"
    key = "bert.encoder.layer.0.output.dense.weight"
    moved = (found.parameters[key] != before[key]).float().mean()
    assert moved > 0.9  # updates of 1e-6 to weights of 0.2 are lost in 16 bits, and not in the masters


def test_what_is_frozen_stays_and_is_saved_unrounded(tmp_path: Path) -> None:
    module = Classifier()
    module.bert.embeddings.requires_grad_(False)
    before = {key: value.clone() for key, value in module.bert.embeddings.state_dict().items()}
    found = training_run(SENTENCE, dataclasses.replace(TRAINING, precision="bf16"), 3, tmp_path, module=module)
    assert_equal({key: found.parameters[f"bert.embeddings.{key}"] for key in before}, before)


# --- what is saved, and which step is best -----------------------------------------------------------------------------


def scored_run(
    folder: Path,
    objectives: Sequence[float | None],
    total_steps: int,
    *,
    eval_every: int,
    config: TrainConfig = TRAINING,
    **more: Any,
) -> Trained:
    """A run whose evaluations give these numbers in turn."""
    left = iter(objectives)

    def evaluate(module: nn.Module) -> tuple[dict[str, float | None], float | None]:
        return {"dev/accuracy": (objective := next(left))}, objective

    return training_run(SENTENCE, config, total_steps, folder, evaluate=evaluate, eval_every=eval_every, **more)


def test_evaluates_and_saves_at_the_steps_it_should_and_keeps_the_best(tmp_path: Path) -> None:
    found = scored_run(tmp_path, [0.2, 0.7, 0.7, None], 11, eval_every=3)
    # steps 3, 6, 9 and the last; the best is the first of equals
    assert found.saves == [f".unfinished-checkpoint-{step} at {step}" for step in (3, 6, 9, 11)]
    assert (found.state.step, found.state.best_step, found.state.best_objective) == (11, 6, 0.7)
    assert found.state.best_scores == {"dev/accuracy": 0.7}
    assert found.state.last_scores == {"dev/accuracy": None}
    names = ["checkpoint-11", "manifest.json", "metrics.jsonl", "model.safetensors"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == names
    scored = [(event["step"], event["dev/accuracy"]) for event in events(tmp_path) if "dev/accuracy" in event]
    assert scored == [(3, 0.2), (6, 0.7), (9, 0.7), (11, None)]
    assert found.module.training


@pytest.mark.parametrize(
    ("objectives", "best"),
    [
        ([0.1, 0.5, 0.5], 2),
        ([None, 0.1], 2),
        ([None, None], 1),
        ([0.3, None, 0.2], 1),
        ([-2.0, -1.0, -3.0], 2),
        ([0.0, -0.0], 1),
    ],
)
def test_best_is_the_earliest_of_the_highest(objectives: list[float | None], best: int) -> None:
    state = TrainState()
    for step, objective in enumerate(objectives, start=1):
        state.step = step
        state.record({"m": objective}, objective)
    assert (state.best_step, state.best_objective) == (best, objectives[best - 1])
    assert (state.best_scores, state.last_scores) == ({"m": objectives[best - 1]}, {"m": objectives[-1]})


def test_of_equally_good_evaluations_the_one_with_the_lowest_loss_is_the_best() -> None:
    state = TrainState()
    steps = [(0.9, 1.0), (1.0, 0.9), (1.0, 0.3), (1.0, 0.3), (1.0, 0.5), (0.9, 0.1), (None, 0.0)]
    for step, (objective, loss) in enumerate(steps, start=1):
        state.step = step
        scores = {"validation/accuracy": objective, "validation/loss": loss, "validation_mismatched/loss": 1 / step}
        state.record(scores, objective)
        assert state.best_step == min(step, 3)
    assert (state.best_step, state.best_scores["validation/loss"]) == (3, 0.3)


def test_early_stopping_counts_evaluations_without_a_better_score(tmp_path: Path) -> None:
    objectives = [0.2, 0.7, 0.7, 0.9, None, 0.5, 1.0]

    def run(name: str, objectives: list[float | None], total_steps: int, resume: int | None = None) -> tuple[int, int | None]:
        checkpoint = None if resume is None else tmp_path / name / f"checkpoint-{resume}"
        config = dataclasses.replace(TRAINING, early_stopping_patience=2)
        found = scored_run(tmp_path / name, objectives, total_steps, eval_every=2, config=config, resume_from=checkpoint)
        return found.state.step, found.state.best_step

    assert run("whole", objectives, 20) == (12, 8)
    assert run("stopped", objectives[:5], 10) == (10, 8)  # after the first evaluation without a better score
    assert run("stopped", objectives[5:], 20, resume=10) == (12, 8)
    assert run("whole", [], 20, resume=12) == (12, 8)


def test_a_run_that_stops_early_has_a_checkpoint_of_its_last_step(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, early_stopping_patience=1, save_steps=1000, keep_checkpoints=1)
    found = scored_run(tmp_path, [0.9, 0.5, 1.0], 20, eval_every=2, config=config)
    assert (found.state.step, found.state.best_step) == (4, 2)
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-4"]


def test_without_an_evaluation_the_last_model_is_kept(tmp_path: Path) -> None:
    found = training_run(SENTENCE, TRAINING, 4, tmp_path, eval_every=2)
    assert (found.saves, found.state.best_step) == ([f".unfinished-checkpoint-{step} at {step}" for step in (2, 4)], 4)
    assert_equal(load_file(tmp_path / "model.safetensors"), found.parameters)


def test_log_has_a_mean_over_the_steps_since_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 9.0, "learning_rate": 0.0}\n{"step": 2, "lo', encoding="utf-8")
    each = training_run(SENTENCE, TRAINING, 10, tmp_path).losses  # of a run killed before its first checkpoint nothing is left
    training_run(SENTENCE, dataclasses.replace(TRAINING, logging_steps=4), 10, tmp_path / "four")
    logged = events(tmp_path / "four")
    assert [event["step"] for event in logged] == [4, 8, 10]
    expected = [np.mean(each[:4]), np.mean(each[4:8]), np.mean(each[8:])]
    np.testing.assert_allclose([event["loss"] for event in logged], expected, rtol=1e-6)
    peak, rates = TRAINING.learning_rate, [event["learning_rate"] for event in events(tmp_path)]
    assert [rates[0], rates[1], rates[-1]] == [0.0, peak, pytest.approx(peak / 9)]


# --- losses that are not finite ----------------------------------------------------------------------------------------


class Breaks(Classifier):
    """Its loss is multiplied by `factor` in one step; `before`: called at each."""

    def __init__(self, factor: float, at: int, before: Any = lambda: None) -> None:
        super().__init__()
        self.factor, self.at, self.before, self.steps = factor, at, before, 0

    def forward(self, batch: Batch) -> Outputs:
        self.before()
        self.steps += 1
        outputs = super().forward(batch)
        factor = self.factor if self.steps == self.at else 1.0
        return Outputs({"labels": outputs.loss_sums["labels"] * factor}, outputs.logits)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_its_step_and_saves_nothing(bad: float, tmp_path: Path) -> None:
    config = dataclasses.replace(ALL_AT_ONCE, logging_steps=4)
    with pytest.raises(UsageError) as caught:
        training_run(SENTENCE, config, 20, tmp_path, module=Breaks(bad, at=6), eval_every=4)
    assert f"{bad} at step 6" in caught.value.what
    names = ["checkpoint-4", "manifest.json", "metrics.jsonl", "model.safetensors"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == names
    assert [event["step"] for event in events(tmp_path)] == [4]


def test_a_checkpoint_between_log_events_is_of_no_loss_that_is_not_finite(tmp_path: Path) -> None:
    config = dataclasses.replace(ALL_AT_ONCE, logging_steps=100, save_steps=4)
    with pytest.raises(UsageError, match="nan at step 6"):
        training_run(SENTENCE, config, 20, tmp_path, module=Breaks(float("nan"), at=6))
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-4"]


def test_an_interrupted_run_saves_no_loss_that_is_not_finite(tmp_path: Path) -> None:
    module = Breaks(float("nan"), at=1, before=lambda: os.kill(os.getpid(), signal.SIGINT))
    config = dataclasses.replace(ALL_AT_ONCE, logging_steps=100)
    with pytest.raises((UsageError, Interrupted)) as stopped:  # a KeyboardInterrupt would end pytest
        training_run(SENTENCE, config, 20, tmp_path, module=module)
    assert isinstance(stopped.value, UsageError)
    assert "nan at step 1" in stopped.value.what
    assert not list(tmp_path.glob("*checkpoint-*"))


# --- stop and resume ---------------------------------------------------------------------------------------------------


def interrupted_run(run_dir: Path, config: TrainConfig, call: int, number: int = signal.SIGINT) -> int:
    """Send a signal in this forward pass, from 1; the step after which the loop says it stopped."""
    module = with_dropout()
    calls: list[int] = []

    def count(*_: Any) -> None:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)

    module.register_forward_pre_hook(count)
    with pytest.raises(Interrupted) as stopped:
        training_run(SENTENCE, config, 9, run_dir, module=module, eval_every=4)
    (step,) = re.findall(r"\d+", str(stopped.value))
    return int(step)


@pytest.mark.parametrize(
    ("number", "precision"),
    [(signal.SIGINT, "fp32"), (signal.SIGUSR1, "fp32"), (signal.SIGTERM, "bf16"), (signal.SIGTERM, "fp16")],
)
def test_a_signal_ends_the_step_whole_and_the_run_resumes_bit_exactly(
    number: int, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 2)  # so that it changes in nine steps
    config = dataclasses.replace(ONE_A_TIME, precision=precision)
    whole = training_run(SENTENCE, config, 9, tmp_path / "whole", module=with_dropout(), eval_every=4)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    assert interrupted_run(tmp_path / "stopped", config, 5 * 4 + 3, number) == 6
    assert {each: signal.getsignal(each) for each in before} == before
    more = {"module": with_dropout(), "eval_every": 4, "resume_from": tmp_path / "stopped" / "checkpoint-6"}
    again = training_run(SENTENCE, config, 9, tmp_path / "stopped", **more)
    assert_equal(again.parameters, whole.parameters)
    assert events(tmp_path / "stopped") == events(tmp_path / "whole")
    scales = [event["loss_scale"] for event in events(tmp_path / "whole") if "loss_scale" in event]
    assert (len(set(scales)) > 2) == (precision == "fp16")


@pytest.mark.parametrize("rule", ["adamw", "lamb"])
def test_the_curve_of_fp16_is_that_of_float32_but_for_steps_that_overflow(rule: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, optimizer=rule, warmup_ratio=0.0, schedule="constant", learning_rate=1e-3)
    half = dataclasses.replace(config, precision="fp16")
    exact = training_run(SENTENCE, config, 12, tmp_path / "fp32").losses
    np.testing.assert_allclose(training_run(SENTENCE, half, 12, tmp_path / "fp16").losses, exact, rtol=1e-2)
    untrained = training_run(SENTENCE, dataclasses.replace(config, learning_rate=1e-12), 12, tmp_path / "none").losses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer_module, "LossScale", partial(LossScale, 2.0**20))
        found = training_run(SENTENCE, half, 12, tmp_path / "large").losses
    updated = [event["grad_norm"] > 0 for event in events(tmp_path / "large")]
    skipped = updated.index(True)
    assert 2 <= skipped <= 6
    assert updated == [False] * skipped + [True] * (12 - skipped)
    np.testing.assert_allclose(found[: skipped + 1], untrained[: skipped + 1], rtol=1e-2)
    assert abs(found[-1] - untrained[-1]) > 0.02 * untrained[-1]


def test_gradients_that_no_scale_makes_finite_are_an_error() -> None:
    scale = LossScale()
    for _ in range(30):
        assert not scale.admits(torch.tensor(torch.inf))
    with pytest.raises(UsageError, match="not finite, even with the loss scaled by"):
        scale.admits(torch.tensor(torch.inf))


def test_the_loss_scale_is_that_of_torchs_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 3)
    ours, generator = LossScale(), torch.Generator().manual_seed(0)
    scale, growth = torch.tensor(2.0**16), torch.tensor(0, dtype=torch.int32)
    for overflow in (torch.rand(200, generator=generator) < 0.15).tolist():
        assert ours.admits(torch.tensor(torch.nan if overflow else 1.0)) != overflow
        torch._amp_update_scale_(scale, growth, torch.tensor(float(overflow)), 2.0, 0.5, 3)
        assert (ours.scale, ours.updates) == (scale.item(), growth.item())


def test_stopping_at_a_checkpoint_leaves_it_as_it_is(tmp_path: Path) -> None:
    """Saving the same step again would take away the only checkpoint for a moment."""
    assert interrupted_run(tmp_path, ONE_A_TIME, 4 * 4) == 4
    number = (tmp_path / "checkpoint-4").stat().st_ino
    sampler = Sampler(len(SENTENCE.features), 4, TRAINING.seed)

    def stopping(step: int) -> list[Batch]:
        if step == 4:  # the first, before which it stops
            os.kill(os.getpid(), signal.SIGINT)
        return training_batches(SENTENCE.features, sampler, 1)(step)

    more = {"save_model": lambda step: lambda *_: None, "resume_from": tmp_path / "checkpoint-4"}
    with pytest.raises(Interrupted):
        train(with_dropout(), stopping, ONE_A_TIME, start_accelerator("cpu"), total_steps=9, run_dir=tmp_path, **more)
    assert (tmp_path / "checkpoint-4").stat().st_ino == number
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-4"]


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    module = Classifier()
    module.register_forward_pre_hook(lambda *_: (os.kill(os.getpid(), signal.SIGINT), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt) as stopped:
        training_run(SENTENCE, TRAINING, 5, tmp_path, module=module)
    assert not isinstance(stopped.value, Interrupted)
    assert not list(tmp_path.glob("*checkpoint-*"))


def test_a_damaged_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    training_run(SENTENCE, TRAINING, 2, tmp_path)
    path = tmp_path / "checkpoint-2" / "training" / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        training_run(SENTENCE, TRAINING, 4, tmp_path, resume_from=tmp_path / "checkpoint-2")
    assert "training/optimizer.safetensors" in caught.value.what
    assert caught.value.where == str(tmp_path / "checkpoint-2")
    assert logged_losses(tmp_path)


def test_config_is_as_the_tests_suppose() -> None:
    assert Classifier().bert.config.hidden_dropout_prob == 0
    assert SENTENCE.features.num_tokens.max() > TRAINING.micro_batch_tokens / 4  # several micro-batches a step


@pytest.mark.parametrize("ratios", [{"warmup_ratio": 0.6, "decay_ratio": 0.5}, {"decay_ratio": 0.95}, {"warmup_ratio": 0.85}])
def test_warm_up_and_decay_fit_into_the_steps(ratios: dict[str, float]) -> None:
    """Refused when training starts, not when the settings of a finished run are read."""
    stable = partial(TrainConfig, schedule="warmup_stable_decay")
    with pytest.raises(UsageError, match=r"--warmup-ratio \S+ and --decay-ratio \S+ add up to more than 1"):
        refuse_unsupported(stable(**ratios), torch.device("cpu"))
    for warmup in (0.0, 0.1, 0.3, 0.7, 0.9, 1.0):
        refuse_unsupported(stable(warmup_ratio=warmup, decay_ratio=1 - warmup), torch.device("cpu"))
    refuse_unsupported(TrainConfig(warmup_ratio=0.9), torch.device("cpu"))


def test_labels_that_end_in_loss_are_no_losses() -> None:
    """Of two evaluations with equal objectives, the one with the lower loss is better."""
    names = (
        "validation/micro_f1",
        "validation/threshold_weight loss",
        "validation/f1_hearing_loss",
        "validation/threshold_loss",
    )
    first = dict.fromkeys(names, 0.1) | {"validation/loss": 0.3, "validation/intent_loss": 0.1}
    second = dict.fromkeys(names, 0.6) | {"validation/loss": 0.2, "validation/intent_loss": 0.1}
    assert worth(0.5, second) > worth(0.5, first)
    assert worth(0.5, second)[1] == pytest.approx(-0.3)

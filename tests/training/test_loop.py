"""The loop against a plain one: every shape of batch, any cut of the step, and what is saved when."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shapes import CONFIG, SHAPES, TRAINING, Classifier, logged_losses, oracle_run, sentences, training_run
from torch import Tensor, nn

from bertkit.config import TrainConfig
from bertkit.errors import ModelError, UsageError
from bertkit.features import Ragged
from bertkit.model.batch import Batch, Outputs
from bertkit.model.devices import start_accelerator
from bertkit.model.dropout import set_dropout
from bertkit.training.loop import Interrupted, TrainState, step_losses, train

SENTENCE = SHAPES["sentence"]

# What adds the same number to all logits of a softmax, by shape; key.bias does so in each.
NO_GRADIENT = {"windows": ("qa_outputs.bias", "layer.1.output.LayerNorm.bias"), "choices": ("classifier.bias",)}


def with_dropout() -> nn.Module:
    module = Classifier()
    set_dropout(module, 0.3)
    return module


def events(run_dir: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl holds, but for the times."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in event.items() if name != "tokens_per_second"} for event in found]


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal to the last bit."""
    assert found.keys() == expected.keys()
    assert found
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


# --- the plain loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_loop_equals_a_plain_one_over_transformers(name: str, tmp_path: Path) -> None:
    losses, parameters = oracle_run(SHAPES[name], TRAINING, 12)
    found = training_run(SHAPES[name], TRAINING, 12, tmp_path)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5, atol=1e-5)
    assert np.ptp(losses) > 0.1  # it learns something
    named = {key: value for key, value in found.parameters.items() if key != "decoder.weight"}
    assert named.keys() == parameters.keys()
    for key, expected in parameters.items():
        # a gradient that is zero in theory: Adam makes steps of what rounding leaves of it
        atol = 5e-4 if key.endswith(("key.bias", *NO_GRADIENT.get(name, ()))) else 1e-5
        torch.testing.assert_close(named[key], expected, rtol=1e-5, atol=atol, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", SHAPES)
def test_any_micro_batch_tokens_gives_the_same_curve(name: str, tmp_path: Path) -> None:
    curves = []
    for tokens in (1, 70, 10_000):  # a feature at a time; a few; the whole step at once
        config = dataclasses.replace(TRAINING, micro_batch_tokens=tokens)
        curves.append(training_run(SHAPES[name], config, 50, tmp_path / str(tokens)).losses)
    assert len(curves[0]) == 50
    np.testing.assert_allclose(curves[1], curves[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(curves[2], curves[0], rtol=0, atol=1e-5)


def test_loss_of_a_step_is_not_a_mean_of_means() -> None:
    sums = [{"mlm": torch.tensor(6.0), "nsp": torch.tensor(1.0)}, {"mlm": torch.tensor(1.0), "nsp": torch.tensor(2.0)}]
    weights = [{"mlm": 3.0, "nsp": 1.0}, {"mlm": 1.0, "nsp": 0.0}]
    whole = {"mlm": 4.0, "nsp": 1.0}
    shares = [float(step_losses(s, w, whole).sum()) for s, w in zip(sums, weights, strict=True)]
    assert shares == [6 / 4 + 1 / 1, 1 / 4]  # what has no weight adds nothing, though its sum is not 0


def test_a_step_without_targets_of_a_term_is_no_nan(tmp_path: Path) -> None:
    features = dataclasses.replace(SHAPES["pretraining"].features, labels=dict(SHAPES["pretraining"].features.labels))
    features.labels["nsp"] = Ragged.column(np.full(len(features), -100))
    found = training_run(dataclasses.replace(SHAPES["pretraining"], features=features), TRAINING, 3, tmp_path)
    assert np.isfinite(found.losses).all()


# --- dropout, precision ------------------------------------------------------------------------------------------------


def test_dropout_is_drawn_from_seed_and_step_alone(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> list[float]:
        torch.rand(len(name))  # torch's own stream is elsewhere each time
        return training_run(SENTENCE, dataclasses.replace(TRAINING, **changes), 6, tmp_path / name).losses

    first = run("first", dropout=0.3)
    assert run("second", dropout=0.3) == first
    assert run("none") != first
    # Another seed alone: order and masks differ. With one step an epoch the order matters little, and the masks still do.
    assert run("seed", dropout=0.3, seed=1) != first
    one_step = {"batch_size": 25, "dropout": 0.3, "micro_batch_tokens": 10_000, "learning_rate": 0.0}
    still = run("still", **one_step)
    assert len(set(still)) == 6, "every step draws anew"
    assert len({round(loss, 4) for loss in run("still-none", **{**one_step, "dropout": 0.0})}) == 1


def test_each_micro_batch_draws_its_own_mask(tmp_path: Path) -> None:
    """The same text four times, one a micro-batch: with one mask for all, all four would have the same logits."""
    shape = dataclasses.replace(SENTENCE, features=_repeated())
    module = with_dropout()
    seen: list[tuple[float, ...]] = []
    module.classifier.register_forward_hook(lambda _, __, logits: seen.append(tuple(logits[0].tolist())))
    training_run(shape, dataclasses.replace(TRAINING, micro_batch_tokens=1, batch_size=4), 1, tmp_path, module=module)
    assert len(seen) == 4
    assert len(set(seen)) == 4


def _repeated() -> Any:
    features = sentences(1)
    four = np.zeros(4, dtype=np.int64)
    taken = {name: getattr(features, name).take(four) for name in ("input_ids", "token_type_ids", "rows")}
    return dataclasses.replace(
        features, **taken, examples=np.arange(4), labels={"labels": features.labels["labels"].take(four)}
    )


@pytest.mark.parametrize("name", ["sentence", "pretraining"])
def test_bf16_computes_in_bf16_and_saves_float32_masters(name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, precision="bf16", learning_rate=1e-6, warmup_ratio=0.0, schedule="constant")
    module = SHAPES[name].build()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    found = training_run(SHAPES[name], config, 8, tmp_path, module=module)
    assert {p.dtype for p in found.module.parameters()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in found.parameters.values()} == {torch.float32}
    assert found.parameters.keys() == before.keys()
    for key, value in found.parameters.items():
        moved = (value - before[key]).abs()
        assert moved.max() < 2e-5, key
        if value.shape != (1,):
            assert not torch.equal(value, value.bfloat16().float()), f"{key} is rounded to bf16"
    weight = found.parameters["bert.encoder.layer.0.output.dense.weight"] - before["bert.encoder.layer.0.output.dense.weight"]
    assert (weight != 0).float().mean() > 0.9  # updates of 1e-6 to weights of 0.2 are lost in bf16, and not in the masters


def test_what_is_frozen_stays_and_is_saved_unrounded(tmp_path: Path) -> None:
    module = Classifier()
    module.bert.embeddings.requires_grad_(False)
    before = {key: value.clone() for key, value in module.bert.embeddings.state_dict().items()}
    found = training_run(SENTENCE, dataclasses.replace(TRAINING, precision="bf16"), 3, tmp_path, module=module)
    assert_same({key: found.parameters[f"bert.embeddings.{key}"] for key in before}, before)


# --- what is saved, and which step is best -----------------------------------------------------------------------------


def test_evaluates_and_saves_at_the_steps_it_should_and_keeps_the_best(tmp_path: Path) -> None:
    objectives = iter([0.2, 0.7, 0.7, None, 0.1])
    modes: list[bool] = []

    def evaluate(module: nn.Module) -> tuple[dict[str, float | None], float | None]:
        modes.append(module.training)
        objective = next(objectives)
        return {"dev/accuracy": objective}, objective

    found = training_run(SENTENCE, TRAINING, 11, tmp_path, evaluate=evaluate, eval_every=2 + 1)
    # steps 3, 6, 9 and the last; the best is the first of equals
    assert found.saves == [
        *(".unfinished-checkpoint-3 at 3", f"{tmp_path.name} at 3"),
        *(".unfinished-checkpoint-6 at 6", f"{tmp_path.name} at 6"),
        ".unfinished-checkpoint-9 at 9",
        ".unfinished-checkpoint-11 at 11",
    ]
    assert (found.state.step, found.state.best_step, found.state.best_objective) == (11, 6, 0.7)
    assert found.state.best_scores == {"dev/accuracy": 0.7}
    assert found.state.last_scores == {"dev/accuracy": None}
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-11", "metrics.jsonl"]
    scored = [event for event in events(tmp_path) if "dev/accuracy" in event]
    assert [(event["step"], event["dev/accuracy"]) for event in scored] == [(3, 0.2), (6, 0.7), (9, 0.7), (11, None)]
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
    assert state.best_scores == {"m": objectives[best - 1]}
    assert state.last_scores == {"m": objectives[-1]}


def test_early_stopping_counts_evaluations_without_a_better_score(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, early_stopping_patience=2)
    given = [0.2, 0.7, 0.7, 0.9, None, 0.5, 1.0]

    def run(folder: Path, objectives: list[float | None], total_steps: int, **more: Any) -> TrainState:
        left = iter(objectives)

        def evaluate(module: nn.Module) -> tuple[dict[str, float | None], float | None]:
            return {"dev/accuracy": (value := next(left))}, value

        return training_run(SENTENCE, config, total_steps, folder, evaluate=evaluate, eval_every=2, **more).state

    whole = run(tmp_path / "whole", given, 20)
    assert (whole.step, whole.best_step) == (12, 8)
    cut = run(tmp_path / "cut", given[:5], 10)  # whose last evaluation was the first in vain
    assert (cut.step, cut.best_step) == (10, 8)
    again = run(tmp_path / "cut", given[5:], 20, resume_from=tmp_path / "cut" / "checkpoint-10")
    assert (again.step, again.best_step) == (12, 8)
    assert run(tmp_path / "whole", [], 20, resume_from=tmp_path / "whole" / "checkpoint-12").step == 12


def test_without_an_evaluation_the_last_model_is_kept(tmp_path: Path) -> None:
    found = training_run(SENTENCE, TRAINING, 4, tmp_path, eval_every=2)
    steps = [f"{folder} at {step}" for step in (2, 4) for folder in (f".unfinished-checkpoint-{step}", tmp_path.name)]
    assert found.saves == steps
    assert found.state.best_step == 4


def test_log_has_a_mean_over_the_steps_since_the_last_line(tmp_path: Path) -> None:
    each = training_run(SENTENCE, TRAINING, 10, tmp_path / "each").losses
    config = dataclasses.replace(TRAINING, logging_steps=4)
    training_run(SENTENCE, config, 10, tmp_path / "four")
    logged = events(tmp_path / "four")
    assert [event["step"] for event in logged] == [4, 8, 10]
    expected = [np.mean(each[:4]), np.mean(each[4:8]), np.mean(each[8:])]
    np.testing.assert_allclose([event["loss"] for event in logged], expected, rtol=1e-6)
    rates = [event["learning_rate"] for event in events(tmp_path / "each")]
    assert rates[0] == 0.0
    assert rates[1] == TRAINING.learning_rate
    assert rates[-1] == pytest.approx(TRAINING.learning_rate * 1 / 9)


# --- losses that are not finite ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bad", "shown"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_loss_that_is_not_finite_stops_with_its_step_and_saves_nothing(bad: float, shown: str, tmp_path: Path) -> None:
    class Breaks(Classifier):
        steps = 0

        def forward(self, batch: Batch) -> Outputs:
            outputs = super().forward(batch)
            self.steps += 1
            factor = bad if self.steps == 6 else 1.0
            return Outputs({"labels": outputs.loss_sums["labels"] * factor}, outputs.logits)

    config = dataclasses.replace(TRAINING, logging_steps=4, micro_batch_tokens=10_000)
    with pytest.raises(UsageError) as caught:
        training_run(SENTENCE, config, 20, tmp_path, module=Breaks(), eval_every=4)
    assert str(caught.value) == f"the loss is {shown} at step 6"
    assert caught.value.hint == "lower --learning-rate, raise --warmup-ratio, or try --precision fp32"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-4", "metrics.jsonl"]
    assert [event["step"] for event in events(tmp_path)] == [4]


def test_an_interrupted_run_saves_no_loss_that_is_not_finite(tmp_path: Path) -> None:
    class Breaks(Classifier):
        def forward(self, batch: Batch) -> Outputs:
            os.kill(os.getpid(), signal.SIGINT)
            return Outputs({"labels": super().forward(batch).loss_sums["labels"] * float("nan")}, {})

    config = dataclasses.replace(TRAINING, logging_steps=100, micro_batch_tokens=10_000)
    with pytest.raises((UsageError, Interrupted)) as stopped:  # a KeyboardInterrupt would end pytest
        training_run(SENTENCE, config, 20, tmp_path, module=Breaks())
    assert isinstance(stopped.value, UsageError)
    assert str(stopped.value) == "the loss is nan at step 1"
    assert not list(tmp_path.glob("*checkpoint-*"))


# --- stop and go on ----------------------------------------------------------------------------------------------------


def interrupted_run(run_dir: Path, config: TrainConfig, total_steps: int, at: tuple[int, int], number: int) -> int:
    """Send a signal in the forward pass of (step, micro-batch); the step after which the loop says it stopped."""
    module = with_dropout()
    calls: list[int] = []

    def count(*_: Any) -> None:
        calls.append(1)
        if len(calls) == at[0] * 4 + at[1] + 1:
            os.kill(os.getpid(), number)

    module.register_forward_pre_hook(count)
    with pytest.raises(Interrupted) as stopped:
        training_run(SHAPES["sentence"], config, total_steps, run_dir, module=module, save_model=write_nothing, eval_every=4)
    found = [int(word) for word in str(stopped.value).replace(";", "").split() if word.isdigit()]
    assert len(found) == 1
    return found[0]


def write_nothing(folder: Path, state_dict: dict[str, Tensor], step: int) -> None:
    """For runs whose checkpoints alone are looked at."""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_whole_and_the_run_goes_on_bit_for_bit(number: int, precision: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, micro_batch_tokens=1, batch_size=4, precision=precision)
    whole = training_run(SENTENCE, config, 9, tmp_path / "whole", module=with_dropout(), eval_every=4)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    assert interrupted_run(tmp_path / "cut", config, 9, at=(5, 2), number=number) == 6
    assert {each: signal.getsignal(each) for each in before} == before
    again = training_run(
        SENTENCE,
        config,
        9,
        tmp_path / "cut",
        module=with_dropout(),
        eval_every=4,
        resume_from=tmp_path / "cut" / "checkpoint-6",
    )
    assert again.losses == whole.losses
    assert_same(again.parameters, whole.parameters)
    assert events(tmp_path / "cut") == events(tmp_path / "whole")


def test_stopping_at_a_checkpoint_leaves_it_as_it_is(tmp_path: Path) -> None:
    """Saving the same step again would take away the only checkpoint for a moment."""
    config = dataclasses.replace(TRAINING, micro_batch_tokens=1, batch_size=4)
    assert interrupted_run(tmp_path, config, 9, at=(3, 3), number=signal.SIGINT) == 4
    stamp = (tmp_path / "checkpoint-4").stat()
    places = {"run_dir": tmp_path, "resume_from": tmp_path / "checkpoint-4", "save_model": write_nothing}
    with pytest.raises(Interrupted):
        train(with_dropout(), _stopping_batches(), config, start_accelerator("cpu"), total_steps=9, **places)
    assert (tmp_path / "checkpoint-4").stat().st_ino == stamp.st_ino
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-4"]


def _stopping_batches() -> Any:
    from bertkit.training.batching import Sampler, training_batches

    batches = training_batches(SENTENCE.features, Sampler(len(SENTENCE.features), 4, TRAINING.seed), 1)

    def stopping(step: int) -> list[Batch]:
        os.kill(os.getpid(), signal.SIGINT)
        return batches(step)

    return stopping


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    module = Classifier()
    module.register_forward_pre_hook(lambda *_: (os.kill(os.getpid(), signal.SIGINT), os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt) as stopped:
        training_run(SENTENCE, TRAINING, 5, tmp_path, module=module)
    assert not isinstance(stopped.value, Interrupted)
    assert not list(tmp_path.glob("*checkpoint-*"))


def test_a_run_that_begins_again_begins_its_log_again(tmp_path: Path) -> None:
    """Killed before the first checkpoint, the same command starts from step 0: no step may stand in the log twice."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 9.0, "learning_rate": 0.0}\n{"step": 2, "lo', encoding="utf-8")
    losses = training_run(SENTENCE, TRAINING, 3, tmp_path).losses
    assert len(losses) == 3
    assert losses[0] != 9.0


def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path: Path) -> None:
    training_run(SENTENCE, TRAINING, 2, tmp_path)
    checkpoint = tmp_path / "checkpoint-2"
    path = checkpoint / "training" / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"training/optimizer.safetensors of the checkpoint is damaged"):
        training_run(SENTENCE, TRAINING, 4, tmp_path, resume_from=checkpoint)
    assert logged_losses(tmp_path)


def test_config_is_as_the_tests_suppose() -> None:
    assert CONFIG.hidden_dropout_prob == 0
    assert SENTENCE.features.num_tokens.max() > TRAINING.micro_batch_tokens / 4  # several micro-batches a step

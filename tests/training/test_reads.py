"""A step reads nothing from the device, from the forward pass to the optimizer's update: reading waits for all that is queued.

On a CPU, where reading costs nothing, torch's operations are watched instead; on a GPU torch itself refuses to wait.
"""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from shapes import CLS, CONFIG, NUM_CLASSES, TRAINING, choices, masked_pairs, sentences, windows, words
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bertkit.config import PretrainConfig
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.features import Features, Ragged
from bertkit.model.bert import BertEmbeddings, initialize
from bertkit.model.config import LAYERS, POOLINGS, BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Head,
    Vectors,
)
from bertkit.training import loop
from bertkit.training.batching import Sampler, training_batches
from bertkit.training.loop import train
from bertkit.training.optimizer import RULES, Optimizer

aten = torch.ops.aten
READING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten._unique2}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}  # which find the places of booleans by nonzero
METHODS = {
    getattr(Tensor, name)
    for name in "item tolist cpu numpy nonzero masked_select __bool__ __int__ __float__ __index__ __contains__".split()
}


class WatchedOperations(TorchDispatchMode):
    """What torch computes, in the backward pass too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = func.overloadpacket
        assert operation not in READING, f"{operation} reads from the device"
        if operation in INDEXING:
            assert all(index is None or index.dtype not in (torch.bool, torch.uint8) for index in args[1]), (
                "an index of booleans"
            )
        return func(*args, **(kwargs or {}))


class WatchedMethods(TorchFunctionMode):
    """What is called on tensors; on a CPU some of it is no operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in METHODS, f"Tensor.{func.__name__} reads from the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def watched() -> Iterator[None]:
    with WatchedOperations(), WatchedMethods():
        yield


@contextmanager
def refused_by_torch() -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- every head, with features it takes ---------------------------------------------------------------------------------

ARCHITECTURE = dataclasses.replace(
    CONFIG,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    num_hidden_layers=4,
    id2label={index: str(index) for index in range(NUM_CLASSES)},
)
DECODER = dataclasses.replace(ARCHITECTURE, is_decoder=True)
WEIGHTS = {"class_weights": (1.0, 2.0, 0.5), "label_smoothing": 0.1}


def with_problem(problem_type: str, num_labels: int) -> BertConfig:
    labels = {index: str(index) for index in range(num_labels)}
    return dataclasses.replace(ARCHITECTURE, id2label=labels, problem_type=problem_type)


def several_labels() -> Features:
    features, rng = sentences(), np.random.default_rng(0)
    labels = Ragged.of(list(rng.integers(0, 2, (len(features), NUM_CLASSES))))
    return dataclasses.replace(features, labels={"labels": labels})


def words_with_intents() -> Features:
    features = words()
    rows = Ragged.of([[0, *features.rows[index]] for index in range(len(features))])
    labels = Ragged.of([[-100, *features.labels["labels"][index]] for index in range(len(features))])
    intents = Ragged.column(np.arange(len(features)) % 2)
    return dataclasses.replace(features, rows=rows, labels={"labels": labels, "intent": intents})


def to_pretrain(name: str) -> Features:
    objective, features = OBJECTIVES[name], masked_pairs()
    if objective.pair_term is not None:
        labels = {objective.token_term: features.labels["mlm"], objective.pair_term: features.labels["nsp"]}
        return dataclasses.replace(features, labels=labels)
    labels = Ragged.of([[CLS, *features.labels["mlm"][index]] for index in range(len(features))])
    return dataclasses.replace(features, labels={objective.token_term: labels})


def pretrained_by(name: str) -> Head:
    return OBJECTIVES[name].head(DECODER if OBJECTIVES[name].causal else ARCHITECTURE)


Case = tuple[Callable[[], Head], Callable[[], Features]]
CASES: dict[str, Case] = {
    "decoder": (lambda: BertForSequenceClassification(DECODER), sentences),
    "weights": (lambda: BertForSequenceClassification(ARCHITECTURE, **WEIGHTS), sentences),
    "regression": (lambda: BertForSequenceClassification(with_problem("regression", 1)), lambda: sentences(regression=True)),
    "several labels": (
        lambda: BertForSequenceClassification(with_problem("multi_label_classification", NUM_CLASSES)),
        several_labels,
    ),
    "answers": (lambda: BertForQuestionAnswering(ARCHITECTURE), windows),
    "tags, weights": (lambda: BertForTokenClassification(ARCHITECTURE, **WEIGHTS), words),
}
for pooling in POOLINGS:
    CASES[f"class, {pooling}"] = (lambda p=pooling: BertForSequenceClassification(ARCHITECTURE, pooling=p), sentences)
    CASES[f"choice, {pooling}"] = (lambda p=pooling: BertForMultipleChoice(ARCHITECTURE, pooling=p), choices)
for head in ("linear", "bilstm", "crf"):
    CASES[f"tags, {head}"] = (lambda h=head: BertForTokenClassification(ARCHITECTURE, head=h), words)
    CASES[f"tags, {head}, intents"] = (
        lambda h=head: BertForTokenClassification(ARCHITECTURE, head=h, num_intents=2),
        words_with_intents,
    )
for layers in LAYERS:
    CASES[f"tags, bilstm, {layers}"] = (
        lambda how=layers: BertForTokenClassification(ARCHITECTURE, head="bilstm", lstm_layers=2, layers=how),
        words,
    )
for objective in OBJECTIVES:
    CASES[objective] = (lambda o=objective: pretrained_by(o), lambda o=objective: to_pretrain(o))


def test_every_head_is_among_them() -> None:
    def below(parent: type) -> set[type]:
        return {parent}.union(*(below(child) for child in parent.__subclasses__()))

    own = {each for each in below(Head) if each.__module__.startswith("bertkit.")}
    trained = {each for each in own if not each.__subclasses__()} - {Vectors}
    assert {type(build()) for build, _ in CASES.values()} == trained


def run(
    case: str, watch: Callable[[], AbstractContextManager[None]], folder: Path, *, device: str = "cpu", **settings: Any
) -> nn.Module:
    """Train some steps, each watched from its first forward pass until the optimizer has made its update; the first is not."""
    build, features = CASES[case][0], CASES[case][1]()
    module = build()
    initialize(module, ARCHITECTURE, seed=0)
    config = PretrainConfig.of({**dataclasses.asdict(TRAINING), "logging_steps": 100, **settings})  # which has all optimizers
    sampler = Sampler(len(features), config.batch_size, config.seed)
    watching, steps, update = ExitStack(), itertools.count(), Optimizer.step
    begun: list[int] = []

    def begin(*_: Any) -> None:
        if not begun:
            begun.append(next(steps))
            if begun[0]:  # in the first torch prepares its kernels, and constants are copied to the device
                watching.enter_context(watch())

    def step(self: Optimizer, learning_rate: float) -> Tensor:
        norm = update(self, learning_rate)
        watching.close()
        begun.clear()
        return norm

    module.register_forward_pre_hook(begin)
    with watching, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizer, "step", step)
        patch.setattr(loop, "use_sparse_lookups", lambda module: None)  # which makes a difference on a CPU alone
        for part in module.modules():
            if isinstance(part, BertEmbeddings):
                part.sparse_gradient = False  # which a language model's head sets
        batches = training_batches(features, sampler, config.micro_batch_tokens)
        train(module, batches, config, start_accelerator(device), total_steps=4, run_dir=folder)
    assert next(steps) == 4
    return module


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_any_head_reads_nothing(case: str, tmp_path: Path) -> None:
    run(case, watched, tmp_path, precision="bf16", optimizer="adamw", micro_batch_tokens=40)


SEVERAL = ("weights", "decoder", "choice, max", "tags, bilstm, intents", "tags, crf", "answers", "mlm+nsp")


@pytest.mark.parametrize("case", SEVERAL)
@pytest.mark.parametrize(("optimizer", "precision"), [*((rule, "fp32") for rule in RULES), ("muon", "bf16")])
def test_a_step_of_any_optimizer_reads_nothing(case: str, optimizer: str, precision: str, tmp_path: Path) -> None:
    """In whole batches; the heads above have a few sequences at a time."""
    run(case, watched, tmp_path, precision=precision, optimizer=optimizer, micro_batch_tokens=10_000)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: float(x.sum()),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: bool((x > 0).any()),
        lambda x: x.masked_select(x > 0),
        lambda x: torch.nonzero(x),
        lambda x: torch.where(x > 0),
        lambda x: x.index_put_((x > 0,), x.new_ones(())),
        lambda x: x.cpu(),
    ],
)
def test_what_reads_is_found(read: Callable[[Tensor], Any]) -> None:
    with pytest.raises(AssertionError), watched():
        read(torch.arange(3.0))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_does_not_wait_for_a_gpu(case: str, precision: str, tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)  # other tests of this process chose the CPU
    try:
        module = run(case, refused_by_torch, tmp_path, device="cuda", precision=precision)
        assert {parameter.device.type for parameter in module.parameters()} == {"cuda"}
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)

"""Features of every shape the loop has to take, a small head for each, and a plain loop over transformers' BertModel as oracle.

The oracle sees one sequence at a time, unpadded, through transformers; it adds up each term's loss over a step's features,
divides by the number of targets of that step, and calls torch.optim.AdamW. It shares no code with bertkit but the sampler.
Run as a script under torchrun or accelerate launch, this file trains and evaluates all shapes and writes what each process saw.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from bertkit.config import TrainConfig, filled
from bertkit.features import Features, Ragged
from bertkit.model.batch import Batch, Outputs
from bertkit.model.bert import BertModel, initialize
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.runs.forward import ModelOutputs, outputs_of
from bertkit.training.batching import Sampler, training_batches
from bertkit.training.loop import Interrupted, train
from bertkit.training.state import TrainState

CONFIG = BertConfig(
    vocab_size=48,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,
)
# Its matrices outweigh the rest of a step.
LARGER = BertConfig(
    vocab_size=1000,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=256,
    max_position_embeddings=64,
)
MEASURED = {"tokens_per_second", "matrix_share", "peak_memory_mib"}  # of what metrics.jsonl holds: no two runs have the same
CLS = 2
NUM_CLASSES = 3
NUM_FEATURES = (
    25  # of which a batch_size of 8 leaves one for the last step of an epoch: nothing for the second of two processes
)
TRAINING = filled(
    TrainConfig(
        learning_rate=2e-3,
        batch_size=8,
        logging_steps=1,
        precision="fp32",
        device="cpu",
        micro_batch_tokens=40,
        weight_decay=0.1,
    )
)


# --- features ----------------------------------------------------------------------------------------------------------


def _sequences(rng: np.random.Generator, count: int, *, segments: bool) -> tuple[Ragged, Ragged]:
    lengths = rng.integers(4, 20, count)
    tokens = [[CLS, *rng.integers(5, CONFIG.vocab_size, length - 1)] for length in lengths]
    types = [[int(segments and at > length // 2) for at in range(length)] for length in lengths]
    return Ragged.of(tokens), Ragged.of(types)


def _first_rows(count: int) -> Ragged:
    return Ragged.column(np.zeros(count))


def sentences(count: int = NUM_FEATURES, *, segments: bool = False, regression: bool = False, seed: int = 0) -> Features:
    rng = np.random.default_rng(seed)
    input_ids, token_type_ids = _sequences(rng, count, segments=segments)
    targets = rng.normal(size=count).astype(np.float32) if regression else rng.integers(0, NUM_CLASSES, count)
    labels = {"labels": Ragged.column(targets, dtype=targets.dtype)}
    return Features(input_ids, token_type_ids, np.arange(count), rows=_first_rows(count), labels=labels)


def windows(count: int = NUM_FEATURES) -> Features:
    """Windows of question and context, two to an example; the head reads all rows; the answer's end is ignored in some."""
    rng = np.random.default_rng(1)
    input_ids, token_type_ids = _sequences(rng, count, segments=True)
    start = rng.integers(0, input_ids.lengths)
    end = np.where(rng.random(count) < 0.2, -100, rng.integers(start, input_ids.lengths))
    return Features(
        input_ids, token_type_ids, np.arange(count) // 2, labels={"start": Ragged.column(start), "end": Ragged.column(end)}
    )


def choices(count: int = NUM_FEATURES) -> Features:
    """Questions of two to five choices, a sequence each."""
    rng = np.random.default_rng(2)
    numbers = rng.integers(2, 6, count)
    input_ids, token_type_ids = _sequences(rng, int(numbers.sum()), segments=True)
    return Features(
        input_ids,
        token_type_ids,
        np.arange(count),
        sequences=np.r_[0, np.cumsum(numbers)],
        rows=_first_rows(int(numbers.sum())),
        labels={"labels": Ragged.column(rng.integers(0, numbers))},
    )


def words(count: int = NUM_FEATURES) -> Features:
    """A label for each first piece of a word, some of them ignored."""
    rng = np.random.default_rng(3)
    input_ids, token_type_ids = _sequences(rng, count, segments=False)
    rows = [sorted(rng.choice(np.arange(1, n), size=rng.integers(1, n), replace=False)) for n in input_ids.lengths]
    labels = [[-100 if rng.random() < 0.15 else rng.integers(NUM_CLASSES) for _ in chosen] for chosen in rows]
    return Features(input_ids, token_type_ids, np.arange(count), rows=Ragged.of(rows), labels={"labels": Ragged.of(labels)})


def masked_pairs(count: int = NUM_FEATURES) -> Features:
    """[CLS] and the masked positions (in some sequences none): two terms with two different counts."""
    rng = np.random.default_rng(4)
    input_ids, token_type_ids = _sequences(rng, count, segments=True)
    masked = [sorted(rng.choice(np.arange(1, n), size=rng.integers(0, 5) % n, replace=False)) for n in input_ids.lengths]
    targets = [rng.integers(5, CONFIG.vocab_size, len(chosen)) for chosen in masked]
    return Features(
        input_ids,
        token_type_ids,
        np.arange(count),
        rows=Ragged.of([[0, *chosen] for chosen in masked]),
        labels={"mlm": Ragged.of(targets), "nsp": Ragged.column(rng.integers(0, 2, count))},
    )


# --- heads: modules that map a Batch to Outputs ------------------------------------------------------------------------


class _Head(nn.Module):
    def __init__(self, *, pooler: bool, **linear: int) -> None:
        super().__init__()
        self.bert = BertModel(CONFIG, add_pooling_layer=pooler)
        for name, size in linear.items():
            setattr(self, name, nn.Linear(CONFIG.hidden_size, size))
        initialize(self, CONFIG, seed=3)


class Classifier(_Head):
    def __init__(self, *, regression: bool = False) -> None:
        super().__init__(pooler=True, classifier=1 if regression else NUM_CLASSES)
        self.regression = regression

    def forward(self, batch: Batch) -> Outputs:
        logits = self.classifier(self.bert.pooler(self.bert.encode(batch)))
        labels = batch.labels["labels"]
        if self.regression:
            loss = (logits.float()[:, 0] - labels).square().sum()
        else:
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
        return Outputs({"labels": loss}, {"logits": logits})


class Spans(_Head):
    def __init__(self) -> None:
        super().__init__(pooler=False, qa_outputs=2)

    def forward(self, batch: Batch) -> Outputs:
        logits = self.qa_outputs(self.bert.encode(batch)).float()  # (N, 2)
        losses = {}
        for column, term in enumerate(("start", "end")):
            per_window = logits[:, column].split(batch.cu_seqlens.diff().tolist())
            found = [
                F.cross_entropy(window, target, reduction="sum")
                for window, target in zip(per_window, batch.labels[term], strict=True)
            ]
            losses[term] = torch.stack(found).sum()
        return Outputs(losses, {"start": logits[:, 0], "end": logits[:, 1]})


class Chooser(_Head):
    def __init__(self) -> None:
        super().__init__(pooler=True, classifier=1)

    def forward(self, batch: Batch) -> Outputs:
        logits = self.classifier(self.bert.pooler(self.bert.encode(batch)))[:, 0].float()  # (B,)
        pairs = zip(logits.split(batch.cu_features.diff().tolist()), batch.labels["labels"], strict=True)
        return Outputs(
            {"labels": torch.stack([F.cross_entropy(row, target) for row, target in pairs]).sum()}, {"logits": logits}
        )


class Tagger(_Head):
    def __init__(self) -> None:
        super().__init__(pooler=False, classifier=NUM_CLASSES)

    def forward(self, batch: Batch) -> Outputs:
        logits = self.classifier(self.bert.encode(batch))
        return Outputs({"labels": F.cross_entropy(logits.float(), batch.labels["labels"], reduction="sum")}, {"logits": logits})


class PreTrainer(_Head):
    """The decoder is tied to the word embeddings."""

    def __init__(self) -> None:
        super().__init__(pooler=True, decoder=CONFIG.vocab_size, seq_relationship=2)
        self.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(self, batch: Batch) -> Outputs:
        hidden = self.bert.encode(batch)  # (R, H)
        firsts = batch.cu_rows[:-1]
        masked = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device).index_fill_(0, firsts, False)
        mlm, nsp = self.decoder(hidden), self.seq_relationship(self.bert.pooler(hidden[firsts]))
        losses = {
            "mlm": F.cross_entropy(mlm[masked].float(), batch.labels["mlm"], reduction="sum"),
            "nsp": F.cross_entropy(nsp.float(), batch.labels["nsp"], reduction="sum"),
        }
        return Outputs(losses, {"mlm": mlm, "nsp": nsp})


# --- the oracle's side of each head: the loss sums of one feature, from its sequences' hidden states -------------------


def _pooled(oracle: nn.Module, hidden: Tensor) -> Tensor:
    return torch.tanh(oracle.bert.pooler.dense(hidden[0]))


def _log_loss(logits: Tensor, target: int) -> Tensor:
    return logits.logsumexp(-1) - logits[target]


Loss = Callable[[nn.Module, list[Tensor], Features, int], dict[str, list[Tensor]]]


def _class_loss(oracle: nn.Module, hidden: list[Tensor], features: Features, at: int) -> dict[str, list[Tensor]]:
    return {"labels": [_log_loss(oracle.classifier(_pooled(oracle, hidden[0])), features.labels["labels"][at][0])]}


def _square_loss(oracle: nn.Module, hidden: list[Tensor], features: Features, at: int) -> dict[str, list[Tensor]]:
    return {"labels": [(oracle.classifier(_pooled(oracle, hidden[0]))[0] - float(features.labels["labels"][at][0])) ** 2]}


def _span_loss(oracle: nn.Module, hidden: list[Tensor], features: Features, at: int) -> dict[str, list[Tensor]]:
    logits = oracle.qa_outputs(hidden[0]).T
    targets = {term: features.labels[term][at][0] for term in ("start", "end")}
    return {
        term: [_log_loss(row, target)] if target >= 0 else []
        for row, (term, target) in zip(logits, targets.items(), strict=True)
    }


def _choice_loss(oracle: nn.Module, hidden: list[Tensor], features: Features, at: int) -> dict[str, list[Tensor]]:
    logits = torch.cat([oracle.classifier(_pooled(oracle, sequence)) for sequence in hidden])
    return {"labels": [_log_loss(logits, features.labels["labels"][at][0])]}


def _word_loss(oracle: nn.Module, hidden: list[Tensor], features: Features, at: int) -> dict[str, list[Tensor]]:
    labelled = zip(features.rows[at], features.labels["labels"][at], strict=True)
    return {"labels": [_log_loss(oracle.classifier(hidden[0][row]), label) for row, label in labelled if label != -100]}


def _pretraining_loss(oracle: nn.Module, hidden: list[Tensor], features: Features, at: int) -> dict[str, list[Tensor]]:
    embeddings = oracle.bert.embeddings.word_embeddings.weight
    masked = zip(features.rows[at][1:], features.labels["mlm"][at], strict=True)
    nsp = oracle.seq_relationship(_pooled(oracle, hidden[0]))
    return {
        "mlm": [_log_loss(embeddings @ hidden[0][row] + oracle.decoder.bias, target) for row, target in masked],
        "nsp": [_log_loss(nsp, features.labels["nsp"][at][0])],
    }


@dataclass(frozen=True)
class Shape:
    features: Features
    build: Callable[[], nn.Module]
    loss: Loss


SHAPES: dict[str, Shape] = {
    "sentence": Shape(sentences(), Classifier, _class_loss),
    "pair": Shape(sentences(segments=True, seed=9), Classifier, _class_loss),
    "regression": Shape(sentences(regression=True, seed=8), lambda: Classifier(regression=True), _square_loss),
    "windows": Shape(windows(), Spans, _span_loss),
    "choices": Shape(choices(), Chooser, _choice_loss),
    "words": Shape(words(), Tagger, _word_loss),
    "pretraining": Shape(masked_pairs(), PreTrainer, _pretraining_loss),
}


# What two processes train, by the name of its folder: each shape, and one with the optimizer that sees whole tensors.
RUNS = {name: (shape, TRAINING) for name, shape in SHAPES.items()}
RUNS["lamb"] = (SHAPES["pretraining"], dataclasses.replace(TRAINING, optimizer="lamb"))
# What any number of processes trains alike: steps of 24 features, one a micro-batch, or as many as 40 tokens have.
CURVES = {
    (precision, tokens): dataclasses.replace(TRAINING, batch_size=24, micro_batch_tokens=tokens, precision=precision)
    for precision in ("fp32", "bf16")
    for tokens in (1, 40)
}


def decays_in_run_glue(name: str) -> bool:
    """Whether a parameter gets weight decay by run_glue_no_trainer.py of transformers."""
    return not any(part in name for part in ("bias", "LayerNorm.weight"))


def oracle_run(shape: Shape, config: TrainConfig, total_steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of every step, and the final parameters by name."""
    import transformers

    class Oracle(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            values = {key: value for key, value in dataclasses.asdict(CONFIG).items() if value is not None and key != "extra"}
            pooler = module.bert.pooler is not None
            self.bert = transformers.BertModel(transformers.BertConfig(**values), add_pooling_layer=pooler)
            for name, head in module.named_children():
                if name != "bert":
                    setattr(self, name, nn.Linear(head.in_features, head.out_features))
            if hasattr(self, "decoder"):
                self.decoder.weight = self.bert.embeddings.word_embeddings.weight

    module = shape.build()
    oracle = Oracle(module)
    oracle.load_state_dict(module.state_dict())
    named = list(oracle.named_parameters())
    decayed = [p for name, p in named if decays_in_run_glue(name)]
    others = [p for name, p in named if not decays_in_run_glue(name)]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    betas = (config.adam_beta1, config.adam_beta2)
    adamw = torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon, foreach=False, fused=False)
    warmup = -(-int(config.warmup_ratio * 1000) * total_steps // 1000)
    scheduler = transformers.get_linear_schedule_with_warmup(adamw, warmup, total_steps)
    sampler = Sampler(len(shape.features), config.batch_size, config.seed)
    losses = []
    for step in range(total_steps):
        terms: dict[str, list[Tensor]] = {}
        for feature in sampler.features_at(step):
            first, last = shape.features.offsets[feature], shape.features.offsets[feature + 1]
            hidden = [
                oracle.bert(
                    input_ids=torch.tensor(shape.features.input_ids[sequence], dtype=torch.long)[None],
                    token_type_ids=torch.tensor(shape.features.token_type_ids[sequence], dtype=torch.long)[None],
                ).last_hidden_state[0]
                for sequence in range(first, last)
            ]
            for term, found in shape.loss(oracle, hidden, shape.features, feature).items():
                terms.setdefault(term, []).extend(found)
        loss = sum(torch.stack(found).sum() / len(found) for found in terms.values() if found)
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(oracle.parameters(), config.max_grad_norm)
        adamw.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in oracle.named_parameters()}


# --- bertkit's side ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """parameters: as saved last. saves: the folders that were written at which step, in order."""

    run_dir: Path
    parameters: dict[str, Tensor]
    saves: list[str]
    state: TrainState
    module: nn.Module

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
        return logged_losses(self.run_dir)


def training_run(shape: Shape, config: TrainConfig, total_steps: int, run_dir: Path, **more: Any) -> Trained:
    """`train` on a shape, by this process and those started beside it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    accelerator = start_accelerator("cpu" if config.device == "auto" else config.device)
    sampler = Sampler(len(shape.features), config.batch_size, config.seed)
    places = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    batches = training_batches(shape.features, sampler, config.micro_batch_tokens, **places)
    module = more.pop("module", None) or shape.build()
    saved: dict[str, Tensor] = {}
    saves: list[str] = []

    def save_model(step: int) -> Callable[[Path, dict[str, Tensor]], None]:
        def write(folder: Path, state_dict: dict[str, Tensor]) -> None:
            saved.update({name: tensor.clone() for name, tensor in state_dict.items()})
            saves.append(f"{folder.name} at {step}")
            once = {id(tensor): name for name, tensor in state_dict.items()}
            save_file({name: state_dict[name] for name in once.values()}, folder / "model.safetensors")

        return write

    more = {"save_model": save_model, **more}
    state = train(module, batches, config, accelerator, total_steps=total_steps, run_dir=run_dir, **more)
    return Trained(run_dir, saved, saves, state, module)


def logged_losses(run_dir: Path) -> list[float]:
    """The loss of each step, from metrics.jsonl; the steps are counted from 1 and none is missing or there twice."""
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    events = [event for event in events if "learning_rate" in event]
    assert [event["step"] for event in events] == list(range(1, len(events) + 1))
    return [event["loss"] for event in events]


def prediction_run(shape: Shape, module: nn.Module, micro_batch_tokens: int) -> tuple[ModelOutputs, list[int]]:
    """What `outputs_of` gives, and the features whose sequences this process put through the model."""
    accelerator = start_accelerator("cpu")
    seen: list[int] = []
    with module.register_forward_pre_hook(lambda _, batch: seen.extend(batch[0].features.tolist())):
        return outputs_of(module, shape.features, micro_batch_tokens, accelerator), seen


def seven(shape: Shape) -> Shape:
    """The first seven features of a shape of one sequence a feature."""
    first = np.arange(7)
    features = shape.features
    few = Features(
        features.input_ids.take(first),
        features.token_type_ids.take(first),
        features.examples[:7],
        rows=features.rows.take(first) if features.rows is not None else None,
        labels={term: targets.take(first) for term, targets in features.labels.items()},
    )
    return dataclasses.replace(shape, features=few)


def train_curves(folder: Path, total_steps: int) -> None:
    """Train CURVES in the processes that were started together."""
    for (precision, tokens), config in CURVES.items():
        training_run(SHAPES["pretraining"], config, total_steps, folder / f"{precision}-{tokens}")
    start_accelerator("cpu").wait_for_everyone()


def train_and_predict(folder: Path, total_steps: int) -> None:
    """Train all RUNS in the processes that were started together, and predict seven features with two of the shapes."""
    from accelerate import Accelerator

    for name, (shape, config) in RUNS.items():
        trained = training_run(shape, config, total_steps, folder / name)
        if trained.parameters:
            parameters = {key: value.contiguous() for key, value in trained.parameters.items() if key != "decoder.weight"}
            save_file(parameters, folder / name / "parameters.safetensors")
    accelerator: Accelerator = start_accelerator("cpu")
    for name in ("sentence", "words"):
        shape = seven(SHAPES[name])
        found, seen = prediction_run(shape, shape.build(), 30)
        outputs = {key: [row.tolist() for row in rows] for key, rows in found.outputs.items()}
        report = {"seen": seen, "outputs": outputs, "losses": found.losses, "processes": accelerator.num_processes}
        (folder / f"{name}-{accelerator.process_index}.json").write_text(json.dumps(report), encoding="utf-8")
    module = SHAPES["sentence"].build()
    calls: list[int] = []

    def ask_to_stop(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    if accelerator.process_index == 1:  # one process gets the signal, in its third step
        module.register_forward_pre_hook(ask_to_stop)
    config = dataclasses.replace(TRAINING, micro_batch_tokens=10_000)  # a micro-batch a step
    try:
        training_run(SHAPES["sentence"], config, 9, folder / "stopped", module=module)
    except Interrupted as stopped:
        (folder / f"stopped-{accelerator.process_index}.json").write_text(json.dumps(str(stopped)), encoding="utf-8")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    folder, steps_of_curves, *steps_of_runs = sys.argv[1:]
    train_curves(Path(folder, "curves"), int(steps_of_curves))
    for steps in steps_of_runs:  # none, or one number
        train_and_predict(Path(folder), int(steps))

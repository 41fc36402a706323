"""The model against transformers' own BERT as the oracle: logits, losses, every gradient, and training on real data."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertkit.config import TrainConfig, filled
from bertkit.features import Features, Ragged
from bertkit.model import heads
from bertkit.model.batch import Batch
from bertkit.model.bert import BertModel
from bertkit.model.config import ACTIVATIONS, BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import load_weights, read_config
from bertkit.model.dropout import DropoutStream
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.batching import Sampler, collate, training_batches
from bertkit.training.loop import train
from bertkit.training.vocabulary import UsedVocabulary

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative, per tensor
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# --- the oracle --------------------------------------------------------------------------------------------------------


def pair(
    architecture: str = "BertForSequenceClassification", *, seed: int, dtype: torch.dtype, **sizes: Any
) -> tuple[nn.Module, nn.Module]:
    """Our model and transformers', with one set of random weights; eager attention there, as ours is a fused kernel."""
    theirs_config = transformers.BertConfig(**sizes, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theirs = getattr(transformers, architecture)(theirs_config)
        with torch.no_grad():
            # No bias, LayerNorm or padding row stays as it is made. With much larger weights attention saturates, and float32
            # loses more than 1e-5 of its gradients against float64, on either side.
            for parameter in theirs.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    ours = getattr(heads, architecture, BertModel)(BertConfig.from_dict(theirs_config.to_dict()))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.to(dtype).train(), theirs.to(dtype).train()


Rows = list[tuple[list[int], list[int]]]  # input_ids and token_type_ids of each sequence


def random_rows(rng: np.random.Generator, lengths: list[int], vocab_size: int, type_vocab_size: int) -> Rows:
    return [(rng.integers(vocab_size, size=n).tolist(), rng.integers(type_vocab_size, size=n).tolist()) for n in lengths]


def padded(rows: Rows) -> dict[str, Tensor]:
    """What transformers takes."""
    ids, types = ([torch.tensor(row[part]) for row in rows] for part in (0, 1))
    mask = [torch.ones(len(row), dtype=torch.long) for row in ids]
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {name: pad_sequence(part, batch_first=True) for name, part in zip(names, (ids, types, mask), strict=True)}


def packed(rows: Rows, labels: dict[str, Ragged], *, read: Ragged | None, sequences: list[int] | None = None) -> Batch:
    """What we take, through the store and collate that training uses."""
    count = len(rows) if sequences is None else len(sequences) - 1
    features = Features(
        input_ids=Ragged.of([ids for ids, _ in rows]),
        token_type_ids=Ragged.of([types for _, types in rows], dtype=np.uint8),
        examples=np.arange(count),
        sequences=None if sequences is None else np.array(sequences),
        rows=read,
        labels=labels,
    )
    return collate(features, np.arange(count))


def packed_at_first(rows: Rows, labels: Tensor) -> Batch:
    targets = Ragged.of(labels.view(len(rows), -1).tolist(), dtype=labels.numpy().dtype.type)
    return packed(rows, {"labels": targets}, read=Ragged.column(np.zeros(len(rows))))


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not [name for name, gradient in found.items() if gradient is None]
    return found


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float, *, scale: Tensor | None = None, what: str = "") -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    scale = theirs.norm() if scale is None else scale
    difference = (ours - theirs).norm()
    assert difference <= tolerance * (scale if scale > 0 else 1), f"{what}: {difference / scale:.2e}"


def assert_same_gradients(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float, *, zero: tuple[str, ...] = (), least: float = 0
) -> None:
    """Each tensor relative to itself, at least to this share of all; those whose gradient vanishes in theory, to all."""
    assert set(ours) == set(theirs)
    total = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
    assert total > 0
    for name, gradient in theirs.items():
        scale = total if name.endswith(("key.bias", *zero)) else torch.maximum(gradient.norm(), least * total)
        assert_close(ours[name], gradient, tolerance, scale=scale, what=name)


def assert_packed(
    ours: nn.Module,
    batch: Batch,
    logits: dict[str, Tensor],
    loss: Tensor,
    wanted: dict[str, Tensor],
    tolerance: float,
    **more: Any,
) -> None:
    """Logits, loss and gradients of a packed batch."""
    outputs = ours(batch)
    for name, expected in logits.items():
        assert_close(outputs.logits[name], expected, tolerance, what=f"packed {name}")
    found = torch.stack([total / batch.weights[term] for term, total in outputs.loss_sums.items()]).sum()
    assert_close(found, loss, tolerance, what="packed loss")
    assert_same_gradients(gradients(ours, found), wanted, tolerance, **more)


def assert_parity(ours: nn.Module, theirs: nn.Module, rows: Rows, labels: Tensor, tolerance: float) -> None:
    """Logits, loss and all gradients: packed, and padded."""
    inputs = padded(rows)
    dtype = next(theirs.parameters()).dtype
    reference = theirs(**inputs, labels=labels.to(dtype) if labels.is_floating_point() else labels)
    wanted = copied(gradients(theirs, reference.loss))
    assert_packed(ours, packed_at_first(rows, labels), {"logits": reference.logits}, reference.loss, wanted, tolerance)

    outputs = ours(**inputs)
    assert outputs.loss_sums == {}
    logits = outputs.logits["logits"]
    assert_close(logits, reference.logits, tolerance, what="padded logits")
    regression = labels.is_floating_point()
    loss = F.mse_loss(logits.view(labels.shape), labels.to(dtype)) if regression else F.cross_entropy(logits, labels)
    assert_same_gradients(gradients(ours, loss), wanted, tolerance)


def random_labels(rng: np.random.Generator, count: int, num_labels: int, *, regression: bool) -> Tensor:
    if regression:
        return torch.from_numpy(rng.normal(size=(count, num_labels) if num_labels > 1 else count).astype(np.float32))
    return torch.from_numpy(rng.integers(num_labels, size=count))


# --- random configs ----------------------------------------------------------------------------------------------------

LONGEST = 24


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    vocab_size = draw(st.integers(8, 40))
    regression = draw(st.booleans())
    num_labels = draw(st.integers(1 if regression else 2, 5))
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": heads * draw(st.sampled_from([16, 20, 32])),
        "num_hidden_layers": draw(st.integers(0, 4)),
        "num_attention_heads": heads,
        "intermediate_size": draw(st.integers(16, 70)),
        "hidden_act": draw(st.sampled_from(ACTIVATIONS)),
        "max_position_embeddings": draw(st.integers(LONGEST, 40)),
        "type_vocab_size": draw(st.integers(1, 3)),
        "pad_token_id": draw(st.integers(0, vocab_size - 1)),
        "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5])),
        "num_labels": num_labels,
        "problem_type": "regression" if regression else "single_label_classification",
    }
    # At least one of several tokens: alone, a token has no choice what to attend to.
    lengths = [draw(st.integers(4, LONGEST)), *draw(st.lists(st.integers(1, LONGEST), max_size=5))]
    return {"sizes": sizes, "lengths": draw(st.permutations(lengths)), "seed": draw(st.integers(0, 2**16))}


def in_both_precisions(cases: st.SearchStrategy[dict[str, Any]]) -> Callable:
    """A test of random configs in float64; in float32 the same cases each time: a sum that happens to cancel can lose much."""

    def decorate(check: Callable[[dict[str, Any], torch.dtype], None]) -> Callable:
        @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
        def test(dtype: torch.dtype) -> None:
            run = given(cases)(lambda case: check(case, dtype))
            settings(max_examples=15, derandomize=dtype == torch.float32)(run)()

        test.__doc__ = check.__doc__
        return test

    return decorate


@in_both_precisions(cases())
def test_random_configs(case: dict[str, Any], dtype: torch.dtype) -> None:
    sizes = case["sizes"]
    rng = np.random.default_rng(case["seed"])
    rows = random_rows(rng, case["lengths"], sizes["vocab_size"], sizes["type_vocab_size"])
    rows[0][0][-1] = sizes["pad_token_id"]  # attended, and yet without a gradient
    labels = random_labels(rng, len(rows), sizes["num_labels"], regression=sizes["problem_type"] == "regression")
    ours, theirs = pair(seed=case["seed"], dtype=dtype, **NO_DROPOUT, **sizes)
    assert_parity(ours, theirs, rows, labels, TOLERANCES[dtype])
    assert not ours.bert.embeddings.word_embeddings.weight.grad[sizes["pad_token_id"]].any()


TINY = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
TINY |= {"max_position_embeddings": 32}


def test_an_ignored_label_counts_nothing() -> None:
    rng = np.random.default_rng(1)
    rows, labels = random_rows(rng, [8, 4, 7, 3], 50, 2), torch.tensor([0, -100, 2, 1])
    ours, theirs = pair(seed=1, dtype=torch.float64, num_labels=3, **NO_DROPOUT, **TINY)
    assert packed_at_first(rows, labels).weights == {"labels": 3.0}
    assert_parity(ours, theirs, rows, labels, 1e-10)


# --- the rows that a head reads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [[[0], [0], [0], [0]], [[0, 3, 8], [], [6], [0, 2]], [[8], [1, 2], [], []]])
def test_rows_alone_equal_the_same_rows_of_all(chosen: list[list[int]]) -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, [9, 4, 7, 3], 50, 2)
    model, _ = pair("BertModel", seed=2, dtype=torch.float64, **NO_DROPOUT, **TINY)
    model.pooler = None
    every, some = (packed(rows, {}, read=read) for read in (None, Ragged.of(chosen, np.int64)))
    hidden = model.encode(every)
    assert hidden.shape == (9 + 4 + 7 + 3, 32)
    count = len(some.rows)
    weights = torch.from_numpy(rng.normal(size=(count, 32)))
    wanted = hidden[some.rows]
    wanted_gradients = copied(gradients(model, (wanted * weights).sum()))

    computed: list[torch.Size] = []
    model.encoder.layer[-1].intermediate.register_forward_hook(lambda module, inputs, output: computed.append(inputs[0].shape))
    found = model.encode(some)
    assert computed == [(count, 32)]  # and no others
    assert_close(found, wanted, 1e-10)
    assert_same_gradients(gradients(model, (found * weights).sum()), wanted_gradients, 1e-10)


# --- padded input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("holes", [False, True])
def test_padded_forward(holes: bool, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    inputs = padded(random_rows(rng, rng.integers(2, 24, size=5).tolist(), 50, 2))
    attended = inputs["attention_mask"].bool()
    if holes:
        attended[:, 1:] &= torch.from_numpy(rng.random((5, attended.shape[1] - 1)) > 0.3)
        inputs["attention_mask"] = attended.long()
    ours, theirs = pair("BertModel", seed=0, dtype=dtype, **NO_DROPOUT, **TINY)
    assert not attended.all()
    found, wanted = ours(**inputs), theirs(**inputs)
    assert found.last_hidden_state.shape == wanted.last_hidden_state.shape
    assert not found.last_hidden_state[~attended].any()
    assert_close(found.last_hidden_state[attended], wanted.last_hidden_state[attended], TOLERANCES[dtype])
    assert_close(found.pooler_output, wanted.pooler_output, TOLERANCES[dtype])

    weights = torch.from_numpy(rng.normal(size=(int(attended.sum()), 32))).to(dtype)
    losses = [(out.last_hidden_state[attended] * weights).sum() + out.pooler_output.sum() for out in (found, wanted)]
    assert_same_gradients(gradients(ours, losses[0]), gradients(theirs, losses[1]), TOLERANCES[dtype])


def test_defaults_of_padded_input() -> None:
    """Without a mask everything is attended; without segments all are the first."""
    ids = torch.randint(50, (3, 11), generator=torch.Generator().manual_seed(0))
    everything = torch.ones_like(ids)
    ours, theirs = pair("BertModel", seed=4, dtype=torch.float64, **NO_DROPOUT, **TINY)
    assert_close(ours(ids).last_hidden_state, theirs(ids).last_hidden_state, 1e-10)
    assert_close(ours(ids, everything.bool()).last_hidden_state, theirs(ids).last_hidden_state, 1e-10)
    second = ours(ids, token_type_ids=everything).last_hidden_state
    assert_close(second, theirs(ids, token_type_ids=everything).last_hidden_state, 1e-10)
    ours, theirs = pair(seed=4, dtype=torch.float64, **NO_DROPOUT, **TINY)
    assert_close(ours(ids).logits["logits"], theirs(ids).logits, 1e-10)


# --- where dropout stands ----------------------------------------------------------------------------------------------


def column_mask(size: int, p: float) -> Tensor:
    """A mask that depends on the last dimension and on p alone, so that padded and packed tensors get the same one."""
    kept = torch.from_numpy(np.random.default_rng((size, round(p * 1000))).random(size) >= p)
    kept[0] = True
    return kept.to(torch.float64) / (1 - p)


def test_padding_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    rows, labels = random_rows(rng, [9, 4, 7, 3], 50, 2), random_labels(rng, 4, 3, regression=False)
    ours, theirs = pair(seed=4, dtype=torch.float64, num_labels=3, **NO_DROPOUT, **TINY)
    monkeypatch.setattr(
        "bertkit.model.layout.round_up_shape", lambda count, digits=6, multiple=1: count + 5
    )  # of so few rows it would be none
    assert_parity(ours, theirs, rows, labels, 1e-10)


def test_dropout_stands_where_transformers_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides drop by one fixed rule in place of chance: then every output and gradient is the same.

    The rule knows the width, which is padded here to a multiple of 8.
    """
    used: list[float] = []

    def drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * column_mask(x.shape[-1], p).to(x.dtype) if training and p else x

    def keep_mask(stream: DropoutStream, shape: tuple[int, ...], p: float, like: Tensor) -> Tensor:
        used.append(p)
        return column_mask(shape[-1], p).to(like.dtype).expand(shape)

    rng = np.random.default_rng(5)
    rows, labels = random_rows(rng, [8, 4, 7, 3], 50, 2), random_labels(rng, 4, 3, regression=False)
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.25, "classifier_dropout": 0.5}
    ours, theirs = pair(seed=5, dtype=torch.float64, num_labels=3, **rates, **TINY)
    monkeypatch.setattr(F, "dropout", drop)
    monkeypatch.setattr(DropoutStream, "keep_mask", keep_mask)
    assert_parity(ours, theirs, rows, labels, 1e-10)
    once = [0.1, *[0.25, 0.1, 0.1] * 3, 0.5]
    assert used == once * 2  # packed and padded

    dropped = ours(packed_at_first(rows, labels)).logits["logits"]
    assert not torch.allclose(dropped, ours.eval()(packed_at_first(rows, labels)).logits["logits"], rtol=1e-3)
    assert_parity(ours.eval(), theirs.eval(), rows, labels, 1e-10)


# --- training on real data ---------------------------------------------------------------------------------------------

STEPS, STEPS_PER_EPOCH = 12, 9  # the curves cross into the second epoch
Inputs = dict[str, Tensor]


def glue(place: Path, tokenizer: Any, config: BertConfig, columns: tuple[int, ...], label: int) -> Callable[..., Inputs]:
    """A function from row numbers to what transformers sees of an official train.tsv, with nothing of ours."""
    with gzip.open(place / "train.tsv.gz", "rt", encoding="utf-8-sig", newline="\n") as file:
        lines = [line.rstrip("\r\n").split("\t") for line in islice(file, 1, 100)]

    def encode(rows: Sequence[int]) -> Inputs:
        parts = [[lines[row][column] for row in rows] for column in columns]
        encoded = tokenizer(*parts, padding="longest", truncation=True, max_length=64, return_tensors="pt")
        return {**encoded, "labels": torch.tensor([int(lines[row][label]) for row in rows])}

    return encode


def conll(place: Path, tokenizer: Any, config: BertConfig) -> Callable[..., Inputs]:
    """The same of an official file of entities, each tag at the first piece of its word."""
    blocks = gzip.decompress((place / "train.txt.gz").read_bytes()).decode("utf-8").split("\n\n")[:100]
    sentences = [[line.split(" ") for line in block.split("\n") if line.strip()] for block in blocks]
    sentences = [sentence for sentence in sentences if sentence and sentence[0][0] != "-DOCSTART-"]
    numbers = {label: number for number, label in config.id2label.items()}

    def encode(rows: Sequence[int]) -> Inputs:
        words = [[line[0] for line in sentences[row]] for row in rows]
        encoded = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        labels = torch.full(encoded["input_ids"].shape, -100)
        for at, row in enumerate(rows):
            places = encoded.word_ids(at)
            for word, line in enumerate(sentences[row]):
                labels[at, places.index(word)] = numbers[line[3]]
        return {**encoded, "labels": labels}

    return encode


def norm(tensors: Iterable[Tensor]) -> float:
    return torch.stack([tensor.norm() for tensor in tensors]).norm().item()


def reference_curve(model: nn.Module, batches: Iterable[Inputs], config: TrainConfig) -> list[dict[str, float]]:
    """A plain loop of torch: nothing of ours but the values of the settings."""
    decayed, plain = [], []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            (plain if isinstance(module, nn.LayerNorm) or name == "bias" else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    betas = (config.adam_beta1, config.adam_beta2)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.adam_epsilon, fused=True)
    warmup_steps = math.ceil(config.warmup_ratio * STEPS)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, warmup_steps, STEPS)
    events = []
    for inputs in batches:
        loss = model(**inputs).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        events.append({"loss": loss.item(), "grad_norm": norm.item(), "learning_rate": scheduler.get_last_lr()[0]})
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return events


@pytest.mark.parametrize(
    ("task", "folder", "reference", "batch_size", "micro_batch_tokens"),
    [
        ("sst2", "GLUE/SST-2", partial(glue, columns=(0,), label=1), 8, 8192),
        ("mrpc", "GLUE/MRPC", partial(glue, columns=(3, 4), label=0), 4, 128),
        ("conll2003", "CoNLL2003", conll, 4, 64),
    ],
    ids=["sst2", "mrpc", "conll2003"],
)
def test_training_equals_a_plain_loop(
    task: str,
    folder: str,
    reference: Callable[..., Callable[..., Inputs]],
    batch_size: int,
    micro_batch_tokens: int,
    data_dir: Path,
    minilm: Path,
    tmp_path: Path,
) -> None:
    """Real data and weights, float32, no dropout, in micro-batches but for SST-2: the same losses and the same weights."""
    place = data_dir / folder
    typed = {"data": str(place), "device": "cpu", "precision": "fp32", "dropout": 0.0, "learning_rate": 1e-4, "max_length": 64}
    typed |= {"batch_size": batch_size, "micro_batch_tokens": micro_batch_tokens, "max_steps": STEPS, "logging_steps": 1}
    recipe = load_recipe(task).overridden(typed).resolved()
    config = filled(recipe.training)
    num_rows = STEPS_PER_EPOCH * batch_size - 2  # the last step of an epoch has fewer
    rows = read_splits(recipe, ["train"]).rows["train"].select(range(num_rows))
    fitted = Task.fit(recipe, rows)
    features, _ = fitted.encode(fitted.examples(rows, labelled=True), Tokenizer.load(minilm))
    sampler = Sampler(len(features), config.batch_size, config.seed)
    assert (len(features), sampler.steps_per_epoch) == (num_rows, STEPS_PER_EPOCH)
    ours = fitted.build(dataclasses.replace(fitted.configure(read_config(minilm)), **NO_DROPOUT)).train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        more = {"num_labels": ours.config.num_labels, "problem_type": ours.config.problem_type, **NO_DROPOUT}
        theirs = getattr(transformers, type(ours).__name__).from_pretrained(minilm, **more).train()
    assert sorted(load_weights(ours, minilm, fresh_head=True)) == ["classifier.bias", "classifier.weight"]
    ours.classifier.load_state_dict(theirs.classifier.state_dict())
    initial = copied(dict(theirs.named_parameters()))
    vocabulary = UsedVocabulary([features], ours, config)  # as finetune does
    batches = training_batches(vocabulary.narrow(features), sampler, config.micro_batch_tokens)
    assert (max(len(batches(step)) for step in range(STEPS)) > 1) == (task != "sst2")

    encode = reference(place, transformers.AutoTokenizer.from_pretrained(minilm), ours.config)
    wanted = reference_curve(theirs, (encode(sampler.features_at(step)) for step in range(STEPS)), config)
    train(ours, batches, config, start_accelerator("cpu"), total_steps=STEPS, run_dir=tmp_path)
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["step"] for event in found] == list(range(1, STEPS + 1))
    for ours_event, theirs_event in zip(found, wanted, strict=True):
        step = ours_event["step"]
        assert abs(ours_event["loss"] - theirs_event["loss"]) <= 1e-5, (step, ours_event, theirs_event)
        assert ours_event["learning_rate"] == pytest.approx(theirs_event["learning_rate"], rel=1e-12), step
        assert ours_event["grad_norm"] == pytest.approx(theirs_event["grad_norm"], rel=1e-4), step
    # The curves are of training, as the large learning rate sees to, and what came of it is the same too.
    assert max(event["loss"] for event in wanted) - min(event["loss"] for event in wanted) > 0.05
    trained = vocabulary.widen(ours.state_dict(), step=STEPS, total_steps=STEPS)
    found_moves = {name: trained[name] - weight for name, weight in initial.items()}
    moves = {name: parameter.detach() - initial[name] for name, parameter in theirs.named_parameters()}
    assert norm(found_moves[name] - moves[name] for name in initial) < 1e-3 * norm(moves.values())
    # Rows of tokens that the data lacks only decay, by factors so near to 1 that float32 rounds them by some percent.
    words = "bert.embeddings.word_embeddings.weight"
    unused = torch.ones(len(initial[words]), dtype=torch.bool)
    unused[torch.from_numpy(np.unique(features.input_ids.values))] = False
    assert unused.sum() > 20_000
    assert norm([found_moves[words][unused] - moves[words][unused]]) < 0.1 * norm([moves[words][unused]])

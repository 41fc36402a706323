"""Pre-training from corpus to run folder: loss curves of transformers, resume to the byte, two processes, what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from shapes import MEASURED
from trained import before_step, log_of, read_json

from bertkit.cli.presets import PRETRAINING_PRESETS
from bertkit.config import PretrainConfig, filled
from bertkit.corpus import sampling
from bertkit.corpus.build import CorpusConfig, build_corpus
from bertkit.corpus.corpora import open_corpora
from bertkit.corpus.directory import read_meta
from bertkit.corpus.mixing import Mix
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.shard import Shard
from bertkit.errors import DataError, UsageError
from bertkit.features import Features
from bertkit.model.batch import Batch
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.language_model import BertForPreTraining
from bertkit.runs.evaluation.held_out_corpora import evaluate_corpora
from bertkit.runs.inference.language_model import open_to_fill
from bertkit.runs.prediction.window import predict_window
from bertkit.runs.pretraining import course, held_out, steps
from bertkit.runs.pretraining import pretrain as pretraining
from bertkit.runs.pretraining.sequences import held_out_sequences, micro_batches
from bertkit.runs.pretraining.weights import fresh_architecture
from bertkit.text.tokenizer import Tokenizer
from bertkit.training import loop as training
from bertkit.training.optimizer import learning_rate_at

pytestmark = pytest.mark.e2e

SUBJECTS, VERBS, OBJECTS = (
    "the man|the woman|a player|the actor".split("|"),
    "play see love read".split(),
    "a movie|the book|a story".split("|"),
)
SETTINGS = {"batch_size": 16, "max_length": 32, "learning_rate": 3e-3, "precision": "fp32", "device": "cpu"}
SIZE = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2}
CPU = {"precision": "fp32", "device": "cpu"}


@pytest.fixture(scope="module")
def corpus(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of sentences of a few forms, so that there is something to learn."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("texts")
    documents = []
    for _ in range(300):
        subject = rng.choice(SUBJECTS)  # which a document keeps: that is how its next sentence is known
        documents.append([f"{subject} {rng.choice(VERBS)} {rng.choice(OBJECTS)} ." for _ in range(rng.integers(3, 9))])
    (folder / "a.txt").write_text("\n\n".join("\n".join(lines) for lines in documents), encoding="utf-8")
    build_corpus([str(folder / "a.txt")], tiny_tokenizer_dir, folder / "corpus", CorpusConfig(held_out=0.15))
    return folder / "corpus"


def train(corpus: Path, folder: Path, *, model: Path | None = None, overwrite: bool = False, **options: Any) -> dict[str, Any]:
    config = PretrainConfig.of({**SETTINGS, **options})
    architecture = None if model else fresh_architecture(read_meta(corpus), config, None, SIZE)
    where = {"output_dir": folder, "model": str(model) if model else None, "overwrite": overwrite}
    return pretraining.pretrain(open_corpora([corpus]), config, architecture=architecture, **where)


def held_out_of(corpus: Path, config: PretrainConfig, **place: int) -> Features:
    sequences = pretraining.held_out_sequences(open_corpora([corpus]), Tokenizer.load(corpus), config, **place)
    assert sequences is not None
    return sequences.features


@pytest.fixture
def pretrain(corpus: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that trains into tmp_path/NAME: pretrain("run", max_steps=3) -> run.json; default: fresh weights."""
    return lambda name, source=corpus, **how: train(source, tmp_path / name, **how)


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt something."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(corpus, folder, max_steps=150, eval_steps=50)
    return folder


def sampler_of(corpus: Path, split: str, objective: str) -> CorpusSampler:
    shards = [Shard.load(corpus / shard["name"]) for shard in read_meta(corpus)[split]["shards"]]
    return CorpusSampler(shards, Tokenizer.load(corpus), 16, 32, 42, OBJECTIVES[objective])


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """This process gets SIGTERM in the first forward pass of a step, which ends the block."""
    with before_step(step), pytest.raises(training.Interrupted):
        yield


def padded(features: Features) -> dict[str, torch.Tensor]:
    """Pre-training sequences as transformers takes them."""

    def pad(rows: Iterable[np.ndarray], value: int = 0) -> torch.Tensor:
        tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    lengths, (mlm, pairs) = features.input_ids.lengths, features.labels.values()
    labels = [np.full(length, -100) for length in lengths]
    for at, row in enumerate(labels):
        row[features.rows[at][1:]] = mlm[at]
    ids, segments = (pad(map(each.__getitem__, range(len(lengths)))) for each in (features.input_ids, features.token_type_ids))
    targets = {"labels": pad(labels, -100), "next_sentence_label": torch.from_numpy(pairs.values)}
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": pad(map(np.ones, lengths)), **targets}


def transformers_scores(run: Path, corpus: Path, objective: str) -> dict[str, float]:
    """The held-out scores of a run of 32 tokens, by transformers, from its folder alone."""
    sampler = sampler_of(corpus, "validation", objective)
    batch = padded(sampler.sequences(np.arange(sampler.sequences_per_epoch)))
    pairs = batch.pop("next_sentence_label")
    with torch.no_grad():
        outputs = transformers.BertForPreTraining.from_pretrained(run).eval()(**batch)
    loss = torch.nn.functional.cross_entropy(outputs.prediction_logits.flatten(0, 1), batch["labels"].flatten())
    right = (outputs.seq_relationship_logits.argmax(-1) == pairs).double()
    return {"validation/mlm_loss": float(loss), f"validation/{objective[4:]}_accuracy": float(right.mean())}


# --- what is learned -----------------------------------------------------------------------------------------------------


def test_a_trained_model_has_the_scores_of_transformers_and_fills_masks(trained: Path, corpus: Path) -> None:
    run = read_json(trained / "run.json")
    scores = run["best"]["scores"]
    assert run["data"]["corpus"]["hashes"] == read_meta(corpus)["hashes"], "of the text, which resuming compares"
    names = ("mlm_loss", "perplexity", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    assert list(scores) == [f"validation/{name}" for name in names]
    evaluated = [event for event in log_of(trained) if "validation/mlm_loss" in event]
    assert [event["step"] for event in evaluated] == [50, 100, 150]
    assert scores["validation/mlm_loss"] == min(event["validation/mlm_loss"] for event in evaluated) < 2.5
    assert scores["validation/perplexity"] == pytest.approx(np.exp(scores["validation/mlm_loss"]))
    theirs = transformers_scores(trained, corpus, "mlm+nsp")
    assert {name: scores[name] for name in theirs} == pytest.approx(theirs, rel=1e-4)
    for chosen in ([], [corpus]):
        assert evaluate_corpora(str(trained), chosen, CPU) == pytest.approx(scores, rel=1e-5)
    config = filled(PretrainConfig(max_length=32))
    features = held_out_of(corpus, config)
    counts = np.bincount(features.labels["mlm"].values)
    shares = counts[counts > 0] / counts.sum()
    assert scores["validation/mlm_loss"] < -(shares * np.log(shares)).sum() - 0.2, "below the entropy of single tokens"
    assert scores["validation/mlm_accuracy"] > 1.3 * shares.max()
    card = (trained / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n")
    assert f"| validation/mlm_loss | {scores['validation/mlm_loss']:.4f} |" in card
    fill = transformers.pipeline("fill-mask", model=str(trained))
    assert fill("the man [MASK] a movie .")[0]["token_str"] in VERBS
    assert not transformers.BertForMaskedLM.from_pretrained(trained, output_loading_info=True)[1]["missing_keys"]


def test_a_model_that_knows_less_than_token_frequencies_is_warned_of(
    pretrain, corpus: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pretrain("short", max_steps=1)
    (to_beat,) = run["baselines"].values()
    tokens = Counter(
        token for number in range(len(read_meta(corpus)["train"]["shards"])) for token in tokens_of(corpus, number)
    )
    features = held_out_of(corpus, PretrainConfig.of({**SETTINGS, "max_steps": 1}))
    all_tokens = sum(tokens.values()) + Tokenizer.load(corpus).vocab_size
    expected = [-math.log((tokens[token] + 1) / all_tokens) for token in features.labels["mlm"].values.tolist()]
    assert to_beat == pytest.approx(sum(expected) / len(expected))
    assert run["best"]["scores"]["validation/mlm_loss"] > to_beat
    assert "no better than a unigram baseline" in capsys.readouterr().err
    learned = read_json(trained / "run.json")
    assert learned["best"]["scores"]["validation/mlm_loss"] < learned["baselines"]["token frequencies"]


def tokens_of(corpus: Path, number: int) -> list[int]:
    return Shard.load(corpus / read_meta(corpus)["train"]["shards"][number]["name"]).input_ids.tolist()


def test_sentence_order_is_scored_as_such_also_without_run_json(pretrain, corpus: Path, tmp_path: Path) -> None:
    scores = pretrain("run", max_steps=4, objective="mlm+sop")["best"]["scores"]
    assert [*scores][-2:] == ["validation/sop_loss", "validation/sop_accuracy"]
    theirs = transformers_scores(tmp_path / "run", corpus, "mlm+sop")
    assert {name: scores[name] for name in theirs} == pytest.approx(theirs, rel=1e-4)
    assert "segment B is next or previous" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert evaluate_corpora(str(tmp_path / "run"), [], {}) == pytest.approx(scores, rel=1e-5)
    (tmp_path / "run" / "run.json").unlink()
    found = evaluate_corpora(str(tmp_path / "run"), [corpus], {"max_length": 32, "batch_size": 16, **CPU})
    assert found == pytest.approx(scores, rel=1e-5)
    with pytest.raises(UsageError):
        evaluate_corpora(str(tmp_path / "run"), [], {})  # nothing names its corpus
    config = read_json(tmp_path / "run" / "config.json")
    for block in (5, ["x"], {"objective": ["x"]}):  # then the model's head tells the objective
        (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"bertkit": block}), encoding="utf-8")
        assert [*evaluate_corpora(str(tmp_path / "run"), [corpus], {"max_length": 32, **CPU})][-1] == "validation/nsp_accuracy"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    pretrain("again", max_steps=1, model=tmp_path / "run")
    assert read_json(tmp_path / "again" / "config.json")["bertkit"]["objective"] == "mlm+nsp"


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm+sop"])
def test_the_loss_curve_is_that_of_transformers_in_a_plain_loop(pretrain, corpus: Path, tmp_path: Path, objective: str) -> None:
    """The same sequences, masks and first weights, float32, no dropout: 20 steps within 1e-4."""
    more = {"dropout": 0, "logging_steps": 1, "micro_batch_tokens": 200, "warmup_ratio": 0.2}
    values = pretrain("run", objective=objective, max_steps=20, **more)["model"]["config"]
    ours = [event["loss"] for event in log_of(tmp_path / "run") if "loss" in event]
    assert len(ours) == 20
    config = BertConfig.from_dict(values)
    first = BertForPreTraining(config)
    initialize(first, config, seed=42)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**values | no_dropout))
    theirs.load_state_dict(first.state_dict())
    theirs.tie_weights()
    named = theirs.named_parameters()
    groups = [{"params": [p], "weight_decay": 0 if name.endswith("bias") or "LayerNorm" in name else 0.01} for name, p in named]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-6)
    sampler = sampler_of(corpus, "train", objective)
    for step in range(20):
        loss = theirs(**padded(sampler.features_at(step))).loss
        assert ours[step] == pytest.approx(loss.item(), abs=1e-4), step
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, peak=3e-3, warmup_steps=4, total_steps=20)
        optimizer.step()
        optimizer.zero_grad()
    assert ours[-1] < ours[0] - 0.5


def lines_filled(model: Path, file: Path, *, top_k: int | None = None, **options: Any) -> list[dict[str, Any]]:
    """The rows that `predict` writes for a file of at most one window."""
    filler = open_to_fill(str(model), {**CPU, **options}, top_k=top_k)
    (block,) = filler.read_blocks(str(file))
    window = predict_window(filler, block)
    return filler.rows(window.predictions, window.examples)


@pytest.mark.parametrize("architecture", ["BertForPreTraining", "BertForMaskedLM"])
def test_masks_are_filled_as_transformers_fills_them(architecture: str, make_model_dir, tmp_path: Path) -> None:
    model = make_model_dir(architecture, seed=4, initializer_range=0.3)
    lines = ["the man [MASK] a movie", "no mask here", "", "[MASK] [MASK] book", "the [MASK]"]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = lines_filled(model, tmp_path / "lines.txt", top_k=3)
    assert [row["text"] for row in rows] == lines
    assert [len(row["fills"]) for row in rows] == [1, 0, 0, 2, 1]
    fill = transformers.pipeline("fill-mask", model=str(model), top_k=3)
    for row in rows:
        expected = fill(row["text"]) if row["fills"] else []
        expected = [expected] if expected and isinstance(expected[0], dict) else expected
        for found, wanted in zip(row["fills"], expected, strict=True):
            assert [f["probability"] for f in found] == pytest.approx([w["score"] for w in wanted], rel=1e-3)
            assert [f["token"].removeprefix("##") for f in found] == [w["token_str"].removeprefix("##") for w in wanted]
    (tmp_path / "none.txt").write_text("no mask\nthe man read the book and the story [MASK]\n", encoding="utf-8")
    with pytest.raises(UsageError) as error:
        lines_filled(model, tmp_path / "none.txt", max_length=8)  # which truncates the one mask
    assert error.value.where == str(tmp_path / "none.txt")


def test_masks_in_tables_are_filled_with_their_ids(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    """A file that its name says is a table has rows, not lines; one without a column of texts is refused."""
    model = make_model_dir("BertForMaskedLM", initializer_range=0.5)
    rows = [{"id": f"r{number}", "text": text} for number, text in enumerate(["the, [MASK] movie", "no mask", "[MASK]"])]
    table = "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows)
    (tmp_path / "rows.csv").write_text(table, encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "rows.txt").write_text("".join(row["text"] + "\n" for row in rows), encoding="utf-8")
    found = {}
    for ending in ("txt", "csv", "jsonl"):
        ran = run_bertkit("predict", model, f"rows.{ending}", "--format", "jsonl", "--precision", "fp32")
        assert ran.code == 0, ran.err
        found[ending] = [json.loads(line) for line in ran.out.splitlines()]
    assert found["csv"] == found["jsonl"]
    assert [row.pop("id") for row in found["csv"]] == ["r0", "r1", "r2"]
    assert [row.pop("id") for row in found["txt"]] == [0, 1, 2]
    assert found["csv"] == found["txt"]
    (tmp_path / "named.csv").write_text("sentence\nthe [MASK]\n", encoding="utf-8")
    refused = run_bertkit("predict", model, "named.csv")
    assert (refused.code, "no column 'text'; columns: sentence" in refused.err) == (3, True), refused.err
    (tmp_path / "number.jsonl").write_text('{"text": "the [MASK]"}\n{"text": 5}\n', encoding="utf-8")
    refused = run_bertkit("predict", model, "number.jsonl")
    assert (refused.code, "column 'text' contains 5; expected text" in refused.err) == (3, True), refused.err
    ran = run_bertkit("predict", model, "number.jsonl", "--on-error", "skip", "--format", "jsonl")
    assert (ran.code, len(ran.out.splitlines())) == (0, 1), ran.err


def test_masks_are_filled_with_tokens_only_where_the_vocabulary_is_padded(make_model_dir, tmp_path: Path) -> None:
    """As for efficiency on a device: the model has rows, with weights, that stand for no token."""
    tokenizer = Tokenizer.load(make_model_dir())
    padding = 3 * tokenizer.vocab_size
    model = make_model_dir("BertForMaskedLM", seed=5, initializer_range=0.3, vocab_size=tokenizer.vocab_size + padding)
    (tmp_path / "lines.txt").write_text("the man [MASK] a movie\n", encoding="utf-8")
    (row,) = lines_filled(model, tmp_path / "lines.txt", top_k=tokenizer.vocab_size + 1)
    (fills,) = row["fills"]
    assert sorted(fill["token"] for fill in fills) == sorted(tokenizer.vocab), "each token once"
    everything = transformers.BertForMaskedLM.from_pretrained(model)
    ids = torch.from_numpy(tokenizer.encode([row["text"]], max_length=32).input_ids.values.astype(np.int64))
    scores = everything(ids[None]).logits[0, 3].softmax(-1)
    wanted = [scores[tokenizer.vocab[fill["token"]]].item() for fill in fills]
    assert [fill["probability"] for fill in fills] == pytest.approx(wanted, rel=1e-3)
    assert wanted == sorted(wanted, reverse=True)


def test_a_causal_model(pretrain, run_bertkit, tmp_path: Path) -> None:
    run = pretrain("run", max_steps=20, eval_steps=10, objective="clm")
    scores = run["best"]["scores"]
    assert list(scores) == ["validation/lm_loss", "validation/perplexity", "validation/lm_accuracy"]
    first = next(event["validation/lm_loss"] for event in log_of(tmp_path / "run") if "validation/lm_loss" in event)
    assert scores["validation/lm_loss"] < first
    config = read_json(tmp_path / "run" / "config.json")
    assert (config["architectures"], config["is_decoder"]) == (["BertLMHeadModel"], True)
    assert "pipeline_tag: text-generation\n" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    ids = tokenizer("the man read a book . the man", return_tensors="pt").input_ids
    changed = torch.cat([ids[:, :-3], ids.flip(1)[:, -3:]], dim=1)
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits[:, :-3], theirs(changed).logits[:, :-3], atol=1e-6), "what follows is not read"
    assert evaluate_corpora(str(tmp_path / "run"), [], {}) == pytest.approx(scores, rel=1e-5)
    with pytest.raises(UsageError):
        open_to_fill(str(tmp_path / "run"), {}, top_k=1)
    with pytest.raises(UsageError):
        pretrain("more", max_steps=1, model=tmp_path / "run")
    assert pretrain("more", max_steps=1, model=tmp_path / "run", objective="clm")["model"]["name"] == str(tmp_path / "run")
    (tmp_path / "rows.csv").write_text("text,label\nthe book,a\nthe movie,b\n" * 4, encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--max-steps", 1)
    assert run_bertkit("finetune", "text-classification", "--model", "run", "-o", "tuned", *data).code == 0
    config = read_json(tmp_path / "tuned" / "config.json")
    assert (config["architectures"], config["is_decoder"]) == (["BertModel"], True)
    assert run_bertkit("predict", "tuned", "-", stdin=b"the movie\n").code == 0


# --- resumed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "mlm+sop", "ltr"])
def test_stopped_and_resumed_it_is_the_same_run(
    pretrain, tmp_path: Path, objective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = {"masking": "whole-word"} if objective == "mlm+nsp" else {"phases": "16:55%,40:45%"}
    more = {"objective": objective, **kind, "max_steps": 9, "eval_steps": 3, "micro_batch_tokens": 200}
    pretrain("whole", **more)
    with interrupted_at(4):
        pretrain("again", **more)
    before = read_json(tmp_path / "again" / "checkpoint-5" / "training" / "progress.json")["seconds"]
    if objective == "ltr":  # as an older run has it
        file = tmp_path / "again" / "run.json"
        file.write_text(file.read_text(encoding="utf-8").replace('"clm"', '"ltr"'), encoding="utf-8")
    run = pretrain("again", **more)
    assert "again/checkpoint-5" in capsys.readouterr().err
    assert run["seconds"] > before > 0, "the time before the stop counts"
    for file in ("model.safetensors", "config.json", "checkpoint-9/model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


@pytest.mark.parametrize(("objective", "resumes"), [("clm", True), ("mlm", False), ("mlm+nsp", False), ("mlm+sop", False)])
def test_an_older_run_goes_on_with_the_sequences_that_it_began_with(
    pretrain, tmp_path: Path, objective: str, resumes: bool
) -> None:
    """Pairs and masks are drawn in another way since, spans as ever."""
    more = {"objective": objective, "max_steps": 6, "eval_steps": 3}
    with interrupted_at(4):
        pretrain("run", **more)
    older = read_json(tmp_path / "run" / "run.json")
    del older["drawing"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(older), encoding="utf-8")
    if resumes:
        assert pretrain("run", **more)["status"] == "finished"
        return
    with pytest.raises(UsageError) as error:
        pretrain("run", **more)
    assert error.value.where == str(tmp_path / "run")
    assert read_json(tmp_path / "run" / "run.json") == older


def test_a_resumed_run_draws_no_window_again(pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Path) -> None:
    """Over several epochs, each of which is a window: it begins with that of the next step."""
    more = {"objective": "mlm+nsp", "batch_size": 128, "max_steps": 14, "eval_steps": 20, "phases": "16:40%,32:60%"}
    pretrain("whole", **more)
    with interrupted_at(10):
        pretrain("again", **more)
    phase, window, sequence = read_json(tmp_path / "again" / "checkpoint-11" / "training" / "progress.json")["position"]
    assert phase == 1
    assert window > 0
    assert 0 < sequence <= (11 - 6) * 128
    drawn: list[tuple[int, int]] = []
    draw = sampling._draw_window

    def seen(sampler: CorpusSampler, number: int) -> sampling.Drawn:
        if "train" in sampler.shards.groups[0][0]:
            drawn.append((sampler.max_length, number))
        return draw(sampler, number)

    monkeypatch.setattr(sampling, "_draw_window", seen)
    pretrain("again", **more)
    assert drawn
    assert min(drawn) == (32, window)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_an_estimated_epoch_is_said_and_its_steps_stay(
    pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CorpusSampler, "epoch_length", lambda self, tokens: (100, False))
    with interrupted_at(2):
        pretrain("run", eval_steps=20)
    assert "about 100 sequences, estimated from 64 shards" in capsys.readouterr().err
    monkeypatch.setattr(CorpusSampler, "epoch_length", None)  # which a resumed run does not ask for
    assert pretrain("run", eval_steps=20)["total_steps"] == math.ceil(100 / 16)


def test_an_error_of_the_reader_ends_the_run_which_resumes(
    pretrain, make_model_dir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"max_steps": 8, "eval_steps": 8, "save_steps": 2, "model": make_model_dir("BertModel")}
    pretrain("whole", **more)
    capsys.readouterr()
    made = pretraining.micro_batches

    def broken(sampler: CorpusSampler, numbers: np.ndarray, **how: Any) -> Any:
        if numbers[0] == 5 * 16:
            raise DataError("the shard cannot be read", where="train-00000")
        return made(sampler, numbers, **how)

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "micro_batches", broken)
        with pytest.raises(DataError) as error:
            pretrain("again", **more)
    assert error.value.where == "train-00000"
    assert sorted(path.name for path in (tmp_path / "again").glob("checkpoint-*")) == ["checkpoint-4"]
    assert "newly initialized (seed" in capsys.readouterr().err
    pretrain("again", **more)
    assert "newly initialized" not in capsys.readouterr().err, "those of the checkpoint replace them"
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


# --- levers of a small budget -----------------------------------------------------------------------------------------------

LEVERS = {
    "objective": "mlm",
    "phases": "16:55%,40:45%",
    "mlm_probability": "0.4:0.1",
    "rampup_batch_size": "4:60%",
    "optimizer": "muon",
    "schedule": "warmup_stable_decay",
    "average_ratio": 0.4,
    "attention_dropout": 0.1,
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_with_all_levers_a_stopped_run_ends_as_a_whole_one(pretrain, tmp_path: Path, precision: str) -> None:
    more = {**LEVERS, "precision": precision, "max_steps": 10, "eval_steps": 3, "logging_steps": 1, "micro_batch_tokens": 200}
    pretrain("whole", **more)
    for step in (2, 6, 8):  # while batches grow, before the average, within it
        with interrupted_at(step):
            pretrain("again", **more)
    pretrain("again", **more)
    for file in ("model.safetensors", "checkpoint-10/model.safetensors", "checkpoint-10/training/optimizer.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
    logs = (
        [{k: v for k, v in event.items() if k not in MEASURED} for event in log_of(tmp_path / n)] for n in ("whole", "again")
    )
    assert next(logs) == next(logs)


def test_the_last_weights_are_averaged_and_evaluated(pretrain, tmp_path: Path) -> None:
    """Against the mean of what the same run without it saves after each step; an evaluation comes within the average too."""
    more = {"max_steps": 7, "save_steps": 1, "keep_checkpoints": "all", "eval_steps": 6}
    pretrain("plain", **more)
    run = pretrain("averaged", average_ratio=0.4, **more)  # of the last three
    weights = [load_file(tmp_path / "plain" / f"checkpoint-{step}" / "model.safetensors") for step in (5, 6, 7)]
    last = tmp_path / "averaged" / "checkpoint-7"
    for name, tensor in load_file(last / "model.safetensors").items():
        expected = torch.stack([each[name].double() for each in weights]).mean(0)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)
        assert not torch.equal(tensor, weights[-1][name]), name
    assert evaluate_corpora(str(tmp_path / "averaged"), [], CPU) == pytest.approx(run["best"]["scores"], rel=1e-5)
    for step in range(1, 5):
        files = (tmp_path / name / f"checkpoint-{step}" / "model.safetensors" for name in ("plain", "averaged"))
        assert next(files).read_bytes() == next(files).read_bytes(), "the course of the training is the same"


def test_batches_grow_and_fewer_tokens_are_masked_step_by_step(pretrain, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int], float]] = []
    made = pretraining.micro_batches

    def watched(mix: Mix, numbers: np.ndarray, *, masked: float, **how: Any) -> list[Batch]:
        batches = made(mix, numbers, masked=masked, **how)
        targets = sum(batch.weights["mlm"] for batch in batches) / sum(len(batch.input_ids) for batch in batches)
        assert targets == pytest.approx(masked, abs=0.05)
        seen.append((mix.parts[0].max_length, numbers.tolist(), masked))
        return batches

    monkeypatch.setattr(pretraining, "micro_batches", watched)
    pretrain("run", max_steps=10, phases="16:50%,40:50%", rampup_batch_size="4:60%", mlm_probability="0.5:0.1")
    assert [len(numbers) for _, numbers, _ in seen] == [4, 6, 8, 10, 12, 14, 16, 16, 16, 16]
    assert [masked for *_, masked in seen] == pytest.approx([0.5, 0.46, 0.42, 0.38, 0.34, 0.3, 0.26, 0.22, 0.18, 0.14])
    for length, count in ((16, 40), (40, 78)):
        numbers = [number for each, numbers, _ in seen if each == length for number in numbers]
        assert numbers == list(range(count)), "each phase has its sequences from the first on, each once"


def test_an_average_of_no_step_is_refused() -> None:
    config = filled(PretrainConfig(average_ratio=0.1))
    assert course.Course(config, 6).steps == 6, "0.6 of a step is one"
    with pytest.raises(UsageError, match=r"--average-ratio is 0\.1, less than one of 2 steps"):
        course.Course(config, 2)


def test_an_epoch_of_growing_batches_has_more_steps() -> None:
    config = filled(PretrainConfig(batch_size=16, rampup_batch_size="4:50%"))
    assert steps.mean_batch_size(config) == 13
    assert course.Course(config, 1000)._drawn(1000) == pytest.approx(13_000, abs=10)


@pytest.mark.parametrize("masking", ["token", "whole-word"])
def test_levers_change_nothing_that_is_evaluated(corpus: Path, masking: str) -> None:
    opened, tokenizer = open_corpora([corpus]), Tokenizer.load(corpus)
    plain = {**SETTINGS, "objective": "mlm", "max_length": 40, "masking": masking, "max_steps": 9}
    expected, found = (
        pretraining.held_out_sequences(opened, tokenizer, PretrainConfig.of(values)).features
        for values in (plain, {**plain, **LEVERS})
    )
    assert found.fingerprint() == expected.fingerprint()
    assert len(found.labels["mlm"].values) / len(found.input_ids.values) == pytest.approx(0.15, abs=0.02)


def test_the_preset_is_a_set_of_defaults(run_bertkit, corpus: Path, tmp_path: Path, make_model_dir) -> None:
    (tmp_path / "own.yaml").write_text("learning_rate: 2e-3\nprecision: fp32\n", encoding="utf-8")
    how = ("--preset", "budget", "--max-length", 32, "--max-steps", 4, "--device", "cpu")
    size = ("--num-hidden-layers", 1, "--hidden-size", 16, "--num-attention-heads", 1)
    ran = run_bertkit("pretrain", corpus, *size, *how, "--config", "own.yaml", "--batch-size", 8, "-o", "run")
    assert ran.code == 0, ran.err
    run = read_json(tmp_path / "run" / "run.json")
    budget = PRETRAINING_PRESETS["budget"]
    typed = {"batch_size": 8, "max_length": 32, "max_steps": 4, "device": "cpu"}
    own = {"learning_rate": 2e-3, "precision": "fp32"}
    chosen = {name: value for name, value in budget.items() if name not in typed | own | {"phases": None}}
    expected = dataclasses.asdict(PretrainConfig.of(chosen | typed | own))
    assert run["training"] == json.loads(json.dumps(expected))
    sources = {"--preset budget": chosen, "--config": own, "command line": typed}
    assert run["set_by"] == {name: source for source, values in sources.items() for name in values}
    again = run_bertkit("pretrain", corpus, *size, "--preset", "budget", "--config", "run/run.json", "-o", "again")
    assert (again.code, "--preset budget" in again.err) == (2, True)
    few = ("--max-steps", 4, "--batch-size", 8, "--precision", "fp32", "--device", "cpu")
    phased = run_bertkit("pretrain", corpus, *size, "--preset", "budget", *few, "-o", "phased")
    assert phased.code == 0, phased.err
    assert read_json(tmp_path / "phased" / "run.json")["training"]["phases"] == budget["phases"].split(",")


# --- one share each -----------------------------------------------------------------------------------------------------


def sequences_in(batch: Batch) -> list[tuple]:
    """What a batch holds of each sequence: tokens, segments, the rows that the head reads."""
    rows, found = batch.rows.tolist(), []
    for begin, end in itertools.pairwise(batch.cu_seqlens.tolist()):
        read = [row - begin for row in rows if begin <= row < end]
        found.append((batch.input_ids[begin:end].tolist(), batch.token_type_ids[begin:end].tolist(), read))
    return found


@pytest.mark.parametrize("masking", ["token", "whole-word"])
@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 40])
def test_the_shares_of_all_processes_are_the_batch_and_nothing_more_is_made(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, objective: str, masking: str, world_size: int
) -> None:
    sampler = dataclasses.replace(sampler_of(corpus, "train", objective), masking=masking)
    made: list[int] = []
    sequences = CorpusSampler.sequences
    for step in (0, 7):
        numbers = sampler.numbers_at(step)
        whole = micro_batches(sampler, numbers, limit=10**6, rank=0, world_size=1)
        with monkeypatch.context() as patch:
            patch.setattr(CorpusSampler, "sequences", lambda self, own, *how: made.extend(own) or sequences(self, own, *how))
            places = [{"rank": rank, "world_size": world_size} for rank in range(world_size)]
            shares = [micro_batches(sampler, numbers, limit=150, **place) for place in places]
        assert len({len(share) for share in shares}) == 1
        counting = [batch for share in shares for batch in share if sum(batch.weights.values())]
        assert sorted(each for batch in counting for each in sequences_in(batch)) == sorted(sequences_in(whole[0]))
        for term, weight in whole[0].weights.items():
            assert sum(batch.weights[term] for batch in counting) == weight
            found = torch.cat([batch.labels[term] for batch in counting])
            assert sorted(found.tolist()) == sorted(whole[0].labels[term].tolist())
        idle = sum(not any(sum(batch.weights.values()) for batch in share) for share in shares)
        assert (idle > 0) == (world_size > 16)
        assert len(made) == 16 + idle, "of the others one stands in"
        assert set(made) == set(numbers.tolist())
        made.clear()


@pytest.mark.parametrize("world_size", [2, 3, 5000])
def test_each_process_makes_its_share_of_the_held_out_sequences(corpus: Path, world_size: int) -> None:
    config = filled(PretrainConfig.of({**SETTINGS, "max_length": 16}))
    whole = held_out_of(corpus, config)
    for rank in (0, 1, world_size - 1):
        share = held_out_of(corpus, config, rank=rank, world_size=world_size)
        assert share.fingerprint() == whole.take(np.arange(len(whole))[rank::world_size]).fingerprint()
        assert set(share.labels) == {"mlm", "nsp"}
    assert (len(share) == 0) == (world_size == 5000), "of the last one"


def test_phases_have_their_lengths_and_shares(pretrain, monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[int] = []

    def seen(*arguments: Any, **named: Any) -> Any:
        micro_batches = made(*arguments, **named)
        longest.append(max(batch.max_seqlen for batch in micro_batches))
        return micro_batches

    made = pretraining.micro_batches
    monkeypatch.setattr(pretraining, "micro_batches", seen)
    run = pretrain("run", max_steps=10, phases="16:70%,48:30%")
    assert max(longest[:7]) <= 16 < min(longest[7:])
    assert (len(longest), max(longest)) == (10, 48)
    assert run["training"]["phases"] == ["16:70%", "48:30%"]
    assert course.Course(filled(PretrainConfig(max_steps=1, phases=("16:90%", "48:10%"))), 1000).begins == [0, 900]


# --- hours --------------------------------------------------------------------------------------------------------------


def test_hours_become_a_number_of_steps_once(pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with interrupted_at(0):
        pretrain("stopped", hours=0.01)
    assert not (tmp_path / "stopped").exists(), "stopped while rehearsing"
    monkeypatch.setattr(steps, "rehearse", lambda *_: 1.0)  # a second, of 36
    with interrupted_at(0):
        pretrain("hours", hours=0.01)
    monkeypatch.setattr(steps, "rehearse", None)  # to rehearse again would give another number
    planned = pretrain("hours", hours=0.01)["total_steps"]
    assert 10 <= planned < 36
    pretrain("steps", max_steps=planned)
    assert (tmp_path / "hours" / "model.safetensors").read_bytes() == (tmp_path / "steps" / "model.safetensors").read_bytes()


def test_the_steps_that_fit_into_the_time() -> None:
    config = filled(PretrainConfig(hours=1, batch_size=10, phases=("16:75%", "32:25%")))
    # a step of either phase takes 2 and 6 seconds, 3 on average; ten evaluations of 3 batches take 6 seconds each
    assert steps.steps_in(config, 360, [2.0, 6.0], 30) == (360 - 60) // 3
    assert steps.steps_in(dataclasses.replace(config, eval_steps=2), 360, [2.0, 6.0], 30) == 360 // (3 + 3)
    assert steps.steps_in(config, 360, [2.0, 6.0], 0) == 120
    assert steps.steps_in(config, 3.0, [2.0, 6.0], 0) == 1
    with pytest.raises(UsageError):
        steps.steps_in(config, 2.9, [2.0, 6.0], 0)


def test_a_rehearsal_takes_time_and_leaves_the_weights(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampler_of(corpus, "train", "mlm+nsp")
    module = BertForPreTraining(BertConfig(vocab_size=len(sampler.tokenizer.vocab), **SIZE, intermediate_size=8))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    config = filled(PretrainConfig(hours=1, device="cpu", precision="fp32", batch_size=4, max_length=32))
    asked: list[int] = []
    seconds = itertools.count(0, 0.5)  # half a second a step
    clock = types.SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr(steps, "time", clock)
    monkeypatch.setattr(steps, "REHEARSED", 12)

    def batches(step: int) -> Any:
        asked.append(step)
        return pretraining.micro_batches(sampler, sampler.numbers_at(step), limit=512, rank=0, world_size=1)

    for hours, more in ((1, 12), (1 / 18, 8), (1 / 29, 0), (1e-4, 0)):  # 2% of the time; as few as the first five need no more
        asked.clear()
        assert steps.rehearse(module, batches, dataclasses.replace(config, hours=hours), start_accelerator("cpu")) == 0.5
        assert asked == [*range(5), *range(more)]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


# Each process has a clock of its own, that of the second one twice as fast: a second, or two, passes at each look.
TWO_CLOCKS = """
import itertools, os, sys, types
from bertkit.cli import main
from bertkit.runs.pretraining import pretrain, steps
ticks = itertools.count(0, 1 + int(os.environ["RANK"]))
pretrain.time = steps.time = types.SimpleNamespace(perf_counter=lambda: next(ticks))
sys.exit(main(sys.argv[1:]))
"""


def test_two_processes_agree_on_their_steps_and_have_the_losses_of_one(pretrain, corpus: Path, tmp_path: Path) -> None:
    more = {"eval_steps": 4, "dropout": 0, "logging_steps": 1, "micro_batch_tokens": 150}
    options = {**SETTINGS, **SIZE, **more, "hours": 0.005}
    (tmp_path / "two.py").write_text(TWO_CLOCKS, encoding="utf-8")
    launcher = f"-m torch.distributed.run --standalone --nproc-per-node 2 {tmp_path / 'two.py'}".split()
    typed = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, *launcher, "pretrain", str(corpus), "-o", str(tmp_path / "two"), *typed]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    run = read_json(tmp_path / "two" / "run.json")
    assert run["num_processes"] == 2
    assert run["last"]["step"] == run["total_steps"] > 5
    pretrain("one", max_steps=run["total_steps"], **more)
    logs = [log_of(tmp_path / name) for name in ("one", "two")]
    assert len(logs[0]) == len(logs[1]) > run["total_steps"]
    for one, two in zip(*logs, strict=True):
        for name in one.keys() - MEASURED:
            assert two[name] == pytest.approx(one[name], rel=2e-4, abs=2e-5), name


# --- what training begins from ------------------------------------------------------------------------------------------


def test_training_begins_from_a_model(pretrain, make_model_dir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = pretrain("more", max_steps=2, model=make_model_dir("BertModel"))
    assert "cls.predictions.bias" in capsys.readouterr().err, "the newly initialized weights"
    assert run["model"]["sha256"]
    config = read_json(tmp_path / "more" / "config.json")
    assert (config["architectures"], config["num_hidden_layers"]) == (["BertForPreTraining"], 2)
    pretrain("still-more", max_steps=1, model=tmp_path / "more")
    assert "cls.predictions.bias" not in capsys.readouterr().err


def test_training_from_a_classifier_drops_its_head(pretrain, make_model_dir, tmp_path: Path) -> None:
    head = {"id2label": {0: "good", 1: "bad", 2: "so-so"}, "problem_type": "single_label_classification"}
    own = {"classifier_pooling": "mean", "bertkit": {"format": 1, "family": "text-classification", "pooling": "mean"}}
    pretrain("more", max_steps=1, model=make_model_dir("BertForSequenceClassification", **head, **own))
    config = read_json(tmp_path / "more" / "config.json")
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["bertkit"] == {"format": 1, "family": "pretraining", "objective": "mlm+nsp"}
    assert not {"id2label", "label2id", "problem_type", "classifier_pooling"} & config.keys()


@pytest.mark.parametrize("sizes", ["--model-size tiny --num-attention-heads 7", "--model-size tiny --num-hidden-layers 2000"])
def test_sizes_that_make_no_model_are_an_error_of_usage(run_bertkit, corpus: Path, sizes: str) -> None:
    ran = run_bertkit("pretrain", corpus, *sizes.split(), "--max-steps", 1, "--output-dir", "run")
    assert (ran.code, "invalid model size" in ran.err, "--num-attention-heads" in ran.err) == (2, True, True)
    assert "config.json" not in ran.err


def test_the_baseline_is_the_loss_of_the_counted_tokens(corpus: Path, pretrain) -> None:
    run = pretrain("run", max_steps=1)
    tokenizer = Tokenizer.load(corpus)
    sequences = held_out_sequences(open_corpora([corpus]), tokenizer, PretrainConfig.of(run["training"]))
    counts = Counter(range(tokenizer.vocab_size))
    for shard in read_meta(corpus)["train"]["shards"]:
        counts.update(Shard.load(corpus / shard["name"]).input_ids.tolist())
    losses = [-math.log(counts[token] / counts.total()) for token in sequences.features.labels["mlm"].values.tolist()]
    assert run["baselines"] == {"token frequencies": pytest.approx(sum(losses) / len(losses))}


def test_token_frequencies_are_those_of_a_mix(tmp_path: Path) -> None:
    def shard(*tokens: int) -> Any:
        return types.SimpleNamespace(input_ids=np.array(tokens, dtype=np.uint16))

    parts = [(0.75, [shard(0), shard(0)]), (0.25, [shard(1, 1, 1, 1, 1, 1)])]
    found = held_out.unigram_loss(parts, 3, np.array([0, 1, 2]), start_accelerator("cpu"))
    assert found == pytest.approx(-np.log(np.array([1 + 6, 1 + 2, 1]) / 11).mean())


def test_the_architecture_of_a_config_file(run_bertkit, corpus: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    named = transformers.BertConfig(**sizes, hidden_act="gelu_new", layer_norm_eps=1e-6, vocab_size=99, num_labels=7)
    named.save_pretrained(tmp_path)
    meta, config = read_meta(corpus), PretrainConfig.of({})
    for file in (tmp_path, tmp_path / "config.json"):
        found = fresh_architecture(meta, config, None, {}, file).to_dict()
        expected = sizes | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "vocab_size": meta["tokenizer"]["vocab_size"]}
        assert {name: found[name] for name in expected} == expected
        assert "id2label" not in found
    size = meta["tokenizer"]["vocab_size"] + 56
    transformers.BertConfig(**sizes, vocab_size=size).save_pretrained(tmp_path)
    assert fresh_architecture(meta, config, None, {}, tmp_path).vocab_size == size, "padded"
    small = ("--max-length", 32, "--batch-size", 4, "--max-steps", 1, "--device", "cpu")
    assert run_bertkit("pretrain", corpus, "--config-name", tmp_path, *small, "-o", "padded").code == 0
    assert read_json(tmp_path / "padded" / "config.json")["vocab_size"] == size
    assert run_bertkit("predict", "padded", "-", "--top-k", 999, stdin=b"the [MASK]\n").code == 0
    sized = fresh_architecture(meta, config, "tiny", {"num_hidden_layers": 3})
    assert (sized.num_hidden_layers, sized.hidden_size, sized.intermediate_size) == (3, 128, 512)
    wide = fresh_architecture(meta, PretrainConfig.of({"max_length": 600}), None, {"hidden_size": 192})
    assert (wide.num_attention_heads, wide.intermediate_size, wide.max_position_embeddings) == (3, 768, 600)


def test_overwrite_does_not_move_what_is_read(pretrain, trained: Path, corpus: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    inside = shutil.copytree(corpus, run / "corpus")
    for source, model, read in ((inside, None, inside), (corpus, run, run)):
        with pytest.raises(UsageError) as error:
            pretrain("run", source, model=model, max_steps=1, overwrite=True)
        assert f"would move {read}," in error.value.what
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# --- what is refused -------------------------------------------------------------------------------------------------------


def test_a_held_out_loss_that_is_not_finite(pretrain, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = held_out.score_language_model
    place = "bertkit.runs.pretraining.training.score_language_model"
    monkeypatch.setattr(place, lambda *a: scored(*a) | {"mlm_loss": float("nan")})
    with pytest.raises(UsageError):
        pretrain("run", max_steps=1)


def test_a_corpus_of_the_same_vocabulary_but_cased_is_refused(pretrain, corpus: Path, make_model_dir, tmp_path: Path) -> None:
    model = shutil.copytree(make_model_dir("BertModel"), tmp_path / "model")
    settings = read_json(model / "tokenizer_config.json")
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        pretrain("run", model=model, max_steps=1)
    assert (error.value.where, "accents" in error.value.what) == (str(corpus), True)


def test_pairs_need_two_segments_and_next_sentences_two_documents(
    pretrain, make_model_dir, tiny_tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError):
        pretrain("run", model=make_model_dir("BertModel", type_vocab_size=1))
    (tmp_path / "a.txt").write_text("\n".join(["the good movie .", "the bad movie ."] * 30), encoding="utf-8")
    options = CorpusConfig(layout="blank-lines")
    build_corpus([str(tmp_path / "a.txt")], tiny_tokenizer_dir, tmp_path / "one", options)
    for objective in OBJECTIVES:
        capsys.readouterr()
        pretrain(objective, tmp_path / "one", objective=objective, max_steps=1)
        assert ("warning: " in capsys.readouterr().err) == (objective == "mlm+nsp")  # a swapped B needs no other document


def test_held_out_documents_without_pairs_are_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the\n\nmovie\n\na\n\nbook\n\nread\n\nlove\n", encoding="utf-8")
    build_corpus([str(tmp_path / "a.txt")], corpus, tmp_path / "c", CorpusConfig(held_out=0.5, min_tokens=1))
    config = filled(PretrainConfig(max_length=32))
    with pytest.raises(DataError) as error:
        held_out_of(tmp_path / "c", config)
    assert str(tmp_path / "c") in str(error.value.where)


TINY = ("--model-size", "tiny")


@pytest.mark.parametrize(
    ("named", "options"),
    [  # what the error names, which options of the command it is about
        ("", ()),
        ("--model", ("--model", "MINILM", "--hidden-size", 64)),
        ("--config-name", ("--config-name", ".", *TINY)),
        ("--config-name", ("--config-name", ".", "--hidden-size", 64)),
        ("--hidden-size", ("--num-hidden-layers", 1, "--hidden-size", 200)),
        ("smal", ("--model-size", "smal")),
        ("--phases", (*TINY, "--phases", "16:50%,32:50%")),
        ("--phases", (*TINY, "--max-steps", 2, "--phases", "16:50%,32:40%")),
        ("--phases", (*TINY, "--max-steps", 2, "--phases", "16,32")),
        ("--phases", (*TINY, "--max-steps", 2, "--phases", "4:50%,32:50%")),
        ("--phases", (*TINY, "--max-steps", 4, "--phases", "16:90%,32:10%")),  # no step is left to the second
        ("--phases", ("--config-name", "short.json", "--max-steps", 2, "--phases", "16:50%,128:50%")),
        ("--hours", (*TINY, "--hours", 1, "--max-steps", 5)),
        ("--hours", (*TINY, "--hours", 0)),
        ("--optimizer muon", ("--model", "MINILM", "--optimizer", "muon")),
        ("--mlm-probability", (*TINY, "--mlm-probability", "0.3:15%")),
        ("--mlm-probability", (*TINY, "--mlm-probability", "0")),
        ("--mlm-probability", (*TINY, "--objective", "clm", "--mlm-probability", "0.3")),
        ("--rampup-batch-size", (*TINY, "--rampup-batch-size", "16")),
        ("--rampup-batch-size", (*TINY, "--batch-size", 8, "--rampup-batch-size", "16:10%")),
        ("--preset", (*TINY, "--preset", "stable")),
        ("--masking", (*TINY, "--objective", "clm", "--masking", "whole-word")),
        ("--objective", (*TINY, "--objective", "nsp")),
        ("--reinit-layers", (*TINY, "--reinit-layers", 1)),
        ("nothing-held-out", ("--model", "absent", "--early-stopping-patience", 2)),  # before a model is read or built
        ("tokenizer", ("--model", "MINILM")),
        ("maskign", (*TINY, "--config", "own.yaml")),
    ],
)
def test_what_is_refused(
    run_bertkit, corpus: Path, minilm: Path, tmp_path: Path, named: str, options: tuple[object, ...]
) -> None:
    target = corpus
    if named == "nothing-held-out" and not (target := corpus.parent / named).exists():
        build_corpus([str(corpus.parent / "a.txt")], corpus, target, CorpusConfig())
    (tmp_path / "short.json").write_text('{"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}')
    (tmp_path / "own.yaml").write_text("max_steps: 1\nmaskign: token\n", encoding="utf-8")
    ran = run_bertkit("pretrain", target, "-o", "run", *(minilm if option == "MINILM" else option for option in options))
    error = next(line for line in ran.err.splitlines() if line.startswith("error: "))
    assert (ran.code, named in error) == (2, True), ran.err
    assert not (tmp_path / "run").exists()


def test_no_config_file(run_bertkit, corpus: Path) -> None:
    assert run_bertkit("pretrain", corpus, "-o", "run", "--config-name", "no.json").code == 4


# --- commands --------------------------------------------------------------------------------------------------------------


def test_a_run_is_repeated_from_its_run_json(pretrain, run_bertkit, corpus: Path, tmp_path: Path) -> None:
    more = {"max_steps": 4, "eval_steps": 2, "phases": "16:50%,40:50%", "masking": "whole-word", "seed": 7}
    first = pretrain("first", **more)
    ran = run_bertkit("pretrain", corpus, "--config", "first/run.json", "--config-name", "first", "-o", "second")
    assert ran.code == 0, ran.err
    assert read_json(tmp_path / "second" / "run.json")["training"] == first["training"]
    assert (tmp_path / "second/model.safetensors").read_bytes() == (tmp_path / "first/model.safetensors").read_bytes()
    ran = run_bertkit("finetune", "--config", "first/run.json", "-o", "tuned")
    assert ran.code == 2
    assert (
        "not a fine-tuning run (first/run.json)\nhint: repeat it with bertkit pretrain CORPUS --config first/run.json"
        in ran.err
    )
    whole, short = (evaluate_corpora("first", [], overrides) for overrides in ({}, {"max_length": 12}))
    assert whole != short, "the command line wins over the phases of the run"


def test_options_of_the_other_kind_of_model_are_refused(
    run_bertkit, trained: Path, tiny_model_dir: Path, make_model_dir, corpus: Path
) -> None:
    for options in (("--split", "train"), ("--validation", "x.csv"), ("--output", "out"), ("--intervals",), ("--errors", 3)):
        ran = run_bertkit("eval", trained, *options)
        assert (ran.code, options[0] in ran.err) == (2, True)
    for command in (
        ("predict", trained, "-", "--question", "who"),
        ("predict", trained, "--split", "test"),
        ("predict", trained, "-", "--format", "conll"),
        ("predict", trained, "-", "--n-best", 2),
        ("eval", tiny_model_dir, "--corpus", corpus, "--recipe", "sst2"),
        ("eval", make_model_dir("BertForMaskedLM")),  # whose corpus nobody knows
    ):
        assert run_bertkit(*command, stdin=b"the [MASK]\n").code == 2, command
    other = make_model_dir("BertForMaskedLM", vocab_size=300)
    assert run_bertkit("eval", other, "--corpus", corpus, "--max-length", 32).code == 0  # padded embeddings, the same tokenizer
    ran = run_bertkit("predict", trained, "-", "--format", "text", stdin=b"the man [MASK] a movie\n")
    assert ran.out.partition("a movie\n  ")[0].split()[2] in VERBS
    assert run_bertkit("predict", trained, "-", "--output", "out.csv", stdin=b"[MASK]\nno\n").code == 0
    assert len(Path("out.csv").read_text(encoding="utf-8").splitlines()) == 3

"""Pre-training from corpus to run folder: loss curves of transformers, resume to the byte, two processes, what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertkit.cli import main
from bertkit.config import PretrainConfig, filled
from bertkit.corpus.build import CorpusConfig, build_corpus, read_meta
from bertkit.corpus.objectives import OBJECTIVES
from bertkit.corpus.sampling import CorpusSampler
from bertkit.corpus.shard import Shard
from bertkit.errors import UsageError
from bertkit.model.bert import initialize
from bertkit.model.config import BertConfig
from bertkit.model.devices import start_accelerator
from bertkit.model.language_model import BertForPreTraining
from bertkit.runs import pretrain as pretraining
from bertkit.text.tokenizer import Tokenizer
from bertkit.training import loop as training
from bertkit.training.learning_rate import learning_rate_at

SUBJECTS, VERBS, OBJECTS = (
    "the man|the woman|a player|the actor".split("|"),
    "play see love read".split(),
    "a movie|the book|a story".split("|"),
)
SETTINGS = ("--batch-size", 16, "--max-length", 32, "--learning-rate", 3e-3, "--precision", "fp32", "--device", "cpu")
SIZE = ("--num-hidden-layers", 2, "--hidden-size", 32, "--num-attention-heads", 2)


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


@pytest.fixture
def pretrain(run_bertkit, corpus: Path, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], str]]:
    def pretrain(
        name: str, *options: object, size: tuple[object, ...] = SIZE, source: Path | str = corpus
    ) -> tuple[dict[str, Any], str]:
        ran = run_bertkit("pretrain", source, "-o", name, *SETTINGS, *size, *options)
        assert ran.code == 0, ran.err
        return json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8")), ran.err

    return pretrain


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def transformers_scores(run: Path, corpus: Path, objective: str) -> dict[str, float]:
    """The held-out scores of a run of 32 tokens, by transformers, from its folder alone."""
    shards = [Shard.load(corpus / shard["name"]) for shard in read_meta(corpus)["validation"]["shards"]]
    sampler = CorpusSampler(shards, Tokenizer.load(corpus), 16, 32, 42, OBJECTIVES[objective])
    features = sampler.sequences(0, sampler.sequences_per_epoch)
    model = transformers.BertForPreTraining.from_pretrained(run).eval()
    token_term, pair_term = features.labels
    tokens, pairs = [], []
    for number in range(len(features)):
        ids, segments, rows, labels = (
            torch.from_numpy(ragged[number].astype(np.int64))
            for ragged in (features.input_ids, features.token_type_ids, features.rows, features.labels[token_term])
        )
        with torch.no_grad():
            outputs = model(ids[None], token_type_ids=segments[None])
        tokens.append(torch.nn.functional.cross_entropy(outputs.prediction_logits[0, rows[1:]], labels, reduction="none"))
        pairs.append(int(outputs.seq_relationship_logits.argmax()) == features.labels[pair_term][number][0])
    return {"mlm_loss": float(torch.cat(tokens).mean()), f"{pair_term}_accuracy": float(np.mean(pairs))}


# --- what is learned -----------------------------------------------------------------------------------------------------


def test_from_a_corpus_to_a_model_that_transformers_fills_masks_with(
    pretrain, run_bertkit, corpus: Path, tmp_path: Path
) -> None:
    run, _ = pretrain("run", "--max-steps", 150, "--eval-steps", 50)
    scores = run["best"]["scores"]
    assert list(scores) == [
        f"validation/{name}" for name in ("mlm_loss", "perplexity", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    ]
    evaluated = [event for event in log_of(tmp_path / "run") if "validation/mlm_loss" in event]
    assert [event["step"] for event in evaluated] == [50, 100, 150]
    assert scores["validation/mlm_loss"] == min(event["validation/mlm_loss"] for event in evaluated) < 2.5
    assert scores["validation/perplexity"] == pytest.approx(np.exp(scores["validation/mlm_loss"]))
    for name, value in transformers_scores(tmp_path / "run", corpus, "mlm+nsp").items():
        assert scores[f"validation/{name}"] == pytest.approx(value, rel=1e-4), name
    features = pretraining.held_out_sequences(
        corpus, read_meta(corpus), Tokenizer.load(corpus), filled(PretrainConfig(max_length=32))
    )
    counts = np.bincount(features.labels["mlm"].values)
    shares = counts[counts > 0] / counts.sum()
    assert scores["validation/mlm_loss"] < -(shares * np.log(shares)).sum() - 0.2, "below the entropy of single tokens"
    assert scores["validation/mlm_accuracy"] > 1.3 * shares.max()
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n")
    assert f"| validation/mlm_loss | {scores['validation/mlm_loss']:.4f} |" in card
    fill = transformers.pipeline("fill-mask", model=str(tmp_path / "run"))
    assert fill("the man [MASK] a movie .")[0]["token_str"] in VERBS
    assert not transformers.BertForMaskedLM.from_pretrained(tmp_path / "run", output_loading_info=True)[1]["missing_keys"]

    (tmp_path / "rows.csv").write_text("text,label\n" + "the man love a movie,yes\nthe book,no\n" * 8, encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-length", 16, "--max-steps", 2)
    ran = run_bertkit("finetune", "text-classification", *data, "-m", "run", "-o", "fine")
    assert ran.code == 0, ran.err
    ran = run_bertkit("eval", "run", "--json", "--precision", "fp32", "--device", "cpu")
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5)
    ran = run_bertkit("eval", "run", "--json", "--corpus", corpus, "--precision", "fp32", "--device", "cpu")
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5)


def test_sentence_order_is_an_objective_whose_model_opens_in_transformers(
    pretrain, run_bertkit, corpus: Path, tmp_path: Path
) -> None:
    run, _ = pretrain("run", "--max-steps", 4, "--objective", "mlm+sop")
    scores = run["best"]["scores"]
    assert [*scores][-2:] == ["validation/sop_loss", "validation/sop_accuracy"]
    for name, value in transformers_scores(tmp_path / "run", corpus, "mlm+sop").items():
        assert scores[f"validation/{name}"] == pytest.approx(value, rel=1e-4), name
    ran = run_bertkit("eval", "run", "--json", "--precision", "fp32", "--device", "cpu")
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-5)
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForPreTraining"]
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "`BertForPreTraining`" in card
    assert "segment B is next or previous" in card


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm+sop"])
def test_the_loss_curve_is_that_of_transformers_in_a_plain_loop(pretrain, corpus: Path, tmp_path: Path, objective: str) -> None:
    """The same sequences, masks and first weights, float32, no dropout: 20 steps within 1e-4."""
    more = ("--dropout", 0, "--logging-steps", 1, "--micro-batch-tokens", 200, "--warmup-ratio", 0.2)
    pretrain("run", "--objective", objective, "--max-steps", 20, *more)
    ours = [event["loss"] for event in log_of(tmp_path / "run") if "loss" in event]
    assert len(ours) == 20
    values = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["model"]["config"]
    config = BertConfig.from_dict(values)
    first = BertForPreTraining(config)
    initialize(first, config, seed=42)
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(**values | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    )
    theirs.load_state_dict(first.state_dict())
    theirs.tie_weights()
    decayed = [p for name, p in theirs.named_parameters() if not name.endswith("bias") and "LayerNorm" not in name]
    others = [p for name, p in theirs.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-6)
    shards = [Shard.load(corpus / shard["name"]) for shard in read_meta(corpus)["train"]["shards"]]
    sampler = CorpusSampler(shards, Tokenizer.load(corpus), 16, 32, 42, OBJECTIVES[objective])
    for step in range(20):
        features = sampler.features_at(step)
        longest = int(features.input_ids.lengths.max())
        ids, mask, segments, labels = (torch.full((16, longest), value) for value in (0, 0, 0, -100))
        for at in range(16):
            count = int(features.input_ids.lengths[at])
            ids[at, :count] = torch.from_numpy(features.input_ids[at].astype(np.int64))
            segments[at, :count] = torch.from_numpy(features.token_type_ids[at].astype(np.int64))
            mask[at, :count] = 1
            labels[at, torch.from_numpy(features.rows[at][1:])] = torch.from_numpy(features.labels["mlm"][at])
        pairs = torch.from_numpy(features.labels[sampler.objective.pair_term].values)
        loss = theirs(ids, mask, segments, labels=labels, next_sentence_label=pairs).loss
        assert ours[step] == pytest.approx(loss.item(), abs=1e-4), step
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, peak=3e-3, warmup_steps=4, total_steps=20)
        optimizer.step()
        optimizer.zero_grad()
    assert ours[-1] < ours[0] - 0.5


def test_masks_are_filled_as_transformers_fills_them(run_bertkit, make_model_dir, tmp_path: Path) -> None:
    for architecture in ("BertForPreTraining", "BertForMaskedLM"):
        model = make_model_dir(architecture, seed=4, initializer_range=0.3)
        lines = ["the man [MASK] a movie", "no mask here", "", "[MASK] [MASK] book", "the [MASK]"]
        (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = ("--precision", "fp32", "--device", "cpu", "--top-k", 3)
        ran = run_bertkit("predict", model, "lines.txt", *options)
        assert ran.code == 0, ran.err
        rows = [json.loads(line) for line in ran.out.splitlines()]
        assert [row["text"] for row in rows] == lines
        assert [len(row["fills"]) for row in rows] == [1, 0, 0, 2, 1]
        fill = transformers.pipeline("fill-mask", model=str(model), top_k=3)
        for row in rows:
            if row["fills"]:
                expected = fill(row["text"])
                expected = [expected] if isinstance(expected[0], dict) else expected
                for found, wanted in zip(row["fills"], expected, strict=True):
                    assert [f["probability"] for f in found] == pytest.approx([w["score"] for w in wanted], rel=1e-3)
                    assert [f["token"].removeprefix("##") for f in found] == [w["token_str"].removeprefix("##") for w in wanted]
        shown = run_bertkit("predict", model, "-", "--format", "text", *options, stdin=b"the man [MASK] a movie\n").out
        best = rows[0]["fills"][0][0]
        assert shown.startswith(f"the man {best['token']} a movie\n  {best['token']} {best['probability']:.2f}  ")
        ran = run_bertkit("predict", model, "lines.txt", "--output", "out.csv", *options)
        assert (ran.code, (tmp_path / "out.csv").read_text(encoding="utf-8").count("\n")) == (0, 6)
    for command in (("predict", model, "-"), ("predict", model, "lines.txt", "--format", "conll"), ("eval", model)):
        assert run_bertkit(*command, stdin=b"no mask\n").code == 2, command


def test_options_of_the_other_kind_are_refused(run_bertkit, tiny_model_dir: Path, make_model_dir, corpus: Path) -> None:
    assert run_bertkit("predict", tiny_model_dir, "-", "--top-k", 2, stdin=b"a\n").code == 2
    assert run_bertkit("eval", tiny_model_dir, "--corpus", corpus, "--recipe", "sst2").code == 2
    other = make_model_dir("BertForMaskedLM", vocab_size=300)
    assert run_bertkit("eval", other, "--corpus", corpus, "--max-length", 32).code == 0  # padded embeddings, the same tokenizer


def test_a_causal_model(pretrain, run_bertkit, corpus: Path, tmp_path: Path) -> None:
    run, _ = pretrain("run", "--max-steps", 60, "--eval-steps", 30, "--objective", "clm")
    assert list(run["best"]["scores"]) == ["validation/lm_loss", "validation/perplexity", "validation/lm_accuracy"]
    first = next(event["validation/lm_loss"] for event in log_of(tmp_path / "run") if "validation/lm_loss" in event)
    assert run["best"]["scores"]["validation/lm_loss"] < first
    config = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert (config["architectures"], config["is_decoder"]) == (["BertLMHeadModel"], True)
    assert "pipeline_tag: text-generation\n" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path / "run").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    ids = tokenizer("the man read a book . the man", return_tensors="pt").input_ids
    changed = torch.cat([ids[:, :-3], ids.flip(1)[:, -3:]], dim=1)
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits[:, :-3], theirs(changed).logits[:, :-3], atol=1e-6), "what follows is not read"
    said = run_bertkit("eval", "run", "--json")
    assert json.loads(said.out)["validation/lm_loss"] == pytest.approx(run["best"]["scores"]["validation/lm_loss"], rel=1e-5)
    (tmp_path / "lines.txt").write_text("the [MASK] .\n", encoding="utf-8")
    assert run_bertkit("predict", "run", "lines.txt").code == 2
    ran = run_bertkit("pretrain", corpus, "-o", "more", "--model", "run", "--max-steps", 1)
    assert (ran.code, "--objective" in ran.err) == (2, True)
    run, _ = pretrain("more", "--max-steps", 1, "--model", "run", "--objective", "clm", size=())
    assert run["model"]["name"] == "run"

    rows = "".join(f"{'a b'.split()[number % 2]}\t{'good bad'.split()[number % 2]} the movie\n" for number in range(40))
    (tmp_path / "rows.tsv").write_text(f"label\ttext\n{rows}", encoding="utf-8")
    data = ("--train", "rows.tsv", "--validation", "rows.tsv", "--max-length", 16, "--batch-size", 8)
    more = ("--learning-rate", 3e-3, "--num-epochs", 15, "--device", "cpu")
    tuned = run_bertkit("finetune", "text-classification", "--model", "run", "-o", "tuned", *data, *more)
    assert tuned.code == 0, tuned.err
    # [CLS] reads nothing but itself: only the last token's state can tell the two apart.
    scores = json.loads(run_bertkit("eval", "tuned", "--json").out)
    assert scores["validation/accuracy"] == 1.0
    config = json.loads((tmp_path / "tuned" / "config.json").read_text(encoding="utf-8"))
    assert (config["architectures"], config["is_decoder"]) == (["BertModel"], True)
    assert json.loads(run_bertkit("predict", "tuned", "lines.txt").out)["label"] in ("a", "b")


# --- resumed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "mlm+sop", "ltr"])
def test_stopped_and_resumed_it_is_the_same_run(
    pretrain, run_bertkit, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    kind = ("--phases", "16:55%,40:45%") if objective in ("mlm+sop", "ltr") else ("--masking", "whole-word")
    more = ("--objective", objective, *kind, "--max-steps", 9, "--eval-steps", 3, "--micro-batch-tokens", 200)
    pretrain("whole", *more)
    seed_dropout = training.seed_dropout

    def stopping(module: Any, seed: int, step: int, *place: int) -> None:
        if (step, place[0]) == (4, 0):
            os.kill(os.getpid(), signal.SIGTERM)
        seed_dropout(module, seed, step, *place)

    with monkeypatch.context() as patch:
        patch.setattr(training, "seed_dropout", stopping)
        assert run_bertkit("pretrain", corpus, "-o", "again", *SETTINGS, *SIZE, *more).code == 130
    progress = tmp_path / "again" / "checkpoint-5" / "training" / "progress.json"
    before = json.loads(progress.read_text(encoding="utf-8"))["seconds"]
    if objective == "ltr":  # as an older run has it
        file = tmp_path / "again" / "run.json"
        file.write_text(file.read_text(encoding="utf-8").replace('"clm"', '"ltr"'), encoding="utf-8")
    run, shown = pretrain("again", *more)
    assert "again/checkpoint-5" in shown
    assert run["seconds"] > before > 0, "the time before the stop counts"
    for file in ("model.safetensors", "config.json", "checkpoint-9/model.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file


def test_phases_have_the_lengths_and_shares_that_are_asked_for(
    pretrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: list[int] = []
    micro_batches_for_rank = pretraining.micro_batches_for_rank

    def seen(features: Any, *arguments: Any, **named: Any) -> Any:
        longest.append(int(features.input_ids.lengths.max()))
        return micro_batches_for_rank(features, *arguments, **named)

    monkeypatch.setattr(pretraining, "micro_batches_for_rank", seen)
    run, _ = pretrain("run", "--max-steps", 10, "--phases", "16:70%,48:30%")
    assert max(longest[:7]) <= 16 < min(longest[7:])
    assert (len(longest), max(longest)) == (10, 48)
    assert run["training"]["phases"] == ["16:70%", "48:30%"]
    assert pretraining.phase_begins([0.9, 0.1], 1000) == [0, 900]


def test_hours_are_rehearsed_once_and_then_are_a_number_of_steps(
    pretrain, run_bertkit, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "rehearse", lambda *_: 1.0)  # a second, of 36
    run, _ = pretrain("hours", "--hours", 0.01)
    steps = run["total_steps"]
    assert 10 <= steps < 36
    run, _ = pretrain("steps", "--max-steps", steps)
    assert (tmp_path / "hours" / "model.safetensors").read_bytes() == (tmp_path / "steps" / "model.safetensors").read_bytes()

    def stopping(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(training, "seed_dropout", stopping)
        assert run_bertkit("pretrain", corpus, "-o", "again", *SETTINGS, *SIZE, "--hours", 0.01).code == 130
    before = json.loads((tmp_path / "again" / "run.json").read_text(encoding="utf-8"))["total_steps"]
    monkeypatch.setattr(pretraining, "rehearse", None)  # to rehearse again would give another number
    run, _ = pretrain("again", "--hours", 0.01)
    assert run["total_steps"] == before


def test_a_stop_while_rehearsing_leaves_nothing(
    run_bertkit, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "seed_dropout", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert run_bertkit("pretrain", corpus, "-o", "run", *SETTINGS, *SIZE, "--hours", 0.01).code == 130
    assert not (tmp_path / "run").exists()


def in_two_processes(corpus: Path, folder: Path, *options: object) -> None:
    command = ["pretrain", str(corpus), "-o", str(folder), *map(str, (*SETTINGS, *SIZE, *options))]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bertkit"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, *launcher, *command], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_two_processes_agree_on_how_many_steps_fit_into_the_time(corpus: Path, tmp_path: Path) -> None:
    """By clocks of their own they would make runs of different length, and one would wait for the other."""
    in_two_processes(corpus, tmp_path / "two", "--hours", 0.002, "--micro-batch-tokens", 150)
    run = json.loads((tmp_path / "two" / "run.json").read_text(encoding="utf-8"))
    assert run["last"]["step"] == run["total_steps"] > 5


def test_the_steps_that_fit_into_the_time() -> None:
    config = filled(PretrainConfig(hours=1, batch_size=10, phases=("16:75%", "32:25%")))
    # a step of either phase takes 2 and 6 seconds, 3 on average; ten evaluations of 3 batches take 6 seconds each
    assert pretraining.steps_in(config, 360, [2.0, 6.0], 30) == (360 - 60) // 3
    assert pretraining.steps_in(dataclasses.replace(config, eval_steps=2), 360, [2.0, 6.0], 30) == 360 // (3 + 3)
    assert pretraining.steps_in(config, 360, [2.0, 6.0], 0) == 120
    with pytest.raises(UsageError):
        pretraining.steps_in(config, 2.9, [2.0, 6.0], 0)


def test_a_rehearsal_takes_time_and_leaves_the_weights(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(corpus)
    module = BertForPreTraining(BertConfig.of_size("tiny", vocab_size=len(tokenizer.vocab), num_hidden_layers=1))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    config = filled(PretrainConfig(hours=1, device="cpu", precision="fp32", batch_size=4, max_length=32))
    meta = read_meta(corpus)
    sampler = CorpusSampler([Shard.load(corpus / s["name"]) for s in meta["train"]["shards"]], tokenizer, 4, 32, 0)
    asked: list[int] = []

    def batches(step: int) -> Any:
        asked.append(step)
        time.sleep(0.01)
        features = sampler.features_at(step)
        return pretraining.micro_batches_for_rank(features, np.arange(len(features)), 512)

    seconds = pretraining.rehearse(module, batches, config, start_accelerator("cpu"))
    assert asked == [*range(5), *range(pretraining.REHEARSED)]
    assert seconds > 0.01
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    asked.clear()
    pretraining.rehearse(module, batches, dataclasses.replace(config, hours=1e-4), start_accelerator("cpu"))
    assert asked == [*range(5)]  # 2% of so little is spent already


def test_two_processes_have_the_losses_of_one(pretrain, corpus: Path, tmp_path: Path) -> None:
    more = ("--max-steps", 8, "--eval-steps", 4, "--dropout", 0, "--logging-steps", 1, "--micro-batch-tokens", 150)
    pretrain("one", *more)
    in_two_processes(corpus, tmp_path / "two", *more)
    logs = [log_of(tmp_path / name) for name in ("one", "two")]
    assert len(logs[0]) == len(logs[1]) == 10
    for one, two in zip(*logs, strict=True):
        for name in one.keys() - {"tokens_per_second"}:
            assert two[name] == pytest.approx(one[name], rel=2e-4, abs=2e-5), name


def test_training_begins_from_a_model(pretrain, run_bertkit, make_model_dir, tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    run, shown = pretrain("more", "--max-steps", 2, "--model", make_model_dir("BertModel"), size=())
    assert "cls.predictions.bias" in shown, "the fresh weights"
    assert run["model"]["sha256"]
    config = json.loads((tmp_path / "more" / "config.json").read_text(encoding="utf-8"))
    assert (config["architectures"], config["num_hidden_layers"]) == (["BertForPreTraining"], 2)
    pretrain("still-more", "--max-steps", 1, "--model", "more", size=())


def test_training_from_a_classifier_drops_its_head(pretrain, run_bertkit, make_model_dir, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\ngood movie,good\nbad movie,bad\n" * 9, encoding="utf-8")
    quick = ("--max-length", 16, "--max-steps", 1)
    train = ("finetune", "text-classification", "--train", "a.csv", "--validation", "a.csv", "--pooling", "mean", *quick)
    assert run_bertkit(*train, "-m", make_model_dir("BertModel"), "-o", "classifier").code == 0
    pretrain("more", "--max-steps", 1, "--model", "classifier", size=())
    config = json.loads((tmp_path / "more" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForPreTraining"]
    assert not {"id2label", "label2id", "problem_type", "classifier_pooling", "task_family"} & config.keys()


def test_overwrite_does_not_move_away_what_is_read(run_bertkit, corpus: Path, make_model_dir, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path / "all" / "corpus")
    shutil.copytree(make_model_dir("BertForPreTraining"), tmp_path / "all" / "model")
    for read, more in ((tmp_path / "all" / "corpus", SIZE), (corpus, ("--model", "all/model"))):
        ran = run_bertkit("pretrain", read, "-o", "all", *SETTINGS, *more, "--max-steps", 1, "--overwrite")
        assert ran.code == 2, ran.err
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["corpus", "model"]


def test_a_held_out_loss_that_is_none_is_one_line(run_bertkit, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = pretraining.score_language_model
    monkeypatch.setattr(pretraining, "score_language_model", lambda *a: scored(*a) | {"mlm_loss": float("nan")})
    ran = run_bertkit("pretrain", corpus, "-o", "run", *SETTINGS, *SIZE, "--max-steps", 1)
    assert (ran.code, [line.partition(":")[0] for line in ran.err.splitlines()[-2:]]) == (2, ["error", "hint"])


def test_the_architecture_of_a_config_file(pretrain, corpus: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    named = transformers.BertConfig(**sizes, hidden_act="gelu_new", layer_norm_eps=1e-6, vocab_size=99, num_labels=7)
    named.save_pretrained(tmp_path / "architecture")
    for number, name in enumerate(("architecture", "architecture/config.json")):
        pretrain(f"run-{number}", "--max-steps", 1, size=("--config-name", tmp_path / name))
        config = transformers.AutoConfig.from_pretrained(tmp_path / f"run-{number}")
        expected = sizes | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-6, "num_labels": 2}
        assert {key: getattr(config, key) for key in expected} == expected
        assert config.vocab_size == read_meta(corpus)["tokenizer"]["vocab_size"]


def test_a_run_is_repeated_from_its_run_json(pretrain, run_bertkit, corpus: Path, tmp_path: Path) -> None:
    more = ("--max-steps", 4, "--eval-steps", 2, "--phases", "16:50%,40:50%", "--masking", "whole-word", "--seed", 7)
    first, _ = pretrain("first", *more)
    ran = run_bertkit("pretrain", corpus, "--config", "first/run.json", "--config-name", "first", "-o", "second")
    assert ran.code == 0, ran.err
    second = json.loads((tmp_path / "second" / "run.json").read_text(encoding="utf-8"))
    assert second["training"] == first["training"]
    assert (tmp_path / "second/model.safetensors").read_bytes() == (tmp_path / "first/model.safetensors").read_bytes()
    ran = run_bertkit("finetune", "--config", "first/run.json", "-o", "tuned")
    assert (ran.code, ran.err.strip().endswith("(first/run.json)")) == (2, True)
    (tmp_path / "own.yaml").write_text("max_steps: 1\nmaskign: token\n", encoding="utf-8")
    ran = run_bertkit("pretrain", corpus, "--config", "own.yaml", "--model-size", "tiny", "-o", "third")
    assert (ran.code, "maskign (own.yaml)" in ran.err) == (2, True)


def test_a_corpus_of_the_same_vocabulary_but_cased_is_refused(
    run_bertkit, corpus: Path, make_model_dir, tmp_path: Path
) -> None:
    folder = make_model_dir("BertModel")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}), encoding="utf-8")
    ran = run_bertkit("pretrain", corpus, "-o", "run", "--model", folder, "--max-steps", 1)
    assert (ran.code, "accents" in ran.err) == (2, True)


def test_a_corpus_of_other_text_does_not_resume(
    run_bertkit, tiny_tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(word: str) -> None:
        text = "\n\n".join(f"the {word} movie plays .\nthe man {'two ' * (n % 9)}." for n in range(60))
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        build_corpus([str(tmp_path / "a.txt")], tiny_tokenizer_dir, tmp_path / "c", CorpusConfig(), overwrite=True)

    def stopping(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    command = ("pretrain", "c", "-o", "run", *SETTINGS, *SIZE, "--max-steps", 3)
    build("good")
    with monkeypatch.context() as patch:
        patch.setattr(training, "seed_dropout", stopping)
        assert run_bertkit(*command).code == 130
    build("poor")  # as long, and as many documents
    ran = run_bertkit(*command)
    assert (ran.code, "corpus.hashes" in ran.err) == (2, True)
    build("good")
    assert run_bertkit(*command).code == 0


def test_pairs_need_two_segments_and_next_sentences_two_documents(
    pretrain, run_bertkit, corpus: Path, make_model_dir, tiny_tokenizer_dir: Path, tmp_path: Path
) -> None:
    ran = run_bertkit("pretrain", corpus, "-o", "run", "--model", make_model_dir("BertModel", type_vocab_size=1))
    assert (ran.code, "type_vocab_size" in ran.err) == (2, True)
    (tmp_path / "a.txt").write_text("\n".join(["the good movie .", "the bad movie ."] * 30), encoding="utf-8")
    config = CorpusConfig(layout="blank-lines")
    build_corpus([str(tmp_path / "a.txt")], tiny_tokenizer_dir, tmp_path / "one", config)
    warned = {
        objective: "warning: " in pretrain(objective, "--objective", objective, "--max-steps", 1, source="one")[1]
        for objective in OBJECTIVES
    }
    assert warned == {name: name == "mlm+nsp" for name in OBJECTIVES}, "every B is next; a swapped one needs no other document"


def test_options_of_tasks_are_refused_of_a_pre_trained_model(pretrain, run_bertkit, tmp_path: Path) -> None:
    pretrain("run", "--phases", "16:50%,32:50%", "--max-steps", 2)
    for options in (("--split", "train"), ("--validation", "x.csv"), ("--output", "out"), ("--intervals",), ("--errors", 3)):
        ran = run_bertkit("eval", "run", *options)
        assert (ran.code, options[0] in ran.err) == (2, True)
    (tmp_path / "lines.txt").write_text("the [MASK]\n", encoding="utf-8")
    assert run_bertkit("predict", "run", "lines.txt", "--question", "who").code == 2
    assert run_bertkit("predict", "run", "--split", "test").code == 2
    whole, short = (json.loads(run_bertkit("eval", "run", "--json", *more).out) for more in ((), ("--max-length", 12)))
    assert whole != short, "the command line wins over the phases of the run"


# --- what is refused -------------------------------------------------------------------------------------------------------


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
        ("--masking", (*TINY, "--objective", "clm", "--masking", "whole-word")),
        ("--objective", (*TINY, "--objective", "nsp")),
        ("--reinit-layers", (*TINY, "--reinit-layers", 1)),
        ("nothing-held-out", (*TINY, "--early-stopping-patience", 2)),
        ("tokenizer", ("--model", "MINILM")),
    ],
)
def test_what_is_refused(
    run_bertkit, corpus: Path, minilm: Path, tmp_path: Path, named: str, options: tuple[object, ...]
) -> None:
    target = corpus
    if named == "nothing-held-out" and not (target := corpus.parent / named).exists():
        build_corpus([str(corpus.parent / "a.txt")], corpus, target, CorpusConfig())
    (tmp_path / "short.json").write_text('{"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64}')
    ran = run_bertkit("pretrain", target, "-o", "run", *(minilm if option == "MINILM" else option for option in options))
    error = next(line for line in ran.err.splitlines() if line.startswith("error: "))
    assert (ran.code, named in error) == (2, True), ran.err
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_corpus_and_a_config_that_is_not_there(run_bertkit, corpus: Path, tmp_path: Path) -> None:
    assert run_bertkit("pretrain", tmp_path, "-o", "run", *TINY).code == 2
    assert run_bertkit("pretrain", corpus, "-o", "run", "--config-name", "no.json").code == 4
    assert main(["pretrain", "--help"]) == 0

"""Pre-training on several corpora: resumed to the byte, scored by corpus and by source, and on to another corpus on purpose."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Ran
from trained import before_step, log_of, read_json

from bertkit import progress
from bertkit.corpus.build import CorpusConfig, build_corpus
from bertkit.corpus.mixing import Mix
from bertkit.runs.pretraining import pretrain as pretraining

pytestmark = pytest.mark.e2e

SETTINGS = "--num-hidden-layers 1 --hidden-size 32 --num-attention-heads 2 --batch-size 16 --max-length 32".split()
SETTINGS += "--learning-rate 3e-3 --precision fp32 --device cpu --max-steps 12 --eval-steps 4".split()
WORDS = {
    "own": {"desk": "my screen phone printer page order", "shop": "invoice refund account late early"},
    "general": {"films": "the good bad movie story actor"},
}


@pytest.fixture(scope="module")
def corpora(tiny_tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """own, of two sources, and general, of one, with words of their own."""
    folder, rng = tmp_path_factory.mktemp("corpora"), np.random.default_rng(0)
    for corpus, sources in WORDS.items():
        for name, words in sources.items():
            documents = ["\n".join(" ".join(rng.choice(words.split(), 8)) for _ in range(5)) for _ in range(90)]
            (folder / f"{name}.txt").write_text("\n\n".join(documents), encoding="utf-8")
        names = [str(folder / f"{name}.txt") for name in sources]
        build_corpus(names, tiny_tokenizer_dir, folder / corpus, CorpusConfig(held_out=0.2))
    return folder


@pytest.fixture
def pretrain(corpora: Path, run_bertkit: Callable[..., Ran]) -> Callable[..., Ran]:
    """A function that trains on corpora by name: pretrain("run", "own:3", "general:1", "--seed", 1)."""

    def train(output_dir: str, *words: Any) -> Ran:
        named = [f"{corpora}/{word}" if str(word).split(":")[0] in WORDS else word for word in words]
        return run_bertkit("pretrain", *named, *SETTINGS, "--output-dir", output_dir)

    return train


def stopped(train: Callable[[], Ran], step: int) -> None:
    """Train until a signal comes in this step."""
    with before_step(step):
        assert train().code == 128 + signal.SIGTERM


def test_a_mix_is_resumed_to_the_byte_and_another_one_is_refused(pretrain: Callable[..., Ran], tmp_path: Path) -> None:
    assert pretrain("whole", "own:3", "general:1").code == 0
    stopped(lambda: pretrain("again", "own:3", "general:1"), 5)
    for words, named in ((("own:1", "general:1"), "own.share was 0.75, now 0.5"), (("own",), "own.share was 0.75")):
        ran = pretrain("again", *words)
        assert ran.code == 2
        assert named in " ".join(ran.err.split())
    assert pretrain("again", "own:6", "general:2").code == 0, "the same shares"
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    data = read_json(tmp_path / "whole/run.json")["data"]
    assert {name: corpus["share"] for name, corpus in data.items()} == {"own": 0.75, "general": 0.25}
    assert "BERT, pre-trained on own and general" in (tmp_path / "whole/README.md").read_text(encoding="utf-8")


def test_the_loss_of_the_whole_is_that_of_its_sources_which_are_scored_alike_alone(
    pretrain: Callable[..., Ran], run_bertkit: Callable[..., Ran], corpora: Path, tmp_path: Path
) -> None:
    ran = pretrain("run", "own:3", "general:1", "--objective", "mlm")
    assert ran.code == 0, ran.err
    run = read_json(tmp_path / "run/run.json")
    scores = run["best"]["scores"]
    parts = ["", "own/", "own/desk.txt/", "own/shop.txt/", "general/"]
    assert [*scores] == [f"validation/{part}{name}" for part in parts for name in ("mlm_loss", "perplexity", "mlm_accuracy")]
    assert all(f" {name} " in ran.err for name in scores), "in the table at the end"
    assert [event for event in log_of(tmp_path / "run") if event["step"] == run["best"]["step"]][-1] == {
        "step": run["best"]["step"],
        **scores,
    }
    for part in parts:
        assert math.log(scores[f"validation/{part}perplexity"]) == pytest.approx(scores[f"validation/{part}mlm_loss"])

    def scored(*words: Any) -> dict[str, float]:
        ran = run_bertkit("eval", "run", *words, "--json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    assert scored() == pytest.approx(scores, rel=1e-6)
    alone = {name: scored("--corpus", corpora / name) for name in WORDS}
    assert [*alone["general"]] == [f"validation/{name}" for name in ("mlm_loss", "perplexity", "mlm_accuracy")]
    for name, own in alone.items():
        for score, value in own.items():
            assert scores[score.replace("validation/", f"validation/{name}/")] == pytest.approx(value, rel=1e-6)
    # mean = share * one + (1 - share) * other: loss and accuracy, of different targets, give the same share
    for whole, one, other in (("", "own/", "general/"), ("own/", "own/desk.txt/", "own/shop.txt/")):
        shares = []
        for name in ("mlm_loss", "mlm_accuracy"):
            mean, first, second = (scores[f"validation/{part}{name}"] for part in (whole, one, other))
            shares.append((mean - second) / (first - second))
        assert 0 < shares[0] < 1
        assert shares[0] == pytest.approx(shares[1], rel=1e-6)
    train_words = {part: scores[f"validation/{part}mlm_loss"] for part in ("own/", "general/")}
    assert len(set(train_words.values())) == 2


def test_a_mix_is_scored_with_the_weights_that_it_was_trained_with(
    pretrain: Callable[..., Ran],
    corpora: Path,
    run_bertkit: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A corpus may be too small to be read by its tokens alone."""
    monkeypatch.setattr("bertkit.corpus.corpora.BLOCK", 2)
    ran = pretrain("run", "own", "general")
    assert "less than one of 2" in ran.err
    assert pretrain("run", "own:1", "general:1").code == 0
    ran = run_bertkit("eval", "run", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(read_json(tmp_path / "run/run.json")["best"]["scores"], rel=1e-6)
    assert "is not finished" not in ran.err
    (tmp_path / "run/run.json").write_text(json.dumps(read_json(tmp_path / "run/run.json") | {"status": "running"}))
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"good {n},a\nbad {n},b\n" for n in range(9)), encoding="utf-8")
    train = ("finetune", "text-classification", "--train", "a.csv", "--model", "run", "--dry-run", "--output-dir", "tuned")
    more = ("pretrain", f"{corpora}/own", "--model", "run", "--max-steps", 1, "--max-length", 32, "--output-dir", "more")
    for command in (("eval", "run"), train, more):
        progress.warn_once.cache_clear()
        ran = run_bertkit(*command)
        assert (ran.code, "warning: run is not finished: using its best model so far" in ran.err) == (0, True), ran.err


def test_each_corpus_that_is_named_is_scored(
    pretrain: Callable[..., Ran], corpora: Path, run_bertkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the last one alone. Of many sources the largest have scores, and that is said."""
    assert pretrain("run", "general").code == 0
    named = [word for name in ("own", "general") for word in ("--corpus", corpora / name)]
    both, one = (run_bertkit("eval", "run", *words, "--json") for words in (named, named[2:]))
    found = json.loads(both.out)
    assert {"validation/own/mlm_loss", "validation/own/desk.txt/mlm_loss", "validation/general/mlm_loss"} <= {*found}
    general = json.loads(one.out)
    assert found["validation/general/mlm_loss"] == pytest.approx(general["validation/mlm_loss"], rel=1e-5)
    assert "computed in fp32" in one.err
    monkeypatch.setattr("bertkit.runs.pretraining.sequences.SOURCES", 1)
    assert "scores are shown for 1 of 2 sources" in run_bertkit("eval", "run", *named).err


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "run"],
        ["predict", "run", "a.txt"],
        ["export", "run", "-o", "out"],
        ["pretrain", "general", "--model", "run", "--max-steps", "1", "--output-dir", "out"],
    ],
)
def test_a_run_that_was_stopped_before_its_first_evaluation_has_no_model(
    command: list[str], pretrain: Callable[..., Ran], corpora: Path, run_bertkit: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("the [MASK]", encoding="utf-8")
    stopped(lambda: pretrain("run", "general"), 1)
    ran = run_bertkit(*(corpora / word if word == "general" else word for word in command))
    assert (ran.code, "the run is not finished, and has no model yet" in ran.err) == (4, True), ran.err
    assert "repeat its command, or give a checkpoint: run/checkpoint-2" in ran.err


def test_a_corpus_without_held_out_text_is_named(
    pretrain: Callable[..., Ran], corpora: Path, run_bertkit: Callable[..., Ran], tmp_path: Path
) -> None:
    build = ["corpus", "build", corpora / "films.txt", "--tokenizer", corpora / "own", "--num-processes", 1]
    ran = run_bertkit(*build, "--validation", "0.0001%", "-o", "whole")
    assert (ran.code, "--validation 0.0001% holds out none of 90 documents" in ran.err) == (0, True), ran.err
    ran = pretrain("run", "own", tmp_path / "whole")
    assert (ran.code, "whole has no held-out documents" in ran.err) == (0, True), ran.err
    assert not any("whole" in name for name in read_json(tmp_path / "run/run.json")["best"]["scores"])


def test_a_missing_file_of_entities_is_named(pretrain: Callable[..., Ran], tmp_path: Path) -> None:
    ran = pretrain("run", "general", "--masking", "entities", "--entities", "missing.txt")
    assert (ran.code, (tmp_path / "run").exists()) == (3, False)
    assert "missing.txt" in ran.err
    assert "while the command ran" not in ran.err


def test_changed_entities_are_noticed(pretrain: Callable[..., Ran], run_bertkit: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("the film\n", encoding="utf-8")
    assert pretrain("run", "general", "--masking", "entities", "--entities", "list.txt").code == 0
    ran = run_bertkit("eval", "run")
    assert (ran.code, "entities" in ran.err) == (0, False), ran.err
    (tmp_path / "list.txt").write_text("the text\n", encoding="utf-8")
    ran = run_bertkit("eval", "run")
    assert (ran.code, "list.txt have changed since the training" in " ".join(ran.err.split())) == (0, True), ran.err


def test_a_corpus_of_one_source_has_no_scores_by_source(pretrain: Callable[..., Ran], tmp_path: Path) -> None:
    assert pretrain("run", "general").code == 0
    assert len(read_json(tmp_path / "run/run.json")["best"]["scores"]) == 5
    assert [*read_json(tmp_path / "run/run.json")["data"]] == ["corpus"]


def test_two_processes_score_the_parts_as_one_does(pretrain: Callable[..., Ran], corpora: Path, tmp_path: Path) -> None:
    from bertkit.config import PretrainConfig
    from bertkit.corpus.corpora import open_corpora
    from bertkit.runs.pretraining.sequences import held_out_sequences
    from bertkit.text.tokenizer import Tokenizer

    opened, config = open_corpora([corpora / name for name in WORDS]), PretrainConfig.of({"max_length": 32})
    tokenizer = Tokenizer.load(corpora / "own")
    whole = held_out_sequences(opened, tokenizer, config)
    shares = [held_out_sequences(opened, tokenizer, config, rank=rank, world_size=3) for rank in range(3)]
    assert whole is not None
    for name, members in whole.parts.items():
        examples = [(share.features, share.parts[name]) for share in shares if share is not None]
        assert len(examples) == 3
        assert sum(int(own.sum()) for _, own in examples) == members.sum() > 0
        texts = sorted(features.input_ids[row].tolist() for features, own in examples for row in np.flatnonzero(own))
        assert texts == sorted(whole.features.input_ids[row].tolist() for row in np.flatnonzero(members))
        words = {"desk": "printer", "shop": "refund", "films": "movie"}
        rows = [set(text) for text in texts]
        here = {key for key, word in words.items() if any(tokenizer.vocab[word] in row for row in rows)}
        expected = {"own": {"desk", "shop"}, "general": {"films"}, "own/desk.txt": {"desk"}, "own/shop.txt": {"shop"}}
        assert here >= expected[name]
        assert len(here & {"films"}) == ("films" in expected[name])


def test_of_each_corpus_a_limited_number_of_sequences_is_evaluated(corpora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertkit.config import PretrainConfig
    from bertkit.corpus.corpora import open_corpora
    from bertkit.runs.pretraining import sequences
    from bertkit.text.tokenizer import Tokenizer

    assert sequences.HELD_OUT == 2048, "as docs/pretraining.md says"
    monkeypatch.setattr(sequences, "HELD_OUT", 5)
    opened, config = open_corpora([corpora / name for name in WORDS]), PretrainConfig.of({"max_length": 32})
    tokenizer = Tokenizer.load(corpora / "own")
    for processes in (1, 3):
        places = [{"rank": rank, "world_size": processes} for rank in range(processes)]
        shares = [sequences.held_out_sequences(opened, tokenizer, config, **place) for place in places]
        assert sum(len(share.features) for share in shares) == 10
        assert {name: sum(share.parts[name].sum() for share in shares) for name in WORDS} == {"own": 5, "general": 5}


def test_a_run_does_not_resume_on_a_corpus_that_was_built_otherwise(
    pretrain: Callable[..., Ran], corpora: Path, tiny_tokenizer_dir: Path, tmp_path: Path
) -> None:
    """With the same documents: what is held out now may have been trained on, and sequences may be other ones."""
    texts = [str(corpora / f"{name}.txt") for name in WORDS["own"]]
    changes: list[tuple[list[str], CorpusConfig]] = [
        (texts, CorpusConfig(held_out=0.3)),
        (texts[::-1], CorpusConfig(held_out=0.2)),
    ]
    build_corpus(texts, tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig(held_out=0.2))
    stopped(lambda: pretrain("run", tmp_path / "corpus"), 2)
    for names, config in changes:
        build_corpus(names, tiny_tokenizer_dir, tmp_path / "corpus", config, overwrite=True)
        ran = pretrain("run", tmp_path / "corpus")
        assert (ran.code, "corpus was built again, with other settings" in " ".join(ran.err.split())) == (2, True), ran.err
    build_corpus(texts, tiny_tokenizer_dir, tmp_path / "corpus", CorpusConfig(held_out=0.2), overwrite=True)
    assert pretrain("run", tmp_path / "corpus").code == 0


# --- another corpus ------------------------------------------------------------------------------------------------------


@pytest.fixture
def read_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Of each step that is trained: the corpus that it reads, its longest sequence, and its number there."""
    seen: list[tuple[str, int, int]] = []
    made = pretraining.micro_batches

    def micro_batches(mix: Mix, numbers: Any, **how: Any) -> Any:
        (part,) = mix.parts
        seen.append((part.shards.corpus.name, part.max_length, int(numbers[0]) // len(numbers)))
        return made(mix, numbers, **how)

    monkeypatch.setattr(pretraining, "micro_batches", micro_batches)
    return seen


def test_a_stopped_run_goes_on_with_another_corpus(
    pretrain: Callable[..., Ran],
    run_bertkit: Callable[..., Ran],
    corpora: Path,
    tmp_path: Path,
    read_steps: list[tuple[str, int, int]],
) -> None:
    other = ("--continue-with", corpora / "own")
    assert pretrain("plain", "general").code == 0
    stopped(lambda: pretrain("run", "general"), 5)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    read_steps.clear()
    ran = pretrain("run", "general", *other)
    assert ran.code == 0, ran.err
    assert sorted(set(read_steps)) == [("own", 32, step) for step in range(12 - 6)], "of the other one, from its first sequence"
    run = read_json(tmp_path / "run/run.json")
    assert [*run["data"]] == ["corpus"]
    assert run["data"]["corpus"]["source"] == str(corpora / "general")
    assert [each["step"] for each in run["continued"]] == [6]
    assert run["continued"][0]["data"]["corpus"]["source"] == str(corpora / "own")
    logs = [log_of(tmp_path / name) for name in ("plain", "run")]
    plain, rates = ({event["step"]: event["learning_rate"] for event in log if "learning_rate" in event} for log in logs)
    assert plain.items() <= rates.items(), "the schedule goes on"
    first, *later = [event for event in log_of(tmp_path / "run") if "validation/mlm_loss" in event]
    assert (first["step"], "validation/desk.txt/mlm_loss" in first) == (4, False)
    assert all("validation/desk.txt/mlm_loss" in event for event in later)
    assert run["best"]["step"] > 6, "what was held out of the first corpus is not compared"
    assert "BERT, pre-trained on general and own" in (tmp_path / "run/README.md").read_text(encoding="utf-8")
    ran = run_bertkit("eval", "run", "--json")
    assert json.loads(ran.out) == pytest.approx(run["best"]["scores"], rel=1e-6)
    stopped(lambda: pretrain("again", "general", *other), 8)
    assert pretrain("again", "general", *other).code == 0
    assert read_json(tmp_path / "again/run.json")["continued"] == run["continued"]
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()
    assert (tmp_path / "run/model.safetensors").read_bytes() != (tmp_path / "plain/model.safetensors").read_bytes()


def test_phases_go_on_and_the_corpus_may_change_again(
    pretrain: Callable[..., Ran], corpora: Path, tmp_path: Path, read_steps: list[tuple[str, int, int]]
) -> None:
    phases = ("--phases", "16:50%,24:50%", "--save-steps", 2)
    stopped(lambda: pretrain("run", "general", *phases), 1)
    read_steps.clear()
    stopped(lambda: pretrain("run", "general", *phases, "--continue-with", corpora / "own"), 7)
    assert set(read_steps) >= {("own", 16, step) for step in range(4)} | {("own", 24, step) for step in range(2)}
    read_steps.clear()
    assert pretrain("run", "general", *phases, "--continue-with", corpora / "general").code == 0
    assert set(read_steps) == {("general", 24, step) for step in range(4)}
    continued = read_json(tmp_path / "run/run.json")["continued"]
    assert [(each["step"], Path(each["data"]["corpus"]["source"]).name) for each in continued] == [(2, "own"), (8, "general")]


def test_all_that_changes_over_the_steps_is_resumed_to_the_byte(
    pretrain: Callable[..., Ran], corpora: Path, tmp_path: Path
) -> None:
    """Phases, batches that grow, a falling share of masks, the average of the last weights, and two mixes."""
    words = ["own:3", "general:1", "--phases", "16:60%,24:40%", "--rampup-batch-size", "4:80%", "--mlm-probability", "0.3:0.15"]
    words += ["--average-ratio", "0.5", "--optimizer", "muon", "--layerwise-lr-decay", "0.9", "--early-stopping-patience", "3"]
    stopped(lambda: pretrain("run", *words), 4)
    words += ["--continue-with", corpora / "general:2", "--continue-with", corpora / "own:1"]
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    assert pretrain("run", *words).code == 0
    for step in (5, 7, 9):
        stopped(lambda: pretrain("again", *words), step)
    assert pretrain("again", *words).code == 0
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "run/model.safetensors").read_bytes()
    runs = [read_json(tmp_path / name / "run.json") for name in ("run", "again")]
    assert runs[0]["best"] == runs[1]["best"]
    assert runs[0]["continued"] == runs[1]["continued"]


def test_another_corpus_is_taken_on_purpose_alone(
    pretrain: Callable[..., Ran], corpora: Path, make_model_dir: Callable[..., Path], tmp_path: Path
) -> None:
    def refused(*words: Any, says: tuple[str, ...]) -> None:
        ran = pretrain("run", *words)
        told = " ".join(ran.err.split())
        assert ran.code == 2
        assert all(word in told for word in says), told

    refused("general", "--continue-with", corpora / "own", says=("--continue-with is for a run that was stopped", "--resume"))
    assert not (tmp_path / "run").exists()
    stopped(lambda: pretrain("run", "general"), 5)
    refused("own", says=("corpus.source was", "add --continue-with CORPUS"))
    vocabulary = (make_model_dir() / "vocab.txt").read_text(encoding="utf-8")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/vocab.txt").write_text(vocabulary + "another\n", encoding="utf-8")
    build_corpus([str(corpora / "desk.txt")], tmp_path / "tokenizer", tmp_path / "other", CorpusConfig())
    refused("general", "--continue-with", tmp_path / "other", says=("different tokenizer", str(corpora / "general")))
    stopped(lambda: pretrain("run", "general", "--continue-with", corpora / "own"), 7)
    refused("general", says=(f"since step 6 the run has been reading {corpora / 'own'}", "with the same --continue-with"))
    refused("general", "--seed", 3, "--continue-with", corpora / "own", says=("seed was 42, now 3",))
    assert pretrain("run", "general", "--continue-with", corpora / "own").code == 0


def test_a_checkpoint_of_another_run_goes_on_with_another_corpus(
    pretrain: Callable[..., Ran], corpora: Path, tmp_path: Path
) -> None:
    assert pretrain("first", "general", "--keep-checkpoints", "all").code == 0
    checkpoint = tmp_path / "first" / "checkpoint-8"
    mix = [word for name in ("own:3", "general:1") for word in ("--continue-with", corpora / name)]
    ran = pretrain("second", "general", "--keep-checkpoints", "all", "--resume", checkpoint, *mix)
    assert ran.code == 0, ran.err
    (continued,) = read_json(tmp_path / "second/run.json")["continued"]
    assert continued["step"] == 8
    assert {name: data["share"] for name, data in continued["data"].items()} == {"own": 0.75, "general": 0.25}
    assert [event["step"] for event in log_of(tmp_path / "second") if "validation/own/mlm_loss" in event] == [12]
    ran = pretrain("third", "general", "--keep-checkpoints", "all", "--resume", tmp_path / "first/checkpoint-12", *mix)
    assert (ran.code, (tmp_path / "third").exists()) == (2, False)
    assert "all 12 steps are done: none is left for --continue-with" in " ".join(ran.err.split())

"""scripts/bench/training.py and scripts/bench/timed_training.py: what is timed, compared and divided by what."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertkit.errors import UsageError
from bertkit.training import loop
from scripts import turns
from scripts.bench import corpus, gpu, startup, timed_corpus, timed_training, trainer_peers, training
from scripts.bench.timed_training import Step, Timed, since_warmup, summary
from scripts.provenance import ROOT

pytestmark = pytest.mark.e2e


def test_the_warm_up_is_left_out_and_every_later_step_is_whole() -> None:
    steps = [Step(32, 100), Step(32, 200), Step(32, 300), Step(4, 20)]
    timed = since_warmup([0.0, 10.0, 15.0, 18.0, 19.0], steps, 2)
    assert timed == Timed([3.0, 1.0], steps[2:], [])
    expected = {"timed_steps": 2, "examples_per_s": 9.0, "real_tokens_per_s": 80.0, "step_s": 2.0}
    assert summary(timed) == expected
    waiting = since_warmup([0.0, 10.0, 15.0, 18.0, 19.0], steps, 2, [5.0, 5.0, 0.3, 0.1])
    assert summary(waiting) == {"waiting_share": pytest.approx(0.1), **expected}


@pytest.mark.parametrize(("stamps", "warmup"), [([0.0, 1.0], 0), ([0.0, 1.0, 2.0], 2)])
def test_missing_stamps_and_too_few_steps_are_refused(stamps: list[float], warmup: int) -> None:
    with pytest.raises(SystemExit):
        since_warmup(stamps, [Step(1, 1), Step(1, 1)], warmup)


@pytest.mark.parametrize("order", [training.ORDER, training.SHORT_ORDER, training.PRETRAINING_ORDER])
def test_sides_take_turns_with_the_seed_of_the_round(order: tuple[str, ...]) -> None:
    calls: list[tuple[str, int]] = []

    def run(side: str, seed: int) -> dict[str, Any]:
        calls.append((side, seed))
        return {**dict.fromkeys(training.MEASURES, len(calls) + 0.001), **({"precision": "bf16"} if side == "bertkit" else {})}

    found = turns.take_turns(run, order, 3, training.RECORDED, lambda *_: None)
    assert calls == [(side, seed) for seed, sides in ((1, order), (2, order[::-1]), (3, order)) for side in sides]
    assert set(found) == set(order)
    for side, measured in found.items():
        assert measured["examples_per_s"] == [at + 1.0 for at, (name, _) in enumerate(calls) if name == side]
        assert measured.get("precision") == (["bf16"] * 3 if side == "bertkit" else None)
    ours = [side.startswith("bertkit") for side in order]
    assert not any(one and other for one, other in itertools.pairwise(ours))


def rates_of(task: str, rates: dict[str, list[float]], precision: str = "bf16") -> list[dict[str, Any]]:
    sides = {side: {"examples_per_s": each, "real_tokens_per_s": each, "peak_rss_mib": [100.0]} for side, each in rates.items()}
    sides["bertkit"]["precision"] = [precision] * 3
    return training.compare(task, sides)


def test_ratios_are_of_medians_and_know_what_is_needed() -> None:
    rates = {"default": [10.0, 99.0, 1.0], "dynamic": [20.0] * 3, "best": [40.0] * 3, "bertkit": [5.0, 80.0, 50.0]}
    rates["bertkit-fp32"] = [30.0] * 3
    rows = rates_of("mrpc", rates)
    found = {(row["ours"], row["theirs"]): (row["examples_per_s"], row["peak_rss_mib"], row["needed"]) for row in rows}
    assert found == {
        ("bertkit", "default"): (5.0, 1.0, 3.0),
        ("bertkit", "dynamic"): (2.5, 1.0, None),
        ("bertkit", "best"): (1.25, 1.0, 0.9),
        ("bertkit-fp32", "default"): (3.0, 1.0, None),
        ("bertkit-fp32", "dynamic"): (1.5, 1.0, None),
    }
    assert [row["needed"] for row in rates_of("sst2", rates)] == [8.0, None, None, None, None]
    few = {side: rates[side] for side in ("dynamic", "bertkit", "bertkit-fp32")}
    found = [(row["ours"], row["theirs"], row["needed"]) for row in rates_of("squad", few)]
    assert found == [("bertkit", "dynamic", 2.0), ("bertkit-fp32", "dynamic", None)]


@pytest.mark.parametrize(
    ("task", "peers", "precision", "expected"),
    [
        ("mrpc", {"grouped": 25.0, "best": 20.0, "default": 90.0}, "fp32", ("grouped", 2.0, 1.3)),
        ("sst2", {"grouped": 25.0, "best": 40.0, "dynamic": 90.0}, "bf16", ("best", 1.25, 1.4)),
        ("conll2003", {"grouped": 25.0, "best": 20.0}, "fp32", ("grouped", 2.0, 1.5)),
        ("squad", {"grouped": 20.0, "best": 25.0}, "fp32", ("best", 2.0, 1.5)),
        ("pretrain_128", {"default": 10.0, "bf16": 5.0}, "bf16", ("default", 5.0, 2.0)),
        ("pretrain_512", {"default": 10.0, "bf16": 20.0}, "bf16", ("bf16", 2.5, 3.0)),
        ("pretrain_base", {"default": 10.0, "bf16": 20.0}, "bf16", ("bf16", 2.5, None)),
    ],
)
def test_the_peer_is_the_fastest_that_is_asked_for(
    task: str, peers: dict[str, float], precision: str, expected: tuple[str, float, float | None]
) -> None:
    rates = {"bertkit": [50.0] * 3, **{side: [rate, rate, 1000.0] for side, rate in peers.items()}}
    (row,) = [row for row in rates_of(task, rates, precision) if row["theirs"] == training.FASTEST]
    assert (row["side"], row["examples_per_s"], row["needed"]) == expected
    (label,) = [pair for _, pair, *_ in training.ratio_rows({"tasks": {task: {"ratios": [row]}}})]
    assert training.NAMES[expected[0]][:3] in label
    rates.pop(next(side for side in training.TASKS[task].peers))
    assert not [row for row in rates_of(task, rates, precision) if row["theirs"] == training.FASTEST]


def test_what_is_slower_by_far_is_left_out_and_the_fastest_is_among_the_others() -> None:
    assert training.sides_left_out({"fp32": 100.0, "bf16": 50.0}) == []
    left = training.sides_left_out({"fp32": 100.0, "bf16": 49.0})
    assert sorted(left) == ["bertkit-fp32", "best", "bf16"]
    sides = {side: {measure: [rate] for measure in training.MEASURES} for side, rate in (("bertkit", 30.0), ("grouped", 20.0))}
    sides["bertkit"]["precision"] = ["fp32"]
    assert not training.compare("mrpc", sides), "nobody said why the other peer was not run"
    (row,) = training.compare("mrpc", sides, left)
    assert (row["side"], row["among"], row["examples_per_s"], row["needed"]) == ("grouped", ["grouped"], 1.5, 1.3)


def test_the_share_of_the_limit_is_what_the_steps_needed_over_what_products_give() -> None:
    timed = Timed([1.0, 3.0], [Step(1, 1)] * 2, [], "fp32", flops=[2e9, 6e9], rate=4.0)
    assert summary(timed)["matrix_share"] == pytest.approx(0.5)
    assert "matrix_share" not in summary(Timed([1.0], [Step(1, 1)], []))


def test_start_up_runs_alternate_and_the_first_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import sys, time; open(sys.argv[1], 'a').write(sys.argv[2]); time.sleep(float(sys.argv[3]))"
    commands = {name: [sys.executable, "-S", "-c", script, str(log), name, wait] for name, wait in (("a", "0"), ("b", "0.3"))}
    seconds = turns.time_commands(commands, 2)
    assert log.read_text(encoding="utf-8") == "ababab"
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert min(seconds["b"]) >= 0.3


def test_a_timed_start_ends_at_the_first_step_and_leaves_nothing(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "good film,a\nbad film,b\n" * 8, encoding="utf-8")
    data = ["--train", "rows.csv", "--validation", "rows.csv", "--model", str(tiny_model_dir), "--precision", "fp32"]
    left = tmp_path / "left"
    left.mkdir()
    command = [sys.executable, str(startup.TIMED), "bertkit", "text-classification", *data]
    env = {**os.environ, "TMPDIR": str(left), "PYTHONPATH": str(ROOT)}
    reached = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (reached.returncode, [*left.iterdir()]) == (0, []), reached.stderr
    assert "per epoch" in reached.stderr
    assert "validation/accuracy" not in reached.stderr, "it was trained"
    failed = subprocess.run([*command, "--text", "none"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert failed.returncode == 1, "what does not reach it is no time"


def test_start_up_is_the_share_of_the_others_time(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ([1.0, 3.0, 1.5], [4.0, 9.0, 5.0])
    monkeypatch.setattr(startup, "time_commands", lambda commands, times: dict(zip(commands, taken)))
    values = startup.measure(3, "data")
    assert [(found["ratio"], found["needed"]) for found in values["starts"].values()] == [(0.3, 0.15), (0.3, 1.0)]
    assert [*values["starts"]["first_step"]["median"]] == ["bertkit", "run_glue"]
    assert "data/GLUE/MRPC" in startup.starts("data")["first_step"].commands["bertkit"]
    assert startup.render(values).count("| 1.50 | 5.00 | **0.30** |") == 2


def test_both_sides_are_called_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command[3:])
        return subprocess.CompletedProcess(command, 0, 'noise\n{"examples_per_s": 1.0}\n', "")

    monkeypatch.setattr(turns.subprocess, "run", fake)
    for task, workload in training.TASKS.items():
        seen.clear()
        for side in workload.order:
            found = training.run_side(side, task, model=Path("m"), data=Path("d"), steps=9, warmup=3, seed=5)
            assert found == {"examples_per_s": 1.0}
        assert [side for side, *_ in seen] == list(workload.order)
        (options,) = {tuple(options) for _, *options in seen}
        sizes = (("--batch-size", str(workload.batch_size)), ("--max-length", str(workload.max_length)))
        assert set(zip(options[::2], options[1::2])) >= {("--steps", "9"), ("--warmup", "3"), ("--seed", "5"), *sizes}


def written_rows(task: str, data_dir: Path, folder: Path) -> list[dict[str, Any]]:
    count = training.write_rows(task, str(data_dir), folder / "rows.jsonl")
    found = [json.loads(line) for line in (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert count == len(found)
    return found


def test_rows_have_numbers_for_labels(data_dir: Path, tmp_path: Path) -> None:
    rows = written_rows("mrpc", data_dir, tmp_path)
    assert (len(rows), sum(row["label"] for row in rows)) == (3668, 2474)  # equivalent pairs, as SOURCES.md counts them
    assert set(rows[0]) == {"text", "text_pair", "label"}


def test_rows_of_tags_and_answers(data_dir: Path, tmp_path: Path) -> None:
    tagged = written_rows("conll2003", data_dir, tmp_path)
    assert len(tagged) == 14041
    assert sum(len(row["tokens"]) for row in tagged) == sum(len(row["tags"]) for row in tagged) == 203621
    assert sum(tag.startswith("B-LOC") for row in tagged for tag in row["tags"]) == 7140
    asked = written_rows("squad", data_dir, tmp_path)
    assert len(asked) == 4000
    assert set(asked[0]) == {"id", "question", "context", "answers"}
    for row in asked:
        for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True):
            assert row["context"][start:].startswith(text)


TINY = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
FAMILY_ROWS: dict[str, list[dict[str, Any]]] = {
    # 1 or 9 words, so 3 or 11 tokens.
    "mrpc": [{"text": "ticket" if at % 2 else " ".join(["good"] * 9), "label": at % 2} for at in range(16)],
    "conll2003": [
        {"tokens": ["good"] * (1 if at % 2 else 9), "tags": ["O", "B-X"][at % 2 :][:1] * (1 if at % 2 else 9)}
        for at in range(16)
    ],
    # [CLS] who [SEP] 0 or 8 times good, movie [SEP]: 5 or 13 tokens.
    "squad": [
        {
            "id": str(at),
            "question": "who",
            "context": "good " * (8 * (at % 2)) + "movie",
            "answers": {"text": ["movie"], "answer_start": [40 * (at % 2)]},
        }
        for at in range(16)
    ],
}


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts that the bench starts as processes of their own run in this one, which has torch imported."""
    from accelerate.state import AcceleratorState

    scripts = {script.__name__: script.main for script in (timed_training, timed_corpus)}

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
            patch.setattr("bertkit.runs.finetuning.training.train", loop.train)  # which the script replaces, as
            patch.setattr("bertkit.runs.pretraining.training.train", loop.train)
            patch.setattr("bertkit.training.loop.with_totals", loop.with_totals)
            patch.setattr("sys.argv", command[2:])
            patch.setenv("TRANSFORMERS_VERBOSITY", "error")
            AcceleratorState._reset_state(reset_partial_state=True)  # one process can have but one precision
            scripts[command[2]]()
            AcceleratorState._reset_state(reset_partial_state=True)
        return subprocess.CompletedProcess(command, 0, out.getvalue(), "")

    monkeypatch.setattr(turns.subprocess, "run", run)


def run_small(task: str, side: str, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in FAMILY_ROWS[task]), encoding="utf-8")
    monkeypatch.setitem(training.TASKS, task, dataclasses.replace(training.TASKS[task], batch_size=16))
    return training.run_side(side, task, model=model, data=data, steps=4, warmup=1, seed=1)


@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize(
    ("task", "side", "tokens"),
    [
        ("mrpc", "bertkit", 7.0),
        ("mrpc", "best", 7.0),
        ("conll2003", "bertkit", 7.0),
        ("conll2003", "dynamic", 7.0),
        ("conll2003", "grouped", 7.0),
        ("squad", "bertkit", 9.0),
        ("squad", "dynamic", 9.0),
        ("squad", "best", 9.0),
    ],
)
def test_a_side_counts_real_tokens_only(
    task: str, side: str, tokens: float, in_process: None, make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch
) -> None:
    found = run_small(task, side, make_model_dir(max_position_embeddings=384), tmp_path, monkeypatch)
    assert found["timed_steps"] == 3
    assert found["real_tokens_per_s"] / found["examples_per_s"] == pytest.approx(tokens)
    assert 50 < found["peak_rss_mib"] < 8000
    assert found["step_s"] > 0
    assert ("precision" in found) == ("matrix_share" in found) == (side == "bertkit")
    assert 0 < found.get("matrix_share", 0.5) < 1.2


def test_a_step_has_its_own_time(
    in_process: None, make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes the batches of a step before the step before it begins."""
    clock, timed, seed_dropout, summary = [0.0], [], loop.seed_dropout, timed_training.summary

    def takes_longer_each_step(module: Any, seed: int, step: int, *place: int) -> None:
        clock[0] += 10 * (step + 1)
        seed_dropout(module, seed, step, *place)

    monkeypatch.setattr(loop, "seed_dropout", takes_longer_each_step)
    monkeypatch.setattr(timed_training, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(timed_training, "summary", lambda found: timed.append(found) or summary(found))
    run_small("mrpc", "bertkit", make_model_dir(max_position_embeddings=384), tmp_path, monkeypatch)
    assert timed[0].seconds == [20, 30, 40]
    assert [step.examples for step in timed[0].steps] == [16] * 3


@pytest.mark.slow
def test_a_side_is_a_process_of_its_own(make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch) -> None:
    model = make_model_dir(max_position_embeddings=384)
    assert run_small("mrpc", "bertkit", model, tmp_path, monkeypatch)["timed_steps"] == 3


def peer(family: str, rows: list[dict[str, Any]], folder: Path, **settings: Any) -> tuple[Any, Any, Any]:
    from datasets import Dataset
    from transformers import AutoTokenizer

    options = argparse.Namespace(**{"side": "dynamic", "model": str(folder), "max_length": 32, "doc_stride": 4, **settings})
    return trainer_peers.PEERS[family](Dataset.from_list(rows), AutoTokenizer.from_pretrained(folder), options)


def test_the_peer_tags_first_pieces_alone(make_model_dir: Callable[..., Path]) -> None:
    words = {"tokens": ["the", "printer", "printable", "city"], "tags": ["O", "O", "B-X", "I-X"]}
    model, rows, collator = peer("token-classification", [words, {"tokens": ["city"], "tags": ["B-X"]}], make_model_dir())
    pieces = len(rows[0]["input_ids"]) - 6  # of "printable", but for the first
    assert pieces > 0
    assert rows[0]["labels"] == [-100, 2, 2, 0, *[-100] * pieces, 1, -100]
    assert model.config.num_labels == 3
    batch = collator([{name: row[name] for name in ("input_ids", "attention_mask", "labels")} for row in rows])
    assert batch["labels"].shape == batch["input_ids"].shape == (2, 6 + pieces)
    assert batch["labels"][1].tolist() == [-100, 0, *[-100] * (4 + pieces)]


def test_the_peer_finds_answers_in_windows(make_model_dir: Callable[..., Path]) -> None:
    context = "one two three good bad great poor movie film book"
    row = {"id": "a", "question": "who", "context": context, "answers": {"text": ["poor movie"], "answer_start": [29]}}
    none = {"id": "b", "question": "who", "context": "movie", "answers": {"text": [], "answer_start": []}}
    _, rows, _ = peer("question-answering", [row, none], make_model_dir(), max_length=10, doc_stride=2)
    # [CLS] who [SEP], six tokens of the context, [SEP]; the next window begins four tokens on.
    assert len(rows) == 3
    assert [len(ids) for ids in rows["input_ids"]] == [10, 10, 5]
    assert list(zip(rows["start_positions"], rows["end_positions"])) == [(0, 0), (5, 6), (0, 0)]
    assert context[29:39] == "poor movie"


def test_a_peer_is_pre_trained_on_full_pairs(tiny_tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trainer_peers.SIZES, "tiny", TINY)
    rows = [{"lines": ["the good movie plays ."] * 8}, {"lines": ["one two three"] * 12}]
    settings = {"size": "tiny", "seed": 1, "batch_size": 8, "steps": 4, "max_length": 24}
    model, found, collator = peer("pretraining", rows, tiny_tokenizer_dir, **settings)
    assert type(model).__name__ == "BertForPreTraining"
    assert len(found) == 40
    assert set(found["next_sentence_label"]) == {0, 1}
    batch = collator([found[at] for at in range(8)])
    assert batch["input_ids"].shape == batch["labels"].shape == (8, 24)
    assert batch["attention_mask"].sum().item() == sum(len(found[at]["input_ids"]) for at in range(8))
    assert batch["next_sentence_label"].tolist() == found["next_sentence_label"][:8]
    assert (batch["labels"] >= 0).sum() > 8


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_pre_training_is_timed_on_both_sides(
    in_process: None, make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch
) -> None:
    model = make_model_dir(max_position_embeddings=512)
    folder = tmp_path / "text-en"
    folder.mkdir()
    (folder / "a.txt").write_text("the good movie plays .\none two three .\n\n" * 90, encoding="utf-8")
    workload = dataclasses.replace(training.TASKS["pretrain_128"], folder="text-en/a.txt", batch_size=4, max_length=16, rows=80)
    monkeypatch.setitem(training.TASKS, "pretrain_128", workload)
    monkeypatch.setitem(trainer_peers.SIZES, "minilm", TINY)
    monkeypatch.setattr("bertkit.model.directory.resolve", lambda name: model)
    data = tmp_path / "rows.jsonl"
    assert training.write_rows("pretrain_128", str(tmp_path), data) == 80
    for side in ("bertkit", "default"):
        found = training.run_side(side, "pretrain_128", model=model, data=data, steps=3, warmup=1, seed=1)
        assert found["timed_steps"] == 2
        assert 5 <= found["real_tokens_per_s"] / found["examples_per_s"] <= 16
    with pytest.raises(UsageError):
        training.write_rows("pretrain_128", None, data)


def test_a_corpus_is_built_and_read(in_process: None, make_model_dir: Callable[..., Path], tmp_path: Path, monkeypatch) -> None:
    model = make_model_dir()
    monkeypatch.setattr("bertkit.model.directory.resolve", lambda name: model)
    (tmp_path / "text-en").mkdir()
    lines = "\n".join(f"the good movie plays {number} ." for number in range(6))
    text = "\n\n".join(f"{lines}\none two {number} three ." for number in range(50))
    (tmp_path / "text-en" / "a.txt").write_text(text, encoding="utf-8")
    found = training.measure_corpus(str(tmp_path), 1)
    (run,) = found["runs"]
    assert run["tokens_of_text"] == pytest.approx(50 * (6 * 6 + 5), rel=0.5)
    assert [row["epochs"] for row in found["medians"]] == [2, 5]
    for row in found["medians"]:
        assert row["tokens_per_s"] == run[f"tokens_per_s_{row['epochs']}"]
        assert row["ratio"] == round(row["tokens_per_s"] / corpus.GOOGLES[row["epochs"]], 2)
        # However short reading is beside building, an epoch's tokens are those of the text, a random next segment, and marks
        assert row["tokens_per_s"] * run["build_s"] < 3 * row["epochs"] * run["tokens_of_text"]
    with pytest.raises(UsageError):
        training.measure_corpus(None, 1)


def test_every_side_is_known() -> None:
    sides = {side for workload in training.TASKS.values() for side in workload.order}
    assert set(training.NAMES) == sides
    of_gpus = {*gpu.SIDES["finetune"], *gpu.SIDES["pretrain"]}
    assert sides | of_gpus == {*trainer_peers.TRAINERS, *timed_training.BERTKIT}
    settings = {(workload.family, workload.batch_size, workload.max_length) for workload in training.TASKS.values()}
    assert settings >= {("text-classification", 32, 128), ("token-classification", 32, 128), ("question-answering", 16, 384)}

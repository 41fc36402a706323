"""Two processes are one: the same global batch gives the same losses and parameters, and each row is scored once.

The processes are real ones, with gloo, started by torchrun and by accelerate launch.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import run_command
from safetensors.torch import load_file
from shapes import CURVES, RUNS, SHAPES, TRAINING, logged_losses, prediction_run, seven, training_run

from bertkit.training.batching import Sampler, training_batches

pytestmark = pytest.mark.e2e

TESTS = Path(__file__).parents[1]
STEPS = 24
LONG = 12
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")


def launch(launcher: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run with several processes; fails where one of them fails."""
    done = start(launcher, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def start(launcher: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run with several processes, each with one thread."""
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, *launcher, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as started:
        try:
            stdout, stderr = started.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # the launcher alone would leave its processes behind
            raise
    return subprocess.CompletedProcess(command, started.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests/shapes.py writes when torchrun starts it twice."""
    folder = tmp_path_factory.mktemp("two")
    launch((*TORCHRUN, "2"), str(TESTS / "shapes.py"), str(folder), str(LONG), str(STEPS))
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_have_the_losses_and_parameters_of_one(name: str, two_processes: Path, tmp_path: Path) -> None:
    one = training_run(*RUNS[name], STEPS, tmp_path)
    losses = logged_losses(two_processes / name)
    assert len(losses) == STEPS
    np.testing.assert_allclose(losses, one.losses, rtol=0, atol=1e-5)
    parameters = load_file(two_processes / name / "parameters.safetensors")
    assert parameters.keys() == {key for key in one.parameters if key != "decoder.weight"}
    distance = sum(float((parameters[key] - one.parameters[key]).norm() ** 2) for key in parameters) ** 0.5
    assert distance < 1e-3 * sum(float(value.norm() ** 2) for value in parameters.values()) ** 0.5


def test_these_steps_have_an_empty_micro_batch_on_a_rank_and_uneven_targets() -> None:
    """What the test above needs to be a hard one, of the steps it makes."""
    for name in ("sentence", "choices", "pretraining"):
        features = SHAPES[name].features
        sampler = Sampler(len(features), TRAINING.batch_size, TRAINING.seed)
        ranks = [training_batches(features, sampler, TRAINING.micro_batch_tokens, rank=rank, world_size=2) for rank in range(2)]
        weights = [[[sum(batch.weights.values()) for batch in batches(step)] for batches in ranks] for step in range(STEPS)]
        idle = [step for step, of_ranks in enumerate(weights) if any(sum(of_rank) == 0 for of_rank in of_ranks)]
        assert len(idle) >= 5, "a process has nothing at all in the last step of an epoch"
        assert any(len(of_rank) > 1 for of_ranks in weights for of_rank in of_ranks), "some steps have several micro-batches"
        assert any(sum(first) != sum(second) for first, second in weights)


@pytest.fixture(scope="module")
def curves_of_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, list[float]]]:
    """The losses that one process gives, by precision and micro_batch_tokens; with one thread, as each of several has."""
    folder, threads = tmp_path_factory.mktemp("one"), torch.get_num_threads()

    def losses(precision: str, tokens: int) -> list[float]:
        config = dataclasses.replace(CURVES[precision, 1], micro_batch_tokens=tokens)
        return training_run(SHAPES["pretraining"], config, LONG, folder / f"{precision}-{tokens}").losses

    torch.set_num_threads(1)
    try:
        sizes = {"fp32": (1, 40), "bf16": (1, 25, 40, 70, 10_000)}
        return {precision: {each: losses(precision, each) for each in tokens} for precision, tokens in sizes.items()}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_several_processes_add_up_gradients_in_float32(
    processes: int, curves_of_one: dict[str, dict[int, list[float]]], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With a feature a micro-batch, only the order of the sums is another. With more, processes have other micro-batches."""
    if processes == 2:
        folder = request.getfixturevalue("two_processes")
    else:
        folder = tmp_path
        launch((*TORCHRUN, str(processes)), str(TESTS / "shapes.py"), str(folder), str(LONG))
    for precision, tokens in CURVES:
        one = curves_of_one[precision]
        spread = max(np.abs(np.subtract(*pair)).max() for pair in itertools.combinations(one.values(), 2))
        found = logged_losses(folder / "curves" / f"{precision}-{tokens}")
        assert len(found) == LONG
        assert np.ptp(found) > 0.5, "it learns"
        most = 2 * spread if (precision, tokens) == ("bf16", 40) else 1e-5
        np.testing.assert_allclose(found, one[tokens], rtol=0, atol=most, err_msg=f"{precision}, {tokens} tokens")


@pytest.mark.parametrize("name", ["sentence", "words"])
def test_two_processes_score_seven_rows_once_each_in_order(name: str, two_processes: Path) -> None:
    shape = seven(SHAPES[name])
    expected, _ = prediction_run(shape, shape.build(), 30)
    reports = [json.loads((two_processes / f"{name}-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    assert [report["processes"] for report in reports] == [2, 2]
    first, second = (report["seen"] for report in reports)
    assert sorted(first + second) == list(range(7))
    assert min(len(first), len(second)) > 0
    for report in reports:  # every process knows all
        assert report["outputs"].keys() == expected.outputs.keys()
        for key, rows in report["outputs"].items():
            assert len(rows) == 7
            for row, wanted in zip(rows, expected.outputs[key], strict=True):
                np.testing.assert_allclose(row, wanted, rtol=1e-4, atol=1e-5)
        assert report["losses"] == pytest.approx(expected.losses, rel=1e-5)


def test_a_signal_to_one_process_stops_both_after_the_same_step(two_processes: Path) -> None:
    """It comes in the third step; the other process has been told, a step ahead, that the fourth is made."""
    reports = [json.loads((two_processes / f"stopped-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    assert ["step 4;" in report for report in reports] == [True, True]
    assert [path.name for path in (two_processes / "stopped").glob("*checkpoint-*")] == ["checkpoint-4"]


# --- the command -------------------------------------------------------------------------------------------------------


def test_finetune_by_two_processes_is_finetune_by_one(make_model_dir, run_bertkit, tmp_path: Path) -> None:
    """Early stopping, frozen and fresh layers among it; texts of quite different lengths."""
    rng = np.random.default_rng(0)
    words = "good bad movie book story plot actor team ticket page order phone".split()
    for name, count in (("train", 33), ("dev", 7)):
        rows = [f"{' '.join(rng.choice(words, rng.integers(1, 20)))},{'no yes'.split()[row % 2]}\n" for row in range(count)]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    model = make_model_dir("BertModel", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    options = (
        f"finetune text-classification --train train.csv --validation dev.csv --model {model} --max-steps 50 --batch-size 8 "
        "--learning-rate 1e-3 --max-length 32 --device cpu --logging-steps 1 --precision fp32 --micro-batch-tokens 64 "
        "--eval-steps 5 --early-stopping-patience 1 --freeze embeddings --reinit-layers 1 --output-dir"
    )
    assert run_bertkit(*options.split(), "one").code == 0
    done = launch(ACCELERATE, "-m", "bertkit", *options.split(), "two")  # in tmp_path, where run_bertkit is

    runs = {name: json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8")) for name in ("one", "two")}
    assert {name: run["num_processes"] for name, run in runs.items()} == {"one": 1, "two": 2}  # a launcher may start only one
    assert [run["status"] for run in runs.values()] == ["finished", "finished"]
    one, two = logged_losses(tmp_path / "one"), logged_losses(tmp_path / "two")
    assert len(one) == len(two) == runs["one"]["last"]["step"] < 50
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)
    assert np.ptp(one) > 0.02
    for part in ("best", "last"):
        assert runs["two"][part]["step"] == runs["one"][part]["step"]
        assert runs["two"][part]["scores"] == pytest.approx(runs["one"][part]["scores"], abs=1e-5)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert weights[0].keys() == weights[1].keys()
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=0, atol=2e-3 if key.endswith("key.bias") else 2e-4, msg=key)
    assert done.stderr.count("steps per epoch") == 1, "the other process is silent"


def test_two_processes_choose_the_rows_to_label_that_one_chooses(make_model_dir, run_bertkit, tmp_path: Path) -> None:
    """The vectors of the choice are computed by both, after the last window."""
    model = make_model_dir("BertForSequenceClassification", seed=3, initializer_range=0.5, labels=("no", "yes"))
    texts = [f"the {word} movie {number}" for number, word in enumerate("good bad great poor old new".split() * 5)]
    (tmp_path / "new.txt").write_text("\n".join(texts), encoding="utf-8")
    options = ("predict", model, "new.txt", "--uncertain", "4", "--precision", "fp32", "--device", "cpu", "--output")
    assert run_bertkit(*options, "one.jsonl").code == 0
    launch((*TORCHRUN, "2"), "-m", "bertkit", *map(str, options), "two.jsonl")  # in tmp_path, where run_bertkit is
    one, two = ((tmp_path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("one", "two"))
    assert [json.loads(line)["text"] for line in two] == [json.loads(line)["text"] for line in one]
    assert len({*one}) == 4


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("accelerate launch", marks=pytest.mark.slow)])
def test_a_launcher_on_each_machine_makes_one_run(launcher: str, make_model_dir, tmp_path: Path, monkeypatch) -> None:
    """As docs/scale.md says it for four; here one machine is two."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text,label\n" + "good movie,yes\nbad movie,no\n" * 4, encoding="utf-8")
    command = f"-m bertkit finetune text-classification --train rows.csv --validation rows.csv --model {make_model_dir()} "
    command += "--max-steps 4 --max-length 16 --precision fp32 --no-baselines --device cpu --output-dir run"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    starts = {
        "torchrun": "-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id run "
        f"--rdzv-endpoint localhost:{port}",
        "accelerate launch": "-m accelerate.commands.launch --multi_gpu --num_machines 2 --num_processes 2 --machine_rank {} "
        f"--main_process_ip 127.0.0.1 --main_process_port {port}",
    }
    with ThreadPoolExecutor(2) as machines:
        ended = [*machines.map(lambda rank: launch(starts[launcher].format(rank).split(), *command.split()), range(2))]
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert (run["status"], run["num_processes"]) == ("finished", 2)
    assert sorted("the best model is in run" in each.stderr for each in ended) == [False, True], "one process speaks"


# --- processes that differ ---------------------------------------------------------------------------------------------

EACH_IN_ITS_OWN_FOLDER = """
import os, sys
os.chdir(os.environ["RANK"])
from bertkit.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("differing", ["rows", pytest.param("checkpoint", marks=pytest.mark.slow)])
def test_processes_that_differ_end_before_the_first_step(
    differing: str, make_model_dir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a disk of its own, as two machines do; the one of the second process holds another row, or no run."""
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        other = "bad" if (rank, differing) == ("1", "rows") else "good"
        rows = [f"{other if row == 3 else 'good'} movie {row},{'no yes'.split()[row % 2]}\n" for row in range(16)]
        (tmp_path / rank / "train.csv").write_text("text,label\n" + "".join(rows), encoding="utf-8")
    script = tmp_path / "command.py"
    script.write_text(EACH_IN_ITS_OWN_FOLDER, encoding="utf-8")
    command = f"finetune text-classification --train train.csv --validation 25% --model {make_model_dir()} --device cpu "
    command += "--max-steps 4 --batch-size 4 --max-length 16 --precision fp32 "
    command += "--keep-training-state --output-dir run"
    if differing == "checkpoint":
        monkeypatch.chdir(tmp_path / "0")
        assert run_command(command.split()).code == 0
        run = tmp_path / "0" / "run" / "run.json"
        run.write_text(run.read_text(encoding="utf-8").replace('"status": "finished"', '"status": "running"'), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    failed = start((*TORCHRUN, "2"), str(script), *command.split())
    assert failed.returncode != 0
    said = " ".join(failed.stderr.split())
    words = ["rows_sha256", "the same command, model and data"]
    if differing == "checkpoint":
        words = ["the checkpoint to resume from is None, but 'checkpoint-4' in process 0", "all machines share"]
    assert [word for word in (*words, "process 1 of 2") if word not in said] == [], said
    assert not (tmp_path / "1" / "run").exists(), "nothing is begun"


def test_processes_with_different_corpora_end_before_they_read_them(
    make_model_dir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One has held-out documents and the other has none: it would not take part in what they add up of these."""
    model = make_model_dir()
    for rank, share in (("0", "--validation 20%"), ("1", "")):
        (tmp_path / rank).mkdir()
        text = "\n\n".join(f"good movie {rank}.\nbad book {number}." for number in range(40))
        (tmp_path / rank / "text.txt").write_text(text, encoding="utf-8")
        monkeypatch.chdir(tmp_path / rank)
        build = f"corpus build text.txt --tokenizer {model} {share} --num-processes 1 --output-dir corpus"
        assert run_command(build.split()).code == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "command.py").write_text(EACH_IN_ITS_OWN_FOLDER, encoding="utf-8")
    command = f"command.py pretrain corpus --model {model} --max-steps 2 --batch-size 4 --max-length 16 --output-dir run"
    failed = start((*TORCHRUN, "2"), *command.split())
    assert failed.returncode != 0
    assert failed.stderr.count("error: process 1 of 2: data.corpus.hashes is '") == 1, failed.stderr


# --- a process that fails ----------------------------------------------------------------------------------------------

ONE_FAILS = """
import ctypes, os, sys
import bertkit.training.loop as loop
from bertkit.cli import main
from bertkit.errors import DataError

def fail(*_):
    if os.environ["RANK"] == os.environ["FAILING"] or os.environ["FAILING"] == "all":
        raise {"ValueError": ValueError, "DataError": DataError}[os.environ["ERROR"]]("of this process")
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # hangs as a collective of NCCL does, which notices nothing and lets no signal handler run
        ctypes.CDLL(None).pthread_mutex_lock(mutex)

loop.seed_dropout = fail
sys.exit(main(sys.argv[1:]))
"""


FAILURES = [("1", "ValueError"), *(pytest.param(each, "DataError", marks=pytest.mark.slow) for each in ("0", "all"))]


@pytest.mark.parametrize(("failing", "error"), FAILURES)
def test_a_process_that_fails_ends_the_others_with_its_error(
    failing: str, error: str, make_model_dir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAILING", failing)
    monkeypatch.setenv("ERROR", error)
    (tmp_path / "rows.csv").write_text("text,label\n" + "good movie,yes\nbad movie,no\n" * 4, encoding="utf-8")
    (tmp_path / "command.py").write_text(ONE_FAILS, encoding="utf-8")
    command = f"command.py finetune text-classification --train rows.csv --validation rows.csv --model {make_model_dir()} "
    command += "--max-steps 4 --max-length 16 --precision fp32 --no-baselines --output-dir run"
    failed = start((*TORCHRUN, "2"), *command.split())
    assert failed.returncode != 0
    line = "of this process" if error == "DataError" else "ValueError: of this process"
    told = [f"error: {line}"] if failing != "1" else [f"error: rank 1: {line}"]
    told += [] if failing == "all" else [f"error: process {failing} of 2 failed: {line}"]
    assert sorted(each for each in failed.stderr.splitlines() if each.startswith("error: ")) == sorted(told)

"""Jobs that wait share batches, and each gets the answer that it would get alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import Gate, flat, serving

from bertkit.errors import DataError
from bertkit.serve.batcher import Batcher, Job, Refusal
from bertkit.serve.huggingface import Served

pytestmark = pytest.mark.e2e
WORDS = "the good movie book was bad we like story of a river bank open new ticket".split()
TEXTS = [" ".join(np.random.default_rng(seed).choice(WORDS, 1 + seed % 7)) for seed in range(40)]
ROWS: dict[str, list[Any]] = {
    "BertForSequenceClassification": [*TEXTS],
    "BertForTokenClassification": [*TEXTS, ""],
    "BertForQuestionAnswering": [*zip(TEXTS, [" ".join(TEXTS[at : at + 9]) for at in range(20)], strict=False)],
    "BertForMultipleChoice": [{"text": text, "choices": TEXTS[at : at + 2 + at % 3]} for at, text in enumerate(TEXTS[:30])],
    "BertForMaskedLM": [*(f"{text} [MASK]" for text in TEXTS), "no mask"],
}


@pytest.fixture
def folder(make_model_dir: Callable[..., Path]) -> Path:
    return make_model_dir("BertForSequenceClassification", seed=3, initializer_range=0.5, labels=("a", "b", "c"))


def submit(batcher: Batcher, served: Served, rows: list[Any]) -> Future[Any]:
    (answer,) = batcher.submit(Job(served.predictor, rows))
    return answer


def answered(served: Served, job: Future[Any]) -> list[Any]:
    return served.answers(*job.result(60), {})


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("architecture", ROWS)
def test_together_is_as_alone(make_model_dir: Callable[..., Path], monkeypatch: Any, architecture: str, threads: int) -> None:
    labels = {"labels": ("O", "B-X", "I-X")} if "Token" in architecture else {}
    model = make_model_dir(architecture, seed=4, initializer_range=0.5, hidden_dropout_prob=0.5, **labels)
    with serving({"m": model}, threads=threads, max_batch_tokens=2048 // threads) as (_, models, batcher):
        served = models["m"]
        rows = [row for row in ROWS[architecture] if row != "no mask"]
        rows = [served.rows([row])[0][0] if isinstance(row, dict) else row for row in rows]
        alone = [answered(served, submit(batcher, served, [row])) for row in rows]
        gate = Gate(served, monkeypatch)
        encode, encoded = served.predictor.encode, []
        monkeypatch.setattr(served.predictor, "encode", lambda rows: encoded.append(len(rows)) or encode(rows))
        first = submit(batcher, served, rows[:1])
        assert gate.reached.wait(60)
        with ThreadPoolExecutor(8) as clients:
            jobs = [*clients.map(lambda row: submit(batcher, served, [row]), rows)]
        several = submit(batcher, served, rows[3:7])
        gate.opened.set()
        assert answered(served, first) == alone[0]
        for job, expected in zip(jobs, alone, strict=True):
            assert flat(answered(served, job)) == pytest.approx(flat(expected), abs=1e-5)
        assert flat(answered(served, several)) == pytest.approx(flat([each for (each,) in alone[3:7]]), abs=1e-5)
        assert (gate.sizes[0], sum(gate.sizes)) == (1, len(rows) + 5)
        assert len(gate.sizes) <= len(rows) // 2, "they share batches"
        assert threads > 1 or len(encoded) <= 4, "they are encoded together"
        assert not served.predictor.model.training, "other threads would drop out what they compute"


def test_a_batch_has_so_many_tokens_at_most(folder: Path, monkeypatch: Any) -> None:
    with serving({"m": folder}, max_batch_tokens=20) as (_, models, batcher):
        gate = Gate(models["m"], monkeypatch)
        jobs = [submit(batcher, models["m"], ["no"])]
        assert gate.reached.wait(60)
        lengths = [2, 3, 4, 17, 2, 30, 1, 1]  # of texts, without [CLS] and [SEP]
        jobs += [submit(batcher, models["m"], [" ".join(["no"] * length)]) for length in lengths]
        gate.opened.set()
        for job in jobs:
            job.result(60)
        assert gate.sizes == [1, 4, 1, 1, 2]  # 4 + 5 + 6 + 4, 19, 32 by itself, 3 + 3


def test_a_bad_row_fails_its_own_request_alone(folder: Path, monkeypatch: Any) -> None:
    with serving({"m": folder}) as (_, models, batcher):
        gate = Gate(models["m"], monkeypatch)
        blocked = submit(batcher, models["m"], ["no"])
        assert gate.reached.wait(60)
        good, bad, other = (submit(batcher, models["m"], rows) for rows in (["the movie"], ["a", 3], ["a book"]))
        gate.opened.set()
        assert [len(job.result(60)[1]) for job in (blocked, good, other)] == [1, 1, 1]
        with pytest.raises(DataError, match="the row is 3"):
            bad.result(60)
        assert gate.sizes == [1, 2]


@pytest.mark.parametrize("step", ["encode", "decode"])
def test_what_fails_together_is_computed_alone(folder: Path, monkeypatch: Any, step: str) -> None:
    with serving({"m": folder}) as (_, models, batcher):
        served = models["m"]
        compute = getattr(served.predictor, step)
        gate = Gate(served, monkeypatch)
        blocked = submit(batcher, served, ["no"])
        assert gate.reached.wait(60)

        def failing(rows: Any) -> Any:
            if "bad" in getattr(rows, "examples", rows).columns["text"]:
                raise RuntimeError("not a number")
            return compute(rows)

        monkeypatch.setattr(served.predictor, step, failing)
        good, bad = submit(batcher, served, ["the movie"]), submit(batcher, served, ["bad"])
        gate.opened.set()
        assert len(good.result(60)[1]) == len(blocked.result(60)[1]) == 1
        with pytest.raises(RuntimeError):
            bad.result(60)
        assert batcher.is_alive


def test_texts_and_pairs_have_batches_of_their_own(folder: Path, monkeypatch: Any) -> None:
    with serving({"m": folder}) as (_, models, batcher):
        gate = Gate(models["m"], monkeypatch)
        jobs = [submit(batcher, models["m"], ["no"])]
        assert gate.reached.wait(60)
        jobs += [submit(batcher, models["m"], [row]) for row in ("a", ("a", "b"), "c", ("d", "e"), "f")]
        gate.opened.set()
        assert [len(job.result(60)[1]) for job in jobs] == [1] * 6
        assert gate.sizes == [1, 3, 2]


def test_jobs_of_several_models_do_not_mix(folder: Path, make_model_dir: Callable[..., Path], monkeypatch: Any) -> None:
    other = make_model_dir("BertForSequenceClassification", seed=8, initializer_range=0.5, labels=("a", "b", "c"))
    with serving({"m": folder, "n": other}) as (_, models, batcher):
        expected = [answered(served, submit(batcher, served, ["the movie"])) for served in models.values()]
        gate = Gate(models["m"], monkeypatch)
        blocked = submit(batcher, models["m"], ["no"])
        assert gate.reached.wait(60)
        jobs = [submit(batcher, models[name], ["the movie"]) for name in "mnmn"]
        gate.opened.set()
        blocked.result(60)
        found = [answered(models[name], job) for name, job in zip("mnmn", jobs)]
        assert [*map(flat, found)] == [pytest.approx(flat(each), abs=1e-5) for each in expected * 2]
        assert flat(expected[0]) != pytest.approx(flat(expected[1]), abs=1e-3)
        assert gate.sizes == [1, 2]


def test_batches_are_computed_side_by_side_and_answered_as_they_are_done(folder: Path, monkeypatch: Any) -> None:
    with serving({"m": folder}, threads=4, max_batch_tokens=20) as (_, models, batcher):
        decode = models["m"].predictor.decode
        expected = [answered(models["m"], submit(batcher, models["m"], [text])) for text in TEXTS]
        together = threading.Barrier(4, timeout=60)  # passed only if four are computed at once
        first, opened, shares = threading.Event(), threading.Event(), []

        def waiting(split: Any) -> Any:
            shares.append(torch.get_num_threads())
            if not first.is_set():
                first.set()  # the others come while this one is computed
                assert opened.wait(60)
            together.wait()
            if "bad" in split.examples.columns["text"]:
                assert stopped.wait(60)
            return decode(split)

        stopped = threading.Event()
        monkeypatch.setattr(models["m"].predictor, "decode", waiting)
        lone = submit(batcher, models["m"], ["no"])
        assert first.wait(60)
        slow, *others = (submit(batcher, models["m"], [text]) for text in ("bad", " ".join(["no"] * 17), " ".join(["we"] * 17)))
        opened.set()
        assert [len(job.result(60)[1]) for job in (lone, *others)] == [1, 1, 1]
        assert not slow.done(), "answers wait for a batch that others do not share"
        stopped.set()
        assert len(slow.result(60)[1]) == 1
        assert (shares[0], {*shares[1:]}) == (4, {1}), "a lone batch has all threads, batches side by side share them"
        together, begun = threading.Barrier(1), len(shares)
        for _ in range(4):
            submit(batcher, models["m"], ["no"]).result(60)
        assert shares[begun:] == [1, 1, 4, 4], "the first lone batches may be in pauses between others"
        monkeypatch.setattr(models["m"].predictor, "decode", decode)
        found = [answered(models["m"], job) for job in [submit(batcher, models["m"], [text]) for text in TEXTS]]
        assert [*map(flat, found)] == [pytest.approx(flat(each), abs=1e-5) for each in expected]
        counted = [
            line.split()[1] for line in batcher.metrics.text().splitlines() if line.startswith("te_request_input_length_count")
        ]
        assert counted == [str(2 * len(TEXTS) + 8)]


def test_single_requests_are_computed_by_one_thread(folder: Path, monkeypatch: Any) -> None:
    with serving({"m": folder}, threads=4) as (_, models, batcher):
        decode, threads = models["m"].predictor.decode, set()

        def noting(split: Any) -> Any:
            threads.add(threading.get_ident())
            return decode(split)

        monkeypatch.setattr(models["m"].predictor, "decode", noting)
        for text in TEXTS:
            submit(batcher, models["m"], [text]).result(60)
    assert len(threads) == 1


def test_freed_memory_is_returned_from_time_to_time(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("bertkit.serve.batcher._TOKENS_TO_TRIM", 10)
    returned: list[None] = []
    monkeypatch.setattr("bertkit.serve.batcher.return_freed_memory", lambda: returned.append(None))
    with serving({"m": folder}, threads=2) as (_, models, batcher):
        for _ in range(11):  # of three tokens each: twice four are more than ten
            submit(batcher, models["m"], ["no"]).result(60)
    assert len(returned) == 2


def test_a_full_queue_refuses_and_a_cancelled_job_is_not_computed(folder: Path, monkeypatch: Any) -> None:
    with serving({"m": folder}, max_queue=2) as (_, models, batcher):
        gate = Gate(models["m"], monkeypatch)
        blocked = submit(batcher, models["m"], ["no"])
        assert gate.reached.wait(60)
        waiting = [submit(batcher, models["m"], ["a"]) for _ in range(2)]
        with pytest.raises(Refusal) as error:
            submit(batcher, models["m"], ["b"])
        assert error.value.status == 429
        assert waiting[0].cancel()
        gate.opened.set()
        blocked.result(60)
        waiting[1].result(60)
        assert gate.sizes == [1, 1]


def test_closing_finishes_what_waits_and_takes_no_more(folder: Path, monkeypatch: Any) -> None:
    with serving({"m": folder}) as (_, models, batcher):
        gate = Gate(models["m"], monkeypatch)
        jobs = [submit(batcher, models["m"], ["no"])]
        assert gate.reached.wait(60)
        jobs += [submit(batcher, models["m"], [text]) for text in TEXTS]
        with ThreadPoolExecutor(1) as thread:
            closing = thread.submit(batcher.close)
            while not batcher._closed:
                time.sleep(0.001)
            with pytest.raises(Refusal) as error:
                submit(batcher, models["m"], ["late"])
            assert error.value.status == 503
            gate.opened.set()
            closing.result(60)
        assert all(len(job.result(0)[1]) == 1 for job in jobs)
        assert not batcher.is_alive

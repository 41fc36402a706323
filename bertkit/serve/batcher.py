"""Requests share packed batches: a thread computes together the requests that arrived during its previous batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import torch

from bertkit.model.devices import return_freed_memory
from bertkit.model.streams import num_streams
from bertkit.readers import Examples
from bertkit.runs.encoded import Split
from bertkit.runs.forward import batch_tokens
from bertkit.runs.inference.predictor import Predictor, Row
from bertkit.serve.metrics import Metrics
from bertkit.serve.settings import ServeConfig
from bertkit.tasks.presentation import Prediction

_TAKEN = 32  # jobs that are encoded at once
_ALONE_BEFORE = 2  # after so many batches that were computed alone, the next gets all threads
_TOKENS_TO_TRIM = 2**16  # after computing so many, freed memory is returned, although taking it again is slower

Answered = tuple[Examples, list[Prediction]]  # rows under standard names, and a prediction for each


class Refusal(Exception):
    """The error that a client gets. status: of HTTP. kind: its name in text-embeddings-inference."""

    def __init__(self, status: int, line: str, kind: str = "Validation") -> None:
        super().__init__(line)
        self.status, self.line, self.kind = status, line, kind


@dataclass(eq=False)
class Job:
    """Rows of a request for a model to predict; the answer is `Answered`. alone: computes the answer from the encoded rows
    instead; such a job gets a batch of its own. numbers: of the rows in their request; by default from 0. request: all jobs of
    the same request, including this one.
    """

    predictor: Predictor
    rows: Sequence[Row]
    alone: Callable[[Split], Any] | None = None
    numbers: Sequence[int] | None = None
    answer: Future[Any] = field(default_factory=Future)
    request: Sequence[Job] = ()
    came: float = field(default_factory=time.perf_counter)

    @cached_property
    def split(self) -> Split:
        """Its rows as features. Raises DataError with the row."""
        return self.predictor.encode(self.predictor.examples(self.rows, self.numbers))[0]

    @cached_property
    def tokens(self) -> int:
        """The number of tokens in its rows. Raises DataError with the row."""
        return int(self.split.features.num_tokens.sum())

    @property
    def columns(self) -> list[str]:
        """The names of its rows' columns."""
        return [*self.split.examples.columns]

    def may_join(self, first: Job) -> bool:
        """Whether it can share a batch with another job, provided that their rows have the same columns."""
        return self.predictor is first.predictor and not self.alone and not first.alone


class Batcher:
    """The model threads and their queue. An idle thread takes a job at once.

    On a CPU, several threads compute batches in parallel and share torch's threads (`bertkit.model.streams`). Once a few
    batches in a row have run alone, the first thread gets all of torch's threads for the next. A batch has at most
    max_batch_tokens, on a CPU no more than `outputs_of` computes at once, or is a single larger job. first_thread: a pool of
    one thread, which opened the models: OpenMP creates helpers for each thread that uses several, and more helpers than cores
    slow each other down.
    """

    def __init__(self, settings: ServeConfig, metrics: Metrics, first_thread: ThreadPoolExecutor, device: torch.device) -> None:
        self.settings, self.metrics = settings, metrics
        self.max_batch_tokens = batch_tokens(settings.max_batch_tokens, device)
        self._waiting: list[Job] = []
        self._closed = False
        self._num_busy = 0  # threads that have jobs
        self._num_tokens = 0  # since freed memory was returned
        self._num_alone = _ALONE_BEFORE  # the last batches that began while nothing else was computed
        self._changed = threading.Condition()
        self._is_on_cpu = device.type == "cpu"
        self._threads, streams = torch.get_num_threads(), num_streams(device)
        self._others = ThreadPoolExecutor(streams, "beside")
        pools = [first_thread, *[self._others] * (streams - 1)]
        self._ended = [pool.submit(self._run, self._threads // streams, pool is first_thread) for pool in pools]

    def submit(self, *jobs: Job) -> list[Future[Any]]:
        """Queue a request's jobs; returns their answers. Raises Refusal if too many are waiting, or after `close`."""
        with self._changed:
            if self._closed:
                raise Refusal(503, "the server is shutting down", "Unhealthy")
            if len(self._waiting) >= self.settings.max_queue:
                raise Refusal(429, f"{self.settings.max_queue} requests are waiting already; try again later", "Overloaded")
            self._waiting += jobs
            self._changed.notify_all()
        return [job.answer for job in jobs]

    def close(self) -> None:
        """Accept no more jobs, and finish the waiting ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for ended in self._ended:
            ended.result()
        self._others.shutdown()

    @property
    def is_alive(self) -> bool:
        """Whether the model threads are running."""
        return not any(ended.done() for ended in self._ended)

    @property
    def queue_size(self) -> int:
        """The number of waiting jobs."""
        return len(self._waiting)

    def _run(self, share: int, is_first: bool) -> None:
        """Compute batches until `close`. share: of torch's threads, for a batch beside others.

        The other threads wait until the first is busy. Each thread has OpenMP helpers that stay awake after a batch, so single
        requests that alternate between two threads take half as long again.
        """
        torch.get_num_threads()  # or torch would give this thread the process's number later
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._waiting and (is_first or self._num_busy)))
                if not self._waiting:
                    return
                taken = self._take()
                self._num_busy += 1
                self._changed.notify_all()
            if jobs := self._claim(taken):
                torch.set_num_threads(self._threads if self._has_all_threads() and is_first else share)
            computed = self._compute(jobs) if jobs else []
            with self._changed:  # before an answer brings the next request
                self._num_busy -= 1
                self._num_tokens += sum(job.tokens for job in jobs)
                if is_time := self._is_on_cpu and self._num_tokens >= _TOKENS_TO_TRIM:
                    self._num_tokens = 0
            for job, answer in computed:
                if isinstance(answer, Exception):
                    job.answer.set_exception(answer)
                else:
                    job.answer.set_result(answer)
            if is_time:
                return_freed_memory()

    def _has_all_threads(self) -> bool:
        """Whether this batch and the last few each began with nothing else running.

        Several batches count because this also happens briefly under load, and each change of threads needs other kernels.
        """
        with self._changed:
            self._num_alone = self._num_alone + 1 if self._num_busy == 1 and not self._waiting else 0
            return self._num_alone > _ALONE_BEFORE

    def _claim(self, taken: list[Job]) -> list[Job]:
        """The first of these jobs, and those from these and the queue that fit into its batch; the rest return to its front.

        Jobs that cannot be computed are answered.
        """
        claimed: list[Job] = []
        left: list[Job] = []
        room = self.max_batch_tokens
        while taken:
            _encode(taken)
            for job in taken:
                try:
                    if (tokens := sum(each.tokens for each in job.request or [job])) > self.settings.max_request_tokens:
                        what = f"the request has {tokens} tokens; expected at most {self.settings.max_request_tokens}"
                        raise Refusal(413, what)
                except Exception as error:
                    if job.answer.set_running_or_notify_cancel():
                        job.answer.set_exception(error)
                    continue
                if claimed and (job.tokens > room or job.columns != claimed[0].columns):
                    left.append(job)
                elif job.answer.set_running_or_notify_cancel():  # its client is still waiting
                    claimed.append(job)
                    room -= job.tokens
            taken = [] if left else self._take(claimed)
        if left:
            with self._changed:
                self._waiting[:0] = left
                self._changed.notify_all()
        return claimed

    def _take(self, claimed: Sequence[Job] = ()) -> list[Job]:
        """Take out of the queue the oldest jobs that may join these. They are encoded outside the lock."""
        with self._changed:
            taken: list[Job] = []
            for job in self._waiting:
                others = claimed or taken
                if len(taken) < _TAKEN and (not others or job.may_join(others[0])):
                    taken.append(job)
            self._waiting = [job for job in self._waiting if job not in taken]
        return taken

    def _compute(self, jobs: Sequence[Job]) -> list[tuple[Job, Any]]:
        """Jobs computed as one batch, each with its answer or an error.

        If the batch fails, each job is computed alone, so that one bad job does not fail the others.
        """
        start = time.perf_counter()
        try:
            splits = [job.split for job in jobs]
            answers = [alone(splits[0])] if (alone := jobs[0].alone) else _predict(splits, jobs[0].predictor)
        except Exception as error:
            if len(jobs) == 1:
                return [(jobs[0], error)]
            return [computed for job in jobs for computed in self._compute([job])]
        seconds = time.perf_counter() - start
        with self._changed:  # of several threads, one at a time
            self.metrics.observe("next_size", len(jobs))
            self.metrics.observe("next_tokens", sum(job.tokens for job in jobs))
            for job in jobs:
                self.metrics.observe("input_length", job.tokens)
                self.metrics.observe("queue_duration", start - job.came)
                self.metrics.observe("inference_duration", seconds)
        return [*zip(jobs, answers, strict=True)]


def _encode(jobs: Sequence[Job]) -> None:
    """Encode jobs whose rows have the same form together; single rows take eighteen times as long each.

    Jobs that cannot be encoded raise the error in `Job.split`.
    """
    fresh = [job for job in jobs if "split" not in vars(job)]
    alike = [job for job in fresh if form_of(job.rows[0]) == form_of(fresh[0].rows[0])]
    if len(alike) < 2:
        return
    predictor = alike[0].predictor
    try:
        split, _ = predictor.encode(predictor.examples([row for job in alike for row in job.rows]))
    except Exception:  # each job finds out whether it is its own
        return
    if len(split.examples) != sum(len(job.rows) for job in alike):
        return
    begin = 0
    for job in alike:
        job.split = split.part(begin, begin + len(job.rows))
        begin += len(job.rows)


def form_of(row: Row) -> Any:
    """A key that is equal for rows with the same columns."""
    return frozenset(row) if isinstance(row, dict) else type(row)


def _predict(splits: Sequence[Split], predictor: Predictor) -> list[Answered]:
    predictions = iter(predictor.decode(Split.joined(splits)))
    return [(split.examples, [*islice(predictions, len(split.examples))]) for split in splits]

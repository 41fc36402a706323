"""The course of pre-training: what each step reads, as pure functions of its number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.config import PretrainConfig
from bertkit.errors import UsageError, plural

EVALUATIONS = 10  # per run without eval_steps


@dataclass(frozen=True)
class Course:
    """Training for `steps` steps; each phase counts its sequences from 0, and again from 0 at the step `since`, where other
    corpora begin. Raises UsageError for a phase, or an average, without a step.
    """

    config: PretrainConfig
    steps: int
    since: int = 0

    def __post_init__(self) -> None:
        if self.config.average_ratio and not round(self.config.average_ratio * self.steps):
            what = f"--average-ratio is {self.config.average_ratio:g}, less than one of {plural(self.steps, 'step')}"
            raise UsageError(what, hint="train for more steps, or raise it")
        ends = [*self.begins[1:], self.steps]
        for (length, _), begin, end in zip(self.config.lengths(), self.begins, ends, strict=True):
            if begin == end:
                what = f"--phases leaves no step for sequences of {length} tokens; there are {plural(self.steps, 'step')}"
                raise UsageError(what, hint="train for more steps, or raise the share")

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Course:
        """The course of a run, from its run.json, as if it had read the same corpora throughout."""
        return cls(PretrainConfig.of(run["training"]), run["total_steps"])

    @cached_property
    def begins(self) -> list[int]:
        """The first step of each phase."""
        shares = [share for _, share in self.config.lengths()]
        return [round(sum(shares[:number]) * self.steps) for number in range(len(shares))]

    def phase_at(self, step: int) -> int:
        return bisect_right(self.begins, step) - 1

    def sequences_before(self, step: int) -> int:
        """The number of sequences before a step, in its phase and from the corpora that are read then."""
        return self._drawn(step) - self._drawn(max(self.begins[self.phase_at(step)], self.since))

    def numbers_at(self, step: int) -> NDArray[np.int64]:
        """The numbers of a step's sequences in its phase."""
        begin = self.sequences_before(step)
        return np.arange(begin, begin + self._drawn(step + 1) - self._drawn(step))

    def tokens_before(self, step: int) -> int:
        """The maximum number of tokens before a step; sequences may be shorter than their phase's length."""
        bounds = zip(self.config.lengths(), self.begins, [*self.begins[1:], self.steps], strict=True)
        drawn = [(length, self._drawn(max(begin, min(step, end))) - self._drawn(begin)) for (length, _), begin, end in bounds]
        return sum(length * sequences for length, sequences in drawn)

    def mlm_probability_at(self, step: int) -> float:
        """The share of the tokens to predict, linear from the first to the last (Ankner et al., 2023, section 3)."""
        first, last = self.config.mlm_probabilities()
        return first + (last - first) * step / self.steps

    def _drawn(self, step: int) -> int:
        """The number of sequences before a step; batches grow linearly, so the count has a closed form."""
        (first, share), full = self.config.ramp(), self.config.batch_size
        growing = round(share * self.steps)
        passed = min(step, growing)
        return full * step - (full - first) * passed * (2 * growing - passed + 1) // max(1, 2 * growing)

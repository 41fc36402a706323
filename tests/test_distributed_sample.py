"""A sample of `make test-distributed`: a process is killed, and torchrun starts all again."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import SCENARIOS, Place, Tally

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_run_that_is_restarted_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    tally = Tally()
    SCENARIOS["restart of 2"](Place(tmp_path, tally, seed=1))
    assert (tally.kills, tally.restarts) == (1, 1)
    assert not tally.failed, "\n".join([str(tally), *tally.told])

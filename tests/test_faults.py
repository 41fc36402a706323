"""A sample of `make test-faults`: kills, disks that are full or read-only, flipped bytes, two starts at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults import FLIPPED, KILL, WRITERS, Disk, Killed, Operation, Tally, fail_everywhere, flip_everywhere, start_twice

pytestmark = pytest.mark.e2e
EVERY = {"finetune": 150, "corpus": 40, "predict": 4, "tokenizer": 5, "eval": 4, "merge": 30, "recipe": 3}


def assert_none(tally: Tally) -> None:
    assert not tally.failed, "\n".join([str(tally), *tally.told])


@pytest.mark.parametrize("name", EVERY)
def test_a_command_goes_on_after_any_fault(name: str, tmp_path: Path, tiny_model_dir: Path) -> None:
    tally = fail_everywhere(name, tmp_path, tiny_model_dir, every=EVERY[name], offset=EVERY[name] // 2)
    assert tally.operations >= 2
    assert_none(tally)


@pytest.mark.parametrize("name", FLIPPED)
def test_a_flipped_bit_is_noticed_or_of_no_effect(name: str, tmp_path: Path, tiny_model_dir: Path) -> None:
    tally = flip_everywhere(name, tmp_path, tiny_model_dir, flips=6)
    assert tally.flips == 6
    assert_none(tally)


def test_of_two_starts_one_does_the_work(tmp_path: Path, tiny_model_dir: Path) -> None:
    assert_none(start_twice("corpus", tmp_path, tiny_model_dir))


def test_every_command_that_writes_is_tried() -> None:
    assert set(EVERY) <= set(WRITERS)
    assert {scenario.argv[0] for scenario in WRITERS.values()} == {
        *("finetune", "pretrain", "corpus", "tokenizer", "predict", "eval", "recipes")  # submission needs all of GLUE
    }


def test_a_killed_process_changes_nothing_any_more(tmp_path: Path) -> None:
    """The harness itself: what a `finally` does after the kill has no effect, and half of a write has."""

    def killed() -> None:
        try:
            (tmp_path / "a").write_text("whole", encoding="utf-8")
        finally:
            os.unlink(tmp_path / "a")

    with Disk(tmp_path, at=Operation(1), kind=KILL).watched(), pytest.raises(Killed):
        killed()
    assert (tmp_path / "a").read_text(encoding="utf-8") == "wh"

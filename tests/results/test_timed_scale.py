"""Large runs on small data: a run resumed far on has the sequences that it would have had; saves are timed; all
duplicates are found, and any number of processes writes the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.corpus.directory import read_meta
from scripts.results import timed_scale

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale") / "corpus"
    timed_scale.write_corpus(folder, shards=100, tokens=20_000)
    return folder


def test_the_corpus_is_one(corpus: Path) -> None:
    meta = read_meta(corpus)
    assert [len(meta[split]["shards"]) for split in ("train", "validation")] == [100, 1]
    assert meta["train"]["tokens"] > 100 * 19_000


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_sequences_that_it_would_have_had(corpus: Path, tmp_path: Path) -> None:
    found = timed_scale.time_resume(corpus, tmp_path, 60)
    assert found["same"]
    assert found["window"] >= 3, "not the first one"


def test_a_share_is_timed_over_several_windows(corpus: Path) -> None:
    found = timed_scale.time_share(corpus, 1024, 128)
    assert 0 < found["of_it_own_sequences"] < found["share_of_a_core"]
    assert found["global_tokens_per_s"] > 0


def test_the_duplicates_are_found(tmp_path: Path) -> None:
    found = timed_scale.time_duplicates(tmp_path, 100_000)
    assert (found["documents"], found["duplicates"]) == (100_000, 10_000)
    assert found["peak_mb"] >= found["imports_mb"] > 10


def test_of_tiny_documents_each_tenth_repeats_another() -> None:
    hashes = [value for shard in timed_scale.tiny_documents(100_000) for value in shard.hashes.tolist()]
    seen: set[int] = set()
    repeated = [number for number, value in enumerate(hashes) if value in seen or seen.add(value)]
    assert repeated == [*range(9, 100_000, 10)]


def test_shards_are_the_same_by_one_and_two_processes(tmp_path: Path) -> None:
    found = timed_scale.time_splits(tmp_path, 3, 20_000)
    assert found["same"]
    assert sorted(found["seconds_by_processes"]) == ["1", "2"]


def test_saves_are_timed_that_hold_weights_and_moments_once(tmp_path: Path) -> None:
    found = timed_scale.time_saves(tmp_path, "tiny")
    weights_and_moments = 3 * 4 * found["parameters"]
    assert weights_and_moments < found["bytes"] < 1.1 * weights_and_moments
    assert (len(found["waited_s"]), len(found["writer_s"])) == (2, 3)
    assert found["steps_meanwhile"] > 0

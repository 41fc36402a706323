"""Growth on small data: no row repeats another, texts fill max_length, attention's share is taken out."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from bertkit.readers.formats import read_file
from scripts.results import timed_growth

SENTENCES = [("the good movie .", "1"), ("a bad film", "0"), ("he say", "0")]


def test_rows_repeat_sentences_and_differ(tmp_path: Path) -> None:
    timed_growth.write_csv(tmp_path / "train.csv", timed_growth.numbered(SENTENCES, 100))
    columns = read_file(tmp_path / "train.csv").columns
    assert len(set(columns["text"])) == 100
    assert columns["text"][4] == "a bad film 4"
    assert columns["label"] == [SENTENCES[row % 3][1] for row in range(100)]


def test_texts_of_a_length_fill_it_and_differ() -> None:
    rows = [*timed_growth.of_length(SENTENCES, 20, 64)]
    assert len({text for text, _ in rows}) == 20
    assert all(len(text.split()) > 64 for text, _ in rows)


@pytest.mark.e2e
@pytest.mark.slow
def test_runs_are_timed(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    options = argparse.Namespace(rows=[40, 80], lengths=[8, 16], steps=7, max_length=32, model=str(tiny_model_dir))
    found = timed_growth.measure(SENTENCES, options)
    assert [each["rows"] for each in found["rows"]] == [40, 80]
    assert found["rows"][0]["above_mb"] == 0
    assert [each["max_length"] for each in found["lengths"]] == [8, 16]
    assert all(each["tokens_of_a_step"] == timed_growth.TOKENS for each in found["lengths"]), "the texts fill max_length"
    short, long = (each["linear_us_per_token"] / each["us_per_token"] for each in found["lengths"])
    assert 0 < long < short < 1
    assert all(each["peak_mb"] > 50 for each in (*found["rows"], *found["lengths"]))

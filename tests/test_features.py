"""Ragged arrays and features: against lists of lists."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shapes import SHAPES

from bertkit.features import IGNORED, Features, Ragged, offsets_of, ranges

ROWS = st.lists(st.lists(st.integers(-100, 2**31 - 1), max_size=6), min_size=1, max_size=12)


@given(ROWS, st.data())
def test_ragged_holds_takes_and_joins_rows(rows: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.of(rows)
    assert ragged.values.dtype == np.int32
    assert len(ragged) == len(rows)
    assert [ragged[i].tolist() for i in range(len(rows))] == rows
    assert ragged.lengths.tolist() == [len(row) for row in rows]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = ragged.take(np.array(chosen, dtype=np.int64))
    assert [taken[i].tolist() for i in range(len(taken))] == [rows[i] for i in chosen]
    joined = Ragged.joined([Ragged.of([]), taken, ragged])
    assert [joined[i].tolist() for i in range(len(joined))] == [*(rows[i] for i in chosen), *rows]
    assert taken.values.dtype == joined.values.dtype == np.int32


def test_column_has_one_value_a_row() -> None:
    column = Ragged.column([0.5, -1.0], dtype=np.float32)
    assert [column[i].tolist() for i in range(2)] == [[0.5], [-1.0]]
    assert column.values.dtype == np.float32


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_ranges_count_from_each_start(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = np.array([p[0] for p in pairs], dtype=np.int64), np.array([p[1] for p in pairs], dtype=np.int64)
    assert ranges(starts, lengths).tolist() == [i for start, length in pairs for i in range(start, start + length)]
    assert offsets_of(lengths).tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]


def test_tokens_of_a_feature_are_those_of_all_its_sequences() -> None:
    choices, sentence = SHAPES["choices"].features, SHAPES["sentence"].features
    numbers = np.diff(choices.sequences)
    assert set(numbers) == {2, 3, 4, 5}, "the number of choices differs"
    expected = [sum(len(choices.input_ids[s]) for s in range(a, b)) for a, b in pairwise(choices.offsets)]
    assert choices.num_tokens.tolist() == expected
    assert sentence.num_tokens.tolist() == sentence.input_ids.lengths.tolist()
    assert sentence.offsets.tolist() == list(range(len(sentence) + 1))


def test_fingerprint_sees_every_part() -> None:
    features = SHAPES["words"].features

    def changed(ragged: Ragged) -> Ragged:
        values = ragged.values.copy()
        values[3] += 1
        return dataclasses.replace(ragged, values=values)

    moved = features.input_ids.offsets.copy()
    moved[1] += 1  # the same tokens, another place at which a sequence begins
    variants = [
        features,
        dataclasses.replace(features, input_ids=changed(features.input_ids)),
        dataclasses.replace(features, input_ids=dataclasses.replace(features.input_ids, offsets=moved)),
        dataclasses.replace(features, token_type_ids=changed(features.token_type_ids)),
        dataclasses.replace(features, rows=changed(features.rows)),
        dataclasses.replace(features, rows=None),
        dataclasses.replace(features, labels={"labels": changed(features.labels["labels"])}),
        dataclasses.replace(features, labels={"others": features.labels["labels"]}),
        dataclasses.replace(features, labels={}),
        dataclasses.replace(features, extras={"labels": features.labels["labels"]}),
        dataclasses.replace(features, class_weights={"labels": np.ones(3)}),
        dataclasses.replace(features, examples=features.examples[::-1]),
        dataclasses.replace(features, sequences=np.arange(len(features) + 1)),
    ]
    assert len({variant.fingerprint() for variant in variants}) == len(variants)


def test_features_without_a_target_are_left_out() -> None:
    features = Features(
        input_ids=Ragged.of([[2, 5, 3], [2, 6, 3], [2, 7, 8, 3], [2, 9, 3]]),
        token_type_ids=Ragged.of([[0] * 3, [0] * 3, [0] * 4, [0] * 3]),
        examples=np.array([0, 1, 2]),
        sequences=np.array([0, 2, 3, 4]),  # the first feature has two
        rows=Ragged.of([[0], [0], [1], [0]]),
        labels={"start": Ragged.column([IGNORED, 1, IGNORED]), "end": Ragged.column([2, 1, IGNORED])},
        extras={"context": Ragged.of([[1], [2, 2], [3]])},
    )
    found = features.with_targets()
    assert (found.examples.tolist(), found.offsets.tolist()) == ([0, 1], [0, 2, 3])
    assert found.input_ids.values.tolist() == [2, 5, 3, 2, 6, 3, 2, 7, 8, 3]
    assert (found.labels["end"].values.tolist(), found.extras["context"].values.tolist()) == ([2, 1], [1, 2, 2])
    only = features.take(np.array([2, 0]))
    assert (only.examples.tolist(), only.offsets.tolist(), only.rows and only.rows.values.tolist()) == (
        [2, 0],
        [0, 1, 3],
        [0, 0, 0],
    )
    scores = replace(features, labels={"labels": Ragged.column([-100.0, 1.0, 2.0], dtype=np.float32)})
    assert scores.with_targets() is scores

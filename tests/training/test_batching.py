"""Which features a step has, how they are split, and what a packed batch holds: against naive code and by property."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shapes import SHAPES, sentences

from bertkit.features import Features, Ragged
from bertkit.training.batching import Sampler, collate, evaluation_batches, split_by_feature, split_by_tokens, training_batches

# --- which features ----------------------------------------------------------------------------------------------------


@given(num_features=st.integers(1, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_sampler_has_each_feature_once_an_epoch(num_features: int, batch_size: int, seed: int) -> None:
    sampler = Sampler(num_features, batch_size, seed)
    for epoch in range(3):
        steps = [sampler.features_at(epoch * sampler.steps_per_epoch + i) for i in range(sampler.steps_per_epoch)]
        assert sorted(np.concatenate(steps)) == list(range(num_features))
        assert [len(step) for step in steps[:-1]] == [batch_size] * (len(steps) - 1)
        assert 1 <= len(steps[-1]) <= batch_size


def test_sampler_is_a_pure_function_of_seed_and_step() -> None:
    forwards = [Sampler(100, 8, 1).features_at(step).tolist() for step in range(12)]
    sampler = Sampler(100, 8, 1)
    np.random.seed(5)
    assert [sampler.features_at(step).tolist() for step in reversed(range(12))] == forwards[::-1]
    orders = {tuple(Sampler(50, 50, seed).features_at(epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders - {tuple(range(50))}) == 25  # (seed 1, epoch 2) is not (2, 1)


def test_sampler_makes_every_place_as_likely() -> None:
    first = np.bincount([Sampler(10, 1, seed).features_at(0)[0] for seed in range(2000)], minlength=10)
    assert 140 < first.min() <= first.max() < 260  # 200 expected, standard deviation 13


# --- the split -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 600), min_size=1, max_size=80), st.integers(1, 2000), st.integers(1, 5))
def test_split_has_each_feature_once_within_the_limit(lengths: list[int], limit: int, multiple_of: int) -> None:
    num_tokens = np.array(lengths)
    groups = split_by_tokens(num_tokens, limit, multiple_of)
    assert len(groups) % multiple_of == 0
    assert sum(not len(group) for group in groups) < multiple_of, "no more empty groups than the number needs"
    in_order = np.concatenate(groups)
    assert sorted(in_order) == list(range(len(lengths)))
    assert (np.diff(num_tokens[in_order]) <= 0).all(), "the longest first: a group's lengths are near each other"
    assert all(num_tokens[group].sum() <= limit or len(group) == 1 for group in groups)


@given(st.lists(st.integers(10, 40), min_size=20, max_size=80), st.integers(100, 400))
def test_split_is_about_balanced_and_makes_few_groups(lengths: list[int], limit: int) -> None:
    num_tokens = np.array(lengths)
    sizes = [int(num_tokens[group].sum()) for group in split_by_tokens(num_tokens, limit)]
    assert max(sizes) - min(sizes) <= 2 * max(lengths)
    assert len(sizes) <= 2 * -(-sum(lengths) // limit)


@pytest.mark.parametrize(
    ("lengths", "limit", "multiple_of", "expected"),
    [
        ([3, 10, 5, 2, 10, 10], 20, 1, [[1, 4], [5, 2, 0, 3]]),
        ([3, 10, 5, 2, 10, 10], 1000, 1, [[1, 4, 5, 2, 0, 3]]),
        ([7], 100, 3, [[0], [], []]),
        ([9, 9], 2, 1, [[0], [1]]),
    ],
)
def test_split_by_hand(lengths: list[int], limit: int, multiple_of: int, expected: list[list[int]]) -> None:
    assert [group.tolist() for group in split_by_tokens(np.array(lengths), limit, multiple_of)] == expected


# --- packed batches ----------------------------------------------------------------------------------------------------


def naive(features: Features, indices: list[int]) -> dict[str, list]:
    """The same batch by plain loops over lists."""
    batch: dict[str, list] = {name: [] for name in ("input_ids", "token_type_ids", "position_ids", "rows", "features")}
    batch |= {"cu_seqlens": [0], "cu_rows": [0], "cu_features": [0]}
    for index in indices:
        for sequence in range(features.offsets[index], features.offsets[index + 1]):
            tokens = features.input_ids[sequence].tolist()
            rows = features.rows[sequence].tolist() if features.rows is not None else list(range(len(tokens)))
            batch["rows"] += [len(batch["input_ids"]) + row for row in rows]
            batch["input_ids"] += tokens
            batch["token_type_ids"] += features.token_type_ids[sequence].tolist()
            batch["position_ids"] += list(range(len(tokens)))
            batch["cu_seqlens"].append(len(batch["input_ids"]))
            batch["cu_rows"].append(len(batch["rows"]))
        batch["features"].append(index)
        batch["cu_features"].append(len(batch["cu_seqlens"]) - 1)
    return batch


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("indices", [[0], [4, 1, 9], list(range(25))])
def test_collate_equals_a_naive_one(name: str, indices: list[int]) -> None:
    features = SHAPES[name].features
    batch, expected = collate(features, np.array(indices)), naive(features, indices)
    if features.rows is None:
        assert batch.rows is None
        expected.pop("rows")
    for part, values in expected.items():
        found = getattr(batch, part)
        assert (found.dtype, found.tolist()) == (torch.int64, values), part
    assert batch.max_seqlen == max(np.diff(expected["cu_seqlens"]))
    assert batch.max_rows == max(np.diff(expected["cu_rows"]))
    for term, targets in features.labels.items():
        wanted = [value for index in indices for value in targets[index].tolist()]
        assert batch.labels[term].tolist() == wanted
        assert batch.labels[term].dtype == (torch.float32 if name == "regression" else torch.int64)
        assert batch.weights[term] == sum(value != -100 for value in wanted)


def test_each_term_counts_its_own_targets() -> None:
    features = SHAPES["pretraining"].features
    masked = features.labels["mlm"]
    assert collate(features, np.arange(25)).weights == {"nsp": 25, "mlm": len(masked.values)}
    assert 0 in masked.lengths, "a sequence without a masked position is among them"
    empty = collate(features, np.arange(0))
    assert empty.weights == {"mlm": 0.0, "nsp": 0.0}
    assert len(empty.input_ids) > 0
    scores = {"labels": Ragged.column([-100.0, 1.0, 2.0], dtype=np.float32)}  # a score of -100 is a score
    assert collate(dataclasses.replace(sentences(3, regression=True), labels=scores), np.arange(3)).weights == {"labels": 3.0}


# --- shared by processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("name", ["sentence", "choices"])
def test_processes_share_a_step_without_overlap(name: str, world_size: int) -> None:
    features, sampler = SHAPES[name].features, Sampler(25, 8, 42)
    empty = 0
    for step in range(2 * sampler.steps_per_epoch):
        shares = [training_batches(features, sampler, 40, rank=rank, world_size=world_size)(step) for rank in range(world_size)]
        assert len({len(batches) for batches in shares}) == 1, "as many micro-batches on each, or they would wait for ever"
        assert shares[0]
        counting = [batch for batches in shares for batch in batches if batch.weights["labels"]]
        empty += sum(not batch.weights["labels"] for batches in shares for batch in batches)
        seen = [index for batch in counting for index in batch.features.tolist()]
        assert sorted(seen) == sorted(sampler.features_at(step))
        assert sum(batch.weights["labels"] for batch in counting) == len(seen)
    assert (empty > 0) == (world_size > 1), "the last step of an epoch has one feature: some process has nothing"


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_has_each_feature_once(world_size: int) -> None:
    features = SHAPES["choices"].features
    shares = [list(evaluation_batches(features, 60, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert sorted(index for batches in shares for batch in batches for index in batch.features.tolist()) == list(range(25))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    none = np.arange(0)
    assert (
        list(evaluation_batches(Features(features.input_ids.take(none), features.token_type_ids.take(none), none), 100)) == []
    )


# --- logits back to their features -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "sequences", "features", "logits", "expected"),
    [
        ([2, 1, 3], [1, 1, 1], [7, 3, 5], [0, 1, 2, 3, 4, 5], {7: [0, 1], 3: [2], 5: [3, 4, 5]}),
        ([2, 1, 3], [1, 1, 1], [7, 3, 5], [10, 11, 12], {7: [10], 3: [11], 5: [12]}),  # one row a sequence
        ([1, 1, 1, 1, 1], [3, 2], [4, 0], [1, 2, 3, 4, 5], {4: [1, 2, 3], 0: [4, 5]}),
        ([1, 1, 1, 1, 1], [3, 2], [4, 0], [1, 2], {4: [1], 0: [2]}),  # one row a feature
        ([0, 2, 1], [1, 1, 1], [0, 1, 2], [1, 2, 3], {0: [], 1: [1, 2], 2: [3]}),  # as many rows as sequences, by chance
        ([2, 3], [1, 1], [0, 1], [1, 2, 3, 4], None),  # neither: a bug
    ],
)
def test_logits_find_their_feature(
    rows: list[int], sequences: list[int], features: list[int], logits: list[float], expected: dict[int, list[float]] | None
) -> None:
    """rows: that the head reads, by sequence. sequences: by feature."""
    count = len(rows)
    tokens, types, chosen = Ragged.of([[1] * 5] * count), Ragged.of([[0] * 5] * count), Ragged.of([range(n) for n in rows])
    batch = dataclasses.replace(
        collate(Features(tokens, types, np.arange(count), rows=chosen), np.arange(count)),
        features=torch.tensor(features),
        sequence_counts=np.array(sequences),
    )
    if expected is None:
        with pytest.raises(AssertionError):
            split_by_feature(batch, np.array(logits))
    else:
        assert {index: found.tolist() for index, found in split_by_feature(batch, np.array(logits)).items()} == expected

"""Which features a step has, how it is cut, and what a packed batch holds: against naive code and by property."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shapes import SHAPES, sentences

from bertkit.features import Features, Ragged
from bertkit.model.batch import Batch
from bertkit.training.batching import Sampler, collate, evaluation_batches, split_by_feature, split_by_tokens, training_batches

# --- which features ----------------------------------------------------------------------------------------------------


@given(num_features=st.integers(1, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_each_feature_once_an_epoch(num_features: int, batch_size: int, seed: int) -> None:
    sampler = Sampler(num_features, batch_size, seed)
    for epoch in range(3):
        steps = [sampler.features_at(epoch * sampler.steps_per_epoch + i) for i in range(sampler.steps_per_epoch)]
        assert sorted(np.concatenate(steps)) == list(range(num_features))
        assert [len(step) for step in steps[:-1]] == [batch_size] * (len(steps) - 1)
        assert 1 <= len(steps[-1]) <= batch_size


def test_features_are_a_pure_function_of_seed_and_step() -> None:
    steps = range(12)
    forwards = [Sampler(100, 8, 1).features_at(step).tolist() for step in steps]
    sampler = Sampler(100, 8, 1)
    np.random.seed(5)
    assert [sampler.features_at(step).tolist() for step in reversed(steps)] == forwards[::-1]


def test_epochs_and_seeds_have_their_own_order() -> None:
    def epoch(seed: int, number: int) -> tuple[int, ...]:
        return tuple(Sampler(50, 50, seed).features_at(number).tolist())

    orders = {epoch(seed, number) for seed in range(5) for number in range(5)}  # (1, 2) is not (2, 1)
    assert len(orders) == 25
    assert tuple(range(50)) not in orders


def test_every_place_is_about_as_likely() -> None:
    first = np.bincount([Sampler(10, 1, seed).features_at(0)[0] for seed in range(2000)], minlength=10)
    assert first.min() > 140  # 200 expected, standard deviation 13
    assert first.max() < 260


# --- the split -----------------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 2000), st.integers(1, 5))
def test_split_has_each_feature_once_within_the_limit(lengths: list[int], limit: int, multiple_of: int) -> None:
    num_tokens = np.array(lengths)
    groups = split_by_tokens(num_tokens, limit, multiple_of)
    assert len(groups) % multiple_of == 0
    assert sorted(np.concatenate(groups)) == list(range(len(lengths)))
    assert all(num_tokens[group].sum() <= limit or len(group) == 1 for group in groups)
    assert sum(not len(group) for group in groups) < multiple_of, "no more empty groups than the number needs"
    in_order = num_tokens[np.concatenate(groups)]
    assert (np.diff(in_order) <= 0).all(), "the longest first: a group's lengths are near each other"


@given(st.lists(st.integers(10, 40), min_size=20, max_size=80), st.integers(100, 400))
def test_split_is_about_balanced_and_makes_few_groups(lengths: list[int], limit: int) -> None:
    num_tokens = np.array(lengths)
    sizes = [int(num_tokens[group].sum()) for group in split_by_tokens(num_tokens, limit)]
    assert max(sizes) - min(sizes) <= 2 * max(lengths)
    assert len(sizes) <= 2 * -(-sum(lengths) // limit)


def test_split_by_hand() -> None:
    lengths = np.array([3, 10, 5, 2, 10, 10])
    assert [group.tolist() for group in split_by_tokens(lengths, 20)] == [[1, 4], [5, 2, 0, 3]]
    assert [group.tolist() for group in split_by_tokens(lengths, 1000)] == [[1, 4, 5, 2, 0, 3]]
    assert [group.tolist() for group in split_by_tokens(np.array([7]), 100, multiple_of=3)] == [[0], [], []]
    assert [group.tolist() for group in split_by_tokens(np.array([9, 9]), 2)] == [[0], [1]]


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
        assert found.dtype == torch.int64, part
        assert found.tolist() == values, part
    assert batch.max_seqlen == max(np.diff(expected["cu_seqlens"]))
    assert batch.max_rows == max(np.diff(expected["cu_rows"]))
    for term, targets in features.labels.items():
        wanted = [value for index in indices for value in targets[index].tolist()]
        assert batch.labels[term].tolist() == wanted
        assert batch.labels[term].dtype == (torch.float32 if name == "regression" else torch.int64)
        assert batch.weights[term] == sum(value != -100 for value in wanted)


def test_two_terms_count_their_own_targets() -> None:
    features = SHAPES["pretraining"].features
    weights = collate(features, np.arange(25)).weights
    assert weights["nsp"] == 25
    assert weights["mlm"] == len(features.labels["mlm"].values) != 25
    assert 0 in features.labels["mlm"].lengths, "a sequence without a masked position is among them"


def test_a_score_of_minus_100_is_a_score() -> None:
    features = sentences(3, regression=True)
    features = dataclasses.replace(features, labels={"labels": Ragged.column([-100.0, 1.0, 2.0], dtype=np.float32)})
    assert collate(features, np.arange(3)).weights == {"labels": 3.0}


def test_an_empty_batch_weighs_nothing() -> None:
    batch = collate(SHAPES["pretraining"].features, np.array([3]), empty=True)
    assert batch.weights == {"mlm": 0.0, "nsp": 0.0}
    assert len(batch.input_ids) > 0


# --- dealt to processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("name", ["sentence", "choices"])
def test_processes_share_a_step_without_overlap(name: str, world_size: int) -> None:
    features, sampler = SHAPES[name].features, Sampler(25, 8, 42)
    empty = 0
    for step in range(2 * sampler.steps_per_epoch):
        dealt = [training_batches(features, sampler, 40, rank=rank, world_size=world_size)(step) for rank in range(world_size)]
        assert len({len(batches) for batches in dealt}) == 1, "as many micro-batches on each, or they would wait for ever"
        assert dealt[0]
        counting = [batch for batches in dealt for batch in batches if batch.weights["labels"]]
        empty += sum(not batch.weights["labels"] for batches in dealt for batch in batches)
        seen = [index for batch in counting for index in batch.features.tolist()]
        assert sorted(seen) == sorted(sampler.features_at(step))
        assert sum(batch.weights["labels"] for batch in counting) == len(seen)
    assert (empty > 0) == (world_size > 1), "the last step of an epoch has one feature: some process has nothing"


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_has_each_feature_once(world_size: int) -> None:
    features = SHAPES["choices"].features
    dealt = [list(evaluation_batches(features, 60, rank=rank, world_size=world_size)) for rank in range(world_size)]
    seen = [index for batches in dealt for batch in batches for index in batch.features.tolist()]
    assert sorted(seen) == list(range(25))
    assert max(len(batches) for batches in dealt) - min(len(batches) for batches in dealt) <= 1


def test_nothing_to_evaluate_is_no_batch() -> None:
    nothing = np.arange(0)
    features = sentences(2)
    empty = Features(features.input_ids.take(nothing), features.token_type_ids.take(nothing), nothing)
    assert list(evaluation_batches(empty, 100)) == []


# --- logits back to their features -------------------------------------------------------------------------------------


def batch_of(rows_per_sequence: list[int], features: list[int], sequences: list[int] | None = None) -> Batch:
    length = 5
    rows = [[*range(count)] for count in rows_per_sequence]
    count = len(rows_per_sequence)
    packed = collate(
        Features(Ragged.of([[1] * length] * count), Ragged.of([[0] * length] * count), np.arange(count), rows=Ragged.of(rows)),
        np.arange(count),
    )
    cu_features = torch.tensor([0, *np.cumsum(sequences or [1] * count)])
    return dataclasses.replace(packed, features=torch.tensor(features), cu_features=cu_features)


def split(batch: Batch, logits: list[float]) -> dict[int, list[float]]:
    return {feature: rows.tolist() for feature, rows in split_by_feature(batch, np.array(logits)).items()}


def test_logits_of_rows_and_of_sequences_find_their_feature() -> None:
    batch = batch_of([2, 1, 3], features=[7, 3, 5])
    assert split(batch, [0, 1, 2, 3, 4, 5]) == {7: [0, 1], 3: [2], 5: [3, 4, 5]}
    assert split(batch, [10, 11, 12]) == {7: [10], 3: [11], 5: [12]}
    ragged_choices = batch_of([1, 1, 1, 1, 1], features=[4, 0], sequences=[3, 2])
    assert split(ragged_choices, [1, 2, 3, 4, 5]) == {4: [1, 2, 3], 0: [4, 5]}
    assert split(ragged_choices, [1, 2]) == {4: [1], 0: [2]}, "one row a feature"


def test_as_many_rows_as_sequences_by_chance_are_still_rows() -> None:
    batch = batch_of([0, 2, 1], features=[0, 1, 2])  # no row in the first sequence
    assert split(batch, [1, 2, 3]) == {0: [], 1: [1, 2], 2: [3]}


def test_logits_that_fit_neither_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="4 logits for 5 rows of 2 sequences"):
        split(batch_of([2, 3], features=[0, 1]), [1, 2, 3, 4])

"""Attention over packed sequences, against a loop over sequences and heads."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertkit.model import attention
from bertkit.model.attention import MULTIPLE, Grouped, Layout, Pattern, group, round_up_shape
from bertkit.model.dropout import Dropout, DropoutStream

HEADS, SIZE = 3, 5


def bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.long)


def layout(lengths: list[int], dtype: torch.dtype = torch.float64, groups: list[int] | None = None) -> Grouped:
    return Grouped.of(bounds(lengths), max(lengths), sum(lengths), dtype, groups or [0, len(lengths)])


def attend(query: Tensor, key: Tensor, value: Tensor, *, queries: Grouped, keys: Grouped, dropout: Dropout) -> Tensor:
    return attention.attend(query, key, value, Pattern.of(queries, keys, None, query.dtype), dropout)


def random_heads(seed: int, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, HEADS, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def one_by_one(query: Tensor, key: Tensor, value: Tensor, query_lengths: list[int], key_lengths: list[int]) -> Tensor:
    """Softmax attention as the paper writes it, in float64: one sequence and one head at a time."""
    query, key, value = query.double(), key.double(), value.double()
    out, first_query, first_key = [], 0, 0
    for rows, length in zip(query_lengths, key_lengths, strict=True):
        heads = []
        for head in range(HEADS):
            q = query[first_query : first_query + rows, head]
            k, v = (x[first_key : first_key + length, head] for x in (key, value))
            scores = q @ k.T / math.sqrt(SIZE)
            weights = scores.exp() / scores.exp().sum(1, keepdim=True)
            heads.append(weights @ v)
        out.append(torch.cat(heads, 1))
        first_query, first_key = first_query + rows, first_key + length
    return torch.cat(out)


def no_dropout() -> Dropout:
    return Dropout(0.0, DropoutStream())


def hardly_any_dropout() -> Dropout:
    """A probability so small that the path with dropout runs and drops nothing."""
    return Dropout(1e-9, DropoutStream())


@pytest.mark.parametrize("dropout", [no_dropout(), hardly_any_dropout()], ids=["plain", "with dropout"])
@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5).flatmap(
        lambda keys: st.tuples(st.just(keys), st.tuples(*(st.integers(0, n) for n in keys)))
    )
)
def test_any_lengths(dropout: Dropout, lengths: tuple[list[int], tuple[int, ...]]) -> None:
    """Also with fewer queries than keys, and none at all in some sequences."""
    assert dropout.active == (dropout.p > 0)
    keys, rows = lengths[0], list(lengths[1])
    if sum(rows) == 0:
        rows[0] = 1
    query, key, value = random_heads(0, sum(rows)), random_heads(1, sum(keys)), random_heads(2, sum(keys))
    wanted = one_by_one(query, key, value, rows, keys)
    count = len(keys)
    for groups in ([0, count], [*range(count + 1)], sorted({0, count // 2, count})):
        found = attend(
            query, key, value, queries=layout(rows, groups=groups), keys=layout(keys, groups=groups), dropout=dropout
        )
        assert found.shape == (sum(rows), HEADS * SIZE)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dropout", [no_dropout(), hardly_any_dropout()], ids=["plain", "with dropout"])
@pytest.mark.parametrize("rows", [[3, 1, 4], [1, 1, 1], [2, 0, 4], [4, 4, 4]])
def test_gradients(rows: list[int], dropout: Dropout) -> None:
    keys = [4, 4, 4] if rows == [4, 4, 4] else [3, 1, 4]
    inputs = [random_heads(seed, count).requires_grad_() for seed, count in enumerate([sum(rows), sum(keys), sum(keys)])]

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query, key, value, queries=layout(rows), keys=layout(keys), dropout=dropout)

    assert torch.autograd.gradcheck(run, inputs)


def test_gradients_of_groups_are_those_of_one() -> None:
    rows, keys = [2, 0, 4, 1], [3, 1, 4, 2]
    found = []
    for groups in ([0, 4], [0, 2, 3, 4]):
        inputs = [random_heads(seed, count).requires_grad_() for seed, count in enumerate([sum(rows), sum(keys), sum(keys)])]
        out = attend(
            *inputs, queries=layout(rows, groups=groups), keys=layout(keys, groups=groups), dropout=hardly_any_dropout()
        )
        found.append(torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape)).sum(), inputs))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 4000))
def test_groups_are_as_large_as_the_scores_allow(lengths: list[int], most: int) -> None:
    def scores(begin: int, end: int) -> int:
        return (end - begin) * HEADS * max(lengths[begin:end]) ** 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "SCORES_OF_A_GROUP", most)
        groups = group(bounds(lengths), HEADS)
    assert (groups[0], groups[-1]) == (0, len(lengths))
    assert groups == sorted(set(groups))
    for begin, end in itertools.pairwise(groups):
        assert scores(begin, end) <= most or end == begin + 1
        assert end == len(lengths) or scores(begin, end + 1) > most, "one more would have fitted"


def test_sequences_do_not_see_each_other() -> None:
    """Changing one sequence, or putting it among longer ones, leaves the others as they were."""
    lengths = [3, 6, 2]
    key, value = random_heads(1, 11), random_heads(2, 11)
    before = attend(key, key, value, queries=layout(lengths), keys=layout(lengths), dropout=no_dropout())
    changed_key, changed_value = key.clone(), value.clone()
    changed_key[3:9], changed_value[3:9] = 1e3, -1e6
    after = attend(changed_key, changed_key, changed_value, queries=layout(lengths), keys=layout(lengths), dropout=no_dropout())
    assert torch.equal(after[:3], before[:3])
    assert torch.equal(after[9:], before[9:])
    assert not torch.isclose(after[3:9], before[3:9]).any()


@pytest.mark.parametrize("dropout", [no_dropout(), hardly_any_dropout()], ids=["plain", "with dropout"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_other_dtypes(dtype: torch.dtype, dropout: Dropout) -> None:
    lengths = [7, 2, 30]
    query, key, value = (random_heads(seed, 39, dtype) for seed in range(3))
    found = attend(query, key, value, queries=layout(lengths, dtype), keys=layout(lengths, dtype), dropout=dropout)
    assert found.dtype == dtype
    wanted = one_by_one(query, key, value, lengths, lengths)
    assert (found.double() - wanted).norm() <= {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype] * wanted.norm()


@pytest.mark.parametrize("dropout", [no_dropout(), hardly_any_dropout()], ids=["plain", "with dropout"])
def test_large_scores_do_not_overflow(dropout: Dropout) -> None:
    query = torch.full((4, HEADS, SIZE), 100.0)
    key = query * torch.tensor([1.0, -1.0, 0.5, 1.0])[:, None, None]
    value = random_heads(0, 4, torch.float32)
    plain = layout([3, 1], torch.float32)
    found = attend(query, key, value, queries=plain, keys=plain, dropout=dropout)
    torch.testing.assert_close(found[:3], value[0].flatten().expand(3, -1))  # all of the weight is on the first key
    torch.testing.assert_close(found[3], value[3].flatten())


def test_padding_rows_are_not_read_and_get_zeros() -> None:
    lengths, count = [3, 20, 9, 1], 6
    query, key, value = (random_heads(seed, 33) for seed in range(3))
    expected = attend(query, key, value, queries=layout(lengths), keys=layout(lengths), dropout=no_dropout())
    garbage = [torch.cat([x, torch.full((count, HEADS, SIZE), 1e6, dtype=x.dtype)]) for x in (query, key, value)]
    for groups in ([0, 4], [0, 1, 3, 4]):
        rows = Grouped.of(bounds(lengths), 20, 33, torch.float64, groups, padding_rows=count)
        inputs = [x.clone().requires_grad_() for x in garbage]
        found = attend(*inputs, queries=rows, keys=rows, dropout=no_dropout())
        torch.testing.assert_close(found[:33], expected)
        assert found.shape == (39, HEADS * SIZE)
        assert not found[33:].any()
        found.sum().backward()
        assert all(not x.grad[33:].any() for x in inputs)


def test_few_counts_are_round_and_little_is_added() -> None:
    counts = range(1, 20000)
    assert all(count <= round_up_shape(count) <= 1.04 * count for count in counts)
    assert len({round_up_shape(count) for count in counts if count >= 8192}) < 50
    assert [round_up_shape(count) for count in (0, 63, 64, 65, 129, 4097)] == [0, 63, 64, 66, 132, 4224]


def test_dropout_takes_weights_and_scales_the_rest() -> None:
    """Against the mask that the same seed gives: it is drawn for the weights (B, A, Tq, Tk), after the softmax."""
    lengths, p = [4, 2, 3], 0.4
    query, key, value = (random_heads(seed, 9) for seed in range(3))
    dropout = Dropout(p, DropoutStream())
    dropout.stream.seed(7)
    found = attend(query, key, value, queries=layout(lengths), keys=layout(lengths), dropout=dropout)
    dropout.stream.seed(7)
    mask = dropout.stream.keep_mask((3, HEADS, MULTIPLE, MULTIPLE), p, query)  # padded lengths are multiples
    wanted = []
    for at, (first, length) in enumerate(zip([0, 4, 6], lengths, strict=True)):
        q, k, v = (x[first : first + length].transpose(0, 1) for x in (query, key, value))  # (A, T, D)
        weights = (q @ k.transpose(1, 2) / math.sqrt(SIZE)).softmax(-1) * mask[at, :, :length, :length]
        wanted.append((weights @ v).transpose(0, 1).flatten(1))
    torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-12, atol=1e-12)
    plain = attend(query, key, value, queries=layout(lengths), keys=layout(lengths), dropout=no_dropout())
    assert not torch.isclose(found, plain).any(1).all()


def test_dropout_leaves_the_expectation() -> None:
    lengths = [6, 3]
    query, key, value = (random_heads(seed, 9) for seed in range(3))
    dropout = Dropout(0.1, DropoutStream())
    mean = torch.zeros(9, HEADS * SIZE, dtype=torch.float64)
    draws = 2000
    for _ in range(draws):
        mean += attend(query, key, value, queries=layout(lengths), keys=layout(lengths), dropout=dropout) / draws
    plain = attend(query, key, value, queries=layout(lengths), keys=layout(lengths), dropout=no_dropout())
    assert (mean - plain).norm() < 0.02 * plain.norm()


def test_off_in_eval() -> None:
    lengths = [5, 2]
    query, key, value = (random_heads(seed, 7) for seed in range(3))
    dropout = Dropout(0.5, DropoutStream()).eval()
    found = attend(query, key, value, queries=layout(lengths), keys=layout(lengths), dropout=dropout)
    plain = attend(query, key, value, queries=layout(lengths), keys=layout(lengths), dropout=no_dropout())
    assert torch.equal(found, plain)


@pytest.mark.parametrize("lengths", [[3, 1, 4], [4, 4], [1], [0, 2, 1]])
def test_layout_pads_and_unpads(lengths: list[int]) -> None:
    rows = random_heads(0, sum(lengths)).requires_grad_()
    longest = max(lengths)
    found = Layout.of(bounds(lengths), longest, len(rows), rows.dtype)
    grid = found.pad(rows)
    assert grid.shape == (len(lengths), HEADS, longest, SIZE)
    starts = bounds(lengths)
    for at, length in enumerate(lengths):
        assert torch.equal(grid[at, :, :length].transpose(0, 1), rows[starts[at] : starts[at + 1]])
        assert not grid[at, :, length:].any()
    if found.mask is not None:
        taken = torch.arange(longest) < torch.tensor(lengths)[:, None]
        assert torch.equal(found.mask[:, 0, 0] == 0, taken)
        assert torch.equal(found.mask[:, 0, 0] == -torch.inf, ~taken)
    assert torch.equal(found.unpad(grid), rows.flatten(1))
    assert torch.autograd.gradcheck(lambda x: found.unpad(found.pad(x).square()), [rows])


def test_equal_lengths_are_not_copied() -> None:
    """The packed rows are the grid then: no cells to find, no mask to add."""
    rows = random_heads(0, 24)
    (found,) = layout([8, 8, 8]).layouts
    assert found.slots is None
    assert found.mask is None
    assert found.pad(rows).data_ptr() == rows.data_ptr()
    assert layout([8, 7, 8]).layouts[0].slots is not None


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    lengths = [7, 2, 30]
    query, key, value = (random_heads(seed, 39, torch.float32) for seed in range(3))
    wanted = one_by_one(query, key, value, lengths, lengths)
    gpu = Grouped.of(bounds(lengths).cuda(), max(lengths), sum(lengths), torch.float32, [0, len(lengths)])
    for dropout in (no_dropout(), hardly_any_dropout()):
        found = attend(query.cuda(), key.cuda(), value.cuda(), queries=gpu, keys=gpu, dropout=dropout)
        assert (found.cpu().double() - wanted).norm() <= 1e-5 * wanted.norm()

"""How sequences are grouped and padded, and on which devices they need not be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.model import grouping
from bertkit.model.batch import pack
from bertkit.model.bert import BertModel, warm_up
from bertkit.model.config import BertConfig
from bertkit.model.grouping import Rounding, fill_lines, group_by_length, round_up_shape, share_lines
from bertkit.model.int8 import available, quantize
from bertkit.model.layout import Packing, has_packed_kernel, round_rows

HEADS, SIZE = 3, 5


FINE = Rounding(digits=6, length=8)
FINE_LENGTHS = {1: 1, **{size: -(-size // 8) * 8 for size in range(2, 513)}}


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(60, 130))
def test_sequences_that_share_a_line_fit_into_it(lengths: list[int], length: int) -> None:
    lines = fill_lines(np.array(lengths), length)
    filled = np.bincount(lines, lengths)
    assert filled.min() > 0
    assert filled.max() <= length
    assert (np.sort(filled)[:2].sum() > length) or len(filled) == 1, "no two lines would fit into one"


def test_a_sequence_goes_where_it_leaves_the_least_room() -> None:
    assert fill_lines(np.array([40, 50, 20, 10, 30]), 60).tolist() == [1, 0, 1, 0, 2]
    assert fill_lines(np.array([7]), 8).tolist() == [0]


def cost(begins: list[int], lengths: list[int]) -> int:
    """In scores: of grids of round length, and of starting them."""
    total = 0
    for begin, end in itertools.pairwise(begins):
        length = FINE_LENGTHS[max(lengths[begin:end])]
        count = max(fill_lines(np.array(lengths[begin:end]), length)) + 1
        total += count * HEADS * length**2 + grouping.SCORES_OF_A_START
    return total


@given(st.lists(st.integers(1, 200), min_size=1, max_size=30))
def test_groups_are_the_cheapest_that_four_parts_allow(lengths: list[int]) -> None:
    part = math.ceil(len(lengths) / 4)
    bounds = [*range(part, len(lengths), part)]
    several = [
        [0, *chosen, len(lengths)] for count in range(len(bounds) + 1) for chosen in itertools.combinations(bounds, count)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "SCORES_OF_A_GROUP", 2**40)
        begins, lines = share_lines(np.array(lengths), HEADS, FINE)
    assert begins in several
    assert cost(begins, lengths) == min(cost(each, lengths) for each in several)
    assert lines is not None
    assert len(lines) == len(lengths)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 40_000))
def test_groups_have_no_more_scores_than_allowed(lengths: list[int], most: int) -> None:
    def scores(begin: int, end: int) -> int:
        length = FINE_LENGTHS[max(lengths[begin:end])]
        return HEADS * length**2 * (max(fill_lines(np.array(lengths[begin:end]), length)) + 1)

    lengths.sort(reverse=True)
    with pytest.MonkeyPatch.context() as patch:
        joined, _ = share_lines(np.array(lengths), HEADS, FINE)
        patch.setattr(grouping, "SCORES_OF_A_GROUP", most)
        begins, lines = share_lines(np.array(lengths), HEADS, FINE)
    assert (begins[0], begins[-1]) == (0, len(lengths))
    assert begins == sorted(set(begins) | set(joined))
    assert lines is not None
    for begin, end in itertools.pairwise(begins):
        assert scores(begin, end) <= most or end == begin + 1
        assert end in joined or scores(begin, end + 1) > most, "one more would have fitted"
        assert np.bincount(lines[begin:end], lengths[begin:end]).max() <= FINE_LENGTHS[lengths[begin]]


@given(st.lists(st.integers(1, 600), min_size=1, max_size=40))
def test_groups_by_length_are_few_and_half_full(lengths: list[int]) -> None:
    lengths.sort(reverse=True)
    groups, _ = group_by_length(np.array(lengths))
    assert (groups[0], groups[-1]) == (0, len(lengths))
    assert groups == sorted(set(groups))
    assert len(groups) <= 11
    assert all(2 * lengths[end - 1] > lengths[begin] for begin, end in itertools.pairwise(groups))
    unsorted = [*lengths, lengths[0] * 2]
    assert group_by_length(np.array(unsorted)) == ([0, len(unsorted)], None)


def test_few_counts_are_round_and_little_is_added() -> None:
    counts = range(1, 20000)
    assert all(count <= round_up_shape(count) <= 1.04 * count for count in counts)
    assert len({round_up_shape(count) for count in counts if count >= 8192}) < 50
    assert [round_up_shape(count) for count in (0, 63, 64, 65, 129, 4097)] == [0, 63, 64, 66, 132, 4224]


@pytest.mark.parametrize("count", [1, 2])
def test_there_are_fewer_shapes_except_in_training(count: int) -> None:
    def rows(length: int) -> int:
        batch, _ = pack(torch.zeros((count, length), dtype=torch.long), None, None)
        return len(Packing(batch, HEADS, SIZE, torch.float32, causal=False).pad(torch.zeros(count * length, SIZE)))

    lengths = range(1, 513)
    assert [rows(length) for length in lengths] == [round_up_shape(count * length) for length in lengths]
    with torch.no_grad():
        in_use = [rows(length) for length in lengths]
    least = 1 if count == 1 else 64
    for length, own in zip(lengths, in_use, strict=True):
        assert own % least == 0
        assert count * length <= own < max(1.13 * count * length, count * length + least)
    assert len({*in_use}) < (60 if count == 1 else 20)


def test_training_in_bf16_has_fewer_numbers_of_tokens_and_rows() -> None:
    def shapes(length: int) -> tuple[int, int]:
        batch, _ = pack(torch.zeros((3, length), dtype=torch.long), None, None)
        packing = Packing(batch.reading(batch.cu_seqlens[:-1]), HEADS, SIZE, torch.bfloat16, causal=False)
        return len(packing.pad(torch.zeros(3 * length, SIZE))), len(packing.select(torch.zeros(2048, SIZE)))

    found = [shapes(length) for length in (1, 10, 11, 333, 341, 512)]
    assert found == [(tokens, 32) for tokens in (32, 32, 64, 1024, 1024, 1536)]
    with torch.no_grad():
        assert shapes(10) == (64, 8)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 8), (8, 8), (9, 16), (130, 144)])
def test_there_are_fewer_numbers_of_rows_except_in_training(count: int, expected: int) -> None:
    batch, _ = pack(torch.zeros((count, 3), dtype=torch.long), None, None)
    batch = batch.reading(batch.cu_seqlens[:-1])
    tokens = torch.zeros(64 * count, SIZE)

    def rows() -> int:
        return len(Packing(batch, HEADS, SIZE, torch.float32, causal=False).select(tokens))

    assert rows() == round_up_shape(count)
    assert len(round_rows(tokens[:count])) == round_up_shape(count, 4)
    with torch.no_grad():
        assert rows() == len(round_rows(tokens[:count])) == expected


@pytest.mark.parametrize("int8", [False, pytest.param(True, marks=pytest.mark.processor)])
def test_warming_up_computes_every_number_of_tokens_of_several_sequences(int8: bool) -> None:
    if int8 and not available():
        pytest.skip("this machine has no products of 8 bits")
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=7, max_position_embeddings=8, **sizes)).eval()
    if int8:
        quantize(model, torch.float32)
    computed: dict[int, set[tuple[int, int]]] = {0: set(), 1: set(), 2: set()}  # by layer: tokens, and rows
    for number, each in enumerate(model.encoder.layer):
        each.register_forward_pre_hook(lambda _, given, to=computed[number]: to.add((len(given[0]), len(given[1]))))
    warm_up(model, 1024)
    assert not computed[1], "one layer is like another"
    assert all(tokens == rows for tokens, rows in computed[0])
    assert {rows for _, rows in computed[2]} == {8, 16, 24, 32}
    rng = np.random.default_rng(0)
    for _ in range(300):
        lengths = rng.integers(1, rng.integers(2, 300), rng.integers(2, 40))
        mask = torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]
        batch, _ = pack(torch.zeros(mask.shape, dtype=torch.long), mask, None)
        with torch.no_grad():
            tokens = len(Packing(batch, HEADS, SIZE, torch.float32, causal=False).pad(torch.zeros(int(lengths.sum()), SIZE)))
        if lengths.sum() <= 1024:
            assert {tokens} <= {each for each, _ in computed[0]} == {each for each, _ in computed[2]}


@given(st.lists(st.integers(1, 300), min_size=2, max_size=100), st.sampled_from([torch.float32, torch.bfloat16]))
def test_attention_in_use_has_few_shapes(lengths: list[int], dtype: torch.dtype) -> None:
    lengths.sort(reverse=True)
    mask = torch.arange(lengths[0]) < torch.tensor(lengths)[:, None]
    batch, _ = pack(torch.zeros(mask.shape, dtype=torch.long), mask, None)
    with torch.no_grad():
        found = Packing(batch, HEADS, SIZE, dtype, causal=False).tokens.keys.layouts
    if len(found) == len(lengths):  # each is alone: another kernel takes them as they are
        assert [each.length for each in found] == lengths
        return
    for each in found:
        assert each.num_lines in {*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8)}
        if dtype == torch.bfloat16:
            assert each.length in {1, *range(32, 513, 32)}
        else:
            assert each.length in {1, *range(8, 129, 8), *range(144, 257, 16), *range(288, 513, 32)}


def test_no_rows_are_added_but_on_a_cpu() -> None:
    batch, _ = pack(torch.zeros((5, 13), dtype=torch.long), None, None)
    for device, rows in (("cpu", {round_up_shape(65, 4, 64)}), ("meta", {65})):
        with torch.no_grad():
            packing = Packing(batch.to(torch.device(device)), HEADS, SIZE, torch.float32, causal=False)
            assert {len(packing.pad(torch.zeros(65, SIZE, device=device)))} == rows
            assert len(round_rows(torch.zeros(65, SIZE, device=device))) == (
                65 if device == "meta" else round_up_shape(65, 4, 8)
            )


def test_which_kernel_a_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    gpu = torch.device("cuda", 0)
    found = {dtype: has_packed_kernel(gpu, dtype, 64) for dtype in (torch.bfloat16, torch.float16, torch.float32)}
    assert found == {torch.bfloat16: True, torch.float16: True, torch.float32: False}
    sizes = {size: has_packed_kernel(gpu, torch.bfloat16, size) for size in (26, 32, 192, 200)}
    assert sizes == {26: False, 32: True, 192: True, 200: False}
    assert not has_packed_kernel(torch.device("cpu"), torch.bfloat16, 64)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not has_packed_kernel(gpu, torch.bfloat16, 64)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert not has_packed_kernel(gpu, torch.bfloat16, 64), "a torch without it"

"""Attention over packed sequences, against a loop over sequences and heads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertkit.model import attention
from bertkit.model.batch import Batch, pack
from bertkit.model.bert import BertModel, initialize
from bertkit.model.config import BertConfig
from bertkit.model.dropout import Dropout, DropoutStream, set_dropout
from bertkit.model.grouping import MULTIPLE, Groups, fill_lines
from bertkit.model.layout import Bounds, Grouped, Packing, Pattern

HEADS, SIZE = 3, 5


def bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.long)


def layout(
    lengths: list[int],
    dtype: torch.dtype = torch.float64,
    groups: list[int] | None = None,
    lines: Sequence[int] | None = None,
) -> Grouped:
    """lines: of the sequences in their groups; without them, each sequence has its own."""
    shared = None if lines is None else np.array(lines)
    return Grouped.of(bounds(lengths), np.array(lengths), dtype, Groups(groups or [0, len(lengths)], shared))


def attend(query: Tensor, key: Tensor, value: Tensor, queries: Grouped, keys: Grouped, dropout: Dropout) -> Tensor:
    """With query, key and value (rows, A, D) of one tensor where every row is query and key."""
    pattern = Pattern.of(queries, keys, None, query.dtype)
    tokens = [query, key, value] if queries is keys else [key, value]
    packed = torch.cat([each.flatten(1) for each in tokens], 1)
    return attention.attend(packed, None if queries is keys else query.flatten(1), pattern, HEADS, dropout)


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


PLAIN = Dropout(0.0, DropoutStream())
HARDLY_ANY = Dropout(1e-9, DropoutStream())  # so small a probability that the path with dropout runs and drops nothing
either_kernel = pytest.mark.parametrize("dropout", [PLAIN, HARDLY_ANY], ids=["plain", "with dropout"])


@either_kernel
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
    apart: list[tuple[list[int], Any]] = [(groups, None) for groups in ([*range(count + 1)], sorted({0, count // 2, count}))]
    for groups, lines in (*apart, ([0, count], None), ([0, count], fill_lines(np.array(keys), 16))):
        for graded in (True, False):  # without a gradient there is a kernel for sequences that fill their cells
            with torch.set_grad_enabled(graded):
                of_rows, of_keys = (layout(each, groups=groups, lines=lines) for each in (rows, keys))
                found = attend(query, key, value, of_rows, of_keys, dropout)
            assert found.shape == (sum(rows), HEADS * SIZE)
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("lengths", "groups"), [([25], [0, 1]), ([16, 16, 16], [0, 3]), ([32, 16, 16, 8], [0, 1, 3, 4]), ([30, 9], [0, 1, 2])]
)
@pytest.mark.parametrize("first", [True, False])
def test_sequences_that_fill_their_cells(lengths: list[int], groups: list[int], first: bool) -> None:
    """Nothing is masked there, and nothing gathered. first: of each sequence the first row alone is a query."""
    query, key, value = (random_heads(seed, sum(lengths)) for seed in range(3))
    rows = [1] * len(lengths) if first else lengths
    query = query[bounds(lengths)[:-1]] if first else query
    with torch.inference_mode():
        keys = layout(lengths, groups=groups)
        queries = layout(rows, groups=groups) if first else keys
        found = attend(query, key, value, queries, keys, PLAIN)
        assert Pattern.of(queries, keys, None, torch.float64).is_full
        assert not any(each._head_layouts for each in (queries, keys))
    torch.testing.assert_close(found, one_by_one(query, key, value, rows, lengths), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dropout", [PLAIN, Dropout(0.4, DropoutStream())], ids=["plain", "with dropout"])
@pytest.mark.parametrize(("groups", "lines"), [([0, 3], None), ([0, 1, 3], None), ([0, 3], [0, 0, 1]), ([0, 1, 3], [0, 0, 0])])
@pytest.mark.parametrize(
    ("rows", "keys", "shared"),
    [
        ([2, 1, 3], [2, 1, 3], False),
        ([2, 1, 3], [2, 1, 3], True),
        ([1, 0, 2], [2, 1, 3], False),
        ([2, 2, 2], [2, 2, 2], False),
        ([2, 2, 2], [2, 2, 2], True),
    ],
)
def test_gradients(
    rows: list[int], keys: list[int], groups: list[int], lines: list[int] | None, dropout: Dropout, shared: bool
) -> None:
    """shared: one layout of queries and keys, whose query, key and value are one tensor."""
    inputs = [random_heads(seed, count).requires_grad_() for seed, count in enumerate([sum(rows), sum(keys), sum(keys)])]

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        dropout.stream.seed(7)  # the same bits in each call
        of_rows, of_keys = (layout(each, groups=groups, lines=lines) for each in (rows, keys))
        return attend(query, key, value, of_keys if shared else of_rows, of_keys, dropout)

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@either_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_other_dtypes(dtype: torch.dtype, dropout: Dropout) -> None:
    lengths = [7, 2, 30]
    query, key, value = (random_heads(seed, 39, dtype) for seed in range(3))
    found = attend(query, key, value, layout(lengths, dtype), layout(lengths, dtype), dropout)
    assert found.dtype == dtype
    wanted = one_by_one(query, key, value, lengths, lengths)
    assert (found.double() - wanted).norm() <= {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype] * wanted.norm()


@either_kernel
def test_large_scores_do_not_overflow(dropout: Dropout) -> None:
    query = torch.full((4, HEADS, SIZE), 100.0)
    key = query * torch.tensor([1.0, -1.0, 0.5, 1.0])[:, None, None]
    value = random_heads(0, 4, torch.float32)
    plain = layout([3, 1], torch.float32)
    found = attend(query, key, value, plain, plain, dropout)
    torch.testing.assert_close(found[:3], value[0].flatten().expand(3, -1))  # all of the weight is on the first key
    torch.testing.assert_close(found[3], value[3].flatten())


def test_padding_rows_are_not_read_and_get_zeros() -> None:
    lengths, count = [3, 20, 9, 1], 6
    query, key, value = (random_heads(seed, 33) for seed in range(3))
    expected = attend(query, key, value, layout(lengths), layout(lengths), PLAIN)
    garbage = [torch.cat([x, torch.full((count, HEADS, SIZE), 1e6, dtype=x.dtype)]) for x in (query, key, value)]
    for groups in ([0, 4], [0, 1, 3, 4]):
        rows = dataclasses.replace(layout(lengths, groups=groups), padding_rows=count)
        inputs = [x.clone().requires_grad_() for x in garbage]
        found = attend(*inputs, rows, rows, PLAIN)
        torch.testing.assert_close(found[:33], expected)
        assert found.shape == (39, HEADS * SIZE)
        assert not found[33:].any()
        found.sum().backward()
        assert all(not x.grad[33:].any() for x in inputs)


SHORT = [11, 2, 7, 30, 5, 1, 5, 9]


@pytest.mark.parametrize("scores", [2**21, 2000, 1000])  # one group, several
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("row_counts", [SHORT, [1] * 8, [2, 0, 3, 4, 0, 1, 5, 0], [0, 0, 0, 9, 0, 0, 0, 0]])
def test_sequences_that_share_lines_attend_to_themselves_alone(
    row_counts: list[int], causal: bool, training: bool, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against one sequence after the other: the output and, in training, the gradients. causal: to no later token."""
    monkeypatch.setattr("bertkit.model.grouping.SCORES_OF_A_GROUP", scores)
    for digits in ("FEW", "MANY"):
        monkeypatch.setattr(f"bertkit.model.grouping.{digits}", 1)  # the number of lines is rounded up, and some are empty
    offsets, every = bounds(SHORT), row_counts == SHORT
    read = torch.cat(
        [torch.arange(length)[-count:] + begin for begin, length, count in zip(offsets, SHORT, row_counts) if count]
    )
    mask = torch.arange(max(SHORT)) < torch.tensor(SHORT)[:, None]
    batch, _ = pack(torch.zeros(mask.shape, dtype=torch.long), mask, None)
    if not every:
        counts = np.array(row_counts)
        batch = dataclasses.replace(batch, rows=read, cu_rows=bounds(row_counts), row_counts=counts)
    tokens = [random_heads(seed, sum(SHORT)).requires_grad_() for seed in range(3)]
    with torch.set_grad_enabled(training):
        packing = Packing(batch, HEADS, SIZE, torch.float64, causal=causal)
        layouts = packing.tokens.keys.layouts
        assert (len(layouts) > 1) == (scores < 2**21)
        assert any(each.owners is not None and each.owners.max() >= each.num_lines for each in layouts), "some share a line"
        empty = [each.owners is not None and bool((each.owners < 0).all(1).any()) for each in layouts]
        assert any(empty) or scores < 2**21
        query, key, value = (packing.pad(each.flatten(1)) for each in tokens)
        if every:
            found = attention.attend(torch.cat([query, key, value], 1), None, packing.tokens, HEADS, PLAIN)
        else:
            found = attention.attend(torch.cat([key, value], 1), packing.select(query), packing.rows, HEADS, PLAIN)
        found = packing.unpad(found)
    wanted = []
    for begin, length, count in zip(offsets.tolist(), SHORT, row_counts, strict=False):
        q, k, v = (each[begin : begin + length].transpose(0, 1) for each in tokens)  # (A, T, D)
        products = q @ k.mT / math.sqrt(SIZE)
        products = products.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf) if causal else products
        wanted.append((products.softmax(-1) @ v).transpose(0, 1).flatten(1)[length - count :])
    expected = torch.cat(wanted)
    torch.testing.assert_close(found, expected.detach() if not training else expected, rtol=1e-10, atol=1e-12)
    if training:
        goal = torch.randn(found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        gradients = [torch.autograd.grad(each, tokens, goal) for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_dropout_takes_weights_and_scales_the_rest() -> None:
    """Against the mask that the same seed gives: it is drawn for the weights (B, A, Tq, Tk), after the softmax."""
    lengths, p = [4, 2, 3], 0.4
    query, key, value = (random_heads(seed, 9) for seed in range(3))
    dropout = Dropout(p, DropoutStream())
    dropout.stream.seed(7)
    found = attend(query, key, value, layout(lengths), layout(lengths), dropout)
    dropout.stream.seed(7)
    mask = dropout.stream.keep_mask((3, HEADS, MULTIPLE, MULTIPLE), p, query)  # padded lengths are multiples
    wanted = []
    for at, (first, length) in enumerate(zip([0, 4, 6], lengths, strict=True)):
        q, k, v = (x[first : first + length].transpose(0, 1) for x in (query, key, value))  # (A, T, D)
        weights = (q @ k.transpose(1, 2) / math.sqrt(SIZE)).softmax(-1) * mask[at, :, :length, :length]
        wanted.append((weights @ v).transpose(0, 1).flatten(1))
    torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-12, atol=1e-12)
    plain = attend(query, key, value, layout(lengths), layout(lengths), PLAIN)
    assert not torch.isclose(found, plain).any(1).all()


def test_no_rows_at_all_give_no_rows() -> None:
    keys, none = layout([3, 5]), layout([0, 0])
    tokens, queries = torch.randn(8, 2 * HEADS * SIZE).double(), torch.zeros(0, HEADS * SIZE).double()
    pattern = Pattern.of(none, keys, None, torch.float64)
    for kernel in (attention.attend, attention._attend_fused):
        assert kernel(tokens, queries, pattern, HEADS, PLAIN).shape == (0, HEADS * SIZE)


def test_what_is_not_a_number_stays_in_its_line() -> None:
    lengths = [8, 3, 5]
    heads = [random_heads(seed, 16) for seed in range(3)]
    heads[0][:8], heads[2][11:] = torch.nan, torch.inf
    together = layout(lengths)
    found = attend(*heads, together, together, HARDLY_ANY)
    assert found[:8].isnan().all()
    alone = layout([3])
    wanted = attend(*(each[8:11] for each in heads), alone, alone, HARDLY_ANY)
    torch.testing.assert_close(found[8:11], wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_are_the_same_whatever_their_neighbours(dtype: torch.dtype) -> None:
    """Of two sequences, alone or beside a shorter one, for which there is a mask: of the tokens' dtype, or float32 as beside
    int8 matrices."""
    heads = [5 * random_heads(seed, 19, torch.bfloat16) for seed in range(3)]
    two, three = layout([8, 8], dtype), layout([8, 8, 3], dtype)
    found = attend(*heads, three, three, HARDLY_ANY)[:16]
    assert torch.equal(found, attend(*(each[:16] for each in heads), two, two, HARDLY_ANY))


# --- what a GPU computes by ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [[0, 3], [0, 1, 3]])
def test_fused_dropout_takes_weights_and_scales_the_rest(groups: list[int]) -> None:
    """Values that tell keys apart show each weight: it is 0, or what it is without dropout over 1 - p."""
    lengths, p = [6, 4, 2], 0.4
    query, key = (random_heads(seed, 12) for seed in range(2))
    keys = layout(lengths, groups=groups)
    pattern = Pattern.of(keys, keys, None, torch.float64)
    size = 8  # as many keys at most have a value of their own
    value = torch.cat([torch.eye(size)[:length] for length in lengths]).double()[:, None].expand(-1, HEADS, -1)
    padded = [F.pad(each, (0, size - SIZE)) * (size / SIZE) ** 0.25 for each in (query, key)]  # the same scores
    tokens = torch.cat([each.flatten(1) for each in (*padded, value)], 1)

    def weights(dropout: Dropout) -> Tensor:
        return attention._attend_fused(tokens, None, pattern, HEADS, dropout).view(12, HEADS, size)

    plain = weights(PLAIN)
    wanted = one_by_one(query, key, value, lengths, lengths).view(12, HEADS, size)
    torch.testing.assert_close(plain, wanted)
    torch.manual_seed(0)
    dropped = torch.stack([weights(Dropout(p, DropoutStream())) for _ in range(400)])
    there = plain > 0
    kept = (dropped != 0)[:, there]
    torch.testing.assert_close(dropped[:, there][kept], (plain / (1 - p)).expand_as(dropped)[:, there][kept])
    assert not dropped[:, ~there].any()
    count = kept.numel()
    assert abs(kept.double().mean().item() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / count)
    assert not torch.equal(dropped[0], dropped[1])


def test_fused_dropout_seeds_the_generator_that_the_kernel_draws_from(monkeypatch: pytest.MonkeyPatch) -> None:
    dropout = Dropout(0.4, DropoutStream())
    monkeypatch.setattr(DropoutStream, "generator", lambda self, device: torch.manual_seed(int(self._sequence.entropy[0])))
    keys = layout([4, 2])
    tokens = torch.cat([random_heads(seed, 6).flatten(1) for seed in range(3)], 1)
    pattern = Pattern.of(keys, keys, None, torch.float64)

    def run(seed: int) -> Tensor:
        dropout.stream.seed(seed)
        return attention._attend_fused(tokens, None, pattern, HEADS, dropout)

    first = run(1)
    assert not torch.equal(run(2), first)
    assert torch.equal(run(1), first)


def packed_by_loop(query: Tensor, key: Tensor, value: Tensor, cu_q: Tensor, cu_k: Tensor, *longest: int) -> Tensor:
    """What torch's kernel for packed sequences is documented to compute."""
    assert (cu_q.dtype, cu_k.dtype) == (torch.int32, torch.int32)
    rows, lengths = (cu.diff().tolist() for cu in (cu_q, cu_k))
    assert longest == (max(rows), max(lengths))
    assert (sum(rows), sum(lengths)) == (len(query), len(key))
    parts = zip(query.split(rows), key.split(lengths), value.split(lengths), strict=True)
    return torch.cat(
        [F.scaled_dot_product_attention(*(each.transpose(0, 1) for each in part)).transpose(0, 1) for part in parts]
    )


@pytest.fixture
def packed_kernel(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A kernel for packed sequences on the CPU; the list has the probability of dropout of each call."""
    calls: list[float] = []

    def kernel(*given: Any, is_causal: bool, return_debug_mask: bool) -> tuple[Tensor, None]:
        *packed, p = given
        assert (is_causal, return_debug_mask) == (False, False)
        calls.append(p)
        return packed_by_loop(*packed), None

    monkeypatch.setattr("torch.ops.aten._flash_attention_forward", kernel)
    monkeypatch.setattr("bertkit.model.layout.has_packed_kernel", lambda device, dtype, head_size: True)
    return calls


def batch_of(lengths: list[int], *, first: bool) -> Batch:
    """Sequences of random tokens. first: of each sequence the first row alone is read."""
    ids = torch.randint(5, 40, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    batch, _ = pack(ids, (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long(), None)
    if not first:
        return batch
    counts = np.ones(len(lengths), dtype=np.int64)
    return dataclasses.replace(batch, rows=batch.cu_seqlens[:-1], cu_rows=torch.arange(len(lengths) + 1), row_counts=counts)


@pytest.mark.parametrize("first", [True, False])
def test_packed_sequences_by_a_kernel_of_their_own(
    first: bool, packed_kernel: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """States and gradients are those of the kernel of products, in each layer; the last one may read few rows of a sequence."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(vocab_size=40, initializer_range=0.5, **sizes)
    model = BertModel(config, add_pooling_layer=False).double()
    initialize(model, config, seed=1)
    batch = batch_of([9, 5, 5, 1], first=first)

    def run(attention_dropout: float) -> list[Tensor]:
        set_dropout(model, 0.0, attention_dropout)
        states = model.encode(batch)
        return [states, *torch.autograd.grad(states.square().sum(), [*model.encoder.parameters()])]

    found = run(0.0), run(1e-9)
    assert packed_kernel == [0.0] * 3 + [1e-9] * 3
    monkeypatch.undo()
    wanted = run(1e-9)
    assert len(packed_kernel) == 6
    for one, other, expected in zip(*found, wanted, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(other, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dropout", [PLAIN, HARDLY_ANY])
@pytest.mark.parametrize("first", [True, False])
def test_torch_takes_what_its_packed_kernel_is_given(first: bool, dropout: Dropout, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors without values: the call has its arguments, the result its shape, and no value is read."""
    cu = torch.zeros(4, dtype=torch.int32, device="meta")
    keys = Grouped([39], [])
    rows = Grouped([3], []) if first else keys
    pattern = Pattern.of(rows, keys, None, torch.bfloat16, Bounds(cu, cu, 1 if first else 30, 30))
    tokens = torch.zeros(39, 3 * 64, dtype=torch.bfloat16, device="meta")
    joint, queries = (tokens[:, 64:], tokens[:3, :64]) if first else (tokens, None)
    seeded: list[torch.device] = []
    monkeypatch.setattr(DropoutStream, "generator", lambda self, device: seeded.append(device))
    joint.requires_grad_()
    found = attention.attend(joint, queries, pattern, 2, dropout)
    (gradient,) = torch.autograd.grad(found.sum(), joint)
    assert gradient.shape == joint.shape
    assert seeded == ([tokens.device] if dropout.active else []), "the kernel draws from torch's generator"
    assert (found.shape, found.dtype, found.device.type) == ((3 if first else 39, 64), torch.bfloat16, "meta")


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_what_dropout_kept(device: str) -> None:
    """Values that tell keys apart show which weights were kept; autograd then has the gradients of the same attention. On a GPU
    in bf16, by the kernel for packed sequences."""
    lengths, size, p = [30, 12, 7, 2], 32, 0.3
    on = torch.device(device, 0) if device == "cuda" else torch.device(device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float64
    dropout = Dropout(p, DropoutStream())
    packing = Packing(batch_of(lengths, first=False).to(on), 2, size, dtype, causal=False)
    assert (packing.tokens.bounds is not None) == (device == "cuda")
    keys = torch.cat([torch.eye(size)[:length] for length in lengths]).repeat(1, 2)  # as values, a one for each key
    tokens = torch.cat([torch.randn(51, 4 * size, generator=torch.Generator().manual_seed(0)), keys], 1).to(on, dtype)

    def run(given: Tensor) -> Tensor:
        dropout.stream.seed(1, 2)
        return packing.unpad(attention.attend(packing.pad(given), None, packing.tokens, 2, dropout))

    own = tokens.clone().requires_grad_()
    found = run(own)
    goal = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(on, dtype)
    (gradient,) = torch.autograd.grad(found, own, goal)

    exact = tokens.cpu().double().requires_grad_()
    wanted = []
    parts = zip(exact.split(lengths), found.detach().cpu().double().split(lengths), strict=True)
    for part, weights in parts:
        heads = part.unflatten(1, (3, 2, size)).permute(1, 2, 0, 3)  # query, key, value: (A, T, D)
        scores = (heads[0] @ heads[1].mT / math.sqrt(size)).softmax(-1)
        kept = weights.unflatten(1, (2, size))[..., : len(part)].transpose(0, 1) != 0
        wanted.append(((scores * kept / (1 - p)) @ heads[2]).transpose(0, 1).flatten(1))
    reference = torch.cat(wanted)
    tolerance = 2e-2 if device == "cuda" else 1e-4  # a CPU drops in steps of 2 ** -16
    expected = torch.autograd.grad(reference, exact, goal.cpu().double())[0]
    for one, other in ((found.detach(), reference.detach()), (gradient, expected)):
        assert (one.cpu().double() - other).norm() <= tolerance * other.norm()
    assert 0.6 < (found.detach()[:30] != 0).double().mean().item() / (30 / 32) < 0.8


GPU_KERNELS = {  # dtype, dropout, and whether torch has a kernel for packed sequences
    "packed": (torch.bfloat16, PLAIN, True),
    "packed, fp16": (torch.float16, PLAIN, True),
    "packed with dropout": (torch.bfloat16, HARDLY_ANY, True),
    "fused, bf16": (torch.bfloat16, PLAIN, False),
    "fused with dropout, bf16": (torch.bfloat16, HARDLY_ANY, False),
    "fused, fp32": (torch.float32, PLAIN, False),
    "fused with dropout, fp32": (torch.float32, HARDLY_ANY, False),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_dropout_is_repeated_by_its_seed_and_keeps_the_mean(dtype: torch.dtype) -> None:
    """By the packed kernel in bf16, by the fused one in float32. With values of 1, a query reads the sum of its weights."""
    dropout, cuda = Dropout(0.4, DropoutStream()), torch.device("cuda", 0)
    packing = Packing(batch_of([30, 12, 7, 2] * 8, first=False).to(cuda), 2, 32, dtype, causal=False)
    assert (packing.tokens.bounds is not None) == (dtype == torch.bfloat16)
    tokens = torch.randn(8 * 51, 3 * 64, dtype=dtype, device=cuda)
    tokens[:, 128:] = 1

    def run(*key: int) -> Tensor:
        dropout.stream.seed(*key)
        return attention.attend(tokens, None, packing.tokens, 2, dropout)

    first = run(1, 2)
    assert not torch.equal(run(1, 3), first)
    assert torch.equal(run(1, 2), first)
    means = torch.stack([run(1, number).float().mean() for number in range(100)])
    assert abs(means.mean().item() - 1) < 0.02
    assert means.std().item() > 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_KERNELS)
@pytest.mark.parametrize("first", [True, False])
def test_on_a_gpu(name: str, first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients, beside those of products in float64. first: of each sequence the first row alone is a query."""
    dtype, dropout, is_packed = GPU_KERNELS[name]
    if not is_packed:
        monkeypatch.setattr("bertkit.model.layout.has_packed_kernel", lambda device, dtype, head_size: False)
    batch = batch_of([30, 12, 7, 2], first=first)
    tokens = torch.randn(51, 3 * 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)

    def run(given: Batch, dtype: torch.dtype, dropout: Dropout) -> tuple[Tensor, Tensor]:
        packing = Packing(given, 2, 32, dtype, causal=False)
        assert (packing.rows.bounds is not None) == (given.input_ids.is_cuda and is_packed)
        own = tokens.to(given.input_ids.device, dtype).requires_grad_()
        joint = packing.pad(own)
        rows = packing.select(joint[:, :64]) if first else None
        found = packing.unpad(attention.attend(joint[:, 64:] if first else joint, rows, packing.rows, 2, dropout))
        return found.detach().cpu().double(), torch.autograd.grad(found.square().sum(), own)[0].cpu().double()

    wanted = run(batch, torch.float64, HARDLY_ANY)
    for one, other in zip(run(batch.to(torch.device("cuda", 0)), dtype, dropout), wanted, strict=True):
        assert (one - other).norm() <= {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 2e-2}[dtype] * other.norm()

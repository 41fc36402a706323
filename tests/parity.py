"""Shared by comparisons with transformers: both models with the same random weights, rows for each, and the assertions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertkit.features import Features, Ragged
from bertkit.model import heads
from bertkit.model.batch import Batch
from bertkit.model.bert import BertModel
from bertkit.model.config import ACTIVATION_NAMES, BertConfig
from bertkit.training.batching import collate

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TINY = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
TINY |= {"max_position_embeddings": 32}


def pair(
    architecture: str = "BertForSequenceClassification", *, seed: int, dtype: torch.dtype, **sizes: Any
) -> tuple[nn.Module, nn.Module]:
    """Our model and transformers', with one set of random weights; eager attention there, as ours is a fused kernel."""
    theirs_config = transformers.BertConfig(**sizes, attn_implementation="eager")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        theirs = getattr(transformers, architecture)(theirs_config)
        with torch.no_grad():
            # No bias, LayerNorm or padding row stays as it is made. With much larger weights attention saturates, and float32
            # loses more than 1e-5 of its gradients against float64, on either side.
            for parameter in theirs.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    ours = getattr(heads, architecture, BertModel)(BertConfig.from_dict(theirs_config.to_dict()))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.to(dtype).train(), theirs.to(dtype).train()


Rows = list[tuple[list[int], list[int]]]  # input_ids and token_type_ids of each sequence


def random_rows(rng: np.random.Generator, lengths: list[int], vocab_size: int, type_vocab_size: int) -> Rows:
    return [(rng.integers(vocab_size, size=n).tolist(), rng.integers(type_vocab_size, size=n).tolist()) for n in lengths]


def padded(rows: Rows) -> dict[str, Tensor]:
    """What transformers takes."""
    ids, types = ([torch.tensor(row[part]) for row in rows] for part in (0, 1))
    mask = [torch.ones(len(row), dtype=torch.long) for row in ids]
    names = ("input_ids", "token_type_ids", "attention_mask")
    return {name: pad_sequence(part, batch_first=True) for name, part in zip(names, (ids, types, mask), strict=True)}


def packed(rows: Rows, labels: dict[str, Ragged], *, read: Ragged | None, sequences: list[int] | None = None) -> Batch:
    """What we take, through the store and collate that training uses."""
    count = len(rows) if sequences is None else len(sequences) - 1
    features = Features(
        input_ids=Ragged.of([ids for ids, _ in rows]),
        token_type_ids=Ragged.of([types for _, types in rows], dtype=np.uint8),
        examples=np.arange(count),
        sequences=None if sequences is None else np.array(sequences),
        rows=read,
        labels=labels,
    )
    return collate(features, np.arange(count))


def packed_at_first(rows: Rows, labels: Tensor) -> Batch:
    targets = Ragged.of(labels.view(len(rows), -1).tolist(), dtype=labels.numpy().dtype.type)
    return packed(rows, {"labels": targets}, read=Ragged.column(np.zeros(len(rows))))


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not [name for name, gradient in found.items() if gradient is None]
    return found


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float, *, scale: Tensor | None = None, what: str = "") -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    scale = theirs.norm() if scale is None else scale
    difference = (ours - theirs).norm()
    assert difference <= tolerance * (scale if scale > 0 else 1), f"{what}: {difference / scale:.2e}"


def assert_same_gradients(
    ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float, *, zero: tuple[str, ...] = (), least: float = 0
) -> None:
    """Each tensor relative to itself, at least to this share of all; those whose gradient vanishes in theory, to all."""
    assert set(ours) == set(theirs)
    total = torch.stack([gradient.norm() for gradient in theirs.values()]).norm()
    assert total > 0
    for name, gradient in theirs.items():
        scale = total if name.endswith(("key.bias", *zero)) else torch.maximum(gradient.norm(), least * total)
        assert_close(ours[name], gradient, tolerance, scale=scale, what=name)


def assert_packed(
    ours: nn.Module,
    batch: Batch,
    logits: dict[str, Tensor],
    loss: Tensor,
    wanted: dict[str, Tensor],
    tolerance: float,
    **more: Any,
) -> None:
    """Logits, loss and gradients of a packed batch."""
    outputs = ours(batch)
    for name, expected in logits.items():
        assert_close(outputs.logits[name], expected, tolerance, what=f"packed {name}")
    found = torch.stack([total / batch.weights[term] for term, total in outputs.loss_sums.items()]).sum()
    assert_close(found, loss, tolerance, what="packed loss")
    assert_same_gradients(gradients(ours, found), wanted, tolerance, **more)


def assert_parity(ours: nn.Module, theirs: nn.Module, rows: Rows, labels: Tensor, tolerance: float) -> None:
    """Logits, loss and all gradients: packed, and padded."""
    inputs = padded(rows)
    dtype = next(theirs.parameters()).dtype
    reference = theirs(**inputs, labels=labels.to(dtype) if labels.is_floating_point() else labels)
    wanted = copied(gradients(theirs, reference.loss))
    assert_packed(ours, packed_at_first(rows, labels), {"logits": reference.logits}, reference.loss, wanted, tolerance)

    outputs = ours(**inputs)
    assert outputs.loss_sums == {}
    logits = outputs.logits["logits"]
    assert_close(logits, reference.logits, tolerance, what="padded logits")
    regression = labels.is_floating_point()
    loss = F.mse_loss(logits.view(labels.shape), labels.to(dtype)) if regression else F.cross_entropy(logits, labels)
    assert_same_gradients(gradients(ours, loss), wanted, tolerance)


def random_labels(rng: np.random.Generator, count: int, num_labels: int, *, regression: bool) -> Tensor:
    if regression:
        return torch.from_numpy(rng.normal(size=(count, num_labels) if num_labels > 1 else count).astype(np.float32))
    return torch.from_numpy(rng.integers(num_labels, size=count))


# --- random configs ----------------------------------------------------------------------------------------------------

LONGEST = 24


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    vocab_size = draw(st.integers(8, 40))
    regression = draw(st.booleans())
    num_labels = draw(st.integers(1 if regression else 2, 5))
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": heads * draw(st.sampled_from([16, 20, 32])),
        "num_hidden_layers": draw(st.integers(0, 4)),
        "num_attention_heads": heads,
        "intermediate_size": draw(st.integers(16, 70)),
        "hidden_act": draw(st.sampled_from(ACTIVATION_NAMES)),
        "max_position_embeddings": draw(st.integers(LONGEST, 40)),
        "type_vocab_size": draw(st.integers(1, 3)),
        "pad_token_id": draw(st.integers(0, vocab_size - 1)),
        "layer_norm_eps": draw(st.sampled_from([1e-12, 1e-5])),
        "num_labels": num_labels,
        "problem_type": "regression" if regression else "single_label_classification",
    }
    # At least one of several tokens: alone, a token has no choice what to attend to.
    lengths = [draw(st.integers(4, LONGEST)), *draw(st.lists(st.integers(1, LONGEST), max_size=5))]
    return {"sizes": sizes, "lengths": draw(st.permutations(lengths)), "seed": draw(st.integers(0, 2**16))}


def in_both_precisions(cases: st.SearchStrategy[dict[str, Any]]) -> Callable:
    """A test of random configs in float64; in float32 the same cases each time: a sum that happens to cancel can lose much."""

    def decorate(check: Callable[[dict[str, Any], torch.dtype], None]) -> Callable:
        @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
        def test(dtype: torch.dtype) -> None:
            run = given(cases)(lambda case: check(case, dtype))
            settings(max_examples=15, derandomize=dtype == torch.float32)(run)()

        test.__doc__ = check.__doc__
        return test

    return decorate

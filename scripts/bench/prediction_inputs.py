"""A run and its rows as the other libraries read them: with the fast tokenizer, and padded in batches of similar length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 32
MAX_LENGTH = 128
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HEADS = {"text-classification": "AutoModelForSequenceClassification", "token-classification": "AutoModelForTokenClassification"}
Rows = Sequence[Mapping[str, Any]]
Inputs = dict[str, NDArray[np.int64]]


def read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def peer_model(family: str, run: Path, **settings: Any) -> Any:
    """The run as transformers opens it."""
    import transformers

    return getattr(transformers, HEADS[family]).from_pretrained(run, **settings).eval()


def peer_tokenizer(run: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(run)


def encoded(tokenizer: Any, rows: Rows) -> Any:
    """All rows at once, as the fast tokenizer is fastest, and not yet padded."""
    if "tokens" in rows[0]:
        columns, words = [[row["tokens"] for row in rows]], True
    else:
        columns, words = [[row[name] for row in rows] for name in ("text", "text_pair") if name in rows[0]], False
    return tokenizer(*columns, truncation=True, max_length=MAX_LENGTH, is_split_into_words=words)


def padded_batches(tokenizer: Any, rows: Rows, size: int = BATCH) -> tuple[Any, Iterator[tuple[list[int], Inputs]]]:
    """The encoded rows; and batches of rows of similar length: which they are, and padded to their longest."""
    found = encoded(tokenizer, rows)
    lengths = np.array([len(ids) for ids in found["input_ids"]])
    order = np.argsort(lengths, kind="stable")

    def batches() -> Iterator[tuple[list[int], Inputs]]:
        for start in range(0, len(order), size):
            chosen = order[start : start + size].tolist()
            inputs = {name: np.zeros((len(chosen), lengths[chosen[-1]]), dtype=np.int64) for name in INPUTS}
            for name, padded in inputs.items():
                for row, at in zip(padded, chosen):
                    row[: lengths[at]] = found[name][at]
            yield chosen, inputs

    return found, batches()

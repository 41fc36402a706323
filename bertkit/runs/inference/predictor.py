"""A trained model in use: rows in, predictions out, in order and in bounded memory.

Python code imports it, and every command that predicts uses it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bertkit import progress
from bertkit.config import TrainConfig, filled
from bertkit.errors import DataError, ModelError, UsageError, listed
from bertkit.features import Features
from bertkit.model.bert import pack_weights
from bertkit.model.devices import OneProcess, Processes, keep_freed_memory
from bertkit.model.directory import load_weights
from bertkit.model.heads import Head, Vectors
from bertkit.model.int8 import quantize
from bertkit.model.precision import Precision, multiply_in, resolve_precision
from bertkit.model.pretrained import Pretrained, open_pretrained, refuse_too_long, refuse_too_many_segments
from bertkit.progress import NO_BAR, Bar
from bertkit.readers import Examples, batched, columns_of
from bertkit.runs.encoded import Split
from bertkit.runs.forward import outputs_of
from bertkit.runs.inference.explanation import Explanation
from bertkit.runs.inference.windows import window_sizes
from bertkit.tasks.counts import Count
from bertkit.tasks.output import ALL, OutputLayout
from bertkit.tasks.presentation import Prediction, Presentation
from bertkit.tasks.task import FINETUNE, Task

Row = Mapping[str, Any] | str | Sequence[str]
POOLED = ("mean", "cls")
LONGEST = 512  # maximum tokens of a text, unless the model's training set another limit


class Predictor:
    """A model in use: `predict`, `embed`, `explain`. Threads may share one.

    Its pickle holds the name of its folder, the device, and the resolved precision. A model whose head bertkit does not know
    can only give vectors.
    """

    task: Task | None = None
    warns = False  # Python code is warned if it does not get the precision it asked for; commands print the precision

    def __init__(self, pretrained: Pretrained, processes: Processes, precision: str = "auto") -> None:
        self.pretrained, self.processes, self._precision = pretrained, processes, precision
        self.max_length = min(LONGEST, pretrained.config.max_position_embeddings)
        self.micro_batch_tokens = filled(TrainConfig()).micro_batch_tokens
        self._encoding = threading.Lock()  # the tokenizer keeps a cache

    @property
    def max_length(self) -> int:
        """Maximum tokens of a sequence; what is longer is truncated, or read in windows, as in training."""
        return self._max_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        refuse_too_long(value, self.pretrained.config, option="max_length")
        self._max_length = value

    @cached_property
    def precision(self) -> Precision:
        """The resolved precision. On a CPU, auto and int8 are measured first."""
        found = resolve_precision(self._precision, self.pretrained.config, self.processes, training=False)
        if found.requested != "auto" and not self.warns:
            progress.note(str(found))
        elif found.requested not in ("auto", found.name):
            warnings.warn(str(found), stacklevel=2)
        return found

    @cached_property
    def _modules(self) -> list[Any]:
        return [self._loaded(self._build(), self.pretrained)]

    @property
    def model(self) -> Any:
        """The module, on its device and in its precision; the first one if there are several."""
        return self._modules[0]

    def _build(self) -> Head:
        return Vectors(self.pretrained.config)

    def _loaded(self, module: nn.Module, pretrained: Pretrained) -> Any:
        """The module with a folder's weights, on the device and in the working dtype. Raises ModelError for a missing head."""
        if fresh := load_weights(module, pretrained.folder):
            what = f"the model has no trained head; missing: {listed(fresh)}"
            raise ModelError(what, where=str(pretrained.folder), hint=FINETUNE)
        module = module.to(self.processes.device, self.precision.dtype).eval()
        self._multiply(module)
        if self.precision.name == "int8":
            quantize(module, self.precision.attention)
        else:
            pack_weights(module)
        return module

    def _multiply(self, module: nn.Module) -> None:
        """Let a module's forward pass multiply in this predictor's precision. This is set for each module: setting it for the
        model does not cover another head on its encoder.
        """
        multiply_in(module, self.precision.name, self.processes.device)

    @property
    def folders(self) -> list[Path]:
        """The folders of its weights."""
        return [self.pretrained.folder]

    @classmethod
    def open(cls, name: str, device: str, precision: str) -> Self:
        """A model by folder or hub id. Raises ModelError, MachineError."""
        return cls(open_pretrained(name), OneProcess.on(device), precision)._ready()

    def _ready(self) -> Self:
        """Read the weights now rather than at the first use; returns the predictor."""
        self.warns = True
        keep_freed_memory(of_library=True)
        assert self._modules
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (str(self.pretrained.folder), self.processes.device.type, self.precision.name)

    # --- predictions ---

    @overload
    def predict(self, rows: list[Any] | tuple[Any, ...]) -> list[Prediction]: ...
    @overload
    def predict(self, rows: Iterable[Row]) -> Iterator[Prediction]: ...
    def predict(self, rows: Iterable[Row]) -> Iterator[Prediction] | list[Prediction]:
        """One prediction per row, in order: a list for a list, an iterator for any other iterable.

        rows: columns by name, as in training; or a text; or a pair of texts, or for tags a list of words. They are read in
        windows of a few thousand rows (smaller at first unless they are a list), in which texts of similar length are computed
        together. Raises DataError with the row.
        """
        if isinstance(rows, (list, tuple)):
            return list(self._stream(rows))
        return self._stream(checked_rows(rows), window_sizes())

    def _stream(self, rows: Iterable[Row], sizes: Iterable[int] | None = None) -> Iterator[Prediction]:
        first = 0
        for window in batched(rows, sizes):
            for _, alike in groupby(window, _form):  # texts and lists of words have different column names
                part = [*alike]
                yield from self.predict_examples(self.examples(part, range(first, first + len(part))))
                first += len(part)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """A batch's columns and those of its predictions, named as in `bertkit predict --keep all`.

        Raises DataError with the row, by its `id` if it has one.
        """
        arrays = {name: np.asarray(values, dtype=object) for name, values in batch.items()}
        if single := next(
            (name for name, values in arrays.items() if values.ndim == 0 or isinstance(batch[name], bytes)), None
        ):
            raise UsageError(f"the column {single!r} of the batch is one value; expected a list of them")
        columns = {name: values.tolist() for name, values in arrays.items()}
        lengths = {name: len(values) for name, values in columns.items()}
        if len({*lengths.values()}) > 1:
            raise UsageError(f"the columns of the batch have different lengths: {lengths}")
        inputs, added = self.output_columns([*columns])
        found: list[dict[str, Any]] = []
        if count := len(next(iter(columns.values()))):
            place = ("id", columns["id"]) if "id" in columns else ("batch", range(count))
            examples = self.standard(Examples(columns, *place))
            found = self.rows(self.predict_examples(examples), examples)
        return dict(zip(inputs, columns.values(), strict=True)) | {name: [row[name] for row in found] for name in added}

    def output_columns(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """For a batch with these columns: their names in the output, and the names of the predicted columns.

        A column with the same name as a predicted one is renamed input_NAME. Raises DataError for a missing column.
        """
        rows = Examples({name: [] for name in names}, "batch", [])
        examples = self.standard(rows)
        arranged = OutputLayout(keep=(ALL,)).arrange(rows, examples, self.presentation.columns(examples), {})
        shown = {name: shown for shown, name in arranged.kept.items()}
        inputs = [shown.get(name, name) for name in names]
        return inputs, [name for name in arranged.columns if name not in {*inputs, "id"}]  # a batch's rows have no numbers

    @property
    def presentation(self) -> Presentation:
        """How its predictions are shown and written."""
        raise self._headless()

    def rows(self, predictions: Sequence[Prediction], examples: Examples) -> list[dict[str, Any]]:
        """The rows that `bertkit predict` writes, without ids: the input and the prediction of each example."""
        return [self.presentation.row(prediction, examples, number) for number, prediction in enumerate(predictions)]

    def predict_examples(self, examples: Examples) -> list[Prediction]:
        """One prediction per example; examples must have the task's standard columns."""
        return self.decode(self.encode(examples)[0])

    def unread_columns(self, rows: Examples) -> list[str]:
        """The columns of a user's rows that are not used."""
        return []

    def refused(self, rows: Examples) -> dict[int, str]:
        """The rows that --on-error skip leaves out, and why."""
        return {}

    def standard(self, examples: Examples) -> Examples:
        """Rows under the task's standard column names."""
        raise self._headless()

    def encode(self, examples: Examples) -> tuple[Split, tuple[Count, ...]]:
        """Examples with standard columns and their features, and counts to report to the user."""
        raise self._headless()

    def decode(self, split: Split, bar: Bar = NO_BAR) -> list[Prediction]:
        """One prediction per example, from what `encode` returned; bar: advances by features."""
        raise self._headless()

    def _columns(self, row: Row) -> Mapping[str, Any]:
        """A Python row as columns. Raises ValueError."""
        raise self._headless()

    def _headless(self) -> ModelError:
        return ModelError("the model has no trained head and can only give vectors", where=self.pretrained.name, hint=FINETUNE)

    def examples(self, rows: Sequence[Row], numbers: Sequence[int] | None = None) -> Examples:
        """Rows for `predict`, all of one form, under the task's standard column names. Raises DataError with the row.

        numbers: for naming rows in errors; by default from 0.
        """
        numbers = range(len(rows)) if numbers is None else numbers
        read = []
        for number, row in zip(numbers, rows, strict=True):
            try:
                read.append(self._columns(row))
            except ValueError as error:
                raise DataError(str(error), where=f"rows:{number}") from None
        return self.standard(Examples(columns_of(read), "rows", numbers, first=next(iter(numbers), 0)))

    def explain(self, rows: Iterable[Row], label: str | None = None) -> list[Explanation]:
        """Why rows get their label; only for text classification."""
        raise UsageError(f"only text classification is explained, not {self.presentation.family}")

    def score(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """How likely texts are; only for language models."""
        what = "this model has no score(): only language models do"
        raise UsageError(what, hint="for the scores of a task: bertkit eval MODEL")

    # --- vectors ---

    def embed(self, rows: Iterable[Row], pooling: str | int = "mean") -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Vectors of texts or pairs of texts, for feature-based use (Devlin et al., 2019, section 5.3).

        pooling: "mean" of all tokens' last hidden states, or "cls", the first token's: (rows, hidden_size). Or a layer, 0 for
        the embeddings and -1 for the last: a list with the states of each row's tokens, (tokens, hidden_size), including [CLS]
        and [SEP]. Raises DataError with the row, UsageError for another pooling.
        """
        layers = self.pretrained.config.num_hidden_layers
        if pooling not in POOLED and not (isinstance(pooling, int) and -layers - 1 <= pooling <= layers):
            raise UsageError(
                f"pooling is {pooling!r}; expected {' or '.join(POOLED)}, or a layer from {-layers - 1} to {layers}"
            )
        layer = pooling if isinstance(pooling, int) else None
        module = Vectors(
            self.pretrained.config, pooling="cls" if pooling == "cls" else "mean", layer=layer, bert=self.model.bert
        ).eval()
        self._multiply(module)
        found: list[NDArray[np.float32]] = []
        first = 0
        for window in batched(checked_rows(rows)):
            columns = self._texts(window, first)
            with self._encoding:
                encoded = self.pretrained.tokenizer.encode(*columns, max_length=self.max_length)
            features = Features(encoded.input_ids, encoded.token_type_ids, encoded.examples)
            refuse_too_many_segments(features, self.pretrained.config)
            found += self._run(module, features)["vectors"]
            first += len(window)
        if layer is not None:
            return found
        return np.concatenate(found) if found else np.zeros((0, self.pretrained.config.hidden_size), dtype=np.float32)

    def _run(self, module: nn.Module, features: Features, bar: Bar = NO_BAR) -> dict[str, list[NDArray]]:
        """The logits of each feature by name."""
        return outputs_of(module, features, self.micro_batch_tokens, self.processes, bar=bar).outputs

    def _texts(self, rows: Sequence[Row], first: int) -> list[list[str]]:
        """One column of texts, or two. Raises DataError with the row."""
        texts: list[tuple[str, ...]] = []
        for number, row in enumerate(rows, start=first):
            each = self._texts_of(row, number) if isinstance(row, Mapping) else (row,) if isinstance(row, str) else row
            fits = isinstance(each, (list, tuple)) and len(each) in (1, 2)
            if not fits or not all(isinstance(text, str) for text in each):
                raise DataError(f"the row is {row!r}; expected a string or a pair of strings", where=f"rows:{number}")
            if texts and len(each) != len(texts[0]):
                what = f"the row has {len(each)} texts and the first one {len(texts[0])}; expected the same number in every row"
                raise DataError(what, where=f"rows:{number}")
            texts.append(tuple(each))
        return [list(column) for column in zip(*texts, strict=True)]

    def _texts_of(self, row: Mapping[str, Any], number: int) -> Sequence[str]:
        """The texts of a row of columns."""
        raise DataError("cannot tell which column is the text; pass strings", where=f"rows:{number}")


def _form(row: Row) -> str:
    return "columns" if isinstance(row, Mapping) else "text" if isinstance(row, str) else "list"


def checked_rows(rows: Iterable[Row]) -> Iterable[Row]:
    """The rows. Raises UsageError for a single row, whose letters or columns would be read as rows."""
    if isinstance(rows, (str, Mapping)):
        raise UsageError("rows is one row; expected a list of rows", hint="put it in brackets: [row]")
    return rows

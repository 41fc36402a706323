"""Predictions, and how they are displayed and written to files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bertkit.progress import plain
from bertkit.readers import Examples
from bertkit.tasks.counts import Count
from bertkit.tasks.output import OutputColumns, OutputLayout

if TYPE_CHECKING:
    from rich.text import Text


class Prediction(NamedTuple):
    """What a model predicts for one example.

    value: a class, a list of labels, a number, a choice's number, a list of tags, or an answer. probability: of the value, if
    it has one. probabilities: of every label, or of each word's tag. details: span, n-best, null_odds, intent.
    """

    value: Any
    probability: float | None = None
    probabilities: Any = None
    details: Mapping[str, Any] = {}


class Presentation(ABC):
    """How the predictions of a family, or of pre-trained models, are shown and written."""

    family: ClassVar[str]
    own_formats: ClassVar[Mapping[str, str]] = {}  # file ending of a format -> the text between windows of rows

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        return self.family

    @abstractmethod
    def row(self, prediction: Prediction, examples: Examples, row: int) -> dict[str, Any]:
        """The row that `bertkit predict` writes for an example: its input, unchanged, and the prediction."""

    @property
    def details(self) -> Mapping[str, str]:
        """The options of `OutputLayout` that apply, each with the column that it adds or changes."""
        return {}

    @abstractmethod
    def columns(self, examples: Examples) -> OutputColumns:
        """The columns of `row`, for examples with these columns."""

    def detail(self, prediction: Prediction, layout: OutputLayout) -> dict[str, Any]:
        """The values that the options of `details` add to a row, or replace in it."""
        return {}

    def lost_in(self, ending: str) -> str | None:
        """A warning about what a file with this ending cannot hold. Raises UsageError if it cannot be written at all."""
        return None

    def format_file(self, predictions: Sequence[Prediction], examples: Examples, ending: str) -> str:
        """Predictions in one of `own_formats`."""
        raise NotImplementedError(ending)

    def counts_of(self, predictions: Sequence[Prediction]) -> tuple[Count, ...]:
        """Counts to report to the user about these predictions, one line each."""
        return ()

    def format_prediction(self, prediction: Prediction, examples: Examples, row: int) -> Text:
        """A prediction, formatted for the terminal."""
        return plain(self.row(prediction, examples, row))

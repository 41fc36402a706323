"""Predictions, and how they are displayed and written to files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bertkit.errors import plural
from bertkit.progress import plain
from bertkit.readers import Examples
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


class Count(NamedTuple):
    """A count to report to the user. what: a sentence with {} for the number. noun: what is counted, if {} includes it. beyond:
    numbers up to this are not reported.
    """

    number: int
    what: str
    noun: str = ""
    beyond: int = 0

    def __str__(self) -> str:
        return self.what.replace("{}", plural(self.number, self.noun) if self.noun else str(self.number), 1)


def summed(counts: Iterable[Count]) -> list[Count]:
    """The counts, with those of one kind added up, in order of first appearance."""
    sums: dict[tuple[str, str], Count] = {}
    for count in counts:
        before = sums.get((count.what, count.noun), count._replace(number=0, beyond=0))
        number, beyond = before.number + count.number, before.beyond + count.beyond
        sums[count.what, count.noun] = count._replace(number=number, beyond=beyond)
    return [*sums.values()]


def lines_of(counts: Iterable[Count]) -> list[str]:
    """A line for each count above its `beyond`; counts of one kind are summed first."""
    return [str(count) for count in summed(counts) if count.number > count.beyond]


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

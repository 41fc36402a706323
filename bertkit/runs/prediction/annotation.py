"""Predictions in the formats of annotation tools: Label Studio's tasks, doccano's JSONL, Prodigy's tasks.

Sources: https://labelstud.io/guide/predictions for Label Studio, backend/data_import of https://github.com/doccano/doccano, and
https://prodi.gy/docs/api-interfaces (ner_manual and choice). Offsets count characters, or UTF-16 units in doccano; see the
readers of these tools' exports.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from bertkit.errors import UsageError
from bertkit.files import jsonl_text
from bertkit.readers.utf16 import to_utf16
from bertkit.runs.prediction.writers import WRITERS, Rows, Writer

_KINDS = ("entities", "labels", "label")  # columns of tags in chunks, of several labels, of classes
_WORDS = ("tokens", "offsets")  # of a tagger's rows


class Suggestion(NamedTuple):
    """A row's suggestion to annotators. data: its columns except predictions. spans: objects as in `entities`, None for
    classes. names: the predicted classes, among `known`, which has the probability of each. score: of the least certain
    decision.
    """

    data: dict[str, Any]
    spans: list[dict[str, Any]] | None
    names: list[str]
    known: dict[str, float]
    score: float


_RESULT = {"from_name": "label", "to_name": "text"}  # of Label Studio


class Annotation(Writer):
    """A tool's format, in files with the ending `suffix`. Raises UsageError for predictions other than classes, labels and
    chunks.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]

    def __init__(self, columns: Sequence[str], predicted: Sequence[str] = (), *, safe: bool = False) -> None:
        super().__init__(columns, predicted, safe=safe)
        if not {*_KINDS} & {*predicted}:
            what = f"the predictions are {', '.join(predicted)}; {self.name} takes classes, labels and tags in chunks"
            raise UsageError(what, hint="--format jsonl")

    def write(self, rows: Rows) -> bytes:
        return jsonl_text([self.task(row, self._suggestion(row)) for row in rows]).encode("utf-8", "surrogatepass")

    @abstractmethod
    def task(self, row: dict[str, Any], found: Suggestion) -> dict[str, Any]:
        """The tool's object for a row."""

    def _suggestion(self, row: dict[str, Any]) -> Suggestion:
        data = {name: value for name, value in row.items() if name not in (*self.predicted, *_WORDS)}
        if "entities" in self.predicted:
            return Suggestion(data, row["entities"], [], {}, min(row["probabilities"], default=1.0))
        if "label" in self.predicted:
            return Suggestion(data, None, [row["label"]], row["probabilities"], row["probability"])
        certain = (max(probability, 1 - probability) for probability in row["probabilities"].values())
        return Suggestion(data, None, row["labels"], row["probabilities"], min(certain))


class LabelStudio(Annotation):
    """A list of tasks with predictions, for a labeling interface whose names are `text` and `label`."""

    name = "Label Studio"
    suffix = ".json"
    between, end = b",\n", b"\n]\n"

    def begin(self) -> bytes:
        return b"[\n"

    def write(self, rows: Rows) -> bytes:
        return super().write(rows).removesuffix(b"\n").replace(b"\n", self.between)

    def task(self, row: dict[str, Any], found: Suggestion) -> dict[str, Any]:
        result: list[dict[str, Any]] = [
            _RESULT
            | {"id": f"{number}", "type": "labels", "score": span["probability"]}
            | {"value": {"start": span["start"], "end": span["end"], "text": span["text"], "labels": [span["label"]]}}
            for number, span in enumerate(found.spans or ())
        ]
        if found.names:
            result = [_RESULT | {"type": "choices", "value": {"choices": found.names}, "score": found.score}]
        return {"data": found.data, "predictions": [{"model_version": "bertkit", "score": found.score, "result": result}]}


class Doccano(Annotation):
    """One text per line with `label`: spans in UTF-16 units, or names; other columns become metadata of the text."""

    name = "doccano"
    suffix = ".jsonl"

    def task(self, row: dict[str, Any], found: Suggestion) -> dict[str, Any]:
        labels: list[Any] = found.names
        if found.spans is not None:
            labels = [[*(to_utf16(row["text"], span[end]) for end in ("start", "end")), span["label"]] for span in found.spans]
        return found.data | {"label": labels, "confidence": found.score}


class Prodigy(Annotation):
    """One task per line: spans with their tokens, for ner.manual, or options, of which the predicted ones are accepted."""

    name = "Prodigy"
    suffix = ".jsonl"

    def task(self, row: dict[str, Any], found: Suggestion) -> dict[str, Any]:
        task = found.data | {"meta": {"score": found.score}}
        if found.spans is None:
            return task | {"options": [{"id": name, "text": name} for name in found.known], "accept": found.names}
        text, offsets = row["text"], row["offsets"]
        begins, ends = ({place[side]: number for number, place in enumerate(offsets)} for side in (0, 1))
        words = zip(row["tokens"], offsets, strict=True)
        tokens = [
            {"text": word, "start": start, "end": end, "id": number, "ws": text[end : end + 1].isspace()}
            for number, (word, (start, end)) in enumerate(words)
        ]
        spans = [
            {"start": each["start"], "end": each["end"], "label": each["label"]}
            | {"token_start": begins[each["start"]], "token_end": ends[each["end"]]}
            for each in found.spans
        ]
        return task | {"tokens": tokens, "spans": spans}


ANNOTATIONS: dict[str, type[Annotation]] = {".label-studio": LabelStudio, ".doccano": Doccano, ".prodigy": Prodigy}
FORMATS: dict[str, type[Writer]] = WRITERS | ANNOTATIONS

"""The data sets in docs/defaults.md: rows drawn from public data with a fixed seed, as JSON lines for a task family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.readers import Examples
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.splits import read_splits
from scripts.results.command_lines import DATA, filled_in

Row = dict[str, Any]
PAIRS = "pairs"
TEXTS, TAGS, ANSWERS = "text-classification", "token-classification", "question-answering"


def _texts(examples: Examples) -> list[Row]:
    return [dict(zip(examples.columns, values, strict=True)) for values in zip(*examples.columns.values(), strict=True)]


def _intents(examples: Examples) -> list[Row]:
    rows = zip(examples.columns["tokens"], examples.columns["intent"], strict=True)
    return [{"text": " ".join(tokens), "label": intent} for tokens, intent in rows]


def _tags(examples: Examples) -> list[Row]:
    rows = zip(examples.columns["tokens"], examples.columns["tags"], strict=True)
    return [{"tokens": list(tokens), "tags": list(tags)} for tokens, tags in rows if tokens]


def _answers(examples: Examples) -> list[Row]:
    return [
        {
            "question": question,
            "context": context,
            "answers": [{"text": text, "answer_start": start} for text, start in answers],
        }
        for question, context, answers in zip(*(examples.columns[c] for c in ("question", "context", "answers")), strict=True)
    ]


@dataclass(frozen=True)
class DataSet:
    """kind: what is predicted. recipe, options: that read its files. train, test: a file each and how many rows to draw of it;
    of one file, train is drawn from its first half and test from the second.
    """

    name: str
    kind: str
    family: str
    recipe: str
    train: tuple[str, int]
    test: tuple[str, int]
    rows: Callable[[Examples], list[Row]] = _texts
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Draw the rows; returns train.jsonl and test.jsonl, which has no label that training lacks."""
        folder.mkdir(parents=True, exist_ok=True)
        train, test = self._draw(*self.train, half=0), self._draw(*self.test, half=1)
        known = {row.get("label") for row in train}
        return _write(folder / "train.jsonl", train), _write(
            folder / "test.jsonl", [row for row in test if row.get("label") in known]
        )

    def _draw(self, file: str, count: int, *, half: int) -> list[Row]:
        (name,) = filled_in([f"{DATA}/{file}"])
        recipe = (
            load_recipe(self.recipe)
            .overridden({"test": name, **self.options})
            .with_other_data({"test", *self.options})
            .resolved()
        )
        rows = self.rows(recipe.standardize(read_splits(recipe, ["test"]).rows["test"], labelled=True))
        if self.train[0] == self.test[0]:
            rows = rows[half * len(rows) // 2 : (half + 1) * len(rows) // 2]
        drawn = sorted(np.random.default_rng(0).permutation(len(rows))[:count].tolist())
        return [rows[row] for row in drawn]


def _write(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


INTENTS = {"intent": True}
# Which sets the rule was chosen on, and on which other ones it was then measured, once.
CHOSEN_ON = (
    DataSet("SST-2", "sentiment", TEXTS, "sst2", ("GLUE/SST-2/train.tsv.gz", 1000), ("GLUE/SST-2/dev.tsv", 872)),
    DataSet("SNIPS", "intents", TEXTS, "snips", ("SNIPS/train", 500), ("SNIPS/test", 700), _intents, INTENTS),
    DataSet(
        "CoLA",
        "acceptability",
        TEXTS,
        "cola",
        ("GLUE/CoLA/train.tsv.gz", 2000),
        ("GLUE/CoLA/dev.tsv", 1043),
        options={"columns": "source,label,mark,sentence"},
    ),
    DataSet(
        "MRPC",
        PAIRS,
        TEXTS,
        "mrpc",
        ("GLUE/MRPC/train.tsv.gz", 1500),
        ("GLUE/MRPC/dev.tsv", 408),
        options={"text": "#1 String", "text_pair": "#2 String", "label": "Quality"},
    ),
    DataSet("CoNLL-2003", "tags", TAGS, "conll2003", ("CoNLL2003/train.txt.gz", 800), ("CoNLL2003/valid.txt.gz", 1000), _tags),
)
MEASURED_ON = (
    DataSet("ATIS", "intents", TEXTS, "atis", ("ATIS/train", 2000), ("ATIS/test", 893), _intents, INTENTS),
    DataSet("IMDb", "sentiment", TEXTS, "imdb", ("IMDb-slice/train.tsv.gz", 200), ("IMDb-slice/test.tsv.gz", 500)),
    DataSet(
        "SMS Spam",
        "spam",
        TEXTS,
        "sms_spam",
        ("SMSSpam/SMSSpamCollection.gz", 1000),
        ("SMSSpam/SMSSpamCollection.gz", 1500),
        options={"columns": "label,sms"},
    ),
    DataSet(
        "THUCNews titles",
        "topics",
        TEXTS,
        "thucnews",
        ("THUCNews-titles/dev.txt.gz", 1000),
        ("THUCNews-titles/test.txt.gz", 1000),
        options={"columns": "text,label"},
    ),
    DataSet(
        "LingNLI",
        PAIRS,
        TEXTS,
        "mnli",
        ("LingNLI/train.jsonl.gz", 800),
        ("LingNLI/val.jsonl.gz", 1000),
        options={"text": "premise", "text_pair": "hypothesis"},
    ),
    DataSet("QNLI", PAIRS, TEXTS, "qnli", ("GLUE/QNLI/dev.tsv.gz", 600), ("GLUE/QNLI/dev.tsv.gz", 1000)),
    DataSet(
        "UD English EWT",
        "tags",
        TAGS,
        "ud_pos",
        ("UD_English-EWT/en_ewt-ud-train.conllu.gz", 600),
        ("UD_English-EWT/en_ewt-ud-test.conllu.gz", 800),
        _tags,
    ),
    DataSet(
        "SQuAD 2.0",
        "answers",
        ANSWERS,
        "squad_v2",
        ("SQuAD/dev-v2.0.half.json.gz", 200),
        ("SQuAD/dev-v2.0.half.json.gz", 500),
        _answers,
    ),
)

"""How many wrong labels `bertkit check --label-errors` ranks first, on data where the wrong labels are known.

Labels in SST-2 and tags in CoNLL-2003 are changed at random; the share of changed rows in the first tenth of the ranking is
compared with cleanlab's ranking by the same probabilities, and with chance. `make results` runs this.
"""

from __future__ import annotations

import csv
import gzip
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.files import read_json
from scripts import markdown
from scripts.provenance import PACKAGES, ROOT, provenance
from scripts.results.command_lines import DATA, execute, filled_in

NAME = "label_errors"
ROWS, CHANGED, FIRST = 5000, 0.05, 0.1  # rows drawn, the share of them that is changed, and that is looked at
FOLDER = Path("runs/results") / NAME
HEADER = (
    "data set",
    "rows",
    "changed",
    "found in the first tenth",
    "by cleanlab",
    "by chance",
    "likely errors",
    "of these changed",
)
_HOW = "--label-errors --model minilm --max-length 64 --num-epochs 2"
COMMANDS = {
    "SST-2": f"bertkit check text-classification --train {FOLDER}/sst2.csv {_HOW} --output-dir {FOLDER}/sst2",
    "CoNLL-2003": f"bertkit check token-classification --train {FOLDER}/conll2003.conll {_HOW} --output-dir {FOLDER}/conll2003",
}


def commands() -> list[str]:
    return [*COMMANDS.values()]


def measure(*, force: bool) -> dict[str, Any]:
    """What results/label_errors.json keeps. Finished folds are not trained again, unless `force`."""
    folder = ROOT / FOLDER
    if force:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (data,) = map(Path, filled_in([DATA]))
    changed = {"SST-2": _write_sst2(data, folder / "sst2.csv"), "CoNLL-2003": _write_conll(data, folder / "conll2003.conll")}
    sets = {}
    for (name, lines), output in zip(changed.items(), ("sst2", "conll2003"), strict=True):
        execute(COMMANDS[name], 0)
        with (folder / output / "label_errors.csv").open(encoding="utf-8", newline="") as file:
            ranked = [*csv.DictReader(file)]
        found = read_json(folder / output / "label_errors.json")
        sets[name] = _recalls(ranked, lines) | {"likely_errors": found["rows_with_likely_errors"]}
        if name == "SST-2":  # of two classes the table has all probabilities
            sets[name]["cleanlab"] = _recall(_by_cleanlab(ranked), lines)
    run = read_json(folder / "sst2" / "folds" / "fold-1" / "run.json")
    origin = provenance((*PACKAGES, "cleanlab")) | {"model": run["model"], "seeds": [run["training"]["seed"]]}
    return {"name": NAME, "command": commands(), **origin, "changed_share": CHANGED, "first": FIRST, "sets": sets}


def _recalls(ranked: list[dict[str, str]], changed: set[str]) -> dict[str, Any]:
    likely = [row["row"] for row in ranked if int(row["likely_errors"])]
    return {
        "rows": len(ranked),
        "changed": len(changed),
        "recall": _recall([row["row"] for row in ranked], changed),
        "precision": len(changed.intersection(likely)) / max(1, len(likely)),
    }


def _recall(rows: list[str], changed: set[str]) -> float:
    """The share of the changed rows among the first tenth."""
    return len(changed.intersection(rows[: round(FIRST * len(rows))])) / len(changed)


def _by_cleanlab(ranked: list[dict[str, str]]) -> list[str]:
    """The rows in the order of cleanlab's usual scores, by the same probabilities of two classes."""
    from cleanlab.rank import get_label_quality_scores

    names = sorted({row["given"] for row in ranked})
    labels = np.array([names.index(row["given"]) for row in ranked])
    of_given = np.array([float(row["given_probability"]) for row in ranked])
    probabilities = np.where(np.arange(2) == labels[:, None], of_given[:, None], 1 - of_given[:, None])
    order = np.argsort(get_label_quality_scores(labels, probabilities), kind="stable")
    return [ranked[row]["row"] for row in order]


def _drawn(count: int, rng: np.random.Generator) -> tuple[list[int], set[int]]:
    """ROWS of so many, and which places among them are changed."""
    rows = sorted(rng.permutation(count)[:ROWS].tolist())
    return rows, {*rng.permutation(ROWS)[: round(CHANGED * ROWS)].tolist()}


def _write_sst2(data: Path, path: Path) -> set[str]:
    """Phrases with their labels, some of them the other one. Returns the line numbers of these."""
    with gzip.open(data / "GLUE" / "SST-2" / "train.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    chosen, changed = _drawn(len(rows), np.random.default_rng(0))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("text", "label"))
        for place, row in enumerate(chosen):
            text, label = rows[row]
            table.writerow((text, ("negative", "positive")[int(label) ^ (place in changed)]))
    return {str(place + 2) for place in changed}


def _write_conll(data: Path, path: Path) -> set[str]:
    """Sentences in columns, some with another tag at one word. Returns the line numbers at which these begin."""
    with gzip.open(data / "CoNLL2003" / "train.txt.gz", "rt", encoding="utf-8") as file:
        sentences = [[line.split(" ") for line in each.splitlines()] for each in file.read().strip().split("\n\n")]
    sentences = [sentence for sentence in sentences if sentence[0][0] != "-DOCSTART-"]
    tags = sorted({word[-1] for sentence in sentences for word in sentence})
    rng = np.random.default_rng(0)
    chosen, changed = _drawn(len(sentences), rng)
    begins, line = set(), 1
    with path.open("w", encoding="utf-8") as file:
        for place, row in enumerate(chosen):
            words = [[word[0], word[-1]] for word in sentences[row]]
            if place in changed:
                word = words[rng.integers(len(words))]
                word[1] = str(rng.choice([tag for tag in tags if tag != word[1]]))
                begins.add(str(line))
            file.write("".join(f"{word} {tag}\n" for word, tag in words) + "\n")
            line += len(words) + 1
    return begins


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            f"{each['rows']:,}",
            f"{each['changed']:,}",
            f"**{100 * each['recall']:.1f}%**",
            f"{100 * each['cleanlab']:.1f}%" if "cleanlab" in each else "-",
            f"{100 * values['first']:.1f}%",
            f"{each['likely_errors']:,}",
            f"{100 * each['precision']:.1f}%",
        ]
        for name, each in values["sets"].items()
    ]


def render(values: Mapping[str, Any]) -> str:
    """The block of docs/results.md."""
    return markdown.block([values], markdown.table(HEADER, rows(values), numbers_from=1))

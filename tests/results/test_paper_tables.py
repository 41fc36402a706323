"""Tables of the papers and paired runs: what results keep of reproduced tables and of compared runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.report import Finding
from bertkit.reproduce.results import report_table
from scripts.results import command_lines, comparison, paired, paper_tables

CELL = {
    "row": "fine-tuned",
    "task": "CoNLL-2003 F1",
    "score": "validation/f1",
    "seeds": 2,
    "pretrained": None,
    "mean": 0.875,
    "std": 0.0125,
    "interval": [0.75, 0.99],
    "each": [0.86, 0.89],
    "published": 0.964,
    "model": "6 x 384, 12 heads",
    "start": "minilm",
    "selected_by": "validation/f1",
    "tokens": None,
    "core_hours": 1.5,
    "commands": ["bertkit finetune conll2003 --data /srv/data"],
}
CLAIM = {
    "says": "fine-tuning is better",
    "higher": "fine-tuned",
    "lower": "last layer",
    "column": "CoNLL-2003 F1",
    "difference": 0.0625,
    "interval": [0.03125, 0.125],
    "over": "rows and seeds",
    "verdict": "shown",
}
FOUND = {
    "table": "ner-features",
    "title": "Features against fine-tuning",
    "source": "Devlin et al. (2019), table 7",
    "scale": "laptop",
    "note": "the order of the rows",
    "cells": [CELL, {**CELL, "row": "last layer", "mean": 0.8125, "start": "a model pre-trained for this table"}],
    "claims": [CLAIM],
}


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The lines that were run, of commands that leave FOUND."""
    lines: list[str] = []

    def execute(line: str, seed: int) -> str:
        lines.append(line)
        folder = tmp_path / paper_tables.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ner-features.json").write_text(json.dumps(FOUND), encoding="utf-8")
        return ""

    monkeypatch.setattr(paper_tables, "execute", execute)
    monkeypatch.setattr(paper_tables, "ROOT", tmp_path)
    monkeypatch.setenv("BERTKIT_TEST_DATA", "data")
    paper_tables._forget.cache_clear()
    return lines


def test_a_reproduced_table_becomes_a_result_without_the_paths_of_its_runs(executed: list[str]) -> None:
    values = paper_tables.measure("table_ner_features", force=False)
    assert executed == values["command"] == paper_tables.commands("table_ner_features")
    assert (values["seeds"], values["model"]["name"]) == ([1, 2], "minilm, a model pre-trained for this table")
    assert "/srv" not in json.dumps(values)
    assert values["cells"][0]["each"] == CELL["each"]
    rendered = paper_tables.render(values)
    assert "| fine-tuned | CoNLL-2003 F1 | validation/f1 | 0.8750 |" in rendered
    assert "| fine-tuning is better | fine-tuned - last layer |" in rendered
    assert rendered.count("| shown |") == 1


def test_what_all_rows_share_is_said_once() -> None:
    columns = lambda cells: report_table({**FOUND, "cells": cells}).parts[0].columns  # noqa: E731
    other = {**CELL, "row": "last layer", "start": "a model pre-trained for this table", "selected_by": None}
    assert {"starts from", "selected by"} <= {*columns([CELL, other])}
    assert not {"seeds", "layers x hidden size", "pre-training tokens", "pre-trained"} & {*columns([CELL, other])}
    assert "published" in columns([CELL, {**other, "published": None}])
    assert "published" not in columns([{**CELL, "published": None}])
    notes = [part.what for part in report_table(FOUND).parts if isinstance(part, Finding)]
    assert notes[0] == "all rows: seeds 2; layers x hidden size 6 x 384, 12 heads; selected by best validation/f1"


def test_only_force_makes_the_runs_anew_and_once(executed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / paper_tables.FOLDER / "runs" / "a"
    run.mkdir(parents=True)
    paper_tables.measure("table_ner_features", force=False)
    assert run.exists()
    monkeypatch.delenv("BERTKIT_TEST_DATA")
    with pytest.raises(SystemExit, match="BERTKIT_TEST_DATA"):
        paper_tables.measure("table_ner_features", force=True)
    assert run.exists(), "refused before anything is lost"
    monkeypatch.setenv("BERTKIT_TEST_DATA", "data")
    paper_tables.measure("table_ner_features", force=True)
    assert not run.exists()
    run.mkdir(parents=True)
    paper_tables.measure("table_ner_features", force=True)
    assert run.exists(), "what the table before it has made is shared"


def test_every_table_that_two_cores_make_is_a_result() -> None:
    tables = ["ablation", "chinese-masking", "convergence", "glue", "ner-features", "sizes", "squad"]
    assert sorted(paper_tables.TABLES.values()) == tables


@pytest.mark.parametrize("way", paired.COMPARISONS, ids=lambda way: way.name)
def test_both_ways_train_alike_and_are_compared(way: paired.Paired, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []
    sides = [{"scores": {"f1": 0.5, "accuracy": 0.1}}, {"scores": {"f1": 0.25, "accuracy": 0.2}}]
    differences = [{"score": "accuracy", "difference": 9.0, "interval": [8, 9]}]
    differences.append({"score": "f1", "difference": -0.25, "interval": [-0.5, 0.125]})

    def execute(line: str, seed: int) -> str:
        lines.append(line)
        if line.startswith("bertkit compare"):
            return json.dumps({"rows": 1234, "sides": sides, "differences": differences})
        second = way.runs[1] in line
        for name, score in (("seed-1", 0.5 - 0.25 * second), ("seed-2", 0.75 - 0.5 * second)):
            folder = tmp_path / line.split("--output-dir ")[1].split()[0] / name
            folder.mkdir(parents=True)
            run = {"model": {"name": "minilm"}, "best": {"scores": {"validation/f1": score}}}
            (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
        return ""

    for module in (comparison, command_lines):
        monkeypatch.setattr(module, "execute", execute)
    for module in (paired, comparison, command_lines):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    values: dict[str, Any] = way.measure(force=False)
    shown = values["command"]
    assert lines == [line if "compare" in line else f"{line} --overwrite" for line in shown]
    *prepared, first, second, compared = shown
    assert prepared == [*way.ways.prepared.values()]
    one, other = way.ways.options.values()
    folder, to = first.split()[-1], second.split()[-1]
    assert first.replace(one, other).replace(folder, to) == second != first
    assert compared == " ".join(["bertkit compare", folder, to, "--json"])
    half = 12.706 * 0.125  # Student's t with one degree of freedom, times the standard error of -0.25 and -0.5
    assert values["seeds_alone"]["interval"] == pytest.approx([-0.375 - half, -0.375 + half], abs=1e-4)
    of_seeds = f"-37.5 ({-37.5 - 100 * half:+.1f} to {-37.5 + 100 * half:+.1f})"
    cells = [way.recipe.split()[0], "1,234", "f1", "50.0", "25.0", "**-25.0 (-50.0 to +12.5)**", of_seeds]
    header, _, *rows = way.ways.render(values, values).splitlines()
    before, after = way.ways.options
    columns = ["data set", "validation rows", "score", before, after, f"{after} - {before}, points", "over seeds, same rows"]
    assert header == f"| {' | '.join(columns)} |"
    assert rows[:3] == [f"| {' | '.join(cells)} |"] * 2 + [""]

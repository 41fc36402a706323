"""scripts/results/budget.py: which levers build on which, what is rerun, the loss that compares them all, and the table; and
budget_models.py: the same time by that plan, what is made once, and the table."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from bertkit.cli.presets import PRETRAINING_PRESETS
from bertkit.config import PretrainConfig, options_of
from bertkit.corpus.build import CorpusConfig, build_corpus
from bertkit.corpus.corpora import open_corpora
from bertkit.runs.pretraining.sequences import held_out_sequences
from bertkit.text.tokenizer import Tokenizer
from scripts import provenance
from scripts.results import budget, budget_models, command_lines, pretraining

HUNDRED = {"steps": 100, "precision": "fp32"}


def settings(line: str) -> dict[str, Any]:
    """The training settings of a command line."""
    words = shlex.split(line)
    typed = {name[2:].replace("-", "_"): value for name, value in itertools.pairwise(words) if name.startswith("--")}
    return {name: value for name, value in typed.items() if name in options_of(PretrainConfig) and value != "$SEED"}


def test_the_preset_is_the_baseline_and_the_levers_that_stand_below_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {stage: settings(budget.command(stage, HUNDRED, 15)) for stage in budget.stages()}
    assert all(PretrainConfig.of(line).max_steps == 100 for line in lines.values())
    preset = {"max_steps": 100, "precision": "fp32", **PRETRAINING_PRESETS["budget"]}
    assert PretrainConfig.of(lines[last_kept()]) == PretrainConfig.of(preset)
    assert PretrainConfig.of(lines[budget.WITHOUT]) == PretrainConfig.of(preset | {"optimizer": "adamw"})
    monkeypatch.setitem(budget.PRETRAINING_PRESETS, "budget", {"optimizer": "muon", "average_ratio": 0.2})
    found = list(budget.stages().values())
    assert found[1] == f"{budget.BASELINE} optimizer=muon"
    assert all(options.startswith(f"{found[1]} ") and options.count("=") == 6 for options in found[2:-2])
    assert found[-2] == f"{found[1]} average_ratio=0.2 weight_decay=0.1"
    assert found[-1] == f"{budget.BASELINE} average_ratio=0.2"
    monkeypatch.setitem(budget.PRETRAINING_PRESETS, "budget", {"average_ratio": 0.2})
    assert budget.WITHOUT not in budget.stages()


def last_kept() -> str:
    """The last row of the techniques that the preset keeps, which is the preset."""
    return [stage for stage in budget.stages() if stage in budget.LEVERS and budget.in_preset(budget.LEVERS[stage])][-1]


def test_all_models_are_asked_for_the_same_tokens(
    make_model_dir: Any, tiny_tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is that of transformers; a model for pairs is asked as one for spans."""
    monkeypatch.setattr(budget, "ROOT", tmp_path)
    (tmp_path / "a.txt").write_text(
        "\n\n".join(f"the man love {a} movie . the book ." for a in ("a " * n for n in range(1, 60))), "utf-8"
    )
    build_corpus([str(tmp_path / "a.txt")], tiny_tokenizer_dir, tmp_path / pretraining.CORPUS, CorpusConfig(held_out=0.3))
    corpus = tmp_path / pretraining.CORPUS
    config = PretrainConfig.of({"objective": "mlm"})
    features = held_out_sequences(open_corpora([corpus]), Tokenizer.load(corpus), config).features
    for architecture in ("BertForPreTraining", "BertForMaskedLM"):
        folder = make_model_dir(architecture, max_position_embeddings=128)
        model, losses = transformers.BertForMaskedLM.from_pretrained(folder).eval(), []
        for ids, rows, labels in zip(*(map(part.__getitem__, range(len(features))) for part in parts(features))):
            with torch.no_grad():
                logits = model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0, rows.astype(np.int64)]
            losses += torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none").tolist()
        assert budget.held_out_loss(folder) == pytest.approx(np.mean(losses), rel=1e-5)


def parts(features: Any) -> tuple[Any, Any, Any]:
    return features.input_ids, features.rows, features.labels["mlm"]


def test_a_finished_run_is_not_made_again_and_an_unfinished_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []

    def execute(line: str, seed: int) -> None:
        folder = tmp_path / shlex.split(line)[-1].replace("$SEED", str(seed))
        made.append(folder.is_dir())
        folder.mkdir(exist_ok=True)
        (folder / "begun").touch()
        if len(made) == 1:
            raise KeyboardInterrupt
        (folder / "README.md").touch()

    monkeypatch.setattr(budget, "ROOT", tmp_path)
    monkeypatch.setattr(budget, "held_out_loss", lambda folder: 3.5)
    monkeypatch.setattr(budget, "execute", execute)
    line = budget.command("Muon", HUNDRED, 2)
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            found = budget.run(line, 1)
    assert made == [False, True]
    assert found["loss"] == 3.5
    made.append(True)
    folder = tmp_path / shlex.split(line)[-1].replace("$SEED", "2")
    folder.mkdir()
    folder.with_suffix(".txt").write_text(line.replace("--max-steps 100", "--max-steps 7"), "utf-8")
    budget.run(line, 2)
    assert made == [False, True, True, False], "what another command has begun is of no use"


def test_steps_are_planned_as_hours_plans_them(
    tiny_tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that ticks with each step, 2 percent of 15 minutes would be 18 steps."""
    monkeypatch.setattr(budget, "ROOT", tmp_path)
    monkeypatch.setattr(budget.planning, "REHEARSED", 50)  # the script changes it in its process
    rehearsed: list[int] = []

    def train(*given: Any, total_steps: int, evaluate: Any, **more: Any) -> None:
        rehearsed.append(total_steps)
        for _ in range(total_steps):
            evaluate(None)

    seconds = itertools.count()
    monkeypatch.setattr(budget.planning, "train", train)
    monkeypatch.setattr("bertkit.runs.pretraining.training.measure", lambda *given, **more: {})
    clock = SimpleNamespace(perf_counter=lambda: next(seconds))
    for module in ("pretrain", "steps"):
        monkeypatch.setattr(f"bertkit.runs.pretraining.{module}.time", clock)
    (tmp_path / "a.txt").write_text("\n\n".join(f"the man {'a ' * n}." for n in range(1, 60)), "utf-8")
    build_corpus([str(tmp_path / "a.txt")], tiny_tokenizer_dir, tmp_path / pretraining.CORPUS, CorpusConfig(held_out=0))
    planned = budget.plan("Muon", 15)
    assert planned["precision"] in ("fp32", "bf16")
    assert planned["steps"] == 900 - (5 + budget.PLANNED_BY + 1), "less what the beginning took by the clock"
    assert rehearsed == [5, budget.PLANNED_BY]


def test_a_row_has_as_many_more_steps_as_it_was_planned_in_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is slower in some rounds is slower for both."""
    speeds = {"baseline": 100, "Muon": 80}
    slower = iter([1, 1, 1, 1, 0.5, 0.5] * 4)

    def plan(stage: str, minutes: float) -> dict[str, Any]:
        return {"steps": int(speeds[stage] * next(slower)), "precision": "bf16"}

    monkeypatch.setattr(budget, "LEVERS", {"Muon": "optimizer=muon"})
    monkeypatch.setattr(budget, "plan", plan)
    muon = budget.stages()["Muon"]
    found = budget.plan_rows(15, {})
    assert found == {budget.BASELINE: {"steps": 100, "precision": "bf16"}, muon: {"steps": 80, "precision": "bf16"}}
    slower = iter([1] * 24)
    known = {budget.BASELINE: {"steps": 300, "precision": "bf16"}}
    assert budget.plan_rows(15, known)[muon]["steps"] == 240, "of the baseline's runs that are kept"
    assert budget.plan_rows(15, found) == found, "nothing is planned again"
    monkeypatch.setattr(budget, "LEVERS", {"Muon": "optimizer=muon", "a stronger weight decay": "weight_decay=0.1"})
    assert budget.plan_rows(15, found) == found, "a row that computes the same takes the same time"
    assert "optimizer=muon weight_decay=0.1" in budget.stages()["a stronger weight decay"]
    assert budget.timed("a stronger weight decay") == muon


def test_runs_may_be_made_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in results/budget.json are not made again, but where a row's command has changed."""
    made: list[tuple[str, int]] = []
    plans: list[tuple[str, float]] = []
    result = tmp_path / "results" / "budget.json"
    side_by_side = threading.Barrier(2, timeout=60)

    def execute(line: str, seed: int) -> None:
        if "/3/" in line:
            side_by_side.wait()
            assert os.environ["OMP_NUM_THREADS"] == "2"
        folder = tmp_path / shlex.split(line)[-1].replace("$SEED", str(seed))
        folder.mkdir()
        (folder / "README.md").touch()
        made.append((folder.parent.name, seed))
        if made == stop_after:
            raise KeyboardInterrupt

    def plan(stage: str, minutes: float) -> dict[str, Any]:
        assert plans or not result.exists(), "no result without a run"
        plans.append((stage, minutes))
        return {"steps": len(plans), "precision": "fp32"}

    def call(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["budget.py", *words])
        made.clear()
        with suppress(KeyboardInterrupt):
            budget.main()
        return json.loads(result.read_text("utf-8"))

    for module in (budget, pretraining):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(budget.markdown, "commands", lambda values: ["commands"])
    monkeypatch.setattr(budget, "LEVERS", {"Muon": "optimizer=muon"})
    monkeypatch.setattr(budget, "held_out_loss", lambda folder: 3.5)
    monkeypatch.setattr(budget, "execute", execute)
    monkeypatch.setattr(budget, "plan", plan)
    monkeypatch.setattr(budget, "PLANS", 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the script changes it for its commands
    (tmp_path / pretraining.CORPUS).mkdir(parents=True)
    for path in (tmp_path / pretraining.CORPUS / "meta.json", tmp_path / f"{pretraining.FOLDER}/tokenizer/vocab.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    stop_after = [("baseline", 1), ("Muon", 1)]
    assert [len(row["loss"]) for row in call("--seeds", "1")["stages"].values()] == [1, 0], "each run is kept by itself"
    assert budget.render(json.loads(result.read_text("utf-8"))).count("\n| ") == 2, "one row"
    assert plans == [(stage, 15) for stage in ("baseline", "Muon", "Muon", "baseline")]
    stop_after = []
    two = call("--seeds", "2")
    assert made == [("baseline", 2), ("Muon", 2)], "the run of the stop had made its last step"
    assert two["seeds"] == [1, 2]
    assert all(len(two["stages"]["Muon"][name]) == 2 for name in budget.MEASURES)
    assert len(plans) == 4, "every seed makes the same steps"
    monkeypatch.setattr(budget, "provenance", lambda: pytest.fail("nothing is measured"))
    assert call("--seeds", "1") == two, "fewer seeds are no reason to forget some"
    assert not made
    monkeypatch.setattr(budget, "provenance", provenance.provenance)
    (tmp_path / "runs/results/budget/15/state.json").unlink()  # on another machine
    monkeypatch.setattr(budget, "LEVERS", {"Muon": "optimizer=muon batch_size=32"})
    assert call("--seeds", "2")["seeds"] == [1, 2]
    assert made == [("Muon", 1), ("Muon", 2)]
    assert len(plans) == 8
    assert two["plan"].items() <= call("--seeds", "2")["plan"].items(), "the other rows keep their steps"
    before = result.read_bytes()
    call("--seeds", "2", "--minutes", "2")
    assert len(made) == 4
    assert result.read_bytes() == before, "a rehearsal counts for nothing"
    monkeypatch.setattr(budget.torch, "get_num_threads", lambda: 4)
    threads: list[int] = []
    monkeypatch.setattr(budget.torch, "set_num_threads", threads.append)
    call("--seeds", "2", "--minutes", "3", "--jobs", "2")
    assert threads == [2], "steps are planned on the cores that a run will have"
    assert sorted(made) == [(stage, seed) for stage in ("Muon", "baseline") for seed in (1, 2)]


def test_the_table_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lever that the preset lacks is no ground for the next one."""
    losses = {"baseline": (4.0, 5.0), "no next sentences": (3.5, 4.1), "Muon": (3.7, 4.1), "short sequences first": (3.3, 4.1)}
    losses[budget.WITHOUT] = (3.9, 4.5)
    made = {"commit": ["a" * 40, "b" * 40], "machine": ["abacus", "abacus"]}
    stages = {stage: {"loss": loss, "steps": 15, **made} for stage, loss in losses.items()}
    preset = {"no next sentences": True, "Muon": False, "short sequences first": True}
    monkeypatch.setattr(budget.markdown, "commands", lambda values: ["commands"])
    values = {"minutes": 15, "cores": 1, "stages": stages, "preset": preset}
    lines = budget.render(values).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:8]]
    assert [row[2:4] + row[5:] for row in cells] == [
        ["**4.500**", "-", "-", "15", "2", "yes"],
        ["**3.800**", "+0.700", "+15.6", "15", "2", "yes"],
        ["**3.900**", "-0.100", "-2.6", "15", "2", "no"],
        ["**3.700**", "+0.100", "+2.6", "15", "2", "yes"],
        ["**4.200**", "-0.500", "-13.5", "15", "2", "no"],
        ["**3.700**", "+0.800", "+17.8", "", "2", ""],  # the preset, against the baseline
    ]
    note = f"The runs were made at commit {'a' * 12} on abacus; commit {'b' * 12} on abacus."
    assert f"Steps are those of 15 minutes of 1 core. {note}" in lines
    assert f"Steps are those of 15 minutes of 2 cores. {note}" in budget.render(values | {"cores": 2})
    stages["Muon"]["loss"] = stages["Muon"]["loss"][:1]
    stages["short sequences first"]["loss"] = stages[budget.WITHOUT]["loss"] = ()
    shown = budget.render(values)
    assert "| **3.700** | -0.200 | - | -5.7 | 15 | 1 | no |" in shown, "against the same seed"
    assert "short sequences" not in shown
    assert "against the baseline" not in shown, "a lever of the preset is missing"
    assert cells[1][4] == "-1.841 to +3.241"  # 0.7 and 12.706 standard errors of 0.2


# --- scripts/results/budget_models.py ---------------------------------------------------------------------------------------


def test_the_steps_take_the_time_that_was_planned() -> None:
    planned = json.loads((provenance.ROOT / "results" / "budget.json").read_text("utf-8"))["plan"]
    ratio = planned[budget.timed(last_kept())]["steps"] / planned[budget.BASELINE]["steps"]
    assert {each["precision"] for each in planned.values()} == {"bf16"}
    readme = json.loads((provenance.ROOT / "results" / "pretraining.json").read_text("utf-8"))["steps"]["last"]
    preset = dict.fromkeys(("preset with a weight decay of 0.01", "preset"), round(readme * ratio))
    assert {"baseline": readme, **preset} == budget_models.STEPS


def test_the_models_are_those_of_their_commands() -> None:
    baseline, weak_decay, preset = (settings(line) for line in budget_models.COMMANDS.values())
    del baseline["max_steps"]
    model = settings(pretraining.COMMANDS[f"{pretraining.MODEL}/README.md"])
    assert PretrainConfig.of(baseline) == PretrainConfig.of({**model, "hours": None, "precision": "bf16"})
    assert set(preset) == {"max_steps", "precision"}, "nothing overrides the preset"
    assert weak_decay == preset | {"weight_decay": "0.01"}
    assert all("--preset budget" in line for line in [*budget_models.COMMANDS.values()][1:])
    assert PRETRAINING_PRESETS.keys() == {"budget"}


def test_the_models_are_made_once_and_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []

    def execute(line: str, seed: int) -> str:
        lines.append(line)
        folder = tmp_path / line.split("--output-dir ")[1].split()[0]
        folder.mkdir(parents=True)
        (folder / "README.md").touch()
        return ""

    for module in (pretraining, command_lines):
        monkeypatch.setattr(module, "execute", execute)
    for module in (budget_models, pretraining, command_lines):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    losses = {"baseline": 3.5, "preset-with-a-weight-decay-of-0.01": 3.375, "preset": 3.25}
    monkeypatch.setattr(budget, "held_out_loss", lambda folder: losses[folder.name])
    monkeypatch.setattr(budget_models, "STEPS", dict(zip(budget_models.STEPS, (10000, 8000, 8000), strict=True)))
    values: dict[str, Any] = budget_models.measure(force=False)
    assert [line.removesuffix(" --overwrite") for line in lines] == values["command"] == budget_models.commands()
    table, commit = budget_models.render(values).splitlines(), values["commit"][:12]
    assert table[2:5] == [
        f"| baseline | 10,000 | **3.500** | - | {commit} |",
        f"| preset with a weight decay of 0.01 | 8,000 | **3.375** | +0.125 | {commit} |",
        f"| preset | 8,000 | **3.250** | +0.250 | {commit} |",
    ]
    lines.clear()
    (tmp_path / pretraining.CORPUS / "meta.json").touch()
    (tmp_path / pretraining.FOLDER / "tokenizer" / "vocab.txt").touch()
    assert budget_models.measure(force=False)["models"] == values["models"]
    assert not lines, "nothing is made again"

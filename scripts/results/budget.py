"""What the levers of `bertkit pretrain --preset budget` gain: MLM loss after equal time, one lever on top of the others.

    python -m scripts.results.budget                          about eight hours
    python -m scripts.results.budget --seeds 1                the first seed alone; the next call goes on with the second
    python -m scripts.results.budget --jobs 2                 two runs at a time, with half of the cores each: about four hours
    python -m scripts.results.budget --minutes 2 --seeds 2    a rehearsal: results/budget.json stays as it is

First the rows take short turns to plan how many steps fit into the time, for a quarter of an hour, with as many cores as a run
will have. Then each seed makes those steps with the baseline, all levers, and the preset without Muon, at whatever speed, on
whatever machine. A lever stands on top of those before it that are in the preset. results/budget.json is written after each
run; those in it are not made again, and a run that was stopped resumes. Run it by `make budget`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from scipy.stats import ttest_1samp
from typer.testing import CliRunner

from bertkit.cli.commands import app
from bertkit.cli.presets import PRETRAINING_PRESETS
from bertkit.files import read_json, write_json
from bertkit.runs.pretraining import steps as planning
from scripts import markdown
from scripts.provenance import ROOT, provenance, write_result
from scripts.results import pretraining
from scripts.results.command_lines import execute
from scripts.turns import take_turns

NAME = "budget"
Planned = Mapping[str, Any]  # steps, and precision: of a row
BASELINE = "batch_size=64 learning_rate=1e-3 warmup_ratio=0.1 dropout=0"  # of the README's model
LEVERS = {  # in the table's words -> options
    "Muon": "optimizer=muon",
    "short sequences first": "phases=32:70%,128:30%",
    "no next sentences": "objective=mlm",
    "a falling share of masked tokens": "mlm_probability=0.3:0.15",
    "dropout of attention alone": "attention_dropout=0.1",
    "a rate that falls at the end alone": "schedule=warmup_stable_decay",
    "batches that grow": "rampup_batch_size=16:20%",
    "the average of the last weights": "average_ratio=0.2",
    "a stronger weight decay": "weight_decay=0.1",
}
FREE = "weight_decay="  # changes the weights alone: a row with it makes the steps of the same row without it
WITHOUT = "the preset without Muon"  # Muon gains little in its own row, where the loss is still on its first plateau
PRETRAIN = ("pretrain", pretraining.CORPUS, "--model-size", "mini")  # what all rows begin with
FOLDER = "runs/results/budget"
MINUTES = 15  # of a run that counts
PLANS = 9  # of each row
PLANNED_BY = 8  # steps that each plan times: about ten seconds
MEASURES = ("loss", "commit", "machine")  # of each run
SEED = 42  # of the held-out sequences and their masks
HEADER = ["", "options", "MLM loss, nats", "gain, nats", "95% interval", "gain, percent", "steps", "seeds", "in the preset"]


def in_preset(options: str) -> bool:
    """Whether the preset has these options."""
    preset = PRETRAINING_PRESETS["budget"]
    return all(str(preset.get(name)) == value for name, _, value in (word.partition("=") for word in options.split()))


def stages() -> dict[str, str]:
    """The options for each row of the table: the baseline, the levers, and the preset without Muon."""
    found, kept = {"baseline": BASELINE}, BASELINE
    for lever, options in LEVERS.items():
        found[lever] = f"{kept} {options}"
        kept = found[lever] if in_preset(options) else kept
    without = " ".join(word for word in kept.split() if word != LEVERS["Muon"])
    return found if without in (BASELINE, kept) else {**found, WITHOUT: without}


def timed(stage: str) -> str:
    """The options of a row that decide how long a step takes."""
    return " ".join(word for word in stages()[stage].split() if not word.startswith(FREE))


def words_of(stage: str) -> list[str]:
    """The command line of a row, but for how long it trains, and where to."""
    options = (word.partition("=") for word in stages()[stage].split())
    given = [word for name, _, value in options for word in (f"--{name.replace('_', '-')}", value)]
    return [*PRETRAIN, *given]


def command(stage: str, planned: Planned, minutes: float) -> str:
    """The command line of a row, with $SEED for the shell."""
    folder = f"{FOLDER}/{minutes:g}/{stage.replace(' ', '-')}/seed-$SEED"
    given = f"--max-steps {planned['steps']} --precision {planned['precision']}"
    return f"bertkit {' '.join(words_of(stage))} {given} --seed $SEED --output-dir {folder}"


def stored(minutes: float) -> dict[str, Any]:
    """The plan and the runs of so many minutes that are known here, else from results/budget.json."""
    paths = [_state(minutes), *([ROOT / "results" / f"{NAME}.json"] if minutes == MINUTES else [])]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return {"plan": {}, "cores": torch.get_num_threads(), "stages": {}}
    return read_json(path)


def _state(minutes: float) -> Path:
    return ROOT / FOLDER / f"{minutes:g}" / "state.json"


def plan_rows(minutes: float, known: Mapping[str, Planned]) -> dict[str, Planned]:
    """How each row is trained, by its `timed` options. The number of steps is the baseline's, times the median over PLANS
    rounds of how many more steps the row was planned than the baseline: whatever else the machine does, it does to both sides
    of a round.
    """
    missing = [*{timed(stage): stage for stage in stages() if timed(stage) not in known}.values()]
    if not missing:
        return {**known}
    order = [*dict.fromkeys(["baseline", *missing])]
    turns = take_turns(lambda stage, _: plan(stage, minutes), order, PLANS, {"steps": None, "precision": None}, _said)
    baseline = turns["baseline"]["steps"]
    steps = known[BASELINE]["steps"] if BASELINE in known else median(baseline)
    made = {
        timed(stage): {
            "steps": round(steps * median(row / of for row, of in zip(turns[stage]["steps"], baseline, strict=True))),
            "precision": turns[stage]["precision"][0],
        }
        for stage in missing
    }
    return {**known, **made}


def _said(number: int, stage: str, values: Mapping[str, Any]) -> None:
    print(f"plan {number}/{PLANS}  {values['steps']} steps  {stage}", flush=True)


def plan(stage: str, minutes: float) -> Planned:
    """How `--hours` would train a row, by the time that PLANNED_BY steps take now."""
    planning.REHEARSED = PLANNED_BY
    words = [str(ROOT / pretraining.CORPUS) if word == pretraining.CORPUS else word for word in words_of(stage)]
    line = [*words, "--hours", f"{minutes / 60:.4g}", "--dry-run"]
    notes = CliRunner().invoke(app(), line, catch_exceptions=False).stderr
    ((steps, dtype),) = re.findall(r"^(\d+) steps of .* on cpu, (\w+)$", notes, flags=re.MULTILINE)
    return {"steps": int(steps), "precision": {"float32": "fp32", "bfloat16": "bf16"}[dtype]}


def folder_of(line: str, seed: int) -> Path:
    """Where one seed of a row's command writes."""
    return ROOT / shlex.split(line)[-1].replace("$SEED", str(seed))


def run(line: str, seed: int) -> dict[str, Any]:
    """What one seed of a row's command gives."""
    folder = folder_of(line, seed)
    made_by = folder.with_suffix(".txt")
    begun = made_by.is_file() and made_by.read_text(encoding="utf-8") == line
    folder.parent.mkdir(parents=True, exist_ok=True)
    made_by.write_text(line, encoding="utf-8")
    if not begun:
        shutil.rmtree(folder, ignore_errors=True)
    if not (folder / "README.md").is_file():  # the end of a run
        execute(line, seed)
    return {"loss": round(held_out_loss(folder), 4)} | {name: provenance()[name] for name in ("commit", "machine")}


def held_out_loss(run: Path) -> float:
    """The MLM loss on the same held-out sequences with the same masks, whatever a model was trained with."""
    from bertkit.config import PretrainConfig
    from bertkit.corpus.corpora import open_corpora
    from bertkit.model.config import BertConfig
    from bertkit.model.devices import start_accelerator
    from bertkit.model.directory import load_weights
    from bertkit.model.language_model import BertForMaskedLM
    from bertkit.runs.pretraining.held_out import score_language_model
    from bertkit.runs.pretraining.sequences import held_out_sequences
    from bertkit.text.tokenizer import Tokenizer

    module = BertForMaskedLM(BertConfig.read(run / "config.json"))
    assert not load_weights(module, run)
    config = PretrainConfig.of({"objective": "mlm", "seed": SEED})
    sequences = held_out_sequences(open_corpora([ROOT / pretraining.CORPUS]), Tokenizer.load(ROOT / pretraining.CORPUS), config)
    assert sequences is not None
    return score_language_model(module, sequences, config.micro_batch_tokens, start_accelerator("cpu"))["mlm_loss"]


def measure(minutes: float, seeds: int, jobs: int) -> dict[str, Any]:
    """Make what is missing of the seeds 1 to `seeds`, one seed after the other, and keep each run when it is finished.

    jobs: how many runs share the machine.
    """
    if jobs > 1:
        threads = max(1, torch.get_num_threads() // jobs)
        torch.set_num_threads(threads)  # of the plans
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the commands
    pretraining.make_corpus()
    values = stored(minutes)
    values["plan"] = plan_rows(minutes, values["plan"])
    plans = {stage: values["plan"][timed(stage)] for stage in stages()}
    lines = {stage: command(stage, planned, minutes) for stage, planned in plans.items()}
    known = {stage: each for stage, each in values["stages"].items() if each["command"] == lines.get(stage)}
    fresh = {
        stage: {"command": lines[stage], "steps": planned["steps"], **{name: [] for name in MEASURES}}
        for stage, planned in plans.items()
    }
    values["stages"] = {**fresh, **known}
    write_json(_state(minutes), values)
    rows = values["stages"]
    missing = [(stage, seed) for seed in range(1, seeds + 1) for stage, row in rows.items() if len(row["loss"]) < seed]
    pool = ThreadPoolExecutor(jobs)
    try:
        for (stage, seed), found in zip(missing, pool.map(lambda each: run(lines[each[0]], each[1]), missing), strict=True):
            for name in MEASURES:
                rows[stage][name].append(found[name])
            values |= _described(values, minutes)
            write_json(_state(minutes), values)
            if minutes == MINUTES:
                write_result(NAME, values)
            shutil.rmtree(folder_of(lines[stage], seed))
            print(f"seed {seed}/{seeds}  {found['loss']:.3f} nats  {stage}", flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    return values


def _described(values: Mapping[str, Any], minutes: float) -> dict[str, Any]:
    """What a result has beside the plan and the runs."""
    rows = values["stages"].values()
    seeds = max(len(row["loss"]) for row in rows)
    script = f"python -m scripts.results.budget --minutes {minutes:g} --seeds {seeds}"
    return {
        "name": NAME,
        "command": [script, *(row["command"] for row in rows if row["loss"])],
        **provenance(),
        "seeds": list(range(1, seeds + 1)),
        "model": {"name": "fresh weights, 4 layers of 256"},
        "minutes": minutes,
        "preset": {lever: in_preset(options) for lever, options in LEVERS.items()},
    }


def render(values: Mapping[str, Any]) -> str:
    """The table under HEADER: each row against the last one before it that the preset keeps, seed by seed; and at the end the
    preset's levers together against the baseline.
    """
    stages, preset = values["stages"], values["preset"]
    rows, before = [], "baseline"
    for stage, runs in stages.items():
        if runs["loss"]:
            gain = _gain(stages[before]["loss"], runs["loss"]) if stage != "baseline" else ["-", "-", "-"]
            kept = "yes" if preset.get(stage, stage == "baseline") else "no"
            options = f"`{LEVERS[stage]}`" if stage in LEVERS else ""
            rows.append(
                [stage, options, f"**{fmean(runs['loss']):.3f}**", *gain, str(runs["steps"]), str(len(runs["loss"])), kept]
            )
        before = stage if preset.get(stage) else before
    if before != "baseline" and (runs := stages[before])["loss"]:
        gain = _gain(stages["baseline"]["loss"], runs["loss"])
        rows.append(
            ["the preset, against the baseline", "", f"**{fmean(runs['loss']):.3f}**", *gain, "", str(len(runs["loss"])), ""]
        )
    made = dict.fromkeys(each for row in stages.values() for each in zip(row["commit"], row["machine"], strict=True))
    places = "; ".join(f"commit {commit[:12]} on {machine}" for commit, machine in made)
    cores = values["cores"]
    time = f"{values['minutes']:g} minutes of {cores} core{'s' if cores > 1 else ''}"
    note = f"Steps are those of {time}. The runs were made at {places}."
    return "\n".join([*markdown.table(HEADER, rows, numbers_from=2), "", note, "", *markdown.commands([values]), ""])


def _gain(before: Sequence[float], after: Sequence[float]) -> list[str]:
    """The mean gain over seeds, its interval, and the gain in percent."""
    pairs = [*zip(before, after, strict=False)]  # the last seed may lack some rows
    gains = [was - loss for was, loss in pairs]
    interval = "-"
    if len(gains) > 1:
        low, high = ttest_1samp(gains, 0).confidence_interval(0.95)
        interval = f"{low:+.3f} to {high:+.3f}"
    return [f"{fmean(gains):+.3f}", interval, f"{100 * fmean(gains) / fmean(was for was, _ in pairs):+.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each run [%(default)s]")
    parser.add_argument("--seeds", type=int, default=3, help="of each row [%(default)s]")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, which share the cores [%(default)s]")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}; expected at least 1")
    print(render(measure(options.minutes, options.seeds, options.jobs)))


if __name__ == "__main__":
    main()

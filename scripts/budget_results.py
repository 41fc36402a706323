"""What the levers of `bertkit pretrain --preset budget` gain: masked loss after equal time, one lever on top of the others.

    python scripts/budget_results.py                          about eight hours on two cores
    python scripts/budget_results.py --seeds 1                the first seed alone; the next call goes on with the second
    python scripts/budget_results.py --minutes 2 --seeds 2    a rehearsal: results/budget.json stays as it is

First the rows take turns to plan how many steps fit into the time: that needs a quiet machine, and ten minutes. Then each seed
makes those steps with the baseline and all levers, at whatever speed. A finished run is not made again, an unfinished one
resumes. A lever stands on top of those before it that are in the preset. It writes results/budget.json after each seed. Run it
by `make budget`.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import markdown
import pretraining_results as pretraining
from command_lines import execute
from entries import BUDGET as NAME
from provenance import ROOT, provenance, write_result
from scipy.stats import ttest_1samp
from turns import bertkit_command, take_turns

from bertkit.config import PRETRAINING_PRESETS

BASELINE = "batch_size=64 learning_rate=1e-3 warmup_ratio=0.1 dropout=0"  # of the README's model
LEVERS = {  # in the table's words -> options
    "no next sentences": "objective=mlm",
    "short sequences first": "phases=64:70%,128:30%",
    "a falling share of masked tokens": "mlm_probability=0.3:0.15",
    "dropout of attention alone": "attention_dropout=0.1",
    "a rate that falls at the end alone": "schedule=warmup_stable_decay",
    "batches that grow": "rampup_batch_size=16:20%",
    "Muon": "optimizer=muon",
    "the average of the last weights": "average_ratio=0.2",
}
FOLDER = "runs/results/budget"
CORPUS = f"{pretraining.FOLDER}/corpus"
MINUTES = 15  # of a run that counts
PLANS = 3  # of each row's steps
MEASURES = {"loss": 4, "steps": None, "commit": None, "machine": None}  # of each run
SEED = 42  # of the held-out sequences and their masks
HEADER = ["", "options", "masked loss, nats", "gain, nats", "95% interval", "gain, percent", "steps", "in the preset"]


def in_preset(options: str) -> bool:
    """Whether the preset has these options."""
    preset = PRETRAINING_PRESETS["budget"]
    return all(str(preset.get(name)) == value for name, _, value in (word.partition("=") for word in options.split()))


def stages() -> dict[str, str]:
    """The options of each row of the table, the baseline's first."""
    found, kept = {"baseline": BASELINE}, BASELINE
    for lever, options in LEVERS.items():
        found[lever] = f"{kept} {options}"
        kept = found[lever] if in_preset(options) else kept
    return found


def words_of(stage: str) -> list[str]:
    """The command line of a row, but for how long it trains."""
    options = (word.partition("=") for word in stages()[stage].split())
    given = [word for name, _, value in options for word in (f"--{name.replace('_', '-')}", value)]
    return ["pretrain", CORPUS, "--model-size", "mini", *given]


def command(stage: str, steps: int, minutes: float) -> str:
    """The command line of a row, with $SEED for the shell."""
    folder = f"{FOLDER}/{minutes:g}/{stage.replace(' ', '-')}/seed-$SEED"
    return f"bertkit {' '.join(words_of(stage))} --max-steps {steps} --seed $SEED --output-dir {folder}"


def planned(minutes: float) -> dict[str, int]:
    """How many steps of each row fit into so many minutes: the median of PLANS, in turn. Kept for later seeds."""
    path, options = ROOT / FOLDER / f"{minutes:g}" / "plan.json", stages()
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else stored().get("plan", {}).get(f"{minutes:g}", {})
    if missing := [stage for stage, each in options.items() if each not in kept]:
        found = take_turns(lambda stage, _: {"steps": plan(stage, minutes)}, missing, PLANS, {"steps": None}, _said)
        kept |= {options[stage]: statistics.median_low(each["steps"]) for stage, each in found.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept), encoding="utf-8")
    return {stage: kept[each] for stage, each in options.items()}


def _said(number: int, stage: str, values: Mapping[str, Any]) -> None:
    print(f"plan {number}/{PLANS}  {values['steps']} steps  {stage}", flush=True)


def plan(stage: str, minutes: float) -> int:
    """How many steps `--hours` would make of a row, by the time that some take now."""
    line = [*bertkit_command(), *words_of(stage), "--hours", f"{minutes / 60:.4g}", "--dry-run"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    (steps,) = re.findall(r"^(\d+) steps of ", done.stderr, flags=re.MULTILINE)
    return int(steps)


def stored() -> dict[str, Any]:
    """results/budget.json, or what is in it before the first seed."""
    path = ROOT / "results" / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"command": [], "seeds": []}


def run(stage: str, seed: int, steps: int, minutes: float) -> dict[str, Any]:
    """What one seed of a row gives: from results/budget.json, or made. What is made is kept beside its folder, which goes away
    then, and taken from there the next time.
    """
    line, known = command(stage, steps, minutes), stored()
    if line in known["command"] and seed in known["seeds"]:
        return {name: values[known["seeds"].index(seed)] for name, values in known["stages"][stage].items()}
    folder = ROOT / shlex.split(line)[-1].replace("$SEED", str(seed))
    kept, made_by = folder.with_suffix(".json"), folder.with_suffix(".txt")
    if kept.is_file() and (values := json.loads(kept.read_text(encoding="utf-8")))["command"] == line:
        return values
    begun = made_by.is_file() and made_by.read_text(encoding="utf-8") == line
    folder.parent.mkdir(parents=True, exist_ok=True)
    made_by.write_text(line, encoding="utf-8")
    if not begun:
        shutil.rmtree(folder, ignore_errors=True)
    if not (folder / "README.md").is_file():  # the end of a run
        execute(line, seed)
    finished = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    made = {name: value for name, value in provenance().items() if name in MEASURES}
    figures = {"loss": held_out_loss(folder), "steps": finished["total_steps"]}
    values = {"command": line, **figures, **made}
    kept.write_text(json.dumps(values), encoding="utf-8")
    shutil.rmtree(folder)
    return values


def held_out_loss(run: Path) -> float:
    """The masked loss on the same held-out sequences with the same masks, whatever a model was trained with."""
    from bertkit.config import PretrainConfig
    from bertkit.corpus.mixing import open_corpora
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
    sequences = held_out_sequences(open_corpora([ROOT / CORPUS]), Tokenizer.load(ROOT / CORPUS), config)
    assert sequences is not None
    return score_language_model(module, sequences, config.micro_batch_tokens, start_accelerator("cpu"))["mlm_loss"]


def measure(minutes: float, seeds: int) -> dict[str, Any]:
    """All runs of seeds 1 to `seeds`, as results/budget.json keeps them."""

    def said(number: int, stage: str, values: Mapping[str, Any]) -> None:
        print(f"seed {number}/{seeds}  {values['loss']:.3f} nats in {values['steps']} steps  {stage}", flush=True)

    origin = provenance()
    for made in (f"{pretraining.FOLDER}/tokenizer/vocab.txt", f"{CORPUS}/meta.json"):
        if not (ROOT / made).is_file():
            execute(pretraining.COMMANDS[made], SEED)
    steps = planned(minutes)
    found = take_turns(lambda stage, seed: run(stage, seed, steps[stage], minutes), [*steps], seeds, MEASURES, said)
    return {
        "name": NAME,
        "command": [
            f"python scripts/budget_results.py --minutes {minutes:g} --seeds {seeds}",
            *(command(stage, steps[stage], minutes) for stage in found),
        ],
        **origin,
        "seeds": list(range(1, seeds + 1)),
        "model": {"name": "fresh weights, 4 layers of 256"},
        "minutes": minutes,
        "plan": {f"{minutes:g}": {options: steps[stage] for stage, options in stages().items()}},
        "stages": found,
        "preset": {lever: in_preset(options) for lever, options in LEVERS.items()},
    }


def render(values: Mapping[str, Any]) -> str:
    """The table under HEADER: each lever against the last row before it that the preset keeps, seed by seed."""
    rows, before = [], values["stages"]["baseline"]["loss"]
    for stage, runs in values["stages"].items():
        row = [stage, f"`{LEVERS[stage]}`" if stage in LEVERS else "", f"**{statistics.fmean(runs['loss']):.3f}**"]
        if stage in LEVERS:
            gains = [was - loss for was, loss in zip(before, runs["loss"], strict=True)]
            interval, gain = "-", statistics.fmean(gains)
            if len(gains) > 1:
                low, high = ttest_1samp(gains, 0).confidence_interval(0.95)
                interval = f"{low:+.3f} to {high:+.3f}"
            row += [f"{gain:+.3f}", interval, f"{100 * gain / statistics.fmean(before):+.1f}"]
        else:
            row += ["-", "-", "-"]
        kept = values["preset"].get(stage, True)
        rows.append([*row, f"{statistics.fmean(runs['steps']):.0f}", "yes" if kept else "no"])
        before = runs["loss"] if kept else before
    return "\n".join([*markdown.table(HEADER, rows, numbers_from=2), "", *markdown.commands([values]), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of each run [%(default)s]")
    parser.add_argument("--seeds", type=int, default=3, help="of each row [%(default)s]")
    options = parser.parse_args()
    if options.minutes != MINUTES:
        print(render(measure(options.minutes, options.seeds)))
        return
    known = len(stored()["seeds"])
    kept = stored().get("plan", {}).get(f"{MINUTES:g}", {})
    lines = {command(stage, kept.get(options, 0), MINUTES) for stage, options in stages().items()}
    first = known + 1 if lines <= {*stored()["command"]} else max(1, known)
    for seeds in range(first, max(known, options.seeds) + 1):
        print(write_result(NAME, measure(MINUTES, seeds)))


if __name__ == "__main__":
    main()

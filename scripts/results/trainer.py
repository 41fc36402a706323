"""Whether bertkit's default precision costs scores: the Trainer of transformers in fp32 on the same rows, weights and settings.

    python -m scripts.results.trainer rte_five --seed 1

trains one seed and prints the scores of its last step. `make results` runs them all; bertkit's side has its own results.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertkit.files import read_json
from scripts import markdown
from scripts.provenance import RESULTS, ROOT
from scripts.results import entry_results
from scripts.results.command_lines import filled_in, measured_once
from scripts.results.entries import ENTRIES, FIVE_SEEDS, Entry
from scripts.turns import run_script

NAME = "trainer"
TASKS: dict[str, Entry] = {entry.name: entry for entry in ENTRIES if entry.name in FIVE_SEEDS}
(SEEDS,) = {entry.seeds for entry in TASKS.values()}
# the most points that bertkit's side may lose, at the far end of the interval
MOST_LOST = {"mrpc_five": 1.5, "rte_five": 3.0, "sst2_five": 1.5}
METRIC = "validation/accuracy"
FOLDER = Path("runs/results") / NAME


def command(task: str) -> str:
    return f"python -m scripts.results.trainer {task} --seed $SEED"


def commands() -> list[str]:
    """The command lines, as a user types them."""
    return [command(task) for task in TASKS]


def measure(*, force: bool) -> dict[str, Any]:
    """What results/trainer.json keeps. Each run is kept when it ends, and taken from there the next time."""
    runs: dict[str, dict[str, Any]] = {}
    origin: dict[str, Any] = {}
    for task in TASKS:
        for seed in SEEDS:
            line = command(task).replace("$SEED", str(seed))
            kept = ROOT / FOLDER / f"{task}-{seed}.json"
            found = measured_once(kept, [line], partial(_run, line), force=force)
            runs.setdefault(task, {})[str(seed)] = found.values
            origin = origin or found.origin
    return {
        "name": NAME,
        **origin,
        "command": commands(),
        "seeds": list(SEEDS),
        "model": runs[next(iter(TASKS))][str(SEEDS[0])]["model"],
        "scores": {task: {seed: run["scores"] for seed, run in of_task.items()} for task, of_task in runs.items()},
        "settings": {task: of_task[str(SEEDS[0])]["settings"] for task, of_task in runs.items()},
    }


def _run(line: str) -> dict[str, Any]:
    print(f"\n$ {line}", flush=True)
    _, _, module, *words = shlex.split(line)
    return run_script(module, words, quiet=False)


def train(task: str, seed: int) -> dict[str, Any]:
    """Train on the rows of bertkit's side and by its settings, in fp32, padded to the longest of each batch; score the end."""
    import numpy as np
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    from bertkit.config import filled
    from bertkit.model.directory import resolve, weights_hash
    from bertkit.tasks import Prediction, Task
    from bertkit.tasks.catalog import load_recipe
    from bertkit.tasks.splits import read_splits

    entry = TASKS[task]
    recipe_name, *typed = filled_in(shlex.split(entry.finetune))
    options = {flag.removeprefix("--"): value for flag, value in zip(typed[::2], typed[1::2], strict=True)}
    recipe = load_recipe(recipe_name).overridden(options).resolved()
    config = filled(recipe.training)
    rows = read_splits(recipe, [recipe.train_split, "validation"]).rows
    fitted = Task.fit(recipe, rows[recipe.train_split])
    rows = {split: fitted.examples(examples, labelled=True) for split, examples in rows.items()}
    labels: Sequence[str] = fitted.labels
    folder = resolve(entry.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encoded(split: str) -> list[dict[str, Any]]:
        columns = rows[split].columns
        texts = [columns[name] for name in ("text", "text_pair") if name in columns]
        tokens = tokenizer(*texts, truncation=True, max_length=config.max_length)
        ids = [labels.index(label) for label in columns["label"]]
        return [{**{name: tokens[name][at] for name in tokens}, "label": ids[at]} for at in range(len(ids))]

    set_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(labels), attn_implementation="sdpa")
    with tempfile.TemporaryDirectory() as scratch:
        settings = {
            "per_device_train_batch_size": config.batch_size,
            "learning_rate": config.learning_rate,
            "num_train_epochs": config.num_epochs,
            "warmup_steps": config.warmup_ratio,  # below 1, a share
            "weight_decay": config.weight_decay,
            "adam_epsilon": config.adam_epsilon,
            "max_grad_norm": config.max_grad_norm,
            "lr_scheduler_type": config.schedule,
        }
        arguments = TrainingArguments(
            output_dir=scratch,
            seed=seed,
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **settings,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=encoded(recipe.train_split),
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        trainer.train()
        logits = trainer.predict(encoded("validation")).predictions
    predictions = [Prediction(labels[number]) for number in np.asarray(logits).argmax(axis=1)]
    found = fitted.score(predictions, fitted.truth(rows["validation"]))
    scores = {f"validation/{name}": value for name, value in found.items()}
    return {"scores": scores, "settings": settings, "model": {"name": entry.model, "sha256": weights_hash(folder)}}


# --- for docs/results.md ---------------------------------------------------------------------------------------------------


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The mean of ours less that of theirs, and its 95% interval by Welch's t."""
    from scipy import stats

    found = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    return statistics.fmean(ours) - statistics.fmean(theirs), float(found.low), float(found.high)


def sides(values: Mapping[str, Any], task: str) -> tuple[list[float], list[float]] | None:
    """The scores of the last steps, bertkit's and the Trainer's; None where bertkit's side has not been run."""
    path = RESULTS / f"{task}.json"
    if not path.is_file():
        return None
    last = read_json(path)["last"]
    seeds = [str(seed) for seed in values["seeds"]]
    if not set(seeds) <= set(last):
        return None
    return [last[seed][METRIC] for seed in seeds], [values["scores"][task][seed][METRIC] for seed in seeds]


def rows(values: Mapping[str, Any]) -> list[list[str]]:
    """A row each task: both means with their seeds, and the difference in points with its interval."""
    found = []
    for task in values["scores"]:
        if (both := sides(values, task)) is None:
            continue
        mean, low, high = (100 * value for value in difference(*both))
        shown = [f"{100 * statistics.fmean(side):.1f} ({' '.join(f'{100 * score:.1f}' for score in side)})" for side in both]
        found.append([task, *shown, f"**{mean:+.1f}**", f"{low:+.1f} to {high:+.1f}"])
    return found


def render(*results: Mapping[str, Any]) -> str:
    """bertkit's scores at the last step beside the Trainer's, where that has been run."""
    values = next((values for values in results if values["name"] == NAME), None)
    if values is None:
        return entry_results.render(*results)
    header = ["task", "bertkit (each seed)", "Trainer, fp32 (each seed)", "difference, points", "95% interval"]
    return markdown.block(results, markdown.table(header, rows(values), numbers_from=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(train(options.task, options.seed)))


if __name__ == "__main__":
    main()

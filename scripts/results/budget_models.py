"""What `bertkit pretrain --preset budget` gains on the model of docs/results.md: the MLM loss of models that were trained for
the same time.

`make results` runs it: the commands below, one after another. Each is skipped if its output exists, and resumes where it was
stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scripts import markdown
from scripts.provenance import ROOT
from scripts.results import budget, pretraining
from scripts.results.command_lines import SEED, run_commands

NAME = "budget_models"
FOLDER = f"runs/results/{NAME}"
BASELINE, PRESET = "baseline", "preset"
WEAK_DECAY = "preset with a weight decay of 0.01"  # what the preset's own is worth over so many steps
# The baseline makes those of the model in docs/results.md; the preset as many as take that time by the plan in
# results/budget.json.
STEPS = {BASELINE: 10758, WEAK_DECAY: 16524, PRESET: 16524}
FOLDERS = {model: f"{FOLDER}/{model.replace(' ', '-')}" for model in STEPS}
_OPTIONS = {
    BASELINE: budget.words_of(BASELINE),
    WEAK_DECAY: [*budget.PRETRAIN, "--preset", "budget", "--weight-decay", "0.01"],
    PRESET: [*budget.PRETRAIN, "--preset", "budget"],
}
HEADER = ["", "steps", "MLM loss, nats", "gain, nats", "commit"]


def _pretrain(model: str) -> str:
    return f"bertkit {' '.join(_OPTIONS[model])} --max-steps {STEPS[model]} --precision bf16 --output-dir {FOLDERS[model]}"


# the file that a command makes -> the command
COMMANDS = {f"{FOLDERS[model]}/README.md": _pretrain(model) for model in STEPS}


def commands() -> list[str]:
    """The command lines, as a user types them."""
    return [*pretraining.CORPUS_COMMANDS.values(), *COMMANDS.values()]


def measure(*, force: bool) -> dict[str, Any]:
    """What results/budget_models.json keeps."""
    pretraining.make_corpus()
    made_by = run_commands(COMMANDS, ROOT / FOLDER, force=force)
    return {
        "name": NAME,
        "command": commands(),
        **made_by[f"{FOLDERS[PRESET]}/README.md"]["origin"],
        "seeds": [SEED],
        "model": {"name": "fresh weights, 4 layers of 256"},
        "models": {
            model: {
                "steps": STEPS[model],
                "loss": round(budget.held_out_loss(ROOT / folder), 4),
                "commit": made_by[f"{folder}/README.md"]["origin"]["commit"],
            }
            for model, folder in FOLDERS.items()
        },
    }


def render(values: Mapping[str, Any]) -> str:
    """The block of a page: a row for each model."""
    rows = [
        [
            model,
            f"{each['steps']:,}",
            f"**{each['loss']:.3f}**",
            "-" if model == BASELINE else f"{values['models'][BASELINE]['loss'] - each['loss']:+.3f}",
            each["commit"][:12],
        ]
        for model, each in values["models"].items()
    ]
    return markdown.block([values], markdown.table(HEADER, rows, numbers_from=1))

"""run.json: the inputs and results of a run; read, written and compared."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit import __version__
from bertkit.config import RENAMED_OBJECTIVES, PretrainConfig, TrainConfig, options_of
from bertkit.errors import ModelError, UsageError, listed
from bertkit.files import as_json, read_json, write_json
from bertkit.manifest import verify
from bertkit.model.config import PRETRAINING
from bertkit.tasks import FAMILIES
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import from_json, without_derived

RUN_FILE = "run.json"
PATHS = re.compile(r"recipe\.(train|validation|test|data)|data\..+\.source|model\.name|training\.entities")  # keys of run.json
_MAY_CHANGE = {
    *("training.micro_batch_tokens", "training.device", "training.logging_steps", "training.track", "recipe.prepare"),
    *("training.save_steps", "training.keep_checkpoints", "training.keep_training_state", "recipe.max_file_size"),
    *("training.activation_checkpointing", "recipe.language"),
}
# Older versions did not record these.
_CONFIG, _SOURCES = "model.config.", "recipe.metric_sources."
_ROWS = (".rows_sha256", ".shards_sha256", "data.sha256", "model.sha256")
_HASHES = {
    "sha256": "{} has changed",
    "rows_sha256": "the rows of {} have changed",
    "hashes": "the documents of {} have changed",
    "shards_sha256": "{} was built again, with other settings or in another order",
    **dict.fromkeys(("fingerprint", "vocab_hash"), "the {} has changed"),  # of a tokenizer
    "entities": "the entities to mask in {} have changed",
}
_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")


def describe_run(
    *, recipe: dict[str, Any], training: TrainConfig, model: dict[str, Any], data: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """The content of run.json at the start of a run, as plain JSON values."""
    versions = {"bertkit": __version__, "python": platform.python_version()}
    values = {
        "status": "running",
        "recipe": recipe,
        "training": dataclasses.asdict(training),
        "model": model,
        "data": data,
        "versions": versions | {package: importlib.metadata.version(package) for package in _PACKAGES},
        **more,
    }
    return as_json(values, default=str)


def write_run_file(folder: Path, values: dict[str, Any]) -> None:
    write_json(folder / RUN_FILE, values)


def read_run_file(folder: Path) -> dict[str, Any] | None:
    """The content of run.json, or None if there is none. Raises ModelError for a damaged one; warns if it was changed."""
    path = folder / RUN_FILE
    if not path.is_file():
        return None
    verify(folder, RUN_FILE.__eq__)
    values = read_json(path, "choose another folder")
    if missing := _missing(values):
        whose = "is not from bertkit" if len(missing) > 2 else f"lacks {listed(missing)}"
        raise ModelError(f"run.json {whose}", where=str(path), hint="choose another folder, or restore the file")
    if (objective := str(values["training"].get("objective"))) in RENAMED_OBJECTIVES:
        values["training"]["objective"] = RENAMED_OBJECTIVES[objective]
    return values | {"recipe": without_derived(values["recipe"])}


def is_run(values: Any) -> bool:
    """Whether the content of a JSON file is a run.json."""
    return isinstance(values, dict) and not _missing(values)


def _missing(values: Mapping[str, Any]) -> list[str]:
    """The keys that a run.json must have and this one lacks."""
    parts = [part for part in ("recipe", "training", "model", "data") if not isinstance(values.get(part), dict)]
    if "recipe" not in parts and not isinstance(values["recipe"].get("family"), str):
        parts.append("recipe.family")
    return [*parts, *([] if "status" in values else ["status"])]


def refuse_without_model(folder: Path) -> None:
    """Raise ModelError for a run that was stopped before its first evaluation; nothing for other folders."""
    if (folder / "config.json").is_file() or not is_run(values := read_json(folder / RUN_FILE)):
        return
    if values["status"] != "finished":
        from bertkit.training.checkpoint import newest_checkpoint  # which imports torch

        newest = newest_checkpoint(folder)
        others = f"repeat its command, or give a checkpoint: {newest}" if newest else "or repeat its command"
        hint = f"wait for its first evaluation, {others}"
        raise ModelError("the run is not finished, and has no model yet", where=str(folder), hint=hint)


def corpora_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The "data" entry of the corpora that a pre-training run reads; if it was continued with others, of the last ones."""
    return (run.get("continued") or [run])[-1]["data"]


def require_run(folder: Path) -> dict[str, Any]:
    """The content of run.json. Raises UsageError if there is none."""
    if (values := read_run_file(folder)) is None:
        lacks = "run.json" if folder.is_dir() else "such folder"
        raise UsageError(f"this is not a bertkit run: there is no {lacks}", where=str(folder))
    return values


def unfinished_warning(name: str, run: Mapping[str, Any]) -> str:
    """A warning for a run whose training has not ended; "" for others."""
    return "" if run["status"] == "finished" else f"{name} is not finished: using its best model so far"


def refuse_folder_of_runs(folder: Path) -> None:
    """Raise UsageError for a folder of runs, such as several seeds, that is not itself a run or a model."""
    if (folder / RUN_FILE).is_file() or (folder / "config.json").is_file():
        return
    if runs := sorted(path.parent.name for path in folder.glob(f"*/{RUN_FILE}")):
        what = f"this is a folder of runs, not a model: {listed(runs, 4)}"
        winners = sorted(path.parent for path in folder.glob(f"best/*/{RUN_FILE}"))  # from tune, whose trials keep no weights
        raise UsageError(what, where=str(folder), hint=f"choose one of them: {(winners or [folder / runs[0]])[0]}")


def is_recipe_of(values: Mapping[str, Any], name: str) -> bool:
    """Whether a recipe file is the one that a run was trained with, even if it has moved.

    If so, its code is used with the run's data and options.
    """
    recorded = Path(values["recipe"].get("name") or "")
    if not name.endswith(".py"):
        return False
    return Path(name).resolve() == recorded or (Path(name).name == recorded.name and not recorded.exists())


def read_recipe(values: dict[str, Any], folder: Path, own: Recipe | None = None) -> Recipe:
    """The recipe and training settings in run.json; own: supplies its functions. Raises UsageError for a pre-training run."""
    if values["recipe"].get("family") == PRETRAINING:
        hint = "it opens in transformers' fill-mask pipeline; fine-tune it: bertkit finetune RECIPE --model FOLDER"
        raise UsageError("this is a pre-training run", where=str(folder), hint=hint)
    if (family := values["recipe"]["family"]) not in FAMILIES:
        hint = "update bertkit, or choose another run"
        raise ModelError(f"run.json has an unknown family: {family}", where=str(folder), hint=hint)
    where = str(folder / RUN_FILE)
    try:
        return from_json(values["recipe"], values["training"], where=where, own=own)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"run.json is damaged: {what}", where=where, hint="choose another folder") from None


def refuse_different_tasks(runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UsageError for runs of several families. runs: the content of run.json, by the run's name."""
    families = {name: values["recipe"].get("family") for name, values in runs.items()}
    if len({*families.values()}) > 1:
        what = f"the runs are of different tasks: {', '.join(f'{name} is {family}' for name, family in families.items())}"
        raise UsageError(what, hint="give runs of the same task")


# --- what differs between two runs ------------------------------------------------------------------------------------------


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The settings that differ between parts of two run.json, in words, except those that may change; "" if none differ.

    Settings missing from the older run count as their defaults.
    """
    before, after = ({key: value for name, part in run.items() for key, value in flat(part, name)} for run in (old, new))
    before = {key: default for key, default in default_settings().items() if key in after} | before
    unknown = {key for key in after if key not in before and (key.endswith(_ROWS) or key.startswith(_SOURCES))}
    if not all(any(key.startswith(_CONFIG) for key in side) for side in (before, after)):
        unknown |= {key for side in (before, after) for key in side if key.startswith(_CONFIG)}
    changed = [key for key in {**before, **after} if key not in _MAY_CHANGE | unknown and before.get(key) != after.get(key)]
    # changed features follow from changed rows or settings, and changed shards from changed text: those are named instead
    causes = [key for key in changed if not (key.startswith("data.") and key.endswith((".sha256", ".shards_sha256")))]
    return listed(
        [*dict.fromkeys(_describe_change(key, before.get(key), after.get(key)) for key in causes or changed)], 4, "; "
    )


def _describe_change(key: str, before: Any, after: Any) -> str:
    """How a setting, by its path in run.json, has changed."""
    if key.startswith(_SOURCES):
        return f"the code of the metric {key.removeprefix(_SOURCES)}"
    *parts, last = key.split(".")
    if before and after and last in _HASHES:
        return _HASHES[last].format(parts[-1])
    return f"{key.partition('.')[2]} was {before!r}, now {after!r}"


def default_settings() -> dict[str, Any]:
    """The default of every setting of a recipe and of training, by its path in run.json."""
    parts = (("recipe", FAMILIES.values()), ("training", (TrainConfig, PretrainConfig)))
    defaults: dict[str, Any] = {}
    for part, owners in parts:
        for owner in owners:
            options = options_of(owner)
            for field in dataclasses.fields(owner):
                default = options[field.name].default if field.name in options else field.default
                if default is not dataclasses.MISSING:
                    defaults.setdefault(f"{part}.{field.name}", default)
    return defaults | {"recipe.prepare": False}  # as in run.json


def finished_run(folder: Path, wanted: Mapping[str, Mapping[str, Any]], hint: str) -> dict[str, Any] | None:
    """The run.json of a finished run, or None. wanted: parts of run.json, of which only the given keys are compared.

    Raises UsageError if the run has different settings.
    """
    run = read_run_file(folder) if folder.is_dir() else None
    if run is None or run["status"] != "finished":
        return None
    old = {part: {name: run[part][name] for name in names if name in run[part]} for part, names in wanted.items()}
    refuse_changed(old, wanted, "a run", folder, hint=hint)
    return run


def refuse_changed(old: Mapping[str, Any], new: Mapping[str, Any], holds: str, folder: Path, *, hint: str) -> None:
    """Raise UsageError if settings differ, as `changed_settings` compares them. holds: what the folder has, such as "a run"."""
    if changed := changed_settings(old, new):
        raise UsageError(f"the folder holds {holds} with different settings: {changed}", where=str(folder), hint=hint)


def flat(value: Any, key: str) -> list[tuple[str, Any]]:
    """The values in nested mappings with their paths, such as training.seed."""
    if isinstance(value, dict):
        return [pair for name, part in value.items() for pair in flat(part, f"{key}.{name}")]
    return [(key, value)]

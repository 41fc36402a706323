"""The folder of a run: who may write into it, and run.json, from which eval and predict rebuild the run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import __version__, progress
from bertkit.config import PretrainConfig, TrainConfig
from bertkit.errors import ModelError, UsageError
from bertkit.files import Kind, OutputFolder, disk_errors, write_json
from bertkit.tasks import FAMILIES
from bertkit.tasks.recipe import Recipe, from_json
from bertkit.training.checkpoint import newest_checkpoint

if TYPE_CHECKING:
    from accelerate import Accelerator

    from bertkit.training.loop import TrainState

RUN_FILE = "run.json"
PRETRAINING = "pretraining"  # what stands for the family in a run without a recipe
_COMPARED = ("recipe", "training", "model", "data", "dtype")
_MAY_CHANGE = ("training.micro_batch_tokens", "training.device", "training.logging_steps", "training.track")
_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy")


def _is_finished(folder: Path) -> bool | None:
    values = read_run_file(folder)
    return None if values is None else values["status"] == "finished"


RUN = Kind("run", _is_finished)


@dataclass(frozen=True)
class RunFolder:
    """The output folder of a run. resume_from: the checkpoint, unfinished: the run.json of the run that it resumes."""

    output: OutputFolder
    resume_from: Path | None = None
    unfinished: dict[str, Any] | None = None

    @classmethod
    def prepare(
        cls, path: Path, *, resume: str = "auto", overwrite: bool = False, reads: Iterable[str | Path | None] = ()
    ) -> RunFolder:
        """Decide what becomes of an output folder; nothing is changed. resume: auto, never, or the path of a checkpoint.

        Raises what OutputFolder.prepare does, and UsageError for a checkpoint that is gone, or of another run.
        """
        checkpoint = None if resume in ("auto", "never") else Path(resume)
        if checkpoint is not None and not checkpoint.is_dir():
            raise UsageError(f"--resume is {resume!r}; expected auto, never, or the folder of a checkpoint")
        output = OutputFolder.prepare(path, RUN, resume=resume != "never", overwrite=overwrite, reads=[*reads, checkpoint])
        of_checkpoint = read_run_file(checkpoint.resolve().parent) if checkpoint is not None else None
        if checkpoint is not None and of_checkpoint is None:
            raise UsageError(f"--resume is {resume!r}, which lies in no run folder: there is no run.json beside it")
        if not output.resumes:
            return cls(output, checkpoint, of_checkpoint)
        values = require_run(path)
        begin_anew = "give another --output-dir, or --overwrite, which moves it aside"
        origin = Path(values["resumed_from"]) if "resumed_from" in values else None  # a checkpoint of another run
        if checkpoint is not None and checkpoint.resolve().parent != path.resolve():
            if checkpoint.resolve() != origin:
                what = "the output folder holds an unfinished run, and --resume names a checkpoint of another"
                raise UsageError(what, where=str(path), hint=begin_anew)
            checkpoint = None
        resume_from = checkpoint or newest_checkpoint(path) or origin
        if resume_from == origin is not None and not origin.is_dir():
            raise UsageError(f"the run was resumed from {origin}, which is gone", where=str(path), hint=begin_anew)
        return cls(output, resume_from, values)

    def refuse_other_settings(self, values: dict[str, Any]) -> None:
        """Raise UsageError unless the unfinished run has these settings, model and data."""
        if self.unfinished is None:
            return
        old, new = ({name: run.get(name) for name in _COMPARED} for run in (self.unfinished, values))
        if changed := changed_settings(old, new):
            what = f"the folder holds an unfinished run with other settings: {changed}"
            hint = "repeat its command, or give another --output-dir, or --overwrite"
            raise UsageError(what, where=str(self.output.path), hint=hint)

    @contextmanager
    def open(self, values: dict[str, Any], accelerator: Accelerator) -> Iterator[None]:
        """Hold the output folder, with run.json in it, until the run is over; of several processes the main one does."""
        self.refuse_other_settings(values)
        accelerator.wait_for_everyone()  # every process has looked at the folder before the main one changes it
        with self.output.open() if accelerator.is_main_process else nullcontext():
            if accelerator.is_main_process:
                self._begin(values)
            accelerator.wait_for_everyone()
            if self.resume_from is not None:
                progress.note(f"going on from {self.resume_from}")
                before = (self.unfinished or {}).get("num_processes", accelerator.num_processes)
                if before != accelerator.num_processes:
                    progress.warn(f"the run began with {before} process(es): with dropout it ends with slightly other weights")
            yield

    def _begin(self, values: dict[str, Any]) -> None:
        """Write run.json; the best model so far and metrics.jsonl come along from the run of another folder's checkpoint."""
        path = self.output.path
        if self.resume_from is not None and (origin := self.resume_from.resolve()).parent != path.resolve():
            values["resumed_from"] = str(origin)
            with disk_errors(path):
                for file in origin.parent.iterdir():
                    if file.is_file() and file.name != RUN_FILE:
                        shutil.copyfile(file, path / file.name)
        elif self.unfinished is not None and "resumed_from" in self.unfinished:
            values["resumed_from"] = self.unfinished["resumed_from"]
        write_run_file(path, values)


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """In words, what is not the same in two runs' parts of run.json, but for what a run may change; "" where all is.

    What the older run did not know yet had its default.
    """
    before, after = ({key: part for name, its in run.items() for key, part in flat(its, name)} for run in (old, new))
    before = {key: default for key, default in default_settings().items() if key in after} | before
    unknown = {key for key in after if key.endswith(".rows_sha256") and key not in before}
    changed = [key for key in {**before, **after} if key not in {*_MAY_CHANGE, *unknown} and before.get(key) != after.get(key)]
    shown = [f"{key.partition('.')[2]} {before.get(key)!r} there, {after.get(key)!r} here" for key in changed]
    return "; ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def default_settings() -> dict[str, Any]:
    """What every setting of a recipe and of training is by default, by its path in run.json."""
    parts = (("recipe", FAMILIES.values()), ("training", (TrainConfig, PretrainConfig)))
    fields = (
        (f"{part}.{its.name}", its.default) for part, owners in parts for owner in owners for its in dataclasses.fields(owner)
    )
    found: dict[str, Any] = {}
    for key, default in fields:
        if default is not dataclasses.MISSING:
            found.setdefault(key, default)
    return found


def finished_run(folder: Path, wanted: Mapping[str, Mapping[str, Any]], hint: str) -> dict[str, Any] | None:
    """run.json of a finished run, None where there is none. wanted: parts of run.json, of which what they name is compared.

    Raises UsageError where the run was made with other settings.
    """
    run = read_run_file(folder) if folder.is_dir() else None
    if run is None or run["status"] != "finished":
        return None
    old = {part: {name: run[part][name] for name in its if name in run[part]} for part, its in wanted.items()}
    if changed := changed_settings(old, wanted):
        raise UsageError(f"the folder holds a run of other settings: {changed}", where=str(folder), hint=hint)
    return run


def flat(value: Any, key: str) -> list[tuple[str, Any]]:
    """The values of nested mappings by their path, such as training.seed."""
    if isinstance(value, dict):
        return [pair for name, part in value.items() for pair in flat(part, f"{key}.{name}")]
    return [(key, value)]


def describe_run(
    *, recipe: dict[str, Any], training: TrainConfig, model: dict[str, Any], data: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """What run.json says of a run that begins, as plain JSON values."""
    versions = {"bertkit": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    values = {
        "status": "running",
        "recipe": recipe,
        "training": dataclasses.asdict(training),
        "model": model,
        "data": data,
        "versions": versions,
        **more,
    }
    return json.loads(json.dumps(values, default=str))


def describe_end(state: TrainState) -> dict[str, Any]:
    """What run.json says besides of a run that is over."""
    return {
        "status": "finished",
        "seconds": round(state.seconds, 1),
        "best": {"step": state.best_step, "scores": state.best_scores},
        "last": {"step": state.step, "scores": state.last_scores},
    }


def scores_table(state: TrainState, published: Mapping[str, float] | None = None) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of the best and the last scores, and of published ones where there are any."""
    columns = ["score", f"best (step {state.best_step})", f"last (step {state.step})", *(["published"] if published else [])]
    rows = [
        [name, value, state.last_scores.get(name), *([published.get(name)] if published else [])]
        for name, value in state.best_scores.items()
    ]
    return columns, rows


def write_run_file(folder: Path, values: dict[str, Any]) -> None:
    write_json(folder / RUN_FILE, values)


def read_run_file(folder: Path) -> dict[str, Any] | None:
    """The content of run.json, or None where there is none. Raises ModelError for a damaged one."""
    path = folder / RUN_FILE
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"run.json is damaged: {error}", where=str(path)) from None
    if not is_run(values):
        raise ModelError("run.json is not that of a run of bertkit", where=str(path), hint="give another folder")
    return values


def is_run(values: Any) -> bool:
    """Whether the content of a JSON file is that of a run.json."""
    parts = ("recipe", "training", "model", "data")
    return isinstance(values, dict) and "status" in values and all(isinstance(values.get(part), dict) for part in parts)


def require_run(folder: Path) -> dict[str, Any]:
    """The content of run.json. Raises UsageError where there is none."""
    if (values := read_run_file(folder)) is None:
        raise UsageError("this is no run of bertkit: there is no run.json", where=str(folder))
    return values


def refuse_folder_of_runs(folder: Path) -> None:
    """Raise UsageError for a folder that is neither run nor model, but holds runs, as of several seeds."""
    if (folder / RUN_FILE).is_file() or (folder / "config.json").is_file():
        return
    if inside := sorted(each.parent.name for each in folder.glob(f"*/{RUN_FILE}")):
        what = f"this is a folder of runs, and no model: {', '.join(inside[:4])}{' ...' if len(inside) > 4 else ''}"
        raise UsageError(what, where=str(folder), hint=f"name one of them: {folder / inside[0]}")


def read_recipe(values: dict[str, Any], folder: Path) -> Recipe:
    """The recipe and training settings that run.json holds. Raises UsageError for pre-training, which has no recipe."""
    if values["recipe"].get("family") == PRETRAINING:
        hint = "it opens in transformers' fill-mask pipeline; fine-tune it: bertkit finetune RECIPE --model FOLDER"
        raise UsageError("this is a run of pre-training", where=str(folder), hint=hint)
    known = {field.name for field in dataclasses.fields(TrainConfig)}
    training = {name: value for name, value in values["training"].items() if name in known}
    return from_json(values["recipe"], training, where=str(folder / RUN_FILE))

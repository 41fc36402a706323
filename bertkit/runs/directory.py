"""The folder of a run: created, resumed, locked, and ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import progress
from bertkit.corpus.directory import CORPUS
from bertkit.errors import UsageError, plural
from bertkit.files import json_text, sweep, write_files
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.manifest import MANIFEST, Manifest, raise_if_damaged, replace_files
from bertkit.model.config import PRETRAINING
from bertkit.model.devices import Processes, refuse_differences
from bertkit.model.directory import CONFIG_FILES, WEIGHT_FILES
from bertkit.runs.run_file import RUN_FILE, changed_settings, flat, read_run_file, refuse_changed, require_run, write_run_file
from bertkit.text.tokenizer import TOKENIZER, TOKENIZER_FILES
from bertkit.training.checkpoint import TRAINING, drop_training_state, has_best, newest_checkpoint, verify_best
from bertkit.training.metrics_log import LOG_FILE

if TYPE_CHECKING:
    from accelerate import Accelerator

    from bertkit.training.state import TrainState

_MODEL_FILES = {*CONFIG_FILES, *TOKENIZER_FILES, *WEIGHT_FILES}
_COMPARED = ("recipe", "training", "model", "data", "dtype")
SAME = "start all processes with the same command, model and data"
_EQUAL = ("training", "task", "model", "data", "dtype", "total_steps")  # on all processes
_ROUNDING = ("versions", "num_processes", "num_threads")  # what rounding depends on, besides the CPU
NEW_FOLDER = "choose another --output-dir, or --overwrite"


def _is_finished(folder: Path) -> bool | None:
    values = read_run_file(folder)
    return None if values is None else values["status"] == "finished"


_MORE = "to continue training from its weights, give its folder as --model, and another --output-dir"


def _tidy(folder: Path) -> None:
    sweep(folder)
    values = read_run_file(folder)
    if values is not None and values["training"].get("keep_training_state") is False:
        drop_training_state(folder)


RUN = Kind("run", _is_finished, more=_MORE, tidy=_tidy)
WRITTEN = {"tokenizer": TOKENIZER, "corpus": CORPUS, "pretrain": RUN, "finetune": RUN}  # into --output-dir, by command


@dataclass(frozen=True)
class RunFolder:
    """The output folder of a run. resume_from: a checkpoint to resume from. unfinished: run.json of the run to resume."""

    output: OutputFolder
    resume_from: Path | None = None
    unfinished: dict[str, Any] | None = None

    @classmethod
    def prepare(
        cls, path: Path, *, resume: str = "auto", overwrite: bool = False, reads: Iterable[str | Path | None] = ()
    ) -> RunFolder:
        """Decide what to do with an output folder, without changing it. resume: auto, never, or the path of a checkpoint.

        Raises the errors of OutputFolder.prepare, and UsageError for a checkpoint that is missing or of another run.
        """
        checkpoint = None if resume in ("auto", "never") else Path(resume)
        if checkpoint is not None and not checkpoint.is_dir():
            raise UsageError(f"--resume is {resume!r}; expected auto, never, or the folder of a checkpoint")
        output = OutputFolder.prepare(path, RUN, resume=resume != "never", overwrite=overwrite, reads=[*reads, checkpoint])
        of_checkpoint = read_run_file(checkpoint.resolve().parent) if checkpoint is not None else None
        if checkpoint is not None and of_checkpoint is None:
            raise UsageError(f"--resume is {resume!r}, which is not in a run folder: there is no run.json beside it")
        if not output.resumes:
            _refuse_stateless(checkpoint)
            return cls(output, checkpoint, of_checkpoint)
        values = require_run(path)
        origin = Path(values["resumed_from"]) if "resumed_from" in values else None  # a checkpoint of another run
        if checkpoint is not None and checkpoint.resolve().parent != path.resolve():
            if checkpoint.resolve() != origin:
                what = "the output folder holds an unfinished run, but --resume is a checkpoint of another run"
                raise UsageError(what, where=str(path), hint=NEW_FOLDER)
            checkpoint = None
        resume_from = checkpoint or newest_checkpoint(path) or origin
        if origin is not None and resume_from == origin and not origin.is_dir():
            raise UsageError(f"the run was resumed from {origin}, which is missing", where=str(path), hint=NEW_FOLDER)
        _refuse_stateless(resume_from)
        return cls(output, resume_from, values)

    def refuse_other_folders(self, processes: Processes) -> None:
        """Raise UsageError if processes would begin at different steps, for example because each machine has its own folder."""
        checkpoint = self.resume_from
        manifest = checkpoint / MANIFEST if checkpoint is not None else None
        state = {
            "the checkpoint to resume from": None if checkpoint is None else checkpoint.name,
            "its manifest": sha256(manifest.read_bytes()).hexdigest() if manifest is not None and manifest.is_file() else None,
        }
        refuse_differences(state, processes, hint="the output folder must be on a file system that all machines share")

    def refuse_other_settings(self, values: dict[str, Any]) -> None:
        """Raise UsageError if the unfinished run has different settings, model or data."""
        if self.unfinished is None:
            return
        version = self.unfinished["versions"].get("bertkit")
        hint = f"finish it with that version, or {NEW_FOLDER}"
        if "task" in values and "task" not in self.unfinished:
            what = f"the unfinished run is from bertkit {version}, which this version cannot resume"
            raise UsageError(what, where=str(self.output.path), hint=hint)
        if values.get("drawing", 1) != self.unfinished.get("drawing", 1):
            what = f"the unfinished run of bertkit {version} draws sequences differently from this version"
            raise UsageError(what, where=str(self.output.path), hint=hint)
        old, new = ({name: run.get(name) for name in _COMPARED} for run in (self.unfinished, values))
        hint = f"repeat its command, or {NEW_FOLDER}"
        only_data = not changed_settings(old | {"data": {}}, new | {"data": {}})
        if values["recipe"].get("family") == PRETRAINING and only_data and _sources(old) != _sources(new):
            hint = f"to continue with another corpus, repeat its command and add --continue-with CORPUS; or {NEW_FOLDER}"
        refuse_changed(old, new, "an unfinished run", self.output.path, hint=hint)

    @contextmanager
    def open(self, values: dict[str, Any], accelerator: Accelerator) -> Iterator[None]:
        """In the main process, create and lock the output folder, and write run.json. Unlocked at the end of the run."""
        self.refuse_other_settings(values)
        settings = {name: value for part in _EQUAL for name, value in flat(values.get(part), part)}
        settings = {name: value for name, value in settings.items() if not name.endswith((".source", ".name"))}  # paths
        refuse_differences(settings, accelerator, hint=SAME)
        accelerator.wait_for_everyone()  # every process has read the folder before the main one changes it
        now = {name: values.get(name) for name in _ROUNDING}
        values |= self._as_begun(now)
        with self.output.open() if accelerator.is_main_process else nullcontext():
            if accelerator.is_main_process:
                self._start(values)
            accelerator.wait_for_everyone()
            if self.resume_from is not None:
                progress.note(f"resuming from {self.resume_from}")
                self._warn_of_rounding(now)
            yield

    def _warn_of_rounding(self, now: dict[str, Any]) -> None:
        """Warn if a run is resumed with other processes or threads than it began with."""
        nouns = {"num_processes": ("process", "processes"), "num_threads": ("thread", "threads")}
        before = now | (self.unfinished or {})
        changed = [name for name in nouns if before[name] != now[name]]
        if changed:
            started = f"the run started with {' and '.join(plural(before[name], *nouns[name]) for name in changed)}"
            dropped = " and, with dropout, which values are dropped" if "num_processes" in changed else ""
            differs = f"the rounding of sums{dropped} will differ"
            progress.warn(f"{started}: data, order and masks stay exactly the same; {differs}")

    def _as_begun(self, now: dict[str, Any]) -> dict[str, Any]:
        """What rounding depended on when the run began, for run.json, and the resumes with anything else."""
        if self.unfinished is None or self.resume_from is None:
            return {}
        began = now | {name: self.unfinished[name] for name in _ROUNDING if name in self.unfinished}
        resumes = self.unfinished.get("resumes", [])
        resumes = resumes if now == began else [*resumes, {"checkpoint": self.resume_from.name, **now}]
        return began | ({"resumes": resumes} if resumes else {})

    def end(self, values: dict[str, Any], state: TrainState, accelerator: Accelerator, card: Callable[[], str]) -> None:
        """In the main process, write the model card and the final run.json, which marks the run as finished.

        card: completes `values`, the content of run.json, after training, and returns the model card.
        """
        raise_if_damaged()  # a run on damaged data is never finished
        values |= {
            "status": "finished",
            "seconds": round(state.seconds, 1),
            "best": {"step": state.best_step, "scores": state.best_scores},
            "last": {"step": state.step, "scores": state.last_scores},
        }
        if accelerator.is_main_process:
            _write_end(self.output.path, {"README.md": card(), RUN_FILE: json_text(values)})
            if not values["training"]["keep_training_state"]:
                drop_training_state(self.output.path)
        accelerator.wait_for_everyone()

    def _start(self, values: dict[str, Any]) -> None:
        """Write run.json; if the checkpoint is in another run's folder, copy that run's best model and metrics.jsonl too."""
        path = self.output.path
        origin = self.resume_from.resolve() if self.resume_from is not None else path
        other = origin.parent != path.resolve() and self.resume_from is not None
        if other:
            values["resumed_from"] = str(origin)
        elif self.unfinished is not None and "resumed_from" in self.unfinished:
            values["resumed_from"] = self.unfinished["resumed_from"]
        # Else training finds the best model's checkpoint.
        copies = other and origin == newest_checkpoint(origin.parent) and has_best(origin.parent)
        if copies:
            verify_best(origin.parent, [file.name for file in origin.iterdir()])
        write_run_file(path, values)
        if copies:
            replace_files(path, lambda folder: _copy_best(origin, folder))
        if other and (log := origin.parent / LOG_FILE).is_file():
            write_files(path, {LOG_FILE: partial(shutil.copyfile, log)})


@contextmanager
def replaced(folder: OutputFolder, accelerator: Accelerator) -> Iterator[None]:
    """`OutputFolder.replaced` by the main process, once every process has read the folder."""
    accelerator.wait_for_everyone()
    with folder.replaced() if accelerator.is_main_process else nullcontext():
        accelerator.wait_for_everyone()
        yield


def _sources(run: Mapping[str, Any]) -> list[Any]:
    """Where the data of a run is."""
    return [value for key, value in flat(run["data"], "data") if key.endswith(".source")]


def _refuse_stateless(checkpoint: Path | None) -> None:
    """Raise UsageError for a checkpoint of a finished run that no longer has the optimizer's state."""
    if checkpoint is not None and (checkpoint / MANIFEST).is_file() and not (checkpoint / TRAINING).is_dir():
        what = "the checkpoint holds no training state; finished fine-tuning runs keep it only with --keep-training-state"
        hint = f"to continue training from its weights, give --model {checkpoint}, another --output-dir, and no --resume"
        raise UsageError(what, where=str(checkpoint), hint=hint)


def _copy_best(checkpoint: Path, folder: Path) -> None:
    """Copy the best model of a checkpoint's run: the files in the run's root that the checkpoint has too."""
    for file in checkpoint.iterdir():
        if file.is_file() and file.name != MANIFEST and (root := checkpoint.parent / file.name).is_file():
            shutil.copyfile(root, folder / file.name)


def _write_end(folder: Path, texts: dict[str, str]) -> None:
    """Write the final files of a run, and list them in the manifest."""
    before = Manifest.read(folder) or Manifest.of(folder, _MODEL_FILES)  # runs begun by older versions have none
    hashes = {name: sha256(text.encode()).hexdigest() for name, text in texts.items()}
    log = Manifest.of(folder, {LOG_FILE}).files
    write_files(folder, {**texts, MANIFEST: Manifest(folder, {**before.files, **hashes, **log}).text})

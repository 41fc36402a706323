"""The folder of a run: who may write into it, and run.json, from which eval and predict rebuild the run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import __version__, progress
from bertkit.config import RENAMED_OBJECTIVES, PretrainConfig, TrainConfig
from bertkit.errors import MachineError, ModelError, UsageError
from bertkit.files import write_json
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


@dataclass(frozen=True)
class Claim:
    """What a command will do with its output folder: go on from a checkpoint, or begin, after moving old content aside."""

    folder: Path
    resume_from: Path | None = None
    unfinished: dict[str, Any] | None = None
    move_to: Path | None = None
    found: tuple[tuple[str, int], ...] | None = dataclasses.field(default=None, compare=False)  # what was in the folder

    def check_same(self, values: dict[str, Any]) -> None:
        """Raise UsageError unless the unfinished run in the folder has these settings, model and data."""
        if self.unfinished is None:
            return
        old, new = ({name: run.get(name) for name in _COMPARED} for run in (self.unfinished, values))
        if changed := changed_settings(old, new):
            what = f"the folder holds an unfinished run with other settings: {changed}"
            raise UsageError(
                what, where=str(self.folder), hint="repeat its command, or give another --output-dir, or --overwrite"
            )

    def check_apart(self, reads: Iterable[str | Path | None]) -> None:
        """Raise UsageError where old content that is to be moved holds what the command reads."""
        if self.move_to is not None:
            check_apart(self.folder, reads)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move old content aside, make the folder and hold it. Raises UsageError while another process does, MachineError."""
        with ExitStack() as stack:
            if is_there := self.folder.is_dir():
                stack.enter_context(held(self.folder))  # before anything in it is moved
                if _content(self.folder) != self.found:
                    what = "another process has written into the output folder since this command began"
                    raise UsageError(what, where=str(self.folder), hint="repeat the command, or give another --output-dir")
            self._make()
            if not is_there or self.move_to is not None:
                stack.enter_context(held(self.folder))
            yield

    def _make(self) -> None:
        try:
            if self.move_to is not None:
                os.rename(self.folder, self.move_to)
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / ".writable"
            probe.touch()
            probe.unlink()
            if self.resume_from is not None and self.resume_from.resolve().parent != self.folder.resolve():
                for path in self.resume_from.resolve().parent.iterdir():  # the best model so far, and metrics.jsonl
                    if path.is_file() and path.name != RUN_FILE:
                        shutil.copyfile(path, self.folder / path.name)
        except OSError as error:
            hint = "choose another --output-dir"
            raise MachineError(
                f"the output folder cannot be written: {error.strerror}", where=str(self.folder), hint=hint
            ) from None


def check_apart(folder: Path, reads: Iterable[str | Path | None]) -> None:
    """Raise UsageError where a folder that --overwrite moves away holds one of these files or folders, or is one."""
    here = folder.resolve()
    for path in (Path(path) for path in reads if path):
        if path.exists() and (path.resolve() == here or here in path.resolve().parents):
            what = f"--overwrite would move away {path}, which the command reads"
            raise UsageError(what, where=str(folder), hint="give another --output-dir")


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder, itself and not a file in it, which a kill would leave behind. Raises UsageError while another has it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):  # neither Windows nor some network file systems have such locks
            import fcntl

            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "wait for it, or give another --output-dir"
                raise UsageError("another process is training in the output folder", where=str(folder), hint=hint) from None
        yield
    finally:
        os.close(descriptor)


def _content(folder: Path) -> tuple[tuple[str, int], ...]:
    """The names in a folder, and when each was last written."""
    return tuple(sorted((path.name, path.lstat().st_mtime_ns) for path in folder.iterdir())) if folder.is_dir() else ()


def claim(folder: Path, *, resume: str = "auto", overwrite: bool = False) -> Claim:
    """Decide what becomes of an output folder; nothing is changed. resume: auto, never, or the path of a checkpoint.

    Raises UsageError for a file, a finished run, or content that is not a run's.
    """
    begin_anew = "give another --output-dir, or --overwrite, which moves it aside"
    try:
        nearest = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    except OSError as error:  # one may be a folder of someone else
        what = f"the output folder cannot be reached: {error.strerror}"
        raise MachineError(what, where=str(folder), hint="choose another --output-dir") from None
    if not nearest.is_dir():
        raise UsageError("the output folder is a file", where=str(nearest), hint="choose another --output-dir")
    if not os.access(nearest, os.W_OK):
        raise MachineError("the output folder cannot be written", where=str(nearest), hint="choose another --output-dir")
    explicit = None if resume in ("auto", "never") else Path(resume)
    if explicit is not None and not explicit.is_dir():
        raise UsageError(f"--resume is {resume!r}; expected auto, never, or the folder of a checkpoint")
    if explicit is not None and overwrite and folder.resolve() in explicit.resolve().parents:
        raise UsageError("--overwrite would move away the checkpoint that --resume names", hint="leave out one of the two")
    unfinished = read_run_file(explicit.resolve().parent) if explicit is not None else None
    if explicit is not None and unfinished is None:
        raise UsageError(f"--resume is {resume!r}, which lies in no run folder: there is no run.json beside it")
    found = _content(folder)
    if not found:
        return Claim(folder, resume_from=explicit, unfinished=unfinished, found=found)
    if overwrite:
        return Claim(folder, resume_from=explicit, unfinished=unfinished, move_to=free_name(folder), found=found)
    values = read_run_file(folder)
    if values is None:
        raise UsageError("the output folder is not empty and holds no run of bertkit", where=str(folder), hint=begin_anew)
    if values["status"] == "finished":
        raise UsageError("the output folder holds a finished run", where=str(folder), hint=begin_anew)
    if resume == "never":
        raise UsageError("the output folder holds an unfinished run and --resume is never", where=str(folder), hint=begin_anew)
    origin = Path(values["resumed_from"]) if "resumed_from" in values else None  # a checkpoint of another run
    if explicit is not None and explicit.resolve().parent != folder.resolve():
        if explicit.resolve() != origin:
            what = "the output folder holds an unfinished run, and --resume names a checkpoint of another"
            raise UsageError(what, where=str(folder), hint=begin_anew)
        explicit = None
    resume_from = explicit or newest_checkpoint(folder) or origin
    if resume_from == origin is not None and not origin.is_dir():
        raise UsageError(f"the run went on from {origin}, which is gone", where=str(folder), hint=begin_anew)
    return Claim(folder, resume_from=resume_from, unfinished=values, found=found)


def free_name(folder: Path) -> Path:
    """Where a folder's old content can be moved to: beside it, with the first free number.

    Raises UsageError for the folder that the command runs in, or one around it.
    """
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        what = "--overwrite would move away the folder that the command runs in"
        raise UsageError(what, where=str(folder), hint="run the command from another folder")
    names = (folder.with_name(f"{folder.name}.old-{number}") for number in range(1, 10**6))
    return next(name for name in names if not name.exists())


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


@contextmanager
def run_folder(claimed: Claim, values: dict[str, Any], accelerator: Accelerator) -> Iterator[None]:
    """Hold the output folder, with run.json in it, until the run is over; of several processes the main one does."""
    claimed.check_same(values)
    accelerator.wait_for_everyone()  # every process has looked at the folder before the main one changes it
    with claimed.entered() if accelerator.is_main_process else nullcontext():
        if accelerator.is_main_process:
            if claimed.move_to is not None:
                progress.note(f"moved the old content of {claimed.folder} to {claimed.move_to}")
            if claimed.resume_from is not None and claimed.resume_from.resolve().parent != claimed.folder.resolve():
                values["resumed_from"] = str(claimed.resume_from.resolve())
            elif claimed.unfinished is not None and "resumed_from" in claimed.unfinished:
                values["resumed_from"] = claimed.unfinished["resumed_from"]
            write_run_file(claimed.folder, values)
        accelerator.wait_for_everyone()
        if claimed.resume_from is not None:
            progress.note(f"going on from {claimed.resume_from}")
            before = (claimed.unfinished or {}).get("num_processes", accelerator.num_processes)
            if before != accelerator.num_processes:
                progress.warn(f"the run began with {before} process(es): with dropout it ends with slightly other weights")
        yield


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


def show_end(state: TrainState, output_dir: Path, published: Mapping[str, float] | None = None) -> None:
    """A table of the best and the last scores, and of published ones where there are any."""
    if not state.best_scores:
        return
    columns = ["score", f"best (step {state.best_step})", f"last (step {state.step})", *(["published"] if published else [])]
    rows = [
        [name, value, state.last_scores.get(name), *([published.get(name)] if published else [])]
        for name, value in state.best_scores.items()
    ]
    progress.table(str(output_dir), columns, rows)


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
    if (objective := values["training"].get("objective")) in RENAMED_OBJECTIVES:
        values["training"]["objective"] = RENAMED_OBJECTIVES[objective]
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

"""The runs of a table. A run is a command; its folder is named by a hash of the command's words.

So tables share runs, and finished ones are found again. Several processes can share the work.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from bertkit import progress
from bertkit.errors import Stopped, UsageError, UserError
from bertkit.files import UNFINISHED, read_json, write_json
from bertkit.files.output_folder import Kind, lock
from bertkit.reproduce.table import HERE, Column, PaperTable, Row, Step
from bertkit.runs.directory import WRITTEN
from bertkit.runs.run_file import read_run_file
from bertkit.tasks.sources import recipe_folder

Main = Callable[[Sequence[str]], int]  # runs a command and returns its exit code

_SECONDS_BETWEEN_LOOKS = 2.0  # between checks of what other processes have finished
_OWN = {"embedded": recipe_folder() / "data", "here": HERE}  # the package's folders that words may name
_SIGNALS = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))  # exit codes


@dataclass(frozen=True)
class Run:
    """words: of a command, without its output folder. needs: the runs whose folders they name."""

    name: str
    step: Step
    folder: Path
    words: tuple[str, ...]
    needs: tuple[Run, ...]

    @property
    def output(self) -> Path:
        """The folder or file that its command writes, for the commands of other runs."""
        return self.folder / "output"

    @property
    def command(self) -> list[str]:
        return [*self.words, *(["--output-dir", str(self.output)] if self.words[0] in WRITTEN else [])]

    @property
    def record(self) -> dict[str, Any]:
        """words, core_seconds, finished, and scores; empty before its first attempt. Raises ModelError for a damaged one."""
        return read_json(self.folder / "record.json", "remove it: what its command wrote beside it is kept")

    @property
    def finished(self) -> bool:
        return bool(self.record.get("finished"))

    def with_needs(self) -> Iterator[Run]:
        """This run and all runs it needs, each after its own needs; some may occur twice."""
        for need in self.needs:
            yield from need.with_needs()
        yield self


class _Placeholders:
    """Values for the {placeholders} in a step's words: values, which may have placeholders too, and folders of other steps."""

    def __init__(self, table: PaperTable, values: Mapping[str, str], folder: Path) -> None:
        self.table, self.values, self.folder = table, values, folder
        self.needs: dict[Path, Run] = {}

    def __getitem__(self, name: str) -> str:
        if name in self.values:
            return self.values[name].format_map(self)
        run = _run_of(name, self.table, self.values, self.folder)
        self.needs[run.folder] = run
        return shlex.quote(str(run.output))


def _run_of(name: str, table: PaperTable, values: Mapping[str, str], folder: Path) -> Run:
    places = _Placeholders(table, values, folder)
    step = table.scale.steps[name]
    words = shlex.split(step.words.format_map(places))
    named = "\0".join(words)
    # these folders may be elsewhere when the command is repeated; the longest first, as one may hold another
    for place in sorted(map(str, (folder, *_OWN.values())), key=len, reverse=True):
        named = named.replace(place, "")
    own = sha256(named.encode()).hexdigest()[:10]
    return Run(name, step, folder / f"{name}-{own}", tuple(words), tuple(places.needs.values()))


def runs_of_cell(table: PaperTable, row: Row, column: Column, *, seeds: int, folder: Path, data: Path | None) -> list[Run]:
    """The runs for the seeds 1 to `seeds`, fewer if seeds share a run. folder: of all runs. data: the folder of {data}."""
    folders = {**_OWN, **({"data": data.resolve()} if data else {})}
    quoted = {name: shlex.quote(str(path)).replace("{", "{{").replace("}", "}}") for name, path in folders.items()}
    values, runs = {**table.scale.values, **row.values, **quoted}, []
    for seed in range(1, seeds + 1):
        of_pretraining = 1 + (seed - 1) % table.scale.pretraining_seeds
        numbers = {"seed": str(seed), "pretraining_seed": str(of_pretraining)}
        runs.append(_run_of(column.step, table, {**values, **numbers}, folder.resolve()))
    return _once(runs)


def all_of(runs: Iterable[Run]) -> list[Run]:
    """All runs and the runs they need, each once, with needed runs first."""
    return _once(each for run in runs for each in run.with_needs())


def _once(runs: Iterable[Run]) -> list[Run]:
    return [*{run.folder: run for run in runs}.values()]


def pull(runs: Sequence[Run], main: Main) -> None:
    """Run everything that is not finished, and wait for runs in other processes.

    runs: from `all_of`. Raises UserError with the exit code of a command that fails, which has reported why, and Stopped.
    """
    has_waited = False
    while left := [run for run in runs if not run.finished]:
        for run in [run for run in left if all(need.finished for need in run.needs)]:
            with _taken(run.folder) as is_taken:
                if is_taken and not run.finished:
                    progress.note(f"run {len(runs) - len(left) + 1} of {len(runs)}: bertkit {shlex.join(run.command)}")
                    _make(run, main)
                    break
        else:
            if not has_waited:
                progress.note("waiting for runs in other processes")
            has_waited = True
            time.sleep(_SECONDS_BETWEEN_LOOKS)


@contextmanager
def _taken(folder: Path) -> Iterator[bool]:
    """Lock the folder of a run; False if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(folder, "run"))
        except UsageError:
            yield False
        else:
            yield True


def _make(run: Run, main: Main) -> None:
    """Run its command, which continues where an earlier attempt was stopped, and record it."""
    before, spent = run.record.get("core_seconds", 0.0), _core_seconds()
    printed, code, kind = io.StringIO(), 0, WRITTEN.get(run.words[0])  # eval prints
    if kind is None or not _is_whole(run.output, kind):
        with redirect_stdout(printed):
            code = main(run.command)
    record = {"words": run.words, "core_seconds": before + _core_seconds() - spent, "finished": not code}
    if not code:
        record["scores"] = json.loads(printed.getvalue()) if kind is None else _scores_in(run.output)
    write_json(run.folder / "record.json", record)
    if code in _SIGNALS:
        raise Stopped("stopped; the same command resumes", number=code - 128)
    if code:
        error = UserError(
            f"a run has failed: bertkit {shlex.join(run.command)}",
            hint="fix what it reports, then repeat the same command: it resumes",
        )
        error.exit_code = code
        raise error


def _is_whole(folder: Path, kind: Kind) -> bool:
    """Whether a command has finished there without being recorded, as after a kill in between."""
    aside = kind.at_once and any(folder.glob(f"{UNFINISHED}*"))
    return folder.is_dir() and not aside and kind.finished is not None and bool(kind.finished(folder))


def _core_seconds() -> float:
    """The CPU time of this process and of its ended child processes."""
    return sum(os.times()[:4])


def _scores_in(folder: Path) -> dict[str, float | None]:
    """The scores of the weights that a run keeps; empty for a folder of another kind."""
    run = read_run_file(folder)
    return {} if run is None else run["best"]["scores"]

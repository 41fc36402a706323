"""The trials of a tuning, in a journal that its workers share: which is next, which is lost, which is best.

While a worker trains trial N, it locks a byte for it in a file beside the journal, so that others can see whether it is alive:
such locks end with their process, also on network file systems.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertkit.errors import ModelError, UsageError, UserError, packages_of
from bertkit.files import disk_errors, remove_folder
from bertkit.model.devices import start_accelerator
from bertkit.model.directory import WEIGHT_FILES
from bertkit.runs.directory import NEW_FOLDER
from bertkit.runs.run_file import finished_run, require_run, write_run_file
from bertkit.runs.tuning.search_space import Range, Space
from bertkit.training.checkpoint import checkpoints_in
from bertkit.training.metrics_log import MetricsLog

if TYPE_CHECKING:
    from accelerate import Accelerator
    from optuna.storages.journal import JournalFileOpenLock
    from optuna.trial import FrozenTrial, Trial

JOURNAL, LOCKS = "journal.log", "workers.lock"
LOST = "lost: its processes were killed"
TRIES = 3  # attempts at a trial whose process is killed; then the trial itself is likely the cause, for example its memory
WINNER, _TURN, _FIRST = 0, 1, 2  # bytes to lock: to train the winner, to choose a trial, and from there one per trial


def require_packages() -> None:
    """Raise MachineError if the package of the extra `tune` is missing."""
    with packages_of("tune"):
        import optuna  # noqa: F401


def start_alone(device: str | None) -> Accelerator:
    """An Accelerator for a process that trains alone. Raises UsageError if a launcher has started several."""
    accelerator = start_accelerator(device)
    if accelerator.num_processes > 1:
        what = f"tune trains in one process, but was launched as {accelerator.num_processes}"
        raise UsageError(what, hint="start it without a launcher; several such commands share the trials")
    return accelerator


def _drop_cut_line(journal: Path, lock: JournalFileOpenLock) -> None:
    """Cut off half a line at the journal's end, as a full disk leaves it: the next line would be appended to it."""
    lock.acquire()
    try:
        content = journal.read_bytes() if journal.is_file() else b""
        if (whole := content.rfind(b"\n") + 1) < len(content):
            os.truncate(journal, whole)
    finally:
        lock.release()


class Trials(AbstractContextManager):
    """The trials in a folder. seed: decides each trial's point, together with its number and, in a space with ranges, the
    earlier trials. prunes: whether to end a trial early if its evaluations are worse than those of others.
    """

    def __init__(self, folder: Path, space: Space, *, seed: int, prunes: bool) -> None:
        """Raises ModelError for a damaged journal."""
        import optuna
        from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder, self.space, self.seed = folder, space, seed
        self.distributions: dict[str, BaseDistribution] = {
            name: FloatDistribution(values.low, values.high, log=values.log)
            if isinstance(values, Range)
            else CategoricalDistribution(values)
            for name, values in space.items()
        }
        journal = str((folder / JOURNAL).resolve())
        lock = JournalFileOpenLock(journal)
        with disk_errors(folder):
            self._file = (folder / LOCKS).open("a")
            _drop_cut_line(Path(journal), lock)
        try:
            self.study = optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(journal, lock)),
                study_name="tune",
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner() if prunes else optuna.pruners.NopPruner(),
            )
        except (ValueError, KeyError, TypeError) as error:
            what = f"the journal of the trials is damaged: {error}"
            raise ModelError(what, where=journal, hint=NEW_FOLDER) from None

    def __exit__(self, *_: object) -> None:
        self._file.close()

    # --- locks ---

    def lock(self, byte: int, *, wait: bool = False) -> bool:
        """Lock a byte until the end of the process; False if another process has it."""
        with disk_errors(self.folder):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except (BlockingIOError, PermissionError):
                return False
        return True

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude other processes while a trial is chosen."""
        self.lock(_TURN, wait=True)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _TURN)

    # --- a trial's life ---

    def next(self, count: int, deadline: float = math.inf) -> Trial | None:
        """The next trial for this process: one whose process was stopped or killed, else a new one; None if none is left.

        count: of trials in all. deadline: of time.monotonic(); except for the first, no trial starts that would end later if it
        took as long as the longest so far.
        """
        from optuna.samplers import TPESampler
        from optuna.trial import Trial, TrialState

        with self.turn():
            for trial in self.of("RUNNING"):
                if not self.lock(_FIRST + trial.number):
                    continue
                again, tries = Trial(self.study, trial._trial_id), trial.user_attrs.get("tries", 1)
                if trial.user_attrs.get("stopped"):
                    again.set_user_attr("stopped", False)
                    return again
                if "why" not in trial.user_attrs and tries < TRIES:
                    again.set_user_attr("tries", tries + 1)
                    return again
                self.study.tell(trial.number, state=TrialState.FAIL)
            begun = self.begun
            longest = max((trial.user_attrs["seconds"] for trial in self.of("COMPLETE")), default=0.0)
            if begun >= count or (begun and time.monotonic() + longest > deadline):
                return None
            # The seed is the same after a restart; constant_liar, because other processes are running trials.
            self.study.sampler = TPESampler(seed=self.seed + begun, constant_liar=True)
            if self.space.points is not None and not self.of("WAITING"):  # a process that was killed here may have left one
                self.study.enqueue_trial(self.space.point(begun, self.seed))
            new = self.study.ask(self.distributions)
            self.lock(_FIRST + new.number)
            return new

    def of(self, *states: str) -> list[FrozenTrial]:
        """The trials in these states, by their number: RUNNING, COMPLETE (with a score), PRUNED, FAIL."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.name in states]

    @property
    def begun(self) -> int:
        """How many trials have been begun, by any process."""
        return len(self.of("RUNNING", "COMPLETE", "PRUNED", "FAIL"))

    def train(self, trial: Trial, run: Callable[..., dict[str, Any]]) -> None:
        """Train a trial, and record how it ends. run: trains it, calls `on_evaluation` with the score of each evaluation, and
        returns its run.json. A UsageError, as for a loss that is not finite, and lack of GPU memory end only this trial; other
        user errors, those of files, and signals are raised, and the trial is resumed later.
        """
        from optuna import TrialPruned
        from optuna.trial import TrialState

        seconds, begun = trial.user_attrs.get("seconds", 0.0), time.monotonic()
        scores = dict(self.study.trials[trial.number].intermediate_values)  # from before it was stopped or killed
        folder = self.folder_of(trial.number)

        def on_evaluation(score: float | None) -> None:
            if score is not None:
                # the number of this evaluation, which may be repeated after a kill
                number = sum("learning_rate" not in event for event in MetricsLog(folder).read())
                if number not in scores:
                    trial.report(score, number)
                scores[number] = score
                if trial.should_prune():
                    raise TrialPruned

        state, noted = TrialState.COMPLETE, {}
        try:
            done = finished_run(folder, {}, "") or run(on_evaluation=on_evaluation)  # the kill may have come just after its end
            noted = {"scores": done["best"]["scores"]}
            if not scores:
                state, noted = TrialState.FAIL, {"why": "its score is undefined"}
        except TrialPruned:
            state = TrialState.PRUNED
            write_run_file(folder, require_run(folder) | {"status": "pruned"})
        except (UsageError, torch.OutOfMemoryError) as error:
            state, noted = TrialState.FAIL, {"why": str(error).partition("\n")[0]}
        except (UserError, OSError, KeyboardInterrupt):
            noted = {"stopped": True}
            raise
        except Exception as error:
            noted = {"why": f"{type(error).__name__}: {error}".partition("\n")[0]}
            raise
        finally:
            with suppress(OSError) if noted.get("stopped") else nullcontext():  # a full disk, which is the error to show
                for name, value in {**noted, "seconds": seconds + time.monotonic() - begun}.items():
                    trial.set_user_attr(name, value)
        self.study.tell(trial, max(scores.values()) if state is TrialState.COMPLETE else None, state)

    @staticmethod
    def state_of(trial: FrozenTrial) -> str:
        """The state of a trial in words."""
        if trial.state.name == "FAIL":
            why = trial.user_attrs.get("why")
            return f"failed: {why}" if why else LOST
        return {"COMPLETE": "finished"}.get(trial.state.name, trial.state.name.lower())

    def folder_of(self, number: int) -> Path:
        return self.folder / f"trial-{number}"

    def best(self) -> FrozenTrial | None:
        """The trial with the best score; on ties, the first."""
        return max(self.of("COMPLETE"), key=lambda trial: trial.value or 0.0, default=None)

    def drop_weights(self) -> None:
        """Delete the weights of all finished trials except the best."""
        with self.turn(), disk_errors(self.folder):
            best = self.best()
            for folder in (self.folder_of(each.number) for each in self.of("COMPLETE", "PRUNED", "FAIL") if each != best):
                for checkpoint in checkpoints_in(folder):
                    remove_folder(checkpoint)
                for name in WEIGHT_FILES:
                    (folder / name).unlink(missing_ok=True)

    def importances(self) -> dict[str, float]:
        """Each setting's share of the variance of the scores, by fANOVA (Hutter et al., 2014); empty if all are equal."""
        import optuna

        if len({trial.value for trial in self.of("COMPLETE")}) < 2:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}

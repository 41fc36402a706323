"""The trials of a tuning in the journal that its workers share: which comes next, which is lost, which is best.

A worker locks the byte of trial N in a file beside the journal while it trains that trial, so that the others see whether it
lives: such locks end with their process, on network file systems too.
"""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bertkit.errors import ModelError, UsageError, UserError, packages_of
from bertkit.files import disk_errors, remove_folder
from bertkit.model.directory import WEIGHT_FILES
from bertkit.runs.directory import require_run, write_run_file
from bertkit.runs.search_space import Range, Space
from bertkit.training.checkpoint import checkpoints_in

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

JOURNAL, LOCKS = "journal.log", "workers.lock"
LOST = "lost: its process was killed"
WINNER, _TURN, _FIRST = 0, 1, 2  # bytes that are locked: to train the winner, to choose a trial; then one a trial


def require_packages() -> None:
    """Raise MachineError where the package of the extra `tune` is missing."""
    with packages_of("tune"):
        import optuna  # noqa: F401


class Trials(AbstractContextManager):
    """The trials in a folder. seed: of the points that are tried, which it decides together with a trial's number and, in a
    space with ranges, with the trials before it. prunes: whether the others' evaluations end a trial early.
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
        with disk_errors(folder):
            self._file = (folder / LOCKS).open("a")
        try:
            self.study = optuna.create_study(
                storage=optuna.storages.JournalStorage(JournalFileBackend(journal, JournalFileOpenLock(journal))),
                study_name="tune",
                direction="maximize",
                load_if_exists=True,
                pruner=optuna.pruners.MedianPruner() if prunes else optuna.pruners.NopPruner(),
            )
        except (ValueError, KeyError, TypeError) as error:
            what = f"the journal of the trials is damaged: {error}"
            raise ModelError(what, where=journal, hint="choose another --output-dir, or --overwrite") from None

    def __exit__(self, *_: object) -> None:
        self._file.close()

    # --- locks ---

    def lock(self, byte: int, *, wait: bool = False) -> bool:
        """Lock a byte until `unlock` or the end of the process; False where another process has it."""
        with disk_errors(self.folder):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except (BlockingIOError, PermissionError):
                return False
        return True

    def unlock(self, byte: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While this process alone decides."""
        self.lock(_TURN, wait=True)
        try:
            yield
        finally:
            self.unlock(_TURN)

    # --- a trial's life ---

    def next(self, count: int, deadline: float = math.inf) -> Trial | None:
        """The next trial, for this process: one that was stopped by a signal, else a new one; None where none is to begin.

        count: how many there are to be. deadline: by time.monotonic(); but for the first, none begins that would end later if
        it takes as long as the longest so far.
        """
        from optuna.samplers import TPESampler
        from optuna.trial import Trial, TrialState

        with self.turn():
            for trial in self.of("RUNNING"):
                if not self.lock(_FIRST + trial.number):
                    continue
                if trial.user_attrs.get("stopped"):
                    again = Trial(self.study, trial._trial_id)
                    again.set_user_attr("stopped", False)
                    return again
                self.study.tell(trial.number, state=TrialState.FAIL)
            begun = len(self.of("RUNNING", "COMPLETE", "PRUNED", "FAIL"))
            longest = max((trial.user_attrs["seconds"] for trial in self.of("COMPLETE")), default=0.0)
            if begun >= count or (begun and time.monotonic() + longest > deadline):
                return None
            self.study.sampler = TPESampler(
                seed=self.seed + begun, constant_liar=True
            )  # the same after a restart; others are at it
            if self.space.points is not None and not self.of("WAITING"):  # as a process has left it that was killed just here
                self.study.enqueue_trial(self.space.point(begun, self.seed))
            new = self.study.ask(self.distributions)
            self.lock(_FIRST + new.number)
            return new

    def of(self, *states: str) -> list[FrozenTrial]:
        """The trials in these states, by their number: RUNNING, COMPLETE (with a score), PRUNED, FAIL."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.name in states]

    def train(self, trial: Trial, run: Callable[..., dict[str, Any]]) -> None:
        """Train a trial, and note how it ends. run: trains it, calls `evaluated` with the score of each evaluation, and returns
        its run.json. A UsageError, such as of a loss that is not finite, and want of the GPU's memory end this trial alone;
        other errors of the user's and signals are raised, and the trial goes on another time.
        """
        from optuna import TrialPruned
        from optuna.trial import TrialState

        seconds, begun = trial.user_attrs.get("seconds", 0.0), time.monotonic()
        scores = [*self.study.trials[trial.number].intermediate_values.values()]  # of before it was stopped

        def evaluated(score: float | None) -> None:
            if score is not None:
                trial.report(score, len(scores))
                scores.append(score)
                if trial.should_prune():
                    raise TrialPruned

        state, noted = TrialState.COMPLETE, {}
        try:
            noted = {"scores": run(evaluated=evaluated)["best"]["scores"]}
            if not scores:
                state, noted = TrialState.FAIL, {"why": "its score is undefined"}
        except TrialPruned:
            folder, state = self.folder_of(trial.number), TrialState.PRUNED
            write_run_file(folder, require_run(folder) | {"status": "pruned"})
        except (UsageError, torch.OutOfMemoryError) as error:
            state, noted = TrialState.FAIL, {"why": str(error).partition("\n")[0]}
        except (UserError, KeyboardInterrupt):
            noted = {"stopped": True}
            raise
        except Exception as error:
            noted = {"why": f"{type(error).__name__}: {error}".partition("\n")[0]}
            raise
        finally:
            for name, value in {**noted, "seconds": seconds + time.monotonic() - begun}.items():
                trial.set_user_attr(name, value)
        self.study.tell(trial, max(scores) if state is TrialState.COMPLETE else None, state)

    @staticmethod
    def state_of(trial: FrozenTrial) -> str:
        """How a trial stands, for a reader."""
        if trial.state.name == "FAIL":
            why = trial.user_attrs.get("why")
            return f"failed: {why}" if why else LOST
        return {"COMPLETE": "finished"}.get(trial.state.name, trial.state.name.lower())

    def folder_of(self, number: int) -> Path:
        return self.folder / f"trial-{number}"

    def best(self) -> FrozenTrial | None:
        """The trial with the best score; of equal ones the first."""
        return max(self.of("COMPLETE"), key=lambda trial: trial.value or 0.0, default=None)

    def drop_weights(self) -> None:
        """Delete the weights of all trials that have ended, but those of the best."""
        with self.turn(), disk_errors(self.folder):
            best = self.best()
            for folder in (self.folder_of(each.number) for each in self.of("COMPLETE", "PRUNED", "FAIL") if each != best):
                for checkpoint in checkpoints_in(folder):
                    remove_folder(checkpoint)
                for name in WEIGHT_FILES:
                    (folder / name).unlink(missing_ok=True)

    def importances(self) -> dict[str, float]:
        """Each setting's share of the variance of the scores, by fANOVA (Hutter et al., 2014); empty where none vary."""
        import optuna

        if len({trial.value for trial in self.of("COMPLETE")}) < 2:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}

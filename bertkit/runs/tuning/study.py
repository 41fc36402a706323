"""`bertkit tune`: trials of settings, shared by several processes; the best is trained again, and scored on held-out rows.

The dev score of the best of many trials is too optimistic (Cawley and Talbot, 2010). So some rows are held out from all trials,
and the winner's score on these is shown next to its dev score.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from bertkit import progress
from bertkit.config import filled
from bertkit.errors import ModelError, UsageError, listed, plural
from bertkit.files import as_json, read_json, write_json
from bertkit.files.output_folder import Kind, OutputFolder
from bertkit.metrics import bootstrap
from bertkit.metrics.bootstrap import Scorer
from bertkit.metrics.split_gap import compare_splits, draws_of
from bertkit.model.devices import Processes
from bertkit.model.directory import weights_hash
from bertkit.model.precision import refuse_int8
from bertkit.model.pretrained import open_pretrained
from bertkit.readers import Examples
from bertkit.readers.splitting import parse_held_out
from bertkit.report import Finding, Report, Table, show
from bertkit.runs.directory import NEW_FOLDER
from bertkit.runs.encoded import encode_split
from bertkit.runs.finetuning.baselines import refuse_failing_metrics
from bertkit.runs.finetuning.finetune import Given, finetune
from bertkit.runs.finetuning.series import finetune_series
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.request import Request
from bertkit.runs.run_file import read_run_file, refuse_changed
from bertkit.runs.series import SEEDS
from bertkit.runs.target import Opened, open_model_or_run
from bertkit.runs.tuning.search_space import Range, Space, shown
from bertkit.runs.tuning.trials import JOURNAL, LOCKS, LOST, TRIES, WINNER, Trials, require_packages, start_alone
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import SET_ASIDE, Splits, read_splits
from bertkit.tasks.task import Task
from bertkit.training.loop import refuse_overlap

DRAWN = 20  # default number of trials for a space with ranges
TUNING_FILE, _BEST = "tune.json", "best"
_PARTS = re.compile(rf"{TUNING_FILE}|{re.escape(JOURNAL)}(\.lock.*)?|{LOCKS}|{_BEST}(\.old-\d+)?|trial-\d+")
TUNING = Kind("tuning", None, _PARTS)


class Search(NamedTuple):
    """How to search. trials: their number; default: all points of the space, or DRAWN with ranges. seeds: of the winner.

    held_out: a share of the training rows, or the name of a split. seconds: no trial starts that would end later. prunes:
    default: only if there are ranges. keep_trials: keep the weights of all trials, not only of the best.
    """

    trials: int | None
    seeds: int
    held_out: str
    seconds: float
    prunes: bool | None
    keep_trials: bool


class _Tuning(NamedTuple):
    """What all trials share. resolved: the request's recipe. dev: the split whose first score decides. split: that of the rows
    that no trial sees. wanted: how many trials.
    """

    request: Request
    resolved: Recipe
    dev: str
    data: Splits
    split: str
    plan: dict[str, Any]
    wanted: int

    def trial(self, settings: Mapping[str, Any]) -> Request:
        """What a trial with these settings trains."""
        return self.request.with_recipe(self.request.recipe.overridden(settings))


def tune(request: Request, space: Space, output_dir: Path, search: Search, *, overwrite: bool) -> dict[str, Any] | None:
    """Train trials into output_dir/trial-N, and the winner with several seeds into output_dir/best; returns what tune.json has.

    Several processes can run it on the same folder at once: each takes trials, resumes those that were stopped or killed, and
    the last one trains the winner; the others return None. Raises MachineError without optuna, UsageError if the folder holds a
    tuning with other settings, or no trial has a score.
    """
    require_packages()
    deadline, training = time.monotonic() + search.seconds, request.recipe.training
    refuse_int8(training.precision, "training")
    if {"schedule", "warmup_ratio", "decay_ratio"}.isdisjoint(space):
        refuse_overlap(training)
    accelerator = start_alone(training.device)
    search = search._replace(prunes=space.points is None if search.prunes is None else search.prunes)
    tuning, output = _prepare(request, space, output_dir, search, overwrite=overwrite)
    output.move_aside()
    output_dir.mkdir(parents=True, exist_ok=True)
    unseen = plural(len(tuning.data.rows[tuning.split]), "row")
    progress.note(f"{plural(tuning.wanted, 'trial')} of {space}; held out from tuning: {unseen}")
    with Trials(output_dir, space, seed=filled(training).seed, prunes=bool(search.prunes)) as trials:
        with trials.turn():
            _settle_plan(output_dir, tuning.plan)
        _train_trials(tuning, trials, deadline, keep=search.keep_trials)
        others = [str(trial.number) for trial in trials.of("RUNNING")]
        if others or not trials.lock(WINNER):
            what = f"trial {listed(others)}" if others else "the winner"
            progress.note(f"another process is still training {what}; the last to finish trains the winner")
            return None
        summary = _train_winner(tuning, trials, output_dir, search.seeds, accelerator)
    show(report_tuning(summary, output_dir))
    _warn_of_lost(summary["trials"])
    folder = output_dir / _BEST
    progress.note(f"the winner's runs are in {folder}; next: bertkit predict {quote(str(folder))} FILE")
    return summary


def _prepare(
    request: Request, space: Space, output_dir: Path, search: Search, *, overwrite: bool
) -> tuple[_Tuning, OutputFolder]:
    """Read and check the rows of all splits, and the folder. Raises UsageError, DataError."""
    held_out = split = search.held_out
    if parse_held_out(held_out) is not None:
        request, split = request.with_recipe(replace(request.recipe, set_aside=held_out)), SET_ASIDE
    resolved, pretrained = request.recipe.resolved(), open_model_or_run(request.model)
    if held_out in (*resolved.splits, SET_ASIDE):
        hint = "give a share of the training rows, such as 10%, or another split, such as test"
        raise UsageError(f"--held-out is {held_out}; expected rows that no trial sees", hint=hint)
    dev = resolved.first_eval_split
    output = OutputFolder.prepare(output_dir, TUNING, resume=True, overwrite=overwrite, reads=request.reads)
    data = read_splits(resolved, (*resolved.splits, split))
    task, examples = request.fit_and_read(resolved, data, pretrained)
    refuse_failing_metrics(task, examples[resolved.train_split], examples[dev])
    plan: dict[str, Any] = {
        **request.plan(asdict(request.recipe.training), weights_hash(pretrained.folder)),
        "data": {"sha256": data.sha256},
        "tuning": {"search": space, "held_out": held_out, "prune": search.prunes},
    }
    wanted = min(search.trials or space.points or DRAWN, space.points or sys.maxsize)
    return _Tuning(request, resolved, dev, data, split, as_json(plan), wanted), output


def _train_trials(tuning: _Tuning, trials: Trials, deadline: float, *, keep: bool) -> None:
    """Train the trials that no process has taken, until the deadline. keep: the weights of all, not only of the best."""
    data = tuning.data._replace(rows={split: tuning.data.rows[split] for split in tuning.resolved.splits})
    for number, trial in enumerate(iter(partial(trials.next, tuning.wanted, deadline), None)):
        progress.note(f"trial {trial.number} (number {number + 1} of this process): {_settings_text(trial.params)}")
        given = Given(data, remarks_shown=number > 0, metrics_tried=True)
        folder = trials.folder_of(trial.number)
        trials.train(trial, partial(finetune, tuning.trial(trial.params), folder, is_part=True, given=given))
        if not keep:
            trials.drop_weights()
    if (begun := trials.begun) < tuning.wanted:
        so_far = f"{begun} of {plural(tuning.wanted, 'trial')} started"
        progress.note(f"--budget: this process starts no more trials, as the next may end too late; {so_far}")


def _train_winner(tuning: _Tuning, trials: Trials, output_dir: Path, seeds: int, processes: Processes) -> dict[str, Any]:
    """Train the best trial's settings with several seeds; returns what tune.json has. Raises UsageError without a score."""
    summary = {"plan": tuning.plan, **_describe(trials, 1 if tuning.resolved.greater_is_better else -1)}
    if (best := trials.best()) is None:
        show(report_tuning(summary, output_dir))
        hint = "the column state shows why; try lower learning rates"
        raise UsageError("no trial has a score", where=str(output_dir), hint=hint)
    write_json(output_dir / TUNING_FILE, summary)
    if equal := [str(each.number) for each in trials.of("COMPLETE") if each.value == best.value and each != best]:
        progress.warn(f"trials {listed([str(best.number), *equal])} have the best score; the first is used")
    progress.note(f"trial {best.number} is the best; it is trained again with {plural(seeds, 'seed')}")
    winner, folder = tuning.trial(best.params), output_dir / _BEST
    finetune_series(SEEDS, winner, folder, count=seeds, overwrite=not _has_settings(folder, best.params))
    judged = {split: tuning.data.rows[split] for split in (tuning.dev, tuning.split)}
    summary["gap"] = _gap(winner.recipe.resolved(), SEEDS.runs_in(folder), judged, processes)
    write_json(output_dir / TUNING_FILE, summary)
    return summary


def _has_settings(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the runs of a former winner, if any, have these settings; another trial may have won since."""
    runs = (run for run in map(read_run_file, SEEDS.begun_in(folder)) if run is not None)
    return all({**run["recipe"], **run["training"]}.get(name) == value for run in runs for name, value in settings.items())


def _warn_of_lost(trials: Sequence[Mapping[str, Any]]) -> None:
    if lost := [trial for trial in trials if trial["state"] == LOST]:
        never = "; ".join(_settings_text(trial["settings"]) for trial in lost)
        have, each = ("has", "it") if len(lost) == 1 else ("have", "each")
        what = f"{len(lost)} of {plural(len(trials), 'trial')} {have} no score"
        progress.warn(f"{what}: {each} was killed {TRIES} times ({never})")


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in settings.items())


def _read(folder: Path) -> dict[str, Any]:
    """tune.json; empty without one. Raises ModelError for a damaged one."""
    path = folder / TUNING_FILE
    values = read_json(path, NEW_FOLDER)
    if values and not isinstance(values.get("plan"), dict):
        raise ModelError(f"{path.name} is damaged: it has no plan", where=str(path), hint=NEW_FOLDER)
    return values


def _settle_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan that all processes share. Raises UsageError if the folder has another one."""
    earlier = _read(folder).get("plan")
    refuse_changed(earlier or plan, plan, "a tuning", folder, hint=f"repeat its command, or {NEW_FOLDER}")
    if earlier is None:
        write_json(folder / TUNING_FILE, {"plan": plan})


def _describe(trials: Trials, sign: int) -> dict[str, Any]:
    """The trials (best first), the winner, and the settings' importance. sign: -1 if a lower score is better."""
    best, complete = trials.best(), trials.of("COMPLETE")
    ranked = [*sorted(complete, key=lambda trial: -(trial.value or 0.0)), *trials.of("PRUNED", "FAIL")]
    return {
        "trials": [
            {
                "trial": trial.number,
                "state": trials.state_of(trial),
                "settings": trial.params,
                "score": None if trial.value is None else sign * trial.value,
                "evaluations": [sign * score for _, score in sorted(trial.intermediate_values.items())],
                "seconds": trial.user_attrs.get("seconds"),
            }
            for trial in ranked
        ],
        "winner": best and {"trial": best.number, "settings": best.params, "scores": best.user_attrs["scores"]},
        "mattered": [
            {
                "setting": name,
                "importance": share,
                "means": {
                    shown(value): sign * statistics.fmean(values)
                    for value in (() if isinstance(trials.space[name], Range) else trials.space[name])
                    if (values := [trial.value or 0.0 for trial in complete if trial.params[name] == value])
                },
            }
            for name, share in trials.importances().items()
        ],
    }


def _gap(recipe: Recipe, runs: Sequence[Path], rows: Mapping[str, Examples], processes: Processes) -> dict[str, Any]:
    """`compare_splits` of runs on two splits."""
    scorers: list[list[Scorer]] = []
    for run in runs:
        pretrained = open_pretrained(str(run))
        task = Task.restore(pretrained.config, recipe, where=str(run))
        data = {split: encode_split(task, split, each, pretrained.tokenizer, checked=True) for split, each in rows.items()}
        scored = TaskPredictor(Opened(pretrained, task, None), processes).evaluate(data)
        scorers.append([task.scorer(scored.predictions[split], scored.truth[split]) for split in rows])
    counts = [len(scored.truth[split]) for split in rows]
    draws = progress.with_bar(draws_of(len(scorers), counts), "resample", bootstrap.RESAMPLES)
    return compare_splits(scorers, counts, draws)


def report_tuning(summary: Mapping[str, Any], folder: Path) -> Report:
    """Tables of the trials, of the settings' importance, and of the winner's scores on dev rows and on held-out rows.

    summary: the content of tune.json, which is only the plan until the last trial has ended.
    """
    winner, gap = summary.get("winner"), summary.get("gap", {})
    names, score = [*summary["plan"]["tuning"]["search"]], next(iter(winner["scores"])) if winner else "score"
    rows = [
        [
            trial["trial"],
            *(shown(trial["settings"].get(name)) for name in names),
            trial["score"],
            trial["state"],
            None if trial["seconds"] is None else round(trial["seconds"]),
        ]
        for trial in summary.get("trials", ())
    ]
    parts: list[Table | Finding] = [Table(f"{folder}: trials", ["trial", *names, score, "state", "seconds"], rows)]
    mattered = summary.get("mattered")
    if mattered and (len(names) > 1 or mattered[0]["means"]):  # the only setting has the whole share
        importances = [
            [each["setting"], each["importance"], ", ".join(f"{value}: {mean:.4f}" for value, mean in each["means"].items())]
            for each in mattered
        ]
        parts.append(
            Table("importance of settings", ["setting", "share of the variance", f"mean {score} by value"], importances)
        )
    elif mattered == []:
        parts.append(Finding("note", "cannot tell which settings matter: no two complete trials have different scores"))
    if winner and gap:
        split = score.rpartition("/")[0]
        rows = [
            [name, each["dev"], each["held_out"], each["difference"], progress.format_interval(each["interval"], "+.4f")]
            for name, each in gap.items()
        ]
        title = f"the winner, trial {winner['trial']}: {_settings_text(winner['settings'])}"
        parts.append(Table(title, ["mean", split, "held out", "difference", "95% interval"], rows))
    return Report(parts, summary)

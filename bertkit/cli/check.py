"""bertkit check"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, Overwrite, print_json, recipe_options, require_output_dir, with_options
from bertkit.config import PretrainConfig, options_for
from bertkit.errors import DataError, MachineError, ModelError, UsageError, flag_of
from bertkit.readers import Examples
from bertkit.readers.remote import is_url
from bertkit.tasks.recipe import Recipe

_OF_CORPUS = {name: ("Sequences", each) for name, each in options_for("corpus", PretrainConfig).items()}
_OF_DATA = recipe_options("check")


@with_options(_OF_DATA | {name: each for name, each in _OF_CORPUS.items() if name not in _OF_DATA})
def check(
    target: Annotated[
        str,
        typer.Argument(
            help="A recipe, a task family, a data file, its URL, a data folder, a run folder, or a corpus.", metavar="TARGET"
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model whose tokenizer to use; also times three training steps."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe or task family of the data. Default: detected.")] = None,
    examples: Annotated[int, typer.Option(help="Number of examples to show.", min=1)] = 5,
    as_json: AsJson = False,
    label_errors: Annotated[
        bool,
        typer.Option(
            "--label-errors", help="Train on folds of the training rows, and rank all rows by how likely their label is wrong."
        ),
    ] = False,
    folds: Annotated[int | None, typer.Option(min=2, help="Folds of --label-errors; default: 5.", metavar="N")] = None,
    learning_curve: Annotated[
        str | None,
        typer.Option(help="Train on these percentages of the training rows, to see if more would help.", metavar="25,50,100"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds of --learning-curve; default: 3.", metavar="N")] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", help="Folder for the runs and results of --label-errors and --learning-curve.", metavar="DIR"
        ),
    ] = None,
    overwrite: Overwrite = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Show data as training will see it, and report problems; exit code 3 if there are errors.

    Labelled data: labels and their counts, labels missing from training, duplicates and contradictions within and across
    splits, empty texts, broken characters, and with --model sequence lengths, \\[UNK] and examples. A corpus: its first
    sequences and prediction targets; with a training run's options, exactly the ones that run sees.

    Only --label-errors and --learning-curve train models; if stopped, the same command resumes. With them, TARGET is a file
    of rows, a run, or a recipe or family with --train.

    [bold]bertkit check mrpc --data glue/MRPC --model bert-base-uncased[/]

    [bold]bertkit check my.csv --text question --label kind --model minilm[/]

    [bold]bertkit check corpora/mine --masking whole-word --examples 20[/]

    [bold]bertkit check my.csv --text question --label kind --model minilm --label-errors --output-dir checks/mine[/]
    """
    from bertkit.corpus.directory import META
    from bertkit.runs.glue.benchmark import NAME

    to_train = _ToTrain(label_errors, folds, learning_curve, seeds, output_dir, overwrite)
    to_train.refuse_incomplete()
    if target == NAME:
        raise UsageError("check takes one task of glue at a time", hint="for example: bertkit check mrpc --data glue/MRPC")
    if (Path(target) / META).is_file():
        if to_train:
            raise UsageError(
                "a corpus has no labels to check", where=target, hint="leave out --label-errors and --learning-curve"
            )
        of_data = {name for name, given in (("model", model), ("recipe", recipe)) if given is not None}
        if others := sorted({*overrides, *of_data} - set(_OF_CORPUS)):
            raise UsageError(f"{flag_of(others[0])} is for labelled data, not for a corpus", where=target)
        _check_corpus(Path(target), overrides, examples, as_json=as_json)
        return
    if others := sorted(set(overrides) - set(_OF_DATA)):
        raise UsageError(f"{flag_of(others[0])} is for a corpus; {target} is not one", hint="build one: bertkit corpus build")
    _check_data(target, model, recipe, overrides, examples, to_train, as_json=as_json)


@dataclass(frozen=True)
class _ToTrain:
    """The options of --label-errors and --learning-curve, which train."""

    label_errors: bool
    folds: int | None
    learning_curve: str | None
    seeds: int | None
    output_dir: Path | None
    overwrite: bool

    def __bool__(self) -> bool:
        return self.label_errors or self.learning_curve is not None

    def refuse_incomplete(self) -> None:
        """Raise UsageError for an option without effect, or a missing one."""
        needs = {
            "--folds": (self.folds, self.label_errors, "--label-errors"),
            "--seeds": (self.seeds, self.learning_curve, "--learning-curve"),
            "--output-dir": (self.output_dir, self, "--label-errors or --learning-curve"),
            "--overwrite": (self.overwrite, self, "--label-errors or --learning-curve"),
        }
        for flag, (given, needed, name) in needs.items():
            if given and not needed:
                raise UsageError(f"{flag} has no effect without {name}", hint=f"add {name}, or leave it out")
        if self:
            require_output_dir(self.output_dir, "checks/mine")
        self.shares()

    def refuse_unfit(self, recipe: Recipe) -> None:
        """Raise UsageError for a recipe that these options do not apply to."""
        from bertkit.runs.checks.label_errors import refuse_classless
        from bertkit.runs.checks.learning_curve import refuse_unevaluated

        if self.label_errors:
            refuse_classless(recipe)
        if self.learning_curve is not None:
            refuse_unevaluated(recipe)

    def shares(self) -> list[float]:
        """The percentages of --learning-curve; empty without it. Raises UsageError."""
        from bertkit.runs.checks.learning_curve import parse_shares

        return [] if self.learning_curve is None else parse_shares(self.learning_curve)

    def run(self, recipe: Recipe, rows: Examples, *, name: str, model: str, count: int) -> dict[str, Any]:
        """Train and show; returns the findings for --json. rows: to train on, standardized. count: of rows to show."""
        from bertkit.report import show
        from bertkit.runs.checks.label_errors import find_label_errors, open_output, refuse_trained, report_label_errors
        from bertkit.runs.checks.learning_curve import measure_learning_curve, report_learning_curve

        assert self.output_dir is not None
        if self.label_errors:
            refuse_trained(model, recipe, rows)
        how: dict[str, Any] = {"name": name, "model": model, "output_dir": self.output_dir}
        found = {}
        with open_output(recipe, overwrite=self.overwrite, **how):
            if self.label_errors:
                found["label_errors"] = find_label_errors(recipe, folds=self.folds or 5, **how)
                show(report_label_errors(found["label_errors"], self.output_dir, count))
            if shares := self.shares():
                found["learning_curve"] = measure_learning_curve(recipe, shares, seeds=self.seeds or 3, **how)
                show(report_learning_curve(found["learning_curve"]))
        return found


def _check_data(
    target: str,
    model: str | None,
    recipe: str | None,
    overrides: dict[str, Any],
    count: int,
    to_train: _ToTrain,
    *,
    as_json: bool,
) -> None:
    from bertkit import progress
    from bertkit.model.pretrained import open_pretrained
    from bertkit.report import show
    from bertkit.runs.checks.check import check_data
    from bertkit.runs.checks.target import open_data
    from bertkit.runs.finetuning.baselines import baselines_of_data
    from bertkit.runs.finetuning.finetune import finetune
    from bertkit.runs.run_file import require_run
    from bertkit.tasks import Task
    from bertkit.tasks.preview import preview

    opened, splits, is_run = open_data(target, recipe, overrides)
    to_train.refuse_unfit(opened)
    of_run = is_run and model is None and not to_train
    if is_run:  # a run has learned its rows' labels; the model that it was trained from has not
        run = require_run(Path(target))
        model, recipe = model or run["model"]["name"], recipe or (run["recipe"]["name"] if to_train else None)
    elif to_train and model is None:
        raise UsageError("--model is missing", hint="give the model to train, a folder, a hub id, or minilm")
    try:
        pretrained = open_pretrained(model) if model is not None else None
    except (MachineError, ModelError) as error:
        if not of_run:
            raise
        progress.warn(f"using the run's own weights, which were trained on these rows: {error}")
        model, pretrained = target, open_pretrained(target)
    checked = check_data(opened, splits, pretrained)
    report = checked.report(target)
    if pretrained is None:
        progress.note("without --model, lengths and unknown tokens are not checked, and no examples are shown")
        scored = opened.eval_splits[:1] if not checked.has_errors else ()
        try:
            for to_beat in filter(None, (baselines_of_data(opened, split) for split in scored)):
                show(to_beat.report())
        except DataError as error:  # too few rows to hold some out, which finetune requires
            progress.note(f"cannot compute baselines: {error}")
    show(report)
    if pretrained is not None and checked.has_errors:
        if checked.splits:  # at least one could be read
            task, rows = Task.unfitted(opened), next(iter(checked.splits.values()))
            features = task.encode(rows, pretrained.tokenizer, labelled=False).features
            show(preview(task, rows, features, pretrained.tokenizer, count=count))
    elif model is not None and to_train:
        is_data = is_url(target) or (Path(target).exists() and not target.endswith(".py"))
        name = recipe or (opened.family if is_data else target)
        name = str(Path(name).resolve()) if name.endswith(".py") else name
        report.json.update(to_train.run(opened, checked.splits[opened.train_split], name=name, model=model, count=count))
    elif model is not None:
        options: dict[str, Any] = {"fresh_head": True, "dry_run": True, "checked": True, "num_examples": count}
        report.json["measured"] = finetune(opened, name=target, model=model, output_dir=Path(), baselines=True, **options)
    print_json(report.json, wanted=as_json)
    if checked.has_errors:
        raise typer.Exit(DataError.exit_code)


def _check_corpus(corpus: Path, overrides: dict[str, Any], examples: int, *, as_json: bool) -> None:
    import numpy as np

    from bertkit import progress
    from bertkit.corpus.corpora import open_corpora
    from bertkit.corpus.preview import LEGEND, count_targets, draw_sequences, show_share_read, warn_of_absent_entities
    from bertkit.runs.pretraining.sequences import sampler_of
    from bertkit.text.tokenizer import Tokenizer

    config = PretrainConfig.of(overrides)
    (opened,) = open_corpora([corpus])
    sampler = sampler_of(opened, "train", Tokenizer.load(corpus), config, config.max_length)
    count, exact = sampler.epoch_length(opened.meta["train"]["tokens"])
    if not as_json:  # JSON has the standard output to itself
        progress.show([LEGEND, *draw_sequences(sampler, examples)])
    features = sampler.sequences(np.arange(sampler.in_first_epoch(1000)))
    counts: dict[str, Any] = {
        "sequences per epoch" if exact else "sequences per epoch, about": count,
        "mean tokens per sequence": float(features.num_tokens.mean()),
    }
    counts |= count_targets(sampler, features)
    progress.table(f"{corpus}: the first {len(features)} sequences", list(counts), [list(counts.values())])
    show_share_read(sampler)
    warn_of_absent_entities([sampler])
    print_json(counts, wanted=as_json)

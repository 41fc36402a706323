"""bertkit eval"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, Ensemble, RecipeOfModel, RunOrModel, print_json, recipe_options, with_options
from bertkit.errors import UsageError


@with_options(recipe_options("eval"))
def evaluate(
    target: RunOrModel,
    recipe: RecipeOfModel = None,
    split: Annotated[list[str] | None, typer.Option(help="Split to score; can be repeated. Default: the recipe's.")] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            "--output",
            help="Folder for the predictions, which replace earlier ones; further splits go into subfolders.",
            metavar="DIR",
        ),
    ] = None,
    ensemble: Ensemble = False,
    intervals: Annotated[bool, typer.Option("--intervals", help="Show 95% bootstrap intervals of the scores.")] = False,
    errors: Annotated[int, typer.Option(help="Number of worst errors to show per split.", min=0)] = 0,
    as_json: AsJson = False,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="Corpus to score a pre-trained model on; can be repeated. Default: those it was trained on.", metavar="CORPUS"
        ),
    ] = None,
    *,
    overrides: dict[str, Any],
) -> None:
    """Score a model on its recipe's splits or other data, or a pre-trained model on the held-out part of a corpus.

    [bold]bertkit eval runs/mrpc[/]

    [bold]bertkit eval runs/mnli --intervals --errors 10[/]

    [bold]bertkit eval runs/mnli --validation more.jsonl --json[/]

    [bold]bertkit eval ./some-mnli-model --recipe mnli --data glue/MNLI[/]
    """
    from bertkit import progress
    from bertkit.report import Report, Table, show
    from bertkit.runs.inference.held_out_corpora import evaluate_corpora
    from bertkit.runs.inference.language_model import is_language_model, refuse_task_options
    from bertkit.runs.inference.scores import evaluate_target, refuse_unfit_folder, report_scores, write_predictions
    from bertkit.runs.series import runs_to_use
    from bertkit.runs.target import open_target

    if output_dir is not None:
        refuse_unfit_folder(output_dir)
    run, *others = runs_to_use(target, ensemble=ensemble)
    if recipe is None and is_language_model(run):
        flags = {"split": split, "output_dir": output_dir, "intervals": intervals, "errors": errors}
        refuse_task_options(overrides | {name: value for name, value in flags.items() if value})
        scores = evaluate_corpora(run, corpus or [], overrides)
        print_json(scores, wanted=as_json)
        show(Report([Table(target, ["score", "value"], [[*score] for score in scores.items()])]))
        return
    if corpus:
        raise UsageError("--corpus is for pre-trained models; a recipe has its own data")
    opened = open_target(run, recipe, overrides, others=others)
    found = evaluate_target(opened, tuple(split) if split else None)
    progress.note(f"computed in {found.predictor.precision.name}")
    report = report_scores(target, found, intervals=intervals, errors=errors)
    show(report)
    print_json(report.json, wanted=as_json)
    if output_dir is not None and not progress.console.quiet:
        write_predictions(opened.task, found, output_dir)

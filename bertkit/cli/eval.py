"""bertkit eval"""

from __future__ import annotations

from functools import partial
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
            help="Folder for the predictions, which replace earlier ones; further splits go into subfolders.",
            metavar="DIR",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", hidden=True)] = None,  # as for predict
    ensemble: Ensemble = False,
    intervals: Annotated[bool, typer.Option("--intervals", help="Show 95% bootstrap confidence intervals.")] = False,
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
    from bertkit.runs.evaluation.evaluate import evaluate

    if output is not None and output_dir is not None:
        raise UsageError("--output-dir is given twice, once as --output", hint="leave out one of them")
    evaluate(
        target,
        recipe,
        overrides,
        splits=split or (),
        corpora=corpus or (),
        output_dir=output_dir or output,
        ensemble=ensemble,
        intervals=intervals,
        errors=errors,
        on_scores=partial(print_json, wanted=as_json),
    )

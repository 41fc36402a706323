"""bertkit eval"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import TRAINED_BY, with_options
from bertkit.config import INFERENCE, options_of
from bertkit.errors import UsageError
from bertkit.tasks import FAMILIES


@with_options([*({name for family in FAMILIES.values() for name in options_of(family)} - TRAINED_BY), *INFERENCE])
def evaluate(
    target: Annotated[
        str, typer.Argument(help="A run folder, or any Hugging Face model of the recipe's kind.", metavar="RUN|MODEL")
    ],
    recipe: Annotated[str | None, typer.Option(help="Needed for a model that is no run of bertkit.")] = None,
    split: Annotated[list[str] | None, typer.Option(help="Split to score; may be repeated. Default: the recipe's.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder to write predictions to; of a second split below it.", metavar="DIR")
    ] = None,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Show the 95% interval of each score, by a bootstrap over the rows.")
    ] = False,
    errors: Annotated[int, typer.Option(help="Show so many of the worst errors of each split.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write the scores to stdout as JSON.")] = False,
    corpus: Annotated[
        Path | None, typer.Option(help="Corpus to score a pre-trained model on. Default: its own.", metavar="CORPUS")
    ] = None,
    typed: dict[str, Any] | None = None,
) -> None:
    """Score a model on the splits of its recipe, or on other data; a pre-trained one on what a corpus holds out.

    [bold]bertkit eval runs/mrpc[/]

    [bold]bertkit eval runs/mnli --intervals --errors 10[/]

    [bold]bertkit eval runs/mnli --validation more.jsonl --json[/]

    [bold]bertkit eval ./some-mnli-model --recipe mnli --data glue/MNLI[/]
    """
    from bertkit import progress
    from bertkit.files import disk_errors
    from bertkit.metrics.bootstrap import RESAMPLES
    from bertkit.runs import masked_inference
    from bertkit.runs import predict as inference
    from bertkit.runs.scores import show_scores
    from bertkit.tasks.recipe import published_scores

    if output is not None and output.is_file():
        raise UsageError("--output is a file; expected a folder", where=str(output))
    if recipe is None and masked_inference.is_language_model(target):
        given = {"split": split, "output": output, "intervals": intervals, "errors": errors}
        masked_inference.refuse_others((typed or {}) | {name: value for name, value in given.items() if value})
        found = masked_inference.evaluate_corpus(target, corpus, typed or {})
        if as_json and not progress.console.quiet:
            typer.echo(json.dumps(found))
        progress.table(target, ["score", "value"], list(found.items()))
        return
    if corpus is not None:
        raise UsageError("--corpus is for pre-trained models; a recipe names its data")
    opened = inference.open_target(target, recipe, typed or {})
    scored, examples = inference.evaluate_target(opened, tuple(split) if split else None)
    if output is not None and not progress.console.quiet:
        for number, (name, predictions) in enumerate(scored.predictions.items()):
            folder = output / name if number else output
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                for file, content in opened.recipe.files(predictions, examples[name]).items():
                    (folder / file).write_text(content, encoding="utf-8")
            progress.note(f"wrote the predictions on {name} to {folder}")
    task = opened.recipe.settled()
    found = show_scores(
        target,
        task,
        scored,
        examples,
        published=published_scores(task, opened.trained_from),
        published_by=opened.trained_from,
        resamples=RESAMPLES if intervals else 0,
        errors=errors,
    )
    if as_json and not progress.console.quiet:
        typer.echo(json.dumps(found))

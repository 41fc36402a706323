"""bertkit predict"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import Ensemble, RecipeOfModel, RunOrModel, recipe_options, with_options
from bertkit.config import options_of
from bertkit.tasks.output import OutputLayout

_LAYOUT = {name: ("Output", option) for name, option in options_of(OutputLayout).items()}


@with_options(_LAYOUT | recipe_options("predict"))
def predict(
    target: RunOrModel,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="CSV, TSV, JSONL, Parquet, Excel, CoNLL, SQuAD JSON or text, depending on the task; patterns and URLs too. "
            "Default: -, stdin.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Predict a split of the run's own data, or of --data, instead of a file.")
    ] = None,
    recipe: RecipeOfModel = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", help="Output file: .jsonl, .csv, .tsv (also with .gz), .parquet; for tags also .conll, .conllu."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="Folder for the outputs of several files, one per file.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Format on stdout (text, jsonl, csv, tsv; for tags conll, conllu) or in --output-dir (jsonl, csv, tsv, "
            "parquet; for tags conll, conllu). Default: text in a terminal, else jsonl. For annotation tools, also with "
            "--output: label-studio, doccano or prodigy.",
        ),
    ] = None,
    ensemble: Ensemble = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the output, finished or not. Without it, an unfinished output is continued and a finished one "
            "refused.",
        ),
    ] = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Predict each row of a file, in order: a label, a choice, tags, or an answer, with its probability.

    A pre-trained model fills each \\[MASK] in lines of text, or in the column text of a table.

    [bold]bertkit predict runs/mine new.csv --output predictions.csv[/]

    [bold]echo "Where is my parcel?" | bertkit predict runs/helpdesk[/]

    [bold]bertkit predict runs/mine 'in/*.parquet' --keep all --output-dir out[/]

    [bold]bertkit predict runs/mrpc --split test --output test.tsv[/]

    [bold]bertkit predict runs/conll2003 news.txt --output news.conll[/]

    [bold]bertkit predict runs/mine new.csv --uncertain 200 --format label-studio --output tasks.json[/]

    [bold]bertkit predict runs/squad page.txt --question "Who founded it?"[/]

    [bold]echo "The \\[MASK] is closed." | bertkit predict bert-base-uncased[/]
    """
    from bertkit.runs.prediction.predict import predict_to

    predict_to(
        target,
        files or [],
        split=split,
        recipe=recipe,
        output=output,
        output_dir=output_dir,
        form=form,
        ensemble=ensemble,
        overwrite=overwrite,
        overrides=overrides,
    )

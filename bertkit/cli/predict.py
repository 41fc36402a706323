"""bertkit predict"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import INFERENCE, with_options
from bertkit.errors import UsageError
from bertkit.tasks import FAMILIES


@with_options([*dict.fromkeys(name for cls in FAMILIES.values() for name in cls.inputs), "columns", "separator", *INFERENCE])
def predict(
    target: Annotated[str, typer.Argument(help="A run folder, or any Hugging Face BERT with a head.", metavar="RUN|MODEL")],
    file: Annotated[
        str, typer.Argument(help="CSV, TSV, JSONL, CoNLL, SQuAD JSON or lines of text, as the task takes; - is stdin.")
    ] = "-",
    recipe: Annotated[str | None, typer.Option(help="The recipe to use a model by that is no run of bertkit.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write: .jsonl, .csv, .tsv, or for tags .conll.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="What to write to stdout: text (for a person; the default at a terminal), jsonl, ..."),
    ] = None,
    typed: dict[str, Any] | None = None,
) -> None:
    """Predict for each row of a file, in order: a label, a choice, tags, or an answer, with its probability.

    [bold]bertkit predict runs/mine new.csv --output predictions.csv[/]

    [bold]echo "Where is my parcel?" | bertkit predict runs/helpdesk[/]

    [bold]bertkit predict runs/conll2003 news.txt --output news.conll[/]

    [bold]bertkit predict runs/squad page.txt --question "Who founded it?"[/]
    """
    from bertkit import inference, progress
    from bertkit.checkpoint import disk_errors

    endings = list(dict.fromkeys(ending for cls in FAMILIES.values() for ending in cls.prediction_endings))
    if output is not None:
        _check_output(output, file, endings)
    elif form is not None and form != "text" and f".{form}" not in endings:
        raise UsageError(f"--format is {form!r}; expected text, {' or '.join(ending[1:] for ending in endings)}")
    opened = inference.open_target(target, recipe, typed or {}, to_predict=True)
    form = output.suffix[1:] if output else form or ("text" if sys.stdout.isatty() else "jsonl")
    if form != "text" and f".{form}" not in opened.recipe.prediction_endings:
        known = ", ".join(ending[1:] for ending in opened.recipe.prediction_endings)
        raise UsageError(f"{opened.recipe.family} is not written as {form}; expected {known}")
    examples, predictions = inference.predict_file(opened, file, typed or {})
    if progress.console.quiet:
        return
    if output is not None:
        with disk_errors(output):
            output.write_text(opened.recipe.formatted(predictions, examples, output.suffix), encoding="utf-8", newline="")
        progress.note(f"wrote {len(predictions)} predictions to {output}")
    elif form == "text":
        progress.show(opened.recipe.show(prediction, examples, at) for at, prediction in enumerate(predictions))
    else:
        typer.echo(opened.recipe.formatted(predictions, examples, f".{form}"), nl=False)


def _check_output(output: Path, file: str, endings: list[str]) -> None:
    """Raise UsageError for a file that cannot be what is wanted, before any work."""
    if output.suffix not in endings:
        raise UsageError(
            f"--output {output} ends in {output.suffix or 'nothing'}; expected {', '.join(endings[:-1])} or {endings[-1]}"
        )
    if not output.absolute().parent.is_dir():
        raise UsageError("the folder of --output does not exist", where=str(output.parent))
    if output.resolve() == Path(file).resolve():
        raise UsageError(f"--output {output} is the file to read", hint="choose another name")

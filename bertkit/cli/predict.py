"""bertkit predict"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from bertkit.cli.options import with_options
from bertkit.config import INFERENCE
from bertkit.errors import UsageError
from bertkit.tasks import FAMILIES
from bertkit.tasks.output import FORMATS


@with_options(
    [*dict.fromkeys(name for cls in FAMILIES.values() for name in cls.inputs), "data", "columns", "separator", *INFERENCE]
)
def predict(
    target: Annotated[str, typer.Argument(help="A run folder, or any Hugging Face BERT with a head.", metavar="RUN|MODEL")],
    file: Annotated[
        str, typer.Argument(help="CSV, TSV, JSONL, CoNLL, SQuAD JSON or lines of text, as the task takes; - is stdin.")
    ] = "-",
    split: Annotated[
        str | None, typer.Option(help="Predict for a split of the run's own data, or of --data, in place of a file.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="The recipe to use a model by that is no run of bertkit.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write: .jsonl, .csv, .tsv, or for tags .conll.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="What to write to stdout: text (for a person; the default at a terminal), jsonl, ..."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Tokens shown for each \\[MASK]; default: 5.", min=1)] = None,
    typed: dict[str, Any] | None = None,
) -> None:
    """Predict for each row of a file, in order: a label, a choice, tags, or an answer, with its probability.

    A pre-trained model fills the \\[MASK] in lines of text.

    [bold]bertkit predict runs/mine new.csv --output predictions.csv[/]

    [bold]echo "Where is my parcel?" | bertkit predict runs/helpdesk[/]

    [bold]bertkit predict runs/mrpc --split test --output test.tsv[/]

    [bold]bertkit predict runs/conll2003 news.txt --output news.conll[/]

    [bold]bertkit predict runs/squad page.txt --question "Who founded it?"[/]

    [bold]echo "The \\[MASK] is closed." | bertkit predict bert-base-uncased[/]
    """
    from bertkit.runs import masked_inference
    from bertkit.runs import predict as inference

    endings = list(dict.fromkeys(ending for cls in FAMILIES.values() for ending in cls.prediction_endings))
    if output is not None:
        _check_output(output, file, endings)
    elif form is not None and form != "text" and f".{form}" not in endings:
        raise UsageError(f"--format is {form!r}; expected text, {' or '.join(ending[1:] for ending in endings)}")
    form = output.suffix[1:] if output else form or ("text" if sys.stdout.isatty() else "jsonl")
    if split is not None and file != "-":
        raise UsageError("--split is for the run's own data, and a file is named", hint="leave out one of the two")
    if split is None and "data" in (typed or {}):
        raise UsageError("--data is the folder of --split, which is missing", hint="as in --split test")
    if recipe is None and masked_inference.is_language_model(target):
        _check_form(form, tuple(FORMATS), "a filled mask")
        masked_inference.refuse_others((typed or {}) | ({"split": split} if split else {}))
        rows, mask_token = masked_inference.fill_masks(target, file, typed or {}, top_k=top_k or 5)
        _give(rows, FORMATS.get(f".{form}"), lambda row: masked_inference.format_filled(row, mask_token), output)
        return
    if top_k is not None:
        raise UsageError("--top-k is for masks, which a pre-trained model fills")
    opened = inference.open_target(target, recipe, typed or {}, to_predict=True)
    task = opened.recipe
    _check_form(form, task.prediction_endings, task.family)
    if split is not None:
        examples = task.settled().load(split, to_predict=True)
        predictions = inference.predict_rows(opened, task.settled(), examples)
    else:
        examples, predictions = inference.predict_file(opened, file, typed or {})
    _give(
        list(enumerate(predictions)),
        None if form == "text" else lambda _: task.formatted(predictions, examples, f".{form}"),
        lambda numbered: task.show(numbered[1], examples, numbered[0]),
        output,
    )


def _check_form(form: str, endings: tuple[str, ...], what: str) -> None:
    if form != "text" and f".{form}" not in endings:
        raise UsageError(f"{what} is not written as {form}; expected {', '.join(ending[1:] for ending in endings)}")


def _give(rows: list, formatted: Callable[[list], str] | None, show: Callable[[Any], Text], output: Path | None) -> None:
    """Write predictions to a file or to standard output; formatted: None to show them to a person."""
    from bertkit import progress
    from bertkit.files import disk_errors

    if progress.console.quiet:
        return
    if formatted is None:
        progress.show(map(show, rows))
    elif output is None:
        typer.echo(formatted(rows), nl=False)
    else:
        with disk_errors(output):
            output.write_text(formatted(rows), encoding="utf-8", newline="")
        progress.note(f"wrote {len(rows)} predictions to {output}")


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

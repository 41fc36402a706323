"""bertkit predict"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from bertkit.cli.options import recipe_options, with_options
from bertkit.errors import UsageError, plural
from bertkit.readers import Examples
from bertkit.tasks import Task
from bertkit.tasks.output import FORMATS, as_csv
from bertkit.tasks.task import Prediction


@with_options(recipe_options("predict"))
def predict(
    target: Annotated[
        str,
        typer.Argument(
            help="A run folder, of --seeds or --folds the median run; or any Hugging Face BERT with a head.",
            metavar="RUN|MODEL",
        ),
    ],
    file: Annotated[
        str, typer.Argument(help="CSV, TSV, JSONL, CoNLL, SQuAD JSON or plain text, depending on the task; - is stdin.")
    ] = "-",
    split: Annotated[
        str | None, typer.Option(help="Instead of a file, predict a split of the run's own data, or of --data.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe of a model that is not a bertkit run, or the run's own recipe file.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Output file: .jsonl, .csv, .tsv, or for tags .conll, .conllu.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="Format on stdout: text (the default in a terminal), jsonl, ..."),
    ] = None,
    safe_csv: Annotated[
        bool,
        typer.Option("--safe-csv", help="Put ' before text that a spreadsheet would take for a formula."),
    ] = False,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Of a folder of --seeds or --folds, average the probabilities of all runs.")
    ] = False,
    top_k: Annotated[int | None, typer.Option(help="Tokens to show per \\[MASK]; default: 5.", min=1)] = None,
    *,
    overrides: dict[str, Any],
) -> None:
    """Predict each row of a file, in order: a label, a choice, tags, or an answer, with its probability.

    A pre-trained model fills each \\[MASK] in lines of text.

    [bold]bertkit predict runs/mine new.csv --output predictions.csv[/]

    [bold]echo "Where is my parcel?" | bertkit predict runs/helpdesk[/]

    [bold]bertkit predict runs/mrpc --split test --output test.tsv[/]

    [bold]bertkit predict runs/conll2003 news.txt --output news.conll[/]

    [bold]bertkit predict runs/squad page.txt --question "Who founded it?"[/]

    [bold]echo "The \\[MASK] is closed." | bertkit predict bert-base-uncased[/]
    """
    from bertkit import progress
    from bertkit.runs import masked_inference
    from bertkit.runs import predict as inference
    from bertkit.runs.series import runs_to_use
    from bertkit.runs.target import open_target

    endings = list(dict.fromkeys(ending for cls in Task.families.values() for ending in cls.prediction_endings))
    if output is not None and form is not None:
        raise UsageError("--output and --format both say how to write", hint="leave out --format: the file's ending decides")
    if output is not None:
        _check_output(output, file, endings)
    elif form is not None and form != "text" and f".{form}" not in endings:
        raise UsageError(f"--format is {form!r}; expected text, {' or '.join(ending[1:] for ending in endings)}")
    form = output.suffix[1:] if output else form or ("text" if sys.stdout.isatty() else "jsonl")
    if safe_csv and form != "csv":
        raise UsageError(f"--safe-csv is for CSV, and the output is {form}", hint="name it .csv, or --format csv")
    if split is not None and file != "-":
        raise UsageError("--split is for the run's own data, but a file is given", hint="leave out one of the two")
    if split is None and "data" in overrides:
        raise UsageError("--data needs --split, which is missing", hint="for example: --split test")
    run, *others = runs_to_use(target, ensemble=ensemble)
    if recipe is None and masked_inference.is_language_model(run):
        _check_form(form, tuple(FORMATS), "a filled mask")
        encoding = overrides.pop("encoding", None)
        masked_inference.refuse_task_options(overrides | ({"split": split} if split else {}))
        rows, mask_token = masked_inference.fill_masks(run, file, overrides, encoding=encoding, top_k=top_k or 5)
        written = partial(as_csv, safe=True) if safe_csv else FORMATS.get(f".{form}")
        _write(rows, written, lambda row: masked_inference.format_filled(row, mask_token), output)
        return
    if top_k is not None:
        raise UsageError("--top-k is for pre-trained models, which fill masks")
    opened = open_target(run, recipe, overrides, to_predict=split is None, others=others)
    task = opened.task
    _check_form(form, task.prediction_endings, task.family)
    if lost := task.lost_in(f".{form}"):
        progress.warn(lost)
    if split is not None:
        examples, predictions = inference.predict_split_of(opened, split)
    else:
        examples, predictions = inference.predict_file(opened, file, overrides)
    _write(
        list(enumerate(predictions)),
        None if form == "text" else lambda _: _content(task, predictions, examples, form, safe_csv=safe_csv),
        lambda numbered: task.format_prediction(numbered[1], examples, numbered[0]),
        output,
    )


def _content(task: Task, predictions: list[Prediction], examples: Examples, form: str, *, safe_csv: bool) -> str:
    if safe_csv:
        return as_csv(task.rows(predictions, examples), safe=True)
    return task.format_file(predictions, examples, f".{form}")


def _check_form(form: str, endings: tuple[str, ...], what: str) -> None:
    if form != "text" and f".{form}" not in endings:
        raise UsageError(f"{what} cannot be written as {form}; expected {', '.join(ending[1:] for ending in endings)}")


def _write(
    rows: list, format_file: Callable[[list], str] | None, format_row: Callable[[Any], Text], output: Path | None
) -> None:
    """Write predictions to a file or to stdout; format_file: None for one formatted row per line."""
    from bertkit import progress
    from bertkit.files import write_output

    if progress.console.quiet:
        return
    if format_file is None:
        progress.show(map(format_row, rows))
    elif output is None:
        typer.echo(format_file(rows), nl=False)
    else:
        write_output(output, format_file(rows))
        progress.note(f"wrote {plural(len(rows), 'prediction')} to {output}")


def _check_output(output: Path, file: str, endings: list[str]) -> None:
    """Raise UsageError for an --output that cannot be written, before any work."""
    if output.suffix not in endings:
        raise UsageError(
            f"--output {output} ends in {output.suffix or 'nothing'}; expected {', '.join(endings[:-1])} or {endings[-1]}"
        )
    if not output.absolute().parent.is_dir():
        raise UsageError("the folder of --output does not exist", where=str(output.parent))
    if output.resolve() == Path(file).resolve():
        raise UsageError(f"--output {output} is the input file", hint="choose another name")

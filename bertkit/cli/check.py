"""bertkit check"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, Overwrite, print_json, recipe_options, require_output_dir, with_options
from bertkit.config import PretrainConfig, options_for
from bertkit.errors import DataError, UsageError, flag_of

_OF_CORPUS = {name: ("Sequences", each) for name, each in options_for("corpus", PretrainConfig).items()}
_OF_DATA = recipe_options("check")


@with_options(_OF_DATA | {name: each for name, each in _OF_CORPUS.items() if name not in _OF_DATA})
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A recipe, a task family, a data file, its URL, a data folder, a run folder, or a corpus. Default: the file "
            "of --train, or the folder of --data.",
            metavar="TARGET",
            show_default=False,
        ),
    ] = None,
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
    folds: Annotated[
        int | None, typer.Option(min=2, help="Number of folds of --label-errors; default: 5.", metavar="N")
    ] = None,
    learning_curve: Annotated[
        str | None,
        typer.Option(help="Train on these percentages of the training rows, to see if more would help.", metavar="25,50,100"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds of --learning-curve; default: 3.", metavar="N")
    ] = None,
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
    splits, empty texts, broken characters, and baselines; with --model also sequence lengths, \\[UNK], examples, and the
    memory and time of training. A corpus: its first sequences and prediction targets; with a training run's options, exactly
    the ones that run sees.

    Only --label-errors and --learning-curve train models; if stopped, the same command resumes. With them, TARGET is a
    data file or folder, a run, a recipe, or a task family with --train.

    [bold]bertkit check mrpc --data glue/MRPC --model bert-base-uncased[/]

    [bold]bertkit check my.csv --text question --label kind --model minilm[/]

    [bold]bertkit check corpora/mine --masking whole-word --examples 20[/]

    [bold]bertkit check my.csv --text question --label kind --model minilm --label-errors --output-dir checks/mine[/]
    """
    from bertkit.corpus.directory import META
    from bertkit.readers.content import STDIN
    from bertkit.runs.checks.command import check_labelled
    from bertkit.runs.checks.training import TrainingChecks
    from bertkit.runs.glue.benchmark import NAME
    from bertkit.runs.pretraining.corpora import check_corpus

    training = TrainingChecks(label_errors, folds, learning_curve, seeds, output_dir, overwrite)
    training.refuse_without_effect()
    if training.requested:
        require_output_dir(output_dir, "checks/mine")
    target = target or overrides.pop("train", None) or overrides.pop("data", None)
    if target is None:
        raise UsageError("there is nothing to check", hint="name a file, folder or recipe, as in bertkit check my.csv")
    if target == STDIN:
        what = "check reads its data more than once, but standard input (-) can be read only once"
        raise UsageError(what, hint="save it to a file first")
    if target == NAME:
        raise UsageError("check takes one task of glue at a time", hint="for example: bertkit check mrpc --data glue/MRPC")
    if (Path(target) / META).is_file():
        if training.requested:
            raise UsageError(
                "a corpus has no labels to check", where=target, hint="leave out --label-errors and --learning-curve"
            )
        of_data = {name for name, given in (("model", model), ("recipe", recipe)) if given is not None}
        if others := sorted({*overrides, *of_data} - set(_OF_CORPUS)):
            raise UsageError(f"{flag_of(others[0])} is for labelled data, not for a corpus", where=target)
        print_json(check_corpus(Path(target), overrides, examples, drawn=not as_json), wanted=as_json)
        return
    if others := sorted(set(overrides) - set(_OF_DATA)):
        raise UsageError(f"{flag_of(others[0])} is for a corpus; {target} is not one", hint="build one: bertkit corpus build")
    found, has_errors = check_labelled(target, model, recipe, overrides, examples, training)
    print_json(found, wanted=as_json)
    if has_errors:
        raise typer.Exit(DataError.exit_code)

"""bertkit export"""

from __future__ import annotations

from typing import Annotated

import typer

from bertkit.cli.options import OutputDir, Overwrite, RunOrModel
from bertkit.errors import UsageError


def export(
    target: RunOrModel,
    output_dir: OutputDir,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Also write a graph quantized to int8; fails if its predictions differ too much from the model's."
        ),
    ] = False,
    texts: Annotated[
        str | None, typer.Option(help="File of rows to compare --int8 on; default: the run's own data.", metavar="FILE")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write the int8 graph even if it does not pass; the card says so.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write a model as an ONNX graph, with a predict.py that needs only onnxruntime, numpy and tokenizers.

    Before anything is written, the graph's logits are compared with the model's.

    [bold]bertkit export runs/mine --output-dir exported/mine[/]

    [bold]bertkit export runs/mine --int8 --output-dir exported/small[/]
    """
    from bertkit.runs.export.folder import export as export_model
    from bertkit.runs.series import runs_to_use

    if not int8 and (texts is not None or force):
        raise UsageError(f"{'--force' if force else '--texts'} has no effect without --int8", hint="add --int8")
    (run,) = runs_to_use(target)
    export_model(run, output_dir, int8=int8, texts=texts, force=force, overwrite=overwrite)

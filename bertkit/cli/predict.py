"""bertkit predict"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import INFERENCE, with_options
from bertkit.errors import UsageError

_ENDINGS = (".jsonl", ".csv", ".tsv")


@with_options(["text", "text_pair", "columns", "separator", *INFERENCE])
def predict(
    target: Annotated[
        str, typer.Argument(help="A run folder, or any Hugging Face model of the recipe's kind.", metavar="RUN|MODEL")
    ],
    file: Annotated[str, typer.Argument(help="CSV, TSV, JSONL or lines of text, plain or .gz; - is stdin.")] = "-",
    recipe: Annotated[str | None, typer.Option(help="Needed for a model that is no run of bertkit.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write: .jsonl, .csv or .tsv. Default: JSONL to stdout.")
    ] = None,
    typed: dict[str, Any] | None = None,
) -> None:
    """Predict a label and its probability for each row, in order.

    [bold]bertkit predict runs/mine new.csv --output predictions.csv[/]

    [bold]echo "Where is my parcel?" | bertkit predict runs/helpdesk[/]
    """
    from bertkit import inference, progress
    from bertkit.checkpoint import disk_errors

    if output is not None and output.suffix not in _ENDINGS:
        raise UsageError(f"--output {output} ends in {output.suffix or 'nothing'}; expected .jsonl, .csv or .tsv")
    if output is not None and not output.absolute().parent.is_dir():
        raise UsageError("the folder of --output does not exist", where=str(output.parent))
    if output is not None and output.resolve() == Path(file).resolve():
        raise UsageError(f"--output {output} is the file to read", hint="choose another name")
    opened = inference.open_target(target, recipe or _family(target), typed or {})
    examples, predictions = inference.predict_file(opened, file, typed or {})
    texts = {name: examples.columns[name] for name in ("text", "text_pair") if name in examples.columns}
    rows = [{**{name: values[at] for name, values in texts.items()}, **found} for at, found in enumerate(predictions)]
    written = _formatted(rows, output.suffix if output else ".jsonl")
    if progress.console.quiet:
        return
    if output is None:
        typer.echo(written, nl=False)
        return
    with disk_errors(output):
        output.write_text(written, encoding="utf-8", newline="")
    progress.note(f"wrote {len(rows)} predictions to {output}")


def _family(target: str) -> str | None:
    """A bare model is used by the family, with the labels in its config; a run by its own recipe."""
    return None if (Path(target) / "run.json").is_file() else "text-classification"


def _formatted(rows: list[dict[str, Any]], ending: str) -> str:
    if ending == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text = io.StringIO()
    if ending == ".tsv":  # no quoting, as bertkit and GLUE read it: what would break the table becomes a space
        lines = [list(rows[0]), *(row.values() for row in rows)]
        return "".join("\t".join(" ".join(re.split(r"[\t\r\n]", str(cell))) for cell in line) + "\n" for line in lines)
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

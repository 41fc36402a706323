"""The command line. `main(argv)` returns the exit code; only this package imports Typer."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from bertkit.cli.check import check
from bertkit.cli.compare import compare
from bertkit.cli.corpus import corpus
from bertkit.cli.eval import evaluate
from bertkit.cli.finetune import finetune
from bertkit.cli.predict import predict
from bertkit.cli.pretrain import pretrain
from bertkit.cli.recipes import recipes
from bertkit.cli.run_glue import translate
from bertkit.cli.submission import submission
from bertkit.cli.tokenizer import tokenizer
from bertkit.errors import UserError
from bertkit.manifest import all_read_is_whole
from bertkit.progress import console, plain, silence

BUG, INTERRUPTED = 1, 130


class _Stopped(Exception):
    """A KeyboardInterrupt with its message: Typer would keep only the exit code."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Stopped(str(error) or "stopped") from error


app = typer.Typer(
    name="bertkit",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(finetune)
app.command("eval")(evaluate)
app.command()(predict)
app.command()(pretrain)
app.command()(recipes)
app.command()(check)
app.command()(compare)
app.command()(submission)
app.add_typer(tokenizer, name="tokenizer")
app.add_typer(corpus, name="corpus")


def _version(requested: bool) -> None:
    if requested:
        from bertkit import __version__

        typer.echo(f"bertkit {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version and exit."),
) -> None:
    """Pre-train, fine-tune, evaluate and use BERT. Reads and writes Hugging Face model folders; needs no network.

    [bold]bertkit recipes[/]                                             list the tasks

    [bold]bertkit finetune sst2 --model bert-base-uncased --output-dir runs/sst2[/]

    [bold]bertkit finetune text-classification --train my.csv --model bert-base-uncased --output-dir runs/mine[/]

    [bold]bertkit eval runs/sst2[/]   [bold]bertkit predict runs/sst2 new.txt[/]
    """


_COMMAND = typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (see bertkit.errors). BERTKIT_DEBUG=1 shows tracebacks."""
    quiet_before = console.quiet
    if os.environ.get("RANK", "0") not in ("", "0"):
        silence()
    try:
        args = translate(sys.argv[1:] if argv is None else argv)
        with all_read_is_whole():
            return _COMMAND.main(args=args, prog_name="bertkit", standalone_mode=False) or 0
    except typer.Abort:
        return INTERRUPTED
    except (_Stopped, KeyboardInterrupt) as error:
        console.print(plain(str(error) or "stopped"))
        return INTERRUPTED
    except UserError as error:
        return _fail(str(error), error.hint, error.exit_code)
    except typer.TyperException as error:
        if message := error.format_message().replace("\n", " "):  # empty if the help was shown
            return _fail(message, "--help lists the options", UserError.exit_code)
        return UserError.exit_code
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
            return _fail("out of memory", "halve --micro-batch-tokens and repeat the command: it resumes", 5)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            return _fail(f"cannot write: {error.strerror} ({error.filename})", "free some space or choose another folder", 5)
        hint = "this is a bug in bertkit; BERTKIT_DEBUG=1 shows the traceback"
        return _fail(f"{type(error).__name__}: {error}", hint, BUG)
    finally:
        console.quiet = quiet_before


def _fail(what: str, hint: str | None, code: int) -> int:
    if os.environ.get("BERTKIT_DEBUG") == "1":
        traceback.print_exc()
    line = what.replace("\n", " ")
    rank = os.environ.get("RANK", "0")
    if code in (BUG, 5) and rank != "0":  # the main process does not know of it
        console.quiet, line = False, f"rank {rank}: {line}"
    console.print(plain(f"error: {line}"), style="red")
    if hint:
        console.print(plain(f"hint: {hint}"))
    return code


def run() -> None:
    """The `bertkit` script."""
    sys.exit(main())

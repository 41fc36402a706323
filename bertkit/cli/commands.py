"""The commands of the command line, in Typer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer
from typer.core import TyperGroup

from bertkit.cli.check import check
from bertkit.cli.compare import compare
from bertkit.cli.corpus import corpus
from bertkit.cli.eval import evaluate
from bertkit.cli.export import export
from bertkit.cli.failures import Interrupted, speaking_for_all
from bertkit.cli.finetune import finetune
from bertkit.cli.options import LocalCommand
from bertkit.cli.predict import predict
from bertkit.cli.pretrain import pretrain
from bertkit.cli.push import push
from bertkit.cli.recipes import recipes
from bertkit.cli.report import report
from bertkit.cli.reproduce import reproduce
from bertkit.cli.run_glue import translate
from bertkit.cli.serve import serve
from bertkit.cli.submission import submission
from bertkit.cli.tokenizer import tokenizer
from bertkit.cli.tune import tune
from bertkit.errors import UsageError
from bertkit.manifest import all_read_is_whole


class _Interruptible:
    """What a command of Typer's and a group of them do alike: Ctrl-C ends them as `_interrupted` says."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _interrupted():
            return super().make_context(*arguments, **more)  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        with _interrupted():
            return super().invoke(ctx)  # type: ignore[misc]


class _Commands(_Interruptible, TyperGroup):
    pass


class _Command(_Interruptible, LocalCommand):
    pass


@contextmanager
def _interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted from error


Main = Callable[[Sequence[str]], int]  # runs a command and returns its exit code

_SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
_COMMANDS: dict[str, Callable[..., None]] = {
    "finetune": finetune,
    "eval": evaluate,
    "predict": predict,
    "pretrain": pretrain,
    "recipes": recipes,
    "check": check,
    "compare": compare,
    "report": report,
    "tune": tune,
    "reproduce": reproduce,
    "submission": submission,
    "export": export,
    "serve": serve,
    "push": push,
}
app = typer.Typer(name="bertkit", cls=_Commands, no_args_is_help=True, **_SETTINGS)
for _name, _function in _COMMANDS.items():
    app.command(_name)(_function)
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


def _chosen(args: Sequence[str], main: Main) -> Any:
    """What runs these arguments, as Typer builds it: of a command alone if they begin with its name, for that is soon done."""
    if not args or args[0] not in _COMMANDS:
        return partial(typer.main.get_command(app).main, args=[*args], prog_name="bertkit", obj=main)
    alone = typer.Typer(add_completion=False, **_SETTINGS)
    alone.command(args[0], cls=_Command)(_COMMANDS[args[0]])
    return partial(typer.main.get_command(alone).main, args=[*args[1:]], prog_name=f"bertkit {args[0]}", obj=main)


@speaking_for_all()
def run(argv: Sequence[str] | None, main: Main) -> int:
    """Run the command of `argv`, by default of this process; returns its exit code. main: runs the commands that it is made of.

    Raises UsageError, what the command raises, and Interrupted in place of KeyboardInterrupt.
    """
    _check_working_directory()
    try:
        args = translate(sys.argv[1:] if argv is None else argv)
        with all_read_is_whole():
            return _chosen(args, main)(standalone_mode=False) or 0
    except typer.Abort as error:
        raise error.__cause__ or error from None
    except typer.TyperException as error:
        if message := error.format_message():
            raise UsageError(message, hint="--help lists the options") from error
        return UsageError.exit_code  # the help was shown


def _check_working_directory() -> None:
    """Raise UsageError where the working directory was removed: libraries, of which torch's is one, would end the process."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError("the working directory is gone", hint="change to one that exists: cd") from None

"""The commands of the command line, in Typer."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from bertkit.cli.checked_command import CheckedCommand
from bertkit.cli.failures import InterruptedCommand, printing_on_main_only
from bertkit.errors import UsageError
from bertkit.manifest import verified_reads

if TYPE_CHECKING:
    from bertkit.reproduce.runs import Main


class _Interruptible:
    """Shared by Typer commands and groups: Ctrl-C ends them as in `_interrupted`."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        with _interrupted():
            return super().make_context(*arguments, **more)  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        with _interrupted():
            return super().invoke(ctx)  # type: ignore[misc]


class _Commands(_Interruptible, TyperGroup):
    pass


class _Command(_Interruptible, CheckedCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        from bertkit.cli.options import without_negatives

        without_negatives(self.params)
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")  # typer keeps the docstring's line breaks
        super().format_help(ctx, formatter)


@contextmanager
def _interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise InterruptedCommand from error


_SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
# In the order of --help; each is a file in this package, with a function of the same name.
_COMMANDS = (
    *("finetune", "eval", "predict", "pretrain", "recipes", "check", "compare", "report"),
    *("tune", "reproduce", "submission", "export", "serve", "push"),
)
_GROUPS = ("tokenizer", "corpus")  # of commands
_FUNCTIONS = {"eval": "evaluate"}
_COMPLETES = "_BERTKIT_COMPLETE"  # set when the shell asks for completions


def _version(requested: bool) -> None:
    if requested:
        from bertkit import __version__

        typer.echo(f"bertkit {__version__}")
        raise typer.Exit


def _top(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version and exit."),
) -> None:
    """Pre-train, fine-tune, evaluate and use BERT. Reads and writes Hugging Face model folders; works offline.

    [bold]bertkit recipes[/]                                             list the recipes

    [bold]bertkit finetune sst2 --model bert-base-uncased --output-dir runs/sst2[/]

    [bold]bertkit finetune text-classification --train my.csv --model bert-base-uncased --output-dir runs/mine[/]

    [bold]bertkit eval runs/sst2[/]   [bold]bertkit predict runs/sst2 new.txt[/]
    """


@cache
def app() -> typer.Typer:
    """All commands. Importing them takes longer than running most of them."""
    return _application([*_COMMANDS, *_GROUPS])


def _application(names: Sequence[str], *, listed: bool = False) -> typer.Typer:
    """The commands of these names. listed: only as `bertkit --help` shows them, which imports none of them."""
    application = typer.Typer(name="bertkit", cls=_Commands, no_args_is_help=True, callback=_top, **_SETTINGS)
    for name in names:
        if listed:
            application.command(name, help=_summary(name))(lambda: None)
        elif name in _GROUPS:
            application.add_typer(_imported(name), name=name)
        else:
            application.command(name, cls=CheckedCommand)(_imported(name))
    return application


def _imported(name: str) -> Any:
    """The function of a command, or the Typer object of a group."""
    return getattr(import_module(f"bertkit.cli.{name}"), _FUNCTIONS.get(name, name))


def _summary(name: str) -> str:
    """The first paragraph of a command's help, or of a group's, from its file."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    function = "_group" if name in _GROUPS else _FUNCTIONS.get(name, name)
    (found,) = (part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == function)
    return (ast.get_docstring(found) or "").partition("\n\n")[0]


def _chosen(args: Sequence[str], main: Main) -> Any:
    """The function that runs these arguments. Only the module of the first word's command is imported, to start fast."""
    name = args[0] if args else ""
    if name in _COMMANDS:
        alone = typer.Typer(add_completion=False, **_SETTINGS)
        alone.command(name, cls=_Command)(_imported(name))
        command = typer.main.get_command(alone)
        if {"-h", "--help"} & {*args}:
            from bertkit.cli.options import show_family

            show_family(command.params, args[1:])
        return partial(command.main, args=[*args[1:]], prog_name=f"bertkit {name}", obj=main)
    if name in _GROUPS:
        application = _application([name])
    elif _COMPLETES in os.environ or {*args} & {*_COMMANDS, *_GROUPS}:  # such as bertkit -- finetune
        application = app()
    else:
        application = _application([*_COMMANDS, *_GROUPS], listed=True)
    return partial(typer.main.get_command(application).main, args=[*args], prog_name="bertkit", obj=main)


@printing_on_main_only()
def run(argv: Sequence[str] | None, main: Main) -> int:
    """Run the command in `argv`, by default this process's; returns its exit code. main: runs commands that it consists of.

    Raises UsageError, what the command raises, and InterruptedCommand in place of KeyboardInterrupt.
    """
    _refuse_removed_directory()
    try:
        args = sys.argv[1:] if argv is None else argv
        if args and args[0] == "finetune":
            from bertkit.cli.example_scripts import translate

            args = translate(args)
        with verified_reads():
            return _chosen(args, main)(standalone_mode=False) or 0
    except typer.Abort as error:
        raise error.__cause__ or error from None
    except typer.TyperException as error:
        if message := error.format_message():
            raise UsageError(message, hint="--help lists the options") from error
        return UsageError.exit_code  # the help was shown


def _refuse_removed_directory() -> None:
    """Raise UsageError if the working directory was removed, because libraries, such as torch's, would end the process."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError("the working directory is gone", hint="change to one that exists: cd") from None

"""The command line: parses arguments, runs one command, maps errors to exit codes. Only this package imports Typer.

`main(argv)` returns the exit code. The commands, and everything slow to import, are imported inside it, so that Ctrl-C during
an import also ends with one line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code (see bertkit.errors). BERTKIT_DEBUG=1 shows tracebacks."""
    try:
        from bertkit.cli import commands

        code = commands.run(argv, main)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BaseException as error:
        from bertkit.cli import failures

        return failures.end(error)


def run() -> NoReturn:
    """The `bertkit` script: `main` in its own process, where closed streams and Ctrl-C end as cleanly as errors."""
    _open_closed_streams()
    sys.unraisablehook = _end_at_once
    try:
        code = main()
    except KeyboardInterrupt:  # a second one
        code = INTERRUPTED
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on, Ctrl-C ends the process silently
    _close_stdout()
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open streams that the shell closed (`<&-`, `>&-`), or the next opened file would become standard output.

    The input is opened for writing and the output for reading, so that using them is an error, which `failures` explains.
    Characters that a stream's encoding lacks are written as JSON escapes.
    """
    import codecs

    for number, (name, flags, mode) in enumerate((("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"))):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, flags), True)  # it takes the lowest number, which is free
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if sys.stderr is None:
        os.open(os.devnull, os.O_WRONLY)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    codecs.register_error("json-escapes", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="json-escapes")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


def _end_at_once(unraisable: Any) -> None:
    """End the process on a Ctrl-C that came where Python drops exceptions, such as in a callback of an import."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)


def _close_stdout() -> None:
    """Flush standard output; Python itself would print a traceback for a closed pipe or a full disk."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

"""Commands that refuse, or warn about, arguments that would be silently misread."""

from __future__ import annotations

import inspect
import typing
from collections import Counter
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from bertkit.errors import UsageError


class CheckedCommand(TyperCommand):
    """A command that refuses a URL for a file or folder that must be local, which as a Path would name a folder s3: here. It
    warns about a second file or folder for an option that takes one, of which the last one counts.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and not {*ctx.help_option_names} & {*args}:
            self._warn_of_repeated(ctx, args)
        return super().parse_args(ctx, args)

    def _warn_of_repeated(self, ctx: Any, args: list[str]) -> None:
        values, _, given = self.make_parser(ctx).parse_args(args=[*args])
        for param, count in Counter(given).items():
            if count == 1 or getattr(param, "multiple", True):  # an argument takes each word once
                continue
            if param.metavar in ("FILE", "FOLDER") or self._takes_path(param):
                from bertkit import progress

                what = f"{param.opts[0]} is given {count} times; only the last one counts"
                is_data = param.name in ("train", "validation", "test") and Path(values[param.name]).is_file()
                progress.warn(f"{what}{': to read several files, join them' if is_data else ''}")

    def _takes_path(self, param: Any) -> bool:
        declared = inspect.signature(self.callback, eval_str=True).parameters if self.callback else {}
        return param.name in declared and _is_path(declared[param.name].annotation)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **others: Any) -> Any:
        from bertkit.readers.remote import is_url

        words = [word.partition("=")[2] if word.startswith("--") else word for word in args]
        urls = {Path(word): word for word in words if is_url(word)}
        context = super().make_context(info_name, args, *more, **others)
        for param in self.params if urls else ():
            if not self._takes_path(param):
                continue
            values = context.params.get(param.name)
            for value in values if isinstance(values, (list, tuple)) else [values]:
                if value is not None and Path(value) in urls:
                    what = f"{max(param.opts, key=len)} is a URL; expected a local file or folder"
                    hint = "only data files are read from URLs; copy everything else to and from a local folder yourself"
                    raise UsageError(what, where=urls[Path(value)], hint=hint)
        return context


def _is_path(annotation: Any) -> bool:
    """Whether a parameter is a path, or a list of paths; Typer may not have converted the words yet."""
    return annotation is Path or any(map(_is_path, typing.get_args(annotation)))

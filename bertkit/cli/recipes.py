"""bertkit recipes"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertkit.errors import UsageError, did_you_mean


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe's file.")] = None,
    copy: Annotated[
        Path | None, typer.Option(help="Copy the recipe (default: the template) to this folder.", metavar="DIR")
    ] = None,
) -> None:
    """List the recipes, print one, or copy one as a starting point for your own.

    [bold]bertkit recipes[/]      [bold]bertkit recipes mrpc[/]      [bold]bertkit recipes mrpc --copy .[/]
    """
    from bertkit import progress
    from bertkit.files import write_files
    from bertkit.tasks.catalog import list_recipes
    from bertkit.tasks.sources import recipe_folder

    listed = {recipe.name: recipe for recipe in list_recipes()}
    source = recipe_folder() / "_template.py"
    if name is not None:
        if name not in listed:
            raise UsageError(f"no recipe {name!r}", hint=did_you_mean(name, listed))
        if (path := listed[name].path) is None:
            what = f"the recipe {name} comes from the package {listed[name].package}"
            raise UsageError(f"{what}; only bertkit's own can be printed or copied")
        source = path
    if copy is not None:
        target = copy / source.name.lstrip("_")
        if copy.is_file():
            raise UsageError("--copy is a file; expected a folder", where=str(copy))
        if target.exists():
            raise UsageError("the file already exists", where=str(target), hint="choose another folder, or remove the file")
        write_files(copy, {target.name: source.read_text(encoding="utf-8")})
        progress.note(f"wrote {target}; edit it, then train: bertkit finetune {target} --model ... --output-dir ...")
    elif name is not None:
        typer.echo(source.read_text(encoding="utf-8"), nl=False)
    else:
        rows = [
            [each.name, each.family, f"from the package {each.package}" if each.package else each.description]
            for each in listed.values()
        ]
        progress.table("recipes", ["name", "family", "task"], rows, stdout=True)

"""The arguments of a training command: recipe, model and settings, from the command line and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.cli.option_files import preset_options, read_options
from bertkit.cli.presets import PRESETS
from bertkit.errors import UsageError
from bertkit.tasks import FAMILIES

if TYPE_CHECKING:
    from bertkit.runs.request import Request


class CommandArguments(NamedTuple):
    """What to train, from the command line and its files. sources: options of the preset, the file and the command line.
    of_run: whether the file is a run.json.
    """

    recipe: str
    model: str
    fresh_head: bool | None
    config: Path | None
    sources: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
    of_run: bool

    @property
    def options(self) -> dict[str, Any]:
        """All options by name; those of the command line take precedence."""
        preset, saved, overrides = self.sources
        return {**preset, **saved, **overrides}

    def load(self) -> Request:
        """The recipe with the options applied, and the model. Raises UsageError for unknown options."""
        from bertkit.runs.request import Request, recorded_name
        from bertkit.tasks.catalog import load_recipe

        preset, saved, overrides = self.sources
        chosen = load_recipe(self.recipe).overridden(preset)
        try:
            chosen = chosen.overridden(saved)
        except UsageError as error:
            raise UsageError(error.what, where=error.where or str(self.config), hint=error.hint) from None
        return Request(chosen.overridden(overrides), recorded_name(self.recipe), self.model, self.fresh_head)


def read_arguments(
    recipe: str | None,
    model: str | None,
    config: Path | None,
    preset: str | None,
    overrides: Mapping[str, Any],
    *,
    command: Callable,
    fresh_head: bool | None,
) -> CommandArguments:
    """What a training command should train. command: its function. Raises UsageError for missing or contradictory options."""
    from bertkit.tasks.catalog import load_builtin

    saved = read_options(config, command, overrides)
    if saved.run is not None:
        if saved.run["recipe"].get("family") not in FAMILIES:
            hint = f"repeat it with bertkit pretrain CORPUS --config {config}, and --model or --config-name to start from"
            raise UsageError("this is a pre-training run, not a fine-tuning run", where=str(config), hint=hint)
        base = saved.run["model"]
        for part in ("recipe", "model"):
            if not isinstance(saved.run[part].get("name"), str):
                raise UsageError(f"the run.json lacks {part}.name", where=str(config), hint="restore the file")
        if model in (None, base["name"]):  # another model keeps its own head
            fresh_head = base.get("fresh_head") or fresh_head
        model = model or base["name"]
        if recipe is None and load_builtin(recipe := saved.run["recipe"]["name"]) is None:
            what = f"the run's recipe {recipe} is Python code; bertkit does not run code just because a file names it"
            hint = f"give the recipe too: bertkit {command.__name__} {recipe} --config {config}"
            raise UsageError(what, where=str(config), hint=hint)
    if recipe is None:
        recipe = _family_of({**saved.options, **overrides}, command.__name__)
    if recipe is None:
        own = "for your own data, add --train FILE"
        hint = f"for example: bertkit {command.__name__} mrpc ...; `bertkit recipes` lists them; {own}"
        raise UsageError("the recipe or task family is missing", hint=hint)
    if model is None:
        raise UsageError("--model is missing", hint="give a folder, minilm, or a hub id, such as --model bert-base-uncased")
    together = preset_options(preset, PRESETS, saved, config)
    return CommandArguments(recipe, model, fresh_head, config, (together, saved.options, overrides), saved.run is not None)


def _family_of(options: Mapping[str, Any], command: str) -> str | None:
    """The task family that the data is for, reported in a note; None without data. Raises UsageError if in doubt."""
    from bertkit import progress
    from bertkit.config import convert, options_of
    from bertkit.tasks.family import guess_family
    from bertkit.tasks.recipe import Recipe

    flag, data = next(((f"--{name}", options[name]) for name in ("train", "data") if options.get(name)), ("", None))
    if data is None:
        return None
    data = convert(options_of(Recipe)[flag.removeprefix("--")], data)
    guess = guess_family(data, options)
    if guess.family is None:
        hint = f"name it: bertkit {command} FAMILY {flag} {data}, where FAMILY is {', '.join(FAMILIES)}"
        raise UsageError(f"it is not clear which task this data is for: {guess.why}", where=str(data), hint=hint)
    progress.note(f"treating the data as {guess.family}, judging by {guess.why}")
    return guess.family

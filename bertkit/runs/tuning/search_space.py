"""The search space of `bertkit tune`: options of finetune, each with a list of values or a range to draw from."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertkit.config import Option, bare_type, convert, options_for
from bertkit.errors import UsageError, did_you_mean, flag_of
from bertkit.tasks.recipe import Recipe

# Devlin et al. (2019), appendix A.3
PAPER = {"batch_size": (16, 32), "learning_rate": (5e-5, 3e-5, 2e-5), "num_epochs": (2.0, 3.0, 4.0)}
MOST_VALUES = 1000  # of a range of integers
MOST_POINTS = 100_000  # of a grid, because the order of all points is drawn at once
_EXAMPLE = "as in --search learning-rate=1e-5..1e-4:log --search batch-size=16,32 --search num-epochs=2..4"


class Range(NamedTuple):
    """Numbers from low to high, uniform or, with log, log-uniform."""

    low: float
    high: float
    log: bool

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


class Space(dict[str, "tuple[Any, ...] | Range"]):
    """The values or the range of each option, by name."""

    @property
    def points(self) -> int | None:
        """The number of points of a grid; None if there is a range."""
        sizes = [None if isinstance(values, Range) else len(values) for values in self.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def point(self, number: int, seed: int) -> dict[str, Any]:
        """The grid point that trial `number` tries; each is tried once, in an order drawn by the seed."""
        assert self.points is not None
        place = np.random.default_rng(seed).permutation(self.points)[number]
        options = sorted(self.items())  # in whichever order a process was given them
        places = np.unravel_index(place, [len(values) for _, values in options])
        return {name: values[int(at)] for (name, values), at in zip(options, places, strict=True)}

    def __str__(self) -> str:
        texts = (str(of) if isinstance(of, Range) else ", ".join(map(shown, of)) for of in self.values())
        return "; ".join(f"{name} {values}" for name, values in zip(self, texts, strict=True))


def shown(value: Any) -> str:
    """A setting as text, with numbers to three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def read_space(searched: Sequence[str], recipe: Recipe, fixed: Collection[str]) -> Space:
    """The space of --search, as NAME=A,B,... or NAME=LOW..HIGH; without any, the paper's grid without fixed options.

    fixed: the names of options that are the same in all trials. Raises UsageError.
    """
    known = options_for("finetune", recipe.training) | options_for("finetune", recipe)
    known = {name: each for name, each in known.items() if name not in options_for("finetune", Recipe)}
    space = Space()
    for text in searched:
        flag, equals, values = text.partition("=")
        name = flag.strip().removeprefix("--").replace("-", "_")
        if not equals:
            raise UsageError(f"--search is {text!r}; expected NAME=A,B,... or NAME=LOW..HIGH", hint=_EXAMPLE)
        if name not in known:
            hint = did_you_mean(name.replace("_", "-"), [each.replace("_", "-") for each in known])
            raise UsageError(f"--search has {flag!r}, which is not an option of training or of {recipe.family}", hint=hint)
        if name == "seed":
            raise UsageError("--search varies --seed, but the winner is trained with seeds of its own", hint="see --seeds")
        if rival := _rival(known[name], fixed):
            what = f"--search varies {known[name].flag}, and {rival} is set too"
            raise UsageError(what, hint="leave out one of the two")
        if name in space:
            raise UsageError(f"--search names {known[name].flag} twice", hint="give all its values at once, as A,B,...")
        space[name] = _values(known[name], values, text)
    if not searched:
        training = recipe.training  # a recipe file may set an option, such as max_steps, that one of the grid would unset
        set_there = {other for each in known.values() for other in each.replaces if getattr(training, other, None) is not None}
        space = Space({name: values for name, values in PAPER.items() if not _rival(known[name], {*fixed, *set_there})})
    if not space:
        raise UsageError("nothing is left to search: the options already set everything in the paper's grid", hint=_EXAMPLE)
    if (space.points or 0) > MOST_POINTS:
        what = f"--search gives a grid of {space.points} points, and at most {MOST_POINTS} can be tried"
        raise UsageError(what, hint="give fewer values, or a range to draw from, as learning-rate=1e-5..1e-4:log")
    return space


def _rival(option: Option, fixed: Collection[str]) -> str | None:
    """The fixed option, if any, that rules out searching this one: itself, or one that it replaces."""
    return next((flag_of(name) for name in (option.name, *option.replaces) if name in fixed), None)


def _values(option: Option, values: str, text: str) -> tuple[Any, ...] | Range:
    kind, body = bare_type(option.type), values.strip().removesuffix(":log")
    low, dots, high = body.partition("..")
    wrong = UsageError(f"--search {text} is not NAME=A,B,... or NAME=LOW..HIGH", hint=_EXAMPLE)
    if kind not in (int, float, bool, str) or (body != values.strip() and not dots) or (dots and kind not in (int, float)):
        raise wrong
    if not dots:
        named = {"true": True, "false": False} if kind is bool else {}
        parts = (part.strip() for part in body.split(","))
        try:
            return tuple(dict.fromkeys(convert(option, named.get(part, part)) for part in parts))
        except UsageError as error:
            raise UsageError(f"--search {text}: {error.what}", hint=_EXAMPLE if error.hint else None) from None
    try:
        ends = convert(option, low), convert(option, high)
    except UsageError:
        raise UsageError(
            f"--search {text}: both ends of a range must be valid numbers for this option", hint=_EXAMPLE
        ) from None
    log = body != values.strip()
    if ends[0] >= ends[1] or (log and ends[0] <= 0):
        raise UsageError(f"--search {text}: expected a lower and a higher end{', above 0' if log else ''}", hint=_EXAMPLE)
    if kind is not int and not (option.name == "num_epochs" and all(end == int(end) for end in ends) and not log):
        return Range(*ends, log)
    if log or ends[1] - ends[0] >= MOST_VALUES:
        what = f"--search {text}: a range of whole numbers means all of them, at most {MOST_VALUES}"
        raise UsageError(what, hint=f"list them, as {option.flag[2:]}=16,32,64")
    return tuple(convert(option, value) for value in range(int(ends[0]), int(ends[1]) + 1))

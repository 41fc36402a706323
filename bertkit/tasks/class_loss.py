"""Class weights and label smoothing, shared by the families trained with a cross-entropy over classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bertkit.config import MEASURE, option
from bertkit.errors import UsageError, did_you_mean, flag_of, listed
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.task import Task

_WEIGHT = re.compile(r"\d+(\.\d*)?|\.\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ClassLossRecipe(Recipe):
    """A recipe of a family that is trained with a cross-entropy over classes."""

    class_weights: tuple[str, ...] | None = option(
        None,
        "weight of each class in the loss: by name, such as spam=2,ham=1 (others: 1); in the order of the labels; "
        "or balanced: higher for rarer classes",
        commands=MEASURE,
    )
    label_smoothing: float = option(
        0.0,
        "share of the target to spread evenly over all classes in training (Szegedy et al., 2016)",
        minimum=0,
        maximum=1,
        commands=MEASURE,
    )

    @property
    def other_loss(self) -> str | None:
        """Why these options cannot be used, in words; None if they can."""
        return None

    def resolved(self) -> Self:
        recipe = super().resolved()
        for name in ("class_weights", "label_smoothing"):
            if getattr(recipe, name) and recipe.other_loss:
                raise UsageError(f"{flag_of(name)} is {recipe.other_loss}", hint="leave out one of the two")
        return recipe


@dataclass(frozen=True, kw_only=True)
class ClassLossTask(Task):
    """A task of such a family. weights: of each class in the loss, by name."""

    weights: Mapping[str, float] | None = None

    @property
    def output_weights(self) -> tuple[float, ...] | None:
        """The weights in the order of the model's outputs."""
        return None if self.weights is None else tuple(self.weights[label] for label in self.labels)

    @property
    def loss_weights(self) -> dict[str, NDArray[np.float64]]:
        """The same weights by loss term, as features hold them."""
        return {} if self.weights is None else {"labels": np.array(self.output_weights)}


def class_weights(given: tuple[str, ...], ids: NDArray[np.int64], labels: Sequence[str]) -> dict[str, float]:
    """The weight of each class: as given, or for "balanced" rows / (classes * rows of the class), as in scikit-learn; 1 for one
    without rows.

    ids: the training rows' classes. Raises UsageError for anything but numbers of at least 0, for each label or by name.
    """
    if given == ("balanced",):
        counts = np.bincount(ids, minlength=len(labels))
        weights = np.where(counts, len(ids) / (len(labels) * np.maximum(counts, 1)), 1.0)
        return dict(zip(labels, weights.tolist(), strict=True))
    if by_name := all("=" in weight for weight in given):
        pairs = [(name, weight) for name, _, weight in (each.rpartition("=") for each in given)]
    else:
        pairs = list(zip(labels, given, strict=False))
    named = {name.strip(): weight.strip() for name, weight in pairs}
    if by_name and (unknown := [name for name in named if name not in labels]):
        raise UsageError(f"--class-weights names {unknown[0]!r}, which is not a label", hint=did_you_mean(unknown[0], labels))
    numbers = {name: float(weight) for name, weight in named.items() if _WEIGHT.fullmatch(weight)}
    weights_of = dict.fromkeys(labels, 1.0) | numbers
    if len(numbers) != len(given) or (not by_name and len(given) != len(labels)) or not any(weights_of.values()):
        what = f"--class-weights is {','.join(given)}; expected balanced, numbers by name such as {labels[0]}=2, or "
        with_comma = next((label for label in labels if "," in label and any("=" in weight for weight in given)), None)
        hint = f"a name with a comma goes in quotes: --class-weights '\"{with_comma}=2\"'" if with_comma else None
        raise UsageError(f"{what}{len(labels)} numbers for {listed(labels, 12)}", hint=hint)
    return weights_of

"""A recipe in run.json, written and read as data: no code that a run names is executed."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Mapping
from typing import Any

from bertkit.config import TrainConfig, options_of
from bertkit.errors import UsageError
from bertkit.metrics.classification import EVALUATE, METRICS, REGRESSION_METRICS, Metric, source_hash
from bertkit.tasks import FAMILIES
from bertkit.tasks.catalog import REMOVED, load_builtin
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.sources import Embedded, Folder, Hub

# What bertkit 0.1 also stored with a recipe: what it found in the data, and fields that prepare= replaces.
_SETTLED = (
    *("model_labels", "labels_derived", "weights_balanced", "thresholds", "intents", "threshold_tuned", "question_column"),
    *REMOVED,
)
_SOURCES = {"hub": Hub, "embedded": Embedded}


def to_json(recipe: Recipe, *, name: str) -> dict[str, Any]:
    """The recipe as stored in run.json; functions (metrics, data, prepare) only by name, or by whether there is one."""
    values = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe) if f.name != "training"}
    source = values.pop("dataset")
    if isinstance(source, (Hub, Embedded)):
        values["dataset"] = {type(source).__name__.lower(): dataclasses.asdict(source)}
    elif source is not None:
        values["dataset"] = {"recipe": {}}
    values["prepare"] = recipe.prepare is not None
    values["folder"] = dataclasses.asdict(recipe.folder)
    values["metrics"] = [metric.__name__ for metric in recipe.metrics]
    if sources := {metric.__name__: code for metric in recipe.metrics if (code := source_hash(metric)) is not None}:
        values["metric_sources"] = sources
    return {"name": name, "family": recipe.family, **values}


def from_json(values: Mapping[str, Any], training: Mapping[str, Any], *, where: str, own: Recipe | None = None) -> Recipe:
    """The recipe stored in run.json, with its training settings; values: from `without_derived`.

    Functions come from `own`, the recipe that the run was trained with, by default bertkit's recipe of that name; without one,
    they raise UsageError when needed.
    """
    family = FAMILIES[values["family"]]
    own = own or load_builtin(str(values["name"]))
    if not isinstance(own, family):
        own = None
    hints = typing.get_type_hints(family)
    fields = {field.name: values[field.name] for field in dataclasses.fields(family) if field.name in values}
    fields = {key: tuple(v) if isinstance(v, list) and "tuple" in str(hints[key]) else v for key, v in fields.items()}
    fields.pop("metric", None)
    metrics = values["metrics"]
    if "classes" in hints and not (values.get("regression") or values.get("multi_label")):
        fields.setdefault("classes", True)  # older runs accepted any labels as classes, and any metric
        metrics = [name for name in metrics if METRICS.get(name) not in REGRESSION_METRICS]
    for kind, arguments in (fields.pop("dataset", None) or {}).items():
        fields["dataset"] = _SOURCES[kind](**arguments) if kind in _SOURCES else own.dataset if own else Refused("dataset")
    headers = {split: tuple(names) for split, names in values["folder"]["headers"].items()}
    fields["folder"] = Folder(**values["folder"] | {"headers": headers})
    fields["metrics"] = tuple(_metric(name, own, where) for name in metrics)
    fields["prepare"] = own.prepare if own is not None else Refused("prepare") if values.get("prepare") else None
    known = {key: value for key, value in training.items() if key in options_of(TrainConfig)}
    return family(**fields, training=TrainConfig(**known))


def options_of_run(values: Mapping[str, Any], overrides: Collection[str] = ()) -> dict[str, Any]:
    """The options that repeat a run: those given to its recipe, and every training setting, with the precision that "auto" was.

    overrides: options that the command line replaces. Raises UsageError for a metric that is code.
    """
    recipe, training = without_derived(values["recipe"]), values["training"]
    family = FAMILIES.get(recipe.get("family", ""))
    options = {name: recipe[name] for name in options_of(family) if name in recipe} if family is not None else {}
    metrics = options.get("metric") or ()
    if "metric" not in overrides and (code := next((name for name in metrics if name not in METRICS), None)):
        hint = f"name it yourself: --metric {','.join(metrics)}"
        raise UsageError(f"the run's metric {code} is custom code, which bertkit does not execute", hint=hint)
    from bertkit.model.precision import precision_of  # slow: torch

    resolved = {"precision": precision_of(values["dtype"])} if training.get("precision") == "auto" and "dtype" in values else {}
    return {name: value for name, value in (options | training | resolved).items() if value is not None}


def without_derived(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe from run.json as the user wrote it, without the values that bertkit 0.1 derived from the data."""
    values = dict(values)
    for flag, option, original in (
        ("labels_derived", "labels", None),
        ("weights_balanced", "class_weights", ["balanced"]),
        ("threshold_tuned", "null_threshold", None),
    ):
        if values.get(flag):
            values[option] = original
    if values.get("question_column"):
        values["question"] = values["question_column"]
    return {name: value for name, value in values.items() if name not in _SETTLED}


def _metric(name: str, own: Recipe | None, where: str) -> Metric:
    known = METRICS | ({metric.__name__: metric for metric in own.metrics} if own is not None else {})
    if name not in known and name.startswith(EVALUATE):
        return Refused(f"metric {name}", f"name it: --metric {name}", where)
    return known.get(name) or Refused(f"metric {name}", where=where)


@dataclasses.dataclass(frozen=True)
class Refused:
    """Stands for a function of a run whose code is not executed: it has a name but cannot be called."""

    what: str
    hint: str = "name the file of its recipe: --recipe ./my_task.py"
    where: str | None = None

    @property
    def __name__(self) -> str:
        return self.what.removeprefix("metric ")

    def __call__(self, *_: Any) -> Any:
        what = f"the run's {self.what} is custom code, which bertkit does not execute"
        raise UsageError(what, where=self.where, hint=self.hint)


def refuse_code(recipe: Recipe) -> None:
    """Raise UsageError, before any work, for a metric of a run that is code."""
    for metric in recipe.metrics:
        if isinstance(metric, Refused):
            metric()

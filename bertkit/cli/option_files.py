"""Files of options: --config in YAML or JSON, or a run's run.json; and presets."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.config import PretrainConfig, TrainConfig, options_of
from bertkit.errors import UsageError, flag_of, not_a_choice
from bertkit.tasks import FAMILIES
from bertkit.tasks.saved import options_of_run

_YAML_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "timestamp": "a date"}


class FileOptions(NamedTuple):
    """options: values by name. run: the content of the file if it is a run.json."""

    options: dict[str, Any]
    run: dict[str, Any] | None


def read_options(path: Path | None, command: Callable, overrides: Mapping[str, Any]) -> FileOptions:
    """The options in a YAML or JSON file (--config), or in a run.json, without those that `overrides` exclude.

    Raises UsageError, also for the command's own parameters, which are not options of the recipe or training.
    """
    if path is None:
        return FileOptions({}, None)
    import yaml

    from bertkit.readers.content import nearest_files
    from bertkit.runs.run_file import is_run

    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else yaml.load(text, _strict_yaml())
        is_of_run = isinstance(values, dict) and is_run(values)
        if isinstance(values, dict) and not is_of_run:
            values = _once(values.items(), underscored=True)
        json.dumps(values, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8")
    except OSError as error:
        of_run = "for the options of a run, give its run.json" if isinstance(error, IsADirectoryError) else None
        hint = nearest_files(path) if isinstance(error, FileNotFoundError) else of_run
        raise UsageError(f"the options cannot be read: {error.strerror}", where=str(path), hint=hint) from None
    except UnicodeDecodeError:
        raise UsageError("the options are not UTF-8 text", where=str(path)) from None
    except UnicodeEncodeError:  # JSON and YAML can escape it, and no path or text can hold it
        raise UsageError("a lone surrogate in the options; expected valid Unicode", where=str(path)) from None
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        place = f"{path}:{line + 1}" if line is not None else str(path)
        raise UsageError(f"the options cannot be parsed: {getattr(error, 'problem', error)}", where=place) from None
    if not isinstance(values, dict):
        raise UsageError("the file has no options; expected lines like learning_rate: 3e-5", where=str(path))
    if is_of_run:
        return FileOptions(_what_is_left(options_of_run(values, overrides), overrides, path), values)
    if own := next((name for name in values if name in inspect.signature(inspect.unwrap(command)).parameters), None):
        what = f"{own} cannot be set in an options file, only on the command line"
        raise UsageError(what, where=str(path), hint="an options file may set only task and training options")
    return FileOptions(_what_is_left(values, overrides, path), None)


@cache
def _strict_yaml() -> type:
    """PyYAML's safe loader, but it raises YAMLError for a name that occurs twice, and for aliases (*name): a few lines of them
    can stand for gigabytes."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()
                raise yaml.MarkedYAMLError(problem=f"the alias *{event.anchor} is not allowed", problem_mark=event.start_mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if str(key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} occurs twice", problem_mark=key.start_mark)
                seen.add(str(key.value))
                if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                    way = f": write {key.value!r} in quotes" if isinstance(key, yaml.ScalarNode) else ", not a list or mapping"
                    raise yaml.MarkedYAMLError(problem=f"option names must be text{way}", problem_mark=key.start_mark)
            return super().construct_mapping(node, deep)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, LookupError, AttributeError, ArithmeticError):  # of a value unlike its tag
                kind = node.tag.rpartition(":")[2]
                what = f"{node.value!r:.60} is not {_YAML_KINDS.get(kind, f'of the type {kind}')}"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from None

    return Loader


def _once(pairs: Iterable[tuple[str, Any]], *, underscored: bool = False) -> dict[str, Any]:
    """A JSON object, or options under their names with underscores. Raises ValueError for a name that occurs twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        own = name.replace("-", "_") if underscored else name
        if own in found:
            raise ValueError(f"{own} occurs twice" + (f", also as {own.replace('_', '-')}" if underscored else ""))
        found[own] = value
    return found


def preset_options(
    name: str | None, presets: Mapping[str, Mapping[str, Any]], saved: FileOptions, path: Path | None
) -> Mapping[str, Any]:
    """The options of a preset; none without a name. Raises UsageError for an unknown one, and for one beside a run.json."""
    if name is None:
        return {}
    if name not in presets:
        raise not_a_choice("--preset", name, [*presets])
    if saved.run is not None:
        what = f"--preset {name} has no effect: the run.json sets every option"
        raise UsageError(what, where=str(path), hint="leave out one of the two, or give the preset's options one by one")
    return presets[name]


def _what_is_left(options: Mapping[str, Any], overrides: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`without_replaced`, with a note that names what is dropped."""
    from bertkit import progress

    left = without_replaced(options, overrides)
    dropped = [name for name, value in options.items() if name not in left and name not in overrides and value is not None]
    if dropped:
        progress.note(f"{path}: {', '.join(map(flag_of, dropped))} not used, replaced by the command line")
    return left


def without_replaced(options: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file or preset without those that an override replaces: they would conflict with it, or win over it."""
    owners = (TrainConfig, PretrainConfig, *FAMILIES.values())
    declared = [each for owner in owners for name, each in options_of(owner).items() if name in overrides]
    replaced = {other for each in declared for other in each.replaces}
    return {name: value for name, value in options.items() if name not in replaced}

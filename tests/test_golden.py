"""Whole commands against earlier results: losses, scores and predictions within 1e-5, names and exit codes exactly.

A case of golden_cases.py is a list of commands; tests/golden/CASE.json has what each of them did, and under "text" what it
printed for a person, which can be recorded anew alone:

    python tests/test_golden.py --record [CASE ...]               everything
    python tests/test_golden.py --record --text-only [CASE ...]   the text; refused where anything else differs

Nothing of bertkit is used but its command line and the files that it writes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran, run_command  # which also sets the environment before torch is imported, where this is a script
from golden_cases import CASES, OLDER_UNFINISHED, Step, prepare

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
TOLERANCE = 1e-5
# What follows from last bits by more: relative to the value.
LOOSER = {"grad_norm": 1e-3, "perplexity": 1e-3}
pytestmark = [pytest.mark.all_draws, pytest.mark.e2e]
LONG = 150  # lines of a file of predictions of which the first and a count are kept

Json = Any

# --- what is kept of a command -------------------------------------------------------------------------------------------

# What differs from run to run or from machine to machine, in this order.
MASKS = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"(?m)^.+ \d+/\d+ .+ left\n"), ""),  # progress, told of what takes long
    (re.compile(r"\b\d+\.\d+\.\d+(\.dev\d+)?(\+\w+)?\b"), "VERSION"),
    (re.compile(r"\b[0-9a-f]{12}([0-9a-f]{28}|[0-9a-f]{52})?\b"), "HASH"),
    (re.compile(r"\b\d+(\.\d+)? ?(s|ms|min|minutes|h|hours|MiB|GiB|KiB)\b(?!\w)"), "MEASURED"),
    (re.compile(r"(?m)^(\d+ )\d+ (\d+ )\d+ \d+(\.\d+)?$"), r"\1MEASURED \2MEASURED MEASURED"),  # of a dry run
    (re.compile(r"\d+(\.\d+)?(?=/s\b| [a-z ]+ ?(/s|a second)\b)"), "MEASURED"),
)
# Of run.json and config.json: their layout may change, what they say of data, scores and labels may not.
KEPT = {
    "run.json": ("status", "data", "best", "last"),
    "seeds.json": ("seeds", "scores", "constant"),
    "config.json": ("architectures", "problem_type", "id2label", "label2id", "hidden_size", "num_hidden_layers", "vocab_size"),
}
UNREAD = {"manifest.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}
# Keys whose values are left out.
MEASURED = {"tokens_per_second", "matrix_share", "peak_memory_mib", "seconds", "versions", "measured"}
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)%?")
FRAME = re.compile(r"[\u2500-\u257f]+")


def without_folders(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "").replace(str(folder), "FOLDER").replace(str(ROOT), "ROOT")


def lines_of(text: str, folder: Path) -> list[str]:
    """The lines of a text for a person, without frames and padding, and with what differs masked."""
    lines = (" ".join(FRAME.sub(" ", line).split()) for line in without_folders(text, folder).splitlines())
    text = "\n".join(line for line in lines if line)
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text.splitlines()


def shorten(value: Json, folder: Path) -> Json:
    """A JSON value as it is kept: measured times left out, floats of 8 digits, folders masked."""
    if isinstance(value, dict):
        return {key: shorten(each, folder) for key, each in value.items() if key not in MEASURED}
    if isinstance(value, list):
        return [shorten(each, folder) for each in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return without_folders(value, folder)
    return value


def shorten_line(line: str, folder: Path) -> str:
    line = shorten(line, folder)
    return NUMBER.sub(lambda found: f"{float(found[0]):.8g}" if len(found[0]) > 10 and "." in found[0] else found[0], line)


def parse(content: str, folder: Path) -> Json:
    """JSON, lines of JSON, or lines; of very many the first, and how often each occurs."""
    with contextlib.suppress(ValueError):
        return shorten(json.loads(content), folder)
    lines = content.splitlines()
    if len(lines) > LONG:
        answers = [line.rpartition("\t")[2] for line in lines[1:]]
        return {"first": lines[:20], "count": {answer: answers.count(answer) for answer in sorted(set(answers))}}
    with contextlib.suppress(ValueError):
        return [shorten(json.loads(line), folder) for line in lines]
    return [shorten_line(line, folder) for line in lines]


def of_file(path: Path, folder: Path) -> Json:
    """What is kept of a file that a command wrote; None for one of which the name is enough."""
    if path.suffix not in {".json", ".jsonl", ".csv", ".tsv", ".conll"} or path.name in UNREAD:
        return None
    found = parse(path.read_text(encoding="utf-8"), folder)
    if path.name in KEPT:
        kept = {name: found[name] for name in KEPT[path.name] if name in found}
        return kept | ({"training": found["training"]} if "training" in found else {})
    return found


def options_in(help_text: list[str]) -> list[str]:
    """The names of options and commands that a help text lists."""
    listed = [re.match(r"(?:\* )?(--?[\w-]+(?: --?[\w-]+)*|[a-z]+ (?=[A-Z]))", line) for line in help_text]
    return sorted({name for found in listed if found for name in found[1].split()})


# --- running ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def same_everywhere(folder: Path) -> Iterator[None]:
    """The command line in a folder with one thread and a wide terminal that is none."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error")
            patch.chdir(folder)
            patch.setenv("COLUMNS", "1000")
            for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH"):
                patch.delenv(name, raising=False)
            yield
    finally:
        torch.set_num_threads(threads)


def run(command: str) -> Ran:
    """Run a command as one would type it; `< FILE` is its standard input."""
    command, _, file = command.partition(" < ")
    typed = file.split()  # options may follow the file
    return run_command([*shlex.split(command), *typed[1:]], Path(typed[0]).read_bytes() if typed else b"")


def files_in(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def by_folder(names: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        found.setdefault(folder or ".", []).append(file)
    return found


def observe(command: str, folder: Path) -> tuple[dict[str, Json], list[str]]:
    """What a command did: exit code, files with their content, data on stdout; and its text for a person."""
    before = files_in(folder)
    code, out, err = run(command)
    after = files_in(folder)
    wrote = sorted(name for name in after if after[name] != before.get(name))
    gone = sorted(set(before) - set(after))
    text = lines_of(err, folder)
    found: dict[str, Json] = {"command": command, "code": code, "wrote": by_folder(wrote), "gone": by_folder(gone)}
    if "--help" in command:
        text = sorted(lines_of(out, folder))  # options of several families stand in no fixed order
        found["options"] = options_in(text)
    elif command.startswith("predict") and "--format text" not in command:
        found["stdout"] = parse(out, folder)
    elif "--json" in command and out:
        found["stdout"] = shorten(json.loads(out), folder)
    else:
        text = [*lines_of(out, folder), *text]
    wrote = [name for name in wrote if not re.search(r"checkpoint-|\.old-", name)]  # of which the names are enough
    content = {name: of_file(folder / name, folder) for name in wrote}
    found["files"] = {name: value for name, value in content.items() if value is not None}
    return {name: value for name, value in found.items() if value not in ([], {})}, text


def observe_case(steps: list[Step], folder: Path) -> dict[str, Json]:
    """What is kept of a case, which runs in a folder that holds the world."""
    found: dict[str, Json] = {"commands": [], "text": []}
    card_seen = False
    with same_everywhere(folder):
        for step in steps:
            if callable(step):
                step()
                continue
            did, told = observe(step, folder)
            cards = [] if card_seen else [path for path in sorted(folder.rglob("*/README.md")) if ".old-" not in str(path)]
            for path in cards[:1]:  # one card a case says enough
                told += lines_of(path.read_text(encoding="utf-8"), folder)
            card_seen = card_seen or bool(cards)
            found["commands"].append(did)
            found["text"].append(told)
    return found


# --- comparing -------------------------------------------------------------------------------------------------------------


def differences(found: Json, expected: Json, place: str = "") -> Iterator[str]:
    """Where two values differ by more than the last bits of a CPU; one line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        training = place.endswith(".training")  # which may have settings that were not there before
        for key in sorted(set(expected) | (set() if training else set(found))):
            if key not in found or key not in expected:
                yield f"{place}.{key}: {'missing' if key not in found else 'new'}"
            else:
                yield from differences(found[key], expected[key], f"{place}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            yield f"{place}: {len(found)} items, {len(expected)} before"
        for at, (one, other) in enumerate(zip(found, expected, strict=False)):
            yield from differences(one, other, f"{place}[{at}]")
    elif isinstance(expected, float) and isinstance(found, float) and ".training." not in place:
        if abs(found - expected) > tolerance_of(place, expected):
            yield f"{place}: {found!r}, {expected!r} before"
    elif isinstance(expected, str) and isinstance(found, str):
        if not same_text(found, expected, rounded=place.startswith("text")):
            yield f"{place}: {found!r}, {expected!r} before"
    elif found != expected or type(found) is not type(expected):
        yield f"{place}: {found!r}, {expected!r} before"


def tolerance_of(place: str, expected: float) -> float:
    name = re.split(r"[./]", place)[-1]
    if name == "learning_rate":  # which no CPU computes differently
        return 1e-7 * abs(expected)
    return LOOSER.get(name, TOLERANCE) * max(1.0, abs(expected))


def same_text(found: str, expected: str, *, rounded: bool) -> bool:
    """Whether two texts differ only in numbers, and those by at most 1e-5, or if rounded by 1 in the last digit printed."""
    if found == expected:
        return True
    if NUMBER.sub("#", found) != NUMBER.sub("#", expected):
        return False
    return all(_same_number(*pair, rounded) for pair in zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True))


def _same_number(found: str, expected: str, rounded: bool) -> bool:
    if found == expected or not re.search(r"[.%]", found + expected):  # without them it counts or names
        return found == expected
    digits, _, power = expected.rstrip("%").partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    values = [float(text.rstrip("%")) for text in (found, expected)]
    tolerance = TOLERANCE * max(1.0, abs(values[1]))
    return abs(values[0] - values[1]) <= max(tolerance, 1.01 * unit if rounded else 0)


def decimals_in(told: list[str]) -> str:
    """The numbers with a fraction in what a command told a person, a help text's defaults aside."""
    return " ".join(number for line in told if "[default" not in line for number in NUMBER.findall(line) if "." in number)


# --- on disk ---------------------------------------------------------------------------------------------------------------


def write_golden(path: Path, golden: dict[str, Json]) -> None:
    path.write_text(_laid_out(golden) + "\n", encoding="utf-8")


def _laid_out(value: Json, indent: str = "", width: int = 150) -> str:
    """JSON with a line for whatever fits into one, so that a difference is a line."""
    plain = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(plain) <= width or not isinstance(value, (dict, list)):
        return plain
    inner = indent + " "
    keys = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    values = list(value.values()) if isinstance(value, dict) else value
    parts = [key + _laid_out(each, inner) for key, each in zip(keys, values, strict=True)]
    lines = [parts[0]]
    for part, each in zip(parts[1:], values[1:], strict=True):
        # Names and settings fill a line; what a command said and did has a line each.
        if isinstance(each, (dict, list)) or " " in str(each) or len(lines[-1] + part) > width - len(inner):
            lines.append(part)
        else:
            lines[-1] += f", {part}"
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(inner + line for line in lines) + f"\n{indent}{closing}"


def read_golden(name: str) -> dict[str, Json]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


# --- the tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_case_repeats_its_golden(name: str, tmp_path: Path) -> None:
    prepare(name, tmp_path)
    found, expected = observe_case(CASES[name], tmp_path), read_golden(name)
    changed = [line for part in ("commands", "text") for line in differences(found[part], expected[part], part)]
    assert not changed, "\n".join(changed)


def test_an_unfinished_run_of_0_1_is_refused_with_its_version(tmp_path: Path) -> None:
    prepare("older-unfinished", tmp_path)
    observed = observe_case([f"{OLDER_UNFINISHED} -o unfinished"], tmp_path)
    (error,) = [line for line in observed["text"][0] if line.startswith("error: ")]
    assert (observed["commands"][0]["code"], "VERSION" in error) == (2, True)  # as a golden masks it


@pytest.mark.parametrize(
    ("found", "expected", "place", "same"),
    [
        (0.123451, 0.123459, "loss", True),
        (0.12345, 0.12348, "loss", False),
        (3e-5, 3.1e-5, "learning_rate", False),
        (8, 8.0, "training", False),
        ({"a": 1, "b": 2}, {"a": 1}, "run.json.training", True),
        ({"a": 1, "b": 2}, {"a": 1}, "run.json.data", False),
        ([1, 2], [1, 2, 3], "wrote", False),
        ("accuracy 0.8571 of 14 rows", "accuracy 0.8572 of 14 rows", "text", True),
        ("accuracy 0.8571 of 14 rows", "accuracy 0.8574 of 14 rows", "text", False),
        ("accuracy 0.8571 of 14 rows", "accuracy 0.8571 of 15 rows", "text", False),
        ("48% good", "49% good", "text", True),
        ("lamp,1.8", "lamp,1.9", "files", False),
        ("lamp,1.800001", "lamp,1.800002", "files", True),
    ],
)
def test_differences_of_values(found: Json, expected: Json, place: str, same: bool) -> None:
    assert (not list(differences(found, expected, place))) == same


def test_every_case_has_a_golden_and_every_golden_a_case() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(CASES)


# --- recording -------------------------------------------------------------------------------------------------------------


def record(names: list[str], *, text_only: bool) -> int:
    """Write the goldens of these cases; of their text alone, nothing where anything else differs."""
    refused = 0
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary).resolve()
            prepare(name, folder)
            found = observe_case(CASES[name], folder)
        if text_only:
            golden = read_golden(name)
            if changed := [
                *differences(found["commands"], golden["commands"], "commands"),
                *differences(*([decimals_in(told) for told in each["text"]] for each in (found, golden)), "text"),
            ]:
                print(f"{name}: more than wording differs, nothing is written:", *changed[:5], sep="\n  ")
                refused += 1
                continue
            found["commands"] = golden["commands"]
        write_golden(GOLDEN / f"{name}.json", found)
        print(f"{name}: {(GOLDEN / f'{name}.json').stat().st_size} bytes", flush=True)
    return int(refused > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", required=True)
    parser.add_argument("--text-only", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    typed = parser.parse_args()
    if unknown := set(typed.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    sys.exit(record(typed.cases or list(CASES), text_only=typed.text_only))

"""Recipes: listed without being executed, overridden by options, kept in run.json; a user's own, and other packages'."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_rows import load

from bertkit.cli.presets import PRESETS
from bertkit.config import TrainConfig, convert, filled, options_of
from bertkit.errors import DataError, MachineError, UsageError
from bertkit.metrics.classification import METRICS, accuracy, find_metric, load_metrics, measured, pearson
from bertkit.readers import Examples
from bertkit.runs.scoring import published_scores
from bertkit.tasks import (
    FAMILIES,
    Prediction,
    QuestionAnswering,
    QuestionAnsweringTask,
    TextClassification,
    TokenClassification,
)
from bertkit.tasks.catalog import list_recipes, load_recipe
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.saved import from_json, options_of_run, to_json
from bertkit.tasks.sources import Folder
from bertkit.tasks.splits import read_splits
from bertkit.tasks.token_classification.scores import tag_scorer

NAMES = [listed.name for listed in list_recipes()]
FOLDER = Path(__file__).resolve().parents[2] / "recipes"


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_file_is_listed() -> None:
    assert set(NAMES) == {path.stem for path in FOLDER.glob("[!_]*.py")}
    assert len(NAMES) >= 30
    assert load_recipe(str(FOLDER / "_template.py")).family == "text-classification"


# --- options ---------------------------------------------------------------------------------------------------------------


def test_options_are_declared_once() -> None:
    from bertkit.cli.commands import app

    training = set(options_of(TrainConfig))
    for family in FAMILIES.values():
        own = set(options_of(family))
        assert len(own) > 5
        assert not own & training
        for command in app().registered_commands:
            parameters = inspect.signature(inspect.unwrap(command.callback)).parameters  # type: ignore[arg-type]
            assert not set(parameters) & (own | training), command.callback


@pytest.mark.parametrize("owner", [TrainConfig, *FAMILIES.values()])
def test_every_option_has_help_and_a_default_of_its_own_type(owner: type) -> None:
    for name, declared in options_of(owner).items():
        assert len(declared.help) > 8, name
        assert not declared.help.endswith("."), name
        assert convert(declared, declared.default) == declared.default, name
        assert all(choice == convert(declared, choice) for choice in declared.choices)


@settings(max_examples=25)
@given(st.data())
def test_overrides_are_what_the_recipe_has(data: st.DataObject) -> None:
    values = {
        "learning_rate": st.floats(0, 1),
        "batch_size": st.integers(1, 10**6),
        "max_steps": st.none() | st.integers(1, 10**6),
        "precision": st.sampled_from(["auto", "fp32", "bf16"]),
        "text": st.text(min_size=1),
        "labels": st.lists(st.text(st.characters(categories=["L"]), min_size=1), min_size=1).map(tuple),
        "regression": st.booleans(),
        "split_seed": st.integers(0, 2**31),
    }
    overrides = data.draw(st.fixed_dictionaries({}, optional=values))
    spell: dict[type, Callable[[Any], Any]] = {tuple: ",".join, float: repr}  # as on a command line or in YAML
    written = {name.replace("_", "-"): spell.get(type(value), lambda same: same)(value) for name, value in overrides.items()}
    before = load_recipe("mrpc")
    after = before.overridden(written)
    for one, other in ((after, before), (after.training, before.training)):
        for field in dataclasses.fields(other):
            if field.name != "training":
                assert getattr(one, field.name) == overrides.get(field.name, getattr(other, field.name))


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        ({"max_steps": 9}, {"num_epochs": 2.0}, {"num_epochs": 2.0, "max_steps": None}),
        ({"num_epochs": 2.0}, {"max_steps": 9}, {"num_epochs": 2.0, "max_steps": 9}),
        ({"max_steps": 9}, {"num_epochs": 2.0, "max_steps": 7}, {"max_steps": 7}),
        ({"data": "b"}, {"train": None}, {"data": "b", "train": None}),
        ({"train": "a.csv", "validation": "10%"}, {"data": "b"}, {"data": "b", "train": None, "validation": None}),
        ({"data": "b"}, {"train": "a.csv"}, {"data": None, "train": "a.csv"}),
        ({"data": "b"}, {"validation": "a.csv"}, {"data": "b", "validation": "a.csv"}),  # resolved() refuses the two
    ],
)
def test_an_option_replaces_what_it_excludes(before: dict[str, Any], given: dict[str, Any], after: dict[str, Any]) -> None:
    found = TextClassification().overridden(before).overridden(given)
    assert {name: getattr(found if hasattr(found, name) else found.training, name) for name in after} == after


@pytest.mark.parametrize(
    ("recipe", "name", "parts"),
    [
        ("sst2", "doc_stride", ["--doc-stride", "question-answering"]),
        ("squad", "pooling", ["--pooling", "multiple-choice, text-classification"]),
        ("conll2003", "multi_label", ["--multi-label", "text-classification"]),
        ("sst2", "choices", ["--choices", "multiple-choice"]),
        ("sst2", "learning_rte", ["--learning-rte", "--learning-rate?"]),
    ],
)
def test_unknown_options_and_those_of_other_families(recipe: str, name: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        load_recipe(recipe).overridden({name: 64})
    assert all(part in f"{error.value.what} {error.value.hint}" for part in parts)


# --- run.json --------------------------------------------------------------------------------------------------------------


def through_json(recipe: Recipe, name: str, **more: Any) -> Recipe:
    """The recipe after a trip through run.json."""
    values, training = json.loads(json.dumps([to_json(recipe, name=name), dataclasses.asdict(recipe.training)]))
    return from_json(values | more, training, where="run.json")


def test_runs_with_a_metric_of_numbers_for_classes_still_open() -> None:
    recipe = TextClassification(train="a.csv", metrics=(accuracy,))
    assert through_json(recipe, "mine", metrics=["accuracy", "pearson"]).resolved().metrics == (accuracy,)
    of_numbers = through_json(recipe, "mine", metrics=["pearson"], regression=True)
    assert of_numbers.resolved().metrics == (pearson,)


def assert_same(found: Recipe, recipe: Recipe) -> None:
    """That two recipes are equal; of functions, that their code is, as the file was executed twice."""
    for name in ("dataset", "prepare"):
        one, other = (getattr(each, name) for each in (found, recipe))
        assert (one.__code__ == other.__code__) if inspect.isfunction(one) else one == other
    assert dataclasses.replace(found, dataset=None, prepare=None) == dataclasses.replace(recipe, dataset=None, prepare=None)


@pytest.mark.parametrize("name", [*NAMES, *FAMILIES])
def test_a_recipe_comes_back_from_run_json(name: str) -> None:
    recipe = load_recipe(name)
    assert_same(through_json(recipe, name), recipe)
    assert_same(through_json(recipe, name, of_another_version=["a"]), recipe)
    overrides: dict[str, Any] = {"data": "glue/X", "columns": "a,b", "separator": ";", "learning_rate": 1e-3}
    overrides |= {"max_steps": 5, "max_train_samples": 9}
    lists = {"text-classification": "labels", "token-classification": "labels", "multiple-choice": "choices"}
    overrides |= {lists[recipe.family]: "x,y"} if recipe.family in lists else {"doc_stride": 7}
    changed = recipe.overridden(overrides)
    assert changed != recipe
    assert_same(through_json(changed, name), changed)


# --- what bertkit's own recipes say ----------------------------------------------------------------------------------------

GLUE = {"cola": "matthews_correlation", "mrpc": "accuracy f1", "stsb": "pearson spearmanr"}
GLUE |= dict.fromkeys(("sst2", "rte", "mnli"), "accuracy")


@pytest.mark.parametrize("name", NAMES)
def test_recipes_are_documented_and_official(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.metrics or recipe.family in ("token-classification", "question-answering")  # scored by what the data is
    assert all(METRICS[metric.__name__] is metric for metric in recipe.metrics)
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert 8 <= len(lines) <= 40
    assert lines[0].startswith('"""')
    if name in GLUE:
        assert {metric.__name__ for metric in recipe.metrics} == set(GLUE[name].split())
        assert 2e-5 <= recipe.training.learning_rate <= 5e-5  # the paper's range, appendix A.3
        assert recipe.training.batch_size in (16, 32)
        assert recipe.training.num_epochs in (2, 3, 4)


@pytest.mark.parametrize("name", NAMES)
def test_published_scores_are_among_those_of_the_recipe(name: str) -> None:
    recipe = load_recipe(name)
    assert bool(recipe.reference) == bool(recipe.reference_source)
    assert recipe.reference or name not in (*GLUE, "conll2003", "squad", "squad_v2", "swag", "cmrc2018")
    splits = {*recipe.eval_splits, "test"} if recipe.family == "token-classification" else recipe.eval_splits
    for model, scores in recipe.reference.items():
        assert set() < set(scores) <= {f"{split}/{score}" for split in splits for score in scores_of(recipe)}, model
        assert all(1 < percent <= 100 for percent in scores.values()), "in percent, as they are published"


def scores_of(recipe: Recipe) -> set[str]:
    """The names of what the recipe scores, as it scores them."""
    if isinstance(recipe, TokenClassification):
        return set(tag_scorer([["B-A"]], [["B-A"]], "iob2")([0]))
    if isinstance(recipe, QuestionAnswering):
        columns = {"id": ["1"], "context": ["a"], "question": ["b"], "answers": [[("a", 0)]]}
        task = QuestionAnsweringTask(recipe=recipe.resolved(), unanswerable=bool(recipe.unanswerable))
        nbest = [{"text": "a", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0, "start": 0, "end": 1}]
        found = Prediction("a", 1.0, details={"id": "1", "start": 0, "end": 1, "null_odds": 0.0, "nbest": nbest})
        return set(task.score([found], task.truth(Examples(columns, "x", [1]))))
    return {metric.__name__ for metric in recipe.metrics}


def test_published_scores_belong_to_a_model() -> None:
    for model in ("bert-base-uncased", "google-bert/bert-base-uncased/"):
        assert published_scores(load_recipe("mrpc"), model) == {"validation/accuracy": pytest.approx(0.867)}
    assert published_scores(load_recipe("mrpc"), "bert-base-chinese") == {}


# --- a user's own file -----------------------------------------------------------------------------------------------------

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from bertkit.tasks import TextClassification, TrainConfig
@dataclass
class Row:
    text: str
def rows(split):
    for text, kind in [("good movie", "praise"), ("bad story", "blame"), ("the", "blame")]:
        yield {"words": Row(text).text, "kind": kind}
def share_of_praise(predictions, references):
    return float((references == 1).mean())
settings = {"metrics": (share_of_praise,), "training": TrainConfig(max_steps=1, max_length=16)}
recipe = TextClassification(dataset=rows, text="words", label="kind", labels=("blame", "praise"), **settings)
"""


def test_data_and_metric_of_a_users_file(run_bertkit, tiny_model_dir: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    ran = run_bertkit("finetune", "./mine.py", "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    run = read_json(tmp_path / "run" / "run.json")
    assert run["best"]["scores"]["validation/share_of_praise"] == pytest.approx(1 / 3)
    assert (run["recipe"]["name"], run["data"]["train"]["rows"]) == (str(tmp_path / "mine.py"), 3)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ran = run_bertkit("eval", "../run", "--recipe", "../mine.py", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(run["best"]["scores"], rel=1e-4)
    rows = tmp_path / "rows.csv"
    rows.write_text("words,kind\ngood movie,praise\nbad story,blame\n", encoding="utf-8")
    train = ("finetune", "../mine.py", "-m", tiny_model_dir, "--train", rows, "--validation", rows, "-o", "files")
    assert run_bertkit(*train).code == 0
    ran = run_bertkit("eval", "files", "--recipe", "../mine.py", "--json")
    assert json.loads(ran.out)["validation/share_of_praise"] == 1 / 2, "the recipe's metric, on the rows of the run"
    for command in (("check", "files"), ("compare", "files", "files")):
        assert run_bertkit(*command, "--recipe", "../mine.py", "--json").code == 0
    assert run_bertkit("compare", "files", "files").code == 2, "its metric is code that nobody named"
    (tmp_path / "mine.py").unlink()
    assert run_bertkit("predict", "../run", stdin=b"good movie\n").code == 0


@pytest.mark.parametrize(
    "command",
    [
        "finetune",
        "finetune --seeds 2",
        "finetune --folds 2",
        "tune --search learning_rate=1e-3,2e-3",
        "check --learning-curve 50,100 --seeds 1",
        "check --label-errors --folds 2",
    ],
)
def test_a_metric_that_fails_is_refused_before_training(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path, command: str
) -> None:
    code = OWN.replace("return float((references == 1).mean())", "raise ValueError('no good')")
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    rows = "".join(f"good movie {word},praise\nbad story {word},blame\n" for word in ("a", "the", "of", "in", "on", "at"))
    (tmp_path / "rows.csv").write_text(f"words,kind\n{rows}", encoding="utf-8")
    of_own = () if "--folds" in command or "check" in command else ("--validation", "rows.csv")
    first, *more = command.split()
    ran = run_bertkit(first, "./mine.py", *more, "-m", tiny_model_dir, "--train", "rows.csv", *of_own, "-o", "run")
    assert (ran.code, "the metric share_of_praise fails: ValueError: no good" in ran.err) == (2, True), ran.err
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    assert "newly initialized" not in ran.err, "a model was made, to be trained"


def test_what_a_users_metric_may_be() -> None:
    def score(own: Callable[..., Any]) -> float | None:
        own.__name__ = "mine"
        return measured((own,), np.zeros(2), np.zeros(2))["mine"]

    values = [float("nan"), None, np.float32(0.5), np.int64(2)]
    assert [score(lambda *_, value=value: value) for value in values] == [None, None, 0.5, 2.0]
    for wrong, part in ((lambda *_: 1 / 0, "ZeroDivisionError"), (lambda *_: "high", "'high'")):
        with pytest.raises(UsageError) as error:
            score(wrong)
        assert ("mine" in error.value.what, part in error.value.what) == (True, True)
    for metrics in ((accuracy, accuracy), (partial(accuracy),), ("accuracy",)):
        with pytest.raises(UsageError):
            TextClassification(metrics=metrics)


MINE = "from bertkit.tasks import *\nrecipe = TextClassification(\n    {},\n)\n"


@pytest.mark.parametrize(
    ("source", "part", "line"),
    [
        (MINE.format("texts='a'"), "'texts'", ":2"),
        ("x = (\n", "SyntaxError", ":1"),
        ("\ndef f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError", ":3"),
        ("import nothing_of_this_name\n", "'nothing_of_this_name'", ":1"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", ":2"),
        ("import json\n\njson.loads('{')\n", "JSONDecodeError", ":3"),
        ("recipes = 1\n", "`recipe`", ""),
        (MINE.format('folder=Folder(files={"vaild": "v*.txt"})'), "'vaild'", ""),
        (MINE.format('folder={"files": {}}'), "{'files': {}}", ""),
        (MINE.format('training={"seed": 1}'), "{'seed': 1}", ""),
    ],
)
@pytest.mark.parametrize("folder", ["", "{}/"])
def test_a_broken_file_is_named_with_its_line(
    tmp_path: Path, monkeypatch, source: str, part: str, line: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = f"{folder.format(tmp_path)}my.py"
    Path(path).write_text(source, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        load_recipe(path)
    assert (part in error.value.what, error.value.where) == (True, f"{path}{line}")


def test_an_error_of_two_lines_is_shown_in_one(run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("raise ValueError('two\\nlines')\n", encoding="utf-8")
    ran = run_bertkit("finetune", "./my.py", "-m", "x", "-o", "run")
    (error,) = ran.err.splitlines()
    assert (ran.code, ran.out, error.startswith("error: "), error.endswith("two lines (my.py:1)")) == (2, "", True, True)


def test_own_data_that_fails_is_named_by_its_line(tmp_path: Path) -> None:
    broken = OWN.replace("    for text, kind in", "    1 / 0\n    for text, kind in")
    (tmp_path / "my.py").write_text(broken, encoding="utf-8")
    with pytest.raises(DataError) as error:
        read_splits(load_recipe(str(tmp_path / "my.py")).resolved())
    assert error.value.where == f"{tmp_path}/my.py:{broken.splitlines().index('    1 / 0') + 1}"


def test_a_file_is_read_anew_and_leaves_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "my.py"
    for number in (3, 4):  # within a second and of equal length, which Python's cache of bytecode takes for unchanged
        path.write_text(MINE.format(f"split_seed={number}"), encoding="utf-8")
        assert load_recipe(str(path)) == TextClassification(split_seed=number)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.e2e
def test_loading_recipes_imports_no_heavy_library() -> None:
    code = "import sys, bertkit.tasks.catalog as r; [r.load_recipe(n.name) for n in r.list_recipes()]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "datasets", "accelerate", "sklearn", "scipy", "evaluate"}
    assert heavy & set(done.stdout.split()) == set()


@pytest.mark.parametrize(("there", "wanted"), [("train.tsv.gz", "validation.tsv"), ("notes.pdf", "validation.json or ")])
def test_a_split_without_a_file_is_asked_for_by_the_endings_there(tmp_path: Path, there: str, wanted: str) -> None:
    (tmp_path / there).touch()
    with pytest.raises(DataError, match=f"split validation, as {wanted}.*the folder has {there}") as error:
        TextClassification().folder.read(tmp_path, "validation", None, load, TextClassification().file_endings)
    assert "--validation 10%" in str(error.value.hint)


def test_a_file_where_a_folder_is_expected(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\t1\n")
    with pytest.raises(DataError) as error:
        load(load_recipe("sst2").overridden({"data": str(tmp_path / "train.tsv")}))
    assert error.value.where == str(tmp_path / "train.tsv")


# --- recipes of other packages ---------------------------------------------------------------------------------------------


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """A function that installs the package `flowers`: a module with this source, and an entry point for an object in it."""

    def install(source: str, name: str, value: str) -> None:
        site, module = tmp_path / "site", value.partition(":")[0]
        info = site / "flowers-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flowers\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[bertkit.recipes]\n{name} = {value}\n", encoding="utf-8")
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.syspath_prepend(site)

    return install


def test_a_recipe_of_another_package(run_bertkit, install, tiny_model_dir: Path, tmp_path: Path) -> None:
    install(OWN.replace("recipe = ", "tulips = "), "tulips", "flowers_of_spring:tulips")
    assert {listed.name for listed in list_recipes() if listed.path is None} == {"tulips"}
    (shown,) = (line for line in run_bertkit("recipes").out.splitlines() if "tulips" in line)
    assert "from the package flowers" in shown
    ran = run_bertkit("recipes", "tulips")
    assert (ran.code, ran.out, "the recipe tulips comes from the package flowers" in ran.err) == (2, "", True)
    ran = run_bertkit("finetune", "tulips", "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    run = read_json(tmp_path / "run" / "run.json")
    assert (run["recipe"]["name"], run["data"]["train"]["rows"]) == ("tulips", 3)


@pytest.mark.parametrize("name", ["mrpc", "text-classification"])
def test_a_name_that_bertkit_uses_itself(install, name: str) -> None:
    install("recipe = None\n", name, "flowers_taken:recipe")
    with pytest.raises(UsageError) as error:
        list_recipes()
    assert all(part in error.value.what for part in ("flowers", repr(name)))


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import nothing_of_this_name\n", "'nothing_of_this_name'"),
        ("raise ValueError('wrong')\n", "ValueError: wrong"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("other = 1\n", "AttributeError"),
        ("recipe = 'tulips'\n", "str"),
    ],
)
def test_a_broken_recipe_of_another_package(install, source: str, part: str) -> None:
    install(source, "tulips", "flowers_broken:recipe")
    assert "tulips" in {listed.name for listed in list_recipes()}
    with pytest.raises(UsageError) as error:
        load_recipe("tulips")
    assert (part in error.value.what, error.value.where) == (True, "bertkit.recipes: tulips = flowers_broken:recipe")
    assert load_recipe("sst2").family == "text-classification"


# --- settings by name, and those of another run ----------------------------------------------------------------------------

ROWS = "text,label\n" + "".join(
    f"{text} {what},{label}\n"
    for text in ("good movie", "bad book", "great plot", "poor story", "one film", "new team")
    for what, label in (("like", "yes"), ("hate", "no"), ("love", "yes"))
)
SMALL = ("--max-length", 16, "--device", "cpu", "--precision", "fp32", "--batch-size", 4)


@pytest.fixture
def run_of(run_bertkit, make_model_dir, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that trains a small run on rows.csv and gives its run.json."""
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    model = make_model_dir("BertForSequenceClassification", seed=21, initializer_range=0.5, labels=("no", "yes"))

    def run(output: str, *options: object) -> dict[str, Any]:
        data = () if "--config" in options else ("text-classification", "-m", model, "--train", "rows.csv", *SMALL)
        ran = run_bertkit("finetune", *data, "-o", output, "--no-baselines", *options)
        assert ran.code == 0, ran.err
        return read_json(tmp_path / output / "run.json")

    return run


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("text-classification", {"class_weights": "balanced", "metric": "macro_f1,accuracy", "pooling": "mean"}),
        ("text-classification", {"max_train_samples": 9, "split_seed": 3, "label_smoothing": 0.1, "validation": "20%"}),
        ("sst2", {"text": "text", "labels": "no,yes", "validation": "1/3", **PRESETS["few-sample"]}),
        ("token-classification", {"head": "crf", "constrained": True, "seed": 5, "dropout": 0.2}),
    ],
)
def test_options_of_a_run(name: str, overrides: dict[str, Any]) -> None:
    recipe = load_recipe(name).overridden({"train": "/a", **overrides}).resolved()
    recipe = dataclasses.replace(recipe, training=filled(recipe.training))
    run = json.loads(json.dumps({"recipe": to_json(recipe, name=name), "training": dataclasses.asdict(recipe.training)}))
    assert load_recipe(name).overridden(options_of_run(run)).resolved() == recipe


def test_run_json_repeats_a_run(run_of, run_bertkit, tmp_path: Path) -> None:
    own = ("--fresh-head", "--class-weights", "balanced", "--metric", "macro_f1", "--num-epochs", 2, "--dropout", 0.2)
    first = run_of("first", "--validation", "20%", *own)
    second = run_of("second", "--config", "first/run.json")
    for part in ("recipe", "training", "data", "model", "total_steps", "best", "last"):
        assert second[part] == first[part], part
    other = run_of("third", "--config", "first/run.json", "--seed", 6)
    assert other["training"] == first["training"] | {"seed": 6}, "the command line wins"
    assert (other["recipe"], other["best"] == first["best"]) == (first["recipe"], False)
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("first", "second", "third")]
    assert weights[0] == weights[1] != weights[2]
    ran = run_bertkit("finetune", "--config", "first/run.json", "--preset", "stable", "--output-dir", "fourth")
    assert (ran.code, "(first/run.json)" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ((), [3.0, 0.1, True, 0, 1.0]),
        (("--preset", "stable"), [10.0, 0.1, True, 0, 1.0]),
        (("--preset", "few-sample"), [3.0, 0.1, True, 1, 0.9]),
        (("--preset", "stable", "--config", "own.yaml"), [2.0, 0.3, True, 0, 1.0]),
        (("--preset", "stable", "--config", "own.yaml", "--num-epochs", 1), [1.0, 0.3, True, 0, 1.0]),
        (("--preset", "few-sample", "--no-adam-bias-correction"), [3.0, 0.1, False, 1, 0.9]),
    ],
)
def test_recipe_preset_config_and_command_line_win_in_this_order(run_bertkit, tmp_path, monkeypatch, options, values) -> None:
    (tmp_path / "own.yaml").write_text("num_epochs: 2\nwarmup_ratio: 0.3\n", encoding="utf-8")
    recipes: list[Recipe] = []
    monkeypatch.setattr("bertkit.runs.finetuning.finetune.finetune", lambda request, *_, **__: recipes.append(request.recipe))
    ran = run_bertkit("finetune", "cola", "-m", "x", "-o", "run", *options)
    assert ran.code == 0, ran.err
    names = ("num_epochs", "warmup_ratio", "adam_bias_correction", "reinit_layers", "layerwise_lr_decay")
    assert [getattr(filled(recipes[0].training), name) for name in names] == values


@pytest.mark.parametrize(
    ("content", "options", "part"),
    [
        ("learning-rate: 1e-4\noutput-dir: run\n", (), "output_dir"),
        ("doc_stride: 64\n", (), "--doc-stride"),
        ('test: "\\ud800"\n', (), "a lone surrogate"),
        ("seed: 1\n", ("--preset", "stabel"), "'stabel'"),
    ],
)
def test_bad_options_files_and_presets(run_bertkit, tmp_path: Path, content: str, options: tuple[str, ...], part: str) -> None:
    (tmp_path / "own.yaml").write_text(content, encoding="utf-8")
    ran = run_bertkit("finetune", "sst2", "--model", "x", "--output-dir", "y", "--config", "own.yaml", *options)
    first = ran.err.splitlines()[0]
    assert (ran.code, ran.out, part in first, first.endswith("(own.yaml)")) == (2, "", True, not options)


# --- metrics by name -------------------------------------------------------------------------------------------------------

SCRIPT = """
import datasets
import evaluate
class Own(evaluate.Metric):
    def _info(self):
        features = datasets.Features(dict.fromkeys(("predictions", "references"), datasets.Value("int64")))
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)
    def _compute(self, predictions, references):
        SCORE
"""
HALF = 'return {"half": sum(p == r for p, r in zip(predictions, references)) / len(references) / 2, "b": 9}'


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with metrics of evaluate's form, and evaluate as it is imported without its own HF_EVALUATE_OFFLINE."""
    monkeypatch.setattr("evaluate.config.HF_EVALUATE_OFFLINE", False)
    (tmp_path / "half_right.py").write_text(SCRIPT.replace("SCORE", HALF), encoding="utf-8")
    (tmp_path / "refuses_all.py").write_text(SCRIPT.replace("SCORE", "raise ValueError('not\\nthese')"), encoding="utf-8")
    (tmp_path / "fails_at_once.py").write_text("raise ValueError('two\\nlines')\n", encoding="utf-8")
    return tmp_path


def test_metrics_by_name_and_of_the_evaluate_library(run_bertkit, run_of, scripts: Path, monkeypatch) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    own = ("--metric", "evaluate:./half_right.py,macro_f1,accuracy", "--max-steps", 3)
    run = run_of("run", "--validation", "rows.csv", "--fresh-head", *own)
    assert run["recipe"]["metrics"] == ["evaluate:half_right", "macro_f1", "accuracy"]
    scores = run["best"]["scores"]
    predicted = [json.loads(line)["label"] for line in run_bertkit("predict", "run", "rows.csv").out.splitlines()]
    gold = [line.rpartition(",")[2] for line in ROWS.splitlines()[1:]]
    right = accuracy_score(gold, predicted)
    expected = {"evaluate:half_right": right / 2, "macro_f1": f1_score(gold, predicted, average="macro"), "accuracy": right}
    assert list(scores)[:3] == [f"validation/{name}" for name in expected]
    assert [scores[f"validation/{name}"] for name in expected] == pytest.approx(list(expected.values()))
    (scripts / "elsewhere").mkdir()
    monkeypatch.chdir(scripts / "elsewhere")
    assert run_bertkit("eval", "../run").code == 2, "nothing that a run names is executed"
    ran = run_bertkit("eval", "../run", "--metric", "evaluate:../half_right.py,accuracy", "--json")
    assert ran.code == 0, ran.err
    del scores["validation/macro_f1"]
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-4)


def test_metrics_that_cannot_be_loaded_or_fail(run_bertkit, scripts: Path, tiny_model_dir: Path) -> None:
    for metric in ("no_such_metric", f"{scripts}/not_there.py", f"{scripts}/fails_at_once.py"):
        with pytest.raises(MachineError) as error:
            load_metrics((find_metric(f"evaluate:{metric}"),))
        assert metric in error.value.what
    assert evaluate.config.HF_EVALUATE_OFFLINE, "HF_HUB_OFFLINE, which these tests set, forbids the library's requests too"
    with pytest.raises(UsageError) as refused:
        measured((find_metric(f"evaluate:{scripts}/refuses_all.py"),), np.zeros(2, dtype=int), np.zeros(2, dtype=int))
    assert all(part in refused.value.what for part in ("evaluate:refuses_all", "not these"))
    (scripts / "rows.csv").write_text(ROWS, encoding="utf-8")
    for name, code, said in (("fails_at_once", 5, "two lines"), ("refuses_all", 2, "not these")):
        own = ("--train", "rows.csv", "--metric", f"accuracy,evaluate:./{name}.py", "-m", tiny_model_dir, "-o", "run")
        ran = run_bertkit("finetune", "text-classification", *own)
        assert (ran.code, said in ran.err, (scripts / "run").exists()) == (code, True, False), "before the training"


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 0.5),
        ({"train": "a.csv"}, None),
        ({"train": "a.csv", "validation": "b.csv"}, None),
        ({"train": "a", "validation": "1/5"}, (1, 5)),
        ({"data": "folder", "validation": "1/5"}, (1, 5)),
    ],
)
def test_the_recipes_own_share_is_not_held_out_of_files(options: dict[str, str], share: object) -> None:
    assert TextClassification(held_out="50%", **options).held_out_share == share


def test_a_share_of_a_folders_training_rows_replaces_its_validation_file(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("validation", 5), ("test", 4)):
        rows = "".join(f"{split} {row},{'xy'[row % 2]}\n" for row in range(count))
        (tmp_path / f"{split}.csv").write_text("text,label\n" + rows, encoding="utf-8")
    given = {"data": str(tmp_path), "validation": "25%"}
    recipe = TextClassification(eval_splits=("validation_a", "validation_b", "test")).overridden(given).resolved()
    assert recipe.eval_splits == ("validation", "test")
    splits = read_splits(recipe, (*recipe.splits, "test")).rows
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 30, "validation": 10, "test": 4}
    assert all(text.startswith("train ") for text in splits["validation"].columns["text"])
    for split, value in (
        ("validation", "test.csv"),
        ("test", "test.csv"),
        ("train", "test.csv"),
        ("train", "10%"),
        ("test", "1/5"),
    ):
        with pytest.raises(UsageError, match=f"--data and --{split} FILE cannot be combined"):
            dataclasses.replace(recipe, **{split: value}).resolved()
    with pytest.raises(UsageError, match="expected a file, a share such as 10%") as error:
        dataclasses.replace(recipe, validation="0.1").resolved()
    assert "as a percentage" in str(error.value.hint)


@pytest.mark.e2e
def test_a_run_with_a_share_of_a_folder_is_scored_and_repeated_on_the_same_rows(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for split, count in (("train", 40), ("test", 4)):
        rows = "".join(f"{'good' if row % 2 else 'bad'} {row},{'xy'[row % 2]}\n" for row in range(count))
        (tmp_path / "data" / f"{split}.csv").write_text("text,label\n" + rows, encoding="utf-8")
    how = ("--max-steps", 2, "--precision", "fp32", "--device", "cpu", "--no-baselines")

    def described(folder: str) -> dict[str, Any]:
        run = json.loads((tmp_path / folder / "run.json").read_text(encoding="utf-8"))
        return {name: (each["rows"], each["rows_sha256"]) for name, each in run["data"].items()} | {
            "best": run["best"]["scores"]
        }

    data = ("text-classification", "--data", "data", "--model", tiny_model_dir)
    ran = run_bertkit("finetune", *data, "--validation", "25%", *how, "--output-dir", "run")
    assert (ran.code, "has no files" in ran.err) == (0, False), ran.err
    first = described("run")
    assert (first["train"][0], first["validation"][0]) == (30, 10)
    ran = run_bertkit("eval", "run", "--json")
    assert json.loads(ran.out)["validation/accuracy"] == first["best"]["validation/accuracy"]
    assert run_bertkit("finetune", "--config", "run/run.json", "--output-dir", "again").code == 0
    assert described("again") == first
    assert run_bertkit("finetune", *data, "--folds", 2, *how, "--output-dir", "folds").code == 0
    folds = [described(f"folds/fold-{number}") for number in (1, 2)]
    assert [each["validation"][0] for each in folds] == [20, 20]
    assert folds[0]["validation"] == folds[1]["train"], "other rows"


def test_validation_rows_that_a_share_replaces_are_noted(tmp_path: Path) -> None:
    for split, count in (("train", 30), ("validation", 5)):
        rows = [f"{split} {at},{'ab'[at % 2]}" for at in range(count)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    recipe = TextClassification(data=str(tmp_path), validation="10%").resolved()
    rows, _ = read_splits(recipe)
    assert all(text.startswith("train") for text in rows["validation"].columns["text"])
    assert [note for note in rows["train"].remarks.notes if "are not read" in note and str(tmp_path) in note]
    (tmp_path / "validation.csv").rename(tmp_path / "own.csv")
    own = replace(recipe, folder=Folder(files={"validation_own": "own.csv"}))
    assert [note for note in read_splits(own).rows["train"].remarks.notes if "are not read" in note]
    assert not [note for note in read_splits(recipe).rows["train"].remarks.notes if "are not read" in note]


def test_a_split_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "one,x\ntwo,y\n" * 10, encoding="utf-8")
    recipe = TextClassification(train=str(tmp_path / "a.csv"), validation="10%", set_aside="10%").resolved()
    hints = {
        "setaside": "did you mean set_aside?",
        "rest": "known: set_aside, train, validation",
        "test": "--test FILE names one",
    }
    for split, hint in hints.items():
        with pytest.raises(UsageError) as error:
            read_splits(recipe, [split])
        assert error.value.hint == hint

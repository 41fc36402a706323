"""Recipes: found without being executed, overridden by what was typed, kept in run.json; and a user's own."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recipe_rows import load

from bertkit.config import PRESETS, TrainConfig, convert, filled, options_of
from bertkit.errors import DataError, UsageError
from bertkit.metrics.classification import METRICS
from bertkit.readers import Examples
from bertkit.tasks import (
    FAMILIES,
    Prediction,
    QuestionAnswering,
    QuestionAnsweringTask,
    TextClassification,
    TokenClassification,
)
from bertkit.tasks.catalog import list_recipes, load_recipe
from bertkit.tasks.recipe import Recipe, published_scores
from bertkit.tasks.saved import from_json, to_json
from bertkit.tasks.token_classification.scores import tag_scorer

NAMES = [listed.name for listed in list_recipes()]
FOLDER = Path(__file__).resolve().parents[2] / "recipes"


def test_every_file_is_found() -> None:
    assert set(NAMES) == {path.stem for path in FOLDER.glob("[!_]*.py")}
    assert len(NAMES) >= 30


# --- options ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_option_of_a_family_is_one_of_training(family: type[Recipe]) -> None:
    own, training = options_of(family), options_of(TrainConfig)
    assert len(own) > 5
    assert not set(own) & set(training)


def test_options_are_no_flags_of_the_commands() -> None:
    import inspect

    from bertkit.cli import app

    named = {name for family in FAMILIES.values() for name in options_of(family)} | set(options_of(TrainConfig))
    for command in app.registered_commands:
        own = inspect.signature(inspect.unwrap(command.callback)).parameters  # type: ignore[arg-type]
        assert not set(own) & named, command.callback


@pytest.mark.parametrize("owner", [TrainConfig, *FAMILIES.values()])
def test_every_option_has_help_and_a_default_of_its_own_type(owner: type) -> None:
    for name, declared in options_of(owner).items():
        assert len(declared.help) > 8, name
        assert declared.help[0].islower() or declared.help.split()[0].rstrip(",").isupper() or declared.help[0].isupper(), name
        assert not declared.help.endswith("."), name
        assert convert(declared, declared.default) == declared.default, name
        assert all(choice == convert(declared, choice) for choice in declared.choices)


@given(st.data())
def test_what_is_typed_is_what_the_recipe_says(data: st.DataObject) -> None:
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
    typed = data.draw(st.fixed_dictionaries({}, optional=values))
    before = load_recipe("mrpc")
    # As a command line or a file would write them: numbers as text, lists with commas, dashes for underscores.
    written = {
        name.replace("_", "-"): ",".join(value)
        if isinstance(value, tuple)
        else repr(value)
        if isinstance(value, float)
        else value
        for name, value in typed.items()
    }
    after = before.overridden(written)
    for field in dataclasses.fields(before):
        if field.name != "training":
            assert getattr(after, field.name) == typed.get(field.name, getattr(before, field.name))
    for field in dataclasses.fields(TrainConfig):
        assert getattr(after.training, field.name) == typed.get(field.name, getattr(before.training, field.name))


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UsageError, match="--learning-rte") as error:
        load_recipe("sst2").overridden({"learning_rte": 1})
    assert "--learning-rate" in str(error.value.hint)


@pytest.mark.parametrize(
    ("recipe", "name", "families"),
    [
        ("sst2", "doc_stride", ["question-answering"]),
        ("squad", "pooling", ["multiple-choice", "text-classification"]),
        ("conll2003", "multi_label", ["text-classification"]),
        ("sst2", "choices", ["multiple-choice"]),
    ],
)
def test_an_option_of_other_families_is_refused_with_their_names(
    run_bertkit, tmp_path: Path, recipe: str, name: str, families: list[str]
) -> None:
    (tmp_path / "run.yaml").write_text(f"{name}: 64\n", encoding="utf-8")
    ran = run_bertkit("finetune", recipe, "-m", "x", "-o", "run", "--config", "run.yaml")
    first = ran.err.splitlines()[0]
    assert (ran.code, first.endswith("(run.yaml)")) == (2, True), ran.err
    assert f"--{name.replace('_', '-')} is an option of {', '.join(families)};" in first


# --- run.json --------------------------------------------------------------------------------------------------------------


def through_json(recipe: Recipe, name: str) -> Recipe:
    """The recipe after a trip through run.json."""
    kept = json.dumps([to_json(recipe, name=name), dataclasses.asdict(recipe.training)])
    return from_json(*json.loads(kept), where="run.json")


def assert_same(found: Recipe, recipe: Recipe) -> None:
    """That two recipes are equal; of functions, that their code is."""
    code = [(each.dataset, each.prepare) for each in (found, recipe)]
    for one, other in zip(*code, strict=True):
        if callable(one) and callable(other):  # of a file that was executed twice
            assert one.__code__ == other.__code__
        else:
            assert one == other
    assert dataclasses.replace(found, dataset=None, prepare=None) == dataclasses.replace(recipe, dataset=None, prepare=None)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_comes_back_from_run_json(name: str) -> None:
    recipe = load_recipe(name)
    assert_same(through_json(recipe, name), recipe)
    typed = {
        "data": "glue/X",
        "columns": "a,b",
        "separator": ";",
        "learning_rate": 1e-3,
        "max_steps": 5,
        "max_train_samples": 9,
    }
    own = {"text-classification": "labels", "token-classification": "labels", "multiple-choice": "choices"}
    typed |= {own[recipe.family]: "x,y"} if recipe.family in own else {"doc_stride": 7}
    changed = recipe.overridden(typed)
    assert changed != recipe
    assert_same(through_json(changed, name), changed)


def test_a_family_comes_back_from_run_json() -> None:
    recipe = TextClassification().overridden({"train": "a.csv", "validation": "10%", "regression": True})
    assert through_json(recipe, "text-classification") == recipe


GLUE = {
    "cola": ["matthews_correlation"],
    "sst2": ["accuracy"],
    "mrpc": ["accuracy", "f1"],
    "stsb": ["pearson", "spearmanr"],
    "rte": ["accuracy"],
    "mnli": ["accuracy"],
}


# --- what the built-in ones say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_published_scores_are_of_scores_that_the_recipe_has(name: str) -> None:
    recipe = load_recipe(name)
    splits = {*recipe.eval_splits, "test"} if recipe.family == "token-classification" else recipe.eval_splits
    made = {f"{split}/{score}" for split in splits for score in scores_of(recipe)}
    assert bool(recipe.reference) == bool(recipe.reference_source)
    for model, scores in recipe.reference.items():
        assert scores
        assert set(scores) <= made, model
        assert all(1 < percent <= 100 for percent in scores.values()), "in percent, as they are published"
    if name in GLUE or name in ("conll2003", "squad", "squad_v2", "swag", "cmrc2018"):
        assert recipe.reference


def scores_of(recipe: Recipe) -> set[str]:
    """The names of what the recipe scores, as it scores them."""
    if isinstance(recipe, TokenClassification):
        return set(tag_scorer([["B-A"]], [["B-A"]], "iob2")([0]))
    if isinstance(recipe, QuestionAnswering):
        # What it is trained on, it has: questions without an answer where the recipe has them.
        columns = {"id": ["1"], "context": ["a"], "question": ["b"], "answers": [[("a", 0)]]}
        task = QuestionAnsweringTask(recipe=recipe.resolved(), unanswerable=bool(recipe.unanswerable))
        nbest = [{"text": "a", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0, "start": 0, "end": 1}]
        found = Prediction("a", 1.0, details={"id": "1", "start": 0, "end": 1, "null_odds": 0.0, "nbest": nbest})
        return set(task.score([found], task.truth(Examples(columns, "x", [1]))))
    return {metric.__name__ for metric in recipe.metrics}


def test_published_scores_belong_to_a_model() -> None:
    recipe = load_recipe("mrpc")
    assert published_scores(recipe, "bert-base-uncased") == {"validation/accuracy": pytest.approx(0.867)}
    assert published_scores(recipe, "google-bert/bert-base-uncased/") == published_scores(recipe, "bert-base-uncased")
    assert published_scores(recipe, "bert-base-chinese") == {}


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_documented_and_official(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.metrics or recipe.family in ("token-classification", "question-answering")  # scored by what the data is
    assert all(METRICS[metric.__name__] is metric for metric in recipe.metrics)
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert 8 <= len(lines) <= 40
    assert lines[0].startswith('"""')
    if name in GLUE:
        assert {metric.__name__ for metric in recipe.metrics} == set(GLUE[name])
        assert 2e-5 <= recipe.training.learning_rate <= 5e-5  # the paper's range, appendix A.3
        assert recipe.training.batch_size in (16, 32)
        assert recipe.training.num_epochs in (2, 3, 4)


def test_the_template_is_a_recipe() -> None:
    recipe = load_recipe(str(FOLDER / "_template.py"))
    assert (recipe.family, recipe.text, recipe.text_pair) == ("text-classification", "sentence1", "sentence2")  # type: ignore[attr-defined]


# --- a user's own file -----------------------------------------------------------------------------------------------------

OWN = '''
"""Mine: is it good?"""
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

recipe = TextClassification(
    dataset=rows, text="words", label="kind", labels=("blame", "praise"), metrics=(share_of_praise,),
    training=TrainConfig(max_steps=1, max_length=16),
)
'''


def test_ones_own_data_and_metric(run_bertkit, tiny_model_dir: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    ran = run_bertkit("finetune", "./mine.py", "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["best"]["scores"]["validation/share_of_praise"] == pytest.approx(1 / 3)
    assert run["recipe"]["name"] == str(tmp_path / "mine.py")
    assert run["data"]["train"]["rows"] == 3
    # From another folder too it predicts without the file, which is executed where it is named, and not because a run names it.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ran = run_bertkit("eval", "../run")
    assert (ran.code, "--recipe" in ran.err) == (2, True), ran.err
    ran = run_bertkit("eval", "../run", "--recipe", "../mine.py", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(run["best"]["scores"], rel=1e-4)
    (tmp_path / "mine.py").unlink()
    assert run_bertkit("predict", "../run", stdin=b"good movie\n").code == 0


@pytest.mark.parametrize(
    ("returned", "score"),
    [("float('nan')", None), ("None", None), ("np.float32(0.5)", 0.5), ("np.int64(2)", 2.0)],
)
def test_what_a_metric_of_ones_own_may_give(run_bertkit, tiny_model_dir, tmp_path: Path, returned: str, score) -> None:
    source = OWN.replace("float((references == 1).mean())", returned)
    (tmp_path / "mine.py").write_text(source.replace("@dataclass", "import numpy as np\n\n@dataclass"), encoding="utf-8")
    ran = run_bertkit("finetune", "./mine.py", "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["best"]["scores"]["validation/share_of_praise"] == score


@pytest.mark.parametrize(
    ("returned", "metrics", "what"),
    [
        ("1 / 0", "share_of_praise,", "the metric share_of_praise fails: ZeroDivisionError: division by zero"),
        (
            "'high'",
            "share_of_praise,",
            "the metric share_of_praise fails: ValueError: could not convert string to float: 'high'",
        ),
        ("1.0", "share_of_praise, share_of_praise", "metrics names one twice: share_of_praise, share_of_praise"),
        ("1.0", "partial(share_of_praise),", "metrics has functools.partial"),
        ("1.0", "'accuracy',", "metrics has 'accuracy'; expected functions, each with a name"),
    ],
)
def test_a_metric_of_ones_own_that_fails(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path, returned: str, metrics: str, what: str
) -> None:
    source = OWN.replace("float((references == 1).mean())", returned).replace(
        "metrics=(share_of_praise,)", f"metrics=({metrics})"
    )
    source = source.replace("@dataclass", "from functools import partial\n\n@dataclass")
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    ran = run_bertkit("finetune", "./mine.py", "-m", tiny_model_dir, "-o", "run")
    assert (ran.code, f"error: {what}" in ran.err) == (2, True), ran.err


def test_a_run_of_another_version_has_other_fields(run_of, run_bertkit, tmp_path: Path) -> None:
    run = run_of("text-classification", "run", *CLASSES, *SMALL, "--max-steps", 1)
    run["recipe"] |= {"gone": ["a"], "also_gone": 1}
    (tmp_path / "run" / "run.json").write_text(json.dumps(run), encoding="utf-8")
    assert run_bertkit("eval", "run").code == 0
    (tmp_path / "run" / "run.json").write_text(json.dumps(run | {"recipe": []}), encoding="utf-8")
    ran = run_bertkit("eval", "run")
    assert (ran.code, "error: run.json" in ran.err) == (4, True)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            "from bertkit.tasks import *\nrecipe = TextClassification(\n    texts='a',\n)\n",
            "TypeError: {init}__init__() got {more} (my.py:2)",
        ),
        ("x = (\n", "SyntaxError: '(' was never closed (my.py:1)"),
        ("\ndef f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero (my.py:3)"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name' (my.py:1)"),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines (my.py:1)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (my.py:2)"),
        ("import json\n\njson.loads('{')\n", "JSONDecodeError: Expecting property name{rest} (my.py:3)"),
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_broken_file_is_one_line_with_its_place(run_bertkit, tmp_path: Path, source: str, what: str, absolute: bool) -> None:
    path = tmp_path / "my.py"
    path.write_text(source, encoding="utf-8")
    ran = run_bertkit("finetune", path if absolute else "./my.py", "-m", "x", "-o", "run")
    what = what.format(
        init="TextClassification.",
        more="an unexpected keyword argument 'texts'",
        rest=" enclosed in double quotes: line 1 column 2 (char 1)",
    )
    if absolute:
        what = what.replace("(my.py", f"({path}")
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: the recipe fails: {what}\n")


def test_a_file_without_a_recipe(run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("recipes = 1\n", encoding="utf-8")
    ran = run_bertkit("finetune", "./my.py", "-m", "x", "-o", "run")
    assert ran.code == 2
    assert ran.err.startswith("error: the file defines no `recipe`; expected one of TextClassification")
    assert ran.err.splitlines()[0].endswith("(my.py)")


def test_ones_own_data_that_fails_is_named_by_its_line(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    broken = OWN.replace("    for text, kind in", "    1 / 0\n    for text, kind in")
    line = broken.splitlines().index("    1 / 0") + 1
    (tmp_path / "my.py").write_text(broken, encoding="utf-8")
    ran = run_bertkit("finetune", "./my.py", "-m", tiny_model_dir, "-o", "run")
    (error,) = ran.err.splitlines()
    assert (ran.code, error.endswith(f"ZeroDivisionError: division by zero ({tmp_path}/my.py:{line})")) == (3, True)
    assert not (tmp_path / "run").exists()


def test_a_file_is_read_anew_and_leaves_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "my.py"
    for number in (3, 4):  # within a second and of equal length, which Python's cache of bytecode takes for unchanged
        path.write_text(f"from bertkit.tasks import *\nrecipe = TextClassification(split_seed={number})\n", encoding="utf-8")
        assert load_recipe(str(path)).split_seed == number
    assert list(tmp_path.iterdir()) == [path]


def test_loading_a_recipe_imports_no_heavy_library() -> None:
    import subprocess

    code = "import sys, bertkit.tasks.catalog as r; [r.load_recipe(n.name) for n in r.list_recipes()]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent, capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "datasets", "accelerate", "sklearn", "scipy", "evaluate"}
    assert heavy & set(done.stdout.split()) == set()


def test_the_recipe_is_the_object_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_text("from bertkit.tasks import *\nrecipe = TextClassification(text='a')\nother = recipe\n", encoding="utf-8")
    assert load_recipe(str(path)) == TextClassification(text="a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('folder=Folder(files={"vaild": "v*.txt"})', "Folder(...) names the split 'vaild'; expected train, validation, test"),
        ('folder={"files": {}}', "folder is {'files': {}}; expected Folder(...)"),
        ('training={"seed": 1}', "training is {'seed': 1}; expected TrainConfig(...)"),
    ],
)
def test_a_recipe_that_is_put_together_wrongly_names_its_file(tmp_path: Path, fields: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from bertkit.tasks import Folder, TokenClassification\nrecipe = TokenClassification({fields})\n")
    with pytest.raises(UsageError) as refused:
        load_recipe(str(path))
    assert refused.value.what.startswith(message)
    assert refused.value.where == str(path)


def test_a_file_where_a_folder_is_expected(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\t1\n")
    with pytest.raises(DataError) as refused:
        load(load_recipe("sst2").overridden({"data": str(tmp_path / "train.tsv")}))
    assert refused.value.where == str(tmp_path / "train.tsv")


# --- recipes of other packages ---------------------------------------------------------------------------------------------


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that installs the package `flowers`: what its modules hold, and its entry points."""

    def install(modules: dict[str, str], points: dict[str, str]) -> None:
        site = tmp_path / "site"
        info = site / "flowers-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flowers\nVersion: 1.0\n", encoding="utf-8")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("[bertkit.recipes]\n" + "\n".join(lines) + "\n", encoding="utf-8")
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source, encoding="utf-8")
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.syspath_prepend(site)

    return install


def test_a_recipe_of_another_package(run_bertkit, install, tiny_model_dir: Path, tmp_path: Path) -> None:
    install({"flowers_of_spring": OWN.replace("recipe = ", "tulips = ")}, {"tulips": "flowers_of_spring:tulips"})
    listed = {each.name: each for each in list_recipes()}
    assert set(listed) == {*NAMES, "tulips"}
    assert (listed["tulips"].description, listed["tulips"].path) == ("from the package flowers", None)
    shown = [line for line in run_bertkit("recipes").err.splitlines() if "tulips" in line]
    assert len(shown) == 1
    assert "from the package flowers" in shown[0]
    recipe = load_recipe("tulips")
    assert (recipe.text, recipe.training.max_length) == ("words", 16)  # type: ignore[attr-defined]
    ran = run_bertkit("finetune", "tulips", "-m", tiny_model_dir, "-o", "run")
    assert ran.code == 0, ran.err
    run = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert run["recipe"]["name"] == "tulips"
    assert run["data"]["train"]["rows"] == 3
    assert run_bertkit("eval", "run").code == 2, "nothing that a run names is executed"
    ran = run_bertkit("eval", "run", "--recipe", "tulips", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(run["best"]["scores"], rel=1e-4)
    ran = run_bertkit("recipes", "tulips")
    assert (ran.code, ran.out, "tulips" in ran.err, "flowers" in ran.err) == (2, "", True, True)


@pytest.mark.parametrize("name", ["mrpc", "text-classification"])
def test_a_name_that_bertkit_has_already(run_bertkit, install, name: str) -> None:
    install({"flowers_taken": "recipe = None\n"}, {name: "flowers_taken:recipe"})
    ran = run_bertkit("recipes")
    error, hint = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert error.startswith(f"error: the package flowers has a recipe {name!r}")
    assert "bertkit.recipes" in hint


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import nothing_of_this_name\n", "the recipe fails: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("raise ValueError('two\\nlines')\n", "the recipe fails: ValueError: two lines"),
        ("import sys\nsys.exit(3)\n", "the recipe fails: SystemExit: 3"),
        ("other = 1\n", "the recipe fails: AttributeError: module 'flowers_broken' has no attribute 'recipe'"),
        ("recipe = 'tulips'\n", "the entry point is str; expected a recipe"),
    ],
)
def test_a_broken_recipe_of_another_package(run_bertkit, install, source: str, what: str) -> None:
    install({"flowers_broken": source}, {"tulips": "flowers_broken:recipe"})
    assert "tulips" in run_bertkit("recipes").err, "what is broken is still listed"
    ran = run_bertkit("finetune", "tulips", "-m", "x", "-o", "run")
    place = "bertkit.recipes: tulips = flowers_broken:recipe"
    assert (ran.code, ran.out, ran.err.splitlines()) == (2, "", [f"error: {what} ({place})"])
    assert run_bertkit("recipes", "sst2").code == 0, "others are not held up by it"


# --- settings by name, and those of another run -----------------------------------------------------------------------------

ROWS = "text,label\n" + "".join(
    f"{text} {what},{label}\n"
    for text in ("good movie", "bad book", "great plot", "poor story", "one film", "new team")
    for what, label in (("like", "yes"), ("hate", "no"), ("love", "yes"))
)
TAGS = "the O\nmovie B-X\n\none O\nbook B-X\nteam I-X\n\nthe O\nplot B-X\n\ngood O\nstory B-X\n\n" * 3


@pytest.fixture
def run_of(run_bertkit, make_model_dir, tmp_path: Path):
    """A function that trains a small run and gives its run.json."""
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "tags.conll").write_text(TAGS, encoding="utf-8")
    model = make_model_dir("BertModel", seed=21, initializer_range=0.5)

    def run(family: str, output: str, *options: object) -> dict:
        ran = run_bertkit("finetune", family, "-m", model, "-o", output, *options)
        assert ran.code == 0, ran.err
        return json.loads((tmp_path / output / "run.json").read_text(encoding="utf-8"))

    return run


SMALL = ("--max-length", 16, "--device", "cpu", "--precision", "fp32", "--batch-size", 4)
CLASSES = ("--train", "rows.csv", "--validation", "20%")


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (
            "text-classification",
            (*CLASSES, "--class-weights", "balanced", "--metric", "macro_f1,accuracy", "--pooling", "mean"),
        ),
        ("text-classification", (*CLASSES, "--max-train-samples", 9, "--split-seed", 3, "--label-smoothing", 0.1)),
        (
            "sst2",
            ("--text", "text", "--labels", "no,yes", "--train", "rows.csv", "--validation", "1/3", "--preset", "few-sample"),
        ),
        ("token-classification", ("--train", "tags.conll", "--validation", "25%", "--head", "crf", "--constrained")),
    ],
    ids=["weights", "samples", "recipe", "tags"],
)
def test_a_run_is_repeated_from_its_run_json(run_of, family: str, options: tuple) -> None:
    own = ("--learning-rate", 3e-4, "--num-epochs", 2, "--eval-steps", 3, "--seed", 5, "--schedule", "cosine", "--dropout", 0.2)
    first = run_of(family, "first", *options, *SMALL, *own)
    second = run_of(family, "second", "--config", "first/run.json")
    for part in ("recipe", "training", "data", "total_steps", "best", "last"):
        assert second[part] == first[part], part
    assert first["training"]["seed"] == 5
    assert first["total_steps"] > 3
    other = run_of(family, "third", "--config", "first/run.json", "--seed", 6)
    assert other["training"] == first["training"] | {"seed": 6}, "the command line wins"
    assert other["recipe"] == first["recipe"]
    assert other["best"] != first["best"]


def test_run_json_alone_repeats_a_run(run_of, run_bertkit, tmp_path: Path) -> None:
    run_of("text-classification", "first", *CLASSES, *SMALL, "--max-steps", 3)
    more = ("--max-steps", 2, "--fresh-head", "--output-dir", "second", "--model", "first")
    ran = run_bertkit("finetune", "text-classification", *CLASSES, *SMALL, *more)
    assert ran.code == 0, ran.err
    ran = run_bertkit("finetune", "--config", "second/run.json", "--output-dir", "third")
    assert ran.code == 0, ran.err
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("first", "second", "third")]
    assert weights[0] != weights[1] == weights[2], "a fresh head, as that run had it"
    ran = run_bertkit("finetune", "--config", "second/run.json", "--preset", "stable", "--output-dir", "fourth")
    what = "error: --preset stable has no effect: the run.json sets every option (second/run.json)"
    assert (ran.code, ran.err.splitlines()[0]) == (2, what)


def test_what_is_no_option_of_a_file(run_bertkit, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("learning-rate: 1e-4\noutput-dir: run\n", encoding="utf-8")
    ran = run_bertkit("finetune", "sst2", "--model", "x", "--output-dir", "y", "--config", "own.yaml")
    what = "error: output_dir cannot be set in an options file, only on the command line (own.yaml)"
    assert (ran.code, ran.err.splitlines()[0]) == (2, what)


def test_what_comes_first_of_preset_config_and_typed(run_of, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("num_epochs: 2\nwarmup_ratio: 0.3\n", encoding="utf-8")
    data = ("--text", "text", "--labels", "no,yes", "--train", "rows.csv", "--validation", "rows.csv", "--max-steps", 1, *SMALL)
    numbers = ("num_epochs", "warmup_ratio", "adam_bias_correction", "reinit_layers", "layerwise_lr_decay")

    def settings(output: str, *options: object) -> list:
        training = run_of("cola", output, *data, *options)["training"]
        return [training[name] for name in numbers]

    recipe = filled(load_recipe("cola").training)
    assert recipe.num_epochs != 10
    assert settings("a") == [getattr(recipe, name) for name in numbers]
    assert settings("b", "--preset", "stable") == [10.0, 0.1, True, 0, 1.0]
    assert settings("c", "--preset", "few-sample") == [recipe.num_epochs, 0.1, True, 1, 0.9]
    assert settings("d", "--preset", "stable", "--config", "own.yaml") == [2.0, 0.3, True, 0, 1.0]
    typed = ("--num-epochs", 1, "--no-adam-bias-correction")
    assert settings("e", *typed, "--preset", "stable", "--config", "own.yaml") == [1.0, 0.3, False, 0, 1.0]


def test_every_preset_is_made_of_options() -> None:
    assert list(PRESETS) == ["stable", "few-sample"]
    for values in PRESETS.values():
        assert load_recipe("rte").overridden(values).training == dataclasses.replace(load_recipe("rte").training, **values)


def test_an_unknown_preset(run_bertkit) -> None:
    ran = run_bertkit("finetune", "mrpc", "-m", "x", "-o", "run", "--preset", "stabel")
    what = ["error: --preset is 'stabel'; expected stable or few-sample", "hint: did you mean stable?"]
    assert (ran.code, ran.out, ran.err.splitlines()) == (2, "", what)


# --- metrics by name --------------------------------------------------------------------------------------------------------

SCRIPT = """
import datasets
import evaluate


class Own(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        SCORE
"""
HALF = SCRIPT.replace(
    "SCORE", 'return {"half": sum(p == r for p, r in zip(predictions, references)) / len(references) / 2, "b": 9}'
)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """evaluate without a network."""
    monkeypatch.setattr("evaluate.config.HF_EVALUATE_OFFLINE", True)


def said_and_gold(run_bertkit) -> tuple[list[str], list[str]]:
    ran = run_bertkit("predict", "run", "rows.csv")
    assert ran.code == 0, ran.err
    said = [json.loads(line)["label"] for line in ran.out.splitlines()]
    return said, [line.rpartition(",")[2] for line in ROWS.splitlines()[1:]]


def test_metrics_by_name(run_bertkit, run_of) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    data = ("--train", "rows.csv", "--validation", "rows.csv", "--metric", "macro_f1,accuracy", "--max-steps", 3, *SMALL)
    run = run_of("text-classification", "run", *data)
    assert run["recipe"]["metrics"] == run["recipe"]["metric"] == ["macro_f1", "accuracy"]
    scores = run["best"]["scores"]
    assert list(scores)[:2] == ["validation/macro_f1", "validation/accuracy"]
    said, gold = said_and_gold(run_bertkit)
    assert scores["validation/accuracy"] == pytest.approx(accuracy_score(gold, said))
    assert scores["validation/macro_f1"] == pytest.approx(f1_score(gold, said, average="macro"))
    assert scores["validation/macro_f1"] != pytest.approx(scores["validation/accuracy"])
    ran = run_bertkit("eval", "run", "--metric", "matthews_correlation", "--json")
    assert ran.code == 0, ran.err
    assert set(json.loads(ran.out)) - {"validation/constant_predictions"} == {
        "validation/matthews_correlation",
        "validation/loss",
    }


@pytest.mark.usefixtures("offline")
def test_a_metric_of_the_evaluate_library(run_bertkit, run_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_right.py").write_text(HALF, encoding="utf-8")
    name = "evaluate:half_right"
    data = ("--train", "rows.csv", "--validation", "rows.csv", "--max-steps", 2, *SMALL)
    run = run_of("text-classification", "run", *data, "--metric", "evaluate:./half_right.py,accuracy")
    assert run["recipe"]["metrics"] == [name, "accuracy"]
    scores = run["best"]["scores"]
    said, gold = said_and_gold(run_bertkit)
    right = sum(one == other for one, other in zip(said, gold, strict=True)) / len(gold)
    assert scores["validation/accuracy"] == pytest.approx(right)
    assert scores[f"validation/{name}"] == pytest.approx(right / 2)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_bertkit("eval", "../run").code == 2, "nothing that a run names is executed"
    ran = run_bertkit("eval", "../run", "--metric", "evaluate:../half_right.py,accuracy", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(scores, rel=1e-4)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("metric", "code", "what"),
    [
        ("macro_f2", 2, "error: no metric 'macro_f2'"),
        ("evaluate:no_such_metric", 5, "error: the metric evaluate:no_such_metric cannot be loaded: "),
        ("evaluate:./not_there.py", 5, "error: the metric evaluate:{folder}/not_there.py cannot be loaded: "),
        ("evaluate:./fails_at_once.py", 5, "error: the metric evaluate:{folder}/fails_at_once.py cannot be loaded: "),
    ],
)
def test_a_metric_that_cannot_be_had(
    run_bertkit, tiny_model_dir: Path, tmp_path: Path, metric: str, code: int, what: str
) -> None:
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "fails_at_once.py").write_text("raise ValueError('two\\nlines')\n", encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "-m", tiny_model_dir, "-o", "run", "--metric", metric, *SMALL)
    ran = run_bertkit("finetune", "text-classification", *data)
    assert (ran.code, ran.out) == (code, "")
    error, hint = ran.err.splitlines()[-2:]
    assert error.startswith(what.format(folder=tmp_path))
    assert hint.startswith("hint: ")
    assert "evaluate:" in hint
    assert "Traceback" not in ran.err
    assert not (tmp_path / "run").exists(), "found out before the training"


@pytest.mark.usefixtures("offline")
def test_a_metric_that_fails_on_what_it_is_given(run_bertkit, tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "refuses_all.py").write_text(SCRIPT.replace("SCORE", "raise ValueError('not\\nthese')"), encoding="utf-8")
    data = ("--train", "rows.csv", "--validation", "rows.csv", "-m", tiny_model_dir, "-o", "run", "--max-steps", 1, *SMALL)
    ran = run_bertkit("finetune", "text-classification", *data, "--metric", "evaluate:./refuses_all.py")
    assert ran.code == 2
    assert ran.err.splitlines()[-2] == "error: the metric evaluate:refuses_all fails: ValueError: not these"

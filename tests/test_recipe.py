"""Recipes: found without being executed, overridden by what was typed, kept in run.json; and a user's own."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.config import TrainConfig, convert, option, options_of
from bertkit.errors import DataError, UsageError
from bertkit.metrics import METRICS
from bertkit.readers import Examples
from bertkit.recipe import from_json, list_recipes, load_recipe, override, published_scores, to_json
from bertkit.tasks import FAMILIES, QuestionAnswering, TextClassification, TokenClassification
from bertkit.tasks.tagging_scores import score_tags
from bertkit.tasks.task import Task

NAMES = [listed.name for listed in list_recipes()]
FOLDER = Path(__file__).resolve().parent.parent / "recipes"


def test_every_file_is_found() -> None:
    assert set(NAMES) == {path.stem for path in FOLDER.glob("[!_]*.py")}
    assert len(NAMES) >= 7


# --- options ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_option_of_a_family_is_one_of_training(family: type[Task]) -> None:
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
    after = override(before, written)
    for field in dataclasses.fields(before):
        if field.name != "training":
            assert getattr(after, field.name) == typed.get(field.name, getattr(before, field.name))
    for field in dataclasses.fields(TrainConfig):
        assert getattr(after.training, field.name) == typed.get(field.name, getattr(before.training, field.name))


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UsageError) as error:
        override(load_recipe("sst2"), {"learning_rte": 1})
    assert str(error.value) == "no option --learning-rte"
    assert error.value.hint is not None
    assert error.value.hint.startswith("did you mean --learning-rate")


def test_an_option_of_another_family_is_refused_by_its_name(run_bertkit, tmp_path: Path, monkeypatch) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Answering(TextClassification):
        family: ClassVar[str] = "question-answering"
        doc_stride: int = option(128, "tokens by which one window goes on from the last", unit="tokens")

    monkeypatch.setitem(FAMILIES, "question-answering", Answering)
    (tmp_path / "run.yaml").write_text("doc_stride: 64\n", encoding="utf-8")
    ran = run_bertkit("finetune", "sst2", "-m", "x", "-o", "run", "--config", "run.yaml")
    assert ran.code == 2
    assert ran.err == "error: --doc-stride is an option of question-answering; this recipe is text-classification (run.yaml)\n"
    assert override(Answering(), {"doc_stride": "64"}).doc_stride == 64  # type: ignore[attr-defined]


# --- run.json --------------------------------------------------------------------------------------------------------------


def through_json(recipe: Task, name: str) -> Task:
    """The recipe after a trip through run.json."""
    kept = json.dumps([to_json(recipe, name=name), dataclasses.asdict(recipe.training)])
    return from_json(*json.loads(kept), where="run.json")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_comes_back_from_run_json(name: str) -> None:
    recipe = load_recipe(name)
    assert through_json(recipe, name) == recipe
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
    changed = override(recipe, typed)
    assert through_json(changed, name) == changed != recipe


def test_a_family_comes_back_from_run_json() -> None:
    recipe = override(TextClassification(), {"train": "a.csv", "validation": "10%", "regression": True})
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


def scores_of(recipe: Task) -> set[str]:
    """The names of what the recipe scores, as it scores them."""
    if isinstance(recipe, TokenClassification):
        return set(score_tags([["B-A"]], [["B-A"]], "iob2", None))
    if isinstance(recipe, QuestionAnswering):
        answers = Examples({"id": ["1"], "context": ["a"], "question": ["b"], "answers": [[("a", 0)]]}, "x", [1])
        nothing = Examples({"id": ["2"], "context": ["a"], "question": ["b"], "answers": [[]]}, "x", [1])
        settled = recipe.with_labels(answers)
        both = answers if not settled.unanswerable else concatenated(answers, nothing)
        nbest = [{"text": "a", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0, "start": 0, "end": 1}]
        found = {"answer": "a", "start": 0, "end": 1, "probability": 1.0, "null_odds": 0.0, "nbest": nbest}
        return set(settled.score([{"id": name, **found} for name in both.columns["id"]], both))
    return {metric.__name__ for metric in recipe.metrics}


def concatenated(one: Examples, other: Examples) -> Examples:
    return Examples({name: one.columns[name] + other.columns[name] for name in one.columns}, "x", [1, 2])


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
    # From another folder, the run finds both again; and it predicts where the file is gone, for it needs neither.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ran = run_bertkit("eval", "../run", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == pytest.approx(run["best"]["scores"], rel=1e-4)
    (tmp_path / "mine.py").unlink()
    assert run_bertkit("predict", "../run", stdin=b"good movie\n").code == 0
    ran = run_bertkit("eval", "../run")
    assert ran.code == 2
    assert f"error: the recipe file does not exist ({tmp_path}/mine.py)" in ran.err.splitlines()


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
    what = "the recipe's dataset fails for split 'train': ZeroDivisionError: division by zero"
    assert (ran.code, ran.err) == (3, f"error: {what} ({tmp_path}/my.py:{line})\n")
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

    code = "import sys, bertkit.recipe as r; [r.load_recipe(n.name) for n in r.list_recipes()]; print(*sys.modules)"
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
        override(load_recipe("sst2"), {"data": str(tmp_path / "train.tsv")}).load("train")
    assert refused.value.what == "--data is a file; expected a folder"

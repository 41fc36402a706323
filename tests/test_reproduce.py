"""bertkit reproduce: words become runs, which tables and processes share and which go on after a stop; and their figures."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from conftest import Ran, run_command
from scipy import stats

from bertkit.cli import main
from bertkit.cli.commands import app
from bertkit.config import PretrainConfig, options_of
from bertkit.errors import ModelError, Stopped, UserError
from bertkit.reproduce import runs as reproduce_runs
from bertkit.reproduce.reproduction import cells_of
from bertkit.reproduce.results import AVERAGE, Cell, _verdict, describe
from bertkit.reproduce.runs import Run, all_of, pull
from bertkit.reproduce.table import SCALES, TABLES, read_scale, read_table, tables_at
from bertkit.runs.evaluation.compare import Side, mean_difference
from bertkit.runs.pretraining.course import Course
from bertkit.tasks.catalog import load_recipe
from bertkit.tasks.recipe import Recipe
from bertkit.tasks.splits import read_splits
from bertkit.tasks.task import Task

ROOT = Path(__file__).resolve().parent.parent
NINE = {"ablation", "chinese-masking", "convergence", "glue", "ner-features", "sizes", "squad", "swag", "zero-shot"}
DATA = Path("/data")  # which nothing reads


def cells(name: str, scale: str = "smoke", folder: Path = Path("/tables"), seeds: int | None = None) -> list[Cell]:
    of_scale = read_scale(scale)
    data = DATA if scale == "laptop" else None
    return cells_of(read_table(name, of_scale), seeds=seeds or of_scale.seeds, folder=folder, data=data)


def runs_of(*arguments: Any, **more: Any) -> list[Run]:
    """All runs of a table, needs first."""
    return all_of(run for cell in cells(*arguments, **more) for run in cell.runs)


def of_scale(scale: str) -> list[str]:
    return [table.name for table in tables_at(read_scale(scale))]


# --- words ---------------------------------------------------------------------------------------------------------------


def test_the_tables_are_these() -> None:
    assert set(TABLES) == NINE
    assert SCALES == ("smoke", "laptop", "paper")
    assert {scale: NINE - set(of_scale(scale)) for scale in SCALES} == {
        "smoke": set(),
        "laptop": {"swag", "zero-shot"},
        "paper": set(),
    }


def test_words_become_runs() -> None:
    by_place = {(cell.row.name, cell.column.name): cell for cell in cells("ablation", folder=Path("/t"))}
    first, second = by_place["masked", "pairs"].runs
    (model,) = first.needs
    assert first.needs == second.needs
    assert [each.name for each in all_of([first])] == ["tokenizer", "corpus", "model", "pairs"]
    assert re.fullmatch(r"/t/model-[0-9a-f]{10}", str(model.folder))
    assert first.command == shlex.split(
        f"finetune helpdesk_pairs --max-length 32 --model {model.folder}/output --max-steps 2 --max-train-samples 64 "
        f"--batch-size 8 --precision fp32 --no-baselines --seed 1 --output-dir {first.folder}/output"
    )
    assert second.command[-3:-2] == ["2"]
    assert model.words[:2] == ("pretrain", f"{model.needs[0].folder}/output")
    assert model.words[model.words.index("--objective") + 1] == "mlm"
    (usual,) = by_place["masked, NSP", "pairs"].runs[0].needs
    assert usual.words[usual.words.index("--objective") + 1] == "mlm+nsp"
    assert usual.needs == model.needs
    assert ("left-to-right, BiLSTM", "pairs") not in by_place


def test_a_folder_is_named_by_the_words_alone() -> None:
    here, there = (runs_of("ablation", folder=Path(folder)) for folder in ("/a", "/b/c d"))
    assert [run.folder.name for run in here] == [run.folder.name for run in there]
    assert len({run.folder for run in here}) == len({run.words for run in here}) == len(here)
    assert all(str(need.output) in run.words for run in there for need in run.needs), "a folder with a space is one word"
    scale, data = read_scale("laptop"), Path("/my {data} here's")
    (cell, *_) = cells_of(read_table("ablation", scale), seeds=1, folder=Path("/t"), data=data)
    assert f"{data}/LingNLI/train.jsonl.gz" in cell.runs[0].words


def test_the_place_of_the_package_does_not_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    here = runs_of("chinese-masking")
    monkeypatch.setattr(reproduce_runs, "_OWN", {name: Path("/elsewhere") / name for name in reproduce_runs._OWN})
    there = runs_of("chinese-masking")
    assert any("/elsewhere/here" in word for run in there for word in run.words)
    assert any("/elsewhere/embedded" in word for run in there for word in run.words)
    around = runs_of("chinese-masking", folder=Path("/elsewhere"))
    assert [run.folder.name for run in here] == [run.folder.name for run in there] == [run.folder.name for run in around]


def test_tables_share_runs() -> None:
    names = {name: {run.folder.name for run in runs_of(name)} for name in TABLES}
    pretrained = {name: {each for each in names[name] if each.startswith("model-")} for name in TABLES}
    assert len(pretrained["glue"]) == 1
    assert pretrained["glue"] == pretrained["swag"] == pretrained["sizes"] & pretrained["convergence"] & pretrained["ablation"]
    assert names["glue"] <= names["ablation"], "the tasks of its first row are those of GLUE's row"
    at_laptop = {name: {run.folder.name for run in runs_of(name, "laptop")} for name in ("ablation", "sizes", "convergence")}
    models = {name: {each for each in own if each.startswith("model-")} for name, own in at_laptop.items()}
    assert {name: len(own) for name, own in models.items()} == {"ablation": 6, "sizes": 12, "convergence": 4}
    assert len(models["ablation"] & models["convergence"]) == 4  # two objectives, two seeds
    assert len(models["ablation"] & models["sizes"]) == 2


@cache
def commands() -> dict[str, Any]:
    return typer.main.get_command(app()).commands  # type: ignore[attr-defined]


def parsed(command: list[str]) -> dict[str, Any]:
    """What a command line gives its command, without what is not given."""
    group, words = commands()[command[0]], command[1:]
    if hasattr(group, "commands"):
        group, words = group.commands[words[0]], words[1:]
    return {name: value for name, value in group.make_context(command[0], words).params.items() if value is not None}


def recipe_of(run: Run) -> Recipe:
    """The recipe of a finetune command, with its options."""
    given = parsed(run.command)
    recipe = load_recipe(given.pop("recipe"))
    known = {name for owner in (recipe, recipe.training) for name in options_of(owner)}
    return recipe.overridden({name: value for name, value in given.items() if name in known})


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_command_parses(scale: str) -> None:
    runs = [run for name in of_scale(scale) for run in runs_of(name, scale, seeds=1)]
    for run in runs:
        if run.words[0] == "finetune":
            assert recipe_of(run).training.seed == 1
        elif run.words[0] == "pretrain":
            assert PretrainConfig.of(parsed(run.command)).lengths()
        else:
            assert parsed(run.command)
    assert len(runs) > 60


@pytest.mark.slow
def test_every_task_of_laptop_reads_its_data(data_dir: Path) -> None:
    scale = read_scale("laptop")
    every = [cell for table in tables_at(scale) for cell in cells_of(table, seeds=1, folder=Path("/t"), data=data_dir)]
    runs = {run.name: run for cell in every for run in cell.runs if run.words[0] == "finetune"}
    assert len(runs) == 13
    words = {word for run in all_of(run for cell in every for run in cell.runs) for word in run.words}
    assert not [word for word in words if word.startswith(f"{data_dir.resolve()}/") and not Path(word).exists()]
    scores = {cell.column.step: cell.column.score for cell in every}
    for name, run in runs.items():
        recipe = recipe_of(run).resolved()
        data = read_splits(recipe)
        assert data.training is not None
        task = Task.fit(recipe, data.training)
        examples = task.examples(data.rows[scores[name].partition("/")[0]], labelled=True)
        assert len(examples) > 200, name


def test_columns_name_scores_that_their_commands_give() -> None:
    for table in [table for scale in SCALES for table in tables_at(read_scale(scale))]:
        for column in table.columns:
            words = shlex.split(table.scale.steps[column.step].words)
            if words[0] != "finetune":
                continue
            recipe, (split, _, metric) = load_recipe(words[1]), column.score.partition("/")
            metrics = [each.__name__ for each in getattr(recipe, "metrics", None) or ()]
            assert "--validation" in words or split in recipe.eval_splits, (table.scale.name, table.name, column)
            assert not metrics or metric in metrics, (table.scale.name, table.name, column)


def test_claims_compare_rows_that_have_the_column() -> None:
    for table in [table for scale in SCALES for table in tables_at(read_scale(scale))]:
        rows = {row.name: row for row in table.rows}
        for claim in table.claims:
            for row in (rows[claim.higher], rows[claim.lower]):
                assert row.columns is None or claim.column in row.columns, (table.scale.name, table.name, claim)
        assert table.claims or table.name not in ("ablation", "sizes", "ner-features", "convergence", "chinese-masking")


def test_published_figures_agree_with_the_recipes() -> None:
    tables = {name: read_table(name, read_scale("paper")) for name in of_scale("paper")}
    figures = {(name, row.name): row.published for name, table in tables.items() for row in table.rows}
    squad, swag, names = (load_recipe(name).reference for name in ("squad", "swag", "conll2003"))
    assert figures["squad", "BERT-base"]["1.1 F1"] * 100 == pytest.approx(squad["bert-base-uncased"]["validation/f1"])
    assert figures["squad", "BERT-large"]["1.1 exact"] * 100 == pytest.approx(
        squad["bert-large-uncased"]["validation/exact_match"]
    )
    assert figures["swag", "BERT-base"]["SWAG"] * 100 == pytest.approx(swag["bert-base-uncased"]["validation/accuracy"])
    assert figures["ner-features", "fine-tuned"]["CoNLL-2003 F1"] * 100 == pytest.approx(
        names["bert-base-cased"]["validation/f1"]
    )
    for name in ("BERT-base", "BERT-large"):  # the paper's own average
        *tasks, average = figures["glue", name].values()
        assert np.mean(tasks) == pytest.approx(average, abs=0.0006)
    known = {column.name for table in tables.values() for column in table.columns} | {"average"}
    assert {column for published in figures.values() for column in published} <= known


# --- all nine, for real ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Ran]]:
    """A function that makes a table at smoke scale, once, all in one folder, which it gives with how the command ended."""
    folder, done = tmp_path_factory.mktemp("tables"), {}

    def make(name: str) -> tuple[Path, Ran]:
        if name not in done:
            done[name] = run_command(["reproduce", name, "--output-dir", folder])
        return folder, done[name]

    return make


@pytest.mark.parametrize("name", sorted(NINE))
def test_a_table_at_smoke_scale(name: str, made: Callable[[str], tuple[Path, Ran]]) -> None:
    folder, ran = made(name)
    assert ran.code == 0, ran.err
    found = json.loads((folder / f"{name}.json").read_text())
    table = read_table(name, read_scale("smoke"))
    figures = {(cell["row"], cell["task"]): cell for cell in found["cells"]}
    page = (folder / f"{name}.md").read_text()
    for cell in cells(name, folder=folder / "runs"):
        own, values = figures[cell.row.name, cell.column.name], []
        for run in cell.runs:
            assert run.output.is_dir() or run.words[0] == "eval"
            scores = (
                json.loads((run.output / "run.json").read_text())["best"]["scores"]
                if run.output.is_dir()
                else run.record["scores"]
            )
            values.append(scores[cell.column.score])
        assert own["each"] == values
        assert own["mean"] == pytest.approx(np.mean(values))
        assert own["published"] is None, "the tasks of smoke are not the paper's"
        if len(values) > 1:
            assert own["std"] == pytest.approx(np.std(values, ddof=1))
            interval = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values)) if np.std(values) else None
            metric = own["score"].rpartition("/")[2]
            ends = {"matthews_correlation": (-1, 1), "pearson": (-1, 1), "perplexity": (1, np.inf)}.get(metric, (0, 1))
            assert own["interval"] == (None if interval is None else pytest.approx([*np.clip(interval, *ends)]))
        spent = {each.folder: each.record["core_seconds"] for run in cell.runs for each in run.with_needs()}  # each once
        assert own["core_hours"] == pytest.approx(sum(spent.values()) / 3600)
        assert min(spent.values()) >= 0 < own["core_hours"]
        assert f"| {cell.row.name} | {cell.column.name} | {cell.column.score} |" in page
    expected = [(claim.says, claim.higher, claim.lower, claim.column) for claim in table.claims]
    assert [tuple(claim[part] for part in ("says", "higher", "lower", "column")) for claim in found["claims"]] == expected
    for claim in found["claims"]:
        difference = figures[claim["higher"], claim["column"]]["mean"] - figures[claim["lower"], claim["column"]]["mean"]
        assert claim["difference"] == pytest.approx(difference)
        assert claim["verdict"] is None, "two steps of tiny models prove nothing"
        assert f"| {claim['over']} | - |" in page
    assert table.scale.note in page
    assert table.source in page
    assert table.source.partition("'")[0] in (folder / f"{name}.html").read_text()
    assert table.title in ran.err
    tasks = [*(column.name for column in table.columns), *([AVERAGE] if table.average else [])]
    rows = [
        row._replace(published={task: number + place / 100 for place, task in enumerate(tasks)})
        for number, row in enumerate(table.rows)
    ]
    judged = table._replace(rows=rows, scale=table.scale._replace(judges=True))
    described = describe(judged, cells_of(judged, seeds=table.scale.seeds, folder=folder / "runs", data=None))
    assert [claim["verdict"] for claim in described["claims"]] == [_verdict(claim["interval"]) for claim in found["claims"]]
    published = {row.name: row.published for row in rows}
    assert [cell["published"] for cell in described["cells"]] == [published[row][task] for row, task in figures]


def test_steps_start_from_their_checkpoint_and_count_its_tokens(made: Callable[[str], tuple[Path, Ran]]) -> None:
    folder, _ = made("convergence")
    figures = {cell["row"]: cell for cell in json.loads((folder / "convergence.json").read_text())["cells"]}
    early, late = (figures[f"masked, {share}% of the steps"] for share in (40, 100))
    assert early["start"] == "a model pre-trained for this table, at step 4"
    assert (early["tokens"], late["tokens"]) == (4 * 16 * 32, 8 * 16 * 32)
    assert not {*early["commands"]} & {*late["commands"]}


def test_the_average_is_over_tasks_seed_by_seed(made: Callable[[str], tuple[Path, Ran]]) -> None:
    folder, _ = made("glue")
    *tasks, average = json.loads((folder / "glue.json").read_text())["cells"]
    assert average["task"] == "average"
    assert average["each"] == pytest.approx(np.mean([task["each"] for task in tasks], axis=0))


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.1, 0.2), "shown"),
        ((-0.1, 0.2), "not shown"),
        ((0.0, 0.2), "not shown"),
        ((-0.2, -0.1), "opposite shown"),
        (None, "not shown"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_0(interval: tuple[float, float] | None, verdict: str) -> None:
    assert _verdict(interval) == verdict


def test_a_figure_names_the_size_of_its_model(made: Callable[[str], tuple[Path, Ran]]) -> None:
    folder, _ = made("sizes")
    sizes = {cell["row"]: cell["model"] for cell in json.loads((folder / "sizes.json").read_text())["cells"]}
    assert sizes == {"3 layers of 768, 12 heads": "1 x 32, 2 heads", "12 layers of 768, 12 heads": "4 x 32, 2 heads"}


def test_claims_of_what_eval_scores_are_over_seeds(made: Callable[[str], tuple[Path, Ran]]) -> None:
    folder, _ = made("zero-shot")
    found = json.loads((folder / "zero-shot.json").read_text())
    (claim,) = found["claims"]
    higher, lower = (
        next(cell["each"] for cell in found["cells"] if (cell["row"], cell["task"]) == (claim[side], "test"))
        for side in ("higher", "lower")
    )
    assert claim["over"] == "seeds"
    expected = stats.ttest_rel(higher, lower).confidence_interval(0.95)
    equal = len({one - other for one, other in zip(higher, lower, strict=True)}) == 1
    assert claim["interval"] == (None if equal else pytest.approx([expected.low, expected.high]))


def test_a_finished_table_makes_no_run_again(made: Callable[[str], tuple[Path, Ran]]) -> None:
    folder, _ = made("swag")
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    page = (folder / "swag.md").read_bytes()
    again = run_command(["reproduce", "swag", "--output-dir", folder])
    assert again.code == 0
    assert "run 1 of" not in again.err
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == before
    assert (folder / "swag.md").read_bytes() == page
    plan = run_command(["reproduce", "swag", "--dry-run", "--output-dir", folder])
    assert re.search(r"all .* 5 .* 3 .* 5 .* 0 ", plan.err), plan.err  # runs, shared with other tables, done, to do


# --- stops and several processes ---------------------------------------------------------------------------------------------


def test_a_stopped_run_goes_on_from_its_checkpoint(
    made: Callable[[str], tuple[Path, Ran]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertkit.runs.pretraining import training

    whole, _ = made("swag")
    real, calls = training.score_language_model, []

    def stops(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:  # at the end, after a checkpoint at half of the steps
            raise Stopped("stopped", number=signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(training, "score_language_model", stops)
    first = run_command(["reproduce", "swag", "--output-dir", tmp_path / "t"])
    assert first.code == 143
    assert first.err.endswith("stopped; the same command resumes\n")
    model = next((tmp_path / "t/runs").glob("model-*"))
    assert json.loads((model / "record.json").read_text())["finished"] is False
    assert not (tmp_path / "t/swag.md").exists()
    second = run_command(["reproduce", "swag", "--output-dir", tmp_path / "t"])
    assert second.code == 0, second.err
    assert "run 3 of 5: bertkit pretrain" in second.err
    assert f"resuming from {model}/output/checkpoint-4" in second.err
    figures = [json.loads((folder / "swag.json").read_text())["cells"] for folder in (whole, tmp_path / "t")]
    assert [cell["each"] for cell in figures[0]] == [cell["each"] for cell in figures[1]]
    weights = [(folder / "runs" / model.name / "output/model.safetensors").read_bytes() for folder in (whole, tmp_path / "t")]
    assert weights[0] == weights[1]


def test_a_kill_between_a_run_and_its_record_repeats_nothing(made: Callable[[str], tuple[Path, Ran]]) -> None:
    folder, _ = made("swag")
    runs = runs_of("swag", folder=folder / "runs")
    records = {run.name: run.record for run in runs}
    for run in runs:
        (run.folder / "record.json").unlink()
    begun: list[Sequence[str]] = []
    pull(runs, lambda argv: begun.append(argv) or 0)
    assert begun == []
    assert {run.name: run.record["scores"] for run in runs} == {name: record["scores"] for name, record in records.items()}


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    run = runs_of("swag", folder=tmp_path)[0]
    run.folder.mkdir()
    for text in ("{", "3"):
        (run.folder / "record.json").write_text(text)
        with pytest.raises(ModelError, match=r"record.json is damaged.*tokenizer-"):
            pull([run], lambda argv: 0)


def test_tokens_are_counted_phase_by_phase() -> None:
    config = PretrainConfig.of({"max_steps": 100, "phases": ["128:90%", "512:10%"], "batch_size": 2})
    assert [Course(config, 100).tokens_before(step) for step in (0, 50, 90, 95, 100)] == [0, 12800, 23040, 28160, 33280]
    growing = PretrainConfig.of({"max_length": 10, "batch_size": 4, "rampup_batch_size": "2:50%"})
    assert [Course(growing, 8).tokens_before(step) for step in (1, 4, 8)] == [20, 110, 270], "batches of 2, 3, 3, 3, and then 4"


def test_needs_come_first_and_a_failure_ends_all(tmp_path: Path) -> None:
    begun: list[str] = []

    def fails(argv: Sequence[str]) -> int:
        begun.append(argv[0])
        return 3 if argv[0] == "pretrain" else 0

    with pytest.raises(UserError, match="a run has failed: bertkit pretrain ") as raised:
        pull(runs_of("swag", folder=tmp_path), fails)
    assert raised.value.exit_code == 3
    assert begun == ["tokenizer", "corpus", "pretrain"]


@pytest.mark.e2e
def test_two_processes_share_the_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bertkit", "reproduce", "swag", "--output-dir", str(tmp_path / "t")]
    both = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    begun = [re.findall(r"^run \d+ of 5: (.*)$", err, re.MULTILINE) for err in told]
    assert sorted([*begun[0], *begun[1]]) == sorted({*begun[0], *begun[1]}), "a run was made twice"
    assert len(begun[0]) + len(begun[1]) == 5


# --- the plan, and what is refused -------------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(run_bertkit: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    ran = run_bertkit("reproduce", "ablation", "--scale", "laptop", "--data", "data", "--dry-run", "--output-dir", "t")
    assert ran.code == 0, ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    rows = {cells[0]: cells[1:] for line in ran.err.splitlines() if (cells := re.findall(r"[^\s│┃][^│┃]*?(?=\s*[│┃])", line))}
    # 3 objectives with 2 seeds, of which convergence has 2; each task: 3 rows with 5 seeds, tags one row more
    assert rows["model"][:5] == ["pretrain", "6", "4", "0", "6"]
    assert rows["mrpc"][:5] == ["finetune", "15", "5", "0", "15"]  # the size that the others have
    assert rows["conll2003"][:5] == ["finetune", "20", "0", "0", "20"]
    assert rows["all"][0] == str(2 + 6 + 4 * 15 + 20)
    fewer = run_bertkit("reproduce", "ablation", "--scale", "laptop", "--data", "data", "--seeds", "1", "--dry-run", "-o", "t")
    assert re.search(r"^. model .* 3 ", fewer.err, re.MULTILINE)


def test_all_of_laptop_takes_sixteen_hours_at_most(tmp_path: Path) -> None:
    runs = {run.folder: run.step for name in of_scale("laptop") for run in runs_of(name, "laptop")}
    assert sum(step.minutes for step in runs.values()) <= 16 * 60
    assert all(
        run.step.minutes <= 15 for name in of_scale("laptop") for run in runs_of(name, "laptop") if run.words[0] == "pretrain"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["glu"], "no table 'glu'"),
        (["glue", "--scale", "huge"], "--scale is 'huge'; expected smoke or laptop or paper"),
        (["glue", "--scale", "laptop"], "--scale laptop reads data sets from a folder, but --data is missing"),
        (["glue", "--scale", "laptop", "--data", "nowhere"], "--data is not a folder (nowhere)"),
        (["glue", "--scale", "laptop", "--data", "."], "--data lacks LingNLI/train.jsonl.gz"),
        (["glue", "--data", "."], "--data is given, but --scale smoke reads no folder"),
        (["swag", "--scale", "laptop", "--data", "."], "swag has no --scale laptop: the hub alone has its rows"),
        (["zero-shot", "--scale", "laptop", "--data", "."], "zero-shot has no --scale laptop: the hub alone has the weights"),
    ],
)
def test_what_is_refused(arguments: list[str], error: str, run_bertkit: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run_bertkit("reproduce", *arguments, "--output-dir", "t")
    assert ran.code == 2
    assert ran.err.startswith(f"error: {error}"), ran.err
    assert "hint: " in ran.err or "expected smoke or" in error
    assert [*tmp_path.iterdir()] == []


def test_a_folder_of_something_else_is_refused(run_bertkit: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/mine.txt").write_text("mine")
    ran = run_bertkit("reproduce", "swag", "--output-dir", "t")
    assert ran.code == 2
    assert "not empty" in ran.err


def test_launched_as_several_processes_it_is_refused(run_bertkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    ran = run_bertkit("reproduce", "swag", "--output-dir", "t")
    assert ran.code == 2
    assert "start the same command several times" in ran.err


def test_a_command_that_fails_is_named(run_bertkit: Callable[..., Ran], tmp_path: Path) -> None:
    for run in runs_of("chinese-masking", "laptop"):  # all that they read is there, but empty
        for word in run.words:
            if word.startswith("/data/"):
                place = tmp_path / word[1:]
                (place.parent if place.suffix else place).mkdir(parents=True, exist_ok=True)
    ran = run_bertkit("reproduce", "chinese-masking", "--scale", "laptop", "--data", "data", "--output-dir", "t")
    assert ran.code not in (0, 1)
    first, second = re.findall("^error: .*", ran.err, re.MULTILINE)
    assert "a run has failed: bertkit tokenizer train " in second
    assert "a run has failed" not in first


# --- paired intervals --------------------------------------------------------------------------------------------------------


def side(name: str, *right: np.ndarray) -> Side:
    """A side whose runs have these rows right."""
    return Side(name, {}, [lambda rows, own=own: {"accuracy": float(own[rows].mean())} for own in right])


def test_a_claim_is_paired_over_rows() -> None:
    rng = np.random.default_rng(1)
    weak = (rng.random(1000) < 0.6).astype(float)
    strong = np.where(rng.random(1000) < 0.05, 1.0, weak)
    found = mean_difference(side("strong", strong), side("weak", weak), "accuracy", 1000)
    differences = strong - weak
    assert found["difference"] == pytest.approx(differences.mean())
    expected = stats.norm.interval(0.95, differences.mean(), stats.sem(differences))
    assert found["interval"] == pytest.approx(expected, abs=0.003)
    assert found["interval"][0] > 0
    unpaired = 1.96 * np.sqrt(stats.sem(strong) ** 2 + stats.sem(weak) ** 2)
    assert found["interval"][1] - found["interval"][0] < unpaired  # half of what unpaired rows would give


def test_a_claim_is_paired_over_seeds() -> None:
    """Seeds differ by much, and the sides of each seed by nothing or by little."""
    seeds = [np.r_[np.ones(count), np.zeros(100 - count)] for count in (20, 50, 90)]
    better = [np.r_[np.ones(count + 4), np.zeros(96 - count)] for count in (20, 50, 90)]
    same = mean_difference(side("a", *seeds), side("b", *seeds), "accuracy", 100)
    assert (same["difference"], same["interval"]) == (0.0, [0.0, 0.0])
    found = mean_difference(side("a", *better), side("b", *seeds), "accuracy", 100)
    assert found["difference"] == pytest.approx(0.04)
    assert 0 < found["interval"][0] < 0.04 < found["interval"][1] < 0.1


def test_an_undefined_score_gives_no_interval() -> None:
    undefined = Side("undefined", {}, [lambda rows: {"accuracy": None}])
    found = mean_difference(side("a", np.ones(10)), undefined, "accuracy", 10)
    assert found == {"difference": None, "interval": None}


def test_the_words_reach_the_command_line_as_they_are(tmp_path: Path) -> None:
    """What is run in this process is what a shell would run."""
    run = runs_of("swag", folder=tmp_path)[0]
    assert main(run.command) == 0
    assert (run.output / "vocab.txt").is_file()

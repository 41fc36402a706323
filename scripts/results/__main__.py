"""The runs whose figures the README and docs show: each writes results/NAME.json, from which the tables are made.

    python -m scripts.results                 run what has no file yet, then rewrite the tables
    python -m scripts.results atis snips      run these again
    python -m scripts.results --tables        only rewrite the tables

If stopped, the same command continues. Run it with `make results`.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertkit.files import read_json
from scripts import markdown
from scripts.bench import engines, gpu, lever_gains, prediction, serving, startup, tables, training
from scripts.provenance import FP32, RESULTS, ROOT, write_result
from scripts.results import (
    budget,
    budget_models,
    defaults,
    entry_results,
    growth,
    headlines,
    label_errors,
    own_text,
    paired,
    paper_tables,
    pretraining,
    scale,
    trainer,
)
from scripts.results.entries import AFTER_NLI, BY_PRECISION, ENTRIES, FEW, FIVE_SEEDS, FROM_BUDGET, FROM_OWN, SETTINGS, Entry

PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("results", "speed", "precision", "scale", "serve", "engines")),
)


@dataclass(frozen=True)
class Source:
    """How a result comes about. commands: as a user types them. measure: (whether to begin anew) writes results/NAME.json.

    by_name: run only if it is named. target: what makes it, of the Makefile.
    """

    commands: Callable[[], Sequence[str]]
    measure: Callable[[bool], Any]
    target: str
    by_name: bool = False


def _source(name: str, commands: Callable[[], Sequence[str]], measure: Callable[..., Any], *, by_name: bool = False) -> Source:
    """measure: returns what the file keeps."""
    return Source(
        commands, lambda force: write_result(name, measure(force=force)), target=f"results ARGS={name}", by_name=by_name
    )


def _script(target: str, module: str, *words: str, by_name: bool = False) -> Source:
    """A script that writes its result itself, whether or not to begin anew."""

    def measure(force: bool) -> None:
        subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, check=True)

    return Source(lambda: [shlex.join(["python", "-m", module, *words])], measure, target.replace("_", "-"), by_name)


# What the bench of training writes, by its tasks.
BENCHES = {
    result: [task for task, workload in training.TASKS.items() if workload.result == result]
    for result in dict.fromkeys(workload.result for workload in training.TASKS.values())
}
KINDS = ("", FP32)  # of machines: where auto is bf16, and where it is fp32
MODULES = (trainer, defaults, scale, growth, label_errors, own_text, budget_models)
SCRIPTS = (lever_gains, serving, startup, budget)
NEED_MORE = (engines, gpu)  # packages and Java; a GPU
BY_KIND = {
    **{name: ("bench", "scripts.bench.training", "--tasks", ",".join(tasks)) for name, tasks in BENCHES.items()},
    prediction.NAME: ("bench_predict", "scripts.bench.prediction"),
}
# In this order: the pre-trained model is what some entries begin with.
SOURCES: dict[str, Source] = {
    pretraining.NAME: _source(pretraining.NAME, pretraining.commands, pretraining.measure),
    **{
        entry.name: _source(entry.name, partial(entry_results.commands, entry), partial(entry_results.measure, entry))
        for entry in ENTRIES
    },
    **{module.NAME: _source(module.NAME, module.commands, module.measure) for module in MODULES},
    **{each.name: _source(each.name, each.commands, each.measure) for each in paired.COMPARISONS},
    # the name that is written is that of the machine's kind
    **{f"{name}{kind}": _script(*words, by_name=kind != KINDS[0]) for kind in KINDS for name, words in BY_KIND.items()},
    **{each.NAME: _script(each.NAME, each.__name__) for each in SCRIPTS},
    # hours each
    **{
        name: _source(name, partial(paper_tables.commands, name), partial(paper_tables.measure, name), by_name=True)
        for name in paper_tables.TABLES
    },
    **{each.NAME: _script(each.NAME, each.__name__, by_name=True) for each in NEED_MORE},
}
# The blocks that are not made of entries' scores, and what writes their Markdown from their results.
RENDERERS: dict[str, Callable[..., str]] = {
    "small": entry_results.render_many,
    "paper_tables": paper_tables.render,
    **{f"bench{kind}": tables.render for kind in KINDS},
    **{f"{prediction.NAME}{kind}": prediction.render for kind in KINDS},
    **{each.NAME: each.render for each in (pretraining, *MODULES, *SCRIPTS, *NEED_MORE)},
    **paired.BLOCKS,
}

# What each block of the pages shows, between <!-- results:NAME --> and <!-- /results:NAME -->.
TABLES = {
    "tagging": ("conll2003", "ud_pos", "atis", "snips"),
    "answers": ("squad_20k", "squad_5k", "codah"),
    "helpdesk": ("helpdesk", "helpdesk_pairs", "helpdesk_mentions", "helpdesk_pages", "helpdesk_replies"),
    "small": tuple(f"{task}{name}" for task in FEW for name in SETTINGS),
    **{each.NAME: (each.NAME,) for each in (pretraining, *MODULES, *SCRIPTS, *NEED_MORE) if each is not trainer},
    "trainer": (*FIVE_SEEDS, trainer.NAME),
    "from_own": tuple(f"{task}_{origin}" for task, (_, origins) in FROM_OWN.items() for origin in origins),
    **{f"bench{kind}": tuple(f"{name}{kind}" for name in BENCHES) for kind in KINDS},
    **{f"{prediction.NAME}{kind}": (f"{prediction.NAME}{kind}",) for kind in KINDS},
    "precision": tuple(BY_PRECISION),
    "stilts": tuple(AFTER_NLI),
    "from_budget": tuple(FROM_BUDGET),
    "paper_tables": tuple(paper_tables.TABLES),
}

# --- tables ----------------------------------------------------------------------------------------------------------------


BLOCK = re.compile(r"<!-- results:(?P<name>\w+) -->\n(?P<table>.*?)<!-- /results:(?P=name) -->", re.DOTALL)


def table_of(name: str) -> str:
    """The Markdown of a block."""
    if name == headlines.NAME:
        return "\n".join([*markdown.table(headlines.HEADER, headlines.rows(), numbers_from=len(headlines.HEADER)), ""])
    results = load_results(name)
    left = [SOURCES[part].target for part in TABLES[name] if not (RESULTS / f"{part}.json").is_file()]
    shown = RENDERERS.get(name, entry_results.render)(*results) if results else ""
    missing = f"Not measured yet: {', '.join(f'`make {target}`' for target in dict.fromkeys(left))}.\n" if left else ""
    return "\n".join(part for part in (shown, missing) if part)


def load_results(table: str) -> list[dict[str, Any]]:
    """What has been run of the entries that a table shows, in its order."""
    return [values for name in TABLES[table] if (values := read_json(RESULTS / f"{name}.json"))]


def rewrite(page: str) -> str:
    """A page with the table in every block made anew."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- results:{name} -->\n{table_of(name)}<!-- /results:{name} -->"

    return BLOCK.sub(block, page)


# --- the command -----------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries to run, whether or not they have a file")
    parser.add_argument("--force", action="store_true", help="run all again, from the beginning")
    parser.add_argument("--list", action="store_true", help="show the entries and their commands")
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables of README and docs")
    parser.add_argument("--quick", action="store_true", help="2 steps of one seed, to see that all works; nothing is kept")
    options = parser.parse_args(words)
    if unknown := [name for name in options.names if name not in SOURCES]:
        parser.error(f"unknown entries {', '.join(unknown)}; known: {', '.join(SOURCES)}")
    chosen = [
        name
        for name in options.names or [name for name, source in SOURCES.items() if not source.by_name]
        if options.names or options.force or options.quick or not (RESULTS / f"{name}.json").exists()
    ]
    if options.list:
        for name, source in SOURCES.items():
            print(f"{name} ({'done' if (RESULTS / f'{name}.json').exists() else 'to do'})")
            print("".join(f"    {line}\n" for line in source.commands()), end="")
        return
    if options.quick:
        for entry in ENTRIES:
            if entry.name in chosen:
                _quick(entry)
        return
    for name in () if options.tables else chosen:
        SOURCES[name].measure(options.force)
    for page in PAGES:
        page.write_text(rewrite(page.read_text(encoding="utf-8")), encoding="utf-8")


def _quick(entry: Entry) -> None:
    trial = dataclasses.replace(entry, name=f"{entry.name}-quick", seeds=entry.seeds[:1])
    render = entry_results.render_many if entry.many else entry_results.render
    print(render(entry_results.measure(trial, force=True, max_steps="2")), flush=True)
    shutil.rmtree(ROOT / entry_results.RUNS / trial.name)


if __name__ == "__main__":
    main()

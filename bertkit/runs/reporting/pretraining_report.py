"""The sections of a report on pre-training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertkit.errors import UsageError, UserError
from bertkit.html.page import Entry, Section
from bertkit.report import Finding, Table
from bertkit.runs.evaluation.held_out_corpora import HeldOut, open_held_out
from bertkit.runs.reporting.reported_run import ReportedRun, draw_curves


def describe_pretraining(runs: Sequence[ReportedRun], rows: int) -> list[Section]:
    scores: list[Table | Finding] = []
    details: list[Section] = []
    for run in runs:
        before = f"{run.name}: " if len(runs) > 1 else ""
        details.append(Section(f"{before}Loss by phase", [_losses_by_phase(run)]))
        try:
            held_out = open_held_out(str(run.folder), [], {})
        except UserError as error:  # what the run itself recorded is still shown
            scores.append(Finding("note", f"{run.name} is not scored: {error}", hint=error.hint))
            continue
        if held_out.accelerator.num_processes > 1:
            raise UsageError("the report of a pre-training run is written by one process", hint="run it without a launcher")
        scored = held_out.scores()
        named = {f"validation/{name}": value for name, value in scored.items()}
        scores.append(Table(run.name, ["score", "value"], [*map(list, named.items())]))
        if baselines := run.values.get("baselines"):
            first, value = next(iter(named.items()))
            compared = [[run.name, value], *map(list, baselines.items())]
            scores.append(Table(f"{first} compared", ["predictions", first], compared))
        details.append(Section(f"{before}Perplexity by source", [_perplexities(held_out, scored)]))
        filled = [Entry(f"held-out sequence {n}", {"text": own}) for n, own in enumerate(held_out.filled(rows), start=1)]
        details += [Section(f"{before}Filled masks", filled)] if filled else []
    return [Section("Scores", scores), draw_curves(runs), *details]


def _losses_by_phase(run: ReportedRun) -> Table:
    course, rows = run.course, []
    trained = [event for event in run.events if "learning_rate" in event]
    for phase, (length, _) in enumerate(course.config.lengths()):
        own = [event for event in trained if course.phase_at(event["step"] - 1) == phase]
        for term in [name for name in (own[0] if own else {}) if name.endswith("loss")]:
            losses = [event[term] for event in own]
            steps = f"{own[0]['step']} to {own[-1]['step']}"
            rows.append([phase + 1, length, steps, term, losses[0], losses[-1], min(losses)])
    return Table("training loss by phase", ["phase", "tokens", "steps", "loss", "first", "last", "lowest"], rows)


def _perplexities(held_out: HeldOut, scores: Mapping[str, float]) -> Table:
    features, parts = held_out.sequences
    rows = [[name, int(of_part.sum()), scores[f"{name}/perplexity"]] for name, of_part in parts.items()]
    whole = [", ".join(corpus.name for corpus in held_out.corpora), len(features), scores["perplexity"]]
    return Table("held-out sequences by source", ["source", "sequences", "perplexity"], rows or [whole])

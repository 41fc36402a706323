"""`bertkit predict`: rows from files to files, window by window in bounded memory, resumable after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from bertkit import __version__, manifest, progress
from bertkit.config import options_of
from bertkit.errors import DataError, UsageError, flag_of, listed, plural
from bertkit.model import int8
from bertkit.model.devices import OneProcess, Processes
from bertkit.model.precision import DTYPES, Precision
from bertkit.model.pretrained import hash_of_model
from bertkit.readers import Examples, Remarks
from bertkit.readers.content import STDIN, source_name
from bertkit.readers.formats import SPLITS
from bertkit.runs.inference.language_model import is_language_model, open_to_fill
from bertkit.runs.inference.predictor import Predictor
from bertkit.runs.inference.task_predictor import TaskPredictor
from bertkit.runs.inference.windows import windows
from bertkit.runs.prediction.annotation import ANNOTATIONS, FORMATS
from bertkit.runs.prediction.arguments import destination_of, expand
from bertkit.runs.prediction.destination import Destination
from bertkit.runs.prediction.outputs import TEXT, Output, OutputFile, OutputFormat, OutputState, unfinished
from bertkit.runs.prediction.uncertain import Chooser
from bertkit.runs.prediction.window import Window, predict_window
from bertkit.runs.prediction.writers import Writer
from bertkit.runs.remarks import report_counts, report_remarks
from bertkit.runs.series import runs_to_use
from bertkit.runs.target import columns_note, open_target, refuse_shared_pipes
from bertkit.tasks.output import Arrangement, OutputLayout
from bertkit.tasks.task import Task


def predict_to(
    target: str,
    files: Sequence[str],
    *,
    split: str | None,
    recipe: str | None,
    output: Path | None,
    output_dir: Path | None,
    form: str | None,
    ensemble: bool,
    overwrite: bool,
    overrides: Mapping[str, Any],
) -> None:
    """`bertkit predict`: write predictions for files, or for a split, to standard output, a file, or a folder of files.

    A killed command continues where it stopped. overrides: options of recipes, training and OutputLayout. Raises UserError.
    """
    layout = OutputLayout(**{name: value for name, value in overrides.items() if name in options_of(OutputLayout)})
    options = {name: value for name, value in overrides.items() if name not in options_of(OutputLayout)}
    if split is not None and files:
        raise UsageError("--split is for the run's own data, but a file is given", hint="leave out one of the two")
    if split is None and "data" in options:
        raise UsageError("--data needs --split, which is missing", hint="for example: --split test")
    endings = [*FORMATS, *dict.fromkeys(chain.from_iterable(family.own_formats for family in Task.families.values()))]
    sources = [split] if split is not None else expand(files or [STDIN])
    if layout.uncertain and len(sources) > 1:
        raise UsageError(f"--uncertain chooses among the rows of one file; {len(sources)} were given", hint="join them first")
    to = destination_of(sources, output, output_dir, form, endings, overwrite=overwrite)
    if layout.safe_csv and to.form.ending != ".csv":
        what = f"--safe-csv is for CSV, and the output is {to.form.ending.lstrip('.')}"
        raise UsageError(what, hint="name it .csv, or --format csv")
    begun = None if overwrite else to.recorded
    how = begun.how if begun is not None else {}  # an unfinished command's settings, unless the user sets them anew
    run, *others = runs_to_use(target, ensemble=ensemble)
    if "threads" in how:
        torch.set_num_threads(how["threads"])
    before = {"micro_batch_tokens": how["micro_batch_tokens"]} if "micro_batch_tokens" in how else {}
    predictor, blocks_of = _open(run, others, recipe, before | options, sources, split, layout.top_k)
    requested, recorded = options.get("precision") or "auto", how.get("precision")
    # What was measured is not measured again, as the choice might be another.
    if recorded and requested in ("auto", "int8") and (recorded != "int8" or int8.available()):
        predictor.precision = Precision(recorded, None, requested, how.get("attention"))
    presentation = predictor.presentation
    layout.refuse_others(presentation.details, presentation.kind)
    if to.form.ending not in FORMATS and (kept := next((name for name in ("keep", "id") if getattr(layout, name)), None)):
        what = f"{flag_of(kept)} adds a column, and the format {to.form.ending.lstrip('.')} has no columns"
        raise UsageError(what, hint="leave it out, or choose another format, such as jsonl or csv")
    if to.form.ending != TEXT:
        to.form.refuse_outside(
            f"{presentation.family} cannot be written as {to.form.ending[1:]}", [*FORMATS, *presentation.own_formats]
        )
    if lost := presentation.lost_in(to.form.ending):
        progress.warn(lost)
    _Command(predictor, blocks_of, layout, to, overwrite).run(_settings(predictor, split, overrides, to))


def _open(
    run: str,
    others: Sequence[str],
    recipe: str | None,
    options: Mapping[str, Any],
    sources: Sequence[str],
    split: str | None,
    top_k: int | None,
) -> tuple[Predictor, Callable[[str], Iterable[Examples]]]:
    """A predictor, whose weights are not yet read, and a function that reads the rows of a source."""
    if recipe is None and is_language_model(run):
        filler = open_to_fill(run, {**options, **({"split": split} if split else {})}, top_k=top_k)
        return filler, filler.read_blocks
    target = open_target(run, recipe, options, to_predict=split is None, others=others)
    if split is None:
        if "columns" not in options:
            report_remarks(columns_note(run, target.run))
        files = TaskPredictor(target.for_file(sources[0], options))
        return files, files.read_blocks
    own = target.task.recipe.resolved()
    if own.names_files and split in SPLITS and getattr(own, split) is None:
        raise UsageError(f"no file is named for split {split!r}", hint=f"name the file itself: bertkit predict {run} FILE")
    target.refuse_other_folds([split])
    target = target.with_recipe(own)
    return TaskPredictor(target), lambda name: [target.read([name])[name]]


def _settings(predictor: Predictor, split: str | None, overrides: Mapping[str, Any], to: Destination) -> OutputState:
    """The settings that predictions in files depend on; empty for standard output."""
    if None in to.files.values():
        return OutputState({}, {})
    processes = predictor.processes
    recipe = {} if predictor.task is None else predictor.task.to_json()
    precision = predictor.precision
    attention = next(name for name, dtype in DTYPES.items() if dtype == precision.attention)
    computing = {"precision": precision.name, "attention": attention, "micro_batch_tokens": predictor.micro_batch_tokens}
    settings = {
        "version": __version__,
        "model": [hash_of_model(folder) for folder in predictor.folders],
        "options": {**overrides, "split": split},
        "format": to.form.ending + to.form.compression,
        "recipe": {name: value for name, value in recipe.items() if name not in computing},
    }
    together = processes.num_processes if len(to.files) == 1 else 1  # several files are shared out among the processes
    own = {"threads": torch.get_num_threads(), "device": processes.device.type, "processes": together}
    return OutputState(settings, computing | own)


@dataclass
class _Command:
    """One predict command: a model, its sources, and where their predictions go."""

    predictor: Predictor
    blocks_of: Callable[[str], Iterable[Examples]]
    layout: OutputLayout
    to: Destination
    overwrite: bool
    everyone: Processes = field(init=False)  # of the launch; those of the predictor may become one

    def __post_init__(self) -> None:
        self.everyone = self.predictor.processes

    @property
    def writes(self) -> bool:
        """Whether this process writes: for a single file, only the main process does."""
        return len(self.to.files) > 1 or progress.is_main_process()

    def run(self, state: OutputState) -> None:
        everyone, is_main = self.everyone, self.everyone.is_main_process
        if len(self.to.files) == 1:  # else each is read by one process
            refuse_shared_pipes(self.to.files, everyone)
        with self.to.replaced() if self.overwrite and is_main else nullcontext(), self.explaining_resume():
            if is_main:
                self.to.refuse_other_content(state)
            everyone.wait_for_everyone()
            if not is_main:
                self.to.refuse_other_content(state)
            everyone.wait_for_everyone()  # nobody writes before all have looked
            self.predict_all(state)
            everyone.wait_for_everyone()

    @contextmanager
    def explaining_resume(self) -> Iterator[None]:
        """On Ctrl-C, say that the output so far is kept."""
        try:
            yield
        except KeyboardInterrupt as error:
            of_files = [unfinished(path) for path in self.to.files.values() if path is not None]
            is_kept = any(map(self.to.has, self.to.files)) or any(all(map(Path.exists, pair)) for pair in of_files)
            if str(error) or not is_kept:
                raise
            raise KeyboardInterrupt("stopped; the same command, without --overwrite, continues from there") from None

    def predict_all(self, state: OutputState) -> None:
        sources = [*self.to.files]
        if len(sources) > 1:  # each process predicts some of them
            sources = sources[self.everyone.process_index :: self.everyone.num_processes]
            self.predictor.processes = OneProcess(self.everyone.device)
        missing = [source for source in sources if not self.to.has(source)]
        for source in missing[1:]:
            if Path(source).is_file():  # a pipe can be read only once, and a URL should be
                self.opened(source)  # bad input is found before the first file is predicted
        others = missing  # to claim with the first output
        with progress.on_every_process() if len(self.to.files) > 1 else nullcontext():  # only this one knows of its files
            for source in sources:
                path = self.to.files[source]
                if not self.to.has(source):
                    self.predict(source, self.output_for(source, path, state), state, [*others, source])
                    others = []
                    continue
                if source in missing:  # another command has predicted it meanwhile, or a file of the same name
                    self.to.refuse_other_content(state, [source])
                progress.note(f"{path} already exists")
        self.to.close()

    def output_for(self, source: str, path: Path | None, state: OutputState) -> Output:
        if path is None or (path.exists() and not path.is_file()):  # such as a named pipe
            return Output(path)
        resumes = source != STDIN and not self.layout.uncertain  # with --uncertain, rows are kept in memory
        output = OutputFile(path, self.to.form, state, writes=self.writes, resumes=resumes)
        self.predictor.processes.wait_for_everyone()  # all processes have read its progress
        return output

    def opened(self, source: str) -> tuple[_Pages, Examples, Iterator[Examples]]:
        """The pages of a source, its first window, and the windows after it. Raises DataError for a file without rows, or whose
        columns are not the task's."""
        stream = windows(self.blocks_of(source))
        first = next(stream, None)
        if first is None:
            raise DataError("the file holds no rows", where=source_name(source))
        return _Pages(self.predictor, self.layout, self.to.form, first), first, stream

    def predict(self, source: str, output: Output, state: OutputState, claims: Sequence[str]) -> None:
        """Predict the rows of a source. The first rows are read before the model's weights, to find bad input early.

        claims: the sources to claim in a folder before the output is opened.
        """
        pages, first, stream = self.opened(source)
        assert self.predictor.model
        seen = Remarks()
        chooser = Chooser(self.predictor, self.layout) if self.layout.uncertain else None
        with ExitStack() as stack:
            with self.to.claimed(state, claims) if self.writes else nullcontext():
                stack.enter_context(output.open())
            rate = stack.enter_context(
                progress.rate("predict", shown=output.path is not None and self.everyone.is_main_process)
            )
            for rows in chain([first], stream):
                begins = not output.predictions
                if output.begin(rows):
                    rate.skip(rows.done)
                    continue
                window = predict_window(self.predictor, rows, rate)
                remarks = window.examples.remarks._replace(left_out=())
                report_remarks(remarks.without(seen))
                seen += remarks
                manifest.raise_if_damaged()
                output.faults.add(window.examples.remarks.left_out)
                if chooser is not None:
                    chooser.add(window)
                    output.write(b"", window.counts)
                else:
                    output.write(pages.of(window, begins=begins) if self.writes else b"", window.counts)
            of_file = f"{source_name(source)}: " if len(self.to.files) > 1 else ""
            if left_out := [name for name in self.predictor.unread_columns(first) if name not in pages.arrangement.read]:
                progress.note(f"{of_file}{plural(len(left_out), 'column')} not in the output: {listed(left_out, 12)}")
            if output.faults.count:
                progress.warn(output.faults.summary())
            report_counts(output.predictions, output.counts, of_file)
            wrote = output.predictions
            if chooser is not None:
                chosen = chooser.choose()
                wrote = len(chosen.predictions)
                output.write(pages.of(chosen, begins=True) if self.writes else b"")
            output.finish(pages.writer)
        if output.path is not None:
            progress.note(f"wrote {plural(wrote, 'prediction')} to {self.to.files[source]}")


class _Pages:
    """Windows of predictions as bytes in one format. first: the first window of rows, which decides the columns."""

    def __init__(self, predictor: Predictor, layout: OutputLayout, form: OutputFormat, first: Examples) -> None:
        self.presentation, self.form = predictor.presentation, form
        if form.ending in ANNOTATIONS and "probabilities" in self.presentation.details:
            layout = replace(layout, probabilities=True)
        self.layout = layout
        examples = predictor.standard(first)
        columns = self.presentation.columns(examples)
        self.arrangement: Arrangement = layout.arrange(first, examples, columns, self.presentation.details)
        self.writer: Writer | None = None
        if form.ending in FORMATS:
            of_rows = (self.arrangement.columns, self.arrangement.predicted)
            self.writer = FORMATS[form.ending](*of_rows, safe=bool(layout.safe_csv))

    def of(self, window: Window, *, begins: bool) -> bytes:
        """The bytes of a window. begins: whether these are the first predictions."""
        rows, examples, predictions, _, numbers = window
        if self.form.ending == TEXT:
            progress.print_results(
                self.presentation.format_prediction(each, examples, row) for row, each in enumerate(predictions)
            )
            return b""
        if self.writer is None and not predictions:
            return b""
        if self.writer is None:
            between = "" if begins else self.presentation.own_formats[self.form.ending]
            return (between + self.presentation.format_file(predictions, examples, self.form.ending)).encode("utf-8")
        predicted = [
            self.presentation.row(each, examples, row) | self.presentation.detail(each, self.layout)
            for row, each in enumerate(predictions)
        ]
        before = b"" if begins or not predicted else self.writer.between
        written = before + self.writer.write(self.arrangement.rows(predicted, rows, numbers))
        return (b"" if rows.first else self.writer.begin()) + written

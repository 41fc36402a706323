"""bertkit pretrain"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.option_files import preset_options, read_options, without_replaced
from bertkit.cli.options import (
    NewRun,
    Overwrite,
    Resume,
    require_output_dir,
    with_options,
)
from bertkit.cli.presets import PRETRAINING_PRESETS
from bertkit.config import PretrainConfig, options_of
from bertkit.errors import UsageError, did_you_mean
from bertkit.model.config import MODEL_SIZES, PRETRAINING
from bertkit.runs.pretraining.gpus import GPU_TYPES, Gpus, GpuType


@with_options({name: ("Training", option) for name, option in options_of(PretrainConfig).items()})
def pretrain(
    corpora: Annotated[
        list[str],
        typer.Argument(
            help="Corpora built by bertkit corpus build. If there are several, weights set the share of each in the sequences, "
            "as in corpora/own:3 corpora/general:1; a missing weight is 1. Without weights, shares follow the token counts.",
            metavar="CORPUS...",
        ),
    ],
    output_dir: NewRun = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Start from this model: a folder or hub id.", metavar="MODEL")
    ] = None,
    model_size: Annotated[
        str | None, typer.Option(help=f"Train from scratch at this size: {', '.join(MODEL_SIZES)}.", metavar="SIZE")
    ] = None,
    config_name: Annotated[
        Path | None,
        typer.Option(help="Train from scratch with this architecture: a config.json, or a folder with one.", metavar="FILE"),
    ] = None,
    num_hidden_layers: Annotated[int | None, typer.Option(help="Number of layers, for training from scratch.", min=1)] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Hidden size, for training from scratch.", min=1)] = None,
    num_attention_heads: Annotated[
        int | None, typer.Option(help="Attention heads, for training from scratch; default: hidden size / 64.", min=1)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML or JSON file with options, or a run's run.json; the command line overrides it.", metavar="FILE"
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="A group of settings: budget (a small model, from scratch, trained for --hours or --max-steps on a "
            "small machine); --config and other options override them.",
            metavar="|".join(PRETRAINING_PRESETS),
        ),
    ] = None,
    continue_with: Annotated[
        list[str] | None,
        typer.Option(
            help="Resume a stopped run on another corpus instead; can be repeated, for a mix of several.",
            metavar="CORPUS",
        ),
    ] = None,
    resume: Resume = "auto",
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the corpus, build the model, time 3 steps; write nothing.")
    ] = False,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --dry-run and --gpu-type: estimate memory and hours on this many GPUs; this machine needs none.",
            metavar="N",
        ),
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option(help=f"The type of these GPUs: {', '.join(GPU_TYPES)}.", metavar="TYPE")
    ] = None,
    *,
    overrides: dict[str, Any],
) -> None:
    """Pre-train BERT on a corpus, from scratch or from a model.

    The default objective is masked tokens and next sentences. The same command resumes a stopped run.
    For several processes: [bold]accelerate launch -m bertkit pretrain ...[/]

    [bold]bertkit pretrain corpora/mine --model-size small --output-dir runs/mine[/]

    [bold]bertkit pretrain corpora/mine --model bert-base-uncased --learning-rate 2e-5 --max-steps 10000 -o runs/more[/]

    [bold]bertkit pretrain corpora/mine:3 corpora/general:1 --model models/desk --learning-rate 2e-5 --hours 2 -o runs/mix[/]

    [bold]bertkit pretrain corpora/mine --config runs/mine/run.json --config-name runs/mine --seed 2 --output-dir runs/again[/]

    [bold]bertkit pretrain corpora/mine --model-size base --max-steps 100000 --dry-run --gpus 8 --gpu-type h100[/]

    [bold]bertkit finetune sst2 --model runs/mine --output-dir runs/sst2[/]
    """
    if not dry_run:
        require_output_dir(output_dir, "runs/mine")
    if dry_run and continue_with:
        raise UsageError("--dry-run plans a run from its first step", hint="leave out --continue-with")
    if (gpus is None) != (gpu_type is None):
        raise UsageError("--gpus and --gpu-type must be used together", hint="as in --dry-run --gpus 8 --gpu-type h100")
    if gpu_type is not None:
        GpuType.named(gpu_type)
        if not dry_run:
            what = "--gpus is only for estimates: training uses the GPUs that its launcher provides"
            raise UsageError(
                what, hint="add --dry-run; or start training with torchrun --standalone --nproc-per-node 8 -m bertkit ..."
            )
    from bertkit.corpus.corpora import open_corpora
    from bertkit.runs.pretraining import pretrain as pretraining
    from bertkit.runs.pretraining.weights import fresh_architecture, refuse_unclear_size

    file = read_options(config, pretrain, overrides)
    saved = file.options
    if file.run is not None and file.run["recipe"]["family"] != PRETRAINING:
        hint = f"repeat it with bertkit finetune --config {config}"
        raise UsageError("this is a fine-tuning run, not a pre-training run", where=str(config), hint=hint)
    if unknown := next((name for name in saved if name not in options_of(PretrainConfig)), None):
        raise UsageError(f"no option {unknown}", where=str(config), hint=did_you_mean(unknown, options_of(PretrainConfig)))
    together = without_replaced(preset_options(preset, PRETRAINING_PRESETS, file, config), saved | overrides)
    settings = PretrainConfig.of(together | saved | overrides)
    sources = {f"--preset {preset}": together, "--config": saved, "command line": overrides}
    shape = {"num_hidden_layers": num_hidden_layers, "hidden_size": hidden_size, "num_attention_heads": num_attention_heads}
    sizes = {name: value for name, value in shape.items() if value is not None}
    refuse_unclear_size(model, model_size, sizes, config_name)
    opened = open_corpora(corpora)
    fresh = model is None
    architecture = fresh_architecture(opened[0].meta, settings, model_size, sizes, config_name) if fresh else None
    pretraining.pretrain(
        opened,
        settings,
        output_dir=output_dir or Path(),
        model=model,
        architecture=architecture,
        continue_with=open_corpora(continue_with) if continue_with else (),
        resume=resume,
        overwrite=overwrite,
        dry_run=dry_run,
        gpus=Gpus(gpus, gpu_type) if gpus and gpu_type else None,
        set_by={name: source for source, values in sources.items() for name in values},
    )

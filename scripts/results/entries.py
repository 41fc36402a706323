"""The runs that `make results` makes: what is fine-tuned, with which seeds, and how it is scored."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.results import pretraining
from scripts.results.command_lines import DATA

GLUE = f"{DATA}/GLUE"


@dataclass(frozen=True)
class Entry:
    """Runs that differ in their seed alone.

    finetune: the command's arguments but for model, seed and folder. evaluate: arguments of `bertkit eval`; without any, the
    scores are those of the training's evaluation.
    """

    name: str
    finetune: str
    seeds: tuple[int, ...]
    evaluate: str = ""
    baselines: tuple[str, ...] = ()  # splits on which what the recipe must beat is scored too
    model: str = "minilm"
    many: bool = False  # whether there are seeds enough for a median, and to count those that come to nothing
    folds: bool = False  # whether the seeds are folds of the data too, $SEED/5: then the mean has its 95% interval
    note: str = ""


DEV_AND_TEST = "--split validation --split test"
SEEN = "MiniLM was trained on pairs of SQuAD 2.0's questions and paragraphs: do not compare these figures with published ones."
SQUAD = f"squad --data {DATA}/SQuAD --learning-rate 1e-4 --num-epochs 2 --eval-steps 10000"

# What fine-tuning starts from: the pre-trained model of docs/results.md, that model after more pre-training on the task's own
# text, and random weights. task -> the command's arguments, and the origins.
ORIGINS = {"pretrained": pretraining.MODEL, "continued": pretraining.CONTINUED, "random": pretraining.RANDOM}
FROM_OWN = {
    "sst2_5k": (
        f"sst2 --data {GLUE}/SST-2 --max-train-samples 5000 --learning-rate 3e-4 --num-epochs 3",
        ("pretrained", "random"),
    ),
    "conll2003": (f"conll2003 --data {DATA}/CoNLL2003 --learning-rate 5e-4 --num-epochs 3", ("pretrained", "random")),
    "helpdesk": ("helpdesk --learning-rate 5e-4", ("pretrained", "continued", "random")),
}

# bertkit's side of what trainer.py compares.
FIVE_SEEDS = {
    "mrpc_five": f"mrpc --data {GLUE}/MRPC",
    "rte_five": f"rte --data {GLUE}/RTE",
    "sst2_five": f"sst2 --data {GLUE}/SST-2 --max-train-samples 5000",
}

# What paired.py fine-tunes in two ways: in fp32 and in bf16; alone and after a related task; from the models of
# budget_models.py.
BY_PRECISION = {
    "precision_mrpc": f"mrpc --data {GLUE}/MRPC --max-train-samples 2000 --num-epochs 3 --learning-rate 1e-4",
    "precision_conll2003": f"conll2003 --data {DATA}/CoNLL2003 --max-train-samples 3000 --num-epochs 2 --learning-rate 2e-4",
    "precision_squad": f"squad --train {DATA}/SQuAD/train-v1.1.rebuilt.json.xz --validation 1% --max-train-samples 2000 "
    "--num-epochs 1 --learning-rate 1e-4",
}
AFTER_NLI = {
    f"stilts_{recipe}": f"{recipe} --data {GLUE}/{folder} --learning-rate 1e-4 --num-epochs 3"
    for recipe, folder in {"rte": "RTE", "mrpc": "MRPC", "stsb": "STS-B"}.items()
}
FROM_BUDGET = {f"budget_{task}": FROM_OWN[task][0] for task in ("conll2003", "sst2_5k")}

# Few rows, as Zhang et al. (2021) draw them, by three sets of settings.
FEW = {
    "rte_1k": f"rte --data {GLUE}/RTE",
    "mrpc_1k": f"mrpc --data {GLUE}/MRPC",
    "cola_1k": f"cola --data {GLUE}/CoLA",
}
SETTINGS = {"": "", "_stable": " --preset stable", "_few_sample": " --preset few-sample"}

ENTRIES = (
    Entry("helpdesk", "helpdesk", (1, 2, 3), DEV_AND_TEST, baselines=("validation", "test")),
    Entry("helpdesk_pairs", "helpdesk_pairs", (1, 2, 3), DEV_AND_TEST),
    Entry("helpdesk_mentions", "helpdesk_mentions", (1, 2, 3), DEV_AND_TEST),
    Entry("helpdesk_pages", "helpdesk_pages", (1, 2, 3), DEV_AND_TEST),
    Entry("helpdesk_replies", "helpdesk_replies", (1, 2, 3), DEV_AND_TEST),
    Entry("conll2003", f"conll2003 --data {DATA}/CoNLL2003 --learning-rate 2e-4 --num-epochs 3", (1, 2, 3), DEV_AND_TEST),
    Entry("ud_pos", f"ud_pos --data {DATA}/UD_English-EWT --learning-rate 2e-4 --num-epochs 2", (1, 2, 3), DEV_AND_TEST),
    Entry("atis", f"atis --intent --data {DATA}/ATIS --learning-rate 2e-4 --num-epochs 8", (1, 2, 3), DEV_AND_TEST),
    Entry("snips", f"snips --intent --data {DATA}/SNIPS --learning-rate 2e-4 --num-epochs 3", (1, 2, 3), DEV_AND_TEST),
    Entry("squad_20k", f"{SQUAD} --max-train-samples 20000", (1,), note=SEEN),
    Entry("squad_5k", f"{SQUAD} --max-train-samples 5000", (1, 2, 3)),
    Entry(
        "codah",
        f"codah --train {DATA}/CODAH/full_data.tsv.gz --validation $SEED/5 --learning-rate 1e-4 --num-epochs 3",
        (1, 2, 3, 4, 5),
        folds=True,
    ),
    *(Entry(task, f"{finetune} --learning-rate 1e-4 --num-epochs 3", (1, 2, 3, 4, 5)) for task, finetune in FIVE_SEEDS.items()),
    *(
        Entry(
            f"{task}{name}",
            f"{finetune} --max-train-samples 1000 --learning-rate 1e-4{options}",
            tuple(range(1, 11)),
            many=True,
        )
        for task, finetune in FEW.items()
        for name, options in SETTINGS.items()
    ),
    *(
        Entry(f"{task}_{origin}", finetune, (1, 2, 3), "--split validation", model=ORIGINS[origin])
        for task, (finetune, origins) in FROM_OWN.items()
        for origin in origins
    ),
)

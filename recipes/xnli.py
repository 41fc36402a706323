"""XNLI: MNLI in fifteen languages: trained on English, evaluated on each, zero-shot. (Conneau et al., 2018)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, hub

LANGUAGES = "en ar bg de el es fr hi ru sw th tr ur vi zh".split()
_COLUMNS = ("premise", "hypothesis", "label")


def rows(split):
    """The rows of "train", in English, or of a split such as "validation_zh"."""
    name, _, language = split.partition("_")
    columns = hub("facebook/xnli", language or "en").read(name).columns
    return (dict(zip(_COLUMNS, row)) for row in zip(*(columns[column] for column in _COLUMNS)))


_FILES = {
    f"{split}_{language}": f"{name}-{language}.tsv*"
    for split, name in (("validation", "dev"), ("test", "test"))
    for language in LANGUAGES
}

# --data FOLDER: train-en.tsv, and files such as dev-zh.tsv for some or all languages; to train on another file: --train FILE
recipe = TextClassification(
    dataset=rows,
    folder=Folder(files={"train": "train-en.tsv*", **_FILES}, headers=dict.fromkeys(("train", *_FILES), _COLUMNS)),
    text="premise",
    text_pair="hypothesis",
    label="label",
    labels=("entailment", "neutral", "contradiction"),
    metrics=(accuracy,),
    eval_splits=tuple(f"validation_{language}" for language in LANGUAGES),
    training=TrainConfig(learning_rate=2e-5, num_epochs=2, batch_size=32, max_length=128),
)

"""OCNLI: does the Chinese premise entail the hypothesis, contradict it, or neither? (Hu et al., 2020)"""

from bertkit.tasks import Folder, TextClassification, TrainConfig, accuracy, hub


def prepare(rows, split):
    """Without the pairs that the annotators did not agree on."""
    labels = rows.columns.get("label", [None] * len(rows))
    return rows.select([row for row, label in enumerate(labels) if label != "-"])


recipe = TextClassification(
    dataset=hub("clue/clue", "ocnli"),
    folder=Folder(files={"train": "train*.json*", "validation": "dev.json*", "test": "test.json*"}),
    text="sentence1",
    text_pair="sentence2",
    label="label",
    labels=("entailment", "neutral", "contradiction"),
    prepare=prepare,
    metrics=(accuracy,),
    training=TrainConfig(learning_rate=2e-5, num_epochs=3, batch_size=32, max_length=128),
)
